//! What agents ask each other: a length in four bytes (little endian) and a JSON document, each way, then the
//! connection ends.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use linerate_api::{Cordon, ErrorBody, LinkAnswer, LinkConfirm, LinkRequest, QosAnswer, QosRequest};
use linerate_net::bench::TestError;
use linerate_net::round_trip::RoundTrip;
use linerate_net::tcp::Stream;
use linerate_net::tcp::connect::{ConnectError, Route, connect};
use linerate_net::tcp::options::TcpOptions;
use linerate_net::tls::Tls;
use linerate_wire::frame::{Hello, Role};
use linerate_wire::message::{SessionId, Token};
use linerate_wire::{VERSION_MAX, VERSION_MIN};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::model::{End, Inventory, Probe};

/// The largest question or answer. An inventory is the largest of them.
pub const BYTES_MAX: usize = crate::model::INVENTORY_BYTES_MAX;
/// The largest question of the doctor's: probes of 128 links, each with two long names.
pub const QUESTION_BYTES_MAX: usize = 128 << 10;
/// A question must be complete within this after the connection was taken.
pub const QUESTION_WAIT: Duration = Duration::from_secs(5);

/// How much probes move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Depth {
    /// Datagrams only: reachable, path MTU, latency, clock. Some milliseconds for each pair of ports that is well.
    #[default]
    Short,
    /// TCP load too: half a second for each pair of ports and direction.
    Full,
    /// TCP load only, without datagrams.
    Load,
}

/// Where to send probes, and from where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The port that sends.
    pub from: End,
    /// The port that answers.
    pub to: End,
    /// MTU of the own port, bytes.
    pub mtu: u32,
    /// Speed of the own port, megabits per second; 0 if it does not say.
    pub speed_mbps: u32,
    /// Where datagrams are answered.
    pub echo: SocketAddr,
    /// What datagrams must begin with.
    pub token: [u8; 16],
    /// The other agent's TCP address on this link.
    pub agent: SocketAddr,
    /// Both ports have RDMA: bytes are moved by it too.
    #[serde(default)]
    pub rdma: bool,
}

/// A question to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Question {
    /// All about the host.
    Inventory {
        /// How long to watch counters, milliseconds.
        watch_ms: u64,
        /// Names to resolve there.
        names: Vec<String>,
    },
    /// Answer datagrams for a while.
    Echo {
        /// How long to answer, milliseconds.
        for_ms: u64,
    },
    /// Send probes to other hosts and report.
    Probe {
        /// Where to, one after the other.
        targets: Vec<Target>,
        /// How much the probes move.
        depth: Depth,
    },
    /// What the host has for guests, and which ones are there: for a drain of another host.
    Host,
    /// Move a guest back to the asker's host, from which it came. Asked again, it says how far that is.
    SendBack {
        /// The session in which it came, in hexadecimal digits.
        session: String,
        /// UUID of a domain of libvirt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        domain: Option<String>,
        /// Where the asker's agent listens, on the host of this connection.
        port: u16,
    },
    /// Take bytes on this connection and count them.
    Sink,
    /// Change settings of ports, if the host allows it.
    Change {
        /// The settings, or what becomes of a trial.
        change: Box<Change>,
    },
}

/// Settings of ports that an operator at another host wants; `host` in each is empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Like `linerate link set`.
    Link(LinkRequest),
    /// Like `linerate qos apply`.
    Qos(QosRequest),
    /// Like `linerate link confirm`.
    Confirm(LinkConfirm),
    /// Like `linerate link put-back`.
    PutBack(LinkConfirm),
}

/// What became of a [`Change`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Changed {
    /// What [`Change::Link`] did.
    Link(LinkAnswer),
    /// What [`Change::Qos`] did.
    Qos(QosAnswer),
    /// [`Change::Confirm`] or [`Change::PutBack`] was done.
    Done,
    /// It was not done.
    Failed(ErrorBody),
}

