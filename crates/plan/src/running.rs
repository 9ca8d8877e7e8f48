//! Where the guest runs: resuming, running and ending its processes, with the checks that belong to these moments.

use linerate_core::recovery::RunResult;
use linerate_core::{Extent, GuestState, ModeTag, PAGE_BYTES, Side};

use crate::check::{Mutation, Property};
use crate::guest::{DEVICE, Guest, HOLE, Sending, content};
use crate::world::World;

impl World {
    // ---- processes ----

    /// Every running process of the guest.
    pub fn all(&self) -> impl Iterator<Item = &Guest> {
        let here = Some(&self.guest).filter(|guest| !guest.gone);
        here.into_iter().chain(&self.destination.guest).chain(&self.parked)
    }

    pub fn find(&self, pid: u64) -> Option<&Guest> {
        self.all().find(|guest| guest.pid == pid)
    }

    pub fn find_mut(&mut self, pid: u64) -> Option<&mut Guest> {
        let here = Some(&mut self.guest).filter(|guest| !guest.gone);
        let all = here.into_iter().chain(&mut self.destination.guest).chain(&mut self.parked);
        all.into_iter().find(|guest| guest.pid == pid)
    }

    pub fn remove(&mut self, pid: u64) {
        if self.find(pid).is_some_and(|guest| guest.owned) {
            self.check.died.insert(pid, self.now);
        }
        if self.guest.pid == pid {
            self.guest.gone = true;
            self.guest.running = false;
            self.guest.unprotect();
        }
        if self.destination.guest.as_ref().is_some_and(|guest| guest.pid == pid) {
            self.destination.guest = None;
        }
        self.parked.retain(|guest| guest.pid != pid);
    }

    /// An agent ends a process: a complete guest must be left, and no record decides about a process that runs for
    /// another.
    fn agent_ends(&mut self, pid: u64) {
        let Some(guest) = self.find(pid) else { return };
        let (current, running) = (guest.current, guest.running);
        let left = self.all().any(|other| other.pid != pid && other.current);
        // A copy that died while the message that it is enough was in flight is a second fault at the same moment.
        let just = |at: &linerate_core::Time| self.now - *at < std::time::Duration::from_secs(3);
        let left = left || self.check.died.values().any(just) || self.is_given_up_by_one_of_two(pid);
        self.check.that(!current || left, Property::NothingLost, || {
            format!("process {pid} is ended, and no other complete copy is left")
        });
        self.check.that(!running, Property::OwnRecord, || {
            format!("process {pid} is ended while the guest runs in it")
        });
        self.remove(pid);
    }

    /// A process lets the guest execute.
    fn executes(&mut self, pid: u64) {
        if self.is_split_by_operators(pid) {
            return;
        }
        let Some(guest) = self.find(pid) else { return };
        let (host, current, image, owned) = (guest.host, guest.current, guest.image, guest.owned);
        self.note(|| format!("the guest runs on host {host}, process {pid}"));
        let other = self.all().find(|other| other.pid != pid && (other.running || other.disks));
        let other = other.map(|other| (other.pid, other.running));
        let wanted = self.wanted;
        self.check.that(other.is_none_or(|(_, running)| !running), Property::OneRuns, || {
            format!("process {pid} runs the guest while another does: {other:?}")
        });
        self.check.that(current && owned, Property::OneRuns, || {
            format!("process {pid} runs the guest, which has run elsewhere since or is not its own")
        });
        self.check.that(other.is_none(), Property::DiskRuns, || {
            format!("process {pid} uses the disks while another does: {other:?}")
        });
        self.check.that(image == self.image, Property::DiskRuns, || {
            format!("process {pid} runs with image {image}; the guest's is {}", self.image)
        });
        self.check
            .that(wanted, Property::PausedStays, || format!("process {pid} runs a guest that was paused"));
        for pid in self.all().filter(|other| other.pid != pid).map(|other| other.pid).collect::<Vec<_>>() {
            if let Some(other) = self.find_mut(pid) {
                other.current = false;
            }
        }
        if let Some(guest) = self.find_mut(pid) {
            (guest.running, guest.executed) = (true, true);
        }
    }

    // ---- source ----

    /// What the guest does if the source has it.
    pub fn state_at_source(&self) -> GuestState {
        state(&self.guest)
    }

