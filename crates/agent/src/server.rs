//! The local API: HTTP over a UNIX socket that only root can open, or users with a role (`[local]`).

mod callers;
mod connections;
mod forget;
mod resolve;

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use axum::Json;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Extension, Path, State};
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use linerate_api::{
    AgentStatus, AuditCaller, AuditRequest, BenchEvent, BenchRequest, CordonRequest, DoctorRequest,
    DrainStarted, DrainSteer, ErrorBody, GuestState, LinkConfirm, LinkRequest, MigrateRequest,
    MigrationDetail, MigrationStarted, MigrationState, MigrationSummary, NDJSON, QosRequest, TunnelEvent,
    TunnelRequest, UndrainRequest, code, paths,
};
use linerate_wire::{VERSION_MAX, VERSION_MIN};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::StreamExt as _;

use crate::agent::Agent;
use crate::bench;
use crate::both_hosts;
use crate::config::Config;
use crate::drain::Drains;
use crate::event_log::{EventCursor, EventLog};
use crate::outgoing::Outgoing;
use crate::recovery::Unfinished;
use crate::{convert, doctor, drain, guests, libvirt, outgoing, settings, tunnel};
use callers::{LocalConnection, supervise};
use connections::Connections;

type Shared = State<Arc<Agent>>;
type OfDrains = Extension<Arc<Drains>>;

struct Refusal(ErrorBody);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(self.0)).into_response()
    }
}

/// Serves until SIGTERM or SIGINT.
pub async fn serve(agent: &Arc<Agent>, drains: &Arc<Drains>) -> Result<()> {
    let listener = listen(&agent.config)?;
    let socket = &agent.config.socket;
    tracing::info!(socket = %socket.display(), listen = ?agent.config.listen, name = agent.config.name, "the agent is ready");
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        done = answer(agent, drains, listener) => done?,
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    let _ = std::fs::remove_file(socket);
    Ok(())
}

fn listen(config: &Config) -> Result<UnixListener> {
    let socket = &config.socket;
    if let Some(folder) = socket.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    // An agent that was started at the same time may listen by now.
    refuse_answered(socket)?;
    let _ = std::fs::remove_file(socket);
    let listener =
        UnixListener::bind(socket).with_context(|| format!("cannot listen on {}", socket.display()))?;
    open_to_users(config)?;
    Ok(listener)
}

/// The lock of `run_dir` has shown that no other agent uses it. One with folders of its own may have this socket.
///
/// # Errors
///
/// A program answers at the socket.
pub(crate) fn refuse_answered(socket: &std::path::Path) -> Result<()> {
    if is_answered(socket) {
        bail!("another agent listens on {}: give this one another `socket`", socket.display());
    }
    Ok(())
}

/// Whether a program takes connections at this socket, or would if it came to it: what is there of an agent that has
/// ended refuses them.
fn is_answered(socket: &std::path::Path) -> bool {
    let connect = || -> std::io::Result<()> {
        let client = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        client.set_nonblocking(true)?;
        client.connect(&SockAddr::unix(socket)?)
    };
    match connect() {
        Ok(()) => true,
        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
    }
}

async fn answer(agent: &Arc<Agent>, drains: &Arc<Drains>, listener: UnixListener) -> std::io::Result<()> {
    let routes =
        routes(agent.clone(), drains.clone()).into_make_service_with_connect_info::<LocalConnection>();
    axum::serve(Connections::new(listener), routes).await
}

/// Users with a role must reach the socket: each request's user is looked at. The folder may be searched then and not
/// listed, and the other sockets in it are root's.
fn open_to_users(config: &Config) -> std::io::Result<()> {
    let mode =
        |path: &std::path::Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
    if config.local.is_empty() {
        return mode(&config.socket, 0o600);
    }
    if config.socket.parent() == Some(&config.run_dir) {
        mode(&config.run_dir, 0o711)?;
    }
    mode(&config.socket, 0o666)
}

