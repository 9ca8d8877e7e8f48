//! Forward error correction that is not the switch port's.

use crate::link::Wish;
use crate::model::{Finding, Place, PortRef, Room, Severity};

use super::common::switch_side;
use super::{Check, Mending};

const WHY: &str = "Both sides must correct errors in the same way. Otherwise there is no link, or one whose packets are damaged now and then.";

pub(super) struct FecAgainstSwitch;

impl Check for FecAgainstSwitch {
    fn id(&self) -> &'static str {
        "fec-against-switch"
    }

    fn mending(&self) -> Mending {
        Mending::Port
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        room.ports().filter_map(|at| self.port(room, at)).collect()
    }
}

/// The switch's word, if it is one that a port can be set to.
fn wish(theirs: &str) -> Option<Wish> {
    let fec = match theirs {
        "none" | "off" => "off",
        "rs" | "baser" | "llrs" => theirs,
        _ => return None,
    };
    Some(Wish { fec: Some(fec.to_owned()), ..Wish::default() })
}

impl FecAgainstSwitch {
    fn port(&self, room: &Room, at: PortRef<'_>) -> Option<Finding> {
        let switch = switch_side(room, at);
        let (ours, theirs) = (at.port.fec.as_ref()?.active.as_deref()?, switch.fec()?);
        if ours == theirs || theirs == "auto" {
            return None;
        }
        let name = switch.name();
        let title = format!("FEC {ours} here and {theirs} on {name}");
        let command = format!("ethtool --set-fec {} encoding {theirs}", at.port.name);
        let finding = Finding::new(self.id(), Severity::Warning, title)
            .at(at.place())
            .seen(at.place(), "FEC", ours)
            .seen(Place::host(&name), "FEC", theirs)
            .why(WHY);
        let what = "do as the switch port does";
        Some(match wish(theirs) {
            Some(wish) => finding.mend(at.place(), what, command, wish),
            None => finding.command(at.place(), what, command),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::model::{Switch, SwitchPort};
    use crate::testing::{healthy_room, only};

    #[test]
    fn both_sides_are_shown() {
        let mut room = healthy_room();
        let mut exported =
            SwitchPort { name: "Ethernet1/2".into(), fec: Some("rs".into()), ..SwitchPort::default() };
        room.switches = vec![Switch { switch: "leaf1".into(), ports: vec![exported.clone()] }];
        assert_eq!(crate::checks::run_all(&room), Vec::new());
        exported.fec = Some("none".into());
        room.switches[0].ports = vec![exported];
        let finding = only(&room, "fec-against-switch");
        assert_eq!(finding.title, "FEC rs here and none on leaf1 Ethernet1/2");
        assert_eq!(finding.places[0].to_string(), "beta ens1f1");
    }
}
