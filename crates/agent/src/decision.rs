//! Whether an operator's decision over a session in doubt is taken, and what is said while it is not carried out. A
//! live session and recovery ask the same.

use std::time::Duration;

use crate::ran_here::RanHere;

/// An operator who decides is answered within this. A source asks the other host once more before a decision counts. A
/// destination hears its source for 20 s. Then the decision is written and carried out.
pub(crate) const DECISION_WAIT: Duration = Duration::from_secs(25);

/// Why nothing is decided. Each text is the end of a sentence about the migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotDecided {
    /// Its state machine does not wait for an operator.
    #[error("is not in doubt")]
    NotInDoubt,
    /// It may be in doubt in a moment: whether its guest runs here is not known yet, or recovery is about to have it.
    #[error(
        "is being looked at, so nothing was decided: the agent finds out whether the guest runs here, or lets it run, and has no answer yet. Try again in a moment. A QEMU that is stopped or hangs on this host does not answer: then see to that first"
    )]
    LookedAt,
    /// Another operator has decided, and that is not carried out yet.
    #[error(
        "has the opposite decision pending, so this one was refused. The pending decision waits for the other host's answer, for the disk or for QEMU; until then the guest is paused here. `linerate migration list` shows the result. If the pending decision is not followed, decide again"
    )]
    OppositeWaits,
    /// At a source: it cannot be resumed here.
    #[error(
        "cannot be resumed here: the guest's QEMU on this host has ended. What the destination has may be the only copy. It is asked every second, and runs the guest if it has it. If it cannot be reached, decide there (`linerate resolve ID --resume-here`). `--give-up` here ends the questions: use it only if the guest is not needed any more"
    )]
    QemuEndedAtSource,
    /// The same, and the destination is not asked: the guest ran or may have run at the source after commit.
    #[error(
        "cannot be resumed here: the guest's QEMU on this host has ended. The guest ran or may have run here after commit, so the destination is not asked any more. What it has may be the only copy: decide there. If the guest did not run here: `linerate resolve ID --resume-here`. If it did, that copy is older than the guest's disks: `--give-up`, and start the guest from its disks. Then `--give-up` here, which ends this session"
    )]
    QemuEndedNotAsked,
    /// At a destination that the guest waits at: it cannot be run here.
    #[error(
        "cannot be resumed here: the guest's QEMU on this host has ended, and the guest never ran here. What is left of it here is removed, and the source is answered that it was given up here. A source that has the guest paused resumes it then: see `linerate migration list` there"
    )]
    QemuEnded,
    /// At a destination that has the guest complete, or holds it: its source has just said that it runs its own copy,
    /// or is about to.
    #[error(
        "is not resumed here: the source runs the guest, or is about to resume it. Its agent has said so within the last 20 s. Both copies would run. `linerate migration list` at the source shows what it waits for. If its QEMU there hangs, end that QEMU by its pid, and decide again after that time"
    )]
    SourceResumes,
    /// At a destination that has the guest complete, or holds it, and whose agent has just started.
    #[error(
        "is not resumed here yet: the agent here has started less than 20 s ago. Before that the source may have resumed the guest, or asked whether it may, and both copies would run. Decide again after that time"
    )]
    JustStarted,
    /// At a destination that holds the guest: the source lets its own copy run.
    #[error(
        "was rolled back: the guest runs at the source, and the copy here is paused; end that with `linerate resolve ID --give-up`"
    )]
    RolledBack,
    /// At a destination that holds the guest: no source has reported a copy lately.
    #[error(
        "is not given up: the guest is paused here and may have run here, and its source has not confirmed in the last seconds that it still has its copy, so this copy may be the only one. It stays paused. Let it run (`linerate resolve ID --resume-here`); it can be stopped then. Or start the source's agent, wait until it has asked this host, and decide again. If you know that another copy runs, end the QEMU here by its pid (`linerate vm show`)"
    )]
    MayBeOnlyCopy,
}

/// Whether a decision may be given to the state machine of a session. `takes`: no other decision waits there.
pub(crate) fn check_decision(is_in_doubt: bool, takes: bool) -> Result<(), NotDecided> {
    match (is_in_doubt, takes) {
        (false, _) => Err(NotDecided::NotInDoubt),
        (true, false) => Err(NotDecided::OppositeWaits),
        (true, true) => Ok(()),
    }
}

/// Whether a decision at a source can be carried out. `is_alive`: the guest's QEMU. Without one, whatever the guest did
/// here after commit, the destination would give the only copy up, and nothing would be resumed.
pub(crate) fn check_resumable(
    resume_here: bool,
    is_alive: bool,
    ran_here: RanHere,
) -> Result<(), NotDecided> {
    match (resume_here, is_alive, ran_here) {
        (true, false, RanHere::No) => Err(NotDecided::QemuEndedAtSource),
        (true, false, RanHere::Maybe | RanHere::Yes) => Err(NotDecided::QemuEndedNotAsked),
        _ => Ok(()),
    }
}

/// What follows at a destination from a decision that is not carried out yet: `true` runs the guest here.
pub(crate) fn describe_decision(run: bool) -> &'static str {
    if run {
        "it was decided that the guest is to run here; QEMU has not confirmed that it runs. A guest that waits for its source runs 20 s after the decision: a source that has its guest says so in this time. The agent tries until QEMU confirms it, or until the source has the guest back. If the agent restarts before that and the guest is in doubt again, decide again"
    } else {
        "it was decided that the guest is given up here; its QEMU has not ended yet, and the agent tries until it has. If the agent restarts before that and the guest is in doubt again, decide again"
    }
}

/// What an operator reads at a destination whose QEMU has not confirmed that the committed guest runs.
pub(crate) const COMMITTED: &str = "the guest was committed to this host, and its QEMU here has not confirmed yet that it runs; it is asked until it does. Look at that QEMU, on this host (`linerate vm show`): is it stopped, does it hang, or does another client hold its monitor? The source only waits for it, and nothing can be decided there";

/// The same of one whose agent has just started, and that never ran here.
pub(crate) const HEARS: &str = "the guest was committed to this host and never ran here. The agent here has started since, and the source may have its guest back: it is heard first. The guest runs here as soon as its source says that it waits for this host, or when the source has said nothing for 20 s. It does not run here while the source says that it has its own copy: look there (`linerate migration list`). If that copy is the one to keep, `linerate resolve ID --give-up` here gives this one back";

/// The same of a guest that waited for its source's decision, and whose QEMU has ended.
pub(crate) const HELD_ENDED: &str = "the guest's QEMU on this host has ended, and the guest never ran here. The source is answered that it was given up here when it asks, and resumes its own copy if it has one: look there (`linerate migration list`). If the source is lost, `linerate resolve ID --give-up` removes what is left here";