fn routes(agent: Arc<Agent>, drains: Arc<Drains>) -> Router {
    Router::new()
        .route(paths::STATUS, get(status))
        .route(paths::IDENTITY, post(look_at_identity))
        .route(paths::GUESTS, get(list_guests).post(start_guest))
        .route(paths::GUESTS_ADOPT, post(adopt_guest))
        .route(paths::GUEST, get(show_guest))
        .route(paths::GUEST_STOP, post(stop_guest))
        .route(paths::MIGRATIONS, get(list_migrations).post(migrate))
        .route(paths::MIGRATION, get(show_migration).delete(cancel))
        .route(paths::MIGRATION_EVENTS, get(events))
        .route(paths::SESSION_RESOLVE, post(resolve::resolve))
        .route(paths::BENCH, post(measure))
        .route(paths::DOCTOR, post(examine))
        .route(paths::LINK_SET, post(set_link))
        .route(paths::LINK_CONFIRM, post(confirm_link))
        .route(paths::LINK_PUT_BACK, post(put_back_link))
        .route(paths::TUNNELS, post(make_tunnel))
        .route(paths::QOS_APPLY, post(apply_qos))
        .route(paths::AUDIT, post(read_audit))
        .route(paths::CORDON, post(cordon))
        .route(paths::UNCORDON, post(uncordon))
        .route(paths::DRAINS, get(list_drains).post(begin_drain))
        .route(paths::DRAIN_PLAN, post(plan_drain))
        .route(paths::DRAIN, get(show_drain).post(steer_drain))
        .route(paths::UNDRAIN, get(show_undrain).post(undrain))
        .route(paths::UNDRAIN_FORGET, post(forget::guest))
        .route(paths::PLACE, post(place))
        .route(paths::FLEET_HOSTS, get(fleet_hosts))
        .route(paths::FLEET_DRAINS, get(fleet_drains))
        .route(paths::FLEET, get(fleet_status))
        .route(paths::FLEET_FORGET, post(forget::host))
        .route_layer(from_fn_with_state(agent.clone(), supervise))
        .layer(Extension(drains))
        .fallback(async || Refusal(ErrorBody::new(code::NOT_FOUND, "there is nothing at this path")))
        .with_state(agent)
}

/// A request's body; an error in it is answered in the API's own form.
fn parse<T: serde::de::DeserializeOwned>(body: &Bytes) -> Result<T, Refusal> {
    serde_json::from_slice(body)
        .map_err(|error| Refusal(ErrorBody::new(code::BAD_REQUEST, error.to_string())))
}

/// Runs blocking work on a thread for it.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ErrorBody> + Send + 'static,
) -> Result<T, Refusal> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(Refusal),
        Err(error) => Err(Refusal(ErrorBody::new("internal", format!("a defect in the agent: {error}")))),
    }
}

/// Reads the store of the fleet.
async fn status(State(agent): Shared) -> Result<Response, Refusal> {
    Ok(Json(blocking(move || Ok(status_of(&agent))).await?).into_response())
}

/// Commands write to the identity's folder and ask for this behind it.
async fn look_at_identity(State(agent): Shared) -> Result<Response, Refusal> {
    let looked = move || {
        agent.cluster.look();
        Ok(status_of(&agent))
    };
    Ok(Json(blocking(looked).await?).into_response())
}

