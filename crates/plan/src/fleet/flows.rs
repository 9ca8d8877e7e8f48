//! Rates of copies on shared links: each gets its fair share (max-min), up to its own limit.
//!
//! Every resource (a host's ports, a rack's uplink) has a level: no copy on it gets more. The level is what is left
//! when copies that are held back elsewhere have got what they can take, divided among the others. A change is carried
//! from resource to resource until the levels stay the same.

use std::collections::{BTreeSet, VecDeque};

/// Number of a resource.
pub type ResourceId = u32;
/// Number of a copy.
pub type FlowId = u32;

/// Relative change of a level below which others are not told.
const SAME: f64 = 1e-6;
/// Levels that are computed for one change at most.
const LEVELS_MAX: usize = 2000;

#[derive(Clone, Debug)]
struct Resource {
    bytes_per_s: f64,
    level: f64,
    flows: BTreeSet<FlowId>,
}

#[derive(Clone, Debug)]
struct Flow {
    owner: u32,
    path: Vec<ResourceId>,
    limit: f64,
    rate: f64,
}

/// Resources and the copies on them.
#[derive(Clone, Debug, Default)]
pub struct Flows {
    resources: Vec<Resource>,
    flows: Vec<Option<Flow>>,
    free: Vec<FlowId>,
}

impl Flows {
    pub fn add_resource(&mut self, bytes_per_s: f64) -> ResourceId {
        self.resources.push(Resource { bytes_per_s, level: f64::INFINITY, flows: BTreeSet::new() });
        self.resources.len() as ResourceId - 1
    }

    /// Begins a copy; `owner` is whatever the caller knows it by. Returns it and all rates that changed, by owner.
    pub fn begin(&mut self, owner: u32, path: Vec<ResourceId>, limit: f64) -> (FlowId, Vec<(u32, f64)>) {
        let id = self.free.pop().unwrap_or_else(|| {
            self.flows.push(None);
            self.flows.len() as FlowId - 1
        });
        for resource in &path {
            self.resources[*resource as usize].flows.insert(id);
        }
        self.flows[id as usize] = Some(Flow { owner, path: path.clone(), limit, rate: 0.0 });
        (id, self.settle(path))
    }

    /// Ends a copy. Returns all rates that changed, by owner.
    pub fn end(&mut self, id: FlowId) -> Vec<(u32, f64)> {
        let Some(flow) = self.flows[id as usize].take() else { return Vec::new() };
        for resource in &flow.path {
            self.resources[*resource as usize].flows.remove(&id);
        }
        self.free.push(id);
        self.settle(flow.path)
    }

    /// What a copy could take if this resource were not there.
    fn demand(&self, flow: FlowId, without: ResourceId) -> f64 {
        let Some(flow) = &self.flows[flow as usize] else { return 0.0 };
        let others = flow.path.iter().filter(|resource| **resource != without);
        others.map(|resource| self.resources[*resource as usize].level).fold(flow.limit, f64::min)
    }

    fn level(&self, id: ResourceId) -> f64 {
        let resource = &self.resources[id as usize];
        let mut demands: Vec<f64> = resource.flows.iter().map(|flow| self.demand(*flow, id)).collect();
        demands.sort_by(f64::total_cmp);
        let mut left = resource.bytes_per_s;
        for (done, demand) in demands.iter().enumerate() {
            let share = left / (demands.len() - done) as f64;
            if *demand > share {
                return share;
            }
            left -= demand;
        }
        f64::INFINITY
    }

    fn settle(&mut self, changed: Vec<ResourceId>) -> Vec<(u32, f64)> {
        let mut queue: VecDeque<ResourceId> = changed.iter().copied().collect();
        let mut waiting: BTreeSet<ResourceId> = changed.iter().copied().collect();
        let mut touched: BTreeSet<ResourceId> = waiting.clone();
        let mut steps = 0;
        while let Some(id) = queue.pop_front() {
            waiting.remove(&id);
            steps += 1;
            let level = self.level(id);
            let before = std::mem::replace(&mut self.resources[id as usize].level, level);
            touched.insert(id);
            let same = level == before || before.is_finite() && (level - before).abs() <= SAME * before;
            if steps > LEVELS_MAX || same {
                continue;
            }
            let flows = self.resources[id as usize].flows.iter();
            let others: BTreeSet<ResourceId> = flows
                .filter_map(|flow| self.flows[*flow as usize].as_ref())
                .flat_map(|flow| flow.path.iter().copied())
                .collect();
            for other in others.into_iter().filter(|other| *other != id) {
                if waiting.insert(other) {
                    queue.push_back(other);
                }
            }
        }
        self.rates(&touched)
    }

