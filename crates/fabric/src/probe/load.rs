//! TCP load to another agent: as many connections as a migration would have on the link, for half a second.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use linerate_net::links::channels_for;
use linerate_net::tcp::Stream;
use linerate_net::tcp::connect::Route;
use linerate_net::tcp::stats::Progress;

use super::ask::{Answer, AskError, Question, Target, open, receive, send};

/// How long bytes flow. Long enough for TCP to fill a link of 100 Gb/s on a local network.
pub const LASTS: Duration = Duration::from_millis(500);
/// A sink ends after this, whatever comes.
const SINK_LONGEST: Duration = Duration::from_secs(20);
const BLOCK_BYTES: usize = 256 << 10;
/// First byte of each block.
const MORE: u8 = 0;
const LAST: u8 = 1;
const CONNECT_WAIT: Duration = Duration::from_secs(2);
const ANSWER_WAIT: Duration = Duration::from_secs(15);

/// What a load moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Megabits per second that arrived.
    pub throughput_mbps: u64,
    /// Segments that were sent again.
    pub retransmits: Option<u64>,
}

/// What one connection moved.
struct Share {
    bytes: u64,
    took_us: u64,
    retransmits: Option<u64>,
}

/// Sends on all connections at once; `meanwhile` runs on this thread until the load ends.
pub fn send_load<T>(
    target: &Target,
    meanwhile: impl FnOnce(&AtomicBool) -> T,
) -> (Result<Moved, AskError>, T) {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let connections = channels_for(target.speed_mbps, cpus);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let load = scope.spawn(|| {
            let moved = all_connections(target, connections);
            over.store(true, Ordering::Relaxed);
            moved
        });
        let other = meanwhile(&over);
        let moved = load.join().unwrap_or_else(|cause| std::panic::resume_unwind(cause));
        (moved, other)
    })
}

fn all_connections(target: &Target, connections: usize) -> Result<Moved, AskError> {
    let streams = (0..connections).map(|_| begin(target)).collect::<Result<Vec<_>, _>>()?;
    let results: Vec<Result<Share, AskError>> = thread::scope(|scope| {
        let running: Vec<_> =
            streams.iter().map(|stream| scope.spawn(move || one_connection(stream, target.agent))).collect();
        let joined = running.into_iter();
        joined.map(|one| one.join().unwrap_or_else(|cause| std::panic::resume_unwind(cause))).collect()
    });
    let mut total = Moved::default();
    for result in results {
        let Share { bytes, took_us, retransmits } = result?;
        // Bits per microsecond are megabits per second.
        total.throughput_mbps += (bytes * 8).checked_div(took_us).unwrap_or(0);
        total.retransmits = match (total.retransmits, retransmits) {
            (Some(sum), Some(one)) => Some(sum + one),
            (sum, one) => sum.or(one),
        };
    }
    Ok(total)
}

fn begin(target: &Target) -> Result<Stream, AskError> {
    let route =
        Route { local: Some(target.from.ip), device: Some(target.from.port.clone()), remote: target.agent };
    let stream = open(&route, &Question::Sink, CONNECT_WAIT)?;
    match receive(&stream, target.agent, Instant::now() + CONNECT_WAIT)? {
        Answer::Ready => Ok(stream),
        Answer::Refused { why } => Err(AskError::Refused { peer: target.agent, why }),
        _ => Err(AskError::Unexpected { peer: target.agent }),
    }
}

/// Sends for [`LASTS`] and hears what came.
fn one_connection(stream: &Stream, peer: SocketAddr) -> Result<Share, AskError> {
    let broken = |source| AskError::Broken { peer, source };
    let deadline = Instant::now() + ANSWER_WAIT;
    let until = Instant::now() + LASTS;
    let mut block = vec![MORE; BLOCK_BYTES];
    while Instant::now() < until {
        stream.send_all(&block, deadline).map_err(broken)?;
    }
    if let Some(first) = block.first_mut() {
        *first = LAST;
    }
    stream.send_all(&block, deadline).map_err(broken)?;
    let answer = receive(stream, peer, deadline)?;
    let retransmits =
        Progress::of(stream).and_then(|mut progress| progress.read()).map(|info| u64::from(info.retransmits));
    match answer {
        Answer::Sunk { bytes, took_us } => Ok(Share { bytes, took_us, retransmits }),
        _ => Err(AskError::Unexpected { peer }),
    }
}

/// The receiving side, after [`Question::Sink`].
pub fn sink(stream: &Stream, peer: SocketAddr) -> Result<(), AskError> {
    let deadline = Instant::now() + SINK_LONGEST;
    send(stream, &Answer::Ready, peer, deadline)?;
    let mut block = vec![0; BLOCK_BYTES];
    let mut bytes = 0u64;
    let mut began = None;
    loop {
        stream.receive_exact(&mut block, deadline).map_err(|source| AskError::Broken { peer, source })?;
        match began {
            // The clock runs from the end of the first block, which is then not counted.
            None => began = Some(Instant::now()),
            Some(_) => bytes += block.len() as u64,
        }
        if block.first() == Some(&LAST) {
            break;
        }
    }
    let took = began.map_or(Duration::ZERO, |began| began.elapsed());
    let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    send(stream, &Answer::Sunk { bytes, took_us }, peer, deadline)
}
