//! Equal adapters with different firmware.

use crate::model::{Finding, PortRef, Room, Severity};

use super::Check;
use super::common::{Value, differ, equals};

const WHY: &str = "Faults and defaults change with the firmware: what works between two hosts fails between two others, and nobody thinks of this.";

pub(super) struct FirmwareDiffers;

impl Check for FirmwareDiffers {
    fn id(&self) -> &'static str {
        "firmware-differs"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let models = equals(room);
        models.iter().filter_map(|(model, ports)| self.model(model, ports)).collect()
    }
}

fn value(at: PortRef<'_>) -> Option<String> {
    at.port.firmware.clone()
}

impl FirmwareDiffers {
    fn model(&self, model: &str, ports: &[PortRef<'_>]) -> Option<Finding> {
        let values: Vec<Value> = ports.iter().filter_map(|at| Some((at.place(), value(*at)?))).collect();
        let finding =
            differ(self.id(), Severity::Hint, "firmware", &format!("on equal adapters ({model})"), &values)?;
        Some(finding.why(WHY).step(None, "bring all to the newest that the vendor recommends: fwupdmgr update, or the vendor's tool (mstfwmanager)"))
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn the_one_that_was_forgotten() {
        let mut room = healthy_room();
        port(&mut room, "beta", "ens1f1").firmware = Some("14.20.1010".into());
        let finding = only(&room, "firmware-differs");
        assert_eq!(finding.title, "firmware 14.20.1010 and 14.32.1900 on equal adapters (15b3:1015)");
        assert_eq!(finding.places.len(), 1);
        assert_eq!(finding.places[0].to_string(), "beta ens1f1");
    }
}
