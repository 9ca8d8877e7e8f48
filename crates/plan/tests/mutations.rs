//! Checks of the checks: each defect put into the drivers is noticed by the promise that it breaks.

#![allow(clippy::panic, clippy::expect_used, clippy::unwrap_used)] // Tests say what they expect.

use linerate_core::ModeTag;
use linerate_plan::{Focus, Mutation, Options, Property, simulate};

/// Asserts that some seed breaks exactly this promise, and that the same seed keeps it without the defect.
#[track_caller]
fn noticed_in(sound: Options, mutation: Mutation, property: Property, seeds: u64) {
    let options = Options { mutation: Some(mutation), only: Some(property), ..sound };
    let seed = (0..seeds).find(|&seed| simulate(seed, options).is_err());
    let seed = seed.unwrap_or_else(|| panic!("{mutation:?} goes unnoticed by {property:?} in {seeds} seeds"));
    println!("{mutation:?} breaks {property:?} at seed {seed}");
    let sound = simulate(seed, sound);
    assert!(sound.is_ok(), "seed {seed} breaks a promise without {mutation:?}: {}", sound.unwrap_err());
}

#[track_caller]
fn noticed(mutation: Mutation, property: Property, seeds: u64) {
    noticed_in(Options::default(), mutation, property, seeds);
}

/// The same, where RAM goes in the hypervisor's own streams.
#[track_caller]
fn noticed_by_streams(mutation: Mutation, property: Property, seeds: u64) {
    noticed_in_mode(ModeTag::Streams, mutation, property, seeds);
}

#[track_caller]
fn noticed_in_mode(mode: ModeTag, mutation: Mutation, property: Property, seeds: u64) {
    noticed_in(Options { mode, ..Options::default() }, mutation, property, seeds);
}

/// The same over several sessions, there and back.
#[track_caller]
fn noticed_in_histories(mutation: Mutation, property: Property, seeds: u64) {
    noticed_in(Options { histories: true, ..Options::default() }, mutation, property, seeds);
}

/// Most of what goes wrong is this, at these moments.
fn often(names: &[&str]) -> Options {
    Options { focus: Focus::on_all(names).expect("all of them are known"), ..Options::default() }
}

#[test]
fn streams_that_are_reported_loaded_too_early() {
    noticed_by_streams(Mutation::LoadedTooEarly, Property::SameRam, 500);
}

#[test]
fn the_rules_of_commit_and_roll_back_are_watched_where_ram_goes_in_streams() {
    noticed_by_streams(Mutation::ResumeAfterCommit, Property::OneRuns, 6000);
    noticed_by_streams(Mutation::RunBeforeJournaled, Property::OneRuns, 6000);
    noticed_by_streams(Mutation::RollBackForgetsGuest, Property::SourceSurvives, 1000);
    noticed_by_streams(Mutation::DiscardLeavesGuest, Property::RetrySucceeds, 3000);
}

#[test]
fn handover_a_stream_that_is_not_held() {
    noticed_in_mode(ModeTag::Handover, Mutation::GateOpen, Property::SealedAndFenced, 100);
    noticed_in_mode(ModeTag::Handover, Mutation::GateOpen, Property::SameRam, 100);
}

#[test]
fn handover_a_scan_that_forgets_and_a_fence_that_does_not_stop() {
    noticed_in_mode(ModeTag::Handover, Mutation::ScanForgets, Property::SameRam, 500);
    noticed_in_mode(ModeTag::Handover, Mutation::FenceWithoutStopping, Property::SealedAndFenced, 1000);
    noticed_in_mode(ModeTag::Handover, Mutation::TouchedForgotten, Property::SameRam, 500);
}

#[test]
fn handover_a_guest_that_is_resumed_by_who_does_not_own_it() {
    noticed_in_mode(ModeTag::Handover, Mutation::RunsAnothersGuest, Property::OneRuns, 6000);
}

#[test]
fn handover_what_is_left_set() {
    noticed_in_mode(ModeTag::Handover, Mutation::SourceKeepsSetting, Property::PutBack, 100);
    noticed_in_mode(ModeTag::Handover, Mutation::DestinationKeepsSetting, Property::PutBack, 100);
    noticed_in_mode(ModeTag::Handover, Mutation::RollBackKeepsProtection, Property::SourceSurvives, 1000);
}

