//! DCBX in different modes.

use crate::model::{Finding, PortRef, Room, Segment, Severity};

use super::Check;
use super::common::{Value, carriers, differ, migration_segments};

const WHY: &str = "One side takes its settings from the network and another from a file, or they speak versions that do not understand each other: what was set once \
     changes on some hosts when a switch changes.";

pub(super) struct DcbxDiffers;

impl Check for DcbxDiffers {
    fn id(&self) -> &'static str {
        "dcbx-differs"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        migration_segments(room).iter().filter_map(|segment| self.segment(room, segment)).collect()
    }
}

fn value(at: PortRef<'_>) -> Option<String> {
    let dcbx = at.port.dcb.as_ref()?.dcbx?;
    let modes = [
        (dcbx.host, "by the host"),
        (dcbx.firmware, "by the firmware"),
        (dcbx.ieee, "IEEE"),
        (dcbx.cee, "CEE"),
        (dcbx.fixed, "nothing exchanged"),
    ];
    let words: Vec<&str> = modes.into_iter().filter(|(on, _)| *on).map(|(_, word)| word).collect();
    Some(if words.is_empty() { "off".to_owned() } else { words.join(", ") })
}

impl DcbxDiffers {
    fn segment(&self, room: &Room, segment: &Segment<'_>) -> Option<Finding> {
        let ports = carriers(room, segment);
        let values: Vec<Value> = ports.iter().filter_map(|at| Some((at.place(), value(*at)?))).collect();
        let whereabouts = format!("on {}", segment.network);
        let finding = differ(self.id(), Severity::Warning, "DCBX", &whereabouts, &values)?;
        Some(
            finding
                .why(WHY)
                .step(None, "choose one mode for all hosts, for instance: dcb dcbx set dev PORT host ieee"),
        )
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn the_firmware_decides_on_one_host() {
        let mut room = healthy_room();
        let dcbx = port(&mut room, "beta", "ens1f1").dcb.as_mut().unwrap().dcbx.as_mut().unwrap();
        (dcbx.host, dcbx.firmware) = (false, true);
        let finding = only(&room, "dcbx-differs");
        assert_eq!(finding.title, "DCBX by the firmware, IEEE and by the host, IEEE on 10.1.1.0/24");
        assert_eq!(finding.places[0].to_string(), "beta ens1f1");
    }
}
