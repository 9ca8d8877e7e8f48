//! `linerate qos plan | check | apply | switch | windows`

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use linerate_api::{AnsweredHost, DoctorAnswer, DoctorRequest, QosRequest, UnreachableHost};
use linerate_fabric::model::Survey;
use linerate_fabric::qos::intent::{INTENT_BYTES_MAX, Intent, parse};
use linerate_fabric::qos::plan::{HostPlan, host};
use linerate_fabric::qos::{switch, windows};
use linerate_fabric::saved;
use serde::Serialize;

use super::doctor::{understood, waits_for};
use super::link::port_lines;
use super::progress::{change, with_progress};
use crate::context::Context;
use crate::documents::QosText;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::{QosApplyFlags, QosCommand, QosHostsFlags, QosSwitchFlags};
use crate::render::{doctor, qos as render};

/// What an intent means for hosts.
#[derive(Serialize)]
struct QosDocument<'a> {
    /// Each host that was looked at.
    hosts: &'a [HostPlan],
    /// Hosts that could not be asked.
    unreachable: &'a [UnreachableHost],
    /// Names that led to a host that was looked at already.
    repeated: &'a [AnsweredHost],
    /// Every host was asked, and all is as the intent says.
    matches: bool,
}

/// Runs `linerate qos`: plans, compares with what is set, and applies.
pub async fn run(command: &QosCommand, context: &Context) -> Result<Exit, Failure> {
    match command {
        QosCommand::Plan(flags) => {
            let Compared { hosts, unreachable, repeated } = hosts(flags, context).await?;
            print_plans(&hosts, &unreachable, &repeated, context)?;
            Ok(exit_of_plan(&hosts, &unreachable))
        }
        QosCommand::Check(flags) => {
            let Compared { hosts, unreachable, repeated } = hosts(flags, context).await?;
            print_plans(&hosts, &unreachable, &repeated, context)?;
            Ok(if matches(&hosts, &unreachable) { Exit::Ok } else { Exit::Differs })
        }
        QosCommand::Apply(flags) => apply(flags, context).await,
        QosCommand::Switch(flags) => switch(flags, context),
        QosCommand::Windows { file } => windows(file, context),
    }
}

/// Prints the commands for the switch.
pub fn switch(flags: &QosSwitchFlags, context: &Context) -> Result<Exit, Failure> {
    let intent = intent(&text(&flags.file)?)?;
    let text = switch::write(&intent, flags.system.0).map_err(|error| refused(&error))?;
    context.answer(&QosText { system: flags.system.0.name(), text: &text }, || text.clone())?;
    Ok(Exit::Ok)
}

/// A Windows host's side.
pub fn windows(file: &Path, context: &Context) -> Result<Exit, Failure> {
    let intent = intent(&text(file)?)?;
    let text = windows::write(&intent).map_err(|error| refused(&error))?;
    context.answer(&QosText { system: "windows", text: &text }, || text.clone())?;
    Ok(Exit::Ok)
}

async fn apply(flags: &QosApplyFlags, context: &Context) -> Result<Exit, Failure> {
    let intent = text(&flags.file)?;
    let request = QosRequest { intent, host: None, dry_run: flags.dry_run, confirm_within_s: flags.within };
    let unknown = "`linerate link show` shows how ports are set; what is on trial is put back at its end";
    let asked = context.client.apply_qos(&request);
    let answer = change("setting ports", unknown.to_owned(), context, asked).await?;
    context.done(&answer, || answer.ports.iter().map(|port| port_lines(port, None)).collect::<String>())?;
    Ok(Exit::Ok)
}

/// What became of the hosts that were named.
struct Compared {
    hosts: Vec<HostPlan>,
    unreachable: Vec<UnreachableHost>,
    repeated: Vec<AnsweredHost>,
}

/// What the intent means for each host.
async fn hosts(flags: &QosHostsFlags, context: &Context) -> Result<Compared, Failure> {
    let intent = intent(&text(&flags.file)?)?;
    let (survey, unreachable, repeated) = match &flags.from {
        Some(folder) => (saved(folder)?, Vec::new(), Vec::new()),
        None => asked(&flags.hosts, context).await?,
    };
    let hosts = survey.hosts.iter().map(|inventory| host(inventory, &intent)).collect();
    Ok(Compared { hosts, unreachable, repeated })
}

