//! The source's state machine.
//!
//! ```mermaid
//! stateDiagram-v2
//!   [*] --> Offered: Start / Send Offer
//!   Offered --> Preparing: Admitted / Prepare, open links, attach
//!   Preparing --> Protecting: Attached + a channel
//!   Preparing --> Ready: the same and Prepared, if the copy is held
//!   Ready --> Preparing: Go
//!   Protecting --> Copying: Protected / round 0
//!   Copying --> Scanning: drained, and Prepared has come
//!   Preparing --> Streaming: StreamsPrepared + a channel / begin the hypervisor's streams
//!   Streaming --> Loading: the hypervisor holds, guest stopped / let it go on
//!   Scanning --> Copying: Scanned, another round
//!   Scanning --> Switching: Scanned, it fits / ask QEMU
//!   Switching --> WritingDevices: pre-switchover, guest stopped / let QEMU write its device state
//!   Switching --> LastScan: the same, in mode Handover
//!   WritingDevices --> LastScan: written
//!   LastScan --> LastCopy: Scanned, and the last round has arrived
//!   LastCopy --> Sealing: drained / RamComplete (after the digest, with verification)
//!   Sealing --> Loading: RamSealed
//!   Sealing --> AwaitingOwner: RamSealed, in mode Handover / release libvirt's stream
//!   AwaitingOwner --> CleaningUp: the guest has left
//!   Loading --> Journaling: Loaded + QEMU completed / journal CommitSent
//!   Journaling --> Committing: Journaled / Send Commit
//!   Committing --> CleaningUp: TakenOver, or the journal over there says so
//!   CleaningUp --> CleaningUp: it failed / again
//!   CleaningUp --> RollingBack: an operator gives the guest up here, and the destination has given it up
//!   CleaningUp --> Closing: the guest's QEMU here has ended / journal Finished, Finished
//!   Closing --> [*]: acknowledged and LastLook has come, or not waited for any longer
//!   Offered --> RollingBack: any fault before commit
//!   RollingBack --> [*]: the guest runs at the source
//!   Committing --> RollingBack: only if the destination says that it never ran the guest and never will
//! ```
//!
//! The first pass does not wait for the destination's hypervisor: it fills the RAM that was made when the guest was
//! admitted while the incoming QEMU still starts. `Prepared` names what that hypervisor may have written meanwhile,
//! which is copied again in the next round. Nothing is scanned, and the guest not stopped, before it has come.
//!
//! In [`crate::Mode::Streams`] the states from Protecting to Sealing are one, Streaming. [`crate::stream::Streams`]
//! orders the bytes; its messages go through the control stream here ([`Event::SendStreamMessage`],
//! [`Action::DeliverStreamMessage`]). Everything from the guest's stop on is the same.
//!
//! In [`crate::Mode::Handover`] libvirt decides which hypervisor runs the guest, and there is no commit. Until RAM is
//! sealed nothing differs, and libvirt's stream is held back. Then it is released, and only libvirt's decision ends the
//! session: no lost link, no fault of the other agent and no operator changes anything in AwaitingOwner. If libvirt
//! resumes the guest here, or never decides, the agent rolls back its own settings and leaves the guest as it is.
//!
//! The guarantee: if it ends with a fault, the guest runs at the source as before, or is still paused there if it was
//! paused before. The fault says so in words where that does not hold. From [`Action::Journal`] of
//! [`SourcePhase::CommitSent`] on it never resumes by itself (rule 1). Between [`Event::CommitWritten`] and
//! [`Event::Journaled`] a fault still rolls back. A later agent would commit what the disk says then, so
//! [`SourcePhase::ResumingHere`] is put on disk first, and tried until it is there.
//!
//! The driver calls [`Source::handle`] with events, then [`Source::poll_action`] until it gives none, and
//! [`Source::next_work`] and its fellows from the channels.

mod blackout;
#[cfg(test)]
mod disk_tests;
mod disks;
mod ending;
mod interface;
mod prepare;
mod rounds;
mod state;
#[cfg(test)]
mod stream_tests;
mod streams;
#[cfg(test)]
mod tests;
mod timers;

pub use interface::{Action, Config, Ending, Event};
pub use rounds::SWITCH_COST;

use std::time::Duration;

