//! The local search of a placement: room for what best fit left over, relief for destinations that are waited for.

use super::HostId;
use super::overlay::Overlay;
use super::placement::Plan;

/// Hosts with much free memory that are tried beside those of the plan.
const OTHERS: usize = 16;
/// Pairs of moves that are tried for an item without a host.
const PAIRS_MAX: usize = 4096;
/// Orders of best fit that are tried while items are left over.
const ORDERS: usize = 12;

impl Plan<'_> {
    /// Gives items without a host one, by moving one or two items of the plan elsewhere.
    pub fn make_room(&mut self) {
        let left: Vec<usize> = (0..self.items.len()).filter(|n| self.items[*n].host.is_none()).collect();
        for number in left {
            if !self.replace_one(number, 0) {
                self.replace_one(number, 1);
            }
        }
    }

    /// Tries best fit in other orders, if items are left over: the smallest first; then those that were left over
    /// first. The order that leaves fewest stays.
    pub fn other_orders(&mut self) {
        let mut best = (self.left(), self.items.clone(), self.overlay.clone());
        for round in 0..ORDERS {
            if best.0 == 0 || round == 0 && !self.could_be_placed() {
                break;
            }
            if round == 0 {
                self.items.sort_by_key(|item| (item.bytes, item.guests[0]));
            } else {
                self.items.sort_by_key(|item| item.host.is_some());
            }
            self.items.iter_mut().for_each(|item| item.host = None);
            self.overlay = Overlay::default();
            self.best_fit();
            self.make_room();
            if self.left() < best.0 {
                best = (self.left(), self.items.clone(), self.overlay.clone());
            }
        }
        (_, self.items, self.overlay) = best;
    }

    fn left(&self) -> usize {
        self.items.iter().filter(|item| item.host.is_none()).map(|item| item.guests.len()).sum()
    }

    /// Whether an item that is left over would have a host, were it alone.
    fn could_be_placed(&mut self) -> bool {
        let plan = std::mem::take(&mut self.overlay);
        let mut left = (0..self.items.len()).filter(|n| self.items[*n].host.is_none());
        let could = left.any(|n| self.best_host(n, None).is_some());
        self.overlay = plan;
        could
    }

    /// Puts `number` in the place of another item, which goes elsewhere. With `depth` 1, that one may do the same.
    fn replace_one(&mut self, number: usize, depth: u32) -> bool {
        let mut tried = 0;
        for other in 0..self.items.len() {
            let Some(host) = self.items[other].host.filter(|_| other != number) else { continue };
            tried += 1;
            if tried > PAIRS_MAX {
                return false;
            }
            self.take(other);
            if self.fits(number, host) {
                self.put(number, host);
                let elsewhere = self.best_host(other, Some(host));
                if let Some(elsewhere) = elsewhere {
                    self.put(other, elsewhere);
                    return true;
                }
                if depth > 0 && self.replace_one(other, depth - 1) {
                    return true;
                }
                self.take(number);
            }
            self.put(other, host);
        }
        false
    }

    /// Moves items away from the destination that needs longest, while it needs longer than the source.
    pub fn relieve(&mut self) {
        let bytes: u64 = self.items.iter().filter(|item| item.host.is_some()).map(|item| item.bytes).sum();
        let source_s =
            bytes as f64 / self.ledger.offer(self.source).map_or(1.0, |offer| offer.bytes_per_s().max(1.0));
        for _ in 0..4 * self.items.len() {
            let slowest = self.overlay.hosts().map(|(host, bytes)| (self.seconds(host, bytes), host));
            let Some((seconds, host)) = slowest.max_by(|a, b| a.0.total_cmp(&b.0)) else { return };
            if seconds <= source_s || !self.relieve_host(host, seconds) {
                return;
            }
        }
    }

    fn seconds(&self, host: HostId, bytes: u64) -> f64 {
        bytes as f64 / self.ledger.links(self.source, host).1.max(1.0)
    }

    /// Moves one item off the host, or exchanges it, so that both hosts need less than `seconds`.
    fn relieve_host(&mut self, host: HostId, seconds: f64) -> bool {
        let here: Vec<usize> = (0..self.items.len()).filter(|n| self.items[*n].host == Some(host)).collect();
        let mut best: Option<(f64, usize, HostId, Option<usize>)> = None;
        for &number in here.iter().rev() {
            let mut others: Vec<HostId> = self.overlay.hosts().map(|at| at.0).collect();
            others.extend(self.emptiest(number, OTHERS));
            for other in others.into_iter().filter(|other| *other != host) {
                let there: Vec<usize> =
                    (0..self.items.len()).filter(|n| self.items[*n].host == Some(other)).collect();
                for exchange in std::iter::once(None).chain(there.into_iter().map(Some)) {
                    let Some(after) = self.try_move(number, host, other, exchange) else { continue };
                    if after < seconds * 0.999 && best.is_none_or(|best| after < best.0) {
                        best = Some((after, number, other, exchange));
                    }
                }
            }
        }
        let Some((_, number, other, exchange)) = best else { return false };
        self.exchange(number, host, other, exchange);
        true
    }

    fn exchange(&mut self, number: usize, from: HostId, to: HostId, back: Option<usize>) {
        self.take(number);
        if let Some(back) = back {
            self.take(back);
            self.put(back, from);
        }
        self.put(number, to);
    }

    fn take_some(&mut self, number: Option<usize>) {
        if let Some(number) = number {
            self.take(number);
        }
    }

    /// Seconds that the slower of both hosts needs after the move; `None` if it is not possible. Changes nothing.
    fn try_move(&mut self, number: usize, from: HostId, to: HostId, back: Option<usize>) -> Option<f64> {
        self.take(number);
        self.take_some(back);
        let mut possible = self.fits(number, to);
        if possible {
            self.put(number, to);
            possible = back.is_none_or(|back| self.fits(back, from));
            if let Some(back) = back.filter(|_| possible) {
                self.put(back, from);
            }
        }
        let hosts = [from, to].map(|host| self.seconds(host, self.overlay.bytes(host)));
        self.take(number);
        self.take_some(back);
        self.put(number, from);
        back.iter().for_each(|back| self.put(*back, to));
        possible.then_some(hosts[0].max(hosts[1]))
    }
}
