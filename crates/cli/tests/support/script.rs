//! The recorded migrations.

use linerate_api::{
    BlackoutSplit, CpuTime, ErrorBody, Event, EventKind, GuestState, LinkProgress, LinkState, LinkTotals,
    MigrationId, MigrationOutcome, Mode, Progress, RamTotals, Report, RoundTotals, Side, Step, StepTime,
};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
const TICK_US: u64 = 100_000;
const POPULATED: u64 = 4 * GIB;
/// 2.5 Gb/s less what headers take.
const LINK_RATE: u64 = 307_000_000;

/// The events of the migration of this guest.
pub fn of(guest: &str) -> Vec<Event> {
    let mut tape = Tape::default();
    match guest {
        "full" => tape.full(),
        "stuck" => tape.stuck(),
        "doubt" => tape.doubt(),
        "cut" => tape.first_steps(),
        "long" | "deaf" => tape.long(),
        _ => tape.moved(guest),
    }
    tape.events
}

/// Events in their order.
#[derive(Default)]
struct Tape {
    at_us: u64,
    events: Vec<Event>,
    steps: Vec<StepTime>,
    sent: [u64; 2],
    /// The second link is lost.
    lost: bool,
    /// It was lost before.
    died: bool,
}

impl Tape {
    fn push(&mut self, kind: EventKind) {
        self.events.push(Event { at_us: self.at_us, kind });
    }

    fn begin(&mut self, step: Step) {
        self.push(EventKind::step_started(step));
    }

    fn end(&mut self, step: Step, duration_us: u64) {
        self.push(EventKind::step_done(step, duration_us));
        self.steps.push(StepTime { step, duration_us });
    }

    fn step(&mut self, step: Step, duration_us: u64) {
        self.begin(step);
        self.at_us += duration_us;
        self.end(step, duration_us);
    }

    fn first_steps(&mut self) {
        let durations = [310, 1_240, 840, 412_000, 241_300, 4_120];
        for (step, duration_us) in Step::ALL.iter().zip(durations) {
            self.step(*step, duration_us);
        }
    }

    /// Sends `bytes` in a round, figures every tenth of a second.
    fn round(&mut self, round: u32, total: u64, link_dies_at: Option<u64>) {
        let mut done = 0;
        while done < total {
            if link_dies_at.is_some_and(|at| done >= at) && !self.died {
                (self.lost, self.died) = (true, true);
                self.push(EventKind::LinkLost { link: 1, reason: "no carrier at eth2".into() });
            } else if self.lost && done > total * 3 / 4 {
                self.lost = false;
                self.push(EventKind::LinkRestored { link: 1 });
            }
            let mut tick = 0;
            for (position, sent) in self.sent.iter_mut().enumerate() {
                let bytes = if position == 1 && self.lost { 0 } else { LINK_RATE * TICK_US / 1_000_000 };
                *sent += bytes;
                tick += bytes;
            }
            done = (done + tick).min(total);
            self.at_us +=
                TICK_US.min(tick.saturating_mul(TICK_US) / (2 * LINK_RATE / 10).max(1)).max(TICK_US / 2);
            self.progress(round, total, done, tick * 10);
        }
    }

    fn progress(&mut self, round: u32, total: u64, done: u64, rate: u64) {
        let links = (0..2u16).map(|id| self.link(id)).collect();
        let remaining = total - done + if round == 0 { done / 20 } else { 0 };
        self.push(EventKind::Progress(Box::new(Progress {
            step: Step::Copy,
            round,
            populated_bytes: POPULATED,
            round_bytes_total: total,
            round_bytes_done: done,
            remaining_bytes: remaining,
            sent_bytes: self.sent.iter().sum(),
            zero_bytes: 220 * MIB,
            rate_bytes_per_s: rate,
            dirty_rate_bytes_per_s: (round > 0 || done > GIB).then_some(31_000_000),
            predicted_blackout_us: (done > GIB / 2).then(|| (remaining / 614_000 / 20 + 9) * 1000),
            predicted_left_us: Some(remaining * 1_000_000 / rate.max(1)),
            disks: None,
            links,
        })));
    }

    fn link(&self, id: u16) -> LinkProgress {
        let lost = id == 1 && self.lost;
        LinkProgress {
            id,
            name: format!("eth{}", id + 1),
            local: format!("10.0.{}.1:40112", id + 1),
            remote: format!("10.0.{}.2:7475", id + 1),
            state: if lost { LinkState::Lost } else { LinkState::Up },
            rate_bytes_per_s: if lost { 0 } else { LINK_RATE - u64::from(id) * 3_000_000 },
            sent_bytes: self.sent[usize::from(id)],
            speed_mbps: 2500,
            channels: 1,
            retransmits: u64::from(id) * 37,
            rdma: false,
            rdma_port: None,
        }
    }

