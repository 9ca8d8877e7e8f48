//! Executes the source's recovery.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use linerate_core::journal::{Decided, DestinationPhase, SourcePhase};
use linerate_core::recovery::{
    Entry, Look, NoticeStep, Phase, SourceAction, SourceEvent, SourceRecovery, notice_step,
};
use linerate_core::{GuestState, Outcome, SessionId};
use linerate_guest::leftover_ram::LeftoverRam;
use linerate_guest::migrate::{PauseMark, SourceQemu};
use linerate_guest::process::{self, StopMethod};
use linerate_guest::registry::GuestRecord;
use linerate_guest::vcpu_time::VcpuTime;

use super::{
    Machine, QMP_WAIT, Sessions, Unfinished, is_alive, is_registered, notify_destination, remove_sockets,
    set_notice_due,
};
use crate::both_hosts;
use crate::faults::chain;
use crate::journal::{Journal, Record, Role, parse_token};
use crate::ran_here::{self, RanHere, Sighting};
use crate::security::PeerName;
use crate::session::contact::{
    NoAnswer, ask_any, ask_before_resuming, ask_while_waiting, commit_any, notify_rolled_back,
};
use crate::session::identity::Identity;

/// A monitor that another client holds is not waited for.
const CONNECT_WAIT: Duration = Duration::from_secs(1);

/// What an operator reads whose decision does not count yet.
pub(crate) const WAITS: &str = "your decision waits: the destination is asked once more, for up to 10 s if it has the guest. Then the decision is written to disk, or QEMU is ended. The guest is paused here until then. Do not decide at the other host meanwhile. If the agent here restarts before, the decision is forgotten: decide again";
/// And one whose decision was not followed.
pub(crate) const VOID: &str = "the destination holds the guest, so your decision was not followed; decide there \
    (`linerate resolve`). The guest is paused here until the destination answers whether it runs there";

/// What is known of a guest in doubt at its source.
pub(crate) struct Doubt {
    /// What became of the operator's last decision here.
    pub decided: Option<Decided>,
    /// Whether another program let it run here after commit.
    pub ran_here: RanHere,
    /// The destination's last answer; none if it has been silent since it answered *Pending*.
    pub answer: Option<Outcome>,
    /// Its QEMU here is alive.
    pub is_alive: bool,
}

impl Doubt {
    /// What an operator reads: what is waited for, and on which host to look.
    pub fn sentence(&self) -> &'static str {
        if let Some(what) = self.ran_here.describe() {
            return if self.decided == Some(Decided::Waiting) { ran_here::WAITS } else { what };
        }
        match (self.decided, self.answer) {
            _ if !self.is_alive => self.without_copy(),
            (Some(Decided::Waiting), _) => WAITS,
            (_, Some(Outcome::Gone)) => {
                "the destination took the guest over and its QEMU has ended there: the copy here stays paused until you decide (`linerate resolve`)"
            }
            (_, Some(Outcome::Unknown)) => {
                "the destination has no record of this migration: the copy here stays paused until you decide (`linerate resolve`)"
            }
            (Some(Decided::Void), _) => VOID,
            (_, Some(Outcome::Pending)) => {
                "the destination has the guest and has not confirmed that it runs, so look there: `linerate migration list` on the destination says what it waits for. The guest is paused here until then, and the destination is asked every second"
            }
            _ => {
                "the guest is paused here until the destination answers whether it runs there; it is asked every second, or you decide (`linerate resolve`)"
            }
        }
    }

    /// The same of a guest whose QEMU here has ended: nothing is paused here, and nothing can be resumed.
    fn without_copy(&self) -> &'static str {
        match (self.decided, self.answer) {
            (Some(Decided::Waiting), _) => {
                "your decision waits: the destination is asked once more, for up to 10 s if it has the guest. The guest's QEMU on this host has ended"
            }
            (_, Some(Outcome::Gone)) => {
                "the guest's QEMU on this host has ended, and so has the one at the destination, which had taken the guest over: no copy of it runs. `linerate resolve ID --give-up` closes this session"
            }
            (_, Some(Outcome::Unknown)) => {
                "the guest's QEMU on this host has ended, and the destination has no record of this migration: look there with `linerate vm list`. `linerate resolve ID --give-up` here closes this session"
            }
            (_, Some(Outcome::Pending)) => {
                "the guest's QEMU on this host has ended. The destination has the guest and has not confirmed that it runs, so look there: `linerate migration list` on the destination says what it waits for. It is asked every second"
            }
            _ => {
                "the guest's QEMU on this host has ended, and what the destination has may be the only copy. It is asked every second, and runs the guest if it has it. If it cannot be reached, look and decide there (`linerate resolve`)"
            }
        }
    }
}

