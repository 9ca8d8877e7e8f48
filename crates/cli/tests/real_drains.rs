//! Hosts that are emptied: real agents, real guests, two or three hosts. As root, with what lab/install.sh installs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Tests say what they expect.

#[path = "drains/hall.rs"]
mod hall;

use std::time::Duration;

use hall::{Hall, LONG, calm, ended_state, linux};
use serde_json::{Value, json};

#[test]
fn all_guests_leave_but_those_that_are_kept() {
    let hall = Hall::new(2, &[400, 400]);
    let guests = [linux("a1", 1), linux("a2", 1), linux("busy", 4), calm("stays")];
    hall.start(0, &guests);
    let (exit, plan) = hall.json(0, &["drain", "--to", &hall.address(1), "--keep", "stays", "--dry-run"]);
    assert_eq!(exit, 0, "{plan:#}");
    let states: Vec<(&str, &str)> =
        hall::guests(&plan).map(|one| (hall::text(one, "guest"), hall::text(one, "state"))).collect();
    assert_eq!(states, [("a1", "waiting"), ("a2", "waiting"), ("busy", "waiting"), ("stays", "kept")]);
    assert!(
        hall::guests(&plan).all(|one| one["state"] == "kept" || one["predicted_ms"].as_u64() > Some(0)),
        "{plan:#}"
    );
    assert_eq!(hall.names(0), ["a1", "a2", "busy", "stays"], "nothing was moved");
    assert_eq!(hall.json(0, &["status"]).1["cordon"], Value::Null, "nothing was changed");

    let (exit, lines) = hall.lines(0, &["drain", &hall.name(0), "--to", &hall.address(1), "--keep", "stays"]);
    let last = lines.last().unwrap();
    assert_eq!(exit, 0, "{last:#}");
    assert!(lines[0]["id"].is_string() && ended_state(last), "{lines:#?}");
    for one in hall::guests(last) {
        let wanted = if one["guest"] == "stays" { "kept" } else { "moved" };
        assert_eq!(one["state"], wanted, "{one:#}");
        if wanted == "moved" {
            assert_eq!(one["to"], json!(hall.name(1)), "{one:#}");
            assert!(one["took_ms"].as_u64() > Some(0) && one["blackout_us"].as_u64() > Some(0), "{one:#}");
            assert_eq!((&one["tries"], &one["reason"]), (&json!([]), &Value::Null), "{one:#}");
        }
    }
    assert!(last["bound"]["source_ms"].as_u64() > Some(0), "{last:#}");
    assert_eq!(hall.names(0), ["stays"]);
    assert_eq!(hall.names(1), ["a1", "a2", "busy"]);
    hall.all_go_on();
    // The host stays cordoned, and the store has no reservation left.
    assert!(hall.json(0, &["status"]).1["cordon"]["by"].as_str().unwrap().starts_with("root@"));
    let (_, hosts) = hall.json(0, &["fleet", "hosts"]);
    let hosts = hosts.as_array().unwrap();
    assert_eq!(hosts.len(), 2);
    assert!(hosts.iter().all(|host| host["reserved_bytes"] == 0), "{hosts:#?}");
    let (_, status) = hall.json(0, &["drain", "status"]);
    assert_eq!(hall::guests(&status).count(), 4);
    assert!(ended_state(&status));
    let (exit, text) = hall.run(0, &["drain", "status"]);
    assert!(exit == 0 && text.contains("3 of 4 moved"), "{text}");
    // An empty host is drained at once.
    let (exit, lines) = hall.lines(0, &["drain", "--to", &hall.address(1), "--keep", "stays"]);
    assert_eq!(exit, 0, "{lines:#?}");
}