    /// Roll-back of the session in progress: unprotected, at full speed, and as before; or it has to be tried again.
    pub fn undo(&mut self) -> (GuestState, bool) {
        if self.options.mutation != Some(Mutation::RollBackKeepsProtection) {
            self.guest.unprotect();
        }
        self.guest.throttle = 0;
        if self.scenario.mode == ModeTag::Handover {
            return (self.owner_undone(), true);
        }
        if self.options.mutation == Some(Mutation::RollBackForgetsGuest) {
            return (self.state_at_source(), true);
        }
        let rash = self.options.mutation == Some(Mutation::RollBackWrittenAnyway);
        let done = self.resume_here(self.guest.pid);
        (self.state_at_source(), done.is_some() || rash)
    }

    /// The hypervisor's migration is cancelled, the guest goes on if it ran before. None if it has to be tried again.
    pub fn resume_here(&mut self, pid: u64) -> Option<GuestState> {
        let Some(host) = self.find(pid).map(|guest| guest.host) else { return Some(GuestState::Gone) };
        let away = self.hypervisors_are_away(host);
        let disks_away = self.hosts[host].disks_away_until > self.now;
        let keeps = self.options.mutation == Some(Mutation::RollBackKeepsProtection);
        let held = self.disks_are_held(pid);
        let guest = self.find_mut(pid)?;
        if away {
            return None;
        }
        if !keeps {
            guest.unprotect();
        }
        guest.throttle = 0;
        guest.sending = Sending::No;
        if !guest.disks && (disks_away || held) {
            return None;
        }
        guest.disks = true;
        let ran = guest.ran.take();
        if ran == Some(true) {
            self.executes(pid);
        }
        self.find(pid).map(state)
    }

    /// Whether another process has the locks of this guest's disks.
    pub fn disks_are_held(&self, pid: u64) -> bool {
        self.all().any(|other| other.pid != pid && other.locks_when_loaded && other.loaded && !other.disks)
    }

    /// The source's hypervisor continues by itself, or is made to.
    pub fn resume_source_guest(&mut self) {
        self.resume_here(self.guest.pid);
    }

    /// The guest is another host's: the source's process ends.
    pub fn give_up(&mut self, pid: u64, session: u64) {
        let known = self.check.taken_over.contains(&session) || self.check.resolved.contains(&session);
        self.check.that(known, Property::GivenUpForRunning, || {
            format!("process {pid} is given up, and the guest was never taken over in session {session}")
        });
        let sent = self.find(pid).is_none_or(|guest| !guest.running);
        self.check
            .that(sent, Property::OwnRecord, || format!("process {pid} is given up and runs the guest"));
        self.check_told_of_end(pid, session);
        self.check.moved_on.insert(pid);
        // What died over there after it had been taken over is lost with its host, not by us.
        self.remove(pid);
    }

    // ---- destination ----

    /// The hypervisor gets the command to take the guest over.
    pub fn try_to_run(&mut self, pid: u64, ran: bool) -> RunResult {
        let Some(guest) = self.find(pid) else { return RunResult::Ended };
        let (host, running, has_disks) = (guest.host, guest.running, guest.disks);
        let away = self.hypervisors_are_away(host);
        // QEMU takes disks over only once.
        let disks_away = !has_disks && self.hosts[host].disks_away_until > self.now;
        // It got the command all the same, and carries it out; only its answer is missing.
        if running || disks_away || away && !self.random.percent(30) {
            return match (away, running) {
                (true, _) => RunResult::Unknown,
                (false, true) => RunResult::Runs,
                (false, false) => RunResult::Refused,
            };
        }
        if self.is_split_by_operators(pid) {
            return RunResult::Runs;
        }
        self.takes_over(pid);
        if ran {
            self.executes(pid);
        }
        if away { RunResult::Unknown } else { RunResult::Runs }
    }

    /// The process has the guest from now on.
    pub fn takes_over(&mut self, pid: u64) {
        let mine = self.destination.guest.as_ref().is_some_and(|guest| guest.pid == pid);
        if mine && !self.destination.ran {
            let difference = self.ram_differs();
            self.check.that(difference.is_none(), Property::SameRam, || difference.unwrap_or_default());
            self.check_holes();
            self.destination.ran = true;
        }
        if let Some(guest) = self.find_mut(pid) {
            (guest.owned, guest.disks) = (true, true);
        }
    }

