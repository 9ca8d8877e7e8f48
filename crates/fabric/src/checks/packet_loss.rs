//! A link that loses packets, in one direction or both.

use crate::model::{Finding, Room, Severity};

use super::Check;
use super::common::{Pair, Way, by_shared_port, pairs, place};

/// Packets of a thousand. TCP on a local network loses none; from one in a thousand on its rate sinks with the root of the loss.
const PERMILLE_MIN: u32 = 2;
/// From here on connections stall for seconds, and break.
const PERMILLE_GRAVE: u32 = 50;

const WHY: &str = "TCP takes each lost packet for a link that is full, slows down and waits: a migration over this link moves a fraction of what the link \
     could, and stands still for moments. Packets were counted twice, without load, late ones not among the lost.";

pub(super) struct PacketLoss;

impl Check for PacketLoss {
    fn id(&self) -> &'static str {
        "packet-loss"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        by_shared_port(pairs(room).iter().filter_map(|pair| self.pair(pair)).collect())
    }
}

/// Packets of a thousand that are lost in a direction, by either side's count. `None` if nobody knows the direction.
fn lost(way: &Way<'_>) -> Option<u32> {
    let there = way.probe.and_then(|probe| probe.loss).and_then(|loss| Some((loss.lost_there?, loss.sent)));
    let back = way.reverse.and_then(|probe| probe.loss).and_then(|loss| Some((loss.lost_back?, loss.sent)));
    let permille = |(lost, sent): (u32, u32)| lost.saturating_mul(1000).checked_div(sent);
    there.and_then(permille).max(back.and_then(permille))
}

impl PacketLoss {
    fn pair(&self, pair: &Pair<'_>) -> Option<Finding> {
        let ways = pair.ways();
        let known = ways.map(|way| lost(&way));
        let bad: Vec<(Way<'_>, u32)> = ways
            .into_iter()
            .zip(known)
            .filter_map(|(way, lost)| Some((way, lost.filter(|lost| *lost >= PERMILLE_MIN)?)))
            .collect();
        match bad.as_slice() {
            [] if known == [None, None] => self.somewhere(pair),
            [] => None,
            [(way, lost)] => {
                let title = format!(
                    "{} of packets to {} are lost, the other way none",
                    percent(*lost),
                    place(way.to)
                );
                let other = known.iter().flatten().min().copied().unwrap_or(0);
                let title = if other == 0 {
                    title
                } else {
                    format!("{} of packets to {} are lost", percent(*lost), place(way.to))
                };
                Some(self.finding(title, way, &[(*way, *lost)]))
            }
            [(way, lost), (_, back), ..] => {
                let (lost_there, lost_back) = (percent(*lost), percent(*back));
                let title = format!(
                    "{lost_there} of packets to {} are lost, {lost_back} of those back",
                    place(way.to)
                );
                Some(self.finding(title, way, &bad))
            }
        }
    }

    /// The receiver does not count.
    fn somewhere(&self, pair: &Pair<'_>) -> Option<Finding> {
        let permille = |probe: &crate::model::Probe| {
            let loss = probe.loss?;
            loss.lost.saturating_mul(1000).checked_div(loss.sent)
        };
        let lost = pair.probes().filter_map(permille).max().filter(|lost| *lost >= PERMILLE_MIN)?;
        let way = pair.ways()[0];
        let title = format!("{} of packets to {} or of their replies are lost", percent(lost), place(way.to));
        Some(self.finding(title, &way, &[(way, lost)]))
    }

    fn finding(&self, title: String, way: &Way<'_>, bad: &[(Way<'_>, u32)]) -> Finding {
        let worst = bad.iter().map(|(_, lost)| *lost).max().unwrap_or(0);
        let severity = if worst >= PERMILLE_GRAVE { Severity::Error } else { Severity::Warning };
        let mut finding =
            Finding::new(self.id(), severity, title).at(place(way.from)).at(place(way.to)).why(WHY);
        for (way, lost) in bad {
            finding = finding.seen(
                place(way.from),
                &format!("lost on the way to {}", place(way.to)),
                percent(*lost),
            );
        }
        let port = &way.from.port;
        finding
            .step(None, "look at cable, transceivers and both switch ports: errors and drops that rise, a full buffer, a rate limit")
            .command(place(way.from), "counters of the port", format!("ip -s -s link show dev {port}"))
    }
}

/// `1.2 %`, `30 %`.
fn percent(permille: u32) -> String {
    if permille.is_multiple_of(10) {
        format!("{} %", permille / 10)
    } else {
        format!("{}.{} %", permille / 10, permille % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::super::common::testing::{probe, reversed};
    use crate::model::{Loss, Probe, Severity};
    use crate::testing::{healthy_room, only};

    fn losing(there: u32, back: u32) -> Option<Loss> {
        let lost = there + back;
        Some(Loss { sent: 2000, lost_there: Some(there), lost_back: Some(back), lost })
    }

    fn room(there: u32, back: u32) -> crate::model::Room {
        let mut room = healthy_room();
        let (one, other) = (probe(), reversed(&probe()));
        room.matrix.probes =
            vec![Probe { loss: losing(there, back), ..one }, Probe { loss: losing(back, there), ..other }];
        room
    }

    #[test]
    fn the_direction_and_both_ends_are_named() {
        let finding = only(&room(600, 0), "packet-loss");
        assert_eq!(finding.title, "30 % of packets to beta ens1f0 are lost, the other way none");
        assert_eq!(
            (finding.places[0].to_string().as_str(), finding.severity),
            ("alpha ens1f0", Severity::Error)
        );
        let finding = only(&room(0, 22), "packet-loss");
        assert_eq!(finding.title, "1.1 % of packets to alpha ens1f0 are lost, the other way none");
        assert_eq!(
            (finding.places[0].to_string().as_str(), finding.severity),
            ("beta ens1f0", Severity::Warning)
        );
        let finding = only(&room(100, 90), "packet-loss");
        assert_eq!(finding.title, "5 % of packets to beta ens1f0 are lost, 4.5 % of those back");
    }

    #[test]
    fn a_packet_or_two_are_no_finding() {
        assert_eq!(crate::checks::run_all(&room(2, 1)), Vec::new());
    }

    #[test]
    fn of_three_hosts_the_port_that_all_bad_links_share_is_named() {
        let mut room = room(100, 0);
        let mut third = room.matrix.probes[0].clone();
        (third.from.host, third.from.ip) = ("gamma".into(), [10, 1, 0, 3].into());
        room.matrix.probes.push(third);
        let finding = only(&room, "packet-loss");
        assert_eq!(finding.places.iter().map(ToString::to_string).collect::<Vec<_>>(), ["beta ens1f0"]);
    }

    #[test]
    fn a_receiver_that_does_not_count_leaves_the_direction_open() {
        let mut room = room(0, 0);
        room.matrix.probes.truncate(1);
        room.matrix.probes[0].loss = Some(Loss { sent: 1000, lost: 50, ..Loss::default() });
        let finding = only(&room, "packet-loss");
        assert_eq!(finding.title, "5 % of packets to beta ens1f0 or of their replies are lost");
    }
}
