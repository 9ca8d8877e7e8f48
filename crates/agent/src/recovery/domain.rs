//! Executes the recovery of a capability that was set in the QEMU of a domain of libvirt.

use std::sync::Arc;
use std::time::Instant;

use linerate_core::SessionId;
use linerate_core::recovery::{PUT_BACK_FOR, SettingAction, SettingRecovery};
use linerate_guest::domain;
use linerate_guest::registry::GuestRecord;

use super::Sessions;
use crate::clock::Clock;
use crate::faults::chain;
use crate::journal::{Record, Role};

pub(super) fn put_back(sessions: &Arc<Sessions>, session: SessionId, record: Record) {
    let Role::Handover { qemu, over: false } = record.role.clone() else { return };
    tracing::warn!(%session, guest = record.guest, "the agent ended while this domain was moved: putting its QEMU's setting back");
    let sessions = sessions.clone();
    let trying = move || recover(&sessions, session, &record, &qemu);
    if let Err(error) = std::thread::Builder::new().name("put-back".into()).spawn(trying) {
        tracing::error!(%session, %error, "cannot start a thread to put a domain's setting back; the next start of the agent tries again");
    }
}

fn recover(sessions: &Sessions, session: SessionId, record: &Record, qemu: &GuestRecord) {
    let clock = Clock::start();
    let mut machine = SettingRecovery::new(clock.now());
    while let Some(due) = machine.timeout() {
        std::thread::sleep(due.since(clock.now()));
        match machine.poll_action(clock.now()) {
            Some(SettingAction::PutBack) => {
                let done = domain::put_back(qemu, Instant::now() + PUT_BACK_FOR);
                if let Err(error) = &done {
                    tracing::error!(
                        guest = record.guest,
                        error = chain(error),
                        "x-ignore-shared may still be on: do not save this domain; it is tried again"
                    );
                }
                machine.tried(clock.now(), done.is_ok());
            }
            Some(SettingAction::Close) => {
                let role = Role::Handover { qemu: qemu.clone(), over: true };
                // If the disk does not take it now, the journal tries it again.
                let _ = sessions.journal.put_end(session, &Record { role, ..record.clone() });
            }
            None => {}
        }
    }
}