    /// libvirt lets the destination run the guest.
    pub fn run_guest(&mut self) {
        let Some(pid) = self.destination.guest.as_ref().map(|guest| guest.pid) else { return };
        self.guest.disks = false;
        if let Some(guest) = self.destination.guest.as_mut() {
            guest.current = true;
        }
        self.takes_over(pid);
        self.executes(pid);
    }

    /// The incoming QEMU of the session ends.
    pub fn discard_incoming(&mut self) {
        if self.scenario.mode == ModeTag::Handover {
            // What becomes of it is not ours to say. Its session's end is in the journal, or waits for the disk.
            if self.destination.started {
                let (now, host, session) = (self.now, self.at(Side::Destination), self.session);
                self.put_back(Side::Destination);
                self.hosts[host].note_put_back(now, session);
            }
            return;
        }
        if let Some(pid) = self.destination.guest.as_ref().map(|guest| guest.pid) {
            self.discard(pid);
        }
    }

    /// An incoming QEMU ends.
    pub fn discard(&mut self, pid: u64) {
        // One that was taken over, did not run and is returned has written nothing.
        let ran = self.find(pid).is_some_and(|guest| guest.owned && guest.executed);
        self.check
            .that(!ran, Property::OneRuns, || String::from("the destination ends a guest that ran there"));
        self.check_told_of_discard(pid);
        if self.options.mutation != Some(Mutation::DiscardLeavesGuest) {
            self.agent_ends(pid);
        }
    }

    /// Which page differs, but for the one that loading device state writes.
    pub fn ram_differs(&self) -> Option<String> {
        let Some(guest) = self.destination.guest.as_ref() else { return Some(String::from("no guest")) };
        if !guest.loaded {
            return Some(String::from("device state is not loaded"));
        }
        for (region, (ours, theirs)) in self.guest.ram.iter().zip(&guest.ram).enumerate() {
            for (page, (&at_source, &here)) in ours.iter().zip(theirs).enumerate() {
                let expected = if (region, page) == (0, 0) { DEVICE } else { content(at_source) };
                if content(here) != expected {
                    return Some(format!(
                        "page {page} of region {region} holds {here} at the destination and {at_source} at the source"
                    ));
                }
            }
        }
        None
    }

    /// What has no memory behind it at the source has none here.
    fn check_holes(&mut self) {
        let Some(guest) = self.destination.guest.as_ref() else { return };
        let pages = |region: usize| self.guest.ram[region].iter().zip(&guest.ram[region]).enumerate();
        let filled = (0..guest.ram.len())
            .flat_map(|region| pages(region).map(move |(page, both)| (region, page, both)))
            .find(|&(region, page, (&at_source, &here))| {
                (region, page) != (0, 0) && at_source == HOLE && here != HOLE
            });
        self.check.that(filled.is_none(), Property::HolesStay, || format!("a hole is filled: {filled:?}"));
    }

    // ---- always ----

    /// Rule 3, seen from the scheduler: what is in flight names no page twice, and only pages that the tracker named.
    pub fn check_in_flight(&mut self) {
        let Some(machine) = self.source.machine.as_ref() else { return };
        let mut flying: Vec<Extent> = machine.scheduler().in_flight().map(|(_, _, extent)| extent).collect();
        flying.sort_unstable();
        let twice = flying
            .windows(2)
            .find(|pair| pair[0].region == pair[1].region && pair[0].run.end() > pair[1].run.offset);
        self.check.that(twice.is_none(), Property::NotTwice, || format!("in flight twice: {twice:?}"));
        let touched = |extent: &&Extent| {
            let pages = extent.run.offset / PAGE_BYTES..extent.run.end() / PAGE_BYTES;
            let by_guest = |page: u64| self.guest.touched[extent.region as usize][page as usize];
            // What the hypervisor over there wrote while it started is set right, also where it is a hole here.
            pages
                .into_iter()
                .all(|page| by_guest(page) || self.destination.touched.contains(&(extent.region, page)))
        };
        let untouched = flying.iter().find(|extent| !touched(extent)).copied();
        self.check.that(untouched.is_none(), Property::HolesStay, || {
            format!("a page never touched is read: {untouched:?}")
        });
    }
}

/// What a process of the source does.
pub fn state(guest: &Guest) -> GuestState {
    match (guest.gone, guest.running) {
        (true, _) => GuestState::Gone,
        (false, true) => GuestState::RunsAtSource,
        (false, false) => GuestState::PausedAtSource,
    }
}
