//! Asks an agent over its UNIX socket: one connection for each request, every answer capped, every wait with a
//! deadline.

mod bench;
mod error;
mod events;
mod transport;

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{
    AdoptGuest, AgentStatus, AuditAnswer, AuditRequest, BODY_BYTES_MAX, BenchRequest, CordonAnswer,
    CordonRequest, Decision, DoctorAnswer, DoctorRequest, DrainDetail, DrainOrder, DrainRequest,
    DrainStarted, DrainSteer, FleetHost, FleetStatus, ForgetGuest, ForgetHost, GuestDetail, GuestForgotten,
    GuestSummary, HostForgotten, LinkAnswer, LinkConfirm, LinkRequest, MigrateRequest, MigrationDetail,
    MigrationId, MigrationStarted, MigrationSummary, PlaceAnswer, PlaceRequest, Probes, QosAnswer,
    QosRequest, ResolveRequest, StartGuest, StopGuest, TunnelRequest, UndrainDetail, UndrainRequest, paths,
};

pub use bench::BenchStream;
pub use error::ClientError;
pub use events::{EventStream, TunnelStream};

/// How long an answer may take that only needs looking things up.
const QUICK: Duration = Duration::from_secs(30);
/// How long an answer may take that waits for a hypervisor.
const SLOW: Duration = Duration::from_secs(180);
/// How long a survey may be. Of 64 hosts with some hundred guests each, ports and probes are beyond what other answers
/// may have.
const SURVEY_BYTES_MAX: usize = 256 << 20;
/// What each two hosts, in each direction, add to how long the doctor may take. Its loads run one after the other: one
/// for each link, of 0.7 s where all is well and of 20 s where nothing passes.
const LOADS_OF_A_PAIR: Duration = Duration::from_secs(30);
/// How long a plan of a drain may take: four guests are tried at a time, and each may take two minutes.
const PLAN_MAX: Duration = Duration::from_secs(3600);
/// How long the answer to a decision may take. The agent waits up to 25 s until it has looked at the session, and up to
/// 25 s until the decision is carried out.
pub const RESOLVE_MAX: Duration = Duration::from_secs(60);

