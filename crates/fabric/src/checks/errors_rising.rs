//! Counters of errors that rise.

use crate::model::{Counters, Finding, PortRef, Room, Severity};

use super::Check;

const WHY: &str = "Damaged packets are thrown away and sent again after a pause; TCP takes them for congestion and slows down far more than what \
     was lost.";

pub(super) struct ErrorsRising;

impl Check for ErrorsRising {
    fn id(&self) -> &'static str {
        "errors-rising"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        room.ports().filter_map(|at| self.port(at)).collect()
    }
}

fn errors(gained: &Counters) -> Vec<(&'static str, u64)> {
    let all = [
        ("check sum errors", gained.rx_crc_errors),
        ("errors in receiving", gained.rx_errors),
        ("errors in sending", gained.tx_errors),
        ("collisions", gained.collisions),
    ];
    all.into_iter().filter(|(_, count)| *count > 0).collect()
}

impl ErrorsRising {
    fn port(&self, at: PortRef<'_>) -> Option<Finding> {
        let change = at.port.counters_change?;
        let rising = errors(&change.gained);
        let (what, count) = rising.first()?;
        let title = format!("{count} {what} in {} ms", change.over_ms);
        let mut finding = Finding::new(self.id(), Severity::Warning, title).at(at.place()).why(WHY);
        for (what, count) in &rising {
            finding = finding.seen(at.place(), what, count);
        }
        let port = &at.port.name;
        Some(
            finding
                .step(None, "change cable and transceiver; compare FEC and speed on both sides")
                .command(at.place(), "see FEC and what it corrects", format!("ethtool -I --show-fec {port}"))
                .command(at.place(), "see all counters", format!("ethtool -S {port}")),
        )
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn a_bad_cable() {
        let mut room = healthy_room();
        let gained = &mut port(&mut room, "beta", "ens1f1").counters_change.as_mut().unwrap().gained;
        gained.rx_crc_errors = 17;
        gained.rx_errors = 17;
        let finding = only(&room, "errors-rising");
        assert_eq!(finding.title, "17 check sum errors in 300 ms");
        assert_eq!(finding.places[0].to_string(), "beta ens1f1");
        assert_eq!(finding.seen.len(), 2);
    }

    #[test]
    fn old_errors_are_no_finding() {
        let mut room = healthy_room();
        port(&mut room, "beta", "ens1f1").counters.as_mut().unwrap().rx_errors = 4000;
        assert_eq!(crate::checks::run_all(&room), Vec::new());
    }
}
