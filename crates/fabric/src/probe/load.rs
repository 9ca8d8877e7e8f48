//! TCP load to another agent: as many connections as a migration would have on the link, for half a second. The bytes
//! are moved and counted by `linerate_net::bench`, as in `linerate bench`.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use linerate_net::bench::TestError;
use linerate_net::bench::group::{self, TestThread};
use linerate_net::bench::role::{TestResult, TestRole};
use linerate_net::bench::tcp::TcpTestConnection;
use linerate_net::links::channels_for;
use linerate_net::round_trip::RoundTrip;
use linerate_net::tcp::Stream;
use linerate_net::tcp::connect::Route;
use linerate_net::tcp::stats::Progress;
use linerate_net::tls::Tls;

use super::ask::{Answer, AskError, Question, Target, open, receive, send};

/// How long bytes flow. Long enough for TCP to fill a link of 100 Gb/s on a local network; on a far link longer, so
/// that its windows have grown.
pub const LASTS: Duration = Duration::from_millis(500);
/// A sink ends after this, whatever comes. A load of [`ROUND_TRIP_MAX`](linerate_net::round_trip::ROUND_TRIP_MAX) needs
/// that long.
const SINK_LONGEST: Duration = Duration::from_secs(45);
const CONNECT_WAIT: Duration = Duration::from_secs(2);
/// How long the last bytes and the receiver's answer may take after a load.
const ANSWER_WAIT: Duration = Duration::from_secs(15);

/// What a load moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Megabits per second that arrived.
    pub throughput_mbps: u64,
    /// Segments that were sent again.
    pub retransmits: Option<u64>,
}

/// Sends on all connections at once; `meanwhile` runs on this thread until the load ends.
pub fn send_load<T>(
    target: &Target,
    tls: Option<&Tls>,
    meanwhile: impl FnOnce(&AtomicBool) -> T,
) -> (Result<Moved, AskError>, T) {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let connections = channels_for(target.speed_mbps, cpus);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let load = scope.spawn(|| {
            let moved = all_connections(target, connections, tls);
            over.store(true, Ordering::Relaxed);
            moved
        });
        let other = meanwhile(&over);
        let moved = load.join().unwrap_or_else(|cause| std::panic::resume_unwind(cause));
        (moved, other)
    })
}

/// Sends for [`LASTS`] or longer, and asks what came.
fn all_connections(target: &Target, connections: usize, tls: Option<&Tls>) -> Result<Moved, AskError> {
    let streams = (0..connections).map(|_| begin(target, tls)).collect::<Result<Vec<_>, _>>()?;
    let time = streams.first().map_or(LASTS, |stream| RoundTrip::of(stream).opening(LASTS));
    let limit = ANSWER_WAIT + time;
    let deadline = Instant::now() + limit;
    play(&streams, target.agent, TestRole::Send { time }, limit)?;
    let mut rate = 0.0;
    let mut retransmits: Option<u64> = None;
    for stream in &streams {
        rate += arrived(stream, target.agent, deadline)?.rate_mbps();
        let one = Progress::of(stream).and_then(|mut progress| progress.read());
        if let Some(one) = one.map(|info| u64::from(info.retransmits)) {
            retransmits = Some(retransmits.unwrap_or(0) + one);
        }
    }
    Ok(Moved { throughput_mbps: rate as u64, retransmits })
}

fn begin(target: &Target, tls: Option<&Tls>) -> Result<Stream, AskError> {
    let route =
        Route { local: Some(target.from.ip), device: Some(target.from.port.clone()), remote: target.agent };
    let stream = open(&route, &Question::Sink, CONNECT_WAIT, tls)?;
    match receive(&stream, target.agent, Instant::now() + RoundTrip::of(&stream).silence(CONNECT_WAIT))? {
        Answer::Ready => Ok(stream),
        Answer::Refused { why } => Err(AskError::Refused { peer: target.agent, why }),
        _ => Err(AskError::Unexpected { peer: target.agent }),
    }
}

/// What the receiver counted.
fn arrived(stream: &Stream, peer: SocketAddr, deadline: Instant) -> Result<TestResult, AskError> {
    match receive(stream, peer, deadline)? {
        Answer::Sunk { bytes, took_us } => {
            let elapsed = Duration::from_micros(took_us);
            Ok(TestResult { timed_bytes: bytes, elapsed, ..TestResult::default() })
        }
        _ => Err(AskError::Unexpected { peer }),
    }
}

/// The receiving side, after [`Question::Sink`].
pub fn sink(stream: &Stream, peer: SocketAddr) -> Result<(), AskError> {
    let deadline = Instant::now() + SINK_LONGEST;
    send(stream, &Answer::Ready, peer, deadline)?;
    let played = play(std::slice::from_ref(stream), peer, TestRole::Receive, SINK_LONGEST)?;
    let TestResult { timed_bytes: bytes, elapsed, .. } = played.first().copied().unwrap_or_default();
    let took_us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
    send(stream, &Answer::Sunk { bytes, took_us }, peer, deadline)
}

/// Plays the part on all connections at once. They are cut off after `limit`.
fn play(
    streams: &[Stream],
    peer: SocketAddr,
    part: TestRole,
    limit: Duration,
) -> Result<Vec<TestResult>, AskError> {
    let player = |stream: &Stream| {
        let wire = TcpTestConnection::new(stream.clone(), limit).map_err(TestError::Socket)?;
        Ok(TestThread { wire: Box::new(wire), part, cpu: None })
    };
    let players: Result<Vec<TestThread>, TestError> = streams.iter().map(player).collect();
    let run = players.and_then(|players| group::run(players, limit));
    run.map(|(_, score)| score.played).map_err(|source| AskError::Load { peer, source })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use linerate_net::bench::BLOCK_BYTES;

    use super::*;

    #[test]
    fn the_receiver_reports_bytes_and_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = listener.local_addr().unwrap();
        let ours = Stream::new(TcpStream::connect(peer).unwrap()).unwrap();
        let theirs = Stream::new(listener.accept().unwrap().0).unwrap();
        let sunk = thread::spawn(move || sink(&theirs, peer));
        let deadline = Instant::now() + SINK_LONGEST;
        assert_eq!(receive::<Answer>(&ours, peer, deadline).unwrap(), Answer::Ready);
        let part = TestRole::Send { time: Duration::from_millis(20) };
        let sent = play(std::slice::from_ref(&ours), peer, part, SINK_LONGEST).unwrap();
        let arrived = arrived(&ours, peer, deadline).unwrap();
        sunk.join().unwrap().unwrap();
        assert_eq!(arrived.timed_bytes, sent[0].sent_bytes - BLOCK_BYTES as u64, "all but the first block");
        assert!(arrived.rate_mbps() > 0.0);
    }
}