fn saved(folder: &Path) -> Result<Survey, Failure> {
    saved::read(folder).map_err(|error| {
        Failure::new(Exit::Failed, error.to_string(), "docs/inventory.md describes the files")
    })
}

async fn asked(
    hosts: &[String],
    context: &Context,
) -> Result<(Survey, Vec<UnreachableHost>, Vec<AnsweredHost>), Failure> {
    let request = DoctorRequest { hosts: hosts.to_vec(), ..DoctorRequest::default() };
    let asked = context.client.doctor(&request);
    let asked = with_progress(waits_for(&request), context.err, asked).await?;
    let DoctorAnswer { survey, unreachable, repeated, .. } = asked;
    Ok((understood(survey)?, unreachable, repeated))
}

fn print_plans(
    hosts: &[HostPlan],
    unreachable: &[UnreachableHost],
    repeated: &[AnsweredHost],
    context: &Context,
) -> Result<(), Failure> {
    let document = QosDocument { hosts, unreachable, repeated, matches: matches(hosts, unreachable) };
    context.answer(&document, || render::plans(hosts, unreachable) + &doctor::repeated(repeated))
}

/// A survey without hosts shows nothing, so it is no match.
fn matches(hosts: &[HostPlan], unreachable: &[UnreachableHost]) -> bool {
    unreachable.is_empty() && !hosts.is_empty() && hosts.iter().all(HostPlan::matches)
}

fn exit_of_plan(hosts: &[HostPlan], unreachable: &[UnreachableHost]) -> Exit {
    match hosts.iter().flat_map(|host| &host.ports).any(|port| port.problem.is_some()) {
        true => Exit::Refused,
        // A survey without hosts shows nothing.
        false if !unreachable.is_empty() || hosts.is_empty() => Exit::Failed,
        false => Exit::Ok,
    }
}

pub(super) fn intent(text: &str) -> Result<Intent, Failure> {
    parse(text).map_err(|error| refused(&error))
}

/// The file's text. A byte more than is allowed is read, so that a longer file is distinguished from one that fits.
pub(super) fn text(file: &Path) -> Result<String, Failure> {
    let read = || -> io::Result<String> {
        let source: Box<dyn Read> =
            if file == Path::new("-") { Box::new(io::stdin().lock()) } else { Box::new(File::open(file)?) };
        let mut text = String::new();
        source.take(INTENT_BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
        Ok(text)
    };
    read().map_err(|error| {
        Failure::new(Exit::Failed, format!("{} cannot be read: {error}", file.display()), "")
    })
}

fn refused(error: &dyn std::error::Error) -> Failure {
    Failure::new(Exit::Refused, error.to_string(), "docs/qos.md describes the file, with an example")
}

#[cfg(test)]
mod tests {
    use linerate_fabric::link::Plan;
    use linerate_fabric::qos::plan::PortPlan;

    use super::*;

    fn plan(problem: Option<&str>) -> HostPlan {
        let port = PortPlan { port: "a".into(), plan: Plan::default(), problem: problem.map(str::to_owned) };
        HostPlan {
            host: "alpha".into(),
            ports: vec![port],
            migration_bytes_per_s: None,
            type_of_service: None,
        }
    }

    #[test]
    fn a_host_without_an_answer_does_not_match() {
        let silent = UnreachableHost { host: "beta".into(), why: "no".into() };
        assert!(matches(&[plan(None)], &[]));
        assert!(!matches(&[plan(None)], std::slice::from_ref(&silent)));
        assert!(!matches(&[plan(Some("no DCB"))], &[]));
        assert!(!matches(&[], &[]));
        assert_eq!(exit_of_plan(&[plan(None)], &[]), Exit::Ok);
        assert_eq!(exit_of_plan(&[plan(None)], &[silent]), Exit::Failed);
        assert_eq!(exit_of_plan(&[], &[]), Exit::Failed);
        assert_eq!(exit_of_plan(&[plan(Some("no DCB"))], &[]), Exit::Refused);
    }
}