#[test]
fn guests_go_to_several_hosts_and_the_plan_says_what_keeps_them_from_one() {
    let hall = Hall::with(3, &[400, 400], "");
    hall.start(0, &[calm("a1"), calm("a2"), calm("a3"), calm("a4")]);
    let to = format!("{},{}", hall.address(1), hall.address(2));
    // One of the two takes no guests, and this host itself is no destination.
    assert_eq!(hall.json(1, &["cordon"]).0, 0);
    let (exit, placed) = hall.json(0, &["place", "a1", "--to", &to, "--explain"]);
    assert_eq!((exit, &placed["best"]), (0, &json!(hall.name(2))), "{placed:#}");
    assert!(hall::text(&placed["hosts"][0]["obstacles"], "").is_empty());
    assert!(placed["hosts"][0]["obstacles"][0].as_str().unwrap().contains("cordoned"), "{placed:#}");
    assert_eq!(placed["hosts"][1]["obstacles"], json!([]), "{placed:#}");
    let (exit, text) = hall.run(0, &["drain", "--to", &hall.address(1)]);
    assert_eq!(exit, 4, "{text}");
    assert!(text.contains("no guest has a destination") && text.contains("cordoned"), "{text}");
    let (exit, text) = hall.run(0, &["drain", "--to", &hall.address(0)]);
    assert!(exit == 2 && text.contains("is this host itself"), "{exit} {text}");
    let (exit, text) = hall.run(0, &["drain", "--to", &to, "--keep", "a1,nobody"]);
    assert!(exit == 2 && text.contains("nobody"), "{exit} {text}");
    let (exit, text) = hall.run(0, &["drain"]);
    assert!(exit == 2 && text.contains("--to"), "{exit} {text}");
    let (exit, text) = hall.run(0, &["drain", "elsewhere", "--to", &to]);
    assert!(exit == 4 && text.contains("run the command on elsewhere"), "{exit} {text}");
    assert_eq!(hall.json(0, &["status"]).1["cordon"], Value::Null, "nothing was begun");
    assert_eq!(hall.json(1, &["uncordon"]).0, 0);

    let (exit, lines) = hall.lines(0, &["drain", "--to", &to]);
    let last = lines.last().unwrap();
    assert_eq!((exit, hall::count(last, "moved")), (0, 4), "{last:#}");
    assert_eq!(hall.names(0), [""; 0]);
    assert_eq!((hall.names(1).len(), hall.names(2).len()), (2, 2), "half to each: {last:#}");
    hall.all_go_on();
}

#[test]
fn guests_that_must_be_apart_go_to_different_hosts() {
    let hall = Hall::with(3, &[400, 400], "[placement]\napart = [[\"db-*\"]]\n");
    hall.start(0, &[calm("db-1"), calm("db-2"), calm("web"), calm("log")]);
    hall.start(1, &[calm("dns")]);
    let (b, c) = (hall.name(1), hall.name(2));
    let to = format!("{},{}", hall.address(1), hall.address(2));
    let asked = ["drain", "--to", &to, "--apart", "web,dns", "--apart", "log,dns"];
    let are_apart = |drain: &Value| {
        let at =
            |guest: &str| hall::text(hall::guests(drain).find(|one| one["guest"] == guest).unwrap(), "to");
        assert_eq!((at("web"), at("log")), (&*c, &*c), "{drain:#}");
        assert!([(&*b, &*c), (&*c, &*b)].contains(&(at("db-1"), at("db-2"))), "{drain:#}");
    };
    // One destination is too few, and the plan says why.
    let (exit, plan) = hall.json(0, &["drain", "--to", &hall.address(2), "--dry-run"]);
    assert_eq!((exit, hall::count(&plan, "failed")), (1, 1), "{plan:#}");
    let failed = hall::guests(&plan).find(|one| one["state"] == "failed").unwrap();
    assert!(hall::text(failed, "guest").starts_with("db-"), "{plan:#}");
    assert!(hall::text(failed, "reason").contains("must be apart"), "{plan:#}");
    // A name that nobody has keeps nobody apart, and neither does one alone.
    for (list, words) in [("db-1,dbb-2", "dbb-2"), ("db-1", "name two guests")] {
        let (exit, text) = hall.run(0, &["drain", "--to", &to, "--apart", list]);
        assert!(exit == 2 && text.contains(words) && text.contains("nothing was begun"), "{exit} {text}");
    }
    let (exit, placed) = hall.json(0, &["place", "web", "--to", &to, "--explain", "--apart", "web,dns"]);
    assert_eq!(
        (exit, &placed["best"], &placed["hosts"][1]["obstacles"]),
        (0, &json!(c), &json!([])),
        "{placed:#}"
    );
    assert!(placed["hosts"][0]["obstacles"].to_string().contains("dns is there"), "{placed:#}");

    let (exit, plan) = hall.json(0, &[&asked[..], &["--dry-run"]].concat());
    assert_eq!(exit, 0, "{plan:#}");
    are_apart(&plan);
    let (exit, lines) = hall.lines(0, &asked);
    let last = lines.last().unwrap();
    assert_eq!((exit, hall::count(last, "moved")), (0, 4), "{last:#}");
    are_apart(last);
    hall.all_go_on();
}

