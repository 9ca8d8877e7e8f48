//! libvirt's own migration.

use std::time::Duration;

use linerate_api::{DomainEvent, ErrorBody, EventKind, Step, TunnelEvent};
use tokio::io::AsyncReadExt;
use tokio::process::Child;
use tokio::time::timeout;

use super::domain_tunnel::DomainTunnel;
use super::ending::{Broken, Ended, arrived, failed};
use super::target::check_there;
use super::virsh::{Virsh, describe};
use super::{Job, not_begun};

/// How often libvirt is asked for the job's numbers.
pub const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// virsh, while it waits for libvirt.
struct Driving<'a> {
    job: &'a Job,
    child: Child,
    /// Set once libvirt has a job to set it for.
    max_blackout_ms: Option<u32>,
    /// The operator was warned why it is not cancelled yet.
    warned: bool,
}

impl Job {
    fn show(&self, event: TunnelEvent) {
        self.shared.event_log.publish(EventKind::Tunnel(event));
    }

    /// From the tunnel to libvirt's answer about the end. On an error the domain was not touched.
    pub(super) async fn drive(&self) -> Result<Ended, ErrorBody> {
        let mut tunnel = DomainTunnel::open(&self.needs, self.plan.tunnel()).await?;
        self.shared.note_cipher(tunnel.cipher());
        tunnel.ready(|event| self.show(event)).await?;
        self.drive_through(&mut tunnel, &Virsh::new(self.plan.destination())).await
    }

    /// The same with a tunnel that is ready, and the destination's libvirt behind it.
    async fn drive_through(&self, tunnel: &mut DomainTunnel, there: &Virsh) -> Result<Ended, ErrorBody> {
        if let Err(refused) = check_there(&self.domain, there).await {
            return Err(tunnel.explain(refused).await);
        }
        self.changes.parse_at(there).await?;
        if self.shared.is_asked() {
            return Ok(not_begun(&self.domain));
        }
        let child = self.here.start(&self.plan.arguments())?;
        self.shared.set_step(Step::Copy);
        let mut driving = Driving { job: self, child, max_blackout_ms: self.max_blackout_ms, warned: false };
        let warn = |text: &str| self.shared.warn(text);
        Ok(match driving.watch(tunnel).await {
            // The tunnel is still open: the destination's libvirt knows how it went, and where the domain is.
            None => arrived((&self.here, there), &self.domain, None, warn).await,
            Some(message) => {
                let (asked, cut_off) = (self.shared.is_asked(), tunnel.cut_off);
                let broken = Broken { message: &message, trouble: &tunnel.trouble(), asked, cut_off };
                failed(&self.here, there, &self.domain, broken, warn).await
            }
        })
    }
}

impl Driving<'_> {
    /// Until libvirt has ended. Its message, if it failed.
    async fn watch(&mut self, tunnel: &mut DomainTunnel) -> Option<String> {
        let mut tick = tokio::time::interval(POLL_INTERVAL);
        let status = loop {
            tokio::select! {
                status = self.child.wait() => break status,
                event = tunnel.next() => self.job.show(event),
                () = self.job.shared.cancelled.notified() => self.abort().await,
                _ = tick.tick() => self.poll_job().await,
            }
        };
        match status {
            Ok(status) if status.success() => return None,
            // It was killed, and libvirt goes on without it.
            Ok(status) if status.code().is_none() => self.abort().await,
            Ok(_) => {}
            Err(error) => return Some(format!("virsh cannot be waited for: {error}")),
        }
        // The reason why a connection was refused may still be in flight.
        while let (false, Ok(event)) = (tunnel.cut_off, timeout(POLL_INTERVAL, tunnel.next()).await) {
            self.job.show(event);
        }
        Some(error_text(&mut self.child).await)
    }

    async fn poll_job(&mut self) {
        if self.job.shared.is_asked() {
            self.abort().await;
        }
        let (here, uuid) = (&self.job.here, &self.job.domain.uuid);
        let Some(job) = here.job(uuid, false).await else { return };
        if let Some(limit) = self.max_blackout_ms.filter(|_| job.contains_key("memory_total")) {
            self.max_blackout_ms = None;
            if let Err(refused) = here.run(&["migrate-setmaxdowntime", uuid, &limit.to_string()]).await {
                self.job.shared.warn(&format!("the blackout's limit was not taken: {}", refused.message));
            }
        }
        self.job.shared.set_job(&job);
        self.job.shared.publish(DomainEvent::Progress { job });
    }

    /// Asks libvirt for the job's end. Where that does not work, it is asked again with the next poll.
    async fn abort(&mut self) {
        if let Err(refused) = self.job.here.abort_migration(&self.job.domain.uuid).await
            && !std::mem::replace(&mut self.warned, true)
        {
            self.job.shared.warn(&format!("not cancelled yet: {}", refused.message));
        }
    }
}

/// virsh's message before it ended, for the end of a sentence.
pub async fn error_text(child: &mut Child) -> String {
    let mut text = Vec::new();
    if let Some(errors) = &mut child.stderr {
        // If reading fails, the text up to there is used.
        let _ = errors.read_to_end(&mut text).await;
    }
    match describe(&text) {
        text if text.is_empty() => "virsh ended without a message".into(),
        text => format!("libvirt reports: {text}"),
    }
}

#[cfg(test)]
mod tests;
