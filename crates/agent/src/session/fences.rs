//! Channels that the peer writes to: threads that apply placed writes, and their fences.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use linerate_core::ChannelId;
use linerate_lock::Mutex;
use linerate_net::channel::{ChannelEnd, Closer, Receiver};
use linerate_net::fence::{Fence, Fenced};
use linerate_net::table::RegionTable;

use crate::faults::chain;

/// A fence waits for a write in progress: at most a payload into memory. On a host that is short of memory, or was
/// stopped, that can take longer: then this is logged each time that it has passed.
const FENCE_WAIT: Duration = Duration::from_secs(5);

/// Channels that have ended and are still known. A fence is asked for when a link is lost, long before so many others
/// have opened and ended. A peer that asks for many cannot make us keep more.
const ENDED_KEPT: usize = 4096;

/// Channels that are open at a time, each with a thread. A link has at most some ten.
const OPEN_MAX: usize = 1024;

enum Slot {
    /// `asked`: a thread is fencing it for the peer.
    Open { fence: Arc<Fence>, asked: bool },
    /// Fenced, or fenced before it was ever opened: nothing is applied from it.
    Closed(Fenced),
}

/// The channels of the peer by number.
#[derive(Default)]
pub(crate) struct Fences(Mutex<Slots>);

#[derive(Default)]
struct Slots {
    known: BTreeMap<ChannelId, Slot>,
    ended: usize,
    /// What is below this and not known has ended.
    forgotten_below: ChannelId,
}

impl Slots {
    fn close(&mut self, channel: ChannelId, fenced: Fenced) {
        match self.known.insert(channel, Slot::Closed(fenced)) {
            Some(Slot::Closed(_)) => return,
            Some(Slot::Open { .. }) | None => self.ended += 1,
        }
        while self.ended > ENDED_KEPT {
            let mut ended = self.known.iter().filter(|(_, slot)| matches!(slot, Slot::Closed(_)));
            let Some(oldest) = ended.next().map(|(&channel, _)| channel) else { return };
            self.known.remove(&oldest);
            self.ended -= 1;
            self.forgotten_below = self.forgotten_below.max(oldest.saturating_add(1));
        }
    }
}

/// What is known when a fence is asked for.
enum Asked {
    /// It applies nothing more.
    Answer(Fenced),
    /// It may be applying a write.
    Open(Arc<Fence>),
}

