//! `linerate doctor --fix`: a plan, a question, every port on trial, another look, and only then it stays.

use std::cmp::Reverse;
use std::time::Duration;

use linerate_api::{
    AnsweredHost, ClientError, DoctorAnswer, DoctorRequest, LinkConfirm, LinkRequest, Probes, QosRequest,
    UnreachableHost, code,
};
use linerate_fabric::checks::run_all;
use linerate_fabric::fix::{FixPlan, PortFix, plan_fixes, verdict};
use linerate_fabric::link::Speed;
use linerate_fabric::model::Finding;
use serde::Serialize;

use super::doctor::{Look, exit, page, text, understood};
use super::link::port_lines;
use super::qos;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::DoctorFlags;
use crate::render::fix as render;

/// How often it is looked whether the findings are gone: a link that was set anew needs a moment.
const LOOKS: u32 = 3;
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// What `doctor --fix` has done.
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

/// Answer of `linerate doctor --fix`.
#[derive(Serialize)]
struct FixDocument<'a> {
    #[serde(flatten)]
    /// What was seen; after `kept`, what is seen now.
    look: &'a Look,
    /// What would be done, or was.
    fix: &'a FixPlan,
    /// Whether ports were set, and stayed so.
    outcome: Outcome,
}

/// A port on trial, as its agent is asked about it.
struct OnTrial(LinkConfirm);

pub fn dry_run(look: &Look, flags: &DoctorFlags, context: &Context) -> Result<Exit, Failure> {
    let written = page(look, flags);
    let plan = plan(look, flags)?.0;
    let outcome = if plan.is_empty() { Outcome::Nothing } else { Outcome::DryRun };
    context.answer(&FixDocument { look, fix: &plan, outcome }, || {
        text(look, flags, context) + "\n" + &render::plan(&plan, context.out) + render::DRY_RUN
    })?;
    written?;
    Ok(exit(&look.findings, &look.unreachable))
}

/// Shows the plan, asks, and sets it on trial: it stays if the doctor finds it good.
pub async fn run(
    look: &Look,
    answered: &[AnsweredHost],
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
    let ended_with = |outcome| {
        let written = page(look, flags);
        context.programs(&FixDocument { look, fix: &plan, outcome })?;
        written?;
        Ok(exit(&look.findings, &look.unreachable))
    };
    if plan.is_empty() {
        return ended_with(Outcome::Nothing);
    }
    if !flags.yes && !context.ask("Set these on trial?")? {
        context.people(|| "nothing was changed\n".to_owned())?;
        return ended_with(Outcome::Declined);
    }
    let job =
        Job { flags, context, answered, here: look.survey.hosts.first().map(|host| host.host.as_str()) };
    let mut trial = Vec::new();
    let mut after = match job.try_out(look, &plan, intent.as_deref(), &mut trial).await {
        Ok(after) => after,
        Err(failure) => return Err(job.roll_back(failure, &trial).await),
    };
    job.keep(&trial).await?;
    // It is kept, whatever becomes of the output.
    context.people(|| "it stays\n".to_owned()).map_err(Failure::after_it_was_done)?;
    let unmeasured = not_measured_again(look, &plan.goals);
    context.people(|| render::not_measured_again(&unmeasured)).map_err(Failure::after_it_was_done)?;
    after.findings.extend(unmeasured);
    after.findings.sort_by_key(|finding| Reverse(finding.severity));
    let document = FixDocument { look: &after, fix: &plan, outcome: Outcome::Kept };
    context.programs(&document).map_err(Failure::after_it_was_done)?;
    page(&after, flags).map_err(Failure::after_it_was_done)?;
    Ok(exit(&after.findings, &after.unreachable))
}

/// What the first look found by moving bytes or watching counters, which the second one does not do. It counts as
/// before.
fn not_measured_again(before: &Look, goals: &[Finding]) -> Vec<Finding> {
    let seen_again = run_all(&before.survey.at_a_glance());
    let is_seen = |one: &Finding| seen_again.iter().any(|other| other.id == one.id);
    let findings = before.findings.iter().filter(|one| !goals.contains(one) && !is_seen(one));
    findings.cloned().collect()
}

