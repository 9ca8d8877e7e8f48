//! The ten steps of a migration as the destination takes them. `outgoing/steps.rs` has the table of both sides.

use linerate_core::destination::{Action, piece_weight};

use super::channels;
use super::session_loop::SessionLoop;

impl SessionLoop {
    /// Has an action of the core executed. What the worker does is answered by an event.
    pub(super) fn execute(&mut self, action: Action) {
        match action {
            // All steps: what the core sends to the source.
            Action::Transmit(path, frame) => self.transmit(path, frame),
            Action::DeliverStreamMessage(message) => self.shared.deliver(message),
            Action::Fence(channel) => channels::fence(&self.shared, channel),
            Action::Journal(phase) => self.write_journal(phase),
            // 3 admit
            Action::Admit { guest, description, mode } => {
                let (session, peer) = (self.shared.session, self.shared.peer);
                tracing::info!(%session, guest, mode = %mode.tag(), %peer, "a guest is offered");
                self.worker.admit(guest, description, mode);
            }
            // 4 prepare
            Action::Prepare => self.worker.submit("prepare", |guest| guest.prepare()),
            // 8 blackout
            Action::Seal { digest } => self.worker.submit("seal", move |guest| guest.seal(digest)),
            Action::LoadDeviceState(bytes) => {
                let held = self.held.split(piece_weight(&bytes));
                self.worker.submit("load device state", move |guest| {
                    let _held_until_it_is_loaded = held;
                    guest.load_device_state(&bytes)
                });
            }
            Action::FinishDeviceState => {
                self.worker.submit("finish device state", |guest| guest.finish_device_state());
            }
            Action::CheckDisks(disks) => {
                self.worker.submit("check disks", move |guest| guest.check_disks(&disks));
            }
            // 9 commit
            Action::Run { was_running: ran } => self.worker.submit("run", move |guest| guest.run(ran)),
            Action::Look => self.worker.submit("look", |guest| guest.look()),
            Action::RestoreHypervisor => {
                self.worker.submit("restore hypervisor", |guest| guest.restore_hypervisor());
            }
            // 10 clean up, or instead of 9: nothing of the guest stays here
            Action::Discard => self.discard(),
            Action::LeaveToRecovery { fault, rolled_back } => self.leave_to_recovery(&fault, rolled_back),
            Action::End(fault) => self.end(fault),
        }
    }
}
