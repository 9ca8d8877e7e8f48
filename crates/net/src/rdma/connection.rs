//! A queue pair with everything that it needs, and the order in which all of it goes away.

use std::any::Any;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::io::Errno;

use super::abi::{
    ConnParam, IBV_QPT_RC, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_TRANSPORT_IWARP, IBV_WC_REM_ACCESS_ERR,
    IBV_WC_RETRY_EXC_ERR, IBV_WC_SUCCESS, IBV_WC_WITH_IMM, IBV_WC_WR_FLUSH_ERR, IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, Qp, QpCap, QpInitAttr, RDMA_CM_EVENT_ADDR_CHANGE,
    RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_DISCONNECTED, RecvWr, SendWr, Sge, Wc,
};
use super::cm::{EventChannel, Identifier, poll};
use super::domain::{Domain, Domains};
use super::error::{RdmaError, check, errno};
use super::library::Library;
use super::memory::Buffer;
use super::options::{INLINE_BYTES, MESSAGE_BYTES, MESSAGES, SEND_QUEUE};
use super::release::CmEnd;
use super::verbs::{Access, CompletionQueue, POLL_BATCH};
use crate::table::RemoteWriter;
use linerate_lock::Mutex;

/// Longest that a thread looks for a completion before it sleeps. Sleeping and waking costs some 10 µs, so that it is
/// only worth while when completions come in about that time: looked for only if the last one came so soon.
const SPIN: Duration = Duration::from_micros(30);

/// Looks between two looks at the clock: about a microsecond.
const LOOKS: usize = 32;

/// Where an RDMA WRITE goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct RdmaWrite {
    pub(super) from: u64,
    pub(super) length: u32,
    pub(super) local_key: u32,
    pub(super) to: u64,
    pub(super) remote_key: u32,
}

/// A connected queue pair.
pub struct Connection {
    library: &'static Library,
    /// Whether the queue pair is there. Held during every call that uses it.
    alive: Mutex<bool>,
    // In the order in which they are dropped, after the queue pair: queues, memory, domain, and last the identifier
    // with its events, which keeps the device open.
    pub(super) sent: CompletionQueue,
    pub(super) received: CompletionQueue,
    inbox: Buffer,
    outbox: Buffer,
    pub(super) domain: Arc<Domain>,
    end: CmEnd,
    wake: OwnedFd,
    /// Bytes that the adapter takes in the request itself.
    inline_bytes: u32,
    /// This side closed it.
    closed: AtomicBool,
    /// It did so because the peer's host was revoked.
    revoked: AtomicBool,
    /// The peer has ended the connection.
    gone: AtomicBool,
    /// The last wait was a short one.
    last_wait_was_short: AtomicBool,
    /// What its owner counts it by.
    _counted: Option<Arc<dyn Any + Send + Sync>>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("rdma::Connection")
    }
}

