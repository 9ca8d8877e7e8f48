//! Two sessions in one process, joined by TCP channels over loopback that a test can cut.

use std::collections::HashMap;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use linerate_core::ChannelId;
use linerate_core::stream::{Config, End, StreamId};
use linerate_net::channel::{ChannelError, Closer, Receiver as _};
use linerate_net::channel_thread::{ChannelEnds, ChannelHandle, ChannelThreadOptions};
use linerate_net::fence::Fence;
use linerate_net::region::Region;
use linerate_net::region::heap::HeapRegion;
use linerate_net::stream::endpoint::Socket;
use linerate_net::stream::{RingMemory, StreamEvents, StreamSession};
use linerate_net::tcp::Stream;
use linerate_net::tcp::receive::StreamReceiver;
use linerate_net::tcp::send::{StreamAcks, StreamSender};
use linerate_wire::frame::DAMAGED_MAX;

pub const WAIT: Duration = Duration::from_secs(60);
const A: usize = 0;

enum Event {
    Attention(usize),
    Asked(usize, StreamId, String),
    Lost(usize, ChannelId),
    Add(usize),
    End,
}

struct Side {
    number: usize,
    inbox: Mutex<Sender<Event>>,
    refusals: Mutex<Sender<String>>,
}

impl Side {
    fn send(&self, event: Event) {
        let _ = self.inbox.lock().unwrap().send(event);
    }
}

impl StreamEvents for Side {
    fn attention(&self) {
        self.send(Event::Attention(self.number));
    }
    fn asked(&self, stream: StreamId, service: String) {
        self.send(Event::Asked(self.number, stream, service));
    }
    fn refused(&self, _stream: StreamId, reason: String) {
        let _ = self.refusals.lock().unwrap().send(reason);
    }
    fn channel_lost(&self, channel: ChannelId, _error: ChannelError) {
        self.send(Event::Lost(self.number, channel));
    }
}

/// Both sides, and the thread between them in place of the control stream.
pub struct Pair {
    pub sessions: [Arc<StreamSession>; 2],
    pub refusals: Receiver<String>,
    /// Sockets that streams to a service come out at.
    pub arrivals: Receiver<TcpOrUnix>,
    cutters: Arc<Mutex<HashMap<ChannelId, Closer>>>,
    inbox: Sender<Event>,
    bridge: Option<JoinHandle<()>>,
}

pub struct Cutter(Arc<Mutex<HashMap<ChannelId, Closer>>>);

impl Cutter {
    /// Cuts the nth active channel.
    pub fn cut(&self, nth: usize) {
        let cutters = self.0.lock().unwrap();
        if let Some(closer) = cutters.values().nth(nth % cutters.len().max(1)) {
            closer.close();
        }
    }
}

pub enum TcpOrUnix {
    Tcp(TcpStream),
    Unix(UnixStream),
}

pub fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

fn memory() -> RingMemory {
    RingMemory::new(|bytes| Ok(Arc::new(HeapRegion::new(bytes as usize)) as Arc<dyn Region>))
}

impl Pair {
    /// So many channels each way.
    pub fn new(config: &Config, channels: usize) -> Pair {
        let (inbox, events) = channel();
        let (refusals_in, refusals) = channel();
        let (arrivals_in, arrivals) = channel();
        let sessions = [End::Source, End::Destination].map(|end| {
            let side = Side {
                number: usize::from(end == End::Destination),
                inbox: Mutex::new(inbox.clone()),
                refusals: Mutex::new(refusals_in.clone()),
            };
            StreamSession::new(end, config.clone(), memory(), Box::new(side))
        });
        let cutters = Arc::new(Mutex::new(HashMap::new()));
        let bridge = Bridge {
            sessions: sessions.clone(),
            channels: HashMap::new(),
            next: 0,
            arrivals: arrivals_in,
            cutters: cutters.clone(),
        };
        let bridge = std::thread::spawn(move || bridge.run(&events));
        for _ in 0..channels {
            for side in [0, 1] {
                inbox.send(Event::Add(side)).unwrap();
            }
        }
        Pair { sessions, refusals, arrivals, cutters, inbox, bridge: Some(bridge) }
    }

    /// Cuts channels, from any thread.
    pub fn cutter(&self) -> Cutter {
        Cutter(self.cutters.clone())
    }

    /// A new stream from side A to a service; its socket here.
    pub fn open_unix(&self, service: &str) -> UnixStream {
        let (near, far) = UnixStream::pair().unwrap();
        self.sessions[A].open(service, Socket::new(far).unwrap()).unwrap();
        near
    }

