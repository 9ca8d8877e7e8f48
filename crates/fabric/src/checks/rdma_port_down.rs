//! An RDMA port that is down while its network port has a link.

use crate::model::{Finding, PortRef, Room, Severity};

use super::Check;
use super::common::{migration_ports, roce_of};

const WHY: &str = "The network port works, so everything looks well; RDMA connections over it fail, and migrations fall back to TCP.";

pub(super) struct RdmaPortDown;

impl Check for RdmaPortDown {
    fn id(&self) -> &'static str {
        "rdma-port-down"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        migration_ports(room).into_iter().filter_map(|at| self.port(at)).collect()
    }
}

impl RdmaPortDown {
    fn port(&self, at: PortRef<'_>) -> Option<Finding> {
        let (device, port) = roce_of(at)?;
        let state = port.state.as_deref()?;
        if state.contains("ACTIVE") || at.port.up == Some(false) || at.port.carrier != Some(true) {
            return None;
        }
        let name = &device.name;
        let finding = Finding::new(
            self.id(),
            Severity::Warning,
            format!("the link is up, but RDMA device {name} is {state}"),
        )
        .at(at.place())
        .seen(at.place(), "carrier", "there")
        .seen(at.place(), &format!("state of {name}"), state)
        .why(WHY)
        .command(at.place(), "see what the device says", format!("rdma link show {name}/{}", port.number))
        .step(None, "load the driver's RDMA module anew; look into the kernel's log for the device");
        Some(finding)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, host_mut, only};

    #[test]
    fn device_and_state_are_named() {
        let mut room = healthy_room();
        host_mut(&mut room, "beta").rdma.as_mut().unwrap()[1].ports[0].state = Some("DOWN".into());
        let finding = only(&room, "rdma-port-down");
        assert_eq!(finding.title, "the link is up, but RDMA device mlx5_1 is DOWN");
        assert_eq!(finding.places[0].to_string(), "beta ens1f1");
    }
}