/// What is unfinished, and what follows. `ran_here`: whether another program let it run here after commit. `is_alive`:
/// its QEMU here. `is_silent`: the last question had no answer.
pub(super) fn describe(
    machine: &SourceRecovery,
    ran_here: RanHere,
    is_alive: bool,
    is_silent: bool,
) -> &'static str {
    if machine.resumes_here() {
        return "the guest is being resumed here; it is tried until its QEMU answers";
    }
    if !machine.is_in_doubt() {
        return "decided; what is left to do here is tried until it is done";
    }
    let answer = machine.answer().filter(|answer| *answer != Outcome::Pending || !is_silent);
    Doubt { decided: machine.decided(), ran_here, answer, is_alive }.sentence()
}

impl Unfinished {
    /// Carries the next action out; false if none is due.
    pub(super) fn act_source(&self, sessions: &Arc<Sessions>) -> bool {
        let now = self.clock.now();
        let action = match &mut *self.machine.lock() {
            Machine::Source(machine) => machine.poll_action(now),
            Machine::Destination(_) => None,
        };
        let Some(action) = action else { return false };
        let event = match action {
            SourceAction::Look => SourceEvent::Looked(self.look_before_resuming(sessions)),
            SourceAction::ResumeHere => self.resume_here(sessions),
            SourceAction::ReleaseDisks => self.have_disks_released(sessions),
            SourceAction::EndSource => SourceEvent::SourceEnded(self.give_up(sessions)),
            SourceAction::Query { gives_up } => SourceEvent::Answered(self.ask(sessions, gives_up)),
            SourceAction::Write(phase) => {
                let written = self.write(sessions, Phase::Source(phase));
                // The guest is back, whether the disk takes that or not.
                if phase == SourcePhase::RolledBack && !self.notifies.swap(true, Ordering::Relaxed) {
                    let mut record = self.record.lock().clone();
                    record.set_phase(Phase::Source(phase));
                    notify_destination(sessions, self.session, record);
                }
                SourceEvent::Written(written)
            }
        };
        let now = self.clock.now();
        if let Machine::Source(machine) = &mut *self.machine.lock() {
            machine.handle(now, event);
        }
        true
    }

    /// Whether the guest is still paused here, and if so, whether it runs at the destination.
    fn look_before_resuming(&self, sessions: &Sessions) -> Look {
        let Role::Source { qemu, peers, token, peer, vcpu_time, .. } = self.record.lock().role.clone() else {
            return Look::NotPaused;
        };
        if !qemu.is_alive() || is_live(&qemu) {
            return Look::NotPaused;
        }
        let only_asks = matches!(&*self.machine.lock(), Machine::Source(machine) if machine.only_asks());
        // One that ran here is not to be run there: its copy is older. Nor is one that may run now: another client has
        // its monitor, and an agent that ended has resumed it and could not write that.
        let may_run = || look(&qemu, &vcpu_time) == Sighting::Unclear;
        let waits = only_asks && self.record.lock().ran_here().is_no() && !may_run();
        let ask = if waits { ask_while_waiting } else { ask_before_resuming };
        let answer = self.question(sessions, (&token, &peer), |identity| ask(&peers, identity));
        // An earlier agent may have resumed it too, and could not write that.
        let ran_here = || self.record.lock().ran_here().after(look(&qemu, &vcpu_time));
        if answer == Some(Outcome::Committed) && !ran_here().is_no() {
            both_hosts::note(&sessions.journal, &sessions.audit, self.session);
            return Look::OnBothHosts;
        }
        Look::Paused(answer)
    }