    fn rates(&mut self, touched: &BTreeSet<ResourceId>) -> Vec<(u32, f64)> {
        let flows: BTreeSet<FlowId> =
            touched.iter().flat_map(|id| self.resources[*id as usize].flows.iter().copied()).collect();
        let mut changed = Vec::new();
        for id in flows {
            let rate = self.demand(id, ResourceId::MAX);
            if let Some(flow) =
                self.flows[id as usize].as_mut().filter(|flow| (flow.rate - rate).abs() > SAME * rate)
            {
                flow.rate = rate;
                changed.push((flow.owner, rate));
            }
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Max-min by its definition: all rates grow together, and stop where a resource is full or the limit reached.
    fn by_definition(caps: &[f64], flows: &[(Vec<ResourceId>, f64)]) -> Vec<f64> {
        let mut rates = vec![0.0; flows.len()];
        let mut fixed = vec![false; flows.len()];
        while fixed.iter().any(|fixed| !fixed) {
            let left = |resource: usize| -> f64 {
                let here = |flow: &usize| flows[*flow].0.contains(&(resource as u32));
                let used: f64 = (0..flows.len()).filter(here).map(|flow| rates[flow]).sum();
                let growing = (0..flows.len()).filter(here).filter(|flow| !fixed[*flow]).count();
                if growing == 0 { f64::INFINITY } else { (caps[resource] - used) / growing as f64 }
            };
            let by_resource = (0..caps.len()).map(left).fold(f64::INFINITY, f64::min);
            let growing = || (0..flows.len()).filter(|flow| !fixed[*flow]);
            let step = growing().map(|flow| flows[flow].1 - rates[flow]).fold(by_resource, f64::min);
            let full: Vec<bool> =
                (0..caps.len()).map(|resource| left(resource) <= step * (1.0 + 1e-9)).collect();
            for flow in growing().collect::<Vec<_>>() {
                rates[flow] += step;
            }
            for flow in 0..flows.len() {
                let stopped = flows[flow].0.iter().any(|resource| full[*resource as usize]);
                fixed[flow] |= stopped || rates[flow] >= flows[flow].1 * (1.0 - 1e-9);
            }
        }
        rates
    }

    #[test]
    fn rates_are_max_min_shares_also_after_copies_have_ended() {
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let caps: Vec<f64> = (0..random.between(2, 6)).map(|_| random.between(1, 20) as f64).collect();
            let mut flows = Flows::default();
            for cap in &caps {
                flows.add_resource(*cap);
            }
            let mut rates = std::collections::BTreeMap::new();
            let mut alive = std::collections::BTreeMap::new();
            for owner in 0..random.between(1, 12) as u32 {
                let mut path: Vec<u32> = (0..2).map(|_| random.below(caps.len() as u64) as u32).collect();
                path.dedup();
                let limit = random.between(1, 10) as f64;
                let (id, changed) = flows.begin(owner, path.clone(), limit);
                rates.extend(changed);
                alive.insert(owner, (id, path, limit));
                if random.percent(30) {
                    let gone = *alive.keys().next().unwrap();
                    let (id, ..) = alive.remove(&gone).unwrap();
                    rates.extend(flows.end(id));
                }
            }
            let wanted: Vec<_> = alive.values().map(|(_, path, limit)| (path.clone(), *limit)).collect();
            for (owner, rate) in alive.keys().zip(by_definition(&caps, &wanted)) {
                assert!(
                    (rates[owner] - rate).abs() < 1e-3 * rate,
                    "seed {seed}: {owner} has {} not {rate}",
                    rates[owner]
                );
            }
        }
    }
}