/// How far a guest is on its way back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SentBack {
    /// It is being moved.
    Moving,
    /// The asker's host has confirmed that it runs there.
    Moved,
    /// It was not moved, and nothing is under way. The next such question begins anew.
    Failed(Box<ErrorBody>),
}

/// Requests that came from an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EchoSource {
    /// Address that sent the requests.
    pub from: IpAddr,
    /// To which of the own addresses.
    pub at: IpAddr,
    /// Number of requests that arrived.
    pub requests: u64,
}

/// Where datagrams are answered, and how many have arrived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Echoing {
    /// What they must begin with.
    pub token: [u8; 16],
    /// Addresses and UDP ports that answer.
    pub addresses: Vec<SocketAddr>,
    /// Requests that came so far.
    #[serde(default, rename = "heard")]
    pub sources: Vec<EchoSource>,
}

impl Echoing {
    /// Requests that came from one address to another.
    pub fn requests(&self, from: IpAddr, at: IpAddr) -> u64 {
        let ours = self.sources.iter().filter(|source| source.from == from && source.at == at);
        ours.map(|source| source.requests).sum()
    }
}

/// What an agent answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// Answer to [`Question::Inventory`].
    Inventory(Box<Inventory>),
    /// Answer to [`Question::Echo`]: where datagrams are answered.
    Echo(Echoing),
    /// Answer to [`Question::Host`].
    Host {
        /// As the store of a fleet keeps it (`HostRecord` of `linerate-store`).
        record: Box<serde_json::Value>,
        /// It takes no guests; `null` if it does.
        cordon: Option<Cordon>,
    },
    /// Answer to [`Question::SendBack`].
    SendBack {
        /// How far the guest is on its way.
        state: SentBack,
    },
    /// To [`Question::Probe`], in the order of targets.
    Probes {
        /// One result for each target.
        probes: Vec<Probe>,
    },
    /// To [`Question::Sink`], once before the bytes.
    Ready,
    /// After the last block of a sink.
    Sunk {
        /// Bytes that were received on this connection.
        bytes: u64,
        /// From the first to the last, microseconds.
        took_us: u64,
    },
    /// Answer to [`Question::Change`].
    Changed {
        /// What became of it.
        changed: Box<Changed>,
    },
    /// The agent does not do it.
    Refused {
        /// Why, and what to do.
        why: String,
    },
}