    /// A question to the destination. Why it could not be asked is shown.
    fn question(
        &self,
        sessions: &Sessions,
        (token, peer): (&String, &PeerName),
        ask: impl Fn(&Identity) -> Result<Outcome, NoAnswer>,
    ) -> Option<Outcome> {
        let asked = Identity::with_peer(self.session, parse_token(token), &sessions.security, peer)
            .map_err(|fault| NoAnswer { not_asked: Some(fault.detail) })
            .and_then(|identity| ask(&identity));
        if let Err(NoAnswer { not_asked: Some(reason) }) = &asked {
            self.failed(format!("the destination was not asked: {reason}"));
        }
        self.is_silent.store(asked.is_err(), Ordering::Relaxed);
        asked.ok()
    }

    /// Cancels QEMU's migration, puts its settings back and lets the guest run if it ran.
    fn resume_here(&self, sessions: &Sessions) -> SourceEvent {
        let Role::Source { qemu, ran, run_state_before, settings, .. } = self.record.lock().role.clone()
        else {
            return SourceEvent::ResumedHere(None);
        };
        if !qemu.is_alive() {
            tracing::error!(session = %self.session, guest = self.guest, "its QEMU has ended");
            // What the destination has may be the only copy: it keeps that for its operator. If QEMU has said that the
            // guest ran here after commit, it is older than the guest's disks.
            let mut record = self.record.lock();
            let is_older = record.ran_here() == RanHere::Yes;
            set_notice_due(&mut record, is_older);
            return SourceEvent::ResumedHere(Some(GuestState::Gone));
        }
        let Ok(folder) = sessions.registry.folder(&qemu.name) else { return SourceEvent::ResumedHere(None) };
        let deadline = Instant::now() + QMP_WAIT;
        let done =
            process::connect(&qemu, deadline).map_err(|error| (chain(&error), false)).and_then(|qmp| {
                let mark = PauseMark::new(&folder, &self.session.to_string());
                let mut source = SourceQemu::recovered(qmp, ran, settings, mark.is_set())
                    .with_run_state_before(run_state_before);
                source.mark_pauses(mark);
                source
                    .cancel_and_resume(deadline)
                    .and_then(|()| source.runs(deadline))
                    .map_err(|error| (chain(&error), error.is_lock()))
            });
        match done {
            Ok(runs) => {
                if is_registered(sessions, &qemu) {
                    remove_sockets(sessions, &qemu.name);
                }
                self.worked();
                tracing::info!(session = %self.session, guest = self.guest, runs, "rolled back");
                let guest = if runs { GuestState::RunsAtSource } else { GuestState::PausedAtSource };
                SourceEvent::ResumedHere(Some(guest))
            }
            Err((trouble, is_locked)) => {
                self.failed(trouble);
                if is_locked { SourceEvent::DisksAreHeld } else { SourceEvent::ResumedHere(None) }
            }
        }
    }

    /// A destination's QEMU before 10.0 takes the disks of a guest that did not run when its migration began: when it
    /// has loaded the guest.
    fn have_disks_released(&self, sessions: &Sessions) -> SourceEvent {
        if let Role::Source { peers, token, peer, .. } = self.record.lock().role.clone() {
            self.question(sessions, (&token, &peer), |identity| {
                notify_rolled_back(&peers, identity, true).ok_or_else(NoAnswer::default)
            });
        }
        SourceEvent::DisksReleased
    }

