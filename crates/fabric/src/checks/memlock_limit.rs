//! An agent that may not lock the memory that RDMA needs.

use crate::model::{Finding, Limit, Place, Room, Severity};

use super::Check;

const WHY: &str = "RDMA moves memory that stays where it is: the agent must lock a guest's whole memory. It may not, so RDMA is refused and migrations fall \
     back to TCP.";

pub(super) struct MemlockLimit;

impl Check for MemlockLimit {
    fn id(&self) -> &'static str {
        "memlock-limit"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let mut findings = Vec::new();
        for host in &room.hosts {
            let (Some(Limit::Bytes(limit)), Some(total)) = (host.memory.memlock, host.memory.total_bytes)
            else {
                continue;
            };
            let has_rdma = host.rdma.as_ref().is_some_and(|devices| !devices.is_empty());
            // Half of all memory is more than most guests have.
            if !has_rdma || limit >= total / 2 {
                continue;
            }
            let place = Place::host(&host.host);
            let finding = Finding::new(
                self.id(),
                Severity::Warning,
                format!("the agent may lock {} MiB of memory", limit >> 20),
            )
            .at(place.clone())
            .seen(place.clone(), "may lock", format!("{} MiB", limit >> 20))
            .seen(place.clone(), "memory", format!("{} MiB", total >> 20))
            .why(WHY)
            .command(
                place,
                "add LimitMEMLOCK=infinity to [Service] and restart the agent",
                "systemctl edit linerate-agent",
            );
            findings.push(finding);
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use crate::model::Limit;
    use crate::testing::{healthy_room, host_mut, only};

    #[test]
    fn the_default_of_8_mib() {
        let mut room = healthy_room();
        host_mut(&mut room, "beta").memory.memlock = Some(Limit::Bytes(8 << 20));
        let finding = only(&room, "memlock-limit");
        assert_eq!(finding.title, "the agent may lock 8 MiB of memory");
        assert_eq!(finding.places[0].to_string(), "beta");
        for host in ["alpha", "beta", "gamma"] {
            host_mut(&mut room, host).rdma = None;
        }
        assert_eq!(crate::checks::run_all(&room), Vec::new(), "TCP locks nothing");
    }
}
