//! What is measured on the way between hosts, and what hosts need, is judged. A busy machine delays and loses packets:
//! what values just below and above the limits are called is shown by written surveys, in
//! crates/fabric/tests/faults.rs.

use std::time::{Duration, Instant};

use linerate_lab::{Lab, LinkSpec, Way};
use serde_json::Value;

use crate::Stage;

impl Stage {
    /// Two agents on links through switches, so that what happens on the way happens outside of both hosts. The third
    /// host has no agent.
    fn through_switches(rates_mbps: &[u64]) -> Stage {
        let mut stage = Stage::new(3, rates_mbps);
        stage.agents.truncate(2);
        stage
    }

    /// Looks until a look has each of these findings once and no others, and the first of them fits. `ids` are sorted.
    /// Until then looks may have others, but only those that a busy machine can bring.
    fn names(
        &self,
        more: &[&str],
        ids: &[&str],
        about: &str,
        fits: impl Fn(&Value, &str, &[String]) -> bool,
    ) -> Value {
        let deadline = Instant::now() + LIMIT;
        loop {
            let (_, document) = self.doctor(more);
            let found = wrong(&document);
            nothing_but(&found, ids, about);
            let mut names: Vec<&str> = found.iter().map(|(id, ..)| id.as_str()).collect();
            names.sort_unstable();
            let fitting = |(id, title, places): &Wrong| id == ids[0] && fits(&document, title, places);
            // Asked in each look that has the first finding: some of what it asserts holds in all of these.
            let is_fitting = found.iter().any(fitting);
            if is_fitting && names == ids {
                return document;
            }
            let matrix = &document["survey"]["matrix"];
            assert!(Instant::now() < deadline, "{about}: not {ids:?}, or unfit: {found:#?}\n{matrix}");
        }
    }

    /// Looks until a look finds nothing. No look has findings, but those that a busy machine can bring.
    fn silent(&self, more: &[&str], about: &str) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let found = wrong(&self.doctor(more).1);
            nothing_but(&found, &[], about);
            if found.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "{about}: {found:#?}");
        }
    }
}

/// A look at a stalled machine is followed by others for this long.
const LIMIT: Duration = Duration::from_secs(300);

/// What rests on measured rates, round trips, counts, or on waits of less than a second.
const MEASURED: &[&str] = &[
    "clock-skew",
    "drops-rising",
    "incast-collapse",
    "load-fails",
    "mtu-path",
    "not-read",
    "packet-loss",
    "round-trip-long",
    "throughput-below-promise",
    "throughput-below-sibling",
    "throughput-one-way",
];

/// A finding: its id, its title and its places.
type Wrong = (String, String, Vec<String>);

/// Findings of a document, hints left out: id, title, places.
fn wrong(document: &Value) -> Vec<Wrong> {
    let grave = document["findings"].as_array().unwrap().iter().filter(|one| one["severity"] != "hint");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let place = |place: &Value| format!("{} {}", text(&place["host"]), text(&place["port"]));
    let places = |one: &Value| one["locations"].as_array().unwrap().iter().map(place).collect();
    grave.map(|one| (text(&one["id"]), text(&one["title"]), places(one))).collect()
}

/// Nothing else is wrong, but what a busy machine can bring. What needs no measurement is there once at most.
fn nothing_but(found: &[Wrong], ids: &[&str], about: &str) {
    let times = |id: &str| found.iter().filter(|(other, ..)| other == id).count();
    let is_expected = |id: &str| MEASURED.contains(&id) || (ids.contains(&id) && times(id) == 1);
    assert!(found.iter().all(|(id, ..)| is_expected(id.as_str())), "{about}: {found:#?}");
}

/// These are the places, in whatever order.
fn at(places: &[String], expected: &[&str]) -> bool {
    let mut places: Vec<&str> = places.iter().map(String::as_str).collect();
    places.sort_unstable();
    places == expected
}

/// Both ends of the second link.
const SECOND: &[&str] = &["a l1", "b l1"];