    pub fn open_tcp(&self, service: &str) -> TcpStream {
        let (near, far) = tcp_pair();
        self.sessions[A].open(service, Socket::new(far).unwrap()).unwrap();
        near
    }

    pub fn arrived_unix(&self) -> UnixStream {
        match self.arrivals.recv_timeout(WAIT).unwrap() {
            TcpOrUnix::Unix(socket) => socket,
            TcpOrUnix::Tcp(_) => panic!("a TCP socket came"),
        }
    }

    pub fn arrived_tcp(&self) -> TcpStream {
        match self.arrivals.recv_timeout(WAIT).unwrap() {
            TcpOrUnix::Tcp(socket) => socket,
            TcpOrUnix::Unix(_) => panic!("a UNIX socket came"),
        }
    }

    pub fn streams(&self) -> usize {
        self.sessions.iter().map(|session| session.count()).sum()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for session in &self.sessions {
            session.fail_all();
            assert!(session.wait_ended(WAIT) || std::thread::panicking(), "a stream's thread does not end");
        }
        let _ = self.inbox.send(Event::End);
        if let Some(bridge) = self.bridge.take() {
            assert!(bridge.join().is_ok() || std::thread::panicking());
        }
    }
}

struct Channel {
    from: usize,
    _pump: ChannelHandle,
    fence: Arc<Fence>,
}

struct Bridge {
    sessions: [Arc<StreamSession>; 2],
    channels: HashMap<ChannelId, Channel>,
    next: ChannelId,
    arrivals: Sender<TcpOrUnix>,
    cutters: Arc<Mutex<HashMap<ChannelId, Closer>>>,
}

impl Bridge {
    fn run(mut self, events: &Receiver<Event>) {
        for event in events {
            match event {
                Event::Attention(side) => {
                    for (stream, note) in self.sessions[side].take_notes() {
                        self.sessions[1 - side].note(stream, note).unwrap();
                    }
                }
                Event::Asked(side, stream, service) => self.answer(side, stream, &service),
                Event::Lost(side, id) => {
                    if self.sessions[side].channel_gone(id) {
                        self.cutters.lock().unwrap().remove(&id);
                        let channel = self.channels.remove(&id).unwrap();
                        assert_eq!(channel.from, side);
                        let fenced = channel.fence.close(WAIT).unwrap();
                        self.sessions[side].fenced(id, fenced.applied, &fenced.damaged);
                        drop(channel);
                        self.add(side);
                    }
                }
                Event::Add(side) => self.add(side),
                Event::End => break,
            }
        }
        for (_, channel) in self.channels.drain() {
            let _ = channel.fence.close(WAIT);
        }
    }

    fn answer(&self, side: usize, stream: StreamId, service: &str) {
        let (near, far) = match service {
            "unix" => {
                let (near, far) = UnixStream::pair().unwrap();
                (TcpOrUnix::Unix(near), Socket::new(far).unwrap())
            }
            "tcp" => {
                let (near, far) = tcp_pair();
                (TcpOrUnix::Tcp(near), Socket::new(far).unwrap())
            }
            _ => return self.sessions[side].refuse(stream, "no listener there"),
        };
        self.sessions[side].accept(stream, far).unwrap();
        let _ = self.arrivals.send(near);
    }

    fn add(&mut self, from: usize) {
        let id = self.next;
        self.next += 1;
        let (x, y) = tcp_pair();
        let (x, y) = (Stream::new(x).unwrap(), Stream::new(y).unwrap());
        let fence = Arc::new(Fence::new(y.closer()));
        let (table, inner) = (self.sessions[1 - from].receiving_table(), fence.clone());
        std::thread::spawn(move || StreamReceiver::new(y).damaged_max(DAMAGED_MAX).serve(&table, &inner));
        let closer = x.closer();
        self.cutters.lock().unwrap().insert(id, closer.clone());
        let ends = ChannelEnds {
            sender: Box::new(StreamSender::new(x.clone())),
            acks: Box::new(StreamAcks::new(x)),
            closer,
        };
        let session = self.sessions[from].clone();
        session.channel_up(id, from as u16);
        let options =
            ChannelThreadOptions { stall_limit: WAIT, ..ChannelThreadOptions::new(session.sending_table()) };
        let pump = ChannelHandle::start(id, ends, session, options).unwrap();
        self.channels.insert(id, Channel { from, _pump: pump, fence });
    }
}