fn status_of(agent: &Agent) -> AgentStatus {
    let outgoing = agent.outgoing();
    let (recovering, moving): (Vec<_>, Vec<_>) =
        agent.moves.all().into_iter().filter(|one| !one.is_over()).partition(|one| one.is_recovering());
    // A domain whose RAM is copied here is among those that leave.
    let by_libvirt = moving.iter().filter(|one| one.copied().is_some() || one.copy().is_none()).count();
    let running =
        outgoing.iter().filter(|one| !one.is_over()).count() + agent.incoming_live().len() + by_libvirt;
    let unfinished = agent.unfinished();
    let in_doubt = outgoing.iter().filter(|one| one.is_in_doubt()).count()
        + agent.incoming_live().iter().filter(|one| one.is_in_doubt()).count()
        + unfinished.iter().filter(|one| one.is_in_doubt()).count()
        + both_hosts::summaries(&agent.journal).len();
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let security = agent.cluster.status();
    let (cordon, cordon_error) = match agent.fleet.cordon() {
        Ok(cordon) => (cordon, None),
        Err(error) => (None, Some(error.to_string())),
    };
    AgentStatus {
        name: agent.config.name.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime_s: agent.started.elapsed().as_secs(),
        listen: agent.cluster.listens_at().iter().map(ToString::to_string).collect(),
        security: security.state,
        security_advice: security.advice,
        identity: security.identity,
        identity_not_taken_up: security.not_taken_up,
        identity_dir: agent.config.identity_folder().display().to_string(),
        join_listen: agent.cluster.joins_at().iter().map(ToString::to_string).collect(),
        cordon,
        cordon_error,
        guests: count(agent.names_here().len()),
        migrations: count(running),
        in_doubt: count(in_doubt),
        unfinished: count(unfinished.len() + recovering.len()),
        unwritten: count(agent.journal.unwritten_ends()),
        journal_error: agent.journal.unreadable(),
        protocol_versions: (VERSION_MIN..=VERSION_MAX).collect(),
        kernel_features: crate::kernel::features(),
    }
}

async fn list_guests(State(agent): Shared) -> Result<Response, Refusal> {
    Ok(Json(blocking(move || guests::list(&agent)).await?).into_response())
}

async fn show_guest(State(agent): Shared, Path(name): Path<String>) -> Result<Response, Refusal> {
    Ok(Json(blocking(move || guests::show(&agent, &name)).await?).into_response())
}

async fn start_guest(State(agent): Shared, body: Bytes) -> Result<Response, Refusal> {
    let request = parse(&body)?;
    let started = blocking(move || guests::start(&agent, &request)).await?;
    Ok((StatusCode::CREATED, Json(started)).into_response())
}

async fn adopt_guest(State(agent): Shared, body: Bytes) -> Result<Response, Refusal> {
    let request = parse(&body)?;
    let adopted = blocking(move || guests::adopt(&agent, &request)).await?;
    Ok((StatusCode::CREATED, Json(adopted)).into_response())
}

async fn stop_guest(
    State(agent): Shared,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let request = if body.is_empty() { Default::default() } else { parse(&body)? };
    Ok(Json(blocking(move || guests::stop(&agent, &name, request)).await?).into_response())
}

async fn migrate(State(agent): Shared, body: Bytes) -> Result<Response, Refusal> {
    let request: MigrateRequest = parse(&body)?;
    if let Some(domain) = request.libvirt.clone() {
        let id = libvirt::begin(agent.libvirt(), request, domain).await.map_err(Refusal)?;
        return Ok((StatusCode::ACCEPTED, Json(MigrationStarted { id })).into_response());
    }
    let guest = request.guest.clone();
    let begun = blocking(move || {
        let starting = agent.clone();
        agent
            .begin_outgoing(&guest, move || outgoing::start(&starting.outgoing, request))
            .map_err(|fault| convert::error(&fault, None))
    });
    let id = begun.await?.id();
    Ok((StatusCode::ACCEPTED, Json(MigrationStarted { id })).into_response())
}

async fn list_migrations(State(agent): Shared) -> Json<Vec<MigrationSummary>> {
    let unfinished = agent.unfinished();
    let goes_on = |id: &str| unfinished.iter().any(|one| one.session.to_string() == id);
    let mut all: Vec<MigrationSummary> = agent.outgoing().iter().map(|one| one.summary()).collect();
    all.extend(agent.incoming_live().iter().map(|one| one.summary()));
    all.extend(agent.past_incoming());
    // What is left to do of it is what counts.
    all.retain(|one| !goes_on(&one.id.0));
    all.extend(unfinished.iter().map(|one| one.summary()));
    // Whatever else is known of it.
    let on_both_hosts = both_hosts::summaries(&agent.journal);
    all.retain(|one| !on_both_hosts.iter().any(|other| other.id == one.id));
    all.extend(on_both_hosts);
    // The copy of a domain's RAM has the name of its migration.
    all.retain(|one| agent.moves.by_id(&one.id.0).is_none());
    all.extend(agent.moves.all().iter().map(|one| one.summary()));
    all.sort_by_key(|one| std::cmp::Reverse(one.started_unix_ms));
    Json(all)
}

