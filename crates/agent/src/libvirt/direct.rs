//! Domains whose RAM the agents copy: libvirt's own migration waits meanwhile, and is released when all of RAM is at
//! the destination.

use std::sync::Arc;
use std::time::Duration;

use linerate_api::{
    DomainMigration, ErrorBody, EventKind, LibvirtRequest, MigrateRequest, MigrationOutcome, ModeChoice, Step,
};
use tokio::process::Child;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::Needs;
use super::domain_tunnel::DomainTunnel;
use super::ending::{Broken, Ended, SEE_THERE, arrived, failed, seen_there};
use super::moves::Copied;
use super::own::{POLL_INTERVAL, error_text};
use super::plan::Plan;
use super::target::{Target, check_there};
use super::virsh::Virsh;
use super::{Job, Move};
use crate::convert;
use crate::outgoing::Outgoing;

/// Error codes of the copy for a domain that cannot move in direct mode, and was not touched.
const NOT_THIS_WAY: [&str; 4] = ["not_migratable", "hypervisor_failed", "tracking_failed", "memory_failed"];
/// The agents find out by themselves that libvirt gave up, and why the copy ended.
const VERDICT_WAIT: Duration = Duration::from_secs(5);

/// Where libvirt has ended and the agents wait for what it does with the domain.
const CHECK_BOTH: &str = "That does not show where the domain runs: check both hosts with `virsh domstate`. Where the \
destination's runs it, end the one here (`virsh destroy`, then `virsh undefine` if it is still defined) and never \
resume it; where the destination's does not know it, `virsh resume` it here";

/// How the domain moves.
pub enum Choice {
    /// The agents copy, in a migration that has begun and waits for libvirt's.
    Direct(Arc<Outgoing>),
    /// By libvirt's own, and why.
    Own(Option<String>),
}

/// Chooses. If the agents can copy the domain's RAM, the copy has begun: the domain was checked.
pub async fn choose(
    needs: &Arc<Needs>,
    domain: &Target,
    plan: &Plan,
    (request, libvirt): (&MigrateRequest, &LibvirtRequest),
) -> Result<Choice, ErrorBody> {
    let own = match request.mode {
        ModeChoice::Stream => Some(None),
        _ if request.copies_disks() || libvirt.above_backing_files => {
            Some(Some("disks are copied (--copy-storage, --copy-disks)".to_owned()))
        }
        _ if libvirt.connections.is_some() => Some(Some("--connections is given".to_owned())),
        _ => None,
    };
    if let Some(reason) = own {
        return Ok(Choice::Own(reason));
    }
    let stream = DomainMigration { stream: plan.stream(), job: plan.job(), uuid: domain.uuid.clone() };
    let inner = MigrateRequest {
        guest: domain.name.clone(),
        mode: ModeChoice::Direct,
        libvirt: None,
        domain: Some(stream),
        ..request.clone()
    };
    match begin(needs, inner).await {
        Ok(copy) => Ok(Choice::Direct(copy)),
        Err(refused) if request.mode == ModeChoice::Auto && NOT_THIS_WAY.contains(&refused.code.as_str()) => {
            Ok(Choice::Own(Some(refused.message)))
        }
        Err(refused) => Err(refused),
    }
}

async fn begin(needs: &Arc<Needs>, request: MigrateRequest) -> Result<Arc<Outgoing>, ErrorBody> {
    let needs = needs.clone();
    let begin = move || (needs.begin_copy)(request).map_err(|fault| convert::error(&fault, None));
    let begun = tokio::task::spawn_blocking(begin).await;
    begun.map_err(|error| super::internal(format!("a defect in the agent: {error}")))?
}

/// How libvirt's part ended. The tunnel is open until this is dropped.
struct Driven {
    tunnel: DomainTunnel,
    /// libvirt's message, if it failed.
    message: Option<String>,
    /// The copy had not ended by itself.
    first: bool,
}

/// virsh, while libvirt's migration waits.
struct Waiting<'a> {
    job: &'a Job,
    child: Child,
    cancel_copy: &'a (dyn Fn() + Sync),
    /// The copy has ended.
    is_over: bool,
    /// libvirt was asked by the operator since then.
    asked: bool,
}

impl Job {
    /// Drives libvirt and watches the copy. On an error libvirt has not touched the domain.
    pub(super) async fn copy_and_drive(&self, copy: &Arc<Outgoing>) -> Result<Ended, ErrorBody> {
        let over = Notify::new();
        let watching = async {
            follow(copy, &self.shared).await;
            over.notify_one();
        };
        let ((), driven) = tokio::join!(watching, self.drive_until_over(copy, &over));
        let Driven { tunnel, message, first } = driven?;
        let warn = |text: &str| self.shared.warn(text);
        let there = Virsh::new(self.plan.destination());
        let Some(message) = message else {
            return Ok(arrived((&self.here, &there), &self.domain, self.fault(), warn).await);
        };
        match self.shared.copied() {
            Some(copied) if !first && copied.outcome != MigrationOutcome::Completed => {
                let ended = with_message(copied, &message, tunnel.cut_off);
                Ok(if tunnel.cut_off { ended } else { seen_there(ended, &there, &self.domain, warn).await })
            }
            _ => {
                let (trouble, cut_off) = (tunnel.trouble(), tunnel.cut_off);
                let broken = Broken { message: &message, trouble: &trouble, asked: false, cut_off };
                Ok(failed(&self.here, &there, &self.domain, broken, warn).await)
            }
        }
    }

