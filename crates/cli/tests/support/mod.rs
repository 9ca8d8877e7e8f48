//! An agent that moves nothing: it plays recorded migrations over a UNIX socket.
//!
//! | guest | what happens |
//! |---|---|
//! | `web` | is moved while a link is lost and comes back; whoever cancels it is refused |
//! | `full` | finds too little memory |
//! | `stuck` | ends in doubt |
//! | `doubt` | is in doubt until its state was asked for a few times |
//! | `cut` | ends the stream of events |
//! | `long` | goes on until it is cancelled |
//! | `deaf` | goes on also then |
//! | `pinned` | is refused |

pub mod script;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path as UrlPath, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use linerate_api::{
    AgentStatus, AnsweredHost, Decision, Direction, DoctorAnswer, DoctorRequest, ErrorBody, Event, EventKind,
    GuestRunState, GuestState, GuestSummary, KernelFeature, MigrateRequest, MigrationDetail, MigrationId,
    MigrationOutcome, MigrationStarted, MigrationState, MigrationSummary, NDJSON, Probes, ResolveRequest,
    SecurityState, Step, UnreachableHost, Verdict, paths,
};
use linerate_fabric::model::{Duplex, Inventory, Port, Survey};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

/// Every migration has this name and the guest's behind it.
pub const ID: &str = "3f9a01c2d4e5f607";

/// What the agent knows.
struct Agent {
    /// Real time for each unit of played time.
    pace: f64,
    /// Set when a cancel was asked for.
    cancelled: watch::Sender<bool>,
    /// What was asked, for tests to look at.
    asked: watch::Sender<Option<MigrateRequest>>,
    /// Migrations that are asked for are not answered while this is set.
    held: watch::Receiver<bool>,
    /// How often the state of a migration was asked for.
    shown: watch::Sender<u32>,
}

/// What tests see of it.
pub struct Seen {
    /// The last migration asked for.
    pub asked: watch::Receiver<Option<MigrateRequest>>,
    /// Whether a cancel was asked for.
    pub cancelled: watch::Receiver<bool>,
    /// Set: no migration that is asked for is answered.
    pub held: watch::Sender<bool>,
}

/// Serves at the socket until the future is dropped or its task aborted; ready as soon as this returns.
pub fn serve(
    socket: &Path,
    pace: f64,
) -> std::io::Result<(impl Future<Output = std::io::Result<()>> + Send + use<>, Seen)> {
    let listener = UnixListener::bind(socket)?;
    let (cancelled, cancelled_seen) = watch::channel(false);
    let (asked, asked_seen) = watch::channel(None);
    let (hold, held) = watch::channel(false);
    let (shown, _) = watch::channel(0);
    let agent = Arc::new(Agent { pace, cancelled, asked, held, shown });
    let router = Router::new()
        .route(paths::STATUS, get(status))
        .route(paths::GUESTS, get(guests))
        .route(paths::MIGRATIONS, post(migrate).get(migrations))
        .route(paths::MIGRATION, axum::routing::delete(cancel).get(show))
        .route(paths::MIGRATION_EVENTS, get(events))
        .route(paths::SESSION_RESOLVE, post(resolve))
        .route(paths::DOCTOR, post(examine))
        .route(paths::TUNNELS, post(end_at_once))
        .with_state(agent);
    let seen = Seen { asked: asked_seen, cancelled: cancelled_seen, held: hold };
    Ok((async move { axum::serve(listener, router).await }, seen))
}

fn refuse(body: ErrorBody) -> Response {
    let status = StatusCode::from_u16(body.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, Json(body)).into_response()
}

