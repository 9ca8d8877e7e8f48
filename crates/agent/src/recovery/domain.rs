//! A capability that was set in the QEMU of a domain of libvirt is taken off again, however long that QEMU does not answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_core::SessionId;
use linerate_guest::domain;

use crate::agent::Agent;
use crate::faults::chain;
use crate::journal::{Record, Role};

/// libvirt's migration fails and lets the domain's QEMU go.
const DOMAIN_WAIT: Duration = Duration::from_secs(30);
/// Between two tries.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

pub(super) fn put_back(agent: &Arc<Agent>, session: SessionId, record: Record) {
    let Role::Handover { qemu, over: false } = record.role.clone() else { return };
    let agent = agent.clone();
    let trying = move || {
        tracing::warn!(%session, guest = record.guest, "the agent ended while this domain was moved: putting its QEMU's setting back");
        while let Err(error) = domain::put_back(&qemu, Instant::now() + DOMAIN_WAIT) {
            tracing::error!(
                guest = record.guest,
                error = chain(&error),
                "x-ignore-shared may still be on: do not save this domain; it is tried again"
            );
            std::thread::sleep(AGAIN_AFTER);
        }
        let role = Role::Handover { qemu: qemu.clone(), over: true };
        let _ = agent.journal.put_end(session, &Record { role, ..record });
    };
    if let Err(error) = std::thread::Builder::new().name("put-back".into()).spawn(trying) {
        tracing::error!(%session, %error, "no thread to put a domain's setting back; the next start of the agent tries again");
    }
}
