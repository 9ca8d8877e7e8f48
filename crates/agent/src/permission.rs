//! What each call needs: of another host, by the purpose of its connection and by its question; of a user of this host,
//! by the endpoint of the local API. docs/trust.md has the same tables, and a test compares them.
//!
//! A new purpose or question does not compile before it is named here, and neither does a new endpoint.

use axum::http::Method;
use linerate_api::{AuditAction, BenchRequest, DoctorRequest, LibvirtRequest, MigrateRequest, Probes, paths};
use linerate_fabric::probe::{Depth, Question};
use linerate_trust::roles::Permission;
use linerate_wire::frame::Role as Purpose;

/// What takes the links of guests that move. Whoever may move guests may do that, and whoever only looks may not.
pub(crate) const TO_DISTURB: Permission = Permission::Send;

/// What a host needs to open a connection of this kind. Connections of a session that it opened need nothing more.
pub(crate) fn of_purpose(purpose: Purpose) -> Option<Permission> {
    match purpose {
        Purpose::ControlNew => Some(Permission::Send),
        Purpose::TunnelNew => Some(Permission::Tunnel),
        Purpose::Doctor | Purpose::Bench | Purpose::BenchData => Some(Permission::Look),
        Purpose::ControlJoin
        | Purpose::Data
        | Purpose::ReverseData
        | Purpose::Query
        | Purpose::CommitAgain
        | Purpose::RolledBack
        | Purpose::Resumes
        | Purpose::Waits
        | Purpose::Arrival
        | Purpose::Membership => None,
    }
}

/// What a host needs for a question of the doctor's, besides the connection's. `migrating`: guests move from or to this
/// host.
pub(crate) fn of_question(question: &Question, migrating: bool) -> Permission {
    match question {
        Question::Inventory { .. } | Question::Echo { .. } | Question::Host => Permission::Look,
        Question::Probe { depth: Depth::Short, .. } => Permission::Look,
        Question::Probe { depth: Depth::Full | Depth::Load, .. } | Question::Sink => {
            if migrating {
                TO_DISTURB
            } else {
                Permission::Look
            }
        }
        // It sent the guest here. That it may receive guests is looked at by the migration itself.
        Question::SendBack { domain: None, .. } => Permission::Send,
        // Its host must be able to reach libvirt here: then it could fetch the domain by itself.
        Question::SendBack { domain: Some(_), .. } => Permission::Tunnel,
        Question::Change { .. } => Permission::SetPorts,
    }
}

/// An endpoint of the local API.
pub(crate) struct Rule {
    method: &'static str,
    path: &'static str,
    /// What it is in the audit log.
    pub action: AuditAction,
    /// What its user needs, whatever the body says.
    pub needs: Permission,
    /// What its user needs for this body, if that is more.
    pub more: fn(&[u8]) -> Option<Permission>,
}

const fn rule(method: &'static str, path: &'static str, action: AuditAction, needs: Permission) -> Rule {
    Rule { method, path, action, needs, more: |_| None }
}

/// Every endpoint. Only administrators may: to start or adopt a guest is to run a program of the caller's choice as the
/// agent's user. A tunnel reaches every socket of this host.
pub(crate) const RULES: [Rule; paths::TABLE.len()] = {
    use AuditAction as A;
    use Permission::{Look, Send, SetPorts};
    [
        rule("GET", paths::STATUS, A::Look, Look),
        rule("POST", paths::IDENTITY, A::Identity, SetPorts),
        rule("GET", paths::GUESTS, A::Look, Look),
        rule("POST", paths::GUESTS, A::GuestStart, SetPorts),
        rule("POST", paths::GUESTS_ADOPT, A::GuestAdopt, SetPorts),
        rule("GET", paths::GUEST, A::Look, Look),
        rule("POST", paths::GUEST_STOP, A::GuestStop, Send),
        rule("GET", paths::MIGRATIONS, A::Look, Look),
        Rule { more: of_migration, ..rule("POST", paths::MIGRATIONS, A::MigrationBegin, Send) },
        rule("GET", paths::MIGRATION, A::Look, Look),
        rule("DELETE", paths::MIGRATION, A::MigrationCancel, Send),
        rule("GET", paths::MIGRATION_EVENTS, A::Look, Look),
        rule("POST", paths::SESSION_RESOLVE, A::Resolve, Send),
        Rule { more: of_bench, ..rule("POST", paths::BENCH, A::Bench, Look) },
        Rule { more: of_doctor, ..rule("POST", paths::DOCTOR, A::Doctor, Look) },
        rule("POST", paths::LINK_SET, A::LinkSet, SetPorts),
        rule("POST", paths::LINK_CONFIRM, A::LinkConfirm, SetPorts),
        rule("POST", paths::LINK_PUT_BACK, A::LinkPutBack, SetPorts),
        rule("POST", paths::TUNNELS, A::Tunnel, SetPorts),
        rule("POST", paths::QOS_APPLY, A::QosApply, SetPorts),
        rule("POST", paths::AUDIT, A::Look, SetPorts),
        rule("POST", paths::CORDON, A::Cordon, Send),
        rule("POST", paths::UNCORDON, A::Uncordon, Send),
        rule("GET", paths::DRAINS, A::Look, Look),
        rule("POST", paths::DRAINS, A::Drain, Send),
        // It tries migrations.
        rule("POST", paths::DRAIN_PLAN, A::Drain, Send),
        rule("GET", paths::DRAIN, A::Look, Look),
        rule("POST", paths::DRAIN, A::DrainSteer, Send),
        rule("GET", paths::UNDRAIN, A::Look, Look),
        rule("POST", paths::UNDRAIN, A::Undrain, Send),
        rule("POST", paths::UNDRAIN_FORGET, A::ForgetGuest, Send),
        rule("POST", paths::PLACE, A::Look, Look),
        rule("GET", paths::FLEET_HOSTS, A::Look, Look),
        rule("GET", paths::FLEET_DRAINS, A::Look, Look),
        rule("GET", paths::FLEET, A::Look, Look),
        rule("POST", paths::FLEET_FORGET, A::ForgetHost, Send),
    ]
};

