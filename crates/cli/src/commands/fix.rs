//! `linerate doctor --fix`: a plan, a question, every port on trial, another look, and only then it stays.

use std::time::Duration;

use linerate_api::{DoctorAnswer, DoctorRequest, Heard, LinkConfirm, LinkRequest, Probes, QosRequest};
use linerate_fabric::checks::run_all;
use linerate_fabric::link::Speed;
use linerate_fabric::mend::{Mends, PortMend, mends, verdict};
use serde::Serialize;

use super::doctor::{Look, exit, page, text, understood};
use super::link::said;
use super::qos;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::DoctorFlags;
use crate::render::fix as render;

/// How often it is looked whether the findings are gone: a link that was set anew needs a moment.
const LOOKS: u32 = 3;
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    /// There was nothing that could be set.
    Nothing,
    /// It was not to be done.
    DryRun,
    /// The operator said no before anything was changed.
    Declined,
    /// Done, looked at, and it stays.
    Kept,
}

/// For programs.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    look: &'a Look,
    fix: &'a Mends,
    outcome: Outcome,
}

/// A port on trial, as its agent is asked about it.
struct OnTrial(LinkConfirm);

/// Shows the plan.
pub fn dry_run(look: &Look, flags: &DoctorFlags, context: &Context) -> Result<Exit, Failure> {
    page(look, flags)?;
    let plan = plan(look, flags)?.0;
    let outcome = if plan.is_empty() { Outcome::Nothing } else { Outcome::DryRun };
    context.answer(&Document { look, fix: &plan, outcome }, || {
        text(look, flags, context) + "\n" + &render::plan(&plan, context.out) + render::DRY_RUN
    })?;
    Ok(exit(&look.findings, &look.unheard))
}

/// All of it.
pub async fn run(
    look: &Look,
    heard: &[Heard],
    flags: &DoctorFlags,
    context: &Context,
) -> Result<Exit, Failure> {
    if flags.dry_run {
        return dry_run(look, flags, context);
    }
    if context.json && !flags.yes {
        let message = "--fix asks before it changes anything, and a program cannot answer";
        return Err(Failure::new(Exit::Usage, message, "--yes, or --dry-run"));
    }
    let (plan, intent) = plan(look, flags)?;
    context.people(|| text(look, flags, context) + "\n" + &render::plan(&plan, context.out))?;
    let said_no = |outcome| {
        page(look, flags)?;
        context.programs(&Document { look, fix: &plan, outcome })?;
        Ok(exit(&look.findings, &look.unheard))
    };
    if plan.is_empty() {
        return said_no(Outcome::Nothing);
    }
    if !flags.yes && !context.ask("Set these on trial?")? {
        context.people(|| "nothing was changed\n".to_owned())?;
        return said_no(Outcome::Declined);
    }
    let job = Job { flags, context, heard, here: look.room.hosts.first().map(|host| host.host.as_str()) };
    let trial = job.set_all(&plan, intent.as_deref()).await?;
    let after = job.judge(look, &plan, &trial).await?;
    if !flags.yes && !context.ask(&render::keep(flags.within))? {
        let words = job.put_back(&trial).await;
        return Err(Failure::new(Exit::Failed, format!("not kept; {words}"), ""));
    }
    job.keep(&trial).await?;
    page(&after, flags)?;
    context.people(|| "it stays\n".to_owned())?;
    context.programs(&Document { look: &after, fix: &plan, outcome: Outcome::Kept })?;
    Ok(exit(&after.findings, &after.unheard))
}

/// What to do, and the text of the intent.
fn plan(look: &Look, flags: &DoctorFlags) -> Result<(Mends, Option<String>), Failure> {
    let text = flags.qos.as_deref().map(qos::text).transpose()?;
    let intent = text.as_deref().map(qos::intent).transpose()?;
    Ok((mends(&look.room, &look.findings, intent.as_ref()), text))
}

/// What every step needs.
struct Job<'a> {
    flags: &'a DoctorFlags,
    context: &'a Context,
    heard: &'a [Heard],
    here: Option<&'a str>,
}