    /// The guest runs at the destination: its process here ends. What it leaves behind is marked and handed over then.
    /// An agent that is restarted before asks the destination again, and may have to resume the guest.
    fn give_up(&self, sessions: &Sessions) -> bool {
        let Role::Source { qemu, copied, peers, .. } = self.record.lock().role.clone() else { return true };
        if self.is_arriving(sessions, &qemu) {
            self.failed(
                "a guest of this name is arriving here: what is left of this one waits for it".into(),
            );
            return false;
        }
        // A guest that came back has these images and files, under this name.
        let came_back = sessions.registry.has(&qemu.name) && !is_registered(sessions, &qemu);
        if came_back {
            tracing::info!(session = %self.session, guest = self.guest, "a guest of this name came here since: its images and files are left alone");
            if !qemu.is_alive() {
                return true;
            }
        }
        let left = LeftoverRam::of(&qemu);
        let ended = process::end(&qemu, None, StopMethod::Quit, Instant::now() + QMP_WAIT);
        if ended.is_ok() && !came_back {
            let to = peers.first().map_or(String::new(), ToString::to_string);
            if !self.images_are_newer(sessions) {
                crate::disks::mark_stale(&self.left_behind(sessions, copied.clone()), &self.guest, &to);
            }
            sessions.registry.hand_files_over(&qemu.name, &copied);
        }
        match ended.and_then(|()| sessions.registry.remove(&qemu).map_err(Into::into)) {
            Ok(()) => {
                tracing::info!(
                    guest = self.guest,
                    bytes = left.free(),
                    "memory freed that the guest has left"
                );
                self.worked();
                true
            }
            Err(error) => {
                self.failed(format!("the QEMU here could not be ended: {}", chain(&error)));
                false
            }
        }
    }

    /// The guest ran here after commit, and nobody has said that it runs at the destination: its images here are newer
    /// than their copies.
    fn images_are_newer(&self, sessions: &Sessions) -> bool {
        let ran_here = self.record.lock().ran_here() == RanHere::Yes;
        let runs_there = matches!(&*self.machine.lock(), Machine::Source(machine)
            if machine.answer() == Some(Outcome::Committed));
        let on_both = || sessions.journal.on_both_hosts().iter().any(|(one, _)| *one == self.session);
        ran_here && !runs_there && !on_both()
    }

    /// Whether a guest of the name is on its way to this host. Whether its images are its own is not known before it is
    /// here.
    fn is_arriving(&self, sessions: &Sessions, qemu: &GuestRecord) -> bool {
        let order = self.record.lock().order;
        let arrives = |later: &Record| {
            let open = [DestinationPhase::Started, DestinationPhase::Loaded];
            let Role::Destination { phase, .. } = &later.role else { return false };
            later.guest == self.guest && later.order > order && open.contains(phase)
        };
        // Reserved for one that has no record yet.
        let is_reserved = !sessions.registry.has(&qemu.name)
            && sessions.registry.folder(&qemu.name).is_ok_and(|folder| folder.exists());
        is_reserved || sessions.journal.all().is_ok_and(|all| all.iter().any(|(_, record)| arrives(record)))
    }

    /// Of images that this session copied away, those that no later session has brought back.
    fn left_behind(&self, sessions: &Sessions, mut copied: Vec<PathBuf>) -> Vec<PathBuf> {
        let order = self.record.lock().order;
        for (_, later) in sessions.journal.all().unwrap_or_default() {
            let Role::Destination { phase, incoming } = &later.role else { continue };
            let runs = matches!(
                phase,
                DestinationPhase::Committed | DestinationPhase::Running | DestinationPhase::Finished
            );
            copied.retain(|path| later.order < order || !runs || !incoming.copied.contains(path));
        }
        copied
    }