#[test]
fn guests_that_must_be_together_go_to_one_host_or_stay() {
    let hall = Hall::with(3, &[400, 400], "[placement]\ntogether = [[\"db-*\"]]\n");
    hall.start(0, &[calm("db-1"), calm("db-2"), calm("web"), calm("log")]);
    hall.start(1, &[calm("dns")]);
    let to = format!("{},{}", hall.address(1), hall.address(2));
    let asked = ["drain", "--to", &to, "--together", "web,dns"];
    let state = |drain: &Value, guest: &str| {
        hall::text(hall::guests(drain).find(|one| one["guest"] == guest).unwrap(), "state").to_owned()
    };
    // One that stays keeps the other.
    let (exit, plan) = hall.json(0, &[&asked[..], &["--keep", "db-2", "--dry-run"]].concat());
    assert_eq!((exit, &*state(&plan, "db-1"), &*state(&plan, "log")), (1, "failed", "waiting"), "{plan:#}");
    let failed = hall::guests(&plan).find(|one| one["guest"] == "db-1").unwrap();
    assert!(hall::text(failed, "reason").contains("must be together with stays"), "{plan:#}");
    for (more, words) in
        [(&["--together", "db-1,dbb-2"], "dbb-2"), (&["--apart", "db-1,db-2"], "apart and together")]
    {
        let (exit, text) = hall.run(0, &[&asked[..], more].concat());
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(exit == 2 && text.contains(words) && text.contains("nothing was begun"), "{exit} {text}");
    }
    let (exit, placed) = hall.json(0, &["place", "db-1", "--to", &to, "--explain"]);
    assert_eq!((exit, &placed["together"]), (0, &json!(["db-2"])), "{placed:#}");
    let (exit, placed) = hall.json(0, &["place", "web", "--to", &to, "--explain", "--together", "web,dns"]);
    assert_eq!((exit, &placed["best"]), (0, &json!(hall.name(1))), "{placed:#}");
    let elsewhere = placed["hosts"][1]["obstacles"].to_string();
    assert!(elsewhere.contains("must be together with is on"), "{placed:#}");

    let (exit, lines) = hall.lines(0, &asked);
    let last = lines.last().unwrap();
    assert_eq!((exit, hall::count(last, "moved")), (0, 4), "{last:#}");
    let at = |guest: &str| hall::text(hall::guests(last).find(|one| one["guest"] == guest).unwrap(), "to");
    assert_eq!((at("db-1"), at("web")), (at("db-2"), &*hall.name(1)), "{last:#}");
    hall.all_go_on();
}