const UNKNOWN: Rule = rule("", "", AuditAction::Look, Permission::SetPorts);

/// What a request of the local API is, and what its user must be allowed to. `HEAD` is `GET`.
pub(crate) fn of_request(method: &Method, path: &str) -> Rule {
    let method = if method == Method::HEAD { &Method::GET } else { method };
    RULES.into_iter().find(|one| one.method == method.as_str() && one.path == path).unwrap_or(UNKNOWN)
}

/// The other host's libvirt opens what a domain's XML names, as root: any file or program of that host. And the agent
/// connects to another socket than libvirt's as root.
fn of_migration(body: &[u8]) -> Option<Permission> {
    let request = serde_json::from_slice::<MigrateRequest>(body).ok();
    let reaches_more = request.and_then(|request| request.libvirt).is_some_and(|libvirt| {
        libvirt.xml.is_some()
            || libvirt.persistent_xml.is_some()
            || libvirt.remote_socket != LibvirtRequest::DEFAULT_REMOTE_SOCKET
    });
    reaches_more.then_some(Permission::SetPorts)
}

/// With `force` it does not give way to a migration.
fn of_bench(body: &[u8]) -> Option<Permission> {
    let request = serde_json::from_slice::<BenchRequest>(body).ok();
    request.is_some_and(|request| request.force).then_some(TO_DISTURB)
}

/// Loads do not give way to a migration, and the other hosts cannot know who asked this one.
fn of_doctor(body: &[u8]) -> Option<Permission> {
    let request = serde_json::from_slice::<DoctorRequest>(body).ok();
    request.is_some_and(|request| request.probes == Probes::Full).then_some(TO_DISTURB)
}

#[cfg(test)]
mod tests {
    use linerate_trust::roles::Role;

    use super::*;

    const PAGE: &str = include_str!("../../../docs/trust.md");

    fn role_of(permission: Permission) -> &'static str {
        match permission {
            Permission::Look => "viewer",
            Permission::Send => "operator",
            _ => "administrator",
        }
    }

    #[test]
    fn the_page_has_what_each_endpoint_needs() {
        for (method, path) in paths::TABLE {
            let rule = of_request(&method.parse().unwrap(), path);
            assert_eq!((rule.method, rule.path), (method, path), "no rule of its own");
            let row = format!("| `{method} {path}` | {} |", role_of(rule.needs));
            assert!(PAGE.contains(&row), "docs/trust.md needs the row {row}");
        }
        assert_eq!(of_request(&Method::PUT, "/v1/new").needs, Permission::SetPorts);
        assert_eq!(of_request(&Method::HEAD, paths::STATUS).needs, Permission::Look);
    }

    #[test]
    fn the_page_has_what_each_purpose_needs() {
        for purpose in Purpose::ALL {
            let needs = of_purpose(purpose).map_or("–".to_owned(), |needs| format!("`{needs}`"));
            let row = format!("| {purpose:?} | {needs} |");
            assert!(PAGE.contains(&row), "docs/trust.md needs the row {row}");
        }
    }

    #[test]
    fn a_domain_is_fetched_only_by_a_host_that_may_tunnel() {
        let needs = |domain: Option<&str>| {
            let (session, domain) = (String::new(), domain.map(str::to_owned));
            of_question(&Question::SendBack { session, domain, port: 7979 }, false)
        };
        assert_eq!((needs(None), needs(Some("web"))), (Permission::Send, Permission::Tunnel));
    }

    /// What a viewer may ask changes nothing, and takes no link of a guest that moves.
    #[test]
    fn a_viewer_changes_and_disturbs_nothing() {
        let viewer = |needs: Permission| Role::Viewer.has(needs);
        for rule in RULES.iter().filter(|rule| viewer(rule.needs)) {
            let reads =
                rule.method == "GET" || [paths::BENCH, paths::DOCTOR, paths::PLACE].contains(&rule.path);
            assert!(reads, "{} {}", rule.method, rule.path);
        }
        let more = |path: &str, body: &str| (of_request(&Method::POST, path).more)(body.as_bytes());
        let bench =
            |force| format!(r#"{{"to":"b","force":{force},"test":{{"name":"bandwidth","time_ms":1000}}}}"#);
        assert_eq!(more(paths::BENCH, &bench(true)), Some(Permission::Send));
        assert_eq!(more(paths::BENCH, &bench(false)), None);
        assert_eq!(more(paths::DOCTOR, r#"{"probes":"full"}"#), Some(Permission::Send));
        assert_eq!(more(paths::DOCTOR, r#"{"probes":"short"}"#), None);
        let load = Question::Probe { targets: Vec::new(), depth: Depth::Full };
        for question in [&load, &Question::Sink] {
            assert!(!viewer(of_question(question, true)) && viewer(of_question(question, false)));
        }
        assert!(viewer(of_question(&Question::Probe { targets: Vec::new(), depth: Depth::Short }, true)));
    }
}
