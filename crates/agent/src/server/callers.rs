//! Programs of this host that use the local API: who they are by the kernel's word, what their user may do, and a line
//! in the audit log for each thing that they change.

use std::ffi::CString;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, MatchedPath, RawPathParams, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::serve::IncomingStream;
use linerate_api::{AuditAction, AuditCaller, AuditEntry, AuditResult, ErrorBody, code, paths};
use linerate_trust::roles::Permission;
use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use serde_json::Value;

use super::connections::{Connections, Place};
use crate::agent::Agent;
use crate::audit::entry;
use crate::local_users::LocalUsers;
use crate::permission::{self, Rule};

/// A request's body, bytes. As large as axum takes by itself.
const BODY_MAX: usize = 2 << 20;

/// Who opened a connection, by the kernel's word.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LocalPeer {
    uid: Option<u32>,
    pid: Option<i32>,
}

/// A connection: who opened it, and what it takes of its user's share.
#[derive(Clone, Debug)]
pub(crate) struct LocalConnection {
    peer: LocalPeer,
    place: Place,
}

impl Connected<IncomingStream<'_, Connections>> for LocalConnection {
    fn connect_info(stream: IncomingStream<'_, Connections>) -> LocalConnection {
        let connection = stream.io();
        let credentials = connection.stream().peer_cred().ok();
        let peer =
            LocalPeer { uid: credentials.map(|one| one.uid()), pid: credentials.and_then(|one| one.pid()) };
        LocalConnection { peer, place: connection.place() }
    }
}

/// Around every request: has it wait for its user's turn, refuses what the user may not do, and writes down what was
/// done. In a task of its own: a client that hangs up drops the request. What it began goes on, must be written down,
/// and keeps its turn: otherwise a user could begin any number of them.
pub(crate) async fn supervise(
    State(agent): State<Arc<Agent>>,
    ConnectInfo(connection): ConnectInfo<LocalConnection>,
    matched: MatchedPath,
    parameters: RawPathParams,
    request: Request,
    next: Next,
) -> Response {
    let turn = connection.place.turn(is_urgent(request.method(), matched.as_str())).await;
    let doing = tokio::spawn(async move {
        let answer = carry_out(agent, connection.peer, (matched, parameters), request, next).await;
        drop(turn);
        answer
    });
    match doing.await {
        Ok(answer) => answer,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime ends, and so does the agent.
        Err(_) => {
            let body = ErrorBody::new(
                "internal",
                "the agent is stopping; whether this request was carried out is not known",
            )
            .with_hint("`linerate migration list` and `linerate vm list`, once it runs again");
            (StatusCode::INTERNAL_SERVER_ERROR, Json(body)).into_response()
        }
    }
}

/// Whether the request looks at what goes on, or ends it or decides about it. An operator whose other requests wait for
/// guests or hosts must not have to wait for them.
fn is_urgent(method: &Method, path: &str) -> bool {
    match path {
        paths::STATUS
        | paths::MIGRATION
        | paths::MIGRATION_EVENTS
        | paths::SESSION_RESOLVE
        | paths::DRAIN => true,
        paths::MIGRATIONS | paths::DRAINS | paths::UNDRAIN => *method == Method::GET,
        _ => false,
    }
}

async fn carry_out(
    agent: Arc<Agent>,
    peer: LocalPeer,
    (matched, parameters): (MatchedPath, RawPathParams),
    request: Request,
    next: Next,
) -> Response {
    let rule = permission::of_request(request.method(), matched.as_str());
    let (caller, refusal) = look_up(&agent, peer, rule.needs).await;
    let mut line = entry(rule.action, AuditResult::Done, caller.clone());
    for (key, value) in &parameters {
        let place = if key == "name" { &mut line.guest } else { &mut line.session };
        *place = Some(value.to_owned());
    }
    if let Some(body) = refusal {
        return refuse(&agent, line, body);
    }
    if rule.action == AuditAction::Look {
        return next.run(request).await;
    }
    let (mut request, more) = match about_request(request, &rule, &mut line).await {
        Ok(understood) => understood,
        Err(refused) => return refused,
    };
    if let Some(more) = more
        && let (_, Some(body)) = look_up(&agent, peer, more).await
    {
        return refuse(&agent, line, with_way_out(&rule, body));
    }
    let only_looks = rule.needs == Permission::Look && more.is_none();
    request.extensions_mut().insert(caller);
    let answer = about_answer(next.run(request).await, &mut line).await;
    if only_looks {
        agent.audit.record_look(line);
    } else {
        agent.audit.record(line);
    }
    answer
}

/// What the user may do instead.
fn with_way_out(rule: &Rule, body: ErrorBody) -> ErrorBody {
    let instead = match rule.action {
        AuditAction::Bench => "without --force it gives way to migrations, and a viewer may ask for it",
        AuditAction::Doctor => "with --quick it puts no load on the links, and a viewer may ask for it",
        _ => return body,
    };
    let hint = format!("{}; {instead}", body.hint);
    body.with_hint(hint)
}

fn refuse(agent: &Agent, line: AuditEntry, body: ErrorBody) -> Response {
    let reason = Some(body.message.clone());
    agent.audit.record(AuditEntry { result: AuditResult::Refused, reason, ..line });
    let status = StatusCode::from_u16(body.http_status()).unwrap_or(StatusCode::FORBIDDEN);
    (status, Json(body)).into_response()
}