fn unknown(id: &str) -> Refusal {
    Refusal(
        ErrorBody::new(code::MIGRATION_UNKNOWN, format!("there is no migration {id} on this host"))
            .with_hint("`linerate migration list` shows those there are"),
    )
}

fn find(agent: &Agent, id: &str) -> Result<Arc<Outgoing>, Refusal> {
    agent.outgoing_by_id(id).ok_or_else(|| unknown(id))
}

async fn show_migration(
    State(agent): Shared,
    Path(id): Path<String>,
) -> Result<Json<MigrationDetail>, Refusal> {
    if let Some(moving) = agent.moves.by_id(&id) {
        return Ok(Json(moving.detail()));
    }
    let left = agent.unfinished().into_iter().map(|one| one.summary());
    let unfinished = both_hosts::summaries(&agent.journal).into_iter();
    let unfinished = unfinished.chain(left).find(|one| one.id.0 == id);
    if let Some(outgoing) = agent.outgoing_by_id(&id) {
        let detail = outgoing.detail();
        let summary = unfinished.unwrap_or_else(|| detail.summary.clone());
        return Ok(Json(MigrationDetail { summary, ..detail }));
    }
    let incoming = agent.incoming_live().into_iter().map(|one| one.summary());
    let found = unfinished.or_else(|| incoming.chain(agent.past_incoming()).find(|one| one.id.0 == id));
    let summary = found.ok_or_else(|| unknown(&id))?;
    Ok(Json(MigrationDetail { summary, report: None, error: None }))
}

/// A session of an earlier agent, or one that could not end itself. It has no events, and is beyond a cancel.
/// Its note says what it waits for.
fn left_to_recovery(unfinished: &Unfinished) -> Refusal {
    let MigrationSummary { id, state, step, note, .. } = unfinished.summary();
    let in_doubt = state == MigrationState::InDoubt;
    let is = if in_doubt { "is in doubt" } else { "is being brought to its end" };
    let text = format!("migration {id} {is}: {}", note.unwrap_or_default());
    let hint = match in_doubt {
        true => {
            format!("see where the guest is; bring the other host back, or decide: `linerate resolve {id}`")
        }
        false => "`linerate migration list` shows how far it is".to_owned(),
    };
    Refusal(ErrorBody {
        step: Some(step),
        guest_state: in_doubt.then_some(GuestState::InDoubt),
        ..ErrorBody::new(code::TOO_LATE, text).with_hint(hint)
    })
}

async fn cancel(State(agent): Shared, Path(id): Path<String>) -> Result<Response, Refusal> {
    if let Some(incoming) = agent.incoming_live().into_iter().find(|one| one.session.to_string() == id) {
        if !incoming.cancel() {
            let text = format!(
                "too late to cancel: the guest {} is complete here, and this copy may be the only one",
                incoming.guest()
            );
            return Err(Refusal(ErrorBody::new(code::TOO_LATE, text).with_hint(
                "cancel at the source; if its host is lost, see what runs there and decide here: linerate resolve",
            )));
        }
        return Ok((StatusCode::ACCEPTED, Json(incoming.summary())).into_response());
    }
    if let Some(moving) = agent.moves.by_id(&id) {
        moving.cancel().map_err(Refusal)?;
        return Ok((StatusCode::ACCEPTED, Json(moving.summary())).into_response());
    }
    if let Some(unfinished) = agent.unfinished().into_iter().find(|one| one.session.to_string() == id) {
        return Err(left_to_recovery(&unfinished));
    }
    let outgoing = find(&agent, &id)?;
    if outgoing.is_over() {
        return Err(Refusal(ErrorBody::new(code::TOO_LATE, format!("migration {id} is over"))));
    }
    outgoing.cancel();
    Ok((StatusCode::ACCEPTED, Json(outgoing.summary())).into_response())
}

