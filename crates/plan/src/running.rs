//! Where the guest runs: resuming, running and ending it, with the checks that belong to these moments and to the end.

use linerate_core::{Extent, GuestState, PAGE_BYTES, Side};

use crate::check::{Mutation, Property, Way};
use crate::guest::{DEVICE, HOLE, Sending, content};
use crate::world::World;

impl World {
    // ---- source ----

    /// What the guest does if the source has it.
    pub fn state_at_source(&self) -> GuestState {
        match (self.guest.gone, self.guest.running) {
            (true, _) => GuestState::Gone,
            (false, true) => GuestState::RunsAtSource,
            (false, false) => GuestState::PausedAtSource,
        }
    }

    /// Roll-back: the guest does what it did before, unprotected, at full speed.
    pub fn undo(&mut self) -> GuestState {
        if self.options.mutation != Some(Mutation::RollBackKeepsProtection) {
            self.guest.unprotect();
        }
        self.guest.throttle = 0;
        if self.scenario.way == Way::HandedOver {
            return self.owner_undone();
        }
        if self.options.mutation != Some(Mutation::RollBackForgetsGuest) {
            self.resume_source_guest();
        }
        self.state_at_source()
    }

    /// The hypervisor's migration is cancelled, the guest goes on if it ran before.
    pub fn resume_source_guest(&mut self) {
        if self.guest.gone {
            return;
        }
        self.guest.sending = Sending::No;
        self.guest.running = self.scenario.runs;
        self.note(|| String::from("the guest is back as before at the source"));
        let owned = self.destination.owns();
        self.check.that(!owned, Property::OneRuns, || {
            String::from("the source resumes while the guest is the destination's")
        });
    }

    /// The guest is the destination's: the source's process ends.
    pub fn end_source_guest(&mut self) {
        self.guest.gone = true;
        self.guest.running = false;
        self.guest.unprotect();
    }

    // ---- destination ----

    /// The destination lets the guest run.
    pub fn run_guest(&mut self) {
        self.note(|| String::from("the guest runs at the destination"));
        let running = self.guest.running;
        self.check.that(!running, Property::OneRuns, || {
            String::from("the destination runs the guest while it runs at the source")
        });
        let difference = self.ram_differs();
        self.check.that(difference.is_none(), Property::SameRam, || difference.unwrap_or_default());
        self.check_holes();
        self.destination.ran = true;
        if let Some(guest) = self.destination.guest.as_mut() {
            guest.owned = true;
        }
    }

    /// The waiting guest ends.
    pub fn tear_down(&mut self) {
        if self.scenario.way == Way::HandedOver {
            // What becomes of it is not ours to say.
            return self.owner.put_back(Side::Destination, self.options.mutation);
        }
        let owned = self.destination.owns();
        self.check.that(!owned, Property::OneRuns, || {
            String::from("the destination ends a guest that it was told to run")
        });
        if self.options.mutation != Some(Mutation::TearDownLeavesGuest) {
            self.destination.guest = None;
        }
    }

    /// Which page differs, but for the one that loading device state writes.
    fn ram_differs(&self) -> Option<String> {
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
        let Some(brain) = self.source.brain.as_ref() else { return };
        let mut flying: Vec<Extent> = brain.scheduler().in_flight().map(|(_, _, extent)| extent).collect();
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

    /// The session is over on both sides, the links work.
    pub fn check_end(&mut self) {
        let crashed = self.host_crashed;
        let Some(decided) = self.source.decided else { return };
        let moved = decided == GuestState::RunsAtDestination;
        let owned = self.destination.owns();
        let fault = self.source.ending.as_ref().and_then(|ending| ending.fault.clone());

        self.check.that(!moved || self.destination.ran || crashed[1], Property::Truthful, || {
            String::from("the source says that the guest moved, and it never ran at the destination")
        });
        // Somebody else may have decided while the source gave up.
        let unsure = decided == GuestState::Unknown && self.scenario.way == Way::HandedOver;
        self.check.that(moved || unsure || !owned, Property::OneRuns, || {
            format!("the source says {decided:?}, and the destination has the guest")
        });
        let true_here = decided == self.state_at_source() || unsure && owned;
        self.check.that(moved || crashed[0] || true_here, Property::Truthful, || {
            format!("the source says {decided:?}")
        });
        self.check_put_back();
        if !crashed[0] && !moved && !owned {
            self.check_survived();
        }
        self.check.that(
            moved || !self.source.commit_journaled || fault.is_some() || self.source.life > 0,
            Property::Truthful,
            || String::from("a session without fault left the guest"),
        );
        let leftover = self.destination.guest.is_some() && !owned;
        self.check.that(!leftover, Property::RetrySucceeds, || {
            String::from("a waiting guest is left at the destination")
        });
        let must_move = self.scenario.faults.is_empty() && self.scenario.converges();
        let property = if self.retrying { Property::RetrySucceeds } else { Property::FaultlessSucceeds };
        self.check.that(!must_move || (moved && fault.is_none()), property, || {
            format!("without faults: {:?}", self.source.ending)
        });
    }

    fn check_survived(&mut self) {
        let guest = &self.guest;
        let as_before = guest.running == self.scenario.runs && guest.sending == Sending::No && !guest.gone;
        let free = !guest.protected && guest.throttle == 0;
        let state = (guest.running, guest.sending, guest.protected, guest.throttle);
        self.check.that(as_before && free, Property::SourceSurvives, || {
            format!("running, hypervisor, protected, throttle: {state:?}")
        });
    }
}
