//! Against an agent that says what a test wants.

use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use linerate_api::{Client, ErrorBody, LinkAnswer, LinkStep, QosAnswer, paths};
use linerate_fabric::fix::HostFix;
use linerate_fabric::link::{Plan, PortStep};
use linerate_fabric::model::{Address, End, Inventory, Port, PortKind, Probe, Survey};
use linerate_fabric::qos::plan::{HostPlan, PortPlan};

use super::*;
use crate::context::Screen;
use crate::render::paint::Paint;

/// What the agent does.
struct Script {
    /// The surveys that it returns, one after the other, the last one again and again; and hosts that do not answer
    /// then.
    looks: Vec<(Survey, Vec<UnreachableHost>)>,
    /// What it says of a command instead of doing it, such as `confirm l1`.
    refuses: fn(&str) -> Option<ErrorBody>,
}

/// It, its socket, and what it was asked.
struct Agent {
    folder: tempfile::TempDir,
    asked: Arc<Mutex<Vec<String>>>,
    serving: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

type Shared = (Arc<Script>, Arc<Mutex<Vec<String>>>);

fn done(
    (script, asked): Shared,
    verb: &str,
    port: &str,
    host: Option<&str>,
    answer: impl IntoResponse,
) -> Response {
    let line = format!("{verb} {port}{}", host.map(|host| format!(" of {host}")).unwrap_or_default());
    asked.lock().unwrap().push(line.clone());
    match (script.refuses)(&line) {
        Some(body) => (StatusCode::from_u16(body.http_status()).unwrap(), Json(body)).into_response(),
        None => answer.into_response(),
    }
}

async fn set(State(shared): State<Shared>, Json(request): Json<LinkRequest>) -> Response {
    let steps = vec![LinkStep { what: "MTU".into(), from: "1500".into(), to: "9000".into() }];
    let port = request.port.clone();
    let answer = LinkAnswer { port, steps, warnings: vec![], applied: true, confirm_within_s: Some(60) };
    done(shared, "set", &request.port, request.host.as_deref(), Json(answer))
}

async fn confirm(State(shared): State<Shared>, Json(request): Json<LinkConfirm>) -> Response {
    done(shared, "confirm", &request.port, request.host.as_deref(), Json(request.clone()))
}

async fn put_back(State(shared): State<Shared>, Json(request): Json<LinkConfirm>) -> Response {
    done(shared, "put back", &request.port, request.host.as_deref(), Json(request.clone()))
}

async fn apply(State(shared): State<Shared>, Json(request): Json<QosRequest>) -> Response {
    done(shared, "apply", "intent", request.host.as_deref(), Json(QosAnswer { ports: vec![] }))
}

async fn look(State((script, asked)): State<Shared>) -> Response {
    let mut asked = asked.lock().unwrap();
    let before = asked.iter().filter(|line| *line == "look").count();
    asked.push("look".into());
    let (survey, unreachable) = script.looks[before.min(script.looks.len() - 1)].clone();
    let survey = serde_json::to_value(survey).unwrap();
    Json(DoctorAnswer { survey, answered: vec![], repeated: vec![], unreachable }).into_response()
}

impl Agent {
    fn new(script: Script) -> Agent {
        let folder = tempfile::tempdir().unwrap();
        let listener = tokio::net::UnixListener::bind(folder.path().join("agent.sock")).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let router = Router::new()
            .route(paths::LINK_SET, post(set))
            .route(paths::LINK_CONFIRM, post(confirm))
            .route(paths::LINK_PUT_BACK, post(put_back))
            .route(paths::QOS_APPLY, post(apply))
            .route(paths::DOCTOR, post(look))
            .with_state((Arc::new(script), asked.clone()));
        let serving = tokio::spawn(async move { axum::serve(listener, router).await });
        Agent { folder, asked, serving }
    }