async fn read_audit(State(agent): Shared, body: Bytes) -> Result<Response, Refusal> {
    let request: AuditRequest = parse(&body)?;
    let read = move || {
        let failed = |error: std::io::Error| {
            ErrorBody::new("internal", format!("the audit log cannot be read: {error}"))
        };
        agent.audit.read(&request).map_err(failed)
    };
    Ok(Json(blocking(read).await?).into_response())
}

async fn cordon(
    State(agent): Shared,
    Extension(caller): Extension<AuditCaller>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let request = parse(&body)?;
    let done = move || {
        is_this_host(&agent, &request)?;
        let who = who(&agent, &caller);
        agent.fleet.set_cordon(&who).map_err(|error| drain::of_fleet(&error, &agent))
    };
    Ok(Json(blocking(done).await?).into_response())
}

/// The user that asks, for other users.
fn who(agent: &Agent, caller: &AuditCaller) -> String {
    match caller {
        AuditCaller::Local { user: Some(user), .. } => format!("{user}@{}", agent.config.name),
        AuditCaller::Local { uid, .. } => format!("user {uid} of {}", agent.config.name),
        _ => agent.config.name.clone(),
    }
}

async fn uncordon(State(agent): Shared, body: Bytes) -> Result<Response, Refusal> {
    let request = parse(&body)?;
    let done = move || {
        is_this_host(&agent, &request)?;
        agent.fleet.lift_cordon().map_err(|error| drain::of_fleet(&error, &agent))
    };
    Ok(Json(blocking(done).await?).into_response())
}

async fn list_drains(State(agent): Shared, Extension(drains): OfDrains) -> Result<Response, Refusal> {
    Ok(Json(blocking(move || drain::list(&agent, &drains, false)).await?).into_response())
}

async fn begin_drain(
    State(agent): Shared,
    Extension(drains): OfDrains,
    Extension(caller): Extension<AuditCaller>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let by = who(&agent, &caller);
    let id = drain::begin(&agent, drains, parse(&body)?, by).await.map_err(Refusal)?;
    Ok((StatusCode::ACCEPTED, Json(DrainStarted { id })).into_response())
}

async fn plan_drain(State(agent): Shared, body: Bytes) -> Result<Response, Refusal> {
    Ok(Json(drain::plan(&agent, parse(&body)?).await.map_err(Refusal)?).into_response())
}

async fn show_drain(
    State(agent): Shared,
    Extension(drains): OfDrains,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    Ok(Json(blocking(move || drain::show(&agent, &drains, &id)).await?).into_response())
}

async fn steer_drain(
    State(agent): Shared,
    Extension(drains): OfDrains,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let DrainSteer { order } = parse(&body)?;
    Ok(Json(blocking(move || drain::steer(&agent, &drains, &id, order)).await?).into_response())
}

async fn undrain(
    State(agent): Shared,
    Extension(drains): OfDrains,
    body: Bytes,
) -> Result<Response, Refusal> {
    let request: UndrainRequest = parse(&body)?;
    let runtime = tokio::runtime::Handle::current();
    let begin = move || drain::undrain::begin(&agent, &drains, runtime, request.host.as_deref());
    let begun = blocking(begin).await?;
    Ok((StatusCode::ACCEPTED, Json(begun)).into_response())
}

async fn show_undrain(Extension(drains): OfDrains) -> Result<Response, Refusal> {
    Ok(Json(drain::undrain::show(&drains).map_err(Refusal)?).into_response())
}

async fn place(State(agent): Shared, body: Bytes) -> Result<Response, Refusal> {
    Ok(Json(drain::explain(&agent, parse(&body)?).await.map_err(Refusal)?).into_response())
}

async fn fleet_hosts(State(agent): Shared) -> Result<Response, Refusal> {
    Ok(Json(blocking(move || drain::status::hosts(&agent)).await?).into_response())
}

async fn fleet_drains(State(agent): Shared, Extension(drains): OfDrains) -> Result<Response, Refusal> {
    Ok(Json(blocking(move || drain::list(&agent, &drains, true)).await?).into_response())
}

async fn fleet_status(State(agent): Shared) -> Result<Response, Refusal> {
    Ok(Json(blocking(move || Ok(drain::status::status(&agent))).await?).into_response())
}

