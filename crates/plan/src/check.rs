//! The promises, and the record of the first one broken.

use std::collections::BTreeSet;
use std::fmt;

use linerate_core::ModeTag;
use linerate_core::Time;

use crate::faults::Focus;

/// What every run is held to. The numbers are those of docs/simulator.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Property {
    /// Never two running guests.
    OneRuns,
    /// A guest runs at the destination only with the RAM that it had at the source when it stopped.
    SameRam,
    /// The source survives everything before commit: as before, and unprotected.
    SourceSurvives,
    /// No extent is in flight twice, and no older page lands on a newer one.
    NotTwice,
    /// Nothing is applied after the destination confirmed that a channel is fenced or RAM is sealed.
    SealedAndFenced,
    /// Every run ends, and is decided once the hosts can talk.
    Ends,
    /// After a failed run one without faults succeeds.
    RetrySucceeds,
    /// Holes cost nothing on the wire and stay holes.
    HolesStay,
    /// Without faults a guest that converges moves.
    FaultlessSucceeds,
    /// What the core says at the end is so.
    Truthful,
    /// What was set in a hypervisor of libvirt is put back.
    PutBack,
    /// The disk that ran is the disk that runs, and one process at a time uses it.
    DiskRuns,
    /// No record decides about a process that it does not name.
    OwnRecord,
    /// The source is given up only for a guest that was taken over.
    GivenUpForRunning,
    /// A complete guest exists somewhere, unless a host with the only copy died.
    NothingLost,
    /// A guest that an operator paused is not made to run.
    PausedStays,
    /// An operator who was told that a decision is done finds it so.
    DecisionKept,
}

impl Property {
    pub const ALL: [Property; 17] = [
        Property::OneRuns,
        Property::SameRam,
        Property::SourceSurvives,
        Property::NotTwice,
        Property::SealedAndFenced,
        Property::Ends,
        Property::RetrySucceeds,
        Property::HolesStay,
        Property::FaultlessSucceeds,
        Property::Truthful,
        Property::PutBack,
        Property::DiskRuns,
        Property::OwnRecord,
        Property::GivenUpForRunning,
        Property::NothingLost,
        Property::PausedStays,
        Property::DecisionKept,
    ];
}

/// A promise of the core that a run broke, and how.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The seed that shows it.
    pub seed: u64,
    /// How the guest moved.
    pub mode: ModeTag,
    /// It was one of several sessions.
    pub histories: bool,
    /// What went wrong most.
    pub focus: Focus,
    pub property: Property,
    pub what: String,
    /// When, in virtual time.
    pub at: Time,
    /// The last things that happened.
    pub trace: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        writeln!(f, "seed {}: {:?} broken at {:.6} s", self.seed, self.property, self.at.0 as f64 / 1e9)?;
        writeln!(f, "{}", self.what)?;
        let mode = match self.mode {
            ModeTag::Direct => "",
            ModeTag::Streams => " --streams",
            ModeTag::Handover => " --handover",
        };
        let histories = if self.histories { " --histories" } else { "" };
        let focus = self.focus;
        write!(
            f,
            "replay: cargo run -p linerate-plan --bin sim -- --seed {} --trace{mode}{histories}{focus}",
            self.seed
        )
    }
}

