//! Processors that save power while packets wait.

use crate::model::{Finding, Inventory, Place, Room, Severity};

use super::Check;

const WHY: &str = "Clocks that follow the load come too late for bursts of packets: throughput is lower and uneven, the blackout longer. On Windows the \
     balanced plan held 10 Gb/s ports at 16 % (field report).";

pub(super) struct CpuGovernor;

impl Check for CpuGovernor {
    fn id(&self) -> &'static str {
        "cpu-governor"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        room.hosts.iter().filter_map(|host| self.host(host)).collect()
    }
}

/// How bad a governor or a power plan is, by its name.
fn severity(name: &str) -> Option<Severity> {
    match name.to_ascii_lowercase().as_str() {
        "performance" | "high performance" | "ultimate performance" | "userspace" => None,
        "schedutil" | "ondemand" => Some(Severity::Hint),
        _ => Some(Severity::Warning),
    }
}

impl CpuGovernor {
    fn host(&self, host: &Inventory) -> Option<Finding> {
        let saving: Vec<(&str, u32, Severity)> = host
            .cpu
            .governors
            .iter()
            .filter_map(|governor| Some((governor.name.as_str(), governor.cpus, severity(&governor.name)?)))
            .collect();
        let worst = saving.iter().map(|(_, _, severity)| *severity).max()?;
        let (name, _, _) = saving.first()?;
        let place = Place::host(&host.host);
        let cpus: u32 = saving.iter().map(|(_, cpus, _)| cpus).sum();
        let title = format!("power saving: governor {name} on {cpus} CPUs");
        let mut finding = Finding::new(self.id(), worst, title).at(place.clone()).why(WHY);
        for governor in &host.cpu.governors {
            finding = finding.seen(place.clone(), &format!("CPUs with {}", governor.name), governor.cpus);
        }
        Some(if host.system.os.as_deref() == Some("windows") {
            finding.command(place, "plan for high performance", "powercfg /setactive SCHEME_MIN")
        } else {
            finding.command(
                place,
                "full speed (package linux-cpupower)",
                "cpupower frequency-set -g performance",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::model::Severity;
    use crate::testing::{healthy_room, host_mut, only};

    #[test]
    fn host_and_governor_are_named() {
        for (name, severity) in
            [("powersave", Severity::Warning), ("schedutil", Severity::Hint), ("Balanced", Severity::Warning)]
        {
            let mut room = healthy_room();
            host_mut(&mut room, "beta").cpu.governors[0].name = name.into();
            let finding = only(&room, "cpu-governor");
            assert_eq!(finding.title, format!("power saving: governor {name} on 16 CPUs"));
            assert_eq!((finding.places[0].to_string().as_str(), finding.severity), ("beta", severity));
        }
    }
}
