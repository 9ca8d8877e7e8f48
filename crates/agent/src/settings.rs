//! Settings of ports, here or on another host: the same requests, and the same trials.
//!
//! Where hosts prove who they are, the role of the one that asks decides. In plain text this host takes settings from
//! others only if its configuration allows it (`settings_from_agents`).

use std::sync::Arc;
use std::time::Duration;

use linerate_api::{ErrorBody, LinkAnswer, LinkConfirm, LinkRequest, QosAnswer, QosRequest, code};
use linerate_fabric::probe::{Answer, Change, Changed, Question};

use crate::doctor::sides::{FindError, find};
use crate::faults::chain;
use crate::security::PeerName;
use crate::trial::Trials;
use crate::{qos, trial};
use linerate_trust::roles::Permission;

/// All ports of an intent, each with a link that may be slow to work again.
const CHANGE_WAIT: Duration = Duration::from_secs(60);

/// Executes `linerate link set` at the host that it names.
pub fn set_link(trials: &Arc<Trials>, request: &LinkRequest) -> Result<LinkAnswer, ErrorBody> {
    let Some(host) = &request.host else { return trial::set(trials, request) };
    match ask(trials, host, Change::Link(LinkRequest { host: None, ..request.clone() }))? {
        Changed::Link(answer) => Ok(answer),
        _ => Err(mismatch(host)),
    }
}

/// Executes `linerate qos apply` at the host that it names.
pub fn apply_qos(trials: &Arc<Trials>, request: &QosRequest) -> Result<QosAnswer, ErrorBody> {
    let Some(host) = &request.host else { return qos::apply(trials, request) };
    match ask(trials, host, Change::Qos(QosRequest { host: None, ..request.clone() }))? {
        Changed::Qos(answer) => Ok(answer),
        _ => Err(mismatch(host)),
    }
}

/// Executes `linerate link confirm` at the host that it names.
pub fn confirm(trials: &Trials, request: &LinkConfirm) -> Result<(), ErrorBody> {
    match &request.host {
        None => trial::confirm(trials, &request.port),
        Some(host) => done(trials, host, Change::Confirm(LinkConfirm { host: None, ..request.clone() })),
    }
}

/// Executes `linerate link put-back` at the host that it names.
pub fn put_back(trials: &Trials, request: &LinkConfirm) -> Result<(), ErrorBody> {
    match &request.host {
        None => trial::put_back_now(trials, &request.port),
        Some(host) => done(trials, host, Change::PutBack(LinkConfirm { host: None, ..request.clone() })),
    }
}

/// What another host's operator asks of this one. Where hosts prove who they are, the role of `asker` decides, else
/// `settings_from_agents`.
pub fn asked_by_another(trials: &Arc<Trials>, change: Change, asker: &PeerName) -> Changed {
    if asker.is_some() {
        if let Err(denied) = trials.doctor.security.permit(asker, Permission::SetPorts) {
            return Changed::Failed(ErrorBody::new("not_authorised", denied.detail));
        }
    } else if !trials.doctor.config.settings_from_agents {
        let message = format!("{} does not take settings from other hosts", trials.doctor.config.name);
        let hint =
            "`settings_from_agents = true` in its agent's configuration allows it; or run the command there";
        return Changed::Failed(ErrorBody::new("not_authorised", message).with_hint(hint));
    }
    // Nothing is passed on to a third host.
    let changed = match change {
        Change::Link(request) => trial::set(trials, &request).map(Changed::Link),
        Change::Qos(request) => qos::apply(trials, &request).map(Changed::Qos),
        Change::Confirm(request) => trial::confirm(trials, &request.port).map(|()| Changed::Done),
        Change::PutBack(request) => trial::put_back_now(trials, &request.port).map(|()| Changed::Done),
    };
    changed.unwrap_or_else(Changed::Failed)
}

fn done(trials: &Trials, host: &str, change: Change) -> Result<(), ErrorBody> {
    match ask(trials, host, change)? {
        Changed::Done => Ok(()),
        _ => Err(mismatch(host)),
    }
}