use crate::control::Control;
use crate::journal::{Decided, SourcePhase};
use crate::operator_decision::{GivingUp, OperatorDecision};
use crate::policy::Policy;
use crate::scheduler::{Next, Scheduler};
use crate::statistics::Statistics;
use crate::{
    ChannelId, Code, Fault, LastLook, LinkId, Message, ModeTag, PathId, Side, Step, StreamNote,
    StreamSettings, Time,
};
use prepare::Preparation;
use state::State;

/// Pieces of the hypervisor's stream in flight at a time while the guest runs: 1 MiB, some milliseconds at 1 Gb/s.
const LIVE_PIECES_MAX: usize = 4;

/// No host goes through a guest's RAM slower than this, page by page: it protects it, or ends a process that has it.
const RAM_BYTES_PER_S_MIN: u64 = 8 << 30;

/// The source's state machine; the module's page has its diagram.
#[derive(Debug)]
pub struct Source {
    config: Config,
    state: State,
    control: Control,
    scheduler: Scheduler,
    policy: Policy,
    statistics: Statistics,
    actions: std::collections::VecDeque<Action>,
    step: Step,
    step_deadline: Option<Time>,
    preparation: Preparation,
    /// The copy waits until it is told to begin.
    holds: bool,
    /// How the hypervisors' streams are set, once that is known.
    streams: Option<StreamSettings>,
    /// The destination's end of one of those streams has gone.
    peer_hung_up: bool,
    /// The pass over copied disks that is in progress.
    disk_pass: Option<disks::DiskPass>,
    /// Nothing of the disks has moved since then, as what is in use of them is looked for.
    disks_searched_since: Option<Time>,
    /// Rounds of the hypervisor's streams that went by while disks kept it from its end.
    rounds_held: u32,
    round: u32,
    last_scan_at: Time,
    last_scan_took: Duration,
    scan_at: Option<Time>,
    count_at: Option<Time>,
    counted_at: Time,
    no_channel_since: Option<Time>,
    last_progress: Time,
    /// The guest ran until QEMU stopped it.
    was_running: bool,
    /// The destination may have the guest complete; then it keeps it until it is notified that it is not wanted.
    may_be_loaded: bool,
    /// The hypervisor here ended while the destination may have had the guest complete.
    source_copy_lost: bool,
    /// The disk says that commit was sent, and nothing was sent yet.
    commit_written: bool,
    /// The operator has decided that the guest stays; acted on when it is on disk.
    resuming: bool,
    /// The last [`Action::Query`] said that there is no copy here any more.
    query_gives_up: bool,
    /// An [`Action::Query`] is in progress.
    querying: bool,
    /// The operator's decision. It waits while a question is in progress, and until it is on disk, or the copy that is
    /// given up has ended.
    operator_decision: OperatorDecision,
    giving_up: GivingUp,
    /// The operator ended the copy here, and the destination has not said that it runs the guest.
    given_up: bool,
    /// When it was last to be asked about, the guest ran here after commit, or may have run.
    ran_here: bool,
    /// What has to be done is not, and is left to recovery.
    unfinished: bool,
    /// The destination has said that it has taken the guest over, and says next whether that has stopped since.
    awaits_look: bool,
    last_look: Option<LastLook>,
}

impl Source {
    /// A source that waits for [`Event::Start`].
    pub fn new(config: Config) -> Source {
        Source {
            state: State::Idle,
            control: Control::default(),
            scheduler: Scheduler::new(config.scheduler.clone()),
            policy: Policy::new(config.limits.clone()),
            statistics: Statistics::default(),
            actions: Default::default(),
            step: Step::Resolve,
            step_deadline: None,
            preparation: Preparation::NotBegun,
            holds: config.hold,
            streams: None,
            peer_hung_up: false,
            disk_pass: None,
            disks_searched_since: None,
            rounds_held: 0,
            round: 0,
            last_scan_at: Time::ZERO,
            last_scan_took: Duration::ZERO,
            scan_at: None,
            count_at: None,
            counted_at: Time::ZERO,
            no_channel_since: None,
            last_progress: Time::ZERO,
            was_running: true,
            may_be_loaded: false,
            source_copy_lost: false,
            commit_written: false,
            resuming: false,
            querying: false,
            query_gives_up: false,
            operator_decision: OperatorDecision::default(),
            giving_up: GivingUp::default(),
            given_up: false,
            ran_here: false,
            unfinished: false,
            awaits_look: false,
            last_look: None,
            config,
        }
    }