    fn moved(&mut self, guest: &str) {
        self.first_steps();
        self.begin(Step::Copy);
        let copy_began = self.at_us;
        self.round(0, POPULATED, Some(3 * GIB / 2));
        let first_pass_us = self.at_us - copy_began;
        self.round(1, 240 * MIB, None);
        let copy_us = self.at_us - copy_began;
        self.end(Step::Copy, copy_us);
        for (step, us) in [(Step::Blackout, 9_460), (Step::Commit, 1_020), (Step::CleanUp, 24_800)] {
            self.step(step, us);
        }
        let report = Box::new(self.report(guest, first_pass_us, copy_us));
        self.push(EventKind::Finished {
            outcome: MigrationOutcome::Completed,
            error: None,
            report: Some(report),
        });
    }

    fn report(&self, guest: &str, first_pass_us: u64, copy_us: u64) -> Report {
        let sent: u64 = self.sent.iter().sum();
        Report {
            id: MigrationId(super::ID.into()),
            guest: guest.into(),
            from: "alpha".into(),
            to: "beta".into(),
            mode: Mode::Direct,
            mode_reason: None,
            stream_channels: None,
            outcome: MigrationOutcome::Completed,
            total_us: self.at_us,
            steps: self.steps.clone(),
            rounds: vec![
                RoundTotals {
                    number: 0,
                    bytes: POPULATED,
                    duration_us: Some(first_pass_us),
                    dirty_bytes_after: Some(240 * MIB),
                },
                RoundTotals {
                    number: 1,
                    bytes: 240 * MIB,
                    duration_us: Some(copy_us - first_pass_us),
                    dirty_bytes_after: Some(2 * MIB),
                },
            ],
            ram: RamTotals {
                total_bytes: 8 * GIB,
                sent_bytes: sent,
                zero_bytes: 220 * MIB,
                hole_bytes: 4 * GIB,
            },
            disks: None,
            shared_by_assertion: Vec::new(),
            arrived_paused: false,
            goodput_bytes_per_s: sent * 1_000_000 / copy_us.max(1),
            links: (0..2u16).map(|id| self.link_totals(id)).collect(),
            cpu: CpuTime { source_agent_us: 2_410_000, destination_agent_us: 1_870_000 },
            blackout: Some(BlackoutSplit {
                total_us: 8_430,
                stop_us: 610,
                scan_us: 1_480,
                last_copy_us: 2_310,
                verify_us: 0,
                device_state_us: 2_870,
                journal_us: 390,
                resume_us: 420,
                qemu_downtime_us: Some(5000),
            }),
            pauses_us: 14_200,
            device_state_bytes: 312 << 10,
            verified: None,
            damaged_writes: 0,
        }
    }

    fn link_totals(&self, id: u16) -> LinkTotals {
        let link = self.link(id);
        LinkTotals {
            name: link.name,
            local: link.local,
            remote: link.remote,
            speed_mbps: link.speed_mbps,
            sent_bytes: link.sent_bytes,
            rate_bytes_per_s: LINK_RATE,
            lost_count: u32::from(id),
            retransmits: link.retransmits,
            rdma: false,
            fallback: None,
            failure: None,
            rdma_port: None,
        }
    }

    fn failed(&mut self, outcome: MigrationOutcome, error: ErrorBody) {
        self.push(EventKind::Finished { outcome, error: Some(Box::new(error)), report: None });
    }

    fn full(&mut self) {
        self.step(Step::Resolve, 310);
        self.step(Step::Authorise, 1_240);
        self.begin(Step::Admit);
        self.at_us += 900;
        let error = ErrorBody {
            step: Some(Step::Admit),
            side: Some(Side::Destination),
            retry_can_help: true,
            guest_state: Some(GuestState::RunsAtSource),
            ..ErrorBody::new(
                "memory_short",
                "the destination has too little free memory: 8.00 GiB needed, 3.20 GiB free",
            )
            .with_hint("free memory on beta, or choose another host")
        };
        self.failed(MigrationOutcome::Failed, error);
    }

    fn stuck(&mut self) {
        self.first_steps();
        self.step(Step::Copy, 2_000_000);
        self.step(Step::Blackout, 9_000);
        self.begin(Step::Commit);
        self.at_us += 30_000_000;
        self.in_doubt();
    }

    /// Figures come all the time.
    fn doubt(&mut self) {
        self.first_steps();
        self.step(Step::Copy, 1_000);
        self.step(Step::Blackout, 9_000);
        self.begin(Step::Commit);
        for _ in 0..600 {
            self.at_us += TICK_US;
            self.progress(1, 400 * MIB, 400 * MIB, LINK_RATE);
            if let Some(Event { kind: EventKind::Progress(progress), .. }) = self.events.last_mut() {
                progress.step = Step::Commit;
            }
        }
        self.in_doubt();
    }

    fn in_doubt(&mut self) {
        let error = ErrorBody {
            step: Some(Step::Commit),
            side: Some(Side::Source),
            retry_can_help: true,
            guest_state: Some(GuestState::InDoubt),
            ..ErrorBody::new(
                "peer_lost",
                "all links to the peer were lost for too long: no answer to the commit",
            )
            .with_hint(
                "bring beta or a link back; if beta will never come back, decide with `linerate resolve`",
            )
        };
        self.failed(MigrationOutcome::InDoubt, error);
    }

    fn long(&mut self) {
        self.first_steps();
        self.begin(Step::Copy);
        for round in 1..1000 {
            self.round(round, 400 * MIB, None);
        }
    }
}