#[test]
fn loss_in_each_direction_is_named_and_nothing_else() {
    let stage = Stage::through_switches(&[1000, 1000]);
    stage.silent(&["--quick"], "before");
    for percent in [1, 30] {
        for (there, back) in [(percent, 0), (0, percent), (percent, percent)] {
            let about = format!("{there} % there, {back} % back");
            stage.lab.lose(1, 0, there).unwrap();
            stage.lab.lose(1, 1, back).unwrap();
            let one_way = if there == 0 { "to a l1" } else { "to b l1" };
            let way = if there == back { "of those back" } else { one_way };
            stage.names(&["--quick"], &["packet-loss"], &about, |_, title, places| {
                at(places, SECOND) && title.contains(way)
            });
        }
    }
    stage.lab.lose(1, 0, 0).unwrap();
    stage.lab.lose(1, 1, 0).unwrap();
    stage.silent(&["--quick"], "after");
}

/// The slow direction must be seen beside what a busy machine adds to a round trip. With 25 ms it is, in some look.
#[test]
fn a_slow_link_is_named_beside_a_fast_one_and_its_slow_direction() {
    let stage = Stage::through_switches(&[1000, 1000]);
    for (there, back) in [(25, 0), (0, 25), (25, 25), (50, 0)] {
        let about = format!("{there} ms there, {back} ms back");
        let _forwarder = stage.lab.forward(1, [0, 1], far(there, back, 0)).unwrap();
        let slow =
            [("b", there > back), ("a", back > there)].iter().find(|(_, slow)| *slow).map(|(host, _)| *host);
        let end = slow.map_or_else(String::new, |host| format!("the way to {host} is the slow one"));
        stage.names(&["--quick"], &["round-trip-long"], &about, |_, title, places| {
            at(places, SECOND) && title.contains("over l0") && title.ends_with(&end)
        });
    }
}

fn far(there_ms: u64, back_ms: u64, loses_one_of: u32) -> [Way; 2] {
    [there_ms, back_ms].map(|ms| Way { delay: Duration::from_millis(ms), loses_one_of })
}

/// Probes of the second link, both directions.
fn second_link(document: &Value) -> [&Value; 2] {
    [crate::probe(document, "a", "l1", "b"), crate::probe(document, "b", "l1", "a")]
}

/// The least round trip of a probe. It is never less than its link's.
fn least_ns(probe: &Value, link_ms: u64) -> Option<u64> {
    let least = (probe["latency"]["min_us"].as_f64()? * 1000.0).round() as u64;
    assert!(least >= link_ms * 1_000_000, "less than {link_ms} ms: {probe}");
    Some(least)
}

/// No more than 100 ms above the link's round trip.
fn near_the_links(least_ns: u64, link_ms: u64) -> bool {
    least_ns < (link_ms + 100) * 1_000_000
}

/// All but the round trip is as on a near link; and the least of both probes is in the title.
fn only_far(document: &Value, ms: u64, title: &str) -> bool {
    let works = |probe: &Value| {
        (&probe["reachable"], &probe["tcp"]) == (&Value::from(true), &Value::from(true))
            && probe["loss"]["sent"].as_u64().is_some_and(|sent| sent >= 1000)
            && probe["loss"]["lost"] == 0
            && probe["path_mtu"]["passed"] == 9000
            && probe["failure"].is_null()
    };
    let [one, other] = second_link(document);
    let (Some(first), Some(second)) = (least_ns(one, ms), least_ns(other, ms)) else { return false };
    let least = first.min(second);
    let round_trip = format!("is {}.{} ms", least / 1_000_000, least / 100_000 % 10);
    let near = near_the_links(first, ms) && near_the_links(second, ms);
    near && works(one) && works(other) && title.contains(&round_trip) && title.contains("over l0")
}

