//! Several hosts that send to one get less together than one of them alone.

use crate::model::{Finding, Incast, Place, Room, Severity};

use super::Check;

/// Percent of what one gets alone; less than this is loss, not sharing.
const PERCENT_MIN: u64 = 60;

const WHY: &str = "When a host is filled from several others, the switch's buffer for its port runs over, everybody loses packets and waits: emptying two \
     hosts at once takes longer than one after the other.";

pub(super) struct IncastCollapse;

impl Check for IncastCollapse {
    fn id(&self) -> &'static str {
        "incast-collapse"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        room.matrix.incasts.iter().filter_map(|incast| self.incast(incast)).collect()
    }
}

impl IncastCollapse {
    fn incast(&self, incast: &Incast) -> Option<Finding> {
        let alone = incast.alone_mbps?;
        let together: u64 = incast.throughput_mbps.iter().sum();
        if together.saturating_mul(100) >= alone.saturating_mul(PERCENT_MIN) {
            return None;
        }
        let to = Place::port(&incast.to.host, &incast.to.port);
        let title =
            format!("{} hosts at once move {together} Mb/s to it, one alone {alone} Mb/s", incast.from.len());
        let mut finding = Finding::new(self.id(), Severity::Warning, title).at(to.clone()).why(WHY);
        for (from, rate) in incast.from.iter().zip(&incast.throughput_mbps) {
            finding = finding.seen(Place::port(&from.host, &from.port), "sent", format!("{rate} Mb/s"));
        }
        Some(
            finding
                .step(None, "on the switch: ECN, PFC for the migrations' class, or more buffer for the port")
                .step(
                    Some(to),
                    "until then migrate to this host one after the other, or bound each with --bandwidth",
                ),
        )
    }
}

#[cfg(test)]
mod tests {
    use crate::model::{End, Incast};
    use crate::testing::{healthy_room, only};

    #[test]
    fn the_receiver_is_named() {
        let end =
            |host: &str, last| End { host: host.into(), port: "ens1f0".into(), ip: [10, 1, 0, last].into() };
        let mut incast = Incast {
            from: vec![end("alpha", 1), end("gamma", 3)],
            to: end("beta", 2),
            throughput_mbps: vec![12_000, 11_000],
            alone_mbps: Some(23_500),
        };
        let mut room = healthy_room();
        room.matrix.incasts = vec![incast.clone()];
        assert_eq!(crate::checks::run_all(&room), Vec::new());
        incast.throughput_mbps = vec![3000, 2000];
        room.matrix.incasts = vec![incast];
        let finding = only(&room, "incast-collapse");
        assert_eq!(finding.title, "2 hosts at once move 5000 Mb/s to it, one alone 23500 Mb/s");
        assert_eq!(finding.places[0].to_string(), "beta ens1f0");
    }
}