/// [`permit`], which may wait for the user database.
async fn look_up(agent: &Agent, peer: LocalPeer, permission: Permission) -> (AuditCaller, Option<ErrorBody>) {
    let users = agent.config.local.clone();
    let looked_up = tokio::task::spawn_blocking(move || permit(peer, &users, permission)).await;
    looked_up
        .unwrap_or_else(|_| (local(peer, None), Some(ErrorBody::new("internal", "a defect in the agent"))))
}

/// Who it is, and why not if the user may not.
fn permit(peer: LocalPeer, users: &LocalUsers, permission: Permission) -> (AuditCaller, Option<ErrorBody>) {
    let user = peer.uid.and_then(|uid| User::from_uid(Uid::from_raw(uid)).ok().flatten());
    let caller = local(peer, user.as_ref().map(|user| user.name.clone()));
    let own = rustix::process::geteuid().as_raw();
    let allowed = match (peer.uid, user) {
        (Some(uid), _) if uid == 0 || uid == own => true,
        (Some(_), Some(user)) => users.allow(&user.name, &groups(&user), permission),
        _ => false,
    };
    let refusal = (!allowed).then(|| {
        let who = match &caller {
            AuditCaller::Local { user: Some(user), .. } => format!("the user {user}"),
            AuditCaller::Local { uid, .. } => format!("the user {uid}"),
            _ => "an unknown user".to_owned(),
        };
        let least = if permission == Permission::SetPorts {
            "administrator"
        } else if permission == Permission::Look {
            "viewer"
        } else {
            "operator"
        };
        ErrorBody::new("not_authorised", format!("{who} may not do this on this host")).with_hint(format!(
            "run it as root, or give the user or one of its groups the role {least} in [local] of the agent's configuration"
        ))
    });
    (caller, refusal)
}

fn local(peer: LocalPeer, user: Option<String>) -> AuditCaller {
    // Without a word of the kernel's: the user that owns nothing.
    AuditCaller::Local { uid: peer.uid.unwrap_or(u32::MAX), user, pid: peer.pid }
}

/// Names of a user's groups, by the host's user database. What the process itself has may be older.
fn groups(user: &User) -> Vec<String> {
    let name = CString::new(user.name.as_str()).unwrap_or_default();
    let all = getgrouplist(&name, user.gid).unwrap_or_else(|_| vec![user.gid]);
    all.into_iter()
        .filter_map(|gid: Gid| Group::from_gid(gid).ok().flatten())
        .map(|group| group.name)
        .collect()
}

/// What the body of a request says of guest and host, and what its user needs for it besides the endpoint's permission.
async fn about_request(
    request: Request,
    rule: &Rule,
    line: &mut AuditEntry,
) -> Result<(Request, Option<Permission>), Response> {
    let bad = |text: String| {
        (StatusCode::BAD_REQUEST, Json(ErrorBody::new(code::BAD_REQUEST, text))).into_response()
    };
    let (parts, body) = request.into_parts();
    let bytes = to_bytes(body, BODY_MAX)
        .await
        .map_err(|_| bad(format!("the request has more than {} MiB, or was cut off", BODY_MAX >> 20)))?;
    let asked: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    // A list of a document's values is read as the document, and would hide guest and host from the log.
    if asked.is_array() {
        return Err(bad("the request is no JSON object".to_owned()));
    }
    let more = (rule.more)(&bytes);
    let text = |key: &str| asked[key].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    line.guest = line.guest.take().or_else(|| text("guest"));
    line.to = text("to").or_else(|| text("host"));
    Ok((Request::from_parts(parts, Body::from(bytes)), more))
}

/// What became of it: an error's text, a guest's name, a migration's id. Answers that stream are left alone.
async fn about_answer(answer: Response, line: &mut AuditEntry) -> Response {
    let failed = !answer.status().is_success();
    let tells = matches!(
        line.action,
        AuditAction::GuestStart | AuditAction::GuestAdopt | AuditAction::MigrationBegin
    );
    if failed {
        line.result = AuditResult::Failed;
    }
    if !failed && !tells {
        return answer;
    }
    let (parts, body) = answer.into_parts();
    let bytes = to_bytes(body, BODY_MAX).await.unwrap_or_else(|_| Bytes::new());
    let document: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let text = |key: &str| document[key].as_str().map(str::to_owned);
    if failed {
        line.reason = text("message");
    } else if line.action == AuditAction::MigrationBegin {
        line.session = text("id");
    } else {
        line.guest = text("name");
    }
    Response::from_parts(parts, Body::from(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_may_do_everything_and_a_user_without_a_role_nothing() {
        let peer = |uid| LocalPeer { uid, pid: Some(1) };
        let none = LocalUsers::default();
        let refused = |uid, permission| permit(peer(uid), &none, permission).1;
        assert!(refused(Some(0), Permission::SetPorts).is_none());
        // `daemon` and a number without a name.
        for uid in [Some(1), Some(3_999_999_999), None] {
            let body = refused(uid, Permission::Look).unwrap();
            assert_eq!((body.code.as_str(), body.http_status()), ("not_authorised", 403));
            assert!(body.hint.contains("viewer"));
        }
    }
}