/// A machine that may be busy loses packets and is late: looks go on until none is lost and the round trip is right.
#[test]
fn a_far_link_is_reachable_and_only_its_round_trip_is_named() {
    let stage = Stage::through_switches(&[1000, 1000]);
    for (there, back) in [(100, 100), (200, 200), (300, 300), (500, 500), (600, 0)] {
        let about = format!("{there} ms there, {back} ms back");
        let _forwarder = stage.lab.forward(1, [0, 1], far(there, back, 0)).unwrap();
        // As after a pause: ARP takes one round trip more.
        (0..2).for_each(|host| stage.on(host, &["ip", "neighbour", "flush", "dev", "l1"]));
        stage.names(&["--quick"], &["round-trip-long"], &about, |document, title, places| {
            let slow = there == back || title.ends_with("the way to b is the slow one");
            only_far(document, there + back, title) && at(places, SECOND) && slow
        });
    }
    let _forwarder = stage.lab.forward(1, [0, 1], far(200, 200, 0)).unwrap();
    let late_is_not_lost = |probe: &Value| {
        probe["throughput_mbps"].as_u64().is_some_and(|rate| rate > 0)
            && probe["latency_loaded"]["min_us"].as_f64().is_some_and(|least| least >= 400_000.0)
            && probe["loss_permille"].as_u64().is_some_and(|lost| lost < 500)
    };
    stage.names(&[], &["round-trip-long"], "in full", |document, title, _| {
        only_far(document, 400, title) && second_link(document).into_iter().all(late_is_not_lost)
    });
}

#[test]
fn the_only_link_may_be_far() {
    let stage = Stage::through_switches(&[1000]);
    let _forwarder = stage.lab.forward(0, [0, 1], far(300, 300, 0)).unwrap();
    stage.names(&["--quick"], &["round-trip-long"], "the only link", |document, title, _| {
        let probe = crate::probe(document, "a", "l0", "b");
        let is_near = least_ns(probe, 600).is_some_and(|least| near_the_links(least, 600));
        let starts = title.starts_with("the round trip to b over the only link is ");
        is_near && probe["loss"]["lost"] == 0 && starts
    });
}

/// What the forwarder drops cannot arrive: of packets and replies together nearly a tenth. It counts those of both
/// probes together, so that one of them may lose some more and the other less.
fn loses_no_less_than_the_forwarder(document: &Value) {
    let sum = |name: &str| -> Option<u64> {
        second_link(document).into_iter().map(|probe| probe["loss"][name].as_u64()).sum()
    };
    let (Some(lost), Some(sent)) = (sum("lost"), sum("sent")) else { return };
    assert!(lost * 1000 >= sent * 70, "{lost} of {sent} are less than were dropped: {document:#}");
}

#[test]
fn a_far_link_that_loses_packets_has_both_findings_and_its_loss_is_measured_right() {
    let stage = Stage::through_switches(&[1000, 1000]);
    let _forwarder = stage.lab.forward(1, [0, 1], far(300, 300, 20)).unwrap();
    let one_of_20_each_way = |probe: &Value| {
        let loss = &probe["loss"];
        let permille = |lost: &Value| (lost.as_u64()? * 1000).checked_div(loss["sent"].as_u64()?);
        let is_right = |lost: &Value| permille(lost).is_some_and(|lost| (40..=60).contains(&lost));
        is_right(&loss["lost_there"]) && is_right(&loss["lost_back"])
    };
    stage.names(&["--quick"], &["packet-loss", "round-trip-long"], "far and lossy", |document, _, places| {
        loses_no_less_than_the_forwarder(document);
        let is_far = |(id, _, places): &Wrong| id == "round-trip-long" && at(places, SECOND);
        at(places, SECOND)
            && wrong(document).iter().any(is_far)
            && second_link(document).into_iter().all(one_of_20_each_way)
    });
}

#[test]
fn what_a_firewall_takes_is_named_at_its_host_and_one_cause_is_one_finding() {
    let stage = Stage::through_switches(&[1000, 1000]);
    for (rule, id) in [
        ("iifname l1 udp dport 1-65535 drop", "firewall-drops"),
        ("iifname l1 udp dport 7979 drop", "firewall-drops"),
        ("iifname l1 tcp dport 7979 drop", "tcp-blocked"),
        ("iifname l1 tcp dport 7979 reject", "tcp-blocked"),
        ("iifname l1 meta l4proto tcp drop", "tcp-blocked"),
        ("iifname l1 ip protocol != icmp drop", "firewall-drops"),
    ] {
        let rules = format!(
            "add table inet t; add chain inet t in {{ type filter hook input priority 0; policy accept; }}; \
                             add rule inet t in {rule}"
        );
        stage.on(1, &["nft", &rules]);
        stage.names(&["--quick"], &[id], rule, |_, _, places| at(places, &["b l1"]));
        stage.on(1, &["nft", "delete table inet t"]);
    }
    let away = format!("{}/32", stage.agents[1].address(0).ip());
    stage.on(0, &["ip", "route", "add", &away, "dev", "l1"]);
    stage.names(&["--quick"], &["asymmetric-routing"], "a route", |_, _, places| at(places, &["a l0"]));
    stage.on(0, &["ip", "route", "del", &away, "dev", "l1"]);
    stage.silent(&["--quick"], "without a route and a firewall");
}

