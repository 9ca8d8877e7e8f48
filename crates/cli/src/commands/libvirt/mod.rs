//! `linerate migrate qemu:///system/NAME`: libvirt moves its domain as it always does, and each of its sockets comes out at
//! the other host through a tunnel over all links.
//!
//! | room | what lives there |
//! |---|---|
//! | here | from the first look to the end |
//! | `direct` | from RAM to RAM, while libvirt's migration waits |
//! | `virsh` | libvirt's client as a helper process |
//! | `plan` | what is asked of libvirt and of the tunnel |
//! | `xml` | the domain as it shall be at the destination, where that is different |
//! | `target` | which domain is meant, and what it must be like |
//! | `progress` | what is shown on the way and at the end |

mod direct;
mod plan;
mod progress;
mod target;
mod virsh;
mod xml;

pub use virsh::Job;

use std::time::Duration;

use linerate_api::{ErrorBody, GuestState, Side, Step, TunnelEvent, TunnelStream};
use tokio::io::AsyncReadExt;
use tokio::process::Child;
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::direct::{Direct, Way};
use self::plan::Plan;
use self::progress::Progress;
use self::target::{Target, check_there};
use self::virsh::{Virsh, words};
use self::xml::Changes;
use crate::context::Context;
use crate::exit::{self, Exit};
use crate::failure::Failure;
use crate::flags::{Domain, MigrateFlags};

/// Where the way to the other libvirt was lost.
const SEE_THERE: &str = "this host's libvirt did not hear how it ended there: see that the destination's does not run the domain too (`virsh domstate`) before you try again";
/// How often libvirt is asked for the job's numbers.
const LOOK: Duration = Duration::from_millis(500);

/// Moves a domain.
pub async fn run(domain: &Domain, flags: &MigrateFlags, context: &Context) -> Result<Exit, Failure> {
    plan::check(flags)?;
    let changes = Changes::named(flags)?;
    let here = Virsh::new(&domain.uri);
    let domain = &Target::find(domain, &here).await?;
    let persistent = here.is_persistent(&domain.uuid).await?;
    let plan = Plan::new(domain, flags, changes.clone(), persistent)?;
    let mut progress = Progress::new(context, flags.quiet);
    if persistent && changes.only_live() {
        progress.warn("the definition that stays at the destination is as it is here: --persistent-xml changes that, too")?;
    }
    match direct::choose(domain, &plan, flags, context).await? {
        Way::Direct(id) => {
            progress.mode(true, None)?;
            let plan = &plan.waiting();
            return Direct { id, domain, plan, changes: &changes, flags, context }.run(progress).await;
        }
        Way::Own(reason) => {
            plan::check_own(flags, reason.as_deref())?;
            progress.mode(false, reason.as_deref())?;
        }
    }
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| signals(&error))?;
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| signals(&error))?;
    let request = plan.tunnel(flags);
    let mut events = context.client.tunnel(&request).await?;
    ready(&mut events, |event| progress.tunnel(event)).await?;
    let there = Virsh::new(plan.destination());
    check_there(domain, &there).await?;
    changes.parse_at(&there).await?;
    let mut moving = Moving {
        here: &here,
        domain,
        child: here.start(&plan.arguments())?,
        blackout: flags.max_blackout,
        asked: false,
        cut_off: false,
    };
    let ended = moving.watch(&mut events, [&mut interrupt, &mut terminate], &mut progress).await?;
    progress.clear();
    match ended {
        Ended::Done => {
            // The tunnel still stands: the destination's libvirt knows how it went, and where the domain is.
            let (state, as_it_was) = arrived(&there, domain, &mut progress).await?;
            progress.completed(&domain.name, &flags.to, &state, there.job(&domain.uuid, true).await)?;
            Ok(if as_it_was { Exit::Ok } else { Exit::MovedWithFault })
        }
        Ended::Failed(said) => {
            let trouble = progress.trouble().map(|text| format!("; {text}")).unwrap_or_default();
            let (asked, cut_off) = (moving.asked, moving.cut_off);
            let broken = Broken { said: &said, trouble: &trouble, asked, cut_off };
            Err(failed(&here, domain, broken, &mut progress).await)
        }
    }
}

