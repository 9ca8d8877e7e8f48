//! What is published of a migration: steps as they begin and end, progress a few times a second, the report in the end.

use std::sync::atomic::Ordering;
use std::time::Duration;

use linerate_api as api;
use linerate_api::{
    BlackoutSplit, CpuTime, DiskProgress, DiskTotals, EventKind, MigrationDetail, MigrationOutcome,
    MigrationState, MigrationSummary, Progress, RamTotals, Report, RoundTotals, StepTime,
};
use linerate_core::drain::Sample;
use linerate_core::journal::Decided;
use linerate_core::source::Ending;
use linerate_core::statistics::{Blackout, Statistics};
use linerate_core::{Code, Fault, GuestState, ModeTag, Step, Time};

use super::Outgoing;
use super::streams::MigrationStreams;
use crate::convert;
use crate::recovery::Doubt;

pub(super) fn us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn between(from: Option<Time>, to: Option<Time>) -> u64 {
    from.zip(to).map_or(0, |(from, to)| us(to - from))
}

/// Steps whose begin and end have been published.
#[derive(Default)]
pub(super) struct ReportedSteps {
    began: [bool; 10],
    ended: [bool; 10],
}

impl ReportedSteps {
    /// Publishes what has begun and ended since the last call.
    pub fn publish(&mut self, shared: &Outgoing) {
        let statistics = shared.machine().statistics().clone();
        for (index, step) in Step::ALL.into_iter().enumerate() {
            let span = statistics.span(step);
            let (Some(began), Some(ended)) = (self.began.get_mut(index), self.ended.get_mut(index)) else {
                continue;
            };
            if span.began.is_some() && !std::mem::replace(began, span.began.is_some()) {
                shared.event_log.publish(EventKind::step_started(convert::step(step)));
            }
            if span.ended.is_some() && !std::mem::replace(ended, span.ended.is_some()) {
                let duration = between(span.began, span.ended);
                shared.event_log.publish(EventKind::step_done(convert::step(step), duration));
            }
        }
    }
}

/// How far it is now.
pub(super) fn progress(shared: &Outgoing) -> Progress {
    // The table asks the kernel about connections: not while the channels wait for the core.
    let counters = shared.link_table.counters();
    let mut links = shared.link_table.progress();
    let machine = shared.machine();
    let statistics = machine.statistics();
    let scheduler = machine.scheduler();
    let round = statistics.rounds.last().copied().unwrap_or_default();
    let streams = shared.migration_streams();
    let transport = streams.as_ref().map(|streams| &streams.transport.streams);
    let (remaining, rate) = match transport {
        Some(streams) => (statistics.streamed.remaining_bytes, streams.bytes_per_s(None)),
        None => (scheduler.pending_bytes() + scheduler.in_flight_bytes(), scheduler.bytes_per_s()),
    };
    for link in &mut links {
        let rate = match transport {
            Some(streams) => streams.bytes_per_s(Some(link.id)),
            None => scheduler.link_bytes_per_s(link.id),
        };
        link.rate_bytes_per_s = rate as u64;
    }
    Progress {
        step: convert::step(machine.step()),
        round: machine.round(),
        populated_bytes: statistics.populated_bytes,
        round_bytes_total: round.bytes,
        round_bytes_done: round.bytes.saturating_sub(remaining),
        remaining_bytes: remaining,
        sent_bytes: ram_sent(streams.as_ref(), counters.data_bytes),
        zero_bytes: counters.zero_bytes + statistics.streamed.zero_bytes,
        rate_bytes_per_s: rate as u64,
        dirty_rate_bytes_per_s: is_known(statistics, machine.round())
            .then_some(statistics.dirty_bytes_per_s as u64),
        predicted_blackout_us: statistics.predicted_blackout.map(us),
        // While disks are copied alone it is not known how much of the memory will be sent.
        predicted_left_us: (rate > 0.0 && !(statistics.disks.is_some() && statistics.rounds.is_empty()))
            .then(|| left_us(remaining, rate, statistics.dirty_bytes_per_s)),
        disks: statistics.disks.map(|disks| DiskProgress {
            total_bytes: disks.total_bytes,
            done_bytes: disks.done_bytes,
            pass: statistics.disk_pass,
            write_rate_bytes_per_s: statistics.disk_write_bytes_per_s.map(|rate| rate as u64),
        }),
        links,
    }
}

