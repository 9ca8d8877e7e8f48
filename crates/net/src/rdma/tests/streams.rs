//! Byte streams whose rings adapters read and write.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicUsize;

use linerate_core::ChannelId;
use linerate_core::stream::{Config, End, StreamId};
use linerate_wire::frame::DAMAGED_MAX;

use super::*;
use crate::channel_thread::{ChannelEnds, ChannelHandle, ChannelThreadOptions};
use crate::stream::endpoint::Socket;
use crate::stream::{RingMemory, StreamEvents, StreamSession};

const RING: u64 = 2 * WINDOW_BYTES;

enum Event {
    Notes(usize),
    Asked(StreamId),
    Lost(ChannelId),
    End,
}

struct Side {
    number: usize,
    inbox: Mutex<mpsc::Sender<Event>>,
}

impl Side {
    fn send(&self, event: Event) {
        let _ = self.inbox.lock().send(event);
    }
}

impl StreamEvents for Side {
    fn attention(&self) {
        self.send(Event::Notes(self.number));
    }
    fn asked(&self, stream: StreamId, _service: String) {
        self.send(Event::Asked(stream));
    }
    fn refused(&self, stream: StreamId, reason: String) {
        panic!("stream {stream} was refused: {reason}");
    }
    fn channel_lost(&self, channel: ChannelId, _error: ChannelError) {
        self.send(Event::Lost(channel));
    }
}

struct Open {
    _pump: ChannelHandle,
    fence: Arc<Fence>,
}

/// The connections between the two sides: their control connection, and queue pairs from the first to the second.
struct Between {
    sessions: [Arc<StreamSession>; 2],
    domains: [Domains; 2],
    channels: HashMap<ChannelId, Open>,
    next: ChannelId,
    closer: Arc<Mutex<Option<Closer>>>,
    arrivals: mpsc::Sender<UnixStream>,
}

impl Between {
    fn run(mut self, inbox: &mpsc::Receiver<Event>) {
        self.add();
        for event in inbox {
            match event {
                Event::Notes(side) => {
                    for (stream, note) in self.sessions[side].take_notes() {
                        self.sessions[1 - side].note(stream, note).unwrap();
                    }
                }
                Event::Asked(stream) => {
                    let (near, far) = UnixStream::pair().unwrap();
                    self.sessions[1].accept(stream, Socket::new(far).unwrap()).unwrap();
                    self.arrivals.send(near).unwrap();
                }
                Event::Lost(channel) if self.sessions[0].channel_gone(channel) => {
                    let lost = self.channels.remove(&channel).unwrap();
                    let fenced = lost.fence.close(WAIT).unwrap();
                    self.sessions[0].fenced(channel, fenced.applied, &fenced.damaged);
                    drop(lost);
                    self.add();
                }
                Event::Lost(_) => {}
                Event::End => break,
            }
        }
        for (_, channel) in self.channels.drain() {
            let _ = channel.fence.close(WAIT);
        }
    }

    /// One more queue pair. All of a side are of one domain, as in a session: a window is registered once for all of
    /// them.
    fn add(&mut self) {
        let (options, id) = (patient(), self.next);
        self.next += 1;
        let (source, destination) = connected_in((NEAR, FAR), &options, &self.domains);
        let fence = Arc::new(Fence::new(closer(&destination)));
        let (inner, table) = (Arc::clone(&fence), self.sessions[1].receiving_table());
        std::thread::spawn(move || {
            RdmaReceiver::new(destination).damaged_max(DAMAGED_MAX).serve(&table, &inner)
        });
        let (sender, acks, closer) = halves(source, options);
        *self.closer.lock() = Some(closer.clone());
        let transport = ChannelEnds { sender: Box::new(sender), acks: Box::new(acks), closer };
        let session = self.sessions[0].clone();
        session.channel_up(id, 0);
        let options =
            ChannelThreadOptions { stall_limit: WAIT, ..ChannelThreadOptions::new(session.sending_table()) };
        let pump = ChannelHandle::start(id, transport, session, options).unwrap();
        self.channels.insert(id, Open { _pump: pump, fence });
    }
}

/// More than the rings hold some times over, so that every place of them is written more than once.
fn sent_bytes() -> u64 {
    5 * RING / if std::env::var_os("RDMA_TESTS_SHORT").is_some() { 4 } else { 1 } + 4097
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn streams_pass_through_rings_again_and_again_and_a_lost_queue_pair_loses_nothing() {
    let _link = link();
    let (inbox, events) = mpsc::channel();
    let (arrived, arrivals) = mpsc::channel();
    let made = Arc::new(AtomicUsize::new(0));
    let config = Config { window_bytes: RING, never_reuse_numbers: true, ..Config::default() };
    let sessions = [End::Source, End::Destination].map(|end| {
        let side = Side { number: usize::from(end == End::Destination), inbox: Mutex::new(inbox.clone()) };
        let made = made.clone();
        let memory = RingMemory::new(move |bytes| {
            made.fetch_add(1, Ordering::SeqCst);
            Ok(Arc::new(FileRegion::new(bytes)?) as Arc<dyn Region>)
        });
        StreamSession::new(end, config.clone(), memory.keeping(), Box::new(side))
    });
    let closer = Arc::new(Mutex::new(None));
    let between = Between {
        sessions: sessions.clone(),
        domains: Default::default(),
        channels: HashMap::new(),
        next: 0,
        closer: closer.clone(),
        arrivals: arrived,
    };
    let between = std::thread::spawn(move || between.run(&events));
    // One after the other, so that later ones come into the rings of the first; the queue pair is lost in the second.
    for number in 0..3_u64 {
        let bytes = content(sent_bytes().next_multiple_of(8) + 8 * number);
        let (near, far) = UnixStream::pair().unwrap();
        sessions[0].open("there", Socket::new(far).unwrap()).unwrap();
        let mut there = arrivals.recv_timeout(WAIT).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut near = &near;
                near.write_all(&bytes).unwrap();
                near.shutdown(Shutdown::Write).unwrap();
            });
            let mut received = vec![0; bytes.len() / 2];
            there.read_exact(&mut received).unwrap();
            if number == 1 {
                closer.lock().as_ref().unwrap().close();
            }
            there.read_to_end(&mut received).unwrap();
            assert!(received == bytes, "stream {number} came as {} bytes of {}", received.len(), bytes.len());
        });
        drop((near, there));
        until("the stream to be gone", || sessions.iter().all(|session| session.count() == 0));
    }
    assert_eq!(made.load(Ordering::SeqCst), 4, "memory that adapters know is used again: two rings a side");
    for session in &sessions {
        session.fail_all();
        assert!(session.wait_ended(WAIT));
    }
    inbox.send(Event::End).unwrap();
    between.join().unwrap();
}