    /// Takes one event; the actions that follow are queued for the driver.
    pub fn handle(&mut self, now: Time, event: Event) {
        match event {
            Event::Start => self.start(now),
            Event::PathUp(path) => self.control.path_up(now, path),
            Event::PathLost(path) => self.control.path_lost(now, path),
            Event::PathAlive(path) => self.control.note_activity(now, path),
            Event::ControlAcknowledged { path, through } => self.control.acknowledged(now, path, through),
            Event::Received { path, sequence, message } => self.received(now, path, sequence, message),
            Event::ChannelUp { channel, link } => self.channel_up(now, channel, link),
            Event::Cancel => self.cancel(now),
            Event::Go => self.go(now),
            Event::Failed(fault) => self.action_failed(now, fault),
            Event::StreamsFailed(fault) => self.fail(now, fault),
            Event::RolledBack { guest, complete } => self.rolled_back(now, guest, complete),
            Event::Answered(outcome) => self.was_asked(now, Some(outcome)),
            Event::Unanswered => self.was_asked(now, None),
            Event::RanHere => self.ran_here(now),
            Event::Forgotten => self.forgotten(now),
            Event::Resolve(resume) => self.resolve(now, resume),
            Event::SendStreamMessage(message) => self.send_stream_message(now, message),
            Event::Streamed(streamed) => self.streamed(now, streamed),
            Event::Disks(disks) => self.disks_copied(now, disks),
            Event::Counted { bytes, took } => self.counted(now, bytes, took),
            Event::CommitWritten => self.commit_written(),
            Event::Tick => {}
            event => self.driver_event(now, event),
        }
        self.check_timers(now);
    }