/// Whether a scan or a count has shown yet how fast the guest writes.
fn is_known(statistics: &Statistics, round: u32) -> bool {
    round > 0
        || statistics.counted_bytes.is_some()
        || statistics.rounds.iter().any(|round| round.scan > Duration::ZERO)
}

/// How far the copy of RAM is, for a drain; none before its first byte has arrived.
pub(super) fn sample(shared: &Outgoing) -> Option<Sample> {
    let machine = shared.machine();
    let statistics = machine.statistics();
    let scheduler = machine.scheduler();
    let streams = shared.migration_streams();
    let (copied_bytes, left_bytes, bytes_per_s) = match streams.as_ref().map(|own| &own.transport.streams) {
        Some(streams) => {
            (streams.acknowledged_bytes(), statistics.streamed.remaining_bytes, streams.bytes_per_s(None))
        }
        None => (
            scheduler.acknowledged_bytes(),
            scheduler.pending_bytes()
                + scheduler.in_flight_bytes()
                + machine.written_bytes(shared.clock.now()),
            scheduler.bytes_per_s(),
        ),
    };
    (copied_bytes > 0).then_some(Sample {
        round: machine.round(),
        copied_bytes,
        left_bytes,
        bytes_per_s,
        write_bytes_per_s: is_known(statistics, machine.round()).then_some(statistics.dirty_bytes_per_s),
    })
}

/// The rest at this rate, and the geometric series of rounds behind it: each leaves dirty/rate of the one before.
fn left_us(remaining: u64, rate: f64, dirty: f64) -> u64 {
    let shrink = (dirty / rate).min(0.95);
    (remaining as f64 / rate / (1.0 - shrink) * 1e6) as u64
}

fn outcome(shared: &Outgoing, ending: &Ending) -> MigrationOutcome {
    let is_dry = shared.request.dry_run && shared.was_ready.load(Ordering::Relaxed);
    // Where it was, as it was.
    let stays = matches!(ending.guest, GuestState::RunsAtSource | GuestState::PausedAtSource);
    // It is not paused because it was before: recovery goes on with it.
    let not_resumed = ending.unfinished && ending.guest == GuestState::PausedAtSource;
    match &ending.fault {
        None => MigrationOutcome::Completed,
        Some(fault) if is_dry && fault.code == Code::Cancelled && stays => MigrationOutcome::Checked,
        Some(fault)
            if fault.code == Code::Cancelled
                && !not_resumed
                && !matches!(ending.guest, GuestState::Gone | GuestState::Unknown) =>
        {
            MigrationOutcome::Cancelled
        }
        Some(_) => MigrationOutcome::Failed,
    }
}

pub(super) fn finished(
    shared: &Outgoing,
    ending: &Ending,
    cpu: CpuTime,
    downtime_ms: Option<u64>,
) -> EventKind {
    let outcome = outcome(shared, ending);
    let fault = ending.fault.as_ref().filter(|_| outcome != MigrationOutcome::Checked);
    let told = |fault: &Fault| match shared.mode {
        // libvirt decides, and its part of the migration has hints of its own.
        ModeTag::Handover => convert::error(fault, Some(ending.guest)),
        ModeTag::Direct | ModeTag::Streams => convert::ended(fault, ending.guest, ending.unfinished),
    };
    let error = fault.map(|fault| Box::new(told(fault)));
    let report = report(shared, ending, cpu, downtime_ms);
    EventKind::Finished { outcome, error, report: Some(Box::new(report)) }
}

