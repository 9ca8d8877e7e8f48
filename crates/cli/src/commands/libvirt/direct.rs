//! RAM from RAM to RAM, while libvirt's own migration waits: the agents copy and let its stream through when all of it is there.

use std::time::Duration;

use linerate_api::{DomainMove, MigrateRequest, MigrationId, ModeChoice, Step, TunnelEvent, TunnelStream};
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::plan::Plan;
use super::progress::Progress;
use super::target::{Target, check_there};
use super::virsh::{Virsh, words};
use super::xml::Changes;
use super::{Broken, LOOK, SEE_THERE, arrived, failed, ready, signals};
use crate::context::Context;
use crate::display::view::View;
use crate::display::{Start, watch};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::MigrateFlags;

/// What the agent says of a domain that cannot go this way, and has not touched.
const NOT_THIS_WAY: [&str; 4] = ["not_migratable", "hypervisor_failed", "tracking_failed", "memory_failed"];
/// The agents see by themselves that libvirt gave up, and why the domain's move ended.
const VERDICT_WAIT: Duration = Duration::from_secs(5);

/// QEMU's setting with which a domain would be saved without its RAM.
const PUT_BACK: &str = r#"{"execute":"migrate-set-capabilities","arguments":{"capabilities":[{"capability":"x-ignore-shared","state":false}]}}"#;

/// Where an agent is gone, what it set in QEMU may still be on.
const DO_NOT_SAVE: &str =
    "Do not save this domain before the agent was started again: it would be saved without its RAM";

/// Where libvirt has ended and the agents wait for what it does with the domain.
const LOOK_AT_BOTH: &str = "It does not say where the domain runs: look at both hosts with `virsh domstate`. Where the destination's runs it, end the \
one here (`virsh destroy`) and never resume it; where the destination's does not know it, `virsh resume` it here";

/// Which way it goes.
pub enum Way {
    /// The agents copy, in a migration that has begun and waits for libvirt's.
    Direct(MigrationId),
    /// By libvirt's own, and why.
    Own(Option<String>),
}

/// Chooses. Where it can go from RAM to RAM, that has begun: the agent has looked at it.
pub async fn choose(
    domain: &Target,
    plan: &Plan,
    flags: &MigrateFlags,
    context: &Context,
) -> Result<Way, Failure> {
    let own = match flags.mode {
        ModeChoice::Stream => Some(None),
        _ if flags.copies_disks() => Some(Some("disks are copied (--copy-storage, --copy-disks)".to_owned())),
        _ if flags.connections.is_some() => Some(Some("--connections is given".to_owned())),
        _ => None,
    };
    if let Some(reason) = own {
        return Ok(Way::Own(reason));
    }
    let stream = DomainMove { stream: plan.stream(), job: plan.job(), uuid: domain.uuid.clone() };
    let request = MigrateRequest {
        guest: domain.name.clone(),
        mode: ModeChoice::Direct,
        domain: Some(stream),
        ..flags.request()
    };
    match context.client.migrate(&request).await.map_err(Failure::from) {
        Ok(id) => Ok(Way::Direct(id)),
        Err(refused) if flags.mode == ModeChoice::Auto && refused.has_code(&NOT_THIS_WAY) => {
            Ok(Way::Own(Some(refused.message().to_owned())))
        }
        Err(refused) => Err(refused),
    }
}

/// A domain whose migration has begun at the agents.
pub struct Direct<'a> {
    pub id: MigrationId,
    pub domain: &'a Target,
    pub plan: &'a Plan,
    pub changes: &'a Changes,
    pub flags: &'a MigrateFlags,
    pub context: &'a Context,
}

/// How libvirt's part ended. The tunnel stands as long as this lives.
struct Driven {
    _tunnel: TunnelStream,
    /// What libvirt said, if it failed.
    said: Option<String>,
    /// The agents had not ended theirs by themselves.
    first: bool,
    /// The tunnel ended before libvirt did.
    cut_off: bool,
}

/// Takes back what an agent that is gone has set in QEMU.
async fn put_back(here: &Virsh, domain: &Target) -> &'static str {
    match here.run(&["qemu-monitor-command", &domain.uuid, PUT_BACK]).await {
        Ok(answer) if !answer.contains("\"error\"") => "What it had set in the domain's QEMU was put back",
        _ => DO_NOT_SAVE,
    }
}