/// Several sessions of a domain of libvirt, in which most of what goes wrong is this.
fn domains(names: &[&str]) -> Options {
    Options { mode: ModeTag::Handover, histories: true, ..often(names) }
}

#[test]
fn handover_what_recovery_leaves_set_or_open() {
    let crashes = domains(&["agent crashes", "action"]);
    noticed_in(crashes, Mutation::SettingClosedAnyway, Property::PutBack, 500);
    // A record whose end is lost stays open, and no restart is left that would close it.
    let refuses = domains(&["journal fails", "journal full"]);
    noticed_in(refuses, Mutation::EndWrittenOnce, Property::PutBack, 500);
}

#[test]
fn handover_a_domain_that_is_not_looked_for_at_the_destination() {
    let crashes = domains(&["agent crashes", "action"]);
    noticed_in(crashes, Mutation::DestinationNotAsked, Property::Truthful, 1000);
}

#[test]
fn handover_defects_are_noticed_over_several_sessions_too() {
    let sound = Options { mode: ModeTag::Handover, histories: true, ..Options::default() };
    noticed_in(sound, Mutation::GateOpen, Property::SealedAndFenced, 100);
    noticed_in(sound, Mutation::SourceKeepsSetting, Property::PutBack, 100);
    noticed_in(sound, Mutation::RunsAnothersGuest, Property::OneRuns, 3000);
}

#[test]
fn rule_1_resuming_although_commit_was_sent() {
    noticed(Mutation::ResumeAfterCommit, Property::OneRuns, 3000);
}

#[test]
fn rule_1_taking_in_doubt_for_given_up() {
    noticed(Mutation::ResumeOnPending, Property::OneRuns, 30000);
}

#[test]
fn rule_1_running_before_the_journal_has_it() {
    noticed(Mutation::RunBeforeJournaled, Property::OneRuns, 6000);
}

#[test]
fn rule_2_rolling_back_without_resuming() {
    noticed(Mutation::RollBackForgetsGuest, Property::SourceSurvives, 1000);
}

#[test]
fn rule_2_rolling_back_and_leaving_the_protection() {
    noticed(Mutation::RollBackKeepsProtection, Property::SourceSurvives, 1000);
}

#[test]
fn rule_3_answering_a_fence_without_stopping_is_seen_in_ram_alone() {
    noticed(Mutation::FenceWithoutStopping, Property::SameRam, 6000);
}

#[test]
fn rule_3_answering_a_fence_without_stopping_is_seen_by_its_own_check() {
    noticed(Mutation::FenceWithoutStopping, Property::SealedAndFenced, 1000);
    noticed(Mutation::FenceWithoutStopping, Property::NotTwice, 6000);
}

#[test]
fn rule_4_a_scan_that_clears_without_reporting() {
    noticed(Mutation::ScanForgets, Property::SameRam, 500);
}

#[test]
fn rule_4_a_fence_that_does_not_repeat_damaged_writes() {
    noticed(Mutation::FenceForgetsRefused, Property::SameRam, 6000);
}

#[test]
fn rule_5_a_write_after_ram_is_sealed() {
    noticed(Mutation::WriteAfterSeal, Property::SameRam, 500);
    noticed(Mutation::WriteAfterSeal, Property::SealedAndFenced, 500);
}

#[test]
fn an_unreported_page_of_the_hypervisor_is_found() {
    noticed(Mutation::TouchedForgotten, Property::SameRam, 500);
}

#[test]
fn rule_7_holes_that_are_filled() {
    noticed(Mutation::FillHoles, Property::HolesStay, 1000);
}

#[test]
fn a_leftover_incoming_qemu_fails_the_retry() {
    noticed(Mutation::DiscardLeavesGuest, Property::RetrySucceeds, 1000);
}

#[test]
fn a_roll_back_notice_after_which_the_incoming_qemu_is_left_running() {
    noticed(Mutation::DiscardLeavesGuest, Property::Truthful, 1000);
}

#[test]
fn rule_4_marks_that_go_with_their_page_table_entries() {
    noticed(Mutation::EmptiedMissed, Property::SameRam, 500);
}

#[test]
fn rule_5_what_the_hypervisor_writes_with_its_device_state() {
    noticed(Mutation::NotScannedAgain, Property::SameRam, 500);
}