#[test]
fn a_drain_is_paused_goes_on_and_is_aborted_with_every_guest_somewhere() {
    let hall = Hall::new(2, &[200, 200]);
    let guests: Vec<_> = (0..6).map(|n| calm(&format!("a{n}"))).collect();
    hall.start(0, &guests);
    // Ten seconds for each guest: most of them wait still when it is paused.
    hall.slow(40);
    let going = hall.begin(0, &["drain", "--to", &hall.address(1)]);
    hall.wait(0, "it copies", |now| hall::count(now, "copying") > 0);
    // There is one for a host.
    let (exit, text) = hall.run(0, &["drain", "--to", &hall.address(1)]);
    assert!(exit == 4 && text.contains("is being drained"), "{exit} {text}");
    let (exit, text) = hall.run(0, &["uncordon"]);
    assert_eq!(exit, 4, "{text}");
    let (exit, paused) = hall.json(0, &["drain", "pause"]);
    assert_eq!((exit, &paused["state"]), (0, &json!("paused")));
    hall.fast();
    let busy = |now: &Value| hall::count(now, "copying") + hall::count(now, "preparing");
    let now = hall.wait(0, "what runs goes on", |now| busy(now) == 0);
    let stay = hall::count(&now, "waiting") + hall::count(&now, "prepared");
    assert!(hall::count(&now, "moved") >= 1 && stay >= 1, "{now:#}");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(hall::count(&hall.drain(0), "moved"), hall::count(&now, "moved"), "nothing new is begun");
    // Four seconds for each guest: one more moves, and others are left when it is aborted.
    hall.slow(100);
    assert_eq!(hall.json(0, &["drain", "resume"]).1["state"], "running");
    let before = hall::count(&now, "moved");
    hall.wait(0, "one more moves, and another is on its way", |now| {
        hall::count(now, "moved") > before && hall::count(now, "copying") > 0
    });
    let (exit, lines) = hall.lines(0, &["drain", "abort"]);
    hall.fast();
    let last = lines.last().unwrap();
    let aborted = lines.iter().rev().find(|line| line["guests"].is_array()).unwrap();
    assert_eq!(exit, 0, "{last:#}");
    assert!(ended_state(aborted) && hall::count(aborted, "aborted") >= 1, "{aborted:#}");
    assert_eq!(hall::count(aborted, "moved") + hall::count(aborted, "aborted"), guests.len(), "{aborted:#}");
    let (exit, _) = going.finish();
    assert_eq!(exit, 5, "the first command says that it was aborted");
    hall.all_go_on();
    assert_eq!(hall.names(0).len() + hall.names(1).len(), guests.len());
    // It can be begun again, and then the host is empty.
    let (exit, lines) = hall.lines(0, &["drain", "--to", &hall.address(1)]);
    assert_eq!(exit, 0, "{:#?}", lines.last());
    assert_eq!(hall.names(1).len(), guests.len());
    hall.all_go_on();
}

/// The agents of both hosts are killed at random instants, and are back after a random time. `LINERATE_KILLS`: how
/// often; `LINERATE_SEED`: which instants.
#[test]
fn a_drain_goes_on_when_agents_are_killed_at_random_instants() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let kills = number("LINERATE_KILLS").unwrap_or(5);
    let seed = number("LINERATE_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("LINERATE_SEED={seed}");
    let mut random = hall::Random(seed);
    let mut hall = Hall::new(2, &[200, 200]);
    let guests: Vec<_> = (0..6).map(|n| calm(&format!("a{n}"))).collect();
    hall.start(0, &guests);
    let drain = ["drain", "--to", &hall.address(1), "--detach"].map(str::to_owned);
    let drain: Vec<&str> = drain.iter().map(String::as_str).collect();
    assert_eq!(hall.run(0, &drain).0, 0);
    for _ in 0..kills {
        std::thread::sleep(Duration::from_millis(random.below(2800) + 200));
        // The owner's more often: it has more to remember.
        let side = usize::from(random.below(5) < 2);
        hall.agents[side].kill().unwrap();
        std::thread::sleep(Duration::from_millis(random.below(1500)));
        hall.agents[side].restart().unwrap();
        // A run with many kills needs more to be moved.
        if ended_state(&hall.drain(0)) && kills > 5 {
            let left = hall.names(0).len();
            let (exit, text) = match left {
                0 => hall.run(0, &["undrain", "--detach"]),
                _ => hall.run(0, &drain),
            };
            println!("{left} guests were left: {exit} {text}");
        }
    }
    hall.until("no guest is in doubt, and nothing goes on", || {
        let quiet = |host: usize| {
            let (_, status) = hall.json(host, &["status"]);
            ["migrations", "in_doubt", "unfinished"].iter().all(|key| status[*key] == 0)
        };
        quiet(0) && quiet(1) && ended_state(&hall.drain(0))
    });
    hall.all_go_on();
    // What the kills have left here leaves with the next.
    let (exit, lines) = hall.lines(0, &drain[..3]);
    assert_eq!(exit, 0, "{:#}\n{}", lines.last().unwrap(), hall.logs());
    assert_eq!((hall.names(0), hall.names(1).len()), (vec![], 6));
    hall.all_go_on();
    let (_, hosts) = hall.json(0, &["fleet", "hosts"]);
    assert!(hosts.as_array().unwrap().iter().all(|host| host["reserved_bytes"] == 0), "{hosts:#}");
}

