//! The two sides of a ping-pong, and of a stream in one direction. Each is one thread's work.

use std::time::{Duration, Instant};

use super::{BLOCK_BYTES, TestConnection, TestError};

/// What one thread has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestRole {
    /// Sends a message and waits for the answer, again and again.
    Ask { bytes: usize, repetitions: u32 },
    /// Waits for a message and answers.
    Answer { bytes: usize, repetitions: u32 },
    /// Sends blocks for so long.
    Send { time: Duration },
    /// Takes blocks until the last.
    Receive,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TestResult {
    /// Bytes sent, as the transport really sent them.
    pub sent_bytes: u64,
    /// Bytes of payload that arrived.
    pub received_bytes: u64,
    /// Asking: over all repetitions. Receiving: from the first block to the last. Otherwise what it took.
    pub elapsed: Duration,
    /// Receiving: the bytes that came within `elapsed`, so all but the first block, with which the clock starts.
    pub timed_bytes: u64,
}

impl TestResult {
    /// Megabits per second that arrived within `elapsed`; 0 if no time went by.
    pub fn rate_mbps(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.timed_bytes as f64 * 8.0 / 1e6 / seconds } else { 0.0 }
    }
}

/// Plays one part of a measurement to its end.
pub fn run_role(wire: &mut dyn TestConnection, part: TestRole) -> Result<TestResult, TestError> {
    match part {
        TestRole::Ask { bytes, repetitions } => ask(wire, bytes, repetitions),
        TestRole::Answer { bytes, repetitions } => answer(wire, bytes, repetitions),
        TestRole::Send { time } => send(wire, time),
        TestRole::Receive => receive(wire),
    }
}

fn ask(wire: &mut dyn TestConnection, bytes: usize, repetitions: u32) -> Result<TestResult, TestError> {
    let began = Instant::now();
    for _ in 0..repetitions {
        wire.send(bytes)?;
        wire.receive(bytes)?;
    }
    Ok(both_ways(wire, bytes, repetitions, began.elapsed()))
}

fn answer(wire: &mut dyn TestConnection, bytes: usize, repetitions: u32) -> Result<TestResult, TestError> {
    let began = Instant::now();
    for _ in 0..repetitions {
        wire.receive(bytes)?;
        wire.send(bytes)?;
    }
    Ok(both_ways(wire, bytes, repetitions, began.elapsed()))
}

fn both_ways(wire: &dyn TestConnection, bytes: usize, repetitions: u32, elapsed: Duration) -> TestResult {
    let moved = wire.carried_bytes(bytes) as u64 * u64::from(repetitions);
    TestResult { sent_bytes: moved, received_bytes: moved, elapsed, timed_bytes: moved }
}

fn send(wire: &mut dyn TestConnection, time: Duration) -> Result<TestResult, TestError> {
    let began = Instant::now();
    let mut blocks = 0u64;
    // The first starts the receiver's clock and the last may come at once behind it.
    while blocks == 0 || began.elapsed() < time {
        wire.send_block(false)?;
        blocks += 1;
    }
    wire.send_block(true)?;
    let sent_bytes = (blocks + 1) * BLOCK_BYTES as u64;
    Ok(TestResult { sent_bytes, elapsed: began.elapsed(), ..TestResult::default() })
}

fn receive(wire: &mut dyn TestConnection) -> Result<TestResult, TestError> {
    let mut last = wire.receive_block()?;
    let began = Instant::now();
    let mut timed_bytes = 0;
    while !last {
        last = wire.receive_block()?;
        timed_bytes += BLOCK_BYTES as u64;
    }
    let received_bytes = timed_bytes + BLOCK_BYTES as u64;
    Ok(TestResult { received_bytes, elapsed: began.elapsed(), timed_bytes, ..TestResult::default() })
}