fn is_this_host(agent: &Agent, request: &CordonRequest) -> Result<(), ErrorBody> {
    let own = &agent.config.name;
    match &request.host {
        Some(other) if other != own => {
            let text =
                format!("this is host {own}: its agent does not speak for host {other}; nothing was changed");
            Err(ErrorBody::new(code::REFUSED, text).with_hint(format!("run the command on {other}")))
        }
        _ => Ok(()),
    }
}

async fn examine(State(agent): Shared, body: Bytes) -> Result<Response, Refusal> {
    let request: DoctorRequest = parse(&body)?;
    Ok(Json(blocking(move || doctor::coordinate::examine(&agent.doctor, &request)).await?).into_response())
}

async fn set_link(State(agent): Shared, body: Bytes) -> Result<Response, Refusal> {
    let request: LinkRequest = parse(&body)?;
    Ok(Json(blocking(move || settings::set_link(&agent.trials, &request)).await?).into_response())
}

async fn confirm_link(State(agent): Shared, body: Bytes) -> Result<Response, Refusal> {
    let request: LinkConfirm = parse(&body)?;
    Ok(Json(blocking(move || settings::confirm(&agent.trials, &request).map(|()| request)).await?)
        .into_response())
}

async fn put_back_link(State(agent): Shared, body: Bytes) -> Result<Response, Refusal> {
    let request: LinkConfirm = parse(&body)?;
    Ok(Json(blocking(move || settings::put_back(&agent.trials, &request).map(|()| request)).await?)
        .into_response())
}

async fn apply_qos(State(agent): Shared, body: Bytes) -> Result<Response, Refusal> {
    let request: QosRequest = parse(&body)?;
    Ok(Json(blocking(move || settings::apply_qos(&agent.trials, &request)).await?).into_response())
}

/// Makes a tunnel that is open as long as its events are read.
async fn make_tunnel(State(agent): Shared, body: Bytes) -> Result<Response, Refusal> {
    let request: TunnelRequest = parse(&body)?;
    if request.pairs.is_empty() {
        return Err(Refusal(ErrorBody::new(code::BAD_REQUEST, "a tunnel needs a pair of sockets")));
    }
    let begin = move || tunnel::begin(&agent.tunnels, &request).map_err(|fault| convert::error(&fault, None));
    let begun = blocking(begin).await?;
    let (lines, received) = tokio::sync::mpsc::channel(16);
    tokio::spawn(feed_tunnel(begun, lines));
    let stream = tokio_stream::wrappers::ReceiverStream::new(received).map(Ok::<_, std::convert::Infallible>);
    Ok(([(header::CONTENT_TYPE, NDJSON)], Body::from_stream(stream)).into_response())
}

/// Until the tunnel ends, or its events are not read any more, which ends it.
async fn feed_tunnel(mut begun: tunnel::Begun, lines: tokio::sync::mpsc::Sender<Bytes>) {
    let silence = std::time::Duration::from_secs(linerate_api::KEEP_ALIVE_S);
    let mut over = false;
    while !over {
        let line = tokio::select! {
            event = begun.events.recv() => {
                over = matches!(event, None | Some(TunnelEvent::Ended { .. }));
                let line = event.and_then(|event| serde_json::to_vec(&event).ok());
                line.map(|mut line| { line.push(b'\n'); line }).unwrap_or_default()
            }
            () = tokio::time::sleep(silence) => b"\n".to_vec(),
            () = lines.closed() => break,
        };
        if lines.send(line.into()).await.is_err() {
            break;
        }
    }
    // It waits for threads.
    let _ = tokio::task::spawn_blocking(move || drop(begun)).await;
}