/// The destination's agent is killed during the drain: guests that were on their way go there later.
#[test]
fn a_drain_goes_on_when_the_agent_of_its_destination_was_killed() {
    let mut hall = Hall::new(2, &[200, 200]);
    let guests: Vec<_> = (0..4).map(|n| calm(&format!("a{n}"))).collect();
    hall.start(0, &guests);
    let going = hall.begin(0, &["drain", "--to", &hall.address(1)]);
    hall.wait(0, "it copies", |now| hall::count(now, "copying") > 0);
    hall.agents[1].kill().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    hall.agents[1].restart().unwrap();
    let (exit, lines) = going.finish();
    let last = lines.last().unwrap();
    assert_eq!((exit, hall::count(last, "moved")), (0, 4), "{last:#}\n{}", hall.logs());
    hall.all_go_on();
}

#[test]
fn a_lost_destination_gives_its_guests_to_another() {
    let mut hall = Hall::new(3, &[200, 200]);
    let guests: Vec<_> = (0..4).map(|n| calm(&format!("a{n}"))).collect();
    hall.start(0, &guests);
    let to = format!("{},{}", hall.address(1), hall.address(2));
    // Ten seconds for a guest: none has arrived when its destination is lost.
    hall.slow(40);
    let going = hall.begin(0, &["drain", "--to", &to]);
    let now = hall.wait(0, "it copies", |now| hall::count(now, "copying") > 0);
    let copied = hall::guests(&now).find(|one| one["state"] == "copying").unwrap();
    let lost = if copied["to"] == json!(hall.name(1)) { 1 } else { 2 };
    hall.agents[lost].kill().unwrap();
    hall.fast();
    let (exit, lines) = going.finish();
    let last = lines.last().unwrap();
    assert_eq!((exit, hall::count(last, "moved")), (0, 4), "{last:#}\n{}", hall.logs());
    // Nobody has used up a try of its own, and nobody waited for the next one.
    let tries = hall::guests(last).flat_map(|one| one["tries"].as_array().unwrap());
    let reasons: Vec<&str> = tries.map(|one| hall::text(one, "reason")).collect();
    let is_lost = |reason: &&str| reason.contains("does not answer");
    assert!(!reasons.is_empty() && reasons.iter().all(is_lost), "{last:#}\n{}", hall.logs());
    hall.agents[lost].restart().unwrap();
    hall.all_go_on();
}

/// One of a group has left, and then its destination is lost: the other can go nowhere else.
#[test]
fn a_group_that_stays_split_is_tried_once_more_and_named() {
    let mut hall = Hall::with(3, &[200, 200], "[placement]\ntogether = [[\"db-*\"]]\n");
    hall.start(0, &[calm("db-1"), hall::large("db-2")]);
    let names: Vec<String> = (0..3).map(|host| hall.name(host)).collect();
    let to = format!("{},{}", hall.address(1), hall.address(2));
    // Ten seconds for one guest, and fifty for the other.
    hall.slow(40);
    let going = hall.begin(0, &["drain", "--to", &to]);
    let now = hall.wait(0, "one has left, and the other copies", |now| {
        hall::count(now, "moved") == 1 && hall::count(now, "copying") == 1
    });
    let moved = hall::guests(&now).find(|one| one["state"] == "moved").unwrap();
    let left = hall::guests(&now).find(|one| one["state"] == "copying").unwrap();
    let lost = if moved["to"] == json!(names[1]) { 1 } else { 2 };
    hall.agents[lost].kill().unwrap();
    hall.fast();
    let (exit, lines) = going.finish();
    // The error comes behind it.
    let last = lines.iter().rev().find(|line| line["guests"].is_array()).unwrap();
    assert_eq!((exit, hall::count(last, "failed")), (1, 1), "{last:#}\n{}", hall.logs());
    let (moved, left) = (hall::text(moved, "guest"), hall::text(left, "guest"));
    assert_eq!(last["split"], json!([{ moved: names[lost], left: names[0] }]), "{last:#}");
    let failed = hall::guests(last).find(|one| one["guest"] == left).unwrap();
    let tries = failed["tries"].as_array().unwrap().iter();
    let nowhere = tries.filter(|one| hall::text(one, "reason").contains("no host can take it"));
    assert_eq!(nowhere.count(), 6, "three times, and once more: {last:#}");
    assert_eq!(hall.drain(0)["split"], last["split"]);
    hall.agents[lost].restart().unwrap();
    let (exit, lines) = hall.lines(0, &["drain", "--to", &to]);
    let last = lines.last().unwrap();
    assert_eq!((exit, &last["split"]), (0, &json!([])), "{last:#}\n{}", hall.logs());
    assert_eq!(hall.names(lost).len(), 2);
    hall.all_go_on();
}