async fn status() -> Json<AgentStatus> {
    let feature = |name: &str, present, needed_for: &str| KernelFeature {
        name: name.into(),
        present,
        needed_for: needed_for.into(),
    };
    Json(AgentStatus {
        cordon: None,
        name: "alpha".into(),
        version: "0.1.0".into(),
        uptime_s: 93_784,
        listen: vec!["0.0.0.0:7979".into()],
        security: SecurityState::Tls,
        security_advice: None,
        identity: None,
        identity_not_taken_up: Some("trust.pem is damaged".into()),
        identity_dir: "/var/lib/linerate/identity".into(),
        join_listen: Vec::new(),
        guests: 3,
        migrations: 1,
        in_doubt: 0,
        unfinished: 0,
        unwritten: 0,
        journal_error: Some("the journal has records that cannot be read".into()),
        protocol_versions: vec![1],
        cordon_error: None,
        kernel_features: vec![
            feature("pagemap_scan", true, "direct mode"),
            feature("uffd_wp_async", false, "direct mode"),
        ],
    })
}

/// A tunnel whose agent ends: the answer has no event and no end.
async fn end_at_once() -> Body {
    Body::empty()
}

async fn guests() -> Json<Vec<GuestSummary>> {
    let guest = |name: &str, state, reasons: &[&str]| GuestSummary {
        name: name.into(),
        uuid: None,
        state,
        memory_bytes: 8 << 30,
        vcpus: 4,
        qemu_version: "10.0.2".into(),
        pid: Some(4211),
        session: None,
        direct: Verdict {
            possible: reasons.is_empty(),
            reasons: reasons.iter().map(|&r| r.into()).collect(),
        },
        stream: Verdict { possible: true, reasons: Vec::new() },
    };
    Json(vec![
        guest("web", GuestRunState::Running, &[]),
        guest("pinned", GuestRunState::Running, &["a VFIO device writes to RAM unseen", "RAM is not shared"]),
    ])
}

/// A port at half duplex; probes to `lossy` do not come back, those to `broken` fail, and `mute` does not answer.
async fn examine(Json(request): Json<DoctorRequest>) -> Result<Json<DoctorAnswer>, StatusCode> {
    if request.probes != Probes::None && request.hosts == ["lossy"] {
        std::future::pending::<()>().await;
    }
    if request.probes != Probes::None && request.hosts == ["broken"] {
        return Err(StatusCode::INTERNAL_SERVER_ERROR);
    }
    let silent = UnreachableHost { host: "mute".into(), why: "no route to it".into() };
    let unreachable = if request.hosts == ["mute"] { vec![silent] } else { Vec::new() };
    let mut port = Port { name: "ens1f1".into(), ..Port::default() };
    port.link.duplex = Some(Duplex::Half);
    let host = Inventory { host: "alpha".into(), ports: vec![port], ..Inventory::default() };
    let survey = Survey { hosts: vec![host], ..Survey::default() };
    let survey = serde_json::to_value(survey).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    // As a name service says that is wrong.
    let again = request.hosts.iter().filter(|host| *host == "misled");
    let repeated = again.map(|host| AnsweredHost { named: host.clone(), host: "alpha".into() }).collect();
    Ok(Json(DoctorAnswer { survey, answered: Vec::new(), repeated, unreachable }))
}

async fn migrate(State(agent): State<Arc<Agent>>, Json(request): Json<MigrateRequest>) -> Response {
    agent.asked.send_replace(Some(request.clone()));
    let _ = agent.held.clone().wait_for(|held| !held).await;
    if request.guest == "pinned" {
        let body = ErrorBody {
            step: Some(Step::Resolve),
            guest_state: Some(GuestState::RunsAtSource),
            ..ErrorBody::new(
                "not_migratable",
                "pinned cannot be moved in direct mode: a VFIO device writes to RAM unseen",
            )
            .with_hint("take the device out, or move the guest while it is shut down")
        };
        return refuse(body);
    }
    let id = MigrationId(format!("{ID}-{}", request.guest));
    (StatusCode::ACCEPTED, Json(MigrationStarted { id })).into_response()
}

fn summary(guest: &str, state: MigrationState) -> MigrationSummary {
    MigrationSummary {
        id: MigrationId(format!("{ID}-{guest}")),
        guest: guest.into(),
        direction: Direction::Outgoing,
        peer: "beta:7979".into(),
        state,
        step: Step::Copy,
        started_unix_ms: 1_700_000_000_000,
        sent_bytes: 3 << 30,
        note: None,
    }
}