impl Direct<'_> {
    async fn waits_for_libvirt(&self) -> bool {
        let looked_at = self.context.client.migration(&self.id).await;
        looked_at.is_ok_and(|migration| migration.summary.step == Step::Resolve)
    }

    /// Drives libvirt and watches the agents.
    pub async fn run(self, mut progress: Progress<'_>) -> Result<Exit, Failure> {
        let over = Notify::new();
        let budget = self.flags.request().blackout_budget_ms();
        let view = View::new(&self.domain.name, &self.flags.to, Some(budget));
        let start = Start { id: self.id.clone(), view, quiet: self.flags.quiet, cancel: false };
        let watching = async {
            let watched = watch(self.context, start).await;
            over.notify_one();
            watched
        };
        let (watched, driven) = tokio::join!(watching, self.drive(&over, &mut progress));
        let driven = driven?;
        let here = Virsh::new(&self.domain.uri);
        let Some(said) = &driven.said else {
            let there = Virsh::new(self.plan.destination());
            let (state, as_it_was) = arrived(&there, self.domain, &mut progress).await?;
            let fault = match &watched {
                Ok(Exit::Ok) => None,
                Ok(_) => Some("see the migration's last event".to_owned()),
                Err(failure) => Some(failure.message().to_owned()),
            };
            if let Some(fault) = &fault {
                progress.warn(&format!("libvirt has moved the domain, and then: {fault}"))?;
            }
            progress.completed(&self.domain.name, &self.flags.to, &state, None)?;
            return Ok(if fault.is_none() && as_it_was { Exit::Ok } else { Exit::MovedWithFault });
        };
        let broken = |said, trouble| Broken { said, trouble, asked: false, cut_off: driven.cut_off };
        let lost = |failure: &Failure| matches!(failure.exit, Exit::NotWatched | Exit::Unreachable);
        match watched {
            // libvirt, which is still there, knows what became of the domain.
            Err(failure) if lost(&failure) => {
                let setting = put_back(&here, self.domain).await;
                let trouble = format!("; {}. {setting}", failure.message());
                Err(failed(&here, self.domain, broken(said, &trouble), &mut progress).await)
            }
            Err(failure) if !driven.first => Err(failure.and(&format!("libvirt says: {said}"))),
            Ok(exit) if !driven.first && exit != Exit::Ok => {
                // Its last event was printed; libvirt's words are not in it.
                progress.warn(&format!("libvirt says: {said}"))?;
                if driven.cut_off {
                    progress.warn(SEE_THERE)?;
                }
                Ok(exit)
            }
            _ => Err(failed(&here, self.domain, broken(said, ""), &mut progress).await),
        }
    }

    async fn drive(&self, over: &Notify, progress: &mut Progress<'_>) -> Result<Driven, Failure> {
        let driven = self.drive_libvirt(over).await;
        let ours = driven.as_ref().map_or(true, |driven| driven.first);
        if ours {
            // If it is over already, all the better.
            let _ = self.context.client.cancel(&self.id).await;
            if let Ok(Driven { said: Some(said), .. }) = &driven
                && timeout(VERDICT_WAIT, over.notified()).await.is_err()
            {
                progress.warn(&format!("libvirt says: {said}. {LOOK_AT_BOTH}"))?;
            }
        }
        driven
    }

    async fn drive_libvirt(&self, over: &Notify) -> Result<Driven, Failure> {
        let mut tunnel = self.context.client.tunnel(&self.plan.tunnel(self.flags)).await?;
        ready(&mut tunnel, |_| Ok(())).await?;
        let there = Virsh::new(self.plan.destination());
        check_there(self.domain, &there).await?;
        self.changes.parse_at(&there).await?;
        let here = Virsh::new(&self.domain.uri);
        let mut child = here.start(&self.plan.arguments())?;
        let mut errors = child.stderr.take();
        let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| signals(&error))?;
        let (mut is_over, mut cut_off, mut asked, mut trouble) = (false, false, false, None);
        let status = loop {
            tokio::select! {
                status = child.wait() => break status.map_err(|error| Failure::output(&error))?,
                event = tunnel.next(), if !cut_off => match event {
                    Ok(Some(TunnelEvent::Refused { reason })) => { trouble.get_or_insert(reason); }
                    Ok(Some(TunnelEvent::Ended { error })) => {
                        trouble.get_or_insert(error.message);
                        cut_off = true;
                    }
                    Ok(Some(_)) => {}
                    // libvirt finds its sockets closed, and ends by itself.
                    Ok(None) | Err(_) => cut_off = true,
                },
                () = over.notified(), if !is_over => {
                    is_over = true;
                    // Where it has moved, libvirt has no job any more; where it has not, its job need not end by itself at once.
                    let _ = here.run(&["domjobabort", &self.domain.uuid]).await;
                }
                // Nobody else takes it once the agents' part has ended. A libvirt that does not answer is left by the second.
                _ = interrupt.recv(), if is_over => {
                    if std::mem::replace(&mut asked, true) {
                        child.start_kill().map_err(|error| Failure::output(&error))?;
                    } else {
                        let _ = timeout(VERDICT_WAIT, here.run(&["domjobabort", &self.domain.uuid])).await;
                    }
                }
            }
        };
        if status.success() {
            return Ok(Driven { _tunnel: tunnel, said: None, first: false, cut_off });
        }
        let mut said = Vec::new();
        if let Some(errors) = &mut errors {
            // What was said up to its end is all that there is.
            let _ = errors.read_to_end(&mut said).await;
        }
        let said = words(&said) + &trouble.map(|text| format!("; {text}")).unwrap_or_default();
        // Where libvirt's job has not even begun, the agents wait for nothing that could come.
        let wait = if self.waits_for_libvirt().await { Duration::ZERO } else { VERDICT_WAIT };
        let first = !is_over && timeout(wait, over.notified()).await.is_err();
        // The agent's word of the tunnel's end may still be on its way here.
        while let (false, Ok(Ok(Some(event)))) = (cut_off, timeout(LOOK, tunnel.next()).await) {
            cut_off = matches!(event, TunnelEvent::Ended { .. });
        }
        Ok(Driven { _tunnel: tunnel, said: Some(said), first, cut_off })
    }
}