fn report(shared: &Outgoing, ending: &Ending, cpu: CpuTime, downtime_ms: Option<u64>) -> Report {
    let counters = shared.link_table.counters();
    let machine = shared.machine();
    let statistics = machine.statistics().clone();
    let streams = shared.migration_streams();
    let (damaged, acknowledged) = match streams.as_ref().map(|streams| &streams.transport.streams) {
        Some(streams) => (streams.damaged_count(), streams.acknowledged_bytes()),
        None => (machine.scheduler().damaged_count(), machine.scheduler().acknowledged_bytes()),
    };
    let stream_channels = machine.stream_channels();
    drop(machine);
    Report {
        id: shared.id(),
        guest: shared.request.guest.clone(),
        from: shared.from.clone(),
        to: shared.request.to.clone(),
        mode: convert::mode(shared.mode),
        mode_reason: shared.mode_reason.clone(),
        stream_channels,
        outcome: outcome(shared, ending),
        arrived_paused: ending.guest == GuestState::PausedAtDestination,
        total_us: us(statistics.ended.unwrap_or(shared.clock.now()) - statistics.started)
            + us(shared.before_machine),
        steps: steps(&statistics),
        rounds: rounds(&statistics),
        ram: RamTotals {
            total_bytes: shared.ram_bytes,
            sent_bytes: ram_sent(streams.as_ref(), counters.data_bytes),
            zero_bytes: counters.zero_bytes + statistics.streamed.zero_bytes,
            hole_bytes: shared.ram_bytes.saturating_sub(statistics.populated_bytes),
        },
        disks: streams.as_ref().zip(statistics.disks).map(|(streams, disks)| DiskTotals {
            count: u32::try_from(streams.disks).unwrap_or(u32::MAX),
            copied_bytes: disks.done_bytes,
            sent_bytes: streams.disk_bytes.load(Ordering::Relaxed),
            alone_us: us(statistics.disks_only_phase),
        }),
        shared_by_assertion: shared.request.shared_storage.clone(),
        goodput_bytes_per_s: goodput(&statistics, acknowledged),
        links: shared.link_table.totals(),
        cpu,
        blackout: split(&statistics.blackout, downtime_ms),
        pauses_us: us(statistics.pauses),
        device_state_bytes: statistics.blackout.device_state_bytes,
        verified: (shared.request.verify && statistics.blackout.sealed.is_some()).then_some(true),
        damaged_writes: damaged,
    }
}

/// Bytes per second of the copy, also of one that was aborted.
fn goodput(statistics: &Statistics, acknowledged: u64) -> u64 {
    let copy = statistics.span(Step::Copy);
    let ended = copy.ended.or(statistics.ended);
    let time = copy.began.zip(ended).map_or(Duration::ZERO, |(began, ended)| ended - began);
    let seconds = time.saturating_sub(statistics.disks_only_phase).as_secs_f64();
    // Of a round that was aborted only a part was carried.
    let carried = statistics.rounds.iter().map(|round| round.bytes).sum::<u64>().min(acknowledged);
    if seconds > 0.0 { (carried as f64 / seconds) as u64 } else { 0 }
}

/// What the links carried of guest RAM.
fn ram_sent(streams: Option<&MigrationStreams>, data_bytes: u64) -> u64 {
    data_bytes.saturating_sub(streams.map_or(0, |streams| streams.disk_bytes.load(Ordering::Relaxed)))
}

fn steps(statistics: &Statistics) -> Vec<StepTime> {
    let time = |step: Step| {
        let span = statistics.span(step);
        span.began?;
        let ended = span.ended.or(statistics.ended);
        Some(StepTime { step: convert::step(step), duration_us: between(span.began, ended) })
    };
    Step::ALL.into_iter().filter_map(time).collect()
}

fn rounds(statistics: &Statistics) -> Vec<RoundTotals> {
    let round = |round: &linerate_core::statistics::Round| RoundTotals {
        number: round.number,
        bytes: round.bytes,
        duration_us: round.took.map(us),
        dirty_bytes_after: round.dirty_bytes_after,
    };
    statistics.rounds.iter().map(round).collect()
}

fn split(blackout: &Blackout, qemu_downtime_ms: Option<u64>) -> Option<BlackoutSplit> {
    let total = blackout.total()?;
    let commit = between(blackout.journaled, blackout.running);
    // In direct mode QEMU writes its state before the last scan, in stream mode after all else.
    let scans_from =
        blackout.state_written.filter(|at| Some(*at) <= blackout.scanned).or(blackout.pre_switchover);
    Some(BlackoutSplit {
        total_us: us(total),
        stop_us: between(blackout.stopped, blackout.pre_switchover),
        scan_us: between(scans_from, blackout.scanned),
        last_copy_us: between(blackout.scanned, blackout.copied),
        verify_us: between(blackout.copied, blackout.digested),
        device_state_us: between(blackout.pre_switchover, scans_from)
            + between(blackout.digested, blackout.loaded.max(blackout.state_written)),
        journal_us: between(blackout.loaded.max(blackout.state_written), blackout.journaled),
        resume_us: commit,
        qemu_downtime_us: qemu_downtime_ms.map(|ms| ms.saturating_mul(1000)),
    })
}