async fn migrations() -> Json<Vec<MigrationSummary>> {
    Json(vec![summary("web", MigrationState::Running), summary("long", MigrationState::Running)])
}

/// What `doubt` waits for changes after two looks.
async fn show(State(agent): State<Arc<Agent>>, UrlPath(id): UrlPath<String>) -> Json<MigrationDetail> {
    let mut looks = 0;
    agent.shown.send_modify(|shown| {
        *shown += 1;
        looks = *shown;
    });
    let note = if looks <= 2 { "beta does not answer" } else { "beta has the guest" };
    let summary = match guest_of(&id) {
        "doubt" => MigrationSummary { note: Some(note.into()), ..summary("doubt", MigrationState::InDoubt) },
        guest => summary(guest, MigrationState::Running),
    };
    Json(MigrationDetail { summary, report: None, error: None })
}

async fn cancel(State(agent): State<Arc<Agent>>, UrlPath(id): UrlPath<String>) -> Response {
    if guest_of(&id) == "web" {
        return refuse(ErrorBody::new("not_authorised", "user 1 may not cancel migrations of this host"));
    }
    agent.cancelled.send_replace(true);
    (StatusCode::ACCEPTED, Json(summary(guest_of(&id), MigrationState::Cancelling))).into_response()
}

async fn resolve(
    UrlPath(id): UrlPath<String>,
    Json(request): Json<ResolveRequest>,
) -> Json<MigrationSummary> {
    let state = match request.decision {
        Decision::ResumeHere => MigrationState::Cancelled,
        Decision::GiveUp => MigrationState::Completed,
    };
    Json(summary(guest_of(&id), state))
}

fn guest_of(id: &str) -> &str {
    id.rsplit('-').next().unwrap_or(id)
}

async fn events(State(agent): State<Arc<Agent>>, UrlPath(id): UrlPath<String>) -> Response {
    let guest = guest_of(&id).to_owned();
    let (sender, receiver) = mpsc::channel::<Result<Bytes, std::io::Error>>(16);
    tokio::spawn(async move { play(&agent, &guest, sender).await });
    let body = Body::from_stream(ReceiverStream::new(receiver));
    ([(header::CONTENT_TYPE, NDJSON)], body).into_response()
}

/// Sends the recorded events in their time; ends when the client has closed the connection.
async fn play(agent: &Agent, guest: &str, sender: mpsc::Sender<Result<Bytes, std::io::Error>>) {
    let (mut cancelled, mut shown) = (agent.cancelled.subscribe(), agent.shown.subscribe());
    let mut played_us = 0;
    for event in script::of(guest) {
        let wait = Duration::from_micros(event.at_us.saturating_sub(played_us)).mul_f64(agent.pace);
        played_us = event.at_us;
        tokio::select! {
            () = asked_to_stop(&mut cancelled), if guest == "long" => {
                let kind = EventKind::Finished { outcome: MigrationOutcome::Cancelled, error: None, report: None };
                let _ = send(&sender, &Event { at_us: played_us, kind }).await;
                return;
            }
            () = shown_often(&mut shown), if guest == "doubt" => {
                if let Some(last) = script::of(guest).pop() {
                    let _ = send(&sender, &last).await;
                }
                return;
            }
            () = tokio::time::sleep(wait) => {}
        }
        if send(&sender, &event).await.is_err() {
            return;
        }
    }
}

async fn asked_to_stop(cancelled: &mut watch::Receiver<bool>) {
    let _ = cancelled.wait_for(|cancelled| *cancelled).await;
}

async fn shown_often(shown: &mut watch::Receiver<u32>) {
    let _ = shown.wait_for(|looks| *looks > 4).await;
}

async fn send(sender: &mpsc::Sender<Result<Bytes, std::io::Error>>, event: &Event) -> Result<(), ()> {
    let mut line = serde_json::to_vec(event).map_err(|_| ())?;
    line.push(b'\n');
    sender.send(Ok(line.into())).await.map_err(|_| ())
}
