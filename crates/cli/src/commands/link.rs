//! `linerate link show | set | confirm`

use linerate_api::{DoctorRequest, LinkAnswer};
use linerate_fabric::model::{Note, Port, PortKind, Survey};

use super::doctor::understood;
use super::progress::{change, with_progress};
use crate::context::Context;
use crate::documents::{PortConfirmed, PortPutBack};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::LinkCommand;
use crate::render::doctor;
use crate::render::format::clean;

/// Shows, sets on trial, confirms.
pub async fn run(command: LinkCommand, context: &Context) -> Result<Exit, Failure> {
    match command {
        LinkCommand::Show { port } => show(port.as_deref(), context).await,
        LinkCommand::Set(flags) => {
            let request = flags.request();
            let asked = context.client.set_link(&request);
            let what = format!("setting {}", clean(&flags.port));
            let answer = change(&what, unknown(&flags.port), context, asked).await?;
            context.done(&answer, || port_lines(&answer, flags.host.as_deref()))?;
            Ok(Exit::Ok)
        }
        LinkCommand::Confirm(flags) => {
            let (port, request) = (&flags.port, flags.request());
            let asked = context.client.confirm_link(&request);
            change(&format!("confirming {}", clean(port)), unknown(port), context, asked).await?;
            context
                .done(&PortConfirmed { port, confirmed: true }, || format!("{port}: stays as it is now\n"))?;
            Ok(Exit::Ok)
        }
        LinkCommand::PutBack(flags) => {
            let (port, request) = (&flags.port, flags.request());
            let asked = context.client.put_back_link(&request);
            change(&format!("putting {} back", clean(port)), unknown(port), context, asked).await?;
            context
                .done(&PortPutBack { port, put_back: true }, || format!("{port}: is as it was before\n"))?;
            Ok(Exit::Ok)
        }
    }
}

async fn show(name: Option<&str>, context: &Context) -> Result<Exit, Failure> {
    let request = DoctorRequest::default();
    let asked = context.client.doctor(&request);
    let answer = with_progress("looking at this host".to_owned(), context.err, asked).await?;
    let (ports, notes) = read(understood(answer.survey)?)?;
    let ports = ports.into_iter();
    let ports: Vec<Port> =
        ports.filter(|port| name.map_or(port.kind != PortKind::Loopback, |name| port.name == name)).collect();
    if let (Some(name), true) = (name, ports.is_empty()) {
        return Err(Failure::new(
            Exit::Refused,
            format!("there is no port {name} on this host"),
            "`linerate link show` lists them",
        ));
    }
    context.answer(&ports, || doctor::ports(&ports) + &not_read(&notes))?;
    Ok(Exit::Ok)
}

/// The ports, and what of them could not be read. A host whose ports are not known is not one without ports.
fn read(survey: Survey) -> Result<(Vec<Port>, Vec<Note>), Failure> {
    let (mut ports, mut notes) = (Vec::new(), Vec::new());
    for host in survey.hosts {
        ports.extend(host.ports);
        notes.extend(host.notes);
    }
    match notes.iter().find(|note| note.about == Note::PORTS) {
        Some(note) => {
            let message = format!("the agent could not read this host's ports: {}", note.what);
            Err(Failure::new(Exit::Failed, message, "try again; if it stays, see the agent's log"))
        }
        None => Ok((ports, notes)),
    }
}

/// A line for each setting that is not in the list.
fn not_read(notes: &[Note]) -> String {
    let settings = notes.iter().filter(|note| note.part() != Note::NAME);
    settings.map(|note| clean(&format!("not read: {}: {}", note.about, note.what)) + "\n").collect()
}

/// Where it is seen what an agent did whose answer was lost.
fn unknown(port: &str) -> String {
    format!(
        "`linerate link show {}` on the port's host shows how it is set; what is on trial is put back at its end",
        clean(port)
    )
}

/// What was done to a port, for people. Another host's agent may have said it.
pub(super) fn port_lines(answer: &LinkAnswer, host: Option<&str>) -> String {
    let port = clean(&answer.port);
    let host = host.map(|host| format!(" --host {host}")).unwrap_or_default();
    let warnings = answer.warnings.iter().map(|warning| clean(&format!("warning: {warning}")));
    if answer.steps.is_empty() {
        let lines: Vec<String> =
            std::iter::once(format!("{port}: nothing to change")).chain(warnings).collect();
        return lines.join("\n") + "\n";
    }
    let mut lines: Vec<String> = answer
        .steps
        .iter()
        .map(|step| clean(&format!("{port}: {} {} → {}", step.what, step.from, step.to)))
        .collect();
    lines.extend(warnings);
    lines.push(match answer.confirm_within_s {
        Some(seconds) => format!(
            "done on trial; it is put back in {seconds} s unless you run: linerate link confirm {port}{host}"
        ),
        None => "nothing was changed (dry run)".to_owned(),
    });
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use linerate_api::LinkStep;
    use linerate_fabric::model::Inventory;

    use super::*;

    #[test]
    fn a_host_whose_ports_could_not_be_read_is_not_one_without_ports() {
        let mut host = Inventory::new("alpha");
        host.ports = vec![Port { name: "l0".into(), ..Port::default() }];
        host.note("resolve alpha", "no answer within 2 s");
        host.note("ethtool: FEC", "no\nanswer");
        let (ports, notes) = read(Survey::of(vec![host.clone()])).unwrap();
        assert_eq!(ports.len(), 1);
        assert_eq!(not_read(&notes), "not read: ethtool: FEC: no answer\n");
        host.note("rtnetlink", "no answer");
        let failure = read(Survey::of(vec![host])).unwrap_err();
        assert_eq!(failure.exit, Exit::Failed);
    }

    #[test]
    fn text_of_another_host_cannot_control_the_terminal() {
        let evil = || "\x1b[2J\nl1: all is well".to_owned();
        let answer = LinkAnswer {
            port: evil(),
            steps: vec![LinkStep { what: evil(), from: evil(), to: evil() }],
            warnings: vec![evil()],
            applied: true,
            confirm_within_s: Some(60),
        };
        let text = port_lines(&answer, Some("beta"));
        assert!(!text.contains('\x1b') && text.lines().count() == 3, "{text:?}");
        let nothing = port_lines(&LinkAnswer { steps: Vec::new(), ..answer }, None);
        // A switch may say otherwise although the port is as it was asked for.
        let lines: Vec<&str> = nothing.lines().collect();
        assert!(!nothing.contains('\x1b') && lines.len() == 2, "{nothing:?}");
        assert!(lines[1].starts_with("warning: "), "{nothing:?}");
    }
}
