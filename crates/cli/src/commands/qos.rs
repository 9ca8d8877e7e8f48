//! `linerate qos plan | check | apply | switch | windows`

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use linerate_api::{DoctorAnswer, DoctorRequest, QosRequest, Unheard};
use linerate_fabric::model::Room;
use linerate_fabric::qos::intent::{INTENT_BYTES_MAX, Intent, parse};
use linerate_fabric::qos::plan::{HostPlan, host};
use linerate_fabric::qos::{switch, windows};
use linerate_fabric::saved;
use serde::Serialize;

use super::doctor::understood;
use super::link::said;
use crate::context::Context;
use crate::documents::QosText;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::{QosApplyFlags, QosCommand, QosHostsFlags, QosSwitchFlags};
use crate::render::qos as render;

/// What an intent means for hosts.
#[derive(Serialize)]
struct QosDocument<'a> {
    /// Each host that was looked at.
    hosts: &'a [HostPlan],
    /// Hosts that could not be asked.
    unheard: &'a [Unheard],
    /// Every host was asked, and all is as the intent says.
    matches: bool,
}

/// Runs `linerate qos`: plans, compares with what is set, and applies.
pub async fn run(command: &QosCommand, context: &Context) -> Result<Exit, Failure> {
    match command {
        QosCommand::Plan(flags) => {
            let (hosts, unheard) = hosts(flags, context).await?;
            tell(&hosts, &unheard, context)?;
            Ok(exit_of_plan(&hosts, &unheard))
        }
        QosCommand::Check(flags) => {
            let (hosts, unheard) = hosts(flags, context).await?;
            tell(&hosts, &unheard, context)?;
            Ok(if matches(&hosts, &unheard) { Exit::Ok } else { Exit::Differs })
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
    let answer = context.client.apply_qos(&request).await?;
    context.answer(&answer, || answer.ports.iter().map(|port| said(port, None)).collect::<String>())?;
    Ok(Exit::Ok)
}

/// What the intent means for each host.
async fn hosts(flags: &QosHostsFlags, context: &Context) -> Result<(Vec<HostPlan>, Vec<Unheard>), Failure> {
    let intent = intent(&text(&flags.file)?)?;
    let (room, unheard) = match &flags.from {
        Some(folder) => (saved(folder)?, Vec::new()),
        None => asked(&flags.hosts, context).await?,
    };
    Ok((room.hosts.iter().map(|inventory| host(inventory, &intent)).collect(), unheard))
}

fn saved(folder: &Path) -> Result<Room, Failure> {
    saved::read(folder).map_err(|error| {
        Failure::new(Exit::Failed, error.to_string(), "docs/inventory.md describes the files")
    })
}

async fn asked(hosts: &[String], context: &Context) -> Result<(Room, Vec<Unheard>), Failure> {
    let request = DoctorRequest { hosts: hosts.to_vec(), ..DoctorRequest::default() };
    let DoctorAnswer { room, unheard, .. } = context.client.doctor(&request).await?;
    Ok((understood(room)?, unheard))
}

fn tell(hosts: &[HostPlan], unheard: &[Unheard], context: &Context) -> Result<(), Failure> {
    let document = QosDocument { hosts, unheard, matches: matches(hosts, unheard) };
    context.answer(&document, || render::plans(hosts, unheard))
}

/// A room without hosts shows nothing, so it is no match.
fn matches(hosts: &[HostPlan], unheard: &[Unheard]) -> bool {
    unheard.is_empty() && !hosts.is_empty() && hosts.iter().all(HostPlan::matches)
}

fn exit_of_plan(hosts: &[HostPlan], unheard: &[Unheard]) -> Exit {
    match hosts.iter().flat_map(|host| &host.ports).any(|port| port.problem.is_some()) {
        true => Exit::Refused,
        false if !unheard.is_empty() => Exit::Failed,
        false => Exit::Ok,
    }
}

pub(super) fn intent(text: &str) -> Result<Intent, Failure> {
    parse(text).map_err(|error| refused(&error))
}

/// The file's text. A byte more than is allowed is read, so that a longer file is told from one that fits.
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
    fn a_host_that_was_not_heard_is_no_match() {
        let silent = Unheard { host: "beta".into(), why: "no".into() };
        assert!(matches(&[plan(None)], &[]));
        assert!(!matches(&[plan(None)], std::slice::from_ref(&silent)));
        assert!(!matches(&[plan(Some("no DCB"))], &[]));
        assert!(!matches(&[], &[]));
        assert_eq!(exit_of_plan(&[plan(None)], &[]), Exit::Ok);
        assert_eq!(exit_of_plan(&[plan(None)], &[silent]), Exit::Failed);
        assert_eq!(exit_of_plan(&[plan(Some("no DCB"))], &[]), Exit::Refused);
    }
}
