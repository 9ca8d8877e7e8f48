//! The ten steps of a migration as the destination takes them. `outgoing/steps.rs` has the table of both sides.

use linerate_core::destination::Action;

use super::channels;
use super::session_loop::SessionLoop;
use super::worker::Job;

impl SessionLoop {
    /// Has an action of the core executed. What the worker does comes back as an event.
    pub(super) fn execute(&mut self, action: Action) {
        match action {
            // All steps: what the core sends to the source.
            Action::Transmit(path, frame) => self.transmit(path, frame),
            Action::DeliverStreamMessage(message) => self.shared.heard(message),
            Action::Fence(channel) => channels::fence(&self.shared, channel),
            Action::Journal(phase) => self.write_journal(phase),
            // 3 admit
            Action::Admit { guest, description, mode } => {
                let (session, peer) = (self.shared.session, self.shared.peer);
                tracing::info!(%session, guest, mode = %mode.tag(), %peer, "a guest is offered");
                self.worker.submit(Job::Admit { guest, description, mode });
            }
            // 4 prepare
            Action::Prepare => self.worker.submit(Job::Prepare),
            // 8 blackout
            Action::Seal { digest } => self.worker.submit(Job::Seal { digest }),
            Action::LoadDeviceState(bytes) => self.worker.submit(Job::LoadDeviceState(bytes)),
            Action::FinishDeviceState => self.worker.submit(Job::FinishDeviceState),
            Action::CheckDisks(disks) => self.worker.submit(Job::CheckDisks(disks)),
            // 9 commit
            Action::Run { ran } => self.worker.submit(Job::Run { ran, cpu_before: self.cpu_before }),
            Action::RestoreHypervisor => self.worker.submit(Job::Release),
            // 10 clean up, or instead of 9: nothing of the guest stays here
            Action::Discard => self.tear_down(),
            Action::End(fault) => self.end(fault),
        }
    }
}