/// A defect put into the drivers on purpose, to see that the checks notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// The destination answers a fence and goes on applying (rule 3).
    FenceWithoutStopping,
    /// The destination reports with the fence only the damaged writes that it has not acknowledged (rule 4).
    FenceForgetsRefused,
    /// A scan clears now and then a mark that it does not report (rule 4).
    ScanForgets,
    /// The source resumes when the answer to commit is late, or when its agent starts again (rule 1).
    ResumeAfterCommit,
    /// The source takes *not decided yet* for *given up* (rule 1).
    ResumeOnPending,
    /// The destination runs the guest before the journal has it (rule 1).
    RunBeforeJournaled,
    /// The destination does not report what its hypervisor wrote while it started (rule 5).
    TouchedForgotten,
    /// A late copy of a write is applied although RAM is sealed (rule 5).
    WriteAfterSeal,
    /// Holes are written as pages of zeros (rule 7).
    FillHoles,
    /// Roll-back leaves the guest as it is (rule 2).
    RollBackForgetsGuest,
    /// Roll-back leaves the write protection on (rule 2).
    RollBackKeepsProtection,
    /// Discarding leaves the incoming QEMU.
    DiscardLeavesGuest,
    /// The destination says that the hypervisor has taken its streams before it has.
    LoadedTooEarly,
    /// The stream of libvirt's hypervisor is not held (rule 5).
    GateOpen,
    /// The source lets a guest of libvirt run when it rolls back (rule 1).
    RunsAnothersGuest,
    /// The source leaves what it set in libvirt's hypervisor.
    SourceKeepsSetting,
    DestinationKeepsSetting,
    /// The tracker takes a page whose entry in the page table is empty for one that was not written.
    EmptiedMissed,
    /// What the hypervisor wrote to RAM with its device state is not looked for.
    NotScannedAgain,
    /// The disks of the two sides are not compared.
    GraphNotCompared,
    /// They are compared by their names.
    StaleDiskTaken,
    /// Recovery acts on whatever process has the guest's name.
    RecoverByName,
    /// Of two records the one with the later clock decides.
    OrderByClock,
    /// An end that the disk does not take is not written again.
    EndWrittenOnce,
    /// Every start of an agent lets a committed guest run.
    RunOnEveryStart,
    /// The destination says that it has the guest before it runs.
    CommittedBeforeItRuns,
    /// A roll-back that failed is written as done.
    RollBackWrittenAnyway,
    /// Who asks for the outcome does not say commit once more.
    CommitNotRepeated,
    /// A loaded guest whose source does not answer is given up after a while.
    LoadedGivenUp,
    /// A roll-back that no abort could report has no notice either.
    NeverNotified,
    /// Recovery closes the record of a setting that libvirt's hypervisor has not taken back.
    SettingClosedAnyway,
    /// Recovery asks the source's libvirt alone where a domain is.
    DestinationNotAsked,
    /// An operator is told that a decision is done while it waits.
    DecisionReportedEarly,
    /// The record of an operator's decision to run the guest is kept in memory only.
    DecisionNotWritten,
    /// Recovery resumes the guest without asking whether it runs at the destination.
    ResumedUnasked,
    /// A roll-back notice that was not answered is repeated after a minute.
    NoticeSeldom,
    /// A destination whose hypervisor has the disks of a paused guest is not notified before that guest is back.
    DisksNotReleased,
}

impl Mutation {
    pub const ALL: [Mutation; 37] = [
        Mutation::FenceWithoutStopping,
        Mutation::FenceForgetsRefused,
        Mutation::ScanForgets,
        Mutation::ResumeAfterCommit,
        Mutation::ResumeOnPending,
        Mutation::RunBeforeJournaled,
        Mutation::TouchedForgotten,
        Mutation::WriteAfterSeal,
        Mutation::FillHoles,
        Mutation::RollBackForgetsGuest,
        Mutation::RollBackKeepsProtection,
        Mutation::DiscardLeavesGuest,
        Mutation::LoadedTooEarly,
        Mutation::GateOpen,
        Mutation::RunsAnothersGuest,
        Mutation::SourceKeepsSetting,
        Mutation::DestinationKeepsSetting,
        Mutation::EmptiedMissed,
        Mutation::NotScannedAgain,
        Mutation::GraphNotCompared,
        Mutation::StaleDiskTaken,
        Mutation::RecoverByName,
        Mutation::OrderByClock,
        Mutation::EndWrittenOnce,
        Mutation::RunOnEveryStart,
        Mutation::CommittedBeforeItRuns,
        Mutation::RollBackWrittenAnyway,
        Mutation::CommitNotRepeated,
        Mutation::LoadedGivenUp,
        Mutation::NeverNotified,
        Mutation::SettingClosedAnyway,
        Mutation::DestinationNotAsked,
        Mutation::DecisionReportedEarly,
        Mutation::DecisionNotWritten,
        Mutation::ResumedUnasked,
        Mutation::NoticeSeldom,
        Mutation::DisksNotReleased,
    ];
}

