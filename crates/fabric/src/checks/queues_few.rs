//! A fast port with fewer queues than there are cores for it.

use crate::link::Wish;
use crate::model::{Finding, PortKind, PortRef, Room, Severity};

use super::common::migration_ports;
use super::{Check, Mending};

/// Below it, one core fetches everything.
const SPEED_MIN_MBPS: u32 = 10_000;

/// More than these are no gain for migrations: a link has at most eight connections for each 100 Gb/s.
const ENOUGH: u32 = 8;

const WHY: &str = "Each queue is fetched by one core. With too few of them a core is busy with receiving while others wait, and the port never reaches \
     its speed.";

pub(super) struct QueuesFew;

impl Check for QueuesFew {
    fn id(&self) -> &'static str {
        "queues-few"
    }

    fn mending(&self) -> Mending {
        Mending::Port
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        migration_ports(room).into_iter().filter_map(|at| self.port(at)).collect()
    }
}

impl QueuesFew {
    fn port(&self, at: PortRef<'_>) -> Option<Finding> {
        // Speeds of virtual ports mean nothing.
        let physical = at.port.kind == PortKind::Physical;
        let speed = at.port.link.speed_mbps.filter(|speed| physical && *speed >= SPEED_MIN_MBPS)?;
        let queues = at.port.queues.filter(|queues| queues.receiving() > 0)?;
        let cores = at.host.cpu.cores.or(at.host.cpu.online)?;
        let (now, wanted) = (queues.receiving(), cores.min(queues.receiving_max()).min(ENOUGH));
        if now >= wanted {
            return None;
        }
        let severity = if now == 1 { Severity::Warning } else { Severity::Hint };
        let kind = if queues.combined_max.unwrap_or(0) > 0 { "combined" } else { "rx" };
        let finding = Finding::new(
            self.id(),
            severity,
            format!("{now} receive queues at {speed} Mb/s, {wanted} are of use"),
        )
        .at(at.place())
        .seen(at.place(), "receive queues", now)
        .seen(at.place(), "most that the adapter can", queues.receiving_max())
        .seen(at.place(), "cores", cores)
        .why(WHY)
        .mend(
            at.place(),
            "more queues",
            format!("ethtool -L {} {kind} {wanted}", at.port.name),
            Wish { queues: Some(wanted), ..Wish::default() },
        );
        Some(finding)
    }
}

#[cfg(test)]
mod tests {
    use crate::model::Severity;
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn one_queue_for_25_gigabits() {
        let mut room = healthy_room();
        port(&mut room, "beta", "ens1f1").queues.as_mut().unwrap().combined = Some(1);
        let finding = only(&room, "queues-few");
        assert_eq!(finding.title, "1 receive queues at 25000 Mb/s, 8 are of use");
        assert_eq!(
            (finding.places[0].to_string().as_str(), finding.severity),
            ("beta ens1f1", Severity::Warning)
        );
        assert_eq!(finding.fixes[0].command.as_deref(), Some("ethtool -L ens1f1 combined 8"));
    }
}