    fn context(&self) -> Context {
        let screen = Screen { width: 100, paint: Paint::PLAIN, live: false };
        let client = Client::new(self.folder.path().join("agent.sock"));
        Context {
            client,
            socket_is_named: true,
            connected: None,
            socket_flag: None,
            json: true,
            out: screen,
            err: screen,
        }
    }

    /// `linerate doctor --fix --yes --json`, begun with what the script sees first.
    async fn fix(
        &self,
        begun: (Survey, Vec<UnreachableHost>),
        answered: &[AnsweredHost],
    ) -> Result<Exit, Failure> {
        self.fix_with(begun, answered, &flags()).await
    }

    async fn fix_with(
        &self,
        (survey, unreachable): (Survey, Vec<UnreachableHost>),
        answered: &[AnsweredHost],
        flags: &DoctorFlags,
    ) -> Result<Exit, Failure> {
        let look = Look { findings: run_all(&survey), survey, unreachable, repeated: vec![] };
        run(&look, answered, flags, &self.context()).await
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn flags() -> DoctorFlags {
    DoctorFlags {
        hosts: vec!["beta.example".into()],
        inventory: false,
        from: None,
        quick: true,
        details: false,
        html: None,
        save: None,
        fix: true,
        dry_run: false,
        yes: true,
        qos: None,
        within: 60,
    }
}

/// alpha and beta on two networks, with these MTUs of alpha's and beta's ports.
fn survey(alpha: [u32; 2], beta: [u32; 2]) -> Survey {
    let host = |name: &str, last: u8, mtus: [u32; 2]| {
        let port = |at: u8, mtu: u32| {
            let addresses = vec![Address { ip: [10, 0, at, last].into(), prefix: 24 }];
            let kind = PortKind::Physical;
            Port { name: format!("l{at}"), kind, mtu: Some(mtu), addresses, ..Port::default() }
        };
        let ports = vec![port(0, mtus[0]), port(1, mtus[1])];
        Inventory { ports, ..Inventory::new(name) }
    };
    Survey::of(vec![host("alpha", 1, alpha), host("beta", 2, beta)])
}

/// A fault at each of beta's ports.
fn faulty() -> Survey {
    survey([9000; 2], [1500; 2])
}

fn fixed() -> Survey {
    survey([9000; 2], [9000; 2])
}

fn answered() -> Vec<AnsweredHost> {
    vec![AnsweredHost { named: "beta.example".into(), host: "beta".into() }]
}

fn silent(host: &str) -> UnreachableHost {
    UnreachableHost { host: host.into(), why: "no answer".into() }
}

const SETS: [&str; 3] = ["set l0 of beta.example", "set l1 of beta.example", "look"];
const BOTH_BACK: [&str; 2] = ["put back l1 of beta.example", "put back l0 of beta.example"];

#[tokio::test]
async fn a_fix_that_removes_the_finding_is_confirmed() {
    let agent = Agent::new(Script { looks: vec![(fixed(), vec![])], refuses: |_| None });
    agent.fix((faulty(), vec![]), &answered()).await.unwrap();
    let kept = ["confirm l0 of beta.example", "confirm l1 of beta.example"];
    assert_eq!(agent.asked(), [&SETS[..], &kept].concat());
}

#[tokio::test]
async fn a_page_that_cannot_be_written_takes_nothing_back() {
    let agent = Agent::new(Script { looks: vec![(fixed(), vec![])], refuses: |_| None });
    let html = Some(agent.folder.path().join("missing/page.html"));
    let flags = DoctorFlags { html, ..flags() };
    let failure = agent.fix_with((faulty(), vec![]), &answered(), &flags).await.unwrap_err();
    assert!(failure.message().contains("did what it was asked"), "{}", failure.message());
    assert_eq!(agent.asked().last().map(String::as_str), Some("confirm l1 of beta.example"));
}

/// What it sees again and does not find is gone.
#[test]
fn what_the_second_look_does_not_measure_counts_as_before() {
    let mut survey = survey([9000; 2], [9000, 1500]);
    let ports = survey.hosts.iter_mut().flat_map(|host| &mut host.ports);
    ports.for_each(|port| port.link.speed_mbps = Some(25_000));
    let end =
        |host: &str, last: u8| End { host: host.into(), port: "l0".into(), ip: [10, 0, 0, last].into() };
    let probe = Probe::new(end("alpha", 1), end("beta", 2));
    survey.matrix.probes = vec![Probe { throughput_mbps: Some(2_400), ..probe }];
    let findings = run_all(&survey);
    assert!(findings.len() > 1, "{findings:?}");
    let slow: Vec<Finding> =
        findings.iter().filter(|one| one.id == "throughput-below-promise").cloned().collect();
    assert_eq!(slow.len(), 1, "{findings:?}");
    let before = Look { findings, survey, unreachable: vec![], repeated: vec![] };
    assert_eq!(not_measured_again(&before, &[]), slow);
    assert!(not_measured_again(&before, &slow).is_empty(), "the fix was to remove it");
}

#[tokio::test]
async fn a_host_that_falls_silent_is_missed_also_where_another_was_silent_before() {
    // With beta's inventory its findings go.
    let alone = Survey::of(faulty().hosts.into_iter().take(1).collect());
    let after = vec![silent("gamma"), silent("beta.example")];
    let agent = Agent::new(Script { looks: vec![(alone, after)], refuses: |_| None });
    let failure = agent.fix((faulty(), vec![silent("gamma")]), &answered()).await.unwrap_err();
    assert!(failure.message().contains("beta.example does not answer any more"), "{failure:?}");
    assert!(failure.message().contains("l0 of beta.example is as before"), "{failure:?}");
    assert_eq!(agent.asked()[5..], BOTH_BACK);
    assert!(!agent.asked().iter().any(|line| line.starts_with("confirm")));
}

#[tokio::test]
async fn a_host_without_a_name_is_not_taken_for_this_one() {
    let agent = Agent::new(Script { looks: vec![(fixed(), vec![])], refuses: |_| None });
    let failure = agent.fix((faulty(), vec![]), &[]).await.unwrap_err();
    assert!(failure.message().contains("by which name it asked beta"), "{failure:?}");
    assert_eq!(agent.asked(), [""; 0]);
}

#[tokio::test]
async fn where_the_first_port_came_too_late_the_rest_is_put_back() {
    let late =
        |line: &str| (line == "confirm l0 of beta.example").then(|| ErrorBody::new("too_late", "late"));
    let agent = Agent::new(Script { looks: vec![(fixed(), vec![])], refuses: late });
    let failure = agent.fix((faulty(), vec![]), &answered()).await.unwrap_err();
    let message = "none of it stays: l0 of beta.example: late; l1 of beta.example is as before";
    assert_eq!(failure.message(), message);
    let then = ["confirm l0 of beta.example", "put back l1 of beta.example"];
    assert_eq!(agent.asked()[3..], then);
}

#[tokio::test]
async fn a_partial_fix_is_reported_and_a_lost_answer_is_rolled_back() {
    let lost =
        |line: &str| (line == "confirm l1 of beta.example").then(|| ErrorBody::new("answer_lost", "lost"));
    let agent = Agent::new(Script { looks: vec![(fixed(), vec![])], refuses: lost });
    let failure = agent.fix((faulty(), vec![]), &answered()).await.unwrap_err();
    let message = "not all of it stays, only l0 of beta.example: l1 of beta.example: lost; l1 of beta.example is as before";
    assert_eq!(failure.message(), message);
    assert_eq!(agent.asked()[5..], ["put back l1 of beta.example"]);
}

#[tokio::test]
async fn a_second_port_that_is_refused_takes_the_first_one_back() {
    let no = |line: &str| (line == "set l1 of beta.example").then(|| ErrorBody::new("link_failed", "no"));
    let agent = Agent::new(Script { looks: vec![(fixed(), vec![])], refuses: no });
    let failure = agent.fix((faulty(), vec![]), &answered()).await.unwrap_err();
    assert_eq!(failure.message(), "no; l0 of beta.example is as before");
    let json: serde_json::Value = serde_json::from_str(&failure.json()).unwrap();
    assert_eq!(json["error"]["message"], "no; l0 of beta.example is as before");
}

#[tokio::test]
async fn an_automatic_restore_is_promised_only_where_it_is_possible() {
    let failure_of = async |refuses: fn(&str) -> Option<ErrorBody>| {
        let agent = Agent::new(Script { looks: vec![(faulty(), vec![])], refuses });
        let failure = agent.fix((faulty(), vec![]), &answered()).await.unwrap_err();
        failure.message().to_owned()
    };
    let stuck = |line: &str| line.starts_with("put back").then(|| ErrorBody::new("link_failed", "could NOT"));
    let message = failure_of(stuck).await;
    assert!(message.contains("could NOT") && !message.contains("by itself"), "{message}");
    let gone = |line: &str| line.starts_with("put back").then(|| ErrorBody::new("no_link", "no way there"));
    let message = failure_of(gone).await;
    assert!(message.contains("no way there; its agent puts it back by itself within 60 s"), "{message}");
}

/// It is unknown whether it was done: the port is put back, and the message says so.
#[tokio::test]
async fn a_port_whose_answer_was_lost_is_put_back_at_once() {
    let lost = |line: &str| line.starts_with("set").then(|| ErrorBody::new("answer_lost", "lost"));
    let agent = Agent::new(Script { looks: vec![(faulty(), vec![])], refuses: lost });
    let failure = agent.fix((faulty(), vec![]), &answered()).await.unwrap_err();
    assert_eq!(failure.message(), "lost; l0 of beta.example is as before");
    assert_eq!(agent.asked(), ["set l0 of beta.example", "put back l0 of beta.example"]);
}

/// As of a port: those that the intent changes may be on trial.
#[tokio::test]
async fn ports_of_an_intent_whose_answer_was_lost_are_put_back_at_once() {
    let step = PortStep { what: "traffic classes".into(), from: "none".into(), to: "2".into() };
    let port = |name: &str, steps| PortPlan {
        port: name.into(),
        plan: Plan { steps, ..Plan::default() },
        problem: None,
    };
    let ports = vec![port("l0", vec![step]), port("l1", vec![])];
    let host = HostPlan { host: "beta".into(), ports, migration_bytes_per_s: None, type_of_service: None };
    let intents = vec![HostFix { findings: vec![], plan: host }];
    let plan = FixPlan { ports: vec![], intents, unfixed: vec![], goals: vec![] };
    let failure_of = async |refuses: fn(&str) -> Option<ErrorBody>| {
        let agent = Agent::new(Script { looks: vec![(faulty(), vec![])], refuses });
        let (context, flags) = (agent.context(), flags());
        let job = Job { flags: &flags, context: &context, answered: &answered(), here: Some("alpha") };
        let mut trial = Vec::new();
        let failure = job.set_ports(&plan, Some("intent"), &mut trial).await.unwrap_err();
        (job.roll_back(failure, &trial).await.message().to_owned(), agent.asked())
    };
    let applied = "apply intent of beta.example";
    let lost = |line: &str| line.starts_with("apply").then(|| ErrorBody::new("answer_lost", "lost"));
    let (message, asked) = failure_of(lost).await;
    assert_eq!(message, "lost; l0 of beta.example is as before");
    assert_eq!(asked, [applied, "put back l0 of beta.example"]);
    // Its agent sets all ports or none.
    let refused = |line: &str| line.starts_with("apply").then(|| ErrorBody::new("link_failed", "no"));
    assert_eq!(failure_of(refused).await, ("no".to_owned(), vec![applied.to_owned()]));
}
