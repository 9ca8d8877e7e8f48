//! Bandwidth shares that differ between hosts, or from the switch.

use crate::model::{Ets, Finding, Place, PortRef, Room, Segment, Severity};

use super::common::{Value, advise_intent, carriers, differ, join, migration_segments, numbers, switch_side};
use super::{Check, Mending};

const WHY: &str = "Each side gives traffic classes other shares: under load, migrations get less in one direction than was planned, or take from storage.";

pub(super) struct EtsDiffers;

impl Check for EtsDiffers {
    fn id(&self) -> &'static str {
        "ets-differs"
    }

    fn mending(&self) -> Mending {
        Mending::Intent
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        migration_segments(room).iter().filter_map(|segment| self.segment(room, segment)).collect()
    }
}

/// Shares of the classes and which priority is in which.
fn text(ets: &Ets) -> Option<String> {
    let known = !ets.priority_class.is_empty() || !ets.share_percent.is_empty();
    let (classes, shares) = (numbers(&ets.priority_class), numbers(&ets.share_percent));
    known.then(|| {
        format!(
            "{shares} %, classes of priorities {classes}, {}",
            join(ets.selection.iter().map(String::as_str), "/")
        )
    })
}

fn value(at: PortRef<'_>) -> Option<String> {
    text(at.port.dcb.as_ref()?.ets.as_ref()?)
}

/// What the switch ports say.
fn switches(room: &Room, ports: &[PortRef<'_>]) -> Vec<Value> {
    let said = ports.iter().filter_map(|at| {
        let switch = switch_side(room, *at);
        Some((Place::host(&switch.name()), text(switch.ets()?)?))
    });
    said.collect()
}

impl EtsDiffers {
    fn segment(&self, room: &Room, segment: &Segment<'_>) -> Option<Finding> {
        let ports = carriers(room, segment);
        let mut values: Vec<Value> = ports.iter().filter_map(|at| Some((at.place(), value(*at)?))).collect();
        values.extend(switches(room, &ports));
        let whereabouts = format!("on {}", segment.network);
        let finding = differ(self.id(), Severity::Warning, "shares (ETS)", &whereabouts, &values)?;
        Some(advise_intent(finding.why(WHY), &ports))
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn other_shares_on_one_host() {
        let mut room = healthy_room();
        port(&mut room, "beta", "ens1f1").dcb.as_mut().unwrap().ets.as_mut().unwrap().share_percent =
            vec![90, 10, 0, 0, 0, 0, 0, 0];
        let finding = only(&room, "ets-differs");
        assert!(finding.title.contains("90, 10, 0") && finding.title.contains("50, 50, 0"), "{finding:?}");
        assert_eq!(finding.places.len(), 1);
        assert_eq!(finding.places[0].to_string(), "beta ens1f1");
    }

    #[test]
    fn other_shares_on_the_switch() {
        let mut room = healthy_room();
        let faulty = port(&mut room, "beta", "ens1f1");
        let mut ets = faulty.dcb.as_ref().unwrap().ets.clone().unwrap();
        ets.share_percent = vec![100, 0, 0, 0, 0, 0, 0, 0];
        faulty.neighbours[0].ets = Some(ets);
        let finding = only(&room, "ets-differs");
        assert_eq!(finding.places[0].to_string(), "leaf1 Ethernet1/2");
    }
}
