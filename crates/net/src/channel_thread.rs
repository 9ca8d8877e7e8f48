//! The source's data path: two threads for each channel, one that sends and one that takes acknowledgements.
//!
//! A free channel pulls its next extent from the [`WorkSource`], so fast links carry more by themselves. A channel that
//! has something in flight and sees neither an acknowledgement nor progress of the peer's kernel within the stall limit
//! is lost. The loss is reported once. The limit is longer where the link is far.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_core::{ChannelId, RegionId, Run};

use crate::channel::{AckReader, Acknowledged, ChannelError, Closer, Sender, WriteOrder, total};
use crate::pacer::Pacer;
use crate::stats::ChannelStats;
use crate::table::RegionTable;
use linerate_lock::{Condvar, Mutex};

/// How long the acknowledging thread waits at a time before it looks at the clock.
const SLICE: Duration = Duration::from_millis(50);

/// What a channel is to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Send these runs; at most 512, of at most 4 MiB together.
    Work {
        /// Number of the frame on this channel.
        sequence: u64,
        region: RegionId,
        /// What to send, pages of zeroes among it.
        runs: Vec<Run>,
    },
    /// Send a frame without content, so that both sides see that the link works.
    Ping {
        /// Number of the frame on this channel.
        sequence: u64,
    },
    /// Nothing more; wait for the acknowledgements in flight and end.
    Stop,
}

/// Gives work to channels and gets its results. Called from several threads at once.
pub trait WorkSource: Send + Sync {
    /// What the channel does next. Blocks while there is nothing, but comes back with a ping before long.
    fn next(&self, channel: ChannelId) -> Next;
    /// The transport took the frame. The acknowledgement can be reported before this.
    fn sent(&self, channel: ChannelId, sequence: u64, data_bytes: u64, zero_bytes: u64, wire_bytes: u64);
    /// All frames up to `through` are applied, but for `damaged`.
    fn acknowledged(&self, channel: ChannelId, through: u64, damaged: &[u64]);
    /// The channel is lost. Called at most once, and never after [`ChannelHandle::stop`].
    fn lost(&self, channel: ChannelId, error: ChannelError);
}

/// The parts of a channel at the source.
pub struct ChannelEnds {
    pub sender: Box<dyn Sender>,
    pub acks: Box<dyn AckReader>,
    /// Ends the sending and the acknowledging half.
    pub closer: Closer,
}

/// What all pumps of a migration share.
#[derive(Clone)]
pub struct ChannelThreadOptions {
    /// Where runs are read from.
    pub regions: Arc<RegionTable>,
    /// Limit over all channels, if the operator set one.
    pub pacer: Option<Arc<Pacer>>,
    /// With something in flight, nothing moved for this long: the channel is lost. Shorter loses channels to busy
    /// hosts. A far link has longer.
    pub stall_limit: Duration,
}

impl ChannelThreadOptions {
    /// No bandwidth limit, and a stall limit of 400 ms.
    pub fn new(regions: Arc<RegionTable>) -> ChannelThreadOptions {
        ChannelThreadOptions { regions, pacer: None, stall_limit: Duration::from_millis(400) }
    }
}

/// A running pump. Dropping it stops it.
pub struct ChannelHandle {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl ChannelHandle {
    /// Starts the two threads of a channel.
    pub fn start(
        channel: ChannelId,
        ends: ChannelEnds,
        source: Arc<dyn WorkSource>,
        options: ChannelThreadOptions,
    ) -> Result<ChannelHandle, ChannelError> {
        let ChannelEnds { sender, acks, closer } = ends;
        let stats = sender.stats();
        let shared = Arc::new(Shared {
            channel,
            source,
            closer,
            stats,
            sent: AtomicU64::new(0),
            finished: AtomicBool::new(false),
            over: Mutex::new(false),
            changed: Condvar::new(),
        });
        let mut handle = ChannelHandle { shared: Arc::clone(&shared), threads: Vec::new() };
        let sending = Sending {
            shared: Arc::clone(&shared),
            sender,
            options: options.clone(),
            data: Vec::new(),
            zero: Vec::new(),
        };
        let stall_limit = acks.round_trip().silence(options.stall_limit);
        let watching = Watching { shared, acks, stall_limit, acknowledged: 0 };
        handle.spawn("acknowledge", move || watching.run())?;
        handle.spawn("send", move || sending.run())?;
        Ok(handle)
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), ChannelError> {
        let thread = std::thread::Builder::new().name(format!("{name} {}", self.shared.channel));
        self.threads.push(thread.spawn(run).map_err(ChannelError::Thread)?);
        Ok(())
    }

    /// Counters of the channel.
    pub fn stats(&self) -> &Arc<ChannelStats> {
        &self.shared.stats
    }

    /// Closes the channel now. A [`WorkSource::next`] that waits still comes back first.
    pub fn stop(&self) {
        self.shared.end();
    }

    /// Waits for both threads, which end after [`ChannelHandle::stop`], [`Next::Stop`] or a loss.
    pub fn join(mut self) {
        self.join_threads();
    }

    fn join_threads(&mut self) {
        for thread in self.threads.drain(..) {
            // A panic in it was reported by the panic hook; there is nothing to add.
            let _ = thread.join();
        }
    }
}

impl Drop for ChannelHandle {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.stop();
            self.join_threads();
        }
    }
}