/// What an operator reads of a guest in doubt: what is waited for, why the destination cannot be asked, or why nothing
/// can be decided.
pub(super) fn in_doubt(shared: &Outgoing) -> String {
    let not_asked = shared.not_asked.lock().clone();
    let ran_here = *shared.ran_here.lock();
    let answer = *shared.answer.lock();
    let doubt = Doubt { decided: shared.decided(), ran_here, answer, is_alive: shared.qemu_is_alive() };
    let what = doubt.sentence();
    let not_asked = not_asked.filter(|_| ran_here.is_no()).map(|why| format!("It could not be asked: {why}"));
    let troubles = not_asked.into_iter().chain(shared.journal_trouble.sentence());
    troubles.fold(what.to_owned(), |text, trouble| format!("{text}. {trouble}"))
}

/// What an operator reads of a guest that is not in doubt, while QEMU has not confirmed what was decided, or a try has
/// failed; none while all goes well.
pub(super) fn unfinished(shared: &Outgoing) -> Option<String> {
    let trouble = shared.trouble.lock().clone();
    let machine = shared.machine();
    let is_decided = [true, false].into_iter().any(|here| machine.decided_for(here) == Decided::Waiting);
    if !is_decided && trouble.is_none() {
        return None;
    }
    let what = match (machine.is_rolling_back(), is_decided) {
        (true, true) => {
            "it was decided where the guest runs: on this host. Its QEMU here has not confirmed yet that it does what it did before; it is tried until it does"
        }
        (true, false) => {
            "the migration is given up, and the guest's QEMU on this host has not confirmed yet that the guest does what it did before; it is tried until it does"
        }
        (false, true) => {
            "it was decided that the copy of the guest on this host is given up; its QEMU here has not ended yet, and it is tried until it has"
        }
        (false, false) => {
            "the guest has moved, and what is left of it on this host could not be removed yet; it is tried until it is done"
        }
    };
    Some(trouble.map_or_else(|| what.to_owned(), |trouble| format!("{what} (last try: {trouble})")))
}

/// All that is known of it now.
pub(super) fn detail(shared: &Outgoing) -> MigrationDetail {
    let (state, report, error) = match shared.event_log.finished() {
        Some(EventKind::Finished { outcome, error, report }) => {
            let state = match outcome {
                MigrationOutcome::Completed => MigrationState::Completed,
                MigrationOutcome::Cancelled => MigrationState::Cancelled,
                MigrationOutcome::Checked => MigrationState::Checked,
                MigrationOutcome::Failed => MigrationState::Failed,
                MigrationOutcome::InDoubt => MigrationState::InDoubt,
            };
            (state, report.map(|report| *report), error.map(|error| *error))
        }
        _ => (shared.state(), None, None),
    };
    let step = shared.machine().step();
    let summary = MigrationSummary {
        id: shared.id(),
        guest: shared.request.guest.clone(),
        direction: api::Direction::Outgoing,
        peer: shared.request.to.clone(),
        state,
        step: convert::step(step),
        started_unix_ms: shared.started_unix_ms,
        sent_bytes: shared.link_table.counters().data_bytes,
        note: match state {
            MigrationState::InDoubt => Some(in_doubt(shared)),
            _ if error.is_some() || report.is_some() => None,
            // A guest that is paused until the disk takes a record, or QEMU answers.
            _ => {
                let notes: Vec<String> =
                    unfinished(shared).into_iter().chain(shared.journal_trouble.sentence()).collect();
                (!notes.is_empty()).then(|| notes.join(". "))
            }
        },
    };
    MigrationDetail { summary, report, error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_core::statistics::Round;

    #[test]
    fn a_copy_that_was_aborted_has_the_rate_of_what_it_carried() {
        let mut statistics = Statistics::default();
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        statistics.begin(at(1), Step::Copy);
        statistics.rounds.push(Round { bytes: 1000, ..Round::default() });
        assert_eq!(goodput(&statistics, 600), 0, "it is not over yet");
        statistics.ended = Some(at(3));
        assert_eq!(goodput(&statistics, 600), 300);
        statistics.end(at(2), Step::Copy);
        assert_eq!(goodput(&statistics, 2000), 1000);
    }
}
