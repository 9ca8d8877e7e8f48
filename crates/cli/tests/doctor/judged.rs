//! What is measured on the way between hosts, and what hosts need, is judged: named exactly, and nothing else.

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

    /// What is wrong, hints left out: id, title, places.
    fn wrong(&self, more: &[&str]) -> Vec<(String, String, Vec<String>)> {
        wrong(&self.doctor(more).1)
    }
}

/// Findings of a document, hints left out: id, title, places.
fn wrong(document: &Value) -> Vec<(String, String, Vec<String>)> {
    let grave = document["findings"].as_array().unwrap().iter().filter(|one| one["severity"] != "hint");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let place = |place: &Value| format!("{} {}", text(&place["host"]), text(&place["port"]));
    let places = |one: &Value| one["locations"].as_array().unwrap().iter().map(place).collect();
    grave.map(|one| (text(&one["id"]), text(&one["title"]), places(one))).collect()
}

/// The one thing that is wrong.
fn only(wrong: Vec<(String, String, Vec<String>)>, id: &str, about: &str) -> (String, Vec<String>) {
    assert_eq!(wrong.iter().map(|(id, ..)| id.as_str()).collect::<Vec<_>>(), [id], "{about}: {wrong:#?}");
    let (_, title, places) = wrong.into_iter().next().unwrap();
    (title, places)
}

#[test]
fn loss_in_each_direction_is_named_and_nothing_else() {
    let stage = Stage::through_switches(&[1000, 1000]);
    assert_eq!(stage.wrong(&["--quick"]), []);
    for percent in [1, 30] {
        for (there, back) in [(percent, 0), (0, percent), (percent, percent)] {
            let about = format!("{there} % there, {back} % back");
            stage.lab.lose(1, 0, there).unwrap();
            stage.lab.lose(1, 1, back).unwrap();
            let (title, mut places) = only(stage.wrong(&["--quick"]), "packet-loss", &about);
            places.sort();
            assert_eq!(places, ["a l1", "b l1"], "{about}: {title}");
            let one_way = if there == 0 { "to a l1" } else { "to b l1" };
            let fits = if there == back { title.contains("of those back") } else { title.contains(one_way) };
            assert!(fits, "{about}: {title}");
        }
    }
    stage.lab.lose(1, 0, 0).unwrap();
    stage.lab.lose(1, 1, 0).unwrap();
    assert_eq!(stage.wrong(&["--quick"]), []);
}

#[test]
fn a_slow_link_is_named_beside_a_fast_one_and_its_slow_direction() {
    let stage = Stage::through_switches(&[1000, 1000]);
    for (there, back) in [(1, 0), (0, 10), (25, 25), (50, 0)] {
        let about = format!("{there} ms there, {back} ms back");
        let way = |ms| Way { delay: std::time::Duration::from_millis(ms), loses_one_of: 0 };
        let _forwarder = stage.lab.forward(1, [0, 1], [way(there), way(back)]).unwrap();
        let (title, mut places) = only(stage.wrong(&["--quick"]), "round-trip-long", &about);
        places.sort();
        assert_eq!(places, ["a l1", "b l1"], "{about}: {title}");
        let slow =
            [("b", there > back), ("a", back > there)].iter().find(|(_, slow)| *slow).map(|(host, _)| *host);
        let named = slow.is_none_or(|host| title.ends_with(&format!("the way to {host} is the slow one")));
        assert!(title.contains("over l0") && named, "{about}: {title}");
    }
}

fn far(there_ms: u64, back_ms: u64, loses_one_of: u32) -> [Way; 2] {
    [there_ms, back_ms].map(|ms| Way { delay: std::time::Duration::from_millis(ms), loses_one_of })
}

/// Probes of the second link, both directions.
fn second_link(document: &Value) -> [&Value; 2] {
    [crate::probe(document, "a", "l1", "b"), crate::probe(document, "b", "l1", "a")]
}

/// All but the round trip is as on a near link.
fn only_far(document: &Value, ms: u64, about: &str) {
    for probe in second_link(document) {
        let least = probe["latency"]["min_us"].as_f64().unwrap();
        assert!((ms as f64..ms as f64 + 100.0).contains(&(least / 1000.0)), "{about}: {probe}");
        assert_eq!((&probe["reachable"], &probe["tcp"]), (&Value::from(true), &Value::from(true)), "{probe}");
        assert_eq!((&probe["loss"]["sent"], &probe["loss"]["lost"]), (&1000.into(), &0.into()), "{probe}");
        assert_eq!(probe["path_mtu"]["passed"], 9000, "{about}: {probe}");
        assert_eq!(probe["failure"], Value::Null, "{about}: {probe}");
    }
}

