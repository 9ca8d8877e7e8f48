//! Some hosts take DCB settings from the switch, others do not.

use crate::model::{Finding, PortRef, Room, Segment, Severity};

use super::Check;
use super::common::{Value, carriers, differ, migration_segments};

const WHY: &str = "A willing side takes over whatever the switch says, the other keeps its own: the same switch gives two hosts different lossless priorities and shares.";

pub(super) struct DcbWilling;

impl Check for DcbWilling {
    fn id(&self) -> &'static str {
        "dcb-willing"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        migration_segments(room).iter().filter_map(|segment| self.segment(room, segment)).collect()
    }
}

fn value(at: PortRef<'_>) -> Option<String> {
    let dcb = at.port.dcb.as_ref()?;
    let pfc = dcb.pfc.as_ref().and_then(|pfc| pfc.willing).map(|willing| ("PFC", willing));
    let ets = dcb.ets.as_ref().and_then(|ets| ets.willing).map(|willing| ("ETS", willing));
    let word = |(what, willing)| format!("{what} {}", if willing { "yes" } else { "no" });
    let words: Vec<String> = [pfc, ets].into_iter().flatten().map(word).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

impl DcbWilling {
    fn segment(&self, room: &Room, segment: &Segment<'_>) -> Option<Finding> {
        let ports = carriers(room, segment);
        let values: Vec<Value> = ports.iter().filter_map(|at| Some((at.place(), value(*at)?))).collect();
        let whereabouts = format!("on {}", segment.network);
        let finding =
            differ(self.id(), Severity::Warning, "takes settings from the switch:", &whereabouts, &values)?;
        Some(finding.why(WHY).step(None, "set all hosts alike, for instance not willing: dcb pfc set dev PORT willing off; dcb ets set dev PORT willing off"))
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn one_side_is_willing() {
        let mut room = healthy_room();
        port(&mut room, "beta", "ens1f1").dcb.as_mut().unwrap().pfc.as_mut().unwrap().willing = Some(true);
        let finding = only(&room, "dcb-willing");
        assert_eq!(
            finding.title,
            "takes settings from the switch: PFC yes, ETS no and PFC no, ETS no on 10.1.1.0/24"
        );
        assert_eq!(finding.places[0].to_string(), "beta ens1f1");
    }
}
