//! Equal adapters with different drivers.

use crate::model::{Finding, PortRef, Room, Severity};

use super::Check;
use super::common::{Value, differ, equals};

const WHY: &str = "The kernel's driver and the vendor's have other defaults for queues, offloads and DCB: equal hosts are no longer equal.";

pub(super) struct DriverDiffers;

impl Check for DriverDiffers {
    fn id(&self) -> &'static str {
        "driver-differs"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let models = equals(room);
        models.iter().filter_map(|(model, ports)| self.model(model, ports)).collect()
    }
}

/// Name, and version if it is not the kernel's own.
fn value(at: PortRef<'_>) -> Option<String> {
    let driver = at.port.driver.as_ref()?;
    let own =
        at.port.driver_version.as_ref().filter(|version| at.host.system.kernel.as_ref() != Some(*version));
    Some(own.map_or_else(|| driver.clone(), |version| format!("{driver} {version}")))
}

impl DriverDiffers {
    fn model(&self, model: &str, ports: &[PortRef<'_>]) -> Option<Finding> {
        let values: Vec<Value> = ports.iter().filter_map(|at| Some((at.place(), value(*at)?))).collect();
        let finding =
            differ(self.id(), Severity::Hint, "driver", &format!("on equal adapters ({model})"), &values)?;
        Some(finding.why(WHY).step(
            None,
            "install the same driver on all hosts; the kernel's own is the one that is kept up with it",
        ))
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn the_vendors_among_the_kernels() {
        let mut room = healthy_room();
        port(&mut room, "beta", "ens1f1").driver_version = Some("5.8-1.1.2".into());
        let finding = only(&room, "driver-differs");
        assert_eq!(finding.title, "driver mlx5_core 5.8-1.1.2 and mlx5_core on equal adapters (15b3:1015)");
        assert_eq!(finding.places[0].to_string(), "beta ens1f1");
    }

    #[test]
    fn another_kernel_is_no_other_driver() {
        let mut room = healthy_room();
        super::super::common::testing::kernel(&mut room, "beta", "6.12.30-amd64");
        assert_eq!(crate::checks::run_all(&room), Vec::new());
    }
}
