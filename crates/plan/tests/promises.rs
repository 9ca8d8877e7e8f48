//! Every seed keeps every promise; a seed means the same run each time.

#![allow(clippy::panic, clippy::expect_used, clippy::unwrap_used)] // Tests say what they expect.

use linerate_core::ModeTag;
use linerate_plan::{Focus, Options, Summary, Violation, simulate};

fn all(seeds: std::ops::Range<u64>, options: Options) -> Result<Summary, Box<Violation>> {
    let mut summary = Summary::default();
    for seed in seeds {
        summary.add(&simulate(seed, options)?);
    }
    Ok(summary)
}

#[test]
fn promises_hold_with_faults() {
    let summary = all(0..2000, Options::default()).unwrap_or_else(|violation| panic!("{violation}"));
    assert!(
        summary.moved() > 500,
        "hardly any guest moves: the script is too harsh to test the end\n{summary}"
    );
    assert!(summary.faults().iter().all(|&count| count > 20), "a kind of fault hardly happens\n{summary}");
}

#[test]
fn without_faults_every_guest_that_converges_moves() {
    let options = Options { faultless: true, ..Options::default() };
    all(0..500, options).unwrap_or_else(|violation| panic!("{violation}"));
}

#[test]
fn with_faults_where_ram_goes_in_the_hypervisors_own_streams() {
    let options = Options { mode: ModeTag::Streams, ..Options::default() };
    let summary = all(0..2000, options).unwrap_or_else(|violation| panic!("{violation}"));
    assert!(summary.moved() > 500, "hardly any guest moves\n{summary}");
}

#[test]
fn every_guest_moves_by_streams_without_faults() {
    let options = Options { faultless: true, mode: ModeTag::Streams, ..Options::default() };
    let summary = all(0..300, options).unwrap_or_else(|violation| panic!("{violation}"));
    assert_eq!(summary.moved(), 300);
}

#[test]
fn with_faults_where_libvirt_decides_who_runs_the_guest() {
    let options = Options { mode: ModeTag::Handover, ..Options::default() };
    let summary = all(0..2000, options).unwrap_or_else(|violation| panic!("{violation}"));
    assert!(summary.moved() > 500, "hardly any guest moves\n{summary}");
}

#[test]
fn every_guest_that_converges_moves_when_there_are_no_faults() {
    let options = Options { faultless: true, mode: ModeTag::Handover, ..Options::default() };
    all(0..300, options).unwrap_or_else(|violation| panic!("{violation}"));
}

#[test]
fn with_faults_over_several_sessions_there_and_back() {
    for mode in [ModeTag::Direct, ModeTag::Streams, ModeTag::Handover] {
        let options = Options { histories: true, mode, ..Options::default() };
        let summary = all(0..700, options).unwrap_or_else(|violation| panic!("{violation}"));
        assert!(summary.moved() > 200, "hardly any guest moves\n{summary}");
        // Five sessions meet more of everything.
        assert!(
            summary.faults().iter().all(|&count| count > 20),
            "a kind of fault hardly happens\n{summary}"
        );
    }
}

#[test]
fn with_faults_of_the_journal_and_of_whole_hosts_around_commit() {
    let names =
        ["journal fails", "journal full", "agent crashes", "host crashes", "hypervisor dies", "commit"];
    let focus = Focus::on_all(&names).expect("all of them are known");
    for mode in [ModeTag::Direct, ModeTag::Streams] {
        let options = Options { focus, mode, ..Options::default() };
        all(0..1000, options).unwrap_or_else(|violation| panic!("{violation}"));
    }
}

#[test]
fn histories_of_libvirts_guests_with_a_journal_that_refuses_and_crashes_inside_recovery() {
    let names = ["journal fails", "journal full", "agent crashes", "host crashes", "recovery", "action"];
    let focus = Focus::on_all(&names).expect("all of them are known");
    let options = Options { focus, mode: ModeTag::Handover, histories: true, ..Options::default() };
    all(0..1000, options).unwrap_or_else(|violation| panic!("{violation}"));
}

/// Links that are away for long leave a session in doubt at both hosts.
#[test]
fn with_an_operator_at_each_host_who_decide_against_each_other() {
    let names = ["all links silent", "agent crashes", "commit"];
    let focus = Focus::on_all(&names).expect("all of them are known");
    for (mode, histories) in
        [ModeTag::Direct, ModeTag::Streams].into_iter().flat_map(|mode| [(mode, false), (mode, true)])
    {
        let options = Options { focus, mode, histories, ..Options::default() };
        let summary = all(0..200, options).unwrap_or_else(|violation| panic!("{violation}"));
        let [done, _, refused, _] = summary.answers();
        assert!(summary.pairs() > 10, "two operators hardly ever decide\n{summary}");
        assert!(done > 20 && refused > 0, "an answer is hardly ever given\n{summary}");
        assert!(summary.split() * 2 < summary.pairs(), "most pairs end the run\n{summary}");
    }
}

#[test]
fn a_seed_replays() {
    let run = |seed| {
        let options = Options { trace: true, ..Options::default() };
        simulate(seed, options).map(|report| (report.trace, report.took, report.events))
    };
    for seed in [3, 14, 159] {
        assert_eq!(run(seed).expect("keeps its promises"), run(seed).expect("keeps its promises"));
    }
}