#[test]
fn a_link_that_is_cut_during_a_drain_costs_no_guest() {
    let hall = Hall::new(2, &[200, 200]);
    let guests: Vec<_> = (0..4).map(|n| calm(&format!("a{n}"))).collect();
    hall.start(0, &guests);
    let going = hall.begin(0, &["drain", "--to", &hall.address(1)]);
    hall.wait(0, "it copies", |now| hall::count(now, "copying") > 0);
    hall.lab.cut(1).unwrap();
    let (exit, lines) = going.finish();
    let last = lines.last().unwrap();
    assert_eq!((exit, hall::count(last, "moved")), (0, 4), "{last:#}\n{}", hall.logs());
    hall.all_go_on();
}

#[test]
fn guests_that_cannot_move_are_named_and_the_others_leave() {
    let hall = Hall::new(2, &[400, 400]);
    let on_bridge = calm("bridged").tap("only-here");
    hall.lab.hosts()[0].add_tap("only-here").unwrap();
    hall.start(0, &[calm("a1"), on_bridge]);
    let (exit, plan) = hall.json(0, &["drain", "--to", &hall.address(1), "--dry-run"]);
    assert_eq!(exit, 1, "{plan:#}");
    let of =
        |drain: &Value, name: &str| hall::guests(drain).find(|one| one["guest"] == name).unwrap().clone();
    assert_eq!(of(&plan, "a1")["state"], "waiting");
    let bridged = of(&plan, "bridged");
    assert_eq!(bridged["state"], "failed", "{bridged:#}");
    assert!(hall::text(&bridged, "reason").contains("only-here"), "{bridged:#}");
    assert!(!hall::text(&bridged, "hint").is_empty(), "{bridged:#}");
    let (exit, lines) = hall.lines(0, &["drain", "--to", &hall.address(1)]);
    let last = lines.iter().rev().find(|line| line["guests"].is_array()).unwrap();
    assert_eq!(exit, 1, "{last:#}");
    assert_eq!(of(last, "a1")["state"], "moved");
    let bridged = of(last, "bridged");
    assert_eq!(bridged["state"], "failed", "{bridged:#}");
    assert!(hall::text(&bridged, "reason").contains("only-here"), "{bridged:#}");
    assert_eq!(bridged["tries"].as_array().unwrap().len(), 1, "no retry can help: {bridged:#}");
    hall.all_go_on();
    assert_eq!(hall.names(0), ["bridged"]);
}