/// Why an agent's answer was not received.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum AskError {
    #[error("{0}")]
    Connect(#[from] ConnectError),
    /// The connection broke, or the answer took too long.
    #[error("no answer from {peer}: {source}")]
    Broken {
        peer: SocketAddr,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A load was cut.
    #[error("the load between here and {peer} was cut: {source}")]
    Load {
        peer: SocketAddr,
        /// What became of its connections.
        #[source]
        source: TestError,
    },
    /// What came was no question or answer.
    #[error("what came from the other agent was not understood: {0}; are both of the same version?")]
    Form(#[source] serde_json::Error),
    #[error("the other agent announced {bytes} bytes, more than the {most} that are taken")]
    TooLong { bytes: usize, most: usize },
    /// The agent said no.
    #[error("{peer} refused: {why}")]
    Refused { peer: SocketAddr, why: String },
    /// An answer to something else.
    #[error("{peer} gave an answer that does not belong to the question")]
    Unexpected { peer: SocketAddr },
}

/// HELLO of a connection that belongs to no session, and so has no token.
pub fn hello(role: Role) -> Hello {
    Hello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        session: SessionId([0; 16]),
        role,
        link: 0,
        channel: 0,
        token: Token([0; 32]),
    }
}

/// Connects to the agent of `route` and sends the question; `wait` limits each step.
pub fn open(
    route: &Route,
    question: &Question,
    wait: Duration,
    tls: Option<&Tls>,
) -> Result<Stream, AskError> {
    let hello = hello(Role::Doctor);
    let options = TcpOptions { connect_wait: wait, tls: tls.cloned(), ..TcpOptions::default() };
    let (stream, _) = connect(route, &hello, &options)?;
    send(&stream, question, route.remote, Instant::now() + wait)?;
    Ok(stream)
}

/// Asks and waits for the answer: longer than `wait` where the link is far.
pub fn ask(
    route: &Route,
    question: &Question,
    connect: Duration,
    wait: Duration,
    tls: Option<&Tls>,
) -> Result<Answer, AskError> {
    let deadline = Instant::now() + wait;
    let stream = open(route, question, connect, tls)?;
    let deadline = deadline.max(Instant::now() + RoundTrip::of(&stream).silence(Duration::ZERO));
    match receive(&stream, route.remote, deadline)? {
        Answer::Refused { why } => Err(AskError::Refused { peer: route.remote, why }),
        answer => Ok(answer),
    }
}

/// Sends a document: its length as u32, then JSON.
pub fn send(
    stream: &Stream,
    document: &impl Serialize,
    peer: SocketAddr,
    deadline: Instant,
) -> Result<(), AskError> {
    let body = serde_json::to_vec(document).map_err(AskError::Form)?;
    let length = u32::try_from(body.len()).ok().filter(|bytes| *bytes as usize <= BYTES_MAX);
    let length = length.ok_or(AskError::TooLong { bytes: body.len(), most: BYTES_MAX })?;
    let bytes = [&length.to_le_bytes()[..], &body].concat();
    stream.send_all(&bytes, deadline).map_err(|source| AskError::Broken { peer, source })
}

/// Receives a document of at most [`BYTES_MAX`] bytes.
pub fn receive<T: DeserializeOwned>(
    stream: &Stream,
    peer: SocketAddr,
    deadline: Instant,
) -> Result<T, AskError> {
    receive_at_most(BYTES_MAX, stream, peer, deadline)
}

/// Receives a document of at most so many bytes.
pub fn receive_at_most<T: DeserializeOwned>(
    most: usize,
    stream: &Stream,
    peer: SocketAddr,
    deadline: Instant,
) -> Result<T, AskError> {
    let broken = |source| AskError::Broken { peer, source };
    let mut length = [0; 4];
    stream.receive_exact(&mut length, deadline).map_err(broken)?;
    let bytes = u32::from_le_bytes(length) as usize;
    if bytes > most {
        return Err(AskError::TooLong { bytes, most });
    }
    // Grown as it comes: an announcement alone costs nothing.
    let mut body = Vec::new();
    while body.len() < bytes {
        let mut piece = vec![0; (bytes - body.len()).min(64 << 10)];
        stream.receive_exact(&mut piece, deadline).map_err(broken)?;
        body.append(&mut piece);
    }
    serde_json::from_slice(&body).map_err(AskError::Form)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn pair() -> (Stream, Stream, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let ours = TcpStream::connect(address).unwrap();
        let theirs = listener.accept().unwrap().0;
        (Stream::new(ours).unwrap(), Stream::new(theirs).unwrap(), address)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn a_question_arrives_as_it_was() {
        let (ours, theirs, peer) = pair();
        let question = Question::Inventory { watch_ms: 300, names: vec!["beta".into()] };
        send(&ours, &question, peer, soon()).unwrap();
        assert_eq!(receive::<Question>(&theirs, peer, soon()).unwrap(), question);
    }

    #[test]
    fn a_length_beyond_the_cap_is_refused_before_anything_is_allocated() {
        let (ours, theirs, peer) = pair();
        ours.send_all(&u32::MAX.to_le_bytes(), soon()).unwrap();
        let error = receive::<Question>(&theirs, peer, soon()).unwrap_err();
        assert!(matches!(error, AskError::TooLong { .. }), "{error}");
    }

    #[test]
    fn an_end_and_nonsense_are_errors() {
        let (ours, theirs, peer) = pair();
        ours.send_all(b"\x03\0\0\0abc", soon()).unwrap();
        assert!(matches!(receive::<Question>(&theirs, peer, soon()).unwrap_err(), AskError::Form(_)));
        drop(ours);
        assert!(matches!(receive::<Question>(&theirs, peer, soon()).unwrap_err(), AskError::Broken { .. }));
    }
}