/// What to do, and the text of the intent.
fn plan(look: &Look, flags: &DoctorFlags) -> Result<(FixPlan, Option<String>), Failure> {
    let text = flags.qos.as_deref().map(qos::text).transpose()?;
    let intent = text.as_deref().map(qos::intent).transpose()?;
    Ok((plan_fixes(&look.survey, &look.findings, intent.as_ref()), text))
}

/// What every step needs.
struct Job<'a> {
    flags: &'a DoctorFlags,
    context: &'a Context,
    answered: &'a [AnsweredHost],
    here: Option<&'a str>,
}

impl Job<'_> {
    /// A host as its agent is asked: by the name that the operator gave, or not at all if it is this one.
    fn named(&self, host: &str) -> Result<Option<String>, Failure> {
        if self.here == Some(host) {
            return Ok(None);
        }
        // Without a name it would be this host's port of that name.
        let named = self.answered.iter().find(|one| one.host == host).map(|one| one.named.clone());
        named.map(Some).ok_or_else(|| {
            let message = format!("the agent does not report by which name it asked {host}");
            Failure::new(Exit::Failed, message, "use the client and the agent of one version")
        })
    }

    /// Everything on trial and looked at, and a yes to it. What was set until then is in `trial`, also after an error.
    async fn try_out(
        &self,
        before: &Look,
        plan: &FixPlan,
        intent: Option<&str>,
        trial: &mut Vec<OnTrial>,
    ) -> Result<Look, Failure> {
        self.set_ports(plan, intent, trial).await?;
        let after = self.judge(before, plan).await?;
        if self.flags.yes || self.context.ask(&render::keep(self.flags.within))? {
            return Ok(after);
        }
        Err(Failure::new(Exit::Failed, "not kept", ""))
    }

    /// Puts back what is on trial: the failure, and what became of each port.
    async fn roll_back(&self, failure: Failure, trial: &[OnTrial]) -> Failure {
        match trial {
            [] => failure,
            _ => failure.and(&self.put_back(trial).await),
        }
    }

    async fn set_ports(
        &self,
        plan: &FixPlan,
        intent: Option<&str>,
        trial: &mut Vec<OnTrial>,
    ) -> Result<(), Failure> {
        for one in &plan.ports {
            let request = self.request(one)?;
            let port = LinkConfirm { port: request.port.clone(), host: request.host.clone() };
            let answer = match self.context.client.set_link(&request).await {
                Ok(answer) => answer,
                Err(error) => {
                    // Without its agent's answer it may be on trial.
                    trial.extend((!is_answer(&error)).then_some(OnTrial(port)));
                    return Err(error.into());
                }
            };
            if answer.applied {
                trial.push(OnTrial(port));
            }
            self.context.people(|| port_lines(&answer, request.host.as_deref()))?;
        }
        for host in &plan.intents {
            let Some(intent) = intent else { continue };
            let named = self.named(&host.plan.host)?;
            let request = QosRequest {
                intent: intent.to_owned(),
                host: named.clone(),
                dry_run: false,
                confirm_within_s: self.flags.within,
            };
            let on_trial = |port: &str| OnTrial(LinkConfirm { port: port.to_owned(), host: named.clone() });
            let answer = match self.context.client.apply_qos(&request).await {
                Ok(answer) => answer,
                Err(error) => {
                    if !is_answer(&error) {
                        let changing = host.plan.ports.iter().filter(|port| !port.plan.steps.is_empty());
                        trial.extend(changing.map(|port| on_trial(&port.port)));
                    }
                    return Err(error.into());
                }
            };
            let set = || answer.ports.iter().filter(|port| port.applied);
            trial.extend(set().map(|port| on_trial(&port.port)));
            for port in set() {
                self.context.people(|| port_lines(port, named.as_deref()))?;
            }
        }
        Ok(())
    }

    fn request(&self, one: &PortFix) -> Result<LinkRequest, Failure> {
        let requested = &one.requested;
        Ok(LinkRequest {
            port: one.location.port.clone().unwrap_or_default(),
            host: self.named(&one.location.host)?,
            mtu: requested.mtu,
            speed_mbps: requested.speed.map(|speed| match speed {
                Speed::Auto => 0,
                Speed::Forced(mbps) => mbps,
            }),
            fec: requested.fec.clone(),
            pause: requested.pause,
            queues: requested.queues,
            dry_run: false,
            confirm_within_s: self.flags.within,
        })
    }

    /// Looks again: the findings must be gone, and nothing grave may have come.
    async fn judge(&self, before: &Look, plan: &FixPlan) -> Result<Look, Failure> {
        let mut why = None;
        for look in 0..LOOKS {
            if look > 0 {
                tokio::time::sleep(BETWEEN_LOOKS).await;
            }
            match self.look().await {
                Ok(after) => {
                    why = fell_silent(before, &after)
                        .or_else(|| verdict(&before.findings, &plan.goals, &after.findings));
                    if why.is_none() {
                        self.context.people(|| render::gone(&plan.goals))?;
                        return Ok(after);
                    }
                }
                Err(failure) => why = Some(failure.message().to_owned()),
            }
        }
        let message = format!("it did not help: {}", why.unwrap_or_default());
        Err(Failure::new(Exit::Failed, message, "`--details` says how to put it right by hand"))
    }

    async fn look(&self) -> Result<Look, Failure> {
        let hosts = self.flags.hosts.clone();
        let request = DoctorRequest { hosts, probes: Probes::Short, watch_ms: 0 };
        let answer = self.context.client.doctor(&request).await?;
        let DoctorAnswer { survey, unreachable, repeated, .. } = answer;
        let survey = understood(survey)?;
        Ok(Look { findings: run_all(&survey), unreachable, repeated, survey })
    }

    /// These ports, the last one first; what became of each, in words.
    async fn put_back(&self, trial: &[OnTrial]) -> String {
        let mut words = Vec::new();
        for OnTrial(port) in trial.iter().rev() {
            let name = render::location(port);
            words.push(match self.context.client.put_back_link(port).await {
                Ok(_) => format!("{name} is as before"),
                Err(error) if is_answer(&error) => format!("{name}: {error}"),
                Err(error) => {
                    let within = self.flags.within;
                    format!(
                        "{name}: {error}; its agent puts it back by itself within {within} s of the change"
                    )
                }
            });
        }
        words.join(", ")
    }

    /// All of it stays. At the first port that does not, the rest is put back: half of a fix may be worse than none.
    async fn keep(&self, trial: &[OnTrial]) -> Result<(), Failure> {
        for (at, OnTrial(port)) in trial.iter().enumerate() {
            let Err(error) = self.context.client.confirm_link(port).await else { continue };
            let (kept, left) = trial.split_at(at);
            // One whose answer was lost may be on trial still.
            let left = left.get(usize::from(is_answer(&error))..).unwrap_or_default();
            let stays = match kept {
                [] => "none of it stays".to_owned(),
                _ => {
                    let names: Vec<String> =
                        kept.iter().map(|OnTrial(port)| render::location(port)).collect();
                    format!("not all of it stays, only {}", names.join(", "))
                }
            };
            let failure = Failure::new(
                Exit::Failed,
                format!("{stays}: {}: {error}", render::location(port)),
                "run it again, with a longer --within",
            );
            return Err(self.roll_back(failure, left).await);
        }
        Ok(())
    }
}

/// The agent of the port itself reported it. Without its answer its action is unknown, but at the end of the trial it
/// puts the port back.
fn is_answer(error: &ClientError) -> bool {
    match error {
        ClientError::Agent { body, .. } => !matches!(body.code.as_str(), "no_link" | code::ANSWER_LOST),
        _ => false,
    }
}

/// A host that answered before and does not answer now.
fn fell_silent(before: &Look, after: &Look) -> Option<String> {
    let known = |one: &&UnreachableHost| before.unreachable.iter().any(|before| before.host == one.host);
    let lost = after.unreachable.iter().find(|one| !known(one))?;
    Some(format!("{} does not answer any more: {}", lost.host, lost.why))
}

#[cfg(test)]
mod tests;