/// A client of one agent. Cheap to make; connects anew for each request.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// A client of the agent that listens at `socket`. Does not connect yet.
    pub fn new(socket: impl Into<PathBuf>) -> Client {
        Client { socket: socket.into() }
    }

    /// Where the agent is expected.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What the agent says of itself.
    pub async fn status(&self) -> Result<AgentStatus, ClientError> {
        self.get(paths::STATUS).await
    }

    /// Asks the agent to take up what changed in this host's identity and tokens.
    pub async fn look_at_identity(&self) -> Result<AgentStatus, ClientError> {
        self.request("POST", paths::IDENTITY, None, QUICK).await
    }

    /// All guests that the agent knows, stopped ones too.
    pub async fn guests(&self) -> Result<Vec<GuestSummary>, ClientError> {
        self.get(paths::GUESTS).await
    }

    /// Details of one guest; an error if the agent does not know it.
    pub async fn guest(&self, name: &str) -> Result<GuestDetail, ClientError> {
        self.get(&paths::fill(paths::GUEST, name)).await
    }

    /// Starts a guest from a specification; returns when it runs.
    pub async fn start_guest(&self, request: &StartGuest) -> Result<GuestSummary, ClientError> {
        self.post(paths::GUESTS, request).await
    }

    /// Takes over a running QEMU.
    pub async fn adopt_guest(&self, request: &AdoptGuest) -> Result<GuestSummary, ClientError> {
        self.post(paths::GUESTS_ADOPT, request).await
    }

    /// Shuts a guest down, or ends its QEMU at once (`force`).
    pub async fn stop_guest(&self, name: &str, request: StopGuest) -> Result<GuestSummary, ClientError> {
        self.post(&paths::fill(paths::GUEST_STOP, name), &request).await
    }

    /// Begins a migration and returns its id; [`Client::events`] follows it.
    pub async fn migrate(&self, request: &MigrateRequest) -> Result<MigrationId, ClientError> {
        let started: MigrationStarted = self.post(paths::MIGRATIONS, request).await?;
        Ok(started.id)
    }

    /// All migrations, newest first.
    pub async fn migrations(&self) -> Result<Vec<MigrationSummary>, ClientError> {
        self.get(paths::MIGRATIONS).await
    }

    /// State of one migration, with its report once it has ended.
    pub async fn migration(&self, id: &MigrationId) -> Result<MigrationDetail, ClientError> {
        self.get(&paths::fill(paths::MIGRATION, &id.0)).await
    }

    /// Asks a migration to stop. It has when its event stream says so.
    pub async fn cancel(&self, id: &MigrationId) -> Result<MigrationSummary, ClientError> {
        self.request("DELETE", &paths::fill(paths::MIGRATION, &id.0), None, QUICK).await
    }

    /// An operator's decision over a session in doubt.
    pub async fn resolve(
        &self,
        id: &MigrationId,
        decision: Decision,
    ) -> Result<MigrationSummary, ClientError> {
        let body = serde_json::to_vec(&ResolveRequest { decision }).map_err(ClientError::Request)?;
        let path = paths::fill(paths::SESSION_RESOLVE, &id.0);
        self.request("POST", &path, Some(body), RESOLVE_MAX).await
    }

    /// Looks at this host and others, and probes between them.
    pub async fn doctor(&self, request: &DoctorRequest) -> Result<DoctorAnswer, ClientError> {
        let body = serde_json::to_vec(request).map_err(ClientError::Request)?;
        let limit = doctor_max(request);
        self.request_up_to(SURVEY_BYTES_MAX, "POST", paths::DOCTOR, Some(body), limit).await
    }

    /// Sets a port, on trial.
    pub async fn set_link(&self, request: &LinkRequest) -> Result<LinkAnswer, ClientError> {
        self.post(paths::LINK_SET, request).await
    }

    /// What is on trial stays.
    pub async fn confirm_link(&self, request: &LinkConfirm) -> Result<LinkConfirm, ClientError> {
        self.post(paths::LINK_CONFIRM, request).await
    }

    /// What is on trial is put back at once.
    pub async fn put_back_link(&self, request: &LinkConfirm) -> Result<LinkConfirm, ClientError> {
        self.post(paths::LINK_PUT_BACK, request).await
    }

    /// Sets ports as an intent says, on trial.
    pub async fn apply_qos(&self, request: &QosRequest) -> Result<QosAnswer, ClientError> {
        self.post(paths::QOS_APPLY, request).await
    }

    /// The host takes no guests from others from now on.
    pub async fn cordon(&self, request: &CordonRequest) -> Result<CordonAnswer, ClientError> {
        self.post(paths::CORDON, request).await
    }

    /// The host takes guests again.
    pub async fn uncordon(&self, request: &CordonRequest) -> Result<CordonAnswer, ClientError> {
        self.post(paths::UNCORDON, request).await
    }

    /// Begins to move all guests away, and returns the drain's name.
    pub async fn drain(&self, request: &DrainRequest) -> Result<String, ClientError> {
        let started: DrainStarted = self.post(paths::DRAINS, request).await?;
        Ok(started.id)
    }

    /// What a drain would do. Each guest's migration is tried without copying, and the answer is waited for as long as
    /// the agent answers other questions.
    pub async fn drain_plan(&self, request: &DrainRequest) -> Result<DrainDetail, ClientError> {
        let body = serde_json::to_vec(request).map_err(ClientError::Request)?;
        let asking = self.request("POST", paths::DRAIN_PLAN, Some(body), PLAN_MAX);
        self.while_it_answers(asking, SLOW).await
    }

    /// All drains of this host that are known, newest first.
    pub async fn drains(&self) -> Result<Vec<DrainDetail>, ClientError> {
        self.get(paths::DRAINS).await
    }

    /// State of one drain.
    pub async fn drain_detail(&self, id: &str) -> Result<DrainDetail, ClientError> {
        self.get(&paths::fill(paths::DRAIN, id)).await
    }

    /// Pauses, resumes or aborts a drain.
    pub async fn steer_drain(&self, id: &str, order: DrainOrder) -> Result<DrainDetail, ClientError> {
        self.post(&paths::fill(paths::DRAIN, id), &DrainSteer { order }).await
    }

    /// Has the guests come back that drains have moved since the host was cordoned.
    pub async fn undrain(&self, request: &UndrainRequest) -> Result<UndrainDetail, ClientError> {
        self.post(paths::UNDRAIN, request).await
    }

    /// How far that is.
    pub async fn undrain_detail(&self) -> Result<UndrainDetail, ClientError> {
        self.get(paths::UNDRAIN).await
    }

    /// No undrain brings a guest back any more.
    pub async fn forget_guest(&self, request: &ForgetGuest) -> Result<GuestForgotten, ClientError> {
        self.post(paths::UNDRAIN_FORGET, request).await
    }

    /// Where a guest can go.
    pub async fn place(&self, request: &PlaceRequest) -> Result<PlaceAnswer, ClientError> {
        self.post(paths::PLACE, request).await
    }

    /// Hosts that this host's store knows.
    pub async fn fleet_hosts(&self) -> Result<Vec<FleetHost>, ClientError> {
        self.get(paths::FLEET_HOSTS).await
    }

    /// The drains of all hosts that share the store, newest first.
    pub async fn fleet_drains(&self) -> Result<Vec<DrainDetail>, ClientError> {
        self.get(paths::FLEET_DRAINS).await
    }

    /// The fleet, and this host's part in it.
    pub async fn fleet(&self) -> Result<FleetStatus, ClientError> {
        self.get(paths::FLEET).await
    }

    /// The store knows a host no more.
    pub async fn forget_host(&self, request: &ForgetHost) -> Result<HostForgotten, ClientError> {
        self.post(paths::FLEET_FORGET, request).await
    }

    /// Lines of the audit log, oldest first, and what of it cannot be read.
    pub async fn audit(&self, request: &AuditRequest) -> Result<AuditAnswer, ClientError> {
        self.post(paths::AUDIT, request).await
    }

    /// Follows a migration from its beginning to its end.
    pub async fn events(&self, id: &MigrationId) -> Result<EventStream, ClientError> {
        let path = paths::fill(paths::MIGRATION_EVENTS, &id.0);
        let answer = transport::send(&self.socket, "GET", &path, None, QUICK).await?;
        Ok(EventStream::new(answer, id.clone()))
    }

    /// Makes a tunnel, which is open as long as what this returns.
    pub async fn tunnel(&self, request: &TunnelRequest) -> Result<TunnelStream, ClientError> {
        let body = serde_json::to_vec(request).map_err(ClientError::Request)?;
        let answer = transport::send(&self.socket, "POST", paths::TUNNELS, Some(body), SLOW).await?;
        Ok(TunnelStream::new(answer))
    }

    /// Measures the wires to another host. Dropping the stream stops it.
    pub async fn bench(&self, request: &BenchRequest) -> Result<BenchStream, ClientError> {
        let body = serde_json::to_vec(request).map_err(ClientError::Request)?;
        let answer = transport::send(&self.socket, "POST", paths::BENCH, Some(body), QUICK).await?;
        Ok(BenchStream::new(answer))
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.request("GET", path, None, QUICK).await
    }

    async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(ClientError::Request)?;
        self.request("POST", path, Some(body), SLOW).await
    }

    /// `limit`: for the whole answer. An agent that is stopped takes connections and says nothing.
    async fn request<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: Option<Vec<u8>>,
        limit: Duration,
    ) -> Result<T, ClientError> {
        self.request_up_to(BODY_BYTES_MAX, method, path, body, limit).await
    }

    async fn request_up_to<T: DeserializeOwned>(
        &self,
        bytes_max: usize,
        method: &str,
        path: &str,
        body: Option<Vec<u8>>,
        limit: Duration,
    ) -> Result<T, ClientError> {
        let asking = async {
            let answer = transport::send(&self.socket, method, path, body, limit).await?;
            transport::whole_body(answer, limit, bytes_max).await
        };
        let bytes = transport::within(limit, asking).await?;
        serde_json::from_slice(&bytes).map_err(ClientError::Answer)
    }

    /// An answer that may take long. After each of these pauses the agent must answer another question, whatever it
    /// says.
    async fn while_it_answers<T>(
        &self,
        asking: impl Future<Output = Result<T, ClientError>>,
        pause: Duration,
    ) -> Result<T, ClientError> {
        let mut asking = pin!(asking);
        loop {
            let works = async {
                tokio::time::sleep(pause).await;
                self.status().await
            };
            tokio::select! {
                answer = &mut asking => return answer,
                status = works => match status {
                    Ok(_) | Err(ClientError::Agent { .. } | ClientError::Answer(_)) => {}
                    Err(error) => return Err(error),
                },
            }
        }
    }
}