impl Connection {
    /// Makes the queue pair of an identifier whose device is known, with all its receives ready. The identifier's
    /// events must come over this channel.
    pub(super) fn prepare(
        identifier: Identifier,
        events: EventChannel,
        domains: &Domains,
    ) -> Result<Connection, RdmaError> {
        let library = identifier.library();
        let context = identifier.context().ok_or(RdmaError::NoDevice(Errno::NODEV))?;
        // SAFETY: the identifier keeps the device open, and is dropped after all that is made here.
        let (domain, sent, received) = unsafe {
            (
                domains.on(library, context)?,
                CompletionQueue::new(library, context, SEND_QUEUE as i32)?,
                CompletionQueue::new(library, context, MESSAGES as i32)?,
            )
        };
        let bytes = MESSAGES * MESSAGE_BYTES;
        let inbox = Buffer::new(&domain.protection, bytes, Access::Receive)?;
        let outbox = Buffer::new(&domain.protection, bytes, Access::Send)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|source| RdmaError::Call { what: "making an event descriptor", source })?;
        let mut connection = Connection {
            library,
            alive: Mutex::new(false),
            sent,
            received,
            inbox,
            outbox,
            domain,
            end: CmEnd::new(identifier, events),
            wake,
            inline_bytes: 0,
            closed: AtomicBool::new(false),
            revoked: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            last_wait_was_short: AtomicBool::new(false),
            _counted: None,
        };
        connection.inline_bytes = match connection.make_queue_pair(INLINE_BYTES) {
            Ok(()) => INLINE_BYTES,
            // An adapter that has no room for that in its requests has none at all.
            Err(_) => connection.make_queue_pair(0).map(|()| 0)?,
        };
        (0..MESSAGES).try_for_each(|slot| connection.ready(slot))?;
        Ok(connection)
    }

    /// Keeps this as long as it lives.
    pub(super) fn count_by(&mut self, counted: Option<Arc<dyn Any + Send + Sync>>) {
        self._counted = counted;
    }

    fn make_queue_pair(&self, inline_bytes: u32) -> Result<(), RdmaError> {
        let mut wanted = QpInitAttr {
            qp_context: std::ptr::null_mut(),
            send_cq: self.sent.pointer(),
            recv_cq: self.received.pointer(),
            srq: std::ptr::null_mut(),
            cap: QpCap {
                max_send_wr: SEND_QUEUE as u32,
                max_recv_wr: MESSAGES as u32,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: inline_bytes,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        let mut alive = self.alive.lock();
        let protection = self.domain.protection.pointer();
        // SAFETY: identifier, domain and queues are alive and on one device; the attributes are read during the call.
        check("making a queue pair", unsafe {
            (self.library.cm.rdma_create_qp)(self.identifier().pointer(), protection, &mut wanted)
        })?;
        *alive = true;
        Ok(())
    }

    pub(super) fn identifier(&self) -> &Identifier {
        self.end.identifier()
    }

    /// Whether the connection manager can send anything: it must not be made to while the port is down (see `release`).
    pub(super) fn check_port(&self) -> Result<(), RdmaError> {
        let failed = RdmaError::Call { what: "reaching the peer", source: Errno::NETDOWN };
        if self.end.port_is_up() { Ok(()) } else { Err(failed) }
    }

    pub(super) fn events(&self) -> &EventChannel {
        self.end.events()
    }

    /// Parameters of a connection with this much to say in its request or answer.
    pub(super) fn parameters(data: &[u8]) -> Result<ConnParam, RdmaError> {
        let length = u8::try_from(data.len()).map_err(|_| RdmaError::Rules("a greeting is too long"))?;
        Ok(ConnParam {
            private_data: data.as_ptr().cast(),
            private_data_len: length,
            // Nothing is ever read by RDMA.
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: 1,
            retry_count: 7,
            // Each side has receives ready for all that the other may send, so that this never comes to pass.
            rnr_retry_count: 7,
            srq: 0,
            qp_num: 0,
        })
    }

    /// Calls the library with the queue pair, if it is still there.
    fn with_queue_pair(
        &self,
        what: &'static str,
        call: impl FnOnce(NonNull<Qp>) -> Option<i32>,
    ) -> Result<(), RdmaError> {
        let alive = self.alive.lock();
        // SAFETY: the identifier is alive; its queue pair does not go while the lock is held.
        let pair = NonNull::new(unsafe { (*self.identifier().pointer()).qp });
        let (true, Some(pair)) = (*alive, pair) else { return Err(self.closed_here()) };
        match call(pair) {
            Some(0) => Ok(()),
            Some(code) => Err(RdmaError::Call { what, source: errno(code) }),
            None => Err(RdmaError::Call { what, source: Errno::NOSYS }),
        }
    }

    /// Makes a slot ready to receive a message.
    pub(super) fn ready(&self, slot: usize) -> Result<(), RdmaError> {
        let mut piece = Sge {
            addr: self.inbox.address() + (slot * MESSAGE_BYTES) as u64,
            length: MESSAGE_BYTES as u32,
            lkey: self.inbox.local_key(),
        };
        let mut work =
            RecvWr { wr_id: slot as u64, next: std::ptr::null_mut(), sg_list: &mut piece, num_sge: 1 };
        let mut bad = std::ptr::null_mut();
        self.with_queue_pair("making a message slot ready", |pair| {
            // SAFETY: the pair is alive under the lock; the work and what it points to are read during the call; the
            // slot lies in the inbox, which lives until the pair is destroyed.
            unsafe {
                (*(*pair.as_ptr()).context).ops.post_recv.map(|post| post(pair.as_ptr(), &mut work, &mut bad))
            }
        })
    }

    /// Begins RDMA WRITEs, and then the message in the slot. Only the message makes a completion, with this number; by
    /// then the writes are done too.
    pub(super) fn post(
        &self,
        writes: &[RdmaWrite],
        slot: usize,
        message: &[u8],
        number: u64,
    ) -> Result<(), RdmaError> {
        if message.len() > MESSAGE_BYTES || !self.outbox.put(slot * MESSAGE_BYTES, message) {
            return Err(RdmaError::Rules("a message is too long"));
        }
        let piece = |write: &RdmaWrite| Sge { addr: write.from, length: write.length, lkey: write.local_key };
        let last = Sge {
            addr: self.outbox.address() + (slot * MESSAGE_BYTES) as u64,
            length: message.len() as u32,
            lkey: self.outbox.local_key(),
        };
        let mut pieces: Vec<Sge> = writes.iter().map(piece).chain([last]).collect();
        let write = |write: &RdmaWrite| work(number, IBV_WR_RDMA_WRITE, 0, (write.to, write.remote_key));
        let send = work(number, IBV_WR_SEND, IBV_SEND_SIGNALED | self.inline(last.length), (0, 0));
        let mut works: Vec<SendWr> = writes.iter().map(write).chain([send]).collect();
        self.post_all(&mut works, &mut pieces)
    }

    /// Begins one RDMA WRITE that notifies the peer: `immediate` makes a completion there, and takes a slot.
    /// It makes one here too, with this number, if it is `signaled`; whatever was begun before it is done by then. Not
    /// every adapter can ([`Connection::notifies_of_writes`]).
    pub(super) fn post_write_with_immediate(
        &self,
        write: &RdmaWrite,
        immediate: u32,
        number: u64,
        signaled: bool,
    ) -> Result<(), RdmaError> {
        let flags = self.inline(write.length) | if signaled { IBV_SEND_SIGNALED } else { 0 };
        let mut request = work(number, IBV_WR_RDMA_WRITE_WITH_IMM, flags, (write.to, write.remote_key));
        request.imm_data = immediate.to_be();
        let piece = Sge { addr: write.from, length: write.length, lkey: write.local_key };
        self.post_all(&mut [request], &mut [piece])
    }

    /// False on iWARP, whose WRITEs make no completion at the peer; its adapters are never connected with others.
    pub(super) fn notifies_of_writes(&self) -> bool {
        let Some(context) = self.identifier().context() else { return false };
        // SAFETY: the identifier keeps the device open, and what it is never changes.
        unsafe { (*(*context.as_ptr()).device).transport_type != IBV_TRANSPORT_IWARP }
    }

    /// The immediate of the WRITE that a completion is of; `None` if it is of a message.
    pub(super) fn immediate_of(done: &Wc) -> Option<u32> {
        (done.wc_flags & IBV_WC_WITH_IMM != 0).then(|| u32::from_be(done.imm_data))
    }

    fn inline(&self, length: u32) -> u32 {
        if length <= self.inline_bytes { IBV_SEND_INLINE } else { 0 }
    }

    /// Gives works to the adapter, each with its piece of this side's memory.
    fn post_all(&self, works: &mut [SendWr], pieces: &mut [Sge]) -> Result<(), RdmaError> {
        // One list for all of them, from the last to the first: the adapter is called once.
        let mut first = std::ptr::null_mut();
        for (work, piece) in works.iter_mut().zip(pieces).rev() {
            (work.sg_list, work.next) = (piece, first);
            first = work;
        }
        let mut bad = std::ptr::null_mut();
        self.with_queue_pair("sending", |pair| {
            // SAFETY: the pair is alive under the lock. The works and pieces that the list goes through are borrowed
            // until the end of this function, so no other code uses them. They are read during the call. The memory
            // that they name is registered, and the caller keeps the registration until the completion.
            unsafe {
                (*(*pair.as_ptr()).context).ops.post_send.map(|post| post(pair.as_ptr(), first, &mut bad))
            }
        })
    }

    /// Bytes of a message that came into a slot. Of a WRITE there are none, and what lies in the slot is an older
    /// message.
    pub(super) fn message(&self, done: &Wc, bytes: &mut Vec<u8>) -> Result<(), RdmaError> {
        if Self::immediate_of(done).is_some() {
            return Err(RdmaError::Rules("a write where a message was to come"));
        }
        let length = done.byte_len as usize;
        bytes.resize(length.min(MESSAGE_BYTES), 0);
        let slot = usize::try_from(done.wr_id).unwrap_or(usize::MAX);
        match length <= MESSAGE_BYTES && self.inbox.get(slot.saturating_mul(MESSAGE_BYTES), bytes) {
            true => Ok(()),
            false => Err(RdmaError::Rules("a message is longer than its slot")),
        }
    }

    /// What a completion says.
    pub(super) fn judge(&self, what: &'static str, done: &Wc) -> Result<(), RdmaError> {
        match done.status {
            IBV_WC_SUCCESS => Ok(()),
            IBV_WC_WR_FLUSH_ERR if self.is_closed() => Err(self.closed_here()),
            IBV_WC_WR_FLUSH_ERR => Err(RdmaError::PeerClosed),
            IBV_WC_REM_ACCESS_ERR => Err(RdmaError::RemoteAccess),
            IBV_WC_RETRY_EXC_ERR => Err(RdmaError::Silent { retries: self.library.status_text(done.status) }),
            status => Err(RdmaError::Completion {
                what,
                status: self.library.status_text(status),
                vendor: done.vendor_err,
            }),
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Why this side closed it.
    fn closed_here(&self) -> RdmaError {
        if self.revoked.load(Ordering::SeqCst) { RdmaError::Revoked } else { RdmaError::ClosedHere }
    }

    /// Takes completions, waiting for them if there are none. None after the wait is no error; the end of the
    /// connection is one, but only when everything that came before it was taken.
    pub(super) fn completions(
        &self,
        queue: &CompletionQueue,
        out: &mut [Wc; POLL_BATCH],
        wait: Duration,
    ) -> Result<usize, RdmaError> {
        self.completions_looked_for(queue, out, wait, SPIN)
    }

    /// The same, with another limit for looking before it sleeps.
    pub(super) fn completions_looked_for(
        &self,
        queue: &CompletionQueue,
        out: &mut [Wc; POLL_BATCH],
        wait: Duration,
        spin: Duration,
    ) -> Result<usize, RdmaError> {
        let mut waiting = Waiting { spin, ..self.waiting(queue, wait) };
        loop {
            // Looked at before the queue, so that what came before the end is taken first.
            let end = self.end_reason();
            let found = if waiting.looks() { look(queue, out)? } else { queue.poll(out)? };
            if found > 0 {
                waiting.found();
                return Ok(found);
            }
            if let Some(end) = end {
                return Err(end);
            }
            if !waiting.again()? {
                return Ok(0);
            }
        }
    }

    /// For callers that poll a queue until something is in it.
    pub(super) fn waiting<'a>(&'a self, queue: &'a CompletionQueue, wait: Duration) -> Waiting<'a> {
        Waiting { connection: self, queue, wait, spin: SPIN, begun: None, armed: false }
    }

    /// Why nothing more comes than what is in the queues.
    pub(super) fn end_reason(&self) -> Option<RdmaError> {
        match self.is_closed() {
            true => Some(self.closed_here()),
            false => self.gone.load(Ordering::SeqCst).then_some(RdmaError::PeerClosed),
        }
    }

    /// Sleeps until something comes. Takes what the connection manager has to say.
    fn sleep(&self, queue: &CompletionQueue, wait: Duration) -> Result<(), RdmaError> {
        let mut fds = [
            PollFd::from_borrowed_fd(self.events().descriptor(), PollFlags::IN),
            PollFd::from_borrowed_fd(queue.descriptor(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN),
        ];
        poll(&mut fds, wait)?;
        queue.take_events();
        if fds.first().is_none_or(|events| events.revents().is_empty()) {
            return Ok(());
        }
        self.receive()
    }

    /// Whether the peer has closed, for those who do not wait for completions.
    pub(super) fn is_gone(&self) -> Result<bool, RdmaError> {
        let mut fds = [PollFd::from_borrowed_fd(self.events().descriptor(), PollFlags::IN)];
        poll(&mut fds, Duration::ZERO)?;
        if fds.iter().any(|events| !events.revents().is_empty()) {
            self.receive()?;
        }
        Ok(self.gone.load(Ordering::SeqCst))
    }

    fn receive(&self) -> Result<(), RdmaError> {
        while let Some(event) = self.events().next()? {
            match event.kind {
                // Of a bond: its address has gone over to another port, and packets leave by the old one.
                RDMA_CM_EVENT_DEVICE_REMOVAL | RDMA_CM_EVENT_ADDR_CHANGE => {
                    return Err(RdmaError::DeviceGone);
                }
                RDMA_CM_EVENT_DISCONNECTED => self.gone.store(true, Ordering::SeqCst),
                other => tracing::trace!(other, "an event of a connection"),
            }
        }
        Ok(())
    }

    /// Ends the connection from any thread because the peer's host was revoked. When it returns, nothing is written or
    /// read over it any more. One that this side has closed before keeps its reason.
    pub fn end_revoked(&self) {
        // First: whoever finds it closed reads why.
        if !self.is_closed() {
            self.revoked.store(true, Ordering::SeqCst);
        }
        self.end();
    }

    /// Ends the connection from any thread. When it returns the queue pair is destroyed: nothing is written into this
    /// host's memory over it any more, and nothing is read from it.
    pub(super) fn end(&self) {
        self.closed.store(true, Ordering::SeqCst);
        {
            let mut alive = self.alive.lock();
            if std::mem::replace(&mut *alive, false) {
                // SAFETY: identifier and pair are alive; the pair is destroyed once, under the lock that all its users
                // take. Disconnecting notifies the peer where that is possible; it fails only where there is no
                // connection.
                unsafe {
                    if self.end.port_is_up() {
                        (self.library.cm.rdma_disconnect)(self.identifier().pointer());
                    }
                    (self.library.cm.rdma_destroy_qp)(self.identifier().pointer());
                }
            }
        }
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// A wait for completions, which another thread takes out of the queue: look, [`again`](Waiting::again), look, and so
/// on.
pub(super) struct Waiting<'a> {
    connection: &'a Connection,
    queue: &'a CompletionQueue,
    wait: Duration,
    spin: Duration,
    /// Not asked for what is there already: on some machines the clock is dear.
    begun: Option<Instant>,
    /// The queue was asked for an event, and not looked into since.
    armed: bool,
}

impl Waiting<'_> {
    /// It was worth while to look, or was not: the next wait on this connection goes by it.
    pub(super) fn found(&self) {
        let last_wait_was_short = self.begun.is_none_or(|begun| begun.elapsed() < self.spin);
        self.connection.last_wait_was_short.store(last_wait_was_short, Ordering::Relaxed);
    }

    /// Whether it is before its first sleep, and the last wait was short.
    fn looks(&self) -> bool {
        self.begun.is_some() && !self.armed && self.connection.last_wait_was_short.load(Ordering::Relaxed)
    }

    /// Lets some time pass, after a look that found nothing: look again, unless this says that the wait is over. What
    /// comes between that look and the sleep is not missed: the queue is asked for an event, looked into once more, and
    /// only then waited for.
    pub(super) fn again(&mut self) -> Result<bool, RdmaError> {
        let waited = self.begun.get_or_insert_with(Instant::now).elapsed();
        if waited >= self.wait {
            return Ok(false);
        }
        if self.armed {
            self.connection.sleep(self.queue, self.wait - waited)?;
            self.armed = false;
        } else if self.connection.last_wait_was_short.load(Ordering::Relaxed) && waited < self.spin {
            // An adapter in software may need this CPU to bring what is looked for.
            if waited >= SPIN {
                std::thread::yield_now();
            }
        } else {
            self.queue.arm()?;
            self.armed = true;
        }
        Ok(true)
    }
}

/// Looks for completions some times, without asking for the time.
fn look(queue: &CompletionQueue, out: &mut [Wc; POLL_BATCH]) -> Result<usize, RdmaError> {
    for _ in 0..LOOKS {
        let found = queue.poll(out)?;
        if found > 0 {
            return Ok(found);
        }
    }
    Ok(0)
}

/// A work request without memory of this side, not yet linked to another.
fn work(number: u64, opcode: u32, send_flags: u32, (remote_addr, rkey): (u64, u32)) -> SendWr {
    SendWr {
        wr_id: number,
        next: std::ptr::null_mut(),
        sg_list: std::ptr::null_mut(),
        num_sge: 1,
        opcode,
        send_flags,
        imm_data: 0,
        remote_addr,
        rkey,
        unused: [0; 19],
    }
}

impl RemoteWriter for Connection {
    fn stop(&self) {
        self.end();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.end();
    }
}