#[test]
fn a_far_link_is_reachable_and_only_its_round_trip_is_named() {
    let stage = Stage::through_switches(&[1000, 1000]);
    for (there, back) in [(100, 100), (200, 200), (300, 300), (500, 500), (600, 0)] {
        let about = format!("{there} ms there, {back} ms back");
        let _forwarder = stage.lab.forward(1, [0, 1], far(there, back, 0)).unwrap();
        // As after a pause: ARP takes one round trip more.
        (0..2).for_each(|host| stage.on(host, &["ip", "neighbour", "flush", "dev", "l1"]));
        let (_, document) = stage.doctor(&["--quick"]);
        only_far(&document, there + back, &about);
        let (title, mut places) = only(wrong(&document), "round-trip-long", &about);
        places.sort();
        assert_eq!(places, ["a l1", "b l1"], "{about}: {title}");
        let round_trip = format!("is {}.", there + back);
        let slow = there == back || title.ends_with("the way to b is the slow one");
        assert!(title.contains(&round_trip) && title.contains("over l0") && slow, "{about}: {title}");
    }
    let _forwarder = stage.lab.forward(1, [0, 1], far(200, 200, 0)).unwrap();
    let (_, document) = stage.doctor(&[]);
    only_far(&document, 400, "in full");
    only(wrong(&document), "round-trip-long", "in full");
    for probe in second_link(&document) {
        assert!(probe["throughput_mbps"].as_u64().unwrap() > 0, "{probe}");
        assert!(probe["latency_loaded"]["min_us"].as_f64().unwrap() >= 400_000.0, "{probe}");
        assert!(probe["loss_permille"].as_u64().unwrap() < 500, "late packets are not lost: {probe}");
    }
}

#[test]
fn the_only_link_may_be_far() {
    let stage = Stage::through_switches(&[1000]);
    let _forwarder = stage.lab.forward(0, [0, 1], far(300, 300, 0)).unwrap();
    let (title, _) = only(stage.wrong(&["--quick"]), "round-trip-long", "the only link");
    assert!(title.starts_with("the round trip to b over the only link is 60"), "{title}");
}

#[test]
fn a_far_link_that_loses_packets_has_both_findings_and_its_loss_is_measured_right() {
    let stage = Stage::through_switches(&[1000, 1000]);
    let _forwarder = stage.lab.forward(1, [0, 1], far(300, 300, 20)).unwrap();
    let (_, document) = stage.doctor(&["--quick"]);
    let wrong = wrong(&document);
    let mut ids: Vec<&str> = wrong.iter().map(|(id, ..)| id.as_str()).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["packet-loss", "round-trip-long"], "{wrong:#?}");
    for (_, title, places) in &wrong {
        assert!(places.iter().all(|place| place.ends_with(" l1")), "{title}: {places:?}");
    }
    for probe in second_link(&document) {
        let loss = &probe["loss"];
        let permille = |lost: &Value| lost.as_u64().unwrap() * 1000 / loss["sent"].as_u64().unwrap();
        for lost in [&loss["lost_there"], &loss["lost_back"]] {
            assert!((40..=60).contains(&permille(lost)), "one of 20 is lost each way: {probe}");
        }
    }
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
        let (title, places) = only(stage.wrong(&["--quick"]), id, rule);
        assert_eq!(places, ["b l1"], "{rule}: {title}");
        stage.on(1, &["nft", "delete table inet t"]);
    }
    let away = format!("{}/32", stage.agents[1].address(0).ip());
    stage.on(0, &["ip", "route", "add", &away, "dev", "l1"]);
    let (title, places) = only(stage.wrong(&["--quick"]), "asymmetric-routing", "a route");
    assert_eq!(places, ["a l0"], "{title}");
    stage.on(0, &["ip", "route", "del", &away, "dev", "l1"]);
    assert_eq!(stage.wrong(&["--quick"]), []);
}