/// How long the doctor's answer may take.
fn doctor_max(request: &DoctorRequest) -> Duration {
    let others = u32::try_from(request.hosts.len()).unwrap_or(u32::MAX);
    let pairs = match request.probes {
        Probes::Full => others.saturating_add(1).saturating_mul(others),
        Probes::Short | Probes::None => 0,
    };
    SLOW.saturating_add(LOADS_OF_A_PAIR.saturating_mul(pairs))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;

    use super::*;

    /// Enough for an agent that answers.
    const LIMIT: Duration = Duration::from_millis(200);
    /// Only a hang meets it.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn the_doctor_may_measure_a_large_room_to_its_end() {
        let asked = |others: usize, probes| DoctorRequest {
            hosts: vec!["beta".to_owned(); others],
            probes,
            watch_ms: 1000,
        };
        // 16 hosts with four links each.
        let loads = Duration::from_millis(700 * 16 * 15 * 4);
        assert!(doctor_max(&asked(15, Probes::Full)) > loads);
        assert_eq!(doctor_max(&asked(15, Probes::Short)), SLOW);
        assert_eq!(doctor_max(&asked(0, Probes::Full)), SLOW);
    }

    /// It is the result of many minutes.
    #[tokio::test]
    async fn a_survey_may_be_larger_than_other_answers() {
        let survey = "x".repeat(BODY_BYTES_MAX);
        let text = format!(r#"{{"survey":"{survey}","unreachable":[]}}"#);
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len());
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("agent.sock")).unwrap();
        let client = Client::new(folder.path().join("agent.sock"));
        let agent = async {
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().await.unwrap();
                assert_ne!(stream.read(&mut [0; 4096]).await.unwrap(), 0);
                // The client may have had enough of it.
                let _ = stream.write_all(answer.as_bytes()).await;
            }
            std::future::pending::<()>().await;
        };
        let asking = async {
            let given = client.doctor(&DoctorRequest::default()).await.unwrap();
            assert_eq!(given.survey.as_str().map(str::len), Some(BODY_BYTES_MAX));
            client.status().await.unwrap_err()
        };
        let error = tokio::select! {
            () = agent => unreachable!(),
            error = asking => error,
        };
        assert!(matches!(error, ClientError::AnswerTooLong { .. }), "{error}");
    }

    /// Each guest of a plan may take two minutes, and there may be hundreds.
    #[tokio::test]
    async fn a_plan_is_waited_for_as_long_as_its_agent_answers_other_questions() {
        for works in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let listener = UnixListener::bind(folder.path().join("agent.sock")).unwrap();
            let client = Client::new(folder.path().join("agent.sock"));
            let asked = std::cell::Cell::new(0);
            let agent = async {
                for _ in 0..3 {
                    let (mut stream, _) = listener.accept().await.unwrap();
                    assert_ne!(stream.read(&mut [0; 4096]).await.unwrap(), 0);
                    asked.set(asked.get() + 1);
                    if works {
                        let busy = b"HTTP/1.1 429 Busy\r\ncontent-length: 0\r\n\r\n";
                        stream.write_all(busy).await.unwrap();
                    }
                }
            };
            let long = async {
                while asked.get() < 2 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Ok(())
            };
            let answer = tokio::select! {
                () = agent => unreachable!(),
                answer = client.while_it_answers(long, LIMIT) => answer,
            };
            assert_eq!(answer.is_ok(), works, "{answer:?}");
        }
    }

    /// The kernel takes connections for an agent that is stopped. What such an agent has begun to answer stays
    /// incomplete.
    #[tokio::test]
    async fn an_agent_that_is_stopped_is_not_waited_for_beyond_the_limit() {
        for begins in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let listener = UnixListener::bind(folder.path().join("agent.sock")).unwrap();
            let client = Client::new(folder.path().join("agent.sock"));
            let stopped = async {
                let mut taken = None;
                if begins {
                    let (mut stream, _) = listener.accept().await.unwrap();
                    assert_ne!(stream.read(&mut [0; 4096]).await.unwrap(), 0);
                    let head = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[";
                    stream.write_all(head).await.unwrap();
                    taken = Some(stream);
                }
                std::future::pending::<()>().await;
                drop(taken);
            };
            let asking = client.request::<Vec<u8>>("GET", paths::MIGRATIONS, None, LIMIT);
            let answer = tokio::time::timeout(LONG, async {
                tokio::select! {
                    () = stopped => unreachable!(),
                    answer = asking => answer,
                }
            });
            let error = answer.await.unwrap().unwrap_err();
            assert!(matches!(error, ClientError::Silent { limit } if limit == LIMIT), "{begins}: {error}");
            assert!(error.hint().contains("stopped") && !error.is_unreachable(), "{}", error.hint());
        }
    }
}
