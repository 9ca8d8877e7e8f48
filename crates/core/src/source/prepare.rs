//! Steps 3 to 5: the destination admits the guest and starts the one that waits, links come up, and copying begins.

use super::{Action, Source, State};
use crate::{
    ChannelId, Code, Endpoint, Extent, Fault, LinkId, Message, ModeTag, RegionInfo, Run, Side, Step, Time,
};

/// How far the incoming QEMU is.
#[derive(Debug)]
pub(super) enum Preparation {
    NotBegun,
    /// It starts; it must stand by then.
    InProgress {
        until: Time,
    },
    /// The incoming QEMU is ready. These were touched while it started and are copied again.
    Done {
        touched: Vec<Extent>,
    },
}

impl Source {
    pub(super) fn admitted(&mut self, now: Time, endpoints: Vec<Endpoint>) {
        self.statistics.end(now, Step::Admit);
        self.enter_step(now, Step::Prepare, self.config.step_timeout);
        self.statistics.begin(now, Step::Connect);
        self.no_channel_since = Some(now);
        self.preparation = Preparation::InProgress { until: now + self.config.step_timeout };
        self.state = State::Preparing { ready: false };
        self.actions.push_back(Action::OpenLinks(endpoints));
        self.control.send(now, Message::Prepare);
        match self.mode() {
            ModeTag::Direct | ModeTag::Handover => self.actions.push_back(Action::Attach),
            ModeTag::Streams => {}
        }
    }

    pub(super) fn prepared(&mut self, now: Time, regions: &[RegionInfo], touched: Vec<Extent>) {
        if let Some(difference) = difference(self.config.mode.regions(), regions) {
            return self
                .fail(now, Fault::new(Code::GuestDiffers, Step::Prepare, Side::Destination, difference));
        }
        if !touched.iter().all(|extent| self.names_pages(extent)) {
            return self.violation(now, "Prepared with memory that the guest does not have");
        }
        self.statistics.end(now, Step::Prepare);
        self.preparation = Preparation::Done { touched };
        self.progress(now);
        self.copy_when_ready(now);
    }

    /// Whether the extent is whole pages inside its region.
    fn names_pages(&self, extent: &Extent) -> bool {
        let Run { offset, length } = extent.run;
        let inside = |region: &RegionInfo| extent.run.end() <= region.size;
        let region = self.config.mode.regions().iter().find(|region| region.id == extent.region);
        region.is_some_and(inside)
            && offset.is_multiple_of(crate::PAGE_BYTES)
            && length.is_multiple_of(crate::PAGE_BYTES)
    }

    pub(super) fn channel_up(&mut self, now: Time, channel: ChannelId, link: LinkId) {
        self.scheduler.add_channel(now, channel, link);
        self.no_channel_since = None;
        self.statistics.end(now, Step::Connect);
        self.copy_when_ready(now);
    }

    /// Copying begins when the guest's RAM is held, or its streams are awaited, and there is a channel.
    pub(super) fn copy_when_ready(&mut self, now: Time) {
        if self.state != (State::Preparing { ready: true }) || self.scheduler.active_channels() == 0 {
            return;
        }
        if self.holds {
            return self.hold_when_prepared();
        }
        if let Some(settings) = self.streams {
            self.begin_streams(now, settings);
        } else {
            self.enter_step(now, Step::Track, self.config.step_timeout + self.ram_allowance());
            self.state = State::Protecting;
            self.actions.push_back(Action::Protect);
        }
    }

    /// The copy begins, now or when all is prepared.
    pub(super) fn go(&mut self, now: Time) {
        self.holds = false;
        if self.state == State::Ready {
            self.state = State::Preparing { ready: true };
        }
        // If there is no channel now, it begins with the next one.
        self.copy_when_ready(now);
    }

    /// Held however long: only lost links, a fault and the operator end it.
    fn hold_when_prepared(&mut self) {
        if matches!(self.preparation, Preparation::Done { .. }) {
            self.step_deadline = None;
            self.state = State::Ready;
            self.actions.push_back(Action::Ready);
        }
    }
}

/// In words, how the destination's RAM blocks differ from ours.
fn difference(ours: &[RegionInfo], theirs: &[RegionInfo]) -> Option<String> {
    for region in ours {
        match theirs.iter().find(|other| other.id == region.id) {
            None => return Some(format!("RAM block {} is missing", region.name)),
            Some(other) if other.name != region.name || other.size != region.size => {
                return Some(format!(
                    "RAM block {} has {} bytes at the source, {} has {} at the destination",
                    region.name, region.size, other.name, other.size
                ));
            }
            Some(_) => {}
        }
    }
    (theirs.len() != ours.len()).then(|| format!("{} RAM blocks here, {} there", ours.len(), theirs.len()))
}