#[test]
fn disks_that_are_not_compared_or_by_their_names_only() {
    noticed(Mutation::GraphNotCompared, Property::DiskRuns, 2000);
    noticed(Mutation::StaleDiskTaken, Property::DiskRuns, 2000);
}

#[test]
fn rule_2_a_roll_back_that_failed_and_is_written_as_done() {
    let sound = often(&["hypervisors away", "disks away", "cancelled", "blackout"]);
    noticed_in(sound, Mutation::RollBackWrittenAnyway, Property::SourceSurvives, 1000);
}

#[test]
fn rule_1_a_source_that_is_given_up_for_a_guest_that_does_not_run() {
    noticed(Mutation::CommittedBeforeItRuns, Property::GivenUpForRunning, 500);
}

#[test]
fn rule_12_a_loaded_guest_that_is_given_up_for_silence() {
    noticed_in(often(&["host crashes", "commit"]), Mutation::LoadedGivenUp, Property::NothingLost, 1000);
}

#[test]
fn rule_12_a_roll_back_that_is_not_notified_on_a_connection_of_its_own() {
    noticed_in(often(&["agent crashes", "commit"]), Mutation::NeverNotified, Property::Ends, 1000);
}

#[test]
fn rule_12_a_destination_that_keeps_the_disks_of_a_paused_guest() {
    noticed_in(often(&["agent crashes", "blackout"]), Mutation::DisksNotReleased, Property::Ends, 3000);
}

#[test]
fn rule_12_a_commit_that_is_not_repeated() {
    noticed_in(often(&["agent crashes", "commit"]), Mutation::CommitNotRepeated, Property::Ends, 1000);
}

/// Links that are away for long leave a session in doubt at both hosts, and two operators decide.
#[track_caller]
fn noticed_with_two_operators(mutation: Mutation, property: Property, seeds: u64) {
    let often = often(&["all links silent", "agent crashes", "commit"]);
    for mode in [ModeTag::Direct, ModeTag::Streams] {
        for histories in [false, true] {
            noticed_in(Options { mode, histories, ..often }, mutation, property, seeds);
        }
    }
}

#[test]
fn a_decision_that_is_reported_done_while_it_waits() {
    noticed_with_two_operators(Mutation::DecisionReportedEarly, Property::DecisionKept, 1000);
}

#[test]
fn a_decision_that_was_reported_done_and_is_forgotten_at_a_restart() {
    // A destination hears its source before its operator's decision counts, which makes up for most of it elsewhere.
    let often = often(&["all links silent", "agent crashes", "commit"]);
    let options = Options { mode: ModeTag::Streams, histories: true, ..often };
    noticed_in(options, Mutation::DecisionNotWritten, Property::OneRuns, 2500);
}

#[test]
fn a_guest_that_is_resumed_without_asking_whether_it_runs_at_the_destination() {
    // The same: elsewhere the notice comes before the destination runs the guest.
    noticed_in_histories(Mutation::ResumedUnasked, Property::OneRuns, 3000);
}

/// An operator who sees the destination only lets the guest run there, and its source has it back.
#[test]
fn a_roll_back_notice_that_comes_too_late_for_an_operator_of_the_destination() {
    let often = often(&["all links silent", "agent crashes", "commit"]);
    noticed_in(often, Mutation::NoticeSeldom, Property::OneRuns, 3000);
}

#[test]
fn rule_13_recovery_by_name() {
    noticed_in_histories(Mutation::RecoverByName, Property::OwnRecord, 500);
}

#[test]
fn rule_13_records_ordered_by_clocks() {
    // The older record closes the newer one: a source says that it has a guest that has left.
    noticed_in_histories(Mutation::OrderByClock, Property::OneRuns, 500);
}

#[test]
fn rule_13_an_end_that_is_written_once_only() {
    // Nothing is lost by it, for recovery may be done twice; but a source that asks gets no answer.
    let sound = often(&["journal fails", "agent crashes", "commit", "committed", "guest paused"]);
    let sound = Options { histories: true, ..sound };
    noticed_in(sound, Mutation::EndWrittenOnce, Property::Ends, 2000);
}

#[test]
fn rule_13_a_committed_guest_that_every_start_of_an_agent_runs() {
    let sound = often(&["guest paused", "agent crashes", "committed"]);
    noticed_in(sound, Mutation::RunOnEveryStart, Property::PausedStays, 1000);
}