    /// The next thing to do. Call until it gives `None` after each [`Source::handle`] and each change by a channel.
    pub fn poll_action(&mut self, now: Time) -> Option<Action> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        self.control.poll_outgoing(now).map(|(path, outgoing)| Action::Transmit(path, outgoing))
    }

    /// Whether a channel's call left something to do, so that the driver should poll now and not at the next event.
    pub fn wants_attention(&self) -> bool {
        !self.actions.is_empty() || self.control.has_outgoing() || self.scan_at.is_some()
    }

    fn start(&mut self, now: Time) {
        if self.state != State::Idle {
            return;
        }
        self.statistics.started = now;
        self.last_progress = now;
        for step in [Step::Resolve, Step::Authorise] {
            self.statistics.end(now, step);
        }
        self.enter_step(now, Step::Admit, self.config.step_timeout);
        self.actions.push_back(Action::Journal(SourcePhase::Started));
        self.state = State::Offered;
        let offer = Message::Offer {
            guest: self.config.guest.clone(),
            description: self.config.description.clone(),
            mode: Ok(self.config.mode.clone()),
        };
        self.control.send(now, offer);
    }

    fn enter_step(&mut self, now: Time, step: Step, limit: Duration) {
        self.step = step;
        self.statistics.begin(now, step);
        self.step_deadline = Some(now + limit);
    }

    /// How much longer a step may take that goes through all RAM; nothing for a small guest.
    fn ram_allowance(&self) -> Duration {
        let bytes: u64 = self.config.mode.regions().iter().map(|region| region.size).sum();
        Duration::from_secs(bytes / RAM_BYTES_PER_S_MIN)
    }

    fn received(&mut self, now: Time, path: PathId, sequence: u64, message: Message) {
        if !self.control.received(now, path, sequence, message) {
            self.violation(now, "a control message far ahead of its turn");
        }
        while let Some(message) = self.control.poll_delivered() {
            self.message(now, message);
        }
    }

    fn message(&mut self, now: Time, message: Message) {
        match (&self.state, message) {
            (State::RollingBack(_) | State::Ended, message) => self.message_while_ending(now, message),
            (_, Message::Fenced { channel, applied, damaged }) => {
                self.scheduler.fenced(now, channel, applied, &damaged);
                self.progress(now);
                if self.carries_streams() {
                    let fenced = Message::Fenced { channel, applied, damaged };
                    self.actions.push_back(Action::DeliverStreamMessage(fenced));
                }
            }
            (_, message @ (Message::Stream { .. } | Message::Fence { .. })) if self.carries_streams() => {
                self.peer_hung_up |= matches!(
                    message,
                    Message::Stream {
                        note: StreamNote::End { .. } | StreamNote::Reset | StreamNote::Stop,
                        ..
                    }
                );
                self.actions.push_back(Action::DeliverStreamMessage(message));
            }
            (_, Message::Abort(fault)) => self.peer_aborted(now, fault),
            (State::Offered, Message::Admitted { endpoints }) => self.admitted(now, endpoints),
            (
                State::Preparing { .. } | State::Protecting | State::Copying { .. },
                Message::Prepared { regions, touched },
            ) if matches!(self.preparation, Preparation::InProgress { .. }) && !self.carries_streams() => {
                self.prepared(now, &regions, touched);
            }
            (State::Preparing { .. }, Message::StreamsPrepared(settings)) if self.may_be_set(settings) => {
                self.streams_prepared(now, settings);
            }
            (State::Sealing, Message::RamSealed) => self.sealed(now),
            (State::Loading { .. }, Message::Loaded) => self.loaded(now),
            (State::Committing { .. }, Message::TakenOver { resume_us, cpu_us }) => {
                self.statistics.blackout.resume = Duration::from_micros(resume_us);
                self.statistics.destination_cpu = Duration::from_micros(cpu_us);
                self.awaits_look = true;
                self.running(now);
            }
            (State::CleaningUp { .. } | State::Closing { .. }, Message::TakenOver { .. }) => {
                (self.given_up, self.awaits_look) = (false, true);
            }
            (State::CleaningUp { .. } | State::Closing { .. }, Message::LastLook(seen)) => {
                (self.awaits_look, self.last_look) = (false, Some(seen));
            }
            (_, message) => self.violation(now, message.name()),
        }
    }

    fn violation(&mut self, now: Time, what: &str) {
        let detail = format!("the destination sent {what} while the source was {}", self.state.name());
        self.fail(now, Fault::new(Code::ProtocolViolation, self.step, Side::Destination, detail));
    }

    /// Events that belong to one state; elsewhere they come late (a roll-back has begun) or are a defect of the driver.
    fn driver_event(&mut self, now: Time, event: Event) {
        match (&mut self.state, event) {
            (State::RollingBack(_), Event::Journaled(SourcePhase::ResumingHere)) => self.roll_back_written(),
            (State::RollingBack(_) | State::Ended | State::Closing { .. }, _) => {}
            (State::Preparing { ready }, Event::Attached) if !self.config.mode.tag().carries_streams() => {
                *ready = true;
                self.copy_when_ready(now);
            }
            (State::Protecting, Event::Protected { populated, paused }) => {
                self.protected(now, populated, paused)
            }
            (State::Scanning, Event::Scanned { dirty, took, paused, last_adds }) => {
                self.statistics.pauses += paused;
                self.scanned(now, dirty, took, last_adds)
            }
            (State::Streaming { .. } | State::Switching { .. }, Event::GuestStopped) => {
                self.guest_stopped(now)
            }
            (State::Streaming { .. }, Event::PreSwitchover { was_running, disks }) => {
                self.streams_pre_switchover(now, was_running, disks)
            }
            (State::Switching { .. }, Event::PreSwitchover { was_running, disks }) => {
                self.pre_switchover(now, was_running, disks)
            }
            (State::LastScan { .. }, Event::Scanned { dirty, .. }) => self.last_scanned(now, dirty),
            (State::Digesting, Event::Digested(digest)) => self.seal(now, Some(digest)),
            (State::Switching { .. } | State::WritingDevices, Event::DeviceState(bytes)) => {
                self.device_state(now, bytes)
            }
            (State::WritingDevices | State::Loading { .. }, Event::DeviceStateDone) => {
                self.device_state_done(now)
            }
            (State::AwaitingOwner, Event::GuestLeft) => self.guest_left(now),
            (State::Journaling, Event::Journaled(SourcePhase::CommitSent)) => self.commit(now),
            (State::Committing { .. }, Event::Journaled(SourcePhase::ResumingHere)) => self.resume_here(now),
            (_, Event::Journaled(_)) => {}
            (State::CleaningUp { .. }, Event::CleanedUp) => self.cleaned_up(now),
            (state, event) => {
                let detail = format!("{} while {}", event.name(), state.name());
                self.fail(now, Fault::new(Code::Internal, self.step, Side::Source, detail));
            }
        }
    }

    // ---- channels ----

    /// What the channel is to do next.
    pub fn next_work(&mut self, now: Time, channel: ChannelId) -> Next {
        self.scheduler.next(now, channel)
    }

    /// The channel gave a write to its transport; `wire_bytes` is what it cost.
    pub fn work_sent(&mut self, channel: ChannelId, sequence: u64, wire_bytes: u64) {
        self.scheduler.sent(channel, sequence, wire_bytes);
    }

    /// The destination applied everything on the channel up to `through`, except `damaged`.
    pub fn acknowledged(&mut self, now: Time, channel: ChannelId, through: u64, damaged: &[u64]) {
        let before = self.scheduler.acknowledged_bytes();
        self.scheduler.acknowledged(now, channel, through, damaged);
        if self.scheduler.acknowledged_bytes() != before {
            self.last_progress = now;
        }
        self.progress(now);
    }

    /// The channel is lost: the destination is asked to fence it.
    pub fn channel_lost(&mut self, now: Time, channel: ChannelId) {
        if !self.scheduler.lost(channel) {
            return;
        }
        if self.scheduler.active_channels() == 0 {
            self.no_channel_since.get_or_insert(now);
        }
        self.control.send(now, Message::Fence { channel });
    }

    /// All of a link is lost.
    pub fn link_lost(&mut self, now: Time, link: LinkId) {
        for channel in self.scheduler.channels_of(link) {
            self.channel_lost(now, channel);
        }
    }

    // ---- views ----

    /// The scheduler, to look at.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Where the time went.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// How the guest moves.
    pub fn mode(&self) -> ModeTag {
        self.config.mode.tag()
    }

    /// What may be asked of the migration.
    pub fn limits(&self) -> &crate::policy::Limits {
        self.policy.limits()
    }

    /// The step that is in progress.
    pub fn step(&self) -> Step {
        self.step
    }

    /// Number of the round in progress.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// Parallel channels of the hypervisor's streams; none in direct mode and before that is known.
    pub fn stream_channels(&self) -> Option<u16> {
        self.streams.map(|settings| settings.channels)
    }

    /// Percent by which the guest is slowed down.
    pub fn throttle_percent(&self) -> u8 {
        self.policy.throttle_percent().max(self.statistics.streamed.throttle_percent)
    }

    /// Commit was sent and the answer is missing for so long that the operator should know. A decision to resume here
    /// that is not on disk yet changes nothing of that: a full disk may keep it from being carried out.
    pub fn is_in_doubt(&self) -> bool {
        matches!(self.state, State::Committing { in_doubt: true, .. })
    }

    /// Commit was sent: only the destination or an operator decides.
    fn is_open(&self) -> bool {
        matches!(self.state, State::Committing { .. })
    }

    /// Whether the operator may decide so: while one decision waits, no other is taken.
    pub fn takes(&self, resume_here: bool) -> bool {
        self.is_open() && self.operator_decision.takes(resume_here)
    }

    /// The guest ran until it was stopped.
    pub fn was_running(&self) -> bool {
        self.was_running
    }

    /// What became of the operator's last decision; none before there is one.
    pub fn decided(&self) -> Option<Decided> {
        self.operator_decision.decided()
    }

    /// What became of the operator's decision for `resume_here`.
    pub fn decided_for(&self, resume_here: bool) -> Decided {
        self.operator_decision.decided_for(resume_here)
    }

    /// The guest is the destination's: links have nothing to carry any more but the last word.
    pub fn is_leaving(&self) -> bool {
        matches!(self.state, State::CleaningUp { .. } | State::Closing { .. } | State::Ended)
    }

    /// The guest stays: links are closed, and none is missed.
    pub fn is_rolling_back(&self) -> bool {
        matches!(self.state, State::RollingBack(_))
    }

    /// Whether it is over.
    pub fn is_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Whether the source may still resume the guest by itself.
    pub fn can_resume(&self) -> bool {
        !matches!(
            self.state,
            State::Committing { .. } | State::CleaningUp { .. } | State::Closing { .. } | State::Ended
        )
    }

    /// Number of control connections that are up.
    pub fn paths(&self) -> usize {
        self.control.paths()
    }

    /// Whether the hypervisor's stream is not to be read on for now. While the guest still runs it carries what the
    /// hypervisor has of RAM itself, a display adapter's memory: read no faster than the destination takes it, it is
    /// over there when the guest stops. Once the guest is stopped nothing is held back.
    pub fn pauses_stream(&self) -> bool {
        matches!(self.state, State::Switching { .. }) && self.control.unacknowledged() >= LIVE_PIECES_MAX
    }
}
