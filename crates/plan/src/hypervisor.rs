//! The source's hypervisor: it sets up, stops the guest, holds, and writes device state. It runs on when the agent
//! dies.

use linerate_core::ModeTag;
use linerate_core::source::Event;

use crate::guest::Sending;
use crate::source_driver::SourceWork;
use crate::world::{SimEvent, World};

impl World {
    /// It sets up while the guest runs, and may already write the beginning of its stream.
    pub fn switch_over(&mut self) {
        if !self.lets_in() {
            return;
        }
        self.guest.sending = Sending::SettingUp;
        self.source.switch_overs += 1;
        let asked = self.source.switch_overs;
        let span = self.micros(2_000, 60_000);
        if self.scenario.mode == ModeTag::Direct && self.random.percent(50) {
            let before = span.as_micros() as u64 / 2;
            self.source_will(10, before, SourceWork::Deliver(Event::DeviceState(vec![1; 100])));
        }
        self.after(span, SimEvent::HypervisorStops { asked });
        self.blackout_faults();
    }

    /// It stops the guest whether or not an agent looks on.
    pub fn hypervisor_stops(&mut self, asked: u64) {
        if asked != self.source.switch_overs || self.guest.sending != Sending::SettingUp || self.guest.gone {
            return;
        }
        let ran = std::mem::replace(&mut self.guest.running, false);
        self.guest.ran = Some(ran);
        self.guest.sending = Sending::Holding;
        self.note(|| String::from("the hypervisor stopped the guest at the source"));
        if ran {
            self.handle_source(Event::GuestStopped);
        }
        self.owner_has_stopped();
        let disks = self.guest.image.to_string();
        self.source_will(0, 2_000, SourceWork::Deliver(Event::PreSwitchover { was_running: ran, disks }));
    }

    /// It writes device state, in some pieces.
    pub fn write_device_state(&mut self) {
        let pieces = self.random.between(1, 4);
        self.source_will(50, 4_000, SourceWork::Writes(pieces));
    }

    /// The next piece; after the last the source's part is done.
    pub fn device_state_piece(&mut self, left: u64) {
        if self.guest.gone {
            return;
        }
        // Its main loop runs: input to a console goes to guest RAM.
        if self.random.percent(40) {
            self.guest.hypervisor_writes(&mut self.random);
        }
        if left == 0 {
            self.guest.sending = Sending::Completed;
            (self.guest.disks, self.source.written) = (false, true);
            return self.handle_source(Event::DeviceStateDone);
        }
        let length = self.random.between(1, 5_000) as usize;
        let operations = self.source.operations;
        self.handle_source(Event::DeviceState(vec![2; length]));
        // The core may roll back at that moment: then the hypervisor writes no more.
        if self.source.operations == operations {
            self.source_will(10, 3_000, SourceWork::Writes(left - 1));
        }
    }
}
