//! `linerate doctor`

use linerate_api::{AnsweredHost, DoctorAnswer, DoctorRequest, Probes, UnreachableHost};
use linerate_fabric::checks::run_all;
use linerate_fabric::model::{Finding, Survey};
use linerate_fabric::report::{Verdict, html, verdict};
use linerate_fabric::saved;
use serde::Serialize;

use super::{fix, progress};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::DoctorFlags;
use crate::render::doctor;

/// Counters are watched this long, so that errors that rise are distinguished from old ones.
const WATCH_MS: u64 = 1000;

/// Asks the agent, and others through it.
pub async fn run(flags: &DoctorFlags, context: &Context) -> Result<Exit, Failure> {
    let quick = flags.quick || flags.inventory;
    let request = DoctorRequest {
        hosts: flags.hosts.clone(),
        probes: if quick { Probes::Short } else { Probes::Full },
        watch_ms: if quick { 0 } else { WATCH_MS },
    };
    let what = waits_for(&request);
    let answer = progress::with_progress(what, context.err, context.client.doctor(&request)).await;
    let DoctorAnswer { survey, answered, repeated, unreachable } = answer?;
    let survey = understood(survey)?;
    if flags.inventory {
        return inventory(&survey, context);
    }
    let written = match &flags.save {
        Some(folder) => saved::write(&survey, folder),
        None => Ok(()),
    };
    let written = written.map_err(|error| Failure::new(Exit::Failed, error.to_string(), ""));
    let look = Look { findings: run_all(&survey), survey, unreachable, repeated };
    if !flags.fix {
        return report(&look, written, flags, context);
    }
    if let Err(failure) = written {
        context.people(|| text(&look, flags, context))?;
        return Err(failure.and("nothing was set"));
    }
    fix::run(&look, &answered, flags, context).await
}

/// What is going on meanwhile, for the operator who waits.
pub(super) fn waits_for(request: &DoctorRequest) -> String {
    let hosts = request.hosts.len() + 1;
    match (hosts, request.probes) {
        (1, _) => "looking at this host".to_owned(),
        (_, Probes::Full) => {
            format!("looking at {hosts} hosts, moving bytes over their links one after the other")
        }
        _ => format!("looking at {hosts} hosts and the links between them"),
    }
}

/// What the agent saw, and what is wrong with it.
#[derive(Serialize)]
pub(super) struct Look {
    /// What is wrong, the worst first.
    pub(super) findings: Vec<Finding>,
    /// Hosts that could not be asked.
    pub(super) unreachable: Vec<UnreachableHost>,
    /// Names that led to a host that was looked at already.
    pub(super) repeated: Vec<AnsweredHost>,
    /// The inventories of both hosts and what was measured between them.
    pub(super) survey: Survey,
}

/// The survey in an answer.
pub(super) fn understood(survey: serde_json::Value) -> Result<Survey, Failure> {
    serde_json::from_value(survey).map_err(|error| {
        let message = format!("the agent's answer was not understood: {error}");
        Failure::new(Exit::Failed, message, "use the client and the agent of one version")
    })
}

/// Looks at saved inventories.
pub fn saved(flags: &DoctorFlags, context: &Context) -> Result<Exit, Failure> {
    let folder = flags.from.clone().unwrap_or_default();
    let survey = saved::read(&folder).map_err(|error| {
        Failure::new(Exit::Failed, error.to_string(), "docs/inventory.md describes the files")
    })?;
    if survey.hosts.is_empty() {
        let message = format!("{} has switches only: no host was looked at", folder.display());
        let hint = "`linerate doctor --inventory` on a host prints its file";
        return Err(Failure::new(Exit::Failed, message, hint));
    }
    let look = Look { findings: run_all(&survey), survey, unreachable: Vec::new(), repeated: Vec::new() };
    match (flags.fix, flags.dry_run) {
        (false, _) => report(&look, Ok(()), flags, context),
        (true, true) => fix::dry_run(&look, flags, context),
        (true, false) => {
            let message = "saved inventories cannot be changed";
            Err(Failure::new(Exit::Usage, message, "--fix --dry-run shows what would be done"))
        }
    }
}

fn inventory(survey: &Survey, context: &Context) -> Result<Exit, Failure> {
    let host = survey
        .hosts
        .first()
        .ok_or_else(|| Failure::new(Exit::Failed, "the agent gave no inventory", "its log may say why"))?;
    let text = host.to_json().map_err(|error| Failure::output(&error.into()))?;
    context.print(&(text + "\n"))?;
    Ok(Exit::Ok)
}

/// What was found is shown, also if a file of it cannot be written.
fn report(
    look: &Look,
    written: Result<(), Failure>,
    flags: &DoctorFlags,
    context: &Context,
) -> Result<Exit, Failure> {
    let written = match (written, page(look, flags)) {
        (Err(saved), Err(page)) => Err(saved.and(page.message())),
        (saved, page) => saved.and(page),
    };
    context.answer(look, || text(look, flags, context))?;
    written?;
    Ok(exit(&look.findings, &look.unreachable))
}

/// The page, if one is wanted.
pub(super) fn page(look: &Look, flags: &DoctorFlags) -> Result<(), Failure> {
    let Some(file) = &flags.html else { return Ok(()) };
    std::fs::write(file, html(&look.survey, &look.findings)).map_err(|error| {
        let message = format!("{} cannot be written: {error}", file.display());
        Failure::new(Exit::Failed, message, "")
    })
}

pub(super) fn text(look: &Look, flags: &DoctorFlags, context: &Context) -> String {
    let report = doctor::report(&look.survey, &look.findings, &look.unreachable, flags.details, context.out);
    let report = report + &doctor::repeated(&look.repeated);
    match doctor::too_far(&look.survey.matrix.probes).filter(|_| flags.quick) {
        Some(links) => report + &links,
        None => report,
    }
}

/// Hints are no reason to stop a script.
pub(super) fn exit(findings: &[Finding], unreachable: &[UnreachableHost]) -> Exit {
    match verdict(findings) {
        _ if !unreachable.is_empty() => Exit::DoctorErrors,
        Verdict::Errors => Exit::DoctorErrors,
        Verdict::Warnings => Exit::DoctorWarnings,
        Verdict::Clean => Exit::Ok,
    }
}

#[cfg(test)]
mod tests {
    use linerate_fabric::model::Severity;

    use super::*;

    #[test]
    fn the_worst_finding_decides_and_a_silent_host_is_an_error() {
        let finding = |severity| Finding::new("x", severity, "");
        assert_eq!(exit(&[], &[]), Exit::Ok);
        assert_eq!(exit(&[finding(Severity::Hint)], &[]), Exit::Ok);
        assert_eq!(exit(&[finding(Severity::Hint), finding(Severity::Warning)], &[]), Exit::DoctorWarnings);
        assert_eq!(exit(&[finding(Severity::Error), finding(Severity::Warning)], &[]), Exit::DoctorErrors);
        let silent = UnreachableHost { host: "beta".into(), why: "no".into() };
        assert_eq!(exit(&[], &[silent]), Exit::DoctorErrors);
    }
}