impl Job<'_> {
    /// A host as its agent is asked: by the name that the operator gave, or not at all if it is this one.
    fn named(&self, host: &str) -> Option<String> {
        let other = self.here != Some(host);
        let named = self.heard.iter().find(|one| one.host == host).map(|one| one.named.clone());
        named.filter(|_| other)
    }

    /// Everything on trial, or nothing.
    async fn set_all(&self, plan: &Mends, intent: Option<&str>) -> Result<Vec<OnTrial>, Failure> {
        let mut trial = Vec::new();
        let done = self.set_ports(plan, intent, &mut trial).await;
        match done {
            Ok(()) => Ok(trial),
            Err(failure) => {
                let words = self.put_back(&trial).await;
                self.context.say(&format!("what was set before that: {words}"));
                Err(failure)
            }
        }
    }

    async fn set_ports(
        &self,
        plan: &Mends,
        intent: Option<&str>,
        trial: &mut Vec<OnTrial>,
    ) -> Result<(), Failure> {
        for one in &plan.ports {
            let request = self.request(one);
            let answer = self.context.client.set_link(&request).await?;
            self.context.people(|| said(&answer, request.host.as_deref()))?;
            if answer.applied {
                trial.push(OnTrial(LinkConfirm { port: request.port, host: request.host }));
            }
        }
        for host in &plan.intents {
            let Some(intent) = intent else { continue };
            let named = self.named(&host.plan.host);
            let request = QosRequest {
                intent: intent.to_owned(),
                host: named.clone(),
                dry_run: false,
                confirm_within_s: self.flags.within,
            };
            let answer = self.context.client.apply_qos(&request).await?;
            for port in answer.ports.iter().filter(|port| port.applied) {
                self.context.people(|| said(port, named.as_deref()))?;
                trial.push(OnTrial(LinkConfirm { port: port.port.clone(), host: named.clone() }));
            }
        }
        Ok(())
    }

    fn request(&self, one: &PortMend) -> LinkRequest {
        let wish = &one.wish;
        LinkRequest {
            port: one.place.port.clone().unwrap_or_default(),
            host: self.named(&one.place.host),
            mtu: wish.mtu,
            speed_mbps: wish.speed.map(|speed| match speed {
                Speed::Auto => 0,
                Speed::Forced(mbps) => mbps,
            }),
            fec: wish.fec.clone(),
            pause: wish.pause,
            queues: wish.queues,
            dry_run: false,
            confirm_within_s: self.flags.within,
        }
    }

    /// Looks again: the findings must be gone, and nothing grave may have come. Otherwise all is put back.
    async fn judge(&self, before: &Look, plan: &Mends, trial: &[OnTrial]) -> Result<Look, Failure> {
        let mut why = None;
        for look in 0..LOOKS {
            if look > 0 {
                tokio::time::sleep(BETWEEN_LOOKS).await;
            }
            match self.look().await {
                Ok(after) => {
                    let silent = after.unheard.first().filter(|_| before.unheard.is_empty());
                    let silent =
                        silent.map(|host| format!("{} does not answer any more: {}", host.host, host.why));
                    why = silent.or_else(|| verdict(&before.findings, &plan.goals, &after.findings));
                    if why.is_none() {
                        self.context.people(|| render::gone(&plan.goals))?;
                        return Ok(after);
                    }
                }
                Err(failure) => why = Some(failure.message().to_owned()),
            }
        }
        let words = self.put_back(trial).await;
        let message = format!("it did not help: {}; {words}", why.unwrap_or_default());
        Err(Failure::new(Exit::Failed, message, "`--details` says how to put it right by hand"))
    }

    async fn look(&self) -> Result<Look, Failure> {
        let hosts = self.flags.hosts.clone();
        let request = DoctorRequest { hosts, probes: Probes::Short, watch_ms: 0 };
        let DoctorAnswer { room, unheard, .. } = self.context.client.doctor(&request).await?;
        let room = understood(room)?;
        Ok(Look { findings: run_all(&room), unheard, room })
    }

    /// All of it, the last one first; what became of each port, in words.
    async fn put_back(&self, trial: &[OnTrial]) -> String {
        let mut words = Vec::new();
        for OnTrial(port) in trial.iter().rev() {
            let name = render::place(port);
            words.push(match self.context.client.put_back_link(port).await {
                Ok(_) => format!("{name} is as before"),
                Err(error) => {
                    let within = self.flags.within;
                    format!(
                        "{name}: {error}; its agent puts it back by itself within {within} s of the change"
                    )
                }
            });
        }
        if words.is_empty() { "nothing was changed".to_owned() } else { words.join(", ") }
    }

    /// All of it stays. What was not kept in time is said.
    async fn keep(&self, trial: &[OnTrial]) -> Result<(), Failure> {
        let mut lost = Vec::new();
        for OnTrial(port) in trial {
            if let Err(error) = self.context.client.confirm_link(port).await {
                lost.push(format!("{}: {error}", render::place(port)));
            }
        }
        if lost.is_empty() {
            return Ok(());
        }
        let message = format!("not all of it stays: {}", lost.join("; "));
        Err(Failure::new(Exit::Failed, message, "run it again, with a longer --within"))
    }
}