/// Until the tunnel stands. What comes before that is shown.
async fn ready(
    events: &mut TunnelStream,
    mut show: impl FnMut(&TunnelEvent) -> Result<(), Failure>,
) -> Result<(), Failure> {
    loop {
        match events.next().await?.ok_or_else(agent_gone)? {
            TunnelEvent::Ready { .. } => return Ok(()),
            TunnelEvent::Ended { error } => return Err(Failure::of_body(exit::of_body(&error), &error)),
            event => show(&event)?,
        }
    }
}

/// How libvirt's migration ended.
enum Ended {
    Done,
    Failed(String),
}

/// A migration under way.
struct Moving<'a> {
    here: &'a Virsh,
    domain: &'a Target,
    child: Child,
    /// Set once libvirt has a job to set it for.
    blackout: Option<u32>,
    /// Its end was asked for.
    asked: bool,
    /// The tunnel ended before libvirt did.
    cut_off: bool,
}

impl Moving<'_> {
    async fn watch(
        &mut self,
        events: &mut TunnelStream,
        [interrupt, terminate]: [&mut Signal; 2],
        progress: &mut Progress<'_>,
    ) -> Result<Ended, Failure> {
        let mut errors = self.child.stderr.take();
        let mut said = Vec::new();
        let mut tick = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                status = self.child.wait() => {
                    let status = status.map_err(|error| Failure::output(&error))?;
                    if let Some(errors) = &mut errors {
                        // What was said up to its end is all that there is.
                        let _ = errors.read_to_end(&mut said).await;
                    }
                    if !status.success() && !self.cut_off {
                        // Why a connection was refused may still be on its way here.
                        while let Ok(Ok(Some(event))) = tokio::time::timeout(LOOK, events.next()).await {
                            self.cut_off |= matches!(event, TunnelEvent::Ended { .. });
                            progress.tunnel(&event)?;
                        }
                    }
                    return Ok(if status.success() { Ended::Done } else { Ended::Failed(words(&said)) });
                }
                event = events.next(), if !self.cut_off => match event {
                    Ok(Some(event)) => {
                        // After its end libvirt finds all sockets closed, and ends by itself.
                        self.cut_off = matches!(event, TunnelEvent::Ended { .. });
                        progress.tunnel(&event)?;
                    }
                    // Without the agent they are closed as well.
                    Ok(None) | Err(_) => self.cut_off = true,
                },
                _ = interrupt.recv() => self.abort(progress).await?,
                _ = terminate.recv() => self.abort(progress).await?,
                _ = tick.tick() => self.look(progress).await?,
            }
        }
    }

    async fn look(&mut self, progress: &mut Progress<'_>) -> Result<(), Failure> {
        let Some(job) = self.here.job(&self.domain.uuid, false).await else { return Ok(()) };
        if let Some(limit) = self.blackout.filter(|_| job.contains_key("memory_total")) {
            self.blackout = None;
            let limit = limit.to_string();
            if let Err(refused) = self.here.run(&["migrate-setmaxdowntime", &self.domain.uuid, &limit]).await
            {
                progress.warn(&format!("the blackout's limit was not taken: {}", refused.message()))?;
            }
        }
        progress.job(&job)
    }

    async fn abort(&mut self, progress: &mut Progress<'_>) -> Result<(), Failure> {
        self.asked = true;
        if let Err(refused) = self.here.run(&["domjobabort", &self.domain.uuid]).await {
            progress.warn(&format!("not cancelled yet: {}", refused.message()))?;
        }
        Ok(())
    }
}