/// Another migration has the guest: it is waited for, and then the guest is this drain's, or is not here any more.
#[test]
fn a_guest_that_something_else_moves_is_waited_for() {
    let hall = Hall::new(3, &[100, 100]);
    hall.start(0, &[calm("a0"), calm("a1")]);
    // Fifteen seconds: it is still on its way when the drain begins.
    let moving = hall.begin(0, &["migrate", "a0", "--to", &hall.address(1), "--bandwidth", "50M"]);
    hall.until("it is being moved", || hall.guest_state(0, "a0") == json!("migrating"));
    let going = hall.begin(0, &["drain", "--to", &hall.address(2)]);
    let now = hall.wait(0, "it is known", |now| hall::guests(now).count() == 2);
    let other = hall::guests(&now).find(|one| one["guest"] == "a0").unwrap();
    assert!(other["state"] == "recovering" || other["state"] == "gone", "{other:#}");
    assert_eq!(moving.finish().0, 0);
    let (exit, lines) = going.finish();
    let last = lines.last().unwrap();
    assert_eq!((exit, hall::count(last, "moved"), hall::count(last, "gone")), (0, 1, 1), "{last:#}");
    assert_eq!((hall.names(0).len(), hall.names(1).len(), hall.names(2).len()), (0, 1, 1));
    hall.all_go_on();
}

/// It is not known where a guest is to run: the drain does not end as if the host were empty.
#[test]
fn a_guest_in_doubt_is_waited_for() {
    let mut hall = Hall::new(3, &[200, 200]);
    hall.start(0, &[calm("a0"), calm("a1")]);
    let sent = hall.gates[0].hold_after("source.commit_sent").unwrap();
    let moving = hall.begin(0, &["migrate", "a0", "--to", &hall.address(1)]);
    sent.wait(LONG).unwrap();
    hall.agents[1].kill().unwrap();
    drop(sent);
    assert_eq!(moving.finish().0, 6);
    assert_eq!(hall.guest_state(0, "a0"), json!("in_doubt"));
    let going = hall.begin(0, &["drain", "--to", &hall.address(2)]);
    let now = hall.wait(0, "the other one has left", |now| hall::count(now, "moved") == 1);
    assert_eq!((hall::count(&now, "recovering"), &now["state"]), (1, &json!("running")), "{now:#}");
    std::thread::sleep(Duration::from_secs(2));
    assert!(!ended_state(&hall.drain(0)), "{:#}", hall.drain(0));
    hall.agents[1].restart().unwrap();
    let (exit, lines) = going.finish();
    let last = lines.last().unwrap();
    assert_eq!((exit, hall::count(last, "in_doubt")), (0, 0), "{last:#}");
    assert_eq!(hall.names(0), [""; 0], "{last:#}");
    hall.all_go_on();
}

#[test]
fn an_undrain_brings_the_same_guests_back() {
    let mut hall = Hall::new(3, &[400, 400]);
    hall.start(0, &[calm("a1"), calm("a2"), calm("a3"), calm("stays")]);
    hall.start(1, &[calm("other")]);
    let (exit, text) = hall.run(0, &["undrain"]);
    assert!(exit == 4 && text.contains("no drain of this host is known"), "{exit} {text}");
    let to = format!("{},{}", hall.address(1), hall.address(2));
    // In two attempts: the first one keeps one of them.
    let (exit, lines) = hall.lines(0, &["drain", "--to", &to, "--keep", "stays,a3"]);
    assert_eq!(exit, 0, "{lines:#?}");
    let (exit, lines) = hall.lines(0, &["drain", "--to", &hall.address(2), "--keep", "stays"]);
    assert_eq!(exit, 0, "{lines:#?}");
    assert_eq!(hall.names(0), ["stays"]);
    // One has been moved on by hand, and one agent was started anew.
    let at = if hall.names(1).contains(&"a1".to_owned()) { 1 } else { 2 };
    let (exit, text) = hall.run(at, &["migrate", "a1", "--to", &hall.address(3 - at)]);
    assert_eq!(exit, 0, "{text}");
    // It does not answer as the undrain begins, and was named by an address.
    hall.agents[2].kill().unwrap();
    let going = hall.begin(0, &["undrain"]);
    hall.until("it has begun", || hall.json(0, &["status"]).1["cordon"] == Value::Null);
    std::thread::sleep(Duration::from_secs(1));
    hall.agents[2].restart().unwrap();
    let (exit, lines) = going.finish();
    let last = lines.iter().rev().find(|line| line["guests"].is_array()).unwrap();
    assert_eq!((exit, last["over"].as_bool()), (1, Some(true)), "{lines:#?}");
    let of = |name: &str| hall::guests(last).find(|one| one["guest"] == name).unwrap().clone();
    assert_eq!([of("a2")["state"].clone(), of("a3")["state"].clone()], ["back", "back"], "{last:#}");
    assert_eq!(of("a1")["state"], "failed", "{last:#}");
    assert!(hall::text(&of("a1"), "reason").contains("not here any more"), "{last:#}");
    assert_eq!(hall::guests(last).count(), 3, "{last:#}");
    assert_eq!(hall.json(0, &["status"]).1["cordon"], Value::Null, "it takes guests again");
    // By hand, as the hint says; then there is nothing left to do.
    let (exit, text) = hall.run(3 - at, &["migrate", "a1", "--to", &hall.address(0)]);
    assert_eq!(exit, 0, "{text}");
    let (exit, lines) = hall.lines(0, &["undrain"]);
    assert_eq!(exit, 0, "{lines:#?}");
    assert_eq!(hall.names(0), ["a1", "a2", "a3", "stays"]);
    assert_eq!((hall.names(1), hall.names(2).len()), (vec!["other".to_owned()], 0));
    hall.all_go_on();
}

