//! Threads that run at the same time, one for each test connection.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use super::role::{TestResult, TestRole, run_role};
use super::{TestConnection, TestError};
use crate::channel::Closer;

/// A test connection with what is to be done on it.
pub struct TestThread {
    pub wire: Box<dyn TestConnection>,
    pub part: TestRole,
    /// The only CPU that its thread may use.
    pub cpu: Option<usize>,
}

/// What a group of threads did.
#[derive(Debug, Default)]
pub struct GroupResult {
    /// Of each thread, in their order.
    pub played: Vec<TestResult>,
    /// CPU time of the threads, user and system.
    pub cpu: Duration,
}

/// Runs all at once and gives the connections back in their order. If one fails or the limit is over, all are cut off
/// and the first failure is the answer.
pub fn run(
    players: Vec<TestThread>,
    limit: Duration,
) -> Result<(Vec<Box<dyn TestConnection>>, GroupResult), TestError> {
    let deadline = Instant::now() + limit;
    let closers: Vec<Closer> = players.iter().map(|player| player.wire.closer()).collect();
    let count = players.len();
    let (done, results) = channel();
    let mut threads = Vec::new();
    let mut gates = Vec::new();
    for (number, player) in players.into_iter().enumerate() {
        let (done, (gate, opened)) = (done.clone(), channel());
        let thread = std::thread::Builder::new().name(format!("wire-{number}"));
        let playing = move || {
            let _ = done.send((number, one(player, &opened)));
        };
        // Those before one that cannot be started see their gate go, and end.
        threads.push(thread.spawn(playing).map_err(TestError::Thread)?);
        gates.push(gate);
    }
    drop(done);
    for gate in gates {
        // No reader: the CPU cannot be used, and its result reports that.
        let _ = gate.send(());
    }
    let collected = collect(count, &results, deadline, limit, &closers);
    for thread in threads {
        // A panic in it was reported by the panic hook, and its result is missing.
        let _ = thread.join();
    }
    collected
}

type Result1 = Result<(Box<dyn TestConnection>, TestResult, Duration), TestError>;

fn one(mut player: TestThread, gate: &Receiver<()>) -> Result1 {
    player.cpu.map_or(Ok(()), pin)?;
    gate.recv().map_err(|_| TestError::Closed)?;
    let before = thread_cpu();
    let played = run_role(player.wire.as_mut(), player.part)?;
    Ok((player.wire, played, thread_cpu().saturating_sub(before)))
}

fn collect(
    count: usize,
    results: &Receiver<(usize, Result1)>,
    deadline: Instant,
    limit: Duration,
    closers: &[Closer],
) -> Result<(Vec<Box<dyn TestConnection>>, GroupResult), TestError> {
    let mut finished = Vec::with_capacity(count);
    let mut failed = None;
    while finished.len() < count && failed.is_none() {
        match results.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok((number, Ok(good))) => finished.push((number, good)),
            Ok((_, Err(error))) => failed = Some(error),
            Err(RecvTimeoutError::Timeout) => failed = Some(TestError::TimedOut { limit }),
            // A thread panicked.
            Err(RecvTimeoutError::Disconnected) => failed = Some(TestError::Closed),
        }
    }
    if let Some(error) = failed {
        cut(closers);
        return Err(error);
    }
    finished.sort_by_key(|(number, _)| *number);
    let mut score = GroupResult::default();
    let mut wires = Vec::with_capacity(count);
    for (_, (wire, played, cpu)) in finished {
        wires.push(wire);
        score.played.push(played);
        score.cpu += cpu;
    }
    Ok((wires, score))
}

fn cut(closers: &[Closer]) {
    closers.iter().for_each(Closer::close);
}

fn pin(cpu: usize) -> Result<(), TestError> {
    let refused = |source| TestError::Cpu { cpu, source };
    if cpu >= CpuSet::MAX_CPU {
        return Err(refused(std::io::ErrorKind::InvalidInput.into()));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|error| refused(error.into()))
}

fn thread_cpu() -> Duration {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(spent.tv_sec).unwrap_or(0), u32::try_from(spent.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::bench::BLOCK_BYTES;
    use crate::bench::tcp::TcpTestConnection;
    use crate::tcp::Stream;

    const LONG: Duration = Duration::from_secs(60);

    fn pair() -> [Box<dyn TestConnection>; 2] {
        let (one, other) = UnixStream::pair().unwrap();
        [one, other].map(|socket| -> Box<dyn TestConnection> {
            Box::new(TcpTestConnection::new(Stream::new(socket).unwrap(), LONG).unwrap())
        })
    }

    fn player(wire: Box<dyn TestConnection>, part: TestRole) -> TestThread {
        TestThread { wire, part, cpu: None }
    }

    #[test]
    fn both_sides_of_a_ping_pong_count_the_same_bytes_and_the_wires_are_used_again() {
        let [mut near, mut far] = pair();
        for (bytes, carried) in [(0, 1), (1, 1), (70_000, 70_000)] {
            let players = vec![
                player(near, TestRole::Ask { bytes, repetitions: 7 }),
                player(far, TestRole::Answer { bytes, repetitions: 7 }),
            ];
            let (wires, score) = run(players, LONG).unwrap();
            for played in &score.played {
                assert_eq!((played.sent_bytes, played.received_bytes), (7 * carried, 7 * carried));
            }
            [near, far] = wires.try_into().ok().unwrap();
        }
    }

    #[test]
    fn a_stream_is_counted_to_the_byte_on_both_sides() {
        let [near, far] = pair();
        let players = vec![
            player(near, TestRole::Send { time: Duration::from_millis(20) }),
            player(far, TestRole::Receive),
        ];
        let (_, score) = run(players, LONG).unwrap();
        let [sent, received] = score.played.try_into().unwrap();
        assert!(sent.sent_bytes >= 2 * BLOCK_BYTES as u64);
        assert_eq!(sent.sent_bytes, received.received_bytes);
        assert_eq!(received.timed_bytes, received.received_bytes - BLOCK_BYTES as u64);
        assert!(score.cpu > Duration::ZERO);
    }

    #[test]
    fn one_that_fails_ends_all() {
        let ([one, gone], [two, _still_there]) = (pair(), pair());
        drop(gone);
        let part = TestRole::Ask { bytes: 1, repetitions: 3 };
        let error = run(vec![player(one, part), player(two, part)], LONG).err().unwrap();
        assert!(matches!(error, TestError::Closed), "{error}");
    }

    #[test]
    fn a_limit_ends_what_waits_for_ever() {
        let [near, _far] = pair();
        let limit = Duration::from_millis(30);
        let error = run(vec![player(near, TestRole::Receive)], limit).err().unwrap();
        assert!(matches!(error, TestError::TimedOut { .. }), "{error}");
    }

    #[test]
    fn a_cpu_that_is_not_there_is_named() {
        let [near, _far] = pair();
        let players = vec![TestThread { wire: near, part: TestRole::Receive, cpu: Some(100_000) }];
        let error = run(players, LONG).err().unwrap();
        assert!(matches!(error, TestError::Cpu { cpu: 100_000, .. }), "{error}");
    }
}