/// What the destination's libvirt says of the domain, which libvirt has moved, and whether that is what was to be.
async fn arrived(
    there: &Virsh,
    domain: &Target,
    progress: &mut Progress<'_>,
) -> Result<(String, bool), Failure> {
    let found = there.find(&domain.uuid, |text| progress.note(text)).await;
    let trouble = match &found {
        Ok(Some(state)) if state == domain.state() => return Ok((state.clone(), true)),
        Ok(Some(state)) => format!("it is {state} there, and was {} here", domain.state()),
        Ok(None) => "the destination's does not know it".to_owned(),
        Err(dead) => format!("the destination's cannot be asked: {}", dead.message()),
    };
    progress.warn(&format!(
        "libvirt says that it has moved the domain, but {trouble}: look at both with `virsh domstate {}`",
        domain.uuid
    ))?;
    Ok((found.ok().flatten().unwrap_or_else(|| "unknown".into()), false))
}

/// How it went wrong: `said` by libvirt, `asked` for by the operator, or `cut_off` from the other host.
struct Broken<'a> {
    said: &'a str,
    trouble: &'a str,
    asked: bool,
    cut_off: bool,
}

/// What became of it, and of the domain.
async fn failed(here: &Virsh, domain: &Target, broken: Broken<'_>, progress: &mut Progress<'_>) -> Failure {
    let Broken { said, trouble, asked, cut_off } = broken;
    let found = here.find(&domain.uuid, |text| progress.note(text)).await;
    let guest = guest_state(found.as_ref().ok().and_then(|state| state.as_deref()), cut_off);
    let place = match &found {
        Ok(Some(state)) => format!("; the domain is {state} here"),
        Ok(None) => {
            "; this host's libvirt does not know the domain any more: look at the destination's".into()
        }
        Err(dead) => format!(
            "; where the domain is cannot be said, as this host's libvirt does not answer: {}",
            dead.message()
        ),
    };
    let code = if asked { "cancelled" } else { "libvirt_failed" };
    let hint =
        if cut_off { SEE_THERE } else { "`virsh domstate` on both hosts; libvirt's own log says more" };
    let body = ErrorBody {
        step: Some(Step::Copy),
        side: Some(Side::Source),
        retry_can_help: !cut_off,
        guest_state: guest,
        ..ErrorBody::new(code, format!("libvirt says: {said}{trouble}{place}")).with_hint(hint)
    };
    let code = match (asked, &guest) {
        (true, Some(GuestState::RunsAtSource)) => Exit::Cancelled,
        (_, None) => Exit::Undecided,
        _ => exit::of_body(&body),
    };
    Failure::of_body(code, &body)
}

/// What the domain does, whose state this host's libvirt says is this. It leaves one paused of which it did not hear that it runs at the
/// destination.
fn guest_state(state: Option<&str>, cut_off: bool) -> Option<GuestState> {
    match state {
        Some("running") => Some(GuestState::RunsAtSource),
        Some("paused") if cut_off => Some(GuestState::Unknown),
        Some("paused") => Some(GuestState::PausedAtSource),
        _ => None,
    }
}

fn signals(error: &std::io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("signals cannot be watched: {error}"), "")
}

fn agent_gone() -> Failure {
    Failure::new(Exit::Unreachable, "the agent is gone; nothing was done", "")
}

#[cfg(test)]
mod testing {
    use clap::Parser;

    use super::target::Target;
    use crate::flags::{Command, Flags, MigrateFlags};

    /// A domain that runs.
    pub fn target() -> Target {
        let uuid = "0f0e8c9a-0000-4000-8000-000000000001".into();
        Target { uri: "qemu:///system".into(), name: "web".into(), uuid, paused: false }
    }

    /// Flags of a command that moves a domain.
    pub fn flags(more: &[&str]) -> MigrateFlags {
        let words = [&["linerate", "migrate", "qemu:///system/web", "--to", "beta"], more].concat();
        match Flags::parse_from(words).command {
            Command::Migrate(flags) => flags,
            other => panic!("{other:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paused_domain_may_run_at_the_destination_where_the_way_there_was_lost() {
        for (state, cut_off, said) in [
            (Some("running"), true, Some(GuestState::RunsAtSource)),
            (Some("paused"), false, Some(GuestState::PausedAtSource)),
            (Some("paused"), true, Some(GuestState::Unknown)),
            (None, true, None),
        ] {
            assert_eq!(guest_state(state, cut_off), said, "{state:?} {cut_off}");
        }
    }
}
