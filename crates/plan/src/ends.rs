//! What must be so when a session is over on both sides.

use linerate_core::{GuestState, ModeTag, Side};

use crate::check::Property;
use crate::guest::Sending;
use crate::world::World;

impl World {
    /// The session is over on both sides, the links work.
    pub fn check_end(&mut self) {
        if self.is_owned_twice_by_operators() {
            self.check.is_split = true;
            return;
        }
        self.check_told_at_end();
        let crashed = self.roles.map(|host| self.hosts[host].crashed);
        let Some(decided) = self.source.decided else { return };
        let moved = matches!(decided, GuestState::RunsAtDestination | GuestState::PausedAtDestination);
        let owned = self.destination.owns();
        let fault = self.source.ending.as_ref().and_then(|ending| ending.fault.clone());

        // Who gives a copy up answers for where the guest is.
        let by_operator = self.check.resolved.contains(&self.session);
        let arrived = self.destination.ran || crashed[1] || by_operator;
        self.check.that(!moved || arrived, Property::Truthful, || {
            String::from(
                "the source reports that the guest moved, and it was never taken over at the destination",
            )
        });
        // libvirt may have decided while the source gave up.
        let unsure = decided == GuestState::Unknown && self.scenario.mode == ModeTag::Handover;
        // Nor does a source know more whose copy an operator has ended.
        let given_up = decided == GuestState::Unknown && by_operator;
        // Its own copy has died: that is what it says, or an operator has let the other one run.
        let let_run = self.check.run_there.contains(&self.session);
        let died = self.guest.gone && (decided == GuestState::Gone || let_run);
        self.check.that(moved || unsure || given_up || died || !owned, Property::OneRuns, || {
            format!("the source reports {decided:?}, and the destination has the guest")
        });
        let true_here = decided == self.state_at_source() || unsure && owned || given_up;
        self.check.that(moved || crashed[0] || self.paused_since || true_here, Property::Truthful, || {
            format!("the source reports {decided:?}")
        });
        self.check_put_back();
        // libvirt had run it there, and it died with that host before anybody looked for it.
        let died_there = decided == GuestState::Gone && self.destination.ran && crashed[1];
        // The operator had it ended, and its agent was restarted before that was on disk.
        let ended = by_operator && self.check.moved_on.contains(&self.guest.pid);
        if !crashed[0] && !moved && !owned && !given_up && !ended && !died_there {
            self.check_survived();
        }
        self.check.that(
            moved || !self.source.commit_journaled || fault.is_some() || self.source.incarnation > 0,
            Property::Truthful,
            || String::from("a session without fault left the guest"),
        );
        let leftover = self.all().find(|guest| !guest.owned).map(|guest| guest.pid);
        self.check.that(leftover.is_none(), Property::RetrySucceeds, || {
            format!("an incoming QEMU is left: process {leftover:?}")
        });
        let left = self.all().any(|guest| guest.current);
        let left = left || crashed[0] || crashed[1] || self.is_given_up_twice();
        self.check
            .that(left, Property::NothingLost, || String::from("no complete copy of the guest is left"));
        let many = self.all().filter(|guest| guest.owned).count();
        self.check.that(many <= 1, Property::Truthful, || format!("{many} processes have the guest"));
        let must_move = self.scenario.faults.is_empty() && self.scenario.converges() && !self.scenario.stale;
        // In a history the links may still be broken from the session before.
        let must_move = must_move && (self.retrying || !self.is_history());
        let property = if self.retrying { Property::RetrySucceeds } else { Property::FaultlessSucceeds };
        self.check.that(!must_move || (moved && fault.is_none()), property, || {
            format!("without faults: {:?}", self.source.ending)
        });
        self.check_goes_on();
    }

    /// The guest does what its operator wants, wherever it is.
    fn check_goes_on(&mut self) {
        if self.scenario.mode == ModeTag::Handover {
            return;
        }
        let wanted = self.wanted;
        let guest = self.all().find(|guest| guest.current && guest.owned);
        let found = guest.map(|guest| (guest.pid, guest.running, guest.disks));
        let right = found.is_none_or(|(_, running, disks)| running == wanted && disks);
        self.check.that(right, Property::SourceSurvives, || {
            format!("the guest is to run: {wanted}; process, running, disks: {found:?}")
        });
    }

    fn check_survived(&mut self) {
        let guest = &self.guest;
        let handover = self.scenario.mode == ModeTag::Handover;
        let runs = if handover { self.scenario.runs } else { self.wanted };
        let as_before = guest.running == runs && guest.sending == Sending::No && !guest.gone;
        let free = !guest.protected && guest.throttle == 0;
        let state = (guest.running, guest.sending, guest.protected, guest.throttle);
        self.check.that(as_before && free, Property::SourceSurvives, || {
            format!("running, hypervisor, protected, throttle: {state:?}")
        });
    }

    /// For the report of a run that does not end.
    pub fn describe(&self) -> String {
        let source = self
            .source
            .machine
            .as_ref()
            .map(|machine| (machine.step(), machine.can_resume(), machine.is_ended()));
        let destination =
            self.destination.machine.as_ref().map(|machine| (machine.step(), machine.outcome()));
        let cases: Vec<_> = self.hosts.iter().map(|host| &host.cases).collect();
        let processes: Vec<_> = self.all().map(|g| (g.pid, g.host, g.running, g.owned, g.current)).collect();
        let idle = self.destination.is_idle();
        format!(
            "session {}, decided {:?}, source {source:?}; destination {destination:?}, idle {idle}; up {:?}; journals {:?}; \
             cases {cases:?}; processes (pid, host, running, owned, current) {processes:?}",
            self.session,
            self.source.decided,
            self.hosts.each_ref().map(|host| host.up),
            self.phases(),
        )
    }

    /// The host that has a role in the session in progress.
    pub fn at(&self, side: Side) -> usize {
        self.roles[crate::wire::index(side)]
    }
}