/// The event stream: a line each; an empty line when nothing happens for a while.
async fn events(State(agent): Shared, Path(id): Path<String>) -> Result<Response, Refusal> {
    if both_hosts::has(&agent.journal, &id) {
        return Err(Refusal(both_hosts::refusal()));
    }
    let stream = match agent.moves.by_id(&id) {
        Some(moving) => follow(moving, |moving| &moving.event_log),
        None => {
            let unfinished = agent.unfinished().into_iter().find(|one| one.session.to_string() == id);
            match (agent.outgoing_by_id(&id), unfinished) {
                (Some(outgoing), _) => follow(outgoing, |outgoing| &outgoing.event_log),
                (None, Some(unfinished)) => return Err(left_to_recovery(&unfinished)),
                (None, None) => return Err(unknown(&id)),
            }
        }
    };
    let stream = stream.map(Ok::<_, std::convert::Infallible>);
    Ok(([(header::CONTENT_TYPE, NDJSON)], Body::from_stream(stream)).into_response())
}

type Lines = tokio_stream::wrappers::ReceiverStream<Bytes>;

fn follow<T: Send + Sync + 'static>(of: Arc<T>, event_log: fn(&T) -> &EventLog) -> Lines {
    let (lines, received) = tokio::sync::mpsc::channel(16);
    let cursor = event_log(&of).watch();
    let silence = std::time::Duration::from_secs(linerate_api::KEEP_ALIVE_S);
    tokio::spawn(feed(of, event_log, cursor, lines, silence));
    Lines::new(received)
}

/// Until there are no more events, or nobody reads them any more.
async fn feed<T: Send + Sync + 'static>(
    of: Arc<T>,
    event_log: fn(&T) -> &EventLog,
    mut cursor: EventCursor,
    lines: tokio::sync::mpsc::Sender<Bytes>,
    silence: std::time::Duration,
) {
    loop {
        let (events, over) = event_log(&of).next_events(&mut cursor);
        for event in events {
            let Ok(mut line) = serde_json::to_vec(&event) else { continue };
            line.push(b'\n');
            if lines.send(line.into()).await.is_err() {
                return;
            }
        }
        if over {
            return;
        }
        let changed = tokio::select! {
            changed = tokio::time::timeout(silence, cursor.changed()) => changed,
            () = lines.closed() => return,
        };
        if changed.is_err() && lines.send(Bytes::from_static(b"\n")).await.is_err() {
            return;
        }
    }
}

/// Measures, and streams what happens. When the client closes the connection, the measurement is stopped.
async fn measure(State(agent): Shared, body: Bytes) -> Result<Response, Refusal> {
    let request: BenchRequest = parse(&body)?;
    let (lines, received) = tokio::sync::mpsc::channel(16);
    let (over, ended) = tokio::sync::oneshot::channel::<()>();
    let stop = Arc::new(bench::Stop::default());
    tokio::spawn(watch_client(lines.clone(), stop.clone(), ended));
    tokio::task::spawn_blocking(move || {
        let mut report = |event: BenchEvent| send_line(&lines, &event);
        let migrating = agent.is_migrating();
        let last = bench::measure(&agent.bench, &request, migrating, &stop, &mut report);
        send_line(&lines, &last);
        drop(over);
    });
    let stream = tokio_stream::wrappers::ReceiverStream::new(received).map(Ok::<_, std::convert::Infallible>);
    Ok(([(header::CONTENT_TYPE, NDJSON)], Body::from_stream(stream)).into_response())
}

/// An error means that the client has disconnected, which is noticed elsewhere.
fn send_line(lines: &tokio::sync::mpsc::Sender<Bytes>, event: &BenchEvent) {
    if let Ok(mut line) = serde_json::to_vec(event) {
        line.push(b'\n');
        let _ = lines.blocking_send(line.into());
    }
}

/// Keeps the stream alive until the measurement is over, and stops it when the client has disconnected.
async fn watch_client(
    lines: tokio::sync::mpsc::Sender<Bytes>,
    stop: Arc<bench::Stop>,
    mut ended: tokio::sync::oneshot::Receiver<()>,
) {
    let silence = std::time::Duration::from_secs(linerate_api::KEEP_ALIVE_S);
    loop {
        tokio::select! {
            _ = &mut ended => return,
            () = lines.closed() => return stop.stop(bench::Reason::Cancelled),
            () = tokio::time::sleep(silence) => drop(lines.send(Bytes::from_static(b"\n")).await),
        }
    }
}

#[cfg(test)]
mod tests;