    /// Asks, which sends commit again: the message may never have left this host. The question also carries whether
    /// there is still a copy here, to which a destination that cannot run the guest may return it. `gives_up`: the
    /// operator ends it.
    fn ask(&self, sessions: &Sessions, gives_up: bool) -> Option<Outcome> {
        let Role::Source { qemu, peers, token, peer, .. } = self.record.lock().role.clone() else {
            return None;
        };
        let ran_here = self.look_whether_it_ran_here(sessions);
        if !ran_here.is_no() {
            // The guest is here: the destination's operator is not to run the copy there. Its answer decides nothing.
            if qemu.can_run() && !gives_up {
                let asks = |identity: &Identity| ask_before_resuming(&peers, identity);
                let answer = self.question(sessions, (&token, &peer), asks);
                if answer == Some(Outcome::Committed) && ran_here == RanHere::Yes {
                    both_hosts::note(&sessions.journal, &sessions.audit, self.session);
                }
            }
            self.worked();
            return None;
        }
        let ask = if qemu.can_run() && !gives_up { ask_any } else { commit_any };
        self.question(sessions, (&token, &peer), |identity| ask(&peers, identity))
    }

    /// Whether the guest ran here after commit, which is noted. QEMU is not asked any more if it has said so once.
    fn look_whether_it_ran_here(&self, sessions: &Sessions) -> RanHere {
        let mut record = self.record.lock().clone();
        let Role::Source { qemu, vcpu_time, ran_here, .. } = &record.role else { return RanHere::No };
        let now = match *ran_here {
            RanHere::Yes => RanHere::Yes,
            before => before.after(look(qemu, vcpu_time)),
        };
        sessions.journal.note_ran_here(self.session, &mut record, now);
        if let Role::Source { ran_here, .. } = &mut self.record.lock().role {
            *ran_here = now;
        }
        now
    }
}

/// What is done now about the roll-back notice of a session ([`notice_step`]): asked before each try.
pub(crate) fn notice_steps(
    journal: &Arc<Journal>,
    session: SessionId,
    record: &Record,
) -> impl FnMut() -> NoticeStep + Send + use<> {
    let (mut ran, qemu) = match &record.role {
        Role::Source { ran, ran_here, qemu, .. } => (*ran || *ran_here == RanHere::Yes, Some(qemu.clone())),
        _ => (true, None),
    };
    let (journal, entry) = (journal.clone(), record.entry(session));
    move || {
        let Some(entry) = &entry else { return NoticeStep::Send };
        // A guest that was paused when it was to leave may be resumed by its operator at any time.
        if !ran && qemu.as_ref().is_some_and(is_live) {
            ran = true;
            journal.note_ran_since(session);
        }
        let Ok(all) = journal.all() else { return NoticeStep::Wait };
        let all: Vec<Entry> = all.iter().filter_map(|(session, record)| record.entry(*session)).collect();
        notice_step(ran, entry, &all, is_alive)
    }
}

/// Whether the guest is seen to run.
fn is_live(qemu: &GuestRecord) -> bool {
    let deadline = Instant::now() + CONNECT_WAIT;
    let seen = process::connect(qemu, deadline)
        .ok()
        .and_then(|qmp| SourceQemu::recovered(qmp, true, None, false).status(deadline).ok());
    seen.is_some_and(|status| status.is_live())
}

/// What is seen of the guest now. A QEMU that does not answer may have its QMP connection with another program, and
/// another boot's process may have its pid.
fn look(qemu: &GuestRecord, at_commit: &VcpuTime) -> Sighting {
    let deadline = Instant::now() + CONNECT_WAIT;
    let connected = if qemu.is_alive() { process::connect(qemu, deadline).ok() } else { None };
    let is_stopped = connected
        .and_then(|qmp| SourceQemu::recovered(qmp, true, None, false).is_still_stopped(deadline).ok());
    Sighting::of(is_stopped, qemu, at_commit)
}