#[test]
fn names_and_addresses_that_are_there_twice_are_named_and_no_host_vanishes() {
    let mut stage = Stage::through_switches(&[1000, 1000]);
    // The third machine is no host of the survey.
    let address = stage.agents[1].address(1).ip();
    stage.on(2, &["ip", "address", "add", &format!("{address}/24"), "dev", "l1"]);
    let (title, places) = only(stage.wrong(&["--quick"]), "address-taken", "a third machine");
    assert!(places == ["b l1"] && title.contains(&address.to_string()), "{places:?}: {title}");
    stage.on(2, &["ip", "address", "del", &format!("{address}/24"), "dev", "l1"]);
    // It is still known where the address was.
    stage.on(0, &["ip", "neighbour", "flush", "dev", "l1"]);

    stage.on(1, &["ip", "route", "add", "default", "via", &unused_address(&stage), "dev", "l0"]);
    let (title, places) = only(stage.wrong(&["--quick"]), "gateway-dead", "a route to an unused address");
    assert_eq!(places, ["b l0"], "{title}");
    stage.on(1, &["ip", "route", "del", "default"]);

    let file = stage.lab.hosts()[1].directory().join("agent.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let ram = stage.lab.directory().join("on-a-disk");
    std::fs::write(&file, text.replace("name = \"b\"", "name = \"a\"")).unwrap();
    stage.agents[1].kill().unwrap();
    stage.agents[1].restart().unwrap();
    let (_, document) = stage.doctor(&["--quick"]);
    assert_eq!(document["survey"]["hosts"].as_array().unwrap().len(), 2, "both are there");
    assert_eq!(document["survey"]["matrix"]["probes"].as_array().unwrap().len(), 4);
    let (title, _) = only(stage.wrong(&["--quick"]), "equal-names", "two hosts of one name");
    assert_eq!(title, "2 hosts call themselves a");

    let old = format!("ram_dir = \"{}\"", stage.lab.hosts()[1].ram_directory().display());
    std::fs::write(&file, text.replace(&old, &format!("ram_dir = \"{}\"", ram.display()))).unwrap();
    stage.agents[1].kill().unwrap();
    stage.agents[1].restart().unwrap();
    let (title, _) = only(stage.wrong(&["--quick"]), "ram-folder-unfit", "a folder on a disk");
    assert!(title.ends_with("not on tmpfs"), "{title}");
}

/// An address of the first link that no host has.
pub(crate) fn unused_address(stage: &Stage) -> String {
    let ours = stage.agents[0].address(0).ip().to_string();
    let (network, _) = ours.rsplit_once('.').unwrap();
    format!("{network}.250")
}

/// Programs that take every CPU until it is dropped.
struct Busy {
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Busy {
    fn start() -> Busy {
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let cpus = std::thread::available_parallelism().map_or(2, usize::from);
        let work = || {
            let stop = stop.clone();
            std::thread::spawn(move || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::black_box((0..100_000u64).sum::<u64>());
                }
            })
        };
        let threads = (0..cpus * 2).map(|_| work()).collect();
        Busy { stop, threads }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn a_healthy_survey_is_silent_every_time_also_on_a_busy_machine() {
    let stage = Stage::through_switches(&[1000, 1000, 1000, 1000]);
    (0..10).for_each(|time| assert_eq!(stage.wrong(&["--quick"]), [], "look {time}"));
    let _busy = Busy::start();
    (0..10).for_each(|time| assert_eq!(stage.wrong(&["--quick"]), [], "busy look {time}"));
    assert_eq!(stage.wrong(&[]), [], "a full look on a busy machine");
}

#[test]
fn a_direction_and_a_link_that_move_less_than_what_is_beside_them_are_named() {
    let build = |slow: LinkSpec| {
        let lab = Lab::builder().hosts(2).link(LinkSpec::shaped(1000)).link(slow).build().unwrap();
        Stage::of(lab, "")
    };
    let one_way = build(LinkSpec { reverse_rate_mbps: Some(500), ..LinkSpec::shaped(1000) });
    let (title, places) = only(one_way.wrong(&[]), "throughput-one-way", "half of it back");
    assert_eq!(places, ["b l1", "a l1"], "{title}");
    drop(one_way);
    let (title, mut places) =
        only(build(LinkSpec::shaped(300)).wrong(&[]), "throughput-below-sibling", "a slow link");
    places.sort();
    assert_eq!(places, ["a l1", "b l1"], "{title}");
}