fn ask(trials: &Trials, host: &str, change: Change) -> Result<Changed, ErrorBody> {
    let confirms = matches!(change, Change::Confirm(_));
    let question = Question::Change { change: Box::new(change) };
    let (_, answer) = find(host, &question, CHANGE_WAIT, &trials.doctor.security)
        .map_err(|error| no_answer(host, confirms, &error))?;
    let Answer::Changed { changed } = answer else { return Err(mismatch(host)) };
    match *changed {
        Changed::Failed(error) => {
            let message = format!("{host}: {}", error.message);
            Err(ErrorBody { message, ..error })
        }
        changed => Ok(changed),
    }
}

/// No answer: that nothing was done, or that it may have been.
fn no_answer(host: &str, confirms: bool, error: &FindError) -> ErrorBody {
    let (code, hint) = match (error.nothing_done(), confirms) {
        (true, false) => {
            ("no_link", "nothing was changed there; check the name, and that an agent runs there")
        }
        (true, true) => {
            ("no_link", "settings on trial there are put back by its agent unless they are confirmed in time")
        }
        (false, false) => (
            code::ANSWER_LOST,
            "the change may have been made; its agent puts it back unless it is confirmed",
        ),
        (false, true) => {
            (code::ANSWER_LOST, "`linerate link show` there shows whether the settings were kept or put back")
        }
    };
    ErrorBody::new(code, format!("{host}: {}", chain(error))).with_hint(hint)
}

fn mismatch(host: &str) -> ErrorBody {
    let message = format!("{host}: the other agent gave an answer that does not belong to the question");
    ErrorBody::new(code::ANSWER_LOST, message)
        .with_hint("`linerate link show` there shows how its ports are now")
}

#[cfg(test)]
mod tests {
    use linerate_fabric::probe::ask::AskError;
    use linerate_net::tcp::connect::Route;

    use super::*;
    use crate::security::tests::member;
    use crate::testing::{authority, listening};

    /// Only a hang reaches it.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn hints_for_no_answer_are_true() {
        let broken = AskError::Broken {
            peer: ([10, 0, 0, 2], 7979).into(),
            source: std::io::ErrorKind::TimedOut.into(),
        };
        let (lost, nowhere) = (FindError::Ask(broken), FindError::NoAddress);
        let hint = |confirms, error| {
            let body = no_answer("beta", confirms, error);
            format!("{}: {}", body.code, body.hint)
        };
        assert!(hint(false, &nowhere).starts_with("no_link: nothing was changed there"));
        assert!(hint(false, &lost).starts_with("answer_lost: the change may have been made"));
        assert!(hint(true, &lost).starts_with("answer_lost: `linerate link show` there shows"));
        assert!(hint(true, &nowhere).starts_with("no_link: settings on trial there are put back"));
    }

    #[test]
    fn a_host_sets_ports_here_only_if_its_role_allows_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut authority = authority(&dir.path().join("authority"));
        let policy = "[hosts.admin]\nrole = \"administrator\"\n[hosts.operator]\nrole = \"operator\"\n";
        let mut made = |name: &str| member(&mut authority, &dir.path().join(name), name, policy);
        let hosts = ["admin", "operator", "other"].map(&mut made);
        let (agent, listener) = listening(&dir, made("here"), |agent, accepted| agent.accept(accepted));
        let route = Route { local: None, device: None, remote: listener.addresses()[0] };
        let codes = hosts.map(|by| {
            let change = Change::Confirm(LinkConfirm { port: "no such port".into(), host: None });
            let question = Question::Change { change: Box::new(change) };
            let answer = linerate_fabric::probe::ask::ask(&route, &question, LONG, LONG, by.tls()).unwrap();
            let Answer::Changed { changed } = answer else { panic!("{answer:?}") };
            let Changed::Failed(error) = *changed else { panic!("there is no such port") };
            error.code
        });
        assert_ne!(codes[0], "not_authorised");
        assert_eq!(codes[1..], ["not_authorised", "not_authorised"]);
        drop(agent);
    }
}