/// How a run is made.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// A defect in the drivers.
    pub mutation: Option<Mutation>,
    /// Hold the run to this promise alone.
    pub only: Option<Property>,
    /// No fault is injected.
    pub faultless: bool,
    /// How the guest moves.
    pub mode: ModeTag,
    /// Several sessions, there and back.
    pub histories: bool,
    /// What goes wrong most.
    pub focus: Focus,
    /// Keep the last lines of what happened.
    pub trace: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            mutation: None,
            only: None,
            faultless: false,
            mode: ModeTag::Direct,
            histories: false,
            focus: Focus::default(),
            trace: false,
        }
    }
}

/// A decision that an agent has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    pub host: usize,
    pub session: u64,
    /// The guest is to run on this host (`--resume-here`); otherwise its copy there is given up (`--give-up`).
    pub here: bool,
    /// The session in progress took it; otherwise recovery.
    pub is_live: bool,
    pub since: Time,
    /// The copy on this host, if it was alive.
    pub pid: Option<u64>,
}

/// What `linerate resolve` ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The decision is carried out (exit code 0).
    Done,
    /// It is not known yet whether it is followed (exit code 8).
    Waits,
    Refused,
    /// It is decided, and the guest's process has ended.
    GuestGone,
}

impl Answer {
    /// In the order of the variants.
    pub const NAMES: [&'static str; 4] = ["done", "waits", "refused", "guest gone"];
}

/// The watcher: what it knows by its own eyes.
#[derive(Debug, Default)]
pub struct Check {
    /// The first broken promise.
    pub broken: Option<(Property, String)>,
    /// Hold the run to this alone.
    pub only: Option<Property>,
    /// Channels whose fence the destination has confirmed.
    pub reported_fenced: BTreeSet<u32>,
    /// The destination has confirmed that RAM is sealed.
    pub reported_sealed: bool,
    /// Sessions of which a destination has said that it has the guest.
    pub taken_over: BTreeSet<u64>,
    /// Sessions that an operator decided at the source.
    pub resolved: BTreeSet<u64>,
    /// Sessions whose guest an operator has let run at the destination: the operator answers for the source's copy.
    pub run_there: BTreeSet<u64>,
    /// Sessions whose guest an operator has given up at the destination, where it may have run.
    pub given_up_there: BTreeSet<u64>,
    /// Processes that had the guest when they died, and when: messages about them may still be in flight.
    pub died: std::collections::BTreeMap<u64, Time>,
    /// A process of the guest has ended by itself or with its host, ever.
    pub lost: bool,
    /// Processes that were given up for another host's.
    pub moved_on: BTreeSet<u64>,
    /// Every decision that an agent has taken and that is not known to be void.
    pub decisions: Vec<Decision>,
    /// Those of which an operator was told that they are done.
    pub told: Vec<Decision>,
    /// Processes that an operator has paused, and not let run since.
    pub paused: BTreeSet<u64>,
    /// Sessions over which two operators decided, each by what their own host shows.
    pub pairs: BTreeSet<u64>,
    /// Both processes of sessions whose source one of two operators has resumed without the destination's answer.
    pub unanswered: BTreeSet<u64>,
    /// Two operators have let two copies run: nothing more is promised.
    pub is_split: bool,
}

impl Check {
    /// A promise is kept if `holds`.
    pub fn that(&mut self, holds: bool, property: Property, what: impl FnOnce() -> String) {
        let counts = self.only.is_none_or(|only| only == property);
        if !holds && counts && self.broken.is_none() {
            self.broken = Some((property, what()));
        }
    }
}