#[test]
fn a_guest_and_a_host_that_are_gone_for_good_are_forgotten() {
    let mut hall = Hall::new(2, &[400, 400]);
    hall.start(0, &[calm("a1"), calm("a2")]);
    let there = hall.name(1);
    let (exit, lines) = hall.lines(0, &["drain", "--to", &hall.address(1)]);
    assert_eq!(exit, 0, "{lines:#?}");
    let (exit, text) = hall.run(0, &["undrain", "--forget", "a1"]);
    assert!(exit == 4 && text.contains("answers; nothing was changed"), "{exit} {text}");
    let (exit, text) = hall.run(0, &["fleet", "forget", &there]);
    assert!(exit == 4 && text.contains("runs"), "{exit} {text}");

    hall.agents[1].kill().unwrap();
    let (exit, planned) = hall.json(0, &["undrain", "--forget", "a1", "--dry-run"]);
    let expected = (json!(there), json!(true));
    assert_eq!((exit, (planned["from"].clone(), planned["dry_run"].clone())), (0, expected), "{planned:#}");
    let (exit, forgotten) = hall.json(0, &["undrain", "--forget", "a1"]);
    assert_eq!((exit, &forgotten["dry_run"]), (0, &json!(false)), "{forgotten:#}");
    let (exit, text) = hall.run(0, &["undrain", "--forget", "a1"]);
    assert!(exit == 4 && text.contains("no guest a1 is to come back"), "{exit} {text}");
    assert_ne!(hall.json(0, &["status"]).1["cordon"], Value::Null, "it does nothing else");
    let (_, audited) = hall.json(0, &["audit"]);
    let mut entries = audited.as_array().unwrap().iter().filter(|one| one["action"] == "forget_guest");
    let last = entries.rfind(|one| one["result"] == "done").unwrap();
    assert_eq!((&last["guest"], &last["caller"]["uid"]), (&json!("a1"), &json!(0)), "{last:#}");

    // The other one is asked for.
    let (exit, lines) = hall.lines(0, &["undrain"]);
    let last = lines.iter().rev().find(|line| line["guests"].is_array()).unwrap();
    let named: Vec<&str> = hall::guests(last).map(|one| hall::text(one, "guest")).collect();
    assert_eq!((exit, named), (1, vec!["a2"]), "{last:#}");
    let (exit, gone) = hall.json(0, &["fleet", "forget", &there]);
    assert_eq!((exit, &gone["host"]), (0, &json!(there)), "{gone:#}");
    let (_, hosts) = hall.json(0, &["fleet", "hosts"]);
    assert_eq!(hosts.as_array().unwrap().len(), 1, "{hosts:#}");

    // It was not gone: the dismissed one stays there.
    hall.agents[1].restart().unwrap();
    let (exit, lines) = hall.lines(0, &["undrain"]);
    assert_eq!(exit, 0, "{lines:#?}");
    assert_eq!((hall.names(0), hall.names(1)), (vec!["a2".to_owned()], vec!["a1".to_owned()]));
    hall.all_go_on();
}
