//! Hosts of a cluster move a domain over TLS alone, and a host that may only look moves none.

use linerate_lab::{GuestSpec, LibvirtVersion};
use serde_json::Value;

use super::stage::{Ended, Stage, quick};
use super::{finished, wait_put_back};

/// The newest line about this action in a host's audit log, of those that match.
fn audited(stage: &Stage, host: usize, words: &[&str], action: &str) -> Value {
    let (exit, lines) = stage.asks_agent(host, &[&["audit"], words].concat());
    assert_eq!(exit, Some(0), "{lines:#}");
    let found = lines.as_array().unwrap().iter().rev().find(|line| line["action"] == action);
    found.unwrap_or_else(|| panic!("{action} is not in {lines:#}")).clone()
}

/// It has moved in this mode, and both hosts have written down the cipher. The source did with the migration's end, the
/// other host with what the source began there.
fn moved(stage: &Stage, from: usize, ended: &Ended, mode: &str) {
    assert_eq!(ended.code, Some(0), "{mode}: {ended:#?}\n{}", stage.evidence());
    let chosen = ended.lines.iter().find(|line| line["event"] == "mode").unwrap();
    assert_eq!(chosen["mode"], mode);
    let id = stage.listed(from)["id"].as_str().unwrap().to_owned();
    let end = audited(stage, from, &["--session", &id], "migration_end");
    assert_eq!((&end["guest"], &end["result"]), (&"g".into(), &"done".into()), "{end}");
    assert!(end["cipher"].as_str().is_some_and(|cipher| cipher.starts_with("TLS13_")), "{end}");
    let source = stage.lab.hosts()[from].name();
    let begun = |words: &[&str], action| {
        let line = audited(stage, 1 - from, &[&["--by", source], words].concat(), action);
        assert_eq!((&line["result"], &line["caller"]["cipher"]), (&"done".into(), &end["cipher"]), "{line}");
    };
    // libvirt's own connections go through a tunnel in both modes.
    begun(&[], "tunnel");
    if mode == "direct" {
        begun(&["--session", &id], "arrival_begin");
    }
}

/// The third host has a domain and a certificate of the cluster. The domain stays there.
fn a_viewer_moves_none(stage: &Stage) {
    let domain = GuestSpec { name: "v".into(), ..quick(32) };
    stage.libvirts[2].start_shared_domain(&domain).unwrap();
    let (viewer, to) = (stage.lab.hosts()[2].name(), stage.agents[1].address(0).to_string());
    for (mode, denied, action) in
        [("direct", "may not send here", "arrival_begin"), ("stream", "may not tunnel here", "tunnel")]
    {
        let words = ["migrate", "qemu:///system/v", "--no-check", "--to", &to, "--mode", mode];
        let (exit, answer) = stage.asks_agent(2, &words);
        let denied = format!("host {viewer} {denied}");
        assert!(exit.is_some_and(|code| code != 0), "{mode}: {answer:#}");
        assert!(answer.to_string().contains(&denied), "{mode}: {answer:#}");
        let line = audited(stage, 1, &["--by", viewer, "--result", "refused"], action);
        assert!(line["reason"].as_str().unwrap().contains(&denied), "{line}");
        assert!(line["caller"]["cipher"].as_str().unwrap().starts_with("TLS13_"), "{line}");
        assert_eq!(stage.libvirts[2].virsh(&["domstate", "v"]).unwrap().trim(), "running");
        assert!(stage.libvirts[1].virsh(&["domstate", "v"]).is_err(), "{mode}: it is there");
    }
}

#[test]
fn a_domain_moves_both_ways_in_a_cluster_over_tls_and_a_viewer_moves_none() {
    let mut stage = Stage::secured(LibvirtVersion::Eleven);
    stage.begin(&quick(48));
    for host in 0..3 {
        assert_eq!(stage.asks_agent(host, &["status"]).1["security"], "tls", "host {host}");
    }
    let ended = stage.start_bare(0, &["--mode", "direct", "--verify"]).end();
    moved(&stage, 0, &ended, "direct");
    assert_eq!(finished(&ended.lines)["report"]["verified"], true);
    stage.arrived(1);
    stage.is_whole_at(1);
    wait_put_back(&stage, 1);

    let ended = stage.start_bare(1, &["--mode", "stream"]).end();
    moved(&stage, 1, &ended, "stream");
    stage.arrived(0);
    stage.is_whole_at(0);

    a_viewer_moves_none(&stage);
    stage.is_whole_at(0);
    stage.nothing_is_left();
}