    /// Why the copy did not succeed.
    fn fault(&self) -> Option<String> {
        let copied = self.shared.copied()?;
        let why = || copied.error.map_or_else(|| "the copy was given up".to_owned(), |error| error.message);
        (copied.outcome != MigrationOutcome::Completed).then(why)
    }

    async fn drive_until_over(&self, copy: &Outgoing, over: &Notify) -> Result<Driven, ErrorBody> {
        let driven = self.drive_waiting(copy, over).await;
        let ours = driven.as_ref().map_or(true, |driven| driven.first);
        if ours {
            // It may be over already.
            copy.cancel();
            if let Ok(Driven { message: Some(message), .. }) = &driven
                && timeout(VERDICT_WAIT, over.notified()).await.is_err()
            {
                self.shared.warn(&format!("{message}. {CHECK_BOTH}"));
            }
        }
        driven
    }

    async fn drive_waiting(&self, copy: &Outgoing, over: &Notify) -> Result<Driven, ErrorBody> {
        let mut tunnel = DomainTunnel::open(&self.needs, self.plan.tunnel()).await?;
        self.shared.note_cipher(tunnel.cipher());
        tunnel.ready(|_| ()).await?;
        let there = Virsh::new(self.plan.destination());
        if let Err(refused) = check_there(&self.domain, &there).await {
            return Err(tunnel.explain(refused).await);
        }
        self.changes.parse_at(&there).await?;
        let child = self.here.start(&self.plan.arguments())?;
        let cancel_copy = || copy.cancel();
        let mut waiting =
            Waiting { job: self, child, cancel_copy: &cancel_copy, is_over: false, asked: false };
        let Some(message) = waiting.watch(&mut tunnel, over).await else {
            return Ok(Driven { tunnel, message: None, first: false });
        };
        // Where libvirt's job has not even begun, there is no verdict that the agents could wait for.
        let wait = if copy.summary().step == Step::Resolve { Duration::ZERO } else { VERDICT_WAIT };
        let first = !waiting.is_over && timeout(wait, over.notified()).await.is_err();
        // The event of the tunnel's end may still be in flight.
        while !tunnel.cut_off && timeout(POLL_INTERVAL, tunnel.next()).await.is_ok() {}
        Ok(Driven { tunnel, message: Some(message), first })
    }
}

impl Waiting<'_> {
    /// Until libvirt has ended. Its message, if it failed.
    async fn watch(&mut self, tunnel: &mut DomainTunnel, over: &Notify) -> Option<String> {
        let uuid = &self.job.domain.uuid;
        let status = loop {
            tokio::select! {
                status = self.child.wait() => break status,
                // What becomes of the tunnel is seen by its end; the copy has its own links.
                _ = tunnel.next() => {}
                () = over.notified(), if !self.is_over => {
                    self.is_over = true;
                    // Where the domain has moved, libvirt has no job any more. Where it has not, libvirt's job need not
                    // end by itself at once.
                    let _ = self.job.here.abort_migration(uuid).await;
                }
                () = self.job.shared.cancelled.notified() => self.cancel().await,
            }
        };
        match status {
            Ok(status) if status.success() => None,
            Ok(_) => Some(error_text(&mut self.child).await + &tunnel.trouble()),
            Err(error) => Some(format!("virsh cannot be waited for: {error}")),
        }
    }

    /// Ends the copy; once that has ended, asks libvirt. virsh is ended by the second request after that, as libvirt
    /// does not answer.
    async fn cancel(&mut self) {
        if !self.is_over {
            (self.cancel_copy)();
        } else if std::mem::replace(&mut self.asked, true) {
            if let Err(error) = self.child.start_kill() {
                tracing::warn!(%error, "virsh cannot be ended");
            }
        } else {
            let _ = timeout(VERDICT_WAIT, self.job.here.abort_migration(&self.job.domain.uuid)).await;
        }
    }
}

/// Events of the copy become the migration's, until its end.
async fn follow(copy: &Outgoing, shared: &Move) {
    let mut cursor = copy.event_log.watch();
    loop {
        let (events, over) = copy.event_log.next_events(&mut cursor);
        for event in events {
            if !matches!(event.kind, EventKind::Finished { .. }) {
                shared.event_log.publish(event.kind);
            }
        }
        if over {
            return;
        }
        cursor.changed().await;
    }
}

/// The copy's own end, with libvirt's message.
fn with_message(copied: Copied, message: &str, cut_off: bool) -> Ended {
    let Copied { outcome, error, .. } = copied;
    let given_up = || ErrorBody::new("internal", "the copy was given up");
    let mut error = error.map_or_else(given_up, |error| *error);
    error.message = format!("{}; {message}", error.message);
    if cut_off {
        // What was released before may run there too, and nobody was asked.
        error.retry_can_help &= error.step != Some(Step::Commit);
        error.hint =
            if error.hint.is_empty() { SEE_THERE.into() } else { format!("{}; {SEE_THERE}", error.hint) };
    }
    Ended::failed(error, outcome)
}

#[cfg(test)]
mod tests;