impl fmt::Debug for ChannelHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PumpHandle").field("channel", &self.shared.channel).finish_non_exhaustive()
    }
}

struct Shared {
    channel: ChannelId,
    source: Arc<dyn WorkSource>,
    closer: Closer,
    stats: Arc<ChannelStats>,
    /// Highest frame number given to the transport.
    sent: AtomicU64,
    /// The sending thread sends nothing more.
    finished: AtomicBool,
    /// Lost, stopped or done; set once.
    over: Mutex<bool>,
    changed: Condvar,
}

impl Shared {
    /// True for the first caller.
    fn end(&self) -> bool {
        let first = !std::mem::replace(&mut *self.over.lock(), true);
        self.changed.notify_all();
        self.closer.close();
        first
    }

    fn lose(&self, error: ChannelError) {
        if self.end() {
            self.source.lost(self.channel, error);
        }
    }

    fn is_over(&self) -> bool {
        *self.over.lock()
    }

    /// Sleeps, but not on after the end. False at the end.
    fn sleep(&self, wait: Duration) -> bool {
        let over = self.over.lock();
        !*self.changed.wait_timeout_while(over, wait, |over| !*over).0
    }
}

struct Sending {
    shared: Arc<Shared>,
    sender: Box<dyn Sender>,
    options: ChannelThreadOptions,
    data: Vec<Run>,
    zero: Vec<Run>,
}

impl Sending {
    fn run(mut self) {
        while !self.shared.is_over() {
            let done = match self.shared.source.next(self.shared.channel) {
                Next::Work { sequence, region, runs } => self.work(sequence, region, &runs),
                Next::Ping { sequence } => self.ping(sequence),
                Next::Stop => break,
            };
            if let Err(error) = done {
                self.shared.lose(error);
            }
        }
        self.shared.finished.store(true, Ordering::SeqCst);
    }

    fn work(&mut self, sequence: u64, region_id: RegionId, runs: &[Run]) -> Result<(), ChannelError> {
        let regions = Arc::clone(&self.options.regions);
        let region = regions.checked(region_id, runs)?;
        self.data.clear();
        self.zero.clear();
        region
            .split_zero(runs, &mut self.data, &mut self.zero)
            .map_err(|source| ChannelError::Memory { region: region_id, source })?;
        let (data_bytes, zero_bytes) = (total(&self.data), total(&self.zero));
        if !self.pace(data_bytes) {
            return Ok(());
        }
        self.shared.sent.store(sequence, Ordering::SeqCst);
        let order = WriteOrder { sequence, region_id, region, data: &self.data, zero: &self.zero };
        let wire_bytes = self.sender.write(&order)?;
        self.shared.source.sent(self.shared.channel, sequence, data_bytes, zero_bytes, wire_bytes);
        Ok(())
    }

    fn ping(&mut self, sequence: u64) -> Result<(), ChannelError> {
        self.shared.sent.store(sequence, Ordering::SeqCst);
        let wire_bytes = self.sender.probe(sequence, 0)?;
        self.shared.source.sent(self.shared.channel, sequence, 0, 0, wire_bytes);
        Ok(())
    }

    /// Waits for the bandwidth limit. False if the channel ended meanwhile.
    fn pace(&self, bytes: u64) -> bool {
        let Some(pacer) = &self.options.pacer else { return true };
        let goes = self.shared.sleep(pacer.take(bytes));
        if !goes {
            pacer.give_back(bytes);
        }
        goes
    }
}

struct Watching {
    shared: Arc<Shared>,
    acks: Box<dyn AckReader>,
    stall_limit: Duration,
    acknowledged: u64,
}

impl Watching {
    fn run(mut self) {
        match self.watch() {
            Ok(()) => {
                self.shared.end();
            }
            Err(error) => self.shared.lose(error),
        }
    }

    /// Until everything is acknowledged and nothing more comes.
    fn watch(&mut self) -> Result<(), ChannelError> {
        let (mut moved, mut progress) = (Instant::now(), 0);
        while !self.shared.is_over() {
            // In this order: after `finished` is seen, `sent` does not rise any more.
            let finished = self.shared.finished.load(Ordering::SeqCst);
            let outstanding = self.shared.sent.load(Ordering::SeqCst) > self.acknowledged;
            if finished && !outstanding {
                return Ok(());
            }
            match self.acks.next(SLICE)? {
                Some(acknowledged) => {
                    self.take(&acknowledged)?;
                    moved = Instant::now();
                }
                None if !outstanding => moved = Instant::now(),
                None => {
                    let now = self.acks.progress();
                    if now != progress {
                        (moved, progress) = (Instant::now(), now);
                    }
                    self.shared.stats.stall();
                }
            }
            if moved.elapsed() > self.stall_limit {
                return Err(ChannelError::Stalled { waited: moved.elapsed() });
            }
        }
        Ok(())
    }

    fn take(&mut self, ack: &Acknowledged) -> Result<(), ChannelError> {
        let (through, acknowledged) = (ack.through, self.acknowledged);
        let sent = self.shared.sent.load(Ordering::SeqCst);
        if through < acknowledged || through > sent {
            return Err(ChannelError::AcknowledgedWrongly { through, acknowledged, sent });
        }
        self.acknowledged = through;
        self.shared.stats.count_damaged(ack.damaged.len() as u64);
        self.shared.source.acknowledged(self.shared.channel, through, &ack.damaged);
        Ok(())
    }
}