impl Fences {
    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.0.lock()
    }

    /// Registers a new channel. A number that is taken or fenced already is refused.
    fn open(&self, channel: ChannelId, fence: Arc<Fence>) -> io::Result<()> {
        let mut slots = self.lock();
        if slots.known.contains_key(&channel) || channel < slots.forgotten_below {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!("channel {channel} was used already"),
            ));
        }
        if slots.known.len() - slots.ended >= OPEN_MAX {
            return Err(io::Error::other(format!("the session has {OPEN_MAX} data channels already")));
        }
        slots.known.insert(channel, Slot::Open { fence, asked: false });
        Ok(())
    }

    /// Looks a channel up that is to be fenced; none if it ended so long ago that its fence cannot be needed.
    fn ask(&self, channel: ChannelId) -> Option<Asked> {
        let mut slots = self.lock();
        match slots.known.get(&channel) {
            Some(Slot::Closed(fenced)) => Some(Asked::Answer(fenced.clone())),
            Some(Slot::Open { fence, .. }) => Some(Asked::Open(fence.clone())),
            None if channel < slots.forgotten_below => None,
            None => {
                // A channel that was never opened here: it must not be opened later either.
                slots.close(channel, Fenced::default());
                Some(Asked::Answer(Fenced::default()))
            }
        }
    }

    /// Rule 3: after this has returned `Ok`, nothing more is applied from the channel.
    fn close(&self, channel: ChannelId, fence: &Fence, wait: Duration) -> io::Result<Fenced> {
        let fenced = fence.close(wait).map_err(io::Error::other)?;
        self.lock().close(channel, fenced.clone());
        Ok(fenced)
    }

    /// Closes all of them.
    pub fn close_all(&self) {
        let known: Vec<ChannelId> = self.lock().known.keys().copied().collect();
        known.into_iter().for_each(|channel| self.close_channel(channel));
    }

    /// Applies what a new channel receives, in a thread of its own. Calls `ended` with the reason when the channel has
    /// ended.
    pub fn serve(
        self: &Arc<Fences>,
        channel: ChannelId,
        closer: Closer,
        receiver: impl Receiver + 'static,
        regions: Arc<RegionTable>,
        ended: impl FnOnce(&ChannelEnd) + Send + 'static,
    ) -> io::Result<()> {
        let fence = Arc::new(Fence::new(closer));
        self.open(channel, fence.clone())?;
        let channels = self.clone();
        std::thread::Builder::new().name(format!("channel-{channel}")).spawn(move || {
            let end = receiver.serve(&regions, &fence);
            ended(&end);
            if let ChannelEnd::Failed(error) = end {
                tracing::warn!(channel, error = chain(&error), "a channel failed");
            }
            drop(fence);
            // Whether the peer ever asks for the fence or not: a long session keeps no connection for channels that
            // have ended.
            channels.close_channel(channel);
        })?;
        Ok(())
    }

    fn close_channel(&self, channel: ChannelId) {
        let Some(Asked::Open(fence)) = self.ask(channel) else { return };
        if let Err(error) = self.close(channel, &fence, FENCE_WAIT) {
            tracing::error!(channel, error = chain(&error), "a channel could not be closed");
        }
    }

    /// Fences a channel for the peer, which is answered once. A channel with a write in progress may have to be waited
    /// for: that is done in a thread of its own.
    pub fn fence(self: &Arc<Fences>, channel: ChannelId, answer: impl FnOnce(Fenced) + Send + 'static) {
        match self.ask(channel) {
            Some(Asked::Answer(fenced)) => answer(fenced),
            Some(Asked::Open(fence)) if self.first_asked(channel) => {
                self.fence_apart(channel, fence, FENCE_WAIT, answer);
            }
            Some(Asked::Open(_)) => tracing::warn!(channel, "a fence is asked for again"),
            None => tracing::warn!(channel, "a fence is asked for that cannot be needed"),
        }
    }

    fn first_asked(&self, channel: ChannelId) -> bool {
        match self.lock().known.get_mut(&channel) {
            Some(Slot::Open { asked, .. }) => !std::mem::replace(asked, true),
            // It has ended meanwhile: its fence closes at once.
            _ => true,
        }
    }

    /// Answers in the end, however long the write in progress takes. The peer asks once, and until it has the answer it
    /// must not send the extents again: a migration would be given up, and the streams of a tunnel would stand still
    /// for ever.
    fn fence_apart(
        self: &Arc<Fences>,
        channel: ChannelId,
        fence: Arc<Fence>,
        wait: Duration,
        answer: impl FnOnce(Fenced) + Send + 'static,
    ) {
        let channels = self.clone();
        let fencing = move || {
            loop {
                match channels.close(channel, &fence, wait) {
                    Ok(fenced) => return answer(fenced),
                    Err(error) => {
                        tracing::error!(channel, error = chain(&error), "a channel is not fenced yet");
                    }
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name(format!("fence-{channel}")).spawn(fencing) {
            tracing::error!(channel, %error, "cannot start a thread to fence a channel");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;
    use std::time::Instant;

    use super::*;

    /// Applies one frame, and ends as a connection does that the peer closes.
    struct Short;

    impl Receiver for Short {
        fn serve(self, _regions: &RegionTable, fence: &Fence) -> ChannelEnd {
            fence.enter().unwrap().apply(9);
            ChannelEnd::Closed
        }
    }

    /// Serves until it is closed.
    struct Long(std::sync::mpsc::Receiver<()>);

    impl Receiver for Long {
        fn serve(self, _regions: &RegionTable, fence: &Fence) -> ChannelEnd {
            let _serving = fence.enter();
            let _ = self.0.recv();
            ChannelEnd::Closed
        }
    }

    /// What the peer is answered at once.
    fn fenced(channels: &Arc<Fences>, channel: ChannelId) -> Option<Fenced> {
        let (sender, answer) = std::sync::mpsc::channel();
        channels.fence(channel, move |fenced| sender.send((fenced, std::thread::current().id())).unwrap());
        let (fenced, thread) = answer.try_recv().ok()?;
        assert_eq!(thread, std::thread::current().id(), "a thread for nothing");
        Some(fenced)
    }

    fn serve(
        channels: &Arc<Fences>,
        channel: ChannelId,
        receiver: impl Receiver + 'static,
    ) -> io::Result<()> {
        channels.serve(channel, Closer::new(|| {}), receiver, Arc::new(RegionTable::new([])), |_| {})
    }

    #[test]
    fn a_peer_that_asks_for_fences_of_all_numbers_costs_neither_threads_nor_memory() {
        let channels = Arc::<Fences>::default();
        let (end, until) = std::sync::mpsc::channel();
        serve(&channels, 7, Long(until)).unwrap();
        for channel in 0..100_000 {
            if channel != 7 {
                assert_eq!(fenced(&channels, channel), Some(Fenced::default()));
            }
        }
        assert_eq!(channels.lock().known.len(), ENDED_KEPT + 1, "with the one that is open");
        assert_eq!(fenced(&channels, 8), None, "forgotten");
        for used in [8, 99_999] {
            let again = serve(&channels, used, Short).unwrap_err();
            assert_eq!(again.kind(), io::ErrorKind::AlreadyExists, "it was fenced");
        }
        // One that may be applying a write is waited for by one thread, however often its fence is asked for.
        let (sender, answers) = std::sync::mpsc::channel();
        for _ in 0..10 {
            let sender = sender.clone();
            channels.fence(7, move |fenced| sender.send(fenced).unwrap());
        }
        drop(end);
        drop(sender);
        assert_eq!(answers.iter().count(), 1);
    }

    /// Has a write in progress from when it has reported it until it is let go.
    struct Slow {
        begun: std::sync::mpsc::Sender<()>,
        until: std::sync::mpsc::Receiver<()>,
    }

    impl Receiver for Slow {
        fn serve(self, _regions: &RegionTable, fence: &Fence) -> ChannelEnd {
            let mut serving = fence.enter().unwrap();
            serving.apply(3);
            self.begun.send(()).unwrap();
            let _ = self.until.recv();
            ChannelEnd::Fenced
        }
    }

    #[test]
    fn a_fence_whose_write_takes_long_is_answered_when_the_write_is_over() {
        const WAIT: Duration = Duration::from_millis(5);
        const LONG: Duration = Duration::from_secs(60);
        let channels = Arc::<Fences>::default();
        let ((begun, is_begun), (end, until)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
        serve(&channels, 7, Slow { begun, until }).unwrap();
        is_begun.recv_timeout(LONG).unwrap();
        let Some(Asked::Open(fence)) = channels.ask(7) else { panic!("it has ended") };
        let (sender, answer) = std::sync::mpsc::channel();
        channels.fence_apart(7, fence, WAIT, move |fenced| sender.send(fenced).unwrap());
        let early = answer.recv_timeout(10 * WAIT);
        assert_eq!(early, Err(std::sync::mpsc::RecvTimeoutError::Timeout), "a write is in progress");
        drop(end);
        assert_eq!(answer.recv_timeout(LONG), Ok(Fenced { applied: 3, damaged: Vec::new() }));
    }

    #[test]
    fn data_channels_of_a_session_are_bounded_at_a_time() {
        let channels = Arc::<Fences>::default();
        let fence = || Arc::new(Fence::new(Closer::new(|| {})));
        let opened: Vec<_> = (0..OPEN_MAX as ChannelId).map(|number| (number, fence())).collect();
        for (number, fence) in &opened {
            channels.open(*number, fence.clone()).unwrap();
        }
        let more = OPEN_MAX as ChannelId;
        let refused = channels.open(more, fence()).unwrap_err().to_string();
        assert!(refused.contains("1024 data channels"), "{refused}");
        channels.close_channel(0);
        channels.open(more, fence()).unwrap();
    }

    #[test]
    fn a_channel_that_ended_keeps_no_connection_and_answers_for_its_fence() {
        let channels = Arc::<Fences>::default();
        let connection = Arc::new(());
        let gone: Weak<()> = Arc::downgrade(&connection);
        let closer = Closer::new(move || drop(connection.clone()));
        let regions = Arc::new(RegionTable::new([]));
        channels.serve(4, closer, Short, regions, |_| {}).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while gone.upgrade().is_some() {
            assert!(Instant::now() < deadline, "its connection is kept although no fence will be asked for");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(fenced(&channels, 4), Some(Fenced { applied: 9, damaged: Vec::new() }));
        assert_eq!(
            serve(&channels, 4, Short).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists,
            "a number is never given twice"
        );
    }
}