#[test]
fn names_and_addresses_that_are_there_twice_are_named_and_no_host_vanishes() {
    let mut stage = Stage::through_switches(&[1000, 1000]);
    // The third machine is no host of the survey.
    let address = stage.agents[1].address(1).ip();
    stage.on(2, &["ip", "address", "add", &format!("{address}/24"), "dev", "l1"]);
    stage.names(&["--quick"], &["address-taken"], "a third machine", |_, title, places| {
        at(places, &["b l1"]) && title.contains(&address.to_string())
    });
    stage.on(2, &["ip", "address", "del", &format!("{address}/24"), "dev", "l1"]);
    // It is still known where the address was.
    stage.on(0, &["ip", "neighbour", "flush", "dev", "l1"]);

    stage.on(1, &["ip", "route", "add", "default", "via", &unused_address(&stage), "dev", "l0"]);
    let about = "a route to an unused address";
    stage.names(&["--quick"], &["gateway-dead"], about, |_, _, places| at(places, &["b l0"]));
    stage.on(1, &["ip", "route", "del", "default"]);

    let file = stage.lab.hosts()[1].directory().join("agent.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let ram = stage.lab.directory().join("on-a-disk");
    std::fs::write(&file, text.replace("name = \"b\"", "name = \"a\"")).unwrap();
    stage.agents[1].kill().unwrap();
    stage.agents[1].restart().unwrap();
    let document = stage.names(&["--quick"], &["equal-names"], "two hosts of one name", |_, title, _| {
        title == "2 hosts call themselves a"
    });
    assert_eq!(document["survey"]["hosts"].as_array().unwrap().len(), 2, "both are there");
    assert_eq!(document["survey"]["matrix"]["probes"].as_array().unwrap().len(), 4);

    let old = format!("ram_dir = \"{}\"", stage.lab.hosts()[1].ram_directory().display());
    std::fs::write(&file, text.replace(&old, &format!("ram_dir = \"{}\"", ram.display()))).unwrap();
    stage.agents[1].kill().unwrap();
    stage.agents[1].restart().unwrap();
    stage.names(&["--quick"], &["ram-folder-unfit"], "a folder on a disk", |_, title, _| {
        title.ends_with("not on tmpfs")
    });
}

/// An address of the first link that no host has.
pub(crate) fn unused_address(stage: &Stage) -> String {
    let ours = stage.agents[0].address(0).ip().to_string();
    let (network, _) = ours.rsplit_once('.').unwrap();
    format!("{network}.250")
}

/// Values just below the limits are judged by written surveys, which are always the same.
#[test]
fn a_healthy_survey_is_silent_about_all_that_is_not_measured_every_time_and_about_all_in_the_end() {
    let stage = Stage::through_switches(&[1000, 1000, 1000, 1000]);
    for time in 0..20 {
        nothing_but(&wrong(&stage.doctor(&["--quick"]).1), &[], &format!("look {time}"));
    }
    nothing_but(&wrong(&stage.doctor(&[]).1), &[], "a full look");
    stage.silent(&["--quick"], "one look of many");
}

/// A tenth: a machine that is too busy for half a rate still moves more than that. Half is judged by written surveys.
#[test]
fn a_direction_and_a_link_that_move_less_than_what_is_beside_them_are_named() {
    let build = |slow: LinkSpec| {
        let lab = Lab::builder().hosts(2).link(LinkSpec::shaped(500)).link(slow).build().unwrap();
        Stage::of(lab, "")
    };
    let one_way = build(LinkSpec { reverse_rate_mbps: Some(50), ..LinkSpec::shaped(500) });
    one_way
        .names(&[], &["throughput-one-way"], "a tenth of it back", |_, _, places| places == ["b l1", "a l1"]);
    drop(one_way);
    let slow = build(LinkSpec::shaped(50));
    slow.names(&[], &["throughput-below-sibling"], "a slow link", |_, _, places| at(places, SECOND));
}
