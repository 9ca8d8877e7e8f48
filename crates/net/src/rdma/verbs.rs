//! Protection domains, registered memory and completion queues, each released by its drop.

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::io::Errno;

use super::abi::{CompChannel, Context, Cq, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, Mr, Pd, Wc};
use super::error::{RdmaError, errno, last_errno};
use super::library::Library;

/// Completions taken out of a queue at a time.
pub(super) const POLL_BATCH: usize = 16;

/// What memory and queues must share to work together.
pub(super) struct ProtectionDomain {
    library: &'static Library,
    pd: NonNull<Pd>,
}

// SAFETY: libibverbs is thread-safe; the domain has no owner thread.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// # Safety
    /// `context` must be an open device, and stay open for as long as the domain and all that is made in it lives.
    pub(super) unsafe fn new(
        library: &'static Library,
        context: NonNull<Context>,
    ) -> Result<ProtectionDomain, RdmaError> {
        // SAFETY: the caller guarantees the device.
        let pd = unsafe { (library.verbs.ibv_alloc_pd)(context.as_ptr()) };
        let pd = NonNull::new(pd)
            .ok_or_else(|| RdmaError::Call { what: "making a protection domain", source: last_errno() })?;
        Ok(ProtectionDomain { library, pd })
    }

    pub(super) fn pointer(&self) -> *mut Pd {
        self.pd.as_ptr()
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`, released once; memory and queues hold the domain, so none of them is left.
        unsafe { (self.library.verbs.ibv_dealloc_pd)(self.pd.as_ptr()) };
    }
}

/// Memory that an adapter may read, or write to as well. Its pages are locked until it is dropped.
pub(super) struct Registration {
    domain: Arc<ProtectionDomain>,
    mr: NonNull<Mr>,
}

// SAFETY: as for the domain; the structure is only read.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

/// Who may use registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Access {
    /// Our own adapter reads it.
    Send,
    /// Our own adapter writes what comes into it.
    Receive,
    /// A peer that has the key writes into it.
    RemoteWrite,
}

impl Registration {
    /// # Safety
    /// `length` bytes at `address` must be a mapping of shared memory that devices may write at
    /// any time; for [`Access::Send`], that they may read. Nothing in this process may rely on their content.
    pub(super) unsafe fn new(
        domain: &Arc<ProtectionDomain>,
        address: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<Registration, RdmaError> {
        let flags = match access {
            Access::Send => 0,
            Access::Receive => IBV_ACCESS_LOCAL_WRITE,
            Access::RemoteWrite => IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
        };
        let start: *mut c_void = address.as_ptr().cast();
        // SAFETY: the domain is alive; the caller guarantees the memory. The kernel checks the range and locks the
        // pages, so that they stay what the adapter writes to even if the mapping goes first.
        let mr = unsafe { (domain.library.verbs.ibv_reg_mr)(domain.pointer(), start, length, flags) };
        let mr = NonNull::new(mr)
            .ok_or_else(|| RdmaError::Register { bytes: length as u64, source: last_errno() })?;
        Ok(Registration { domain: Arc::clone(domain), mr })
    }

    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: alive until the drop, and never changed after it was made.
        unsafe { self.mr.as_ref().lkey }
    }

    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.mr.as_ref().rkey }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: made by `new`, released once, while its domain lives.
        unsafe { (self.domain.library.verbs.ibv_dereg_mr)(self.mr.as_ptr()) };
    }
}

/// A queue of completions with a descriptor to wait on.
pub(super) struct CompletionQueue {
    library: &'static Library,
    cq: NonNull<Cq>,
    channel: NonNull<CompChannel>,
}

// SAFETY: providers lock their queues; polling from several threads is allowed.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// # Safety
    /// As for [`ProtectionDomain::new`].
    pub(super) unsafe fn new(
        library: &'static Library,
        context: NonNull<Context>,
        entries: i32,
    ) -> Result<CompletionQueue, RdmaError> {
        let failed = || RdmaError::Call { what: "making a completion queue", source: last_errno() };
        // SAFETY: the caller guarantees the device.
        let channel = unsafe { (library.verbs.ibv_create_comp_channel)(context.as_ptr()) };
        let channel = NonNull::new(channel).ok_or_else(failed)?;
        // SAFETY: device and channel are alive; completion vector 0 is there on every device.
        let cq = unsafe {
            (library.verbs.ibv_create_cq)(
                context.as_ptr(),
                entries,
                std::ptr::null_mut(),
                channel.as_ptr(),
                0,
            )
        };
        let Some(cq) = NonNull::new(cq) else {
            let error = failed();
            // SAFETY: made above, and nothing uses it.
            unsafe { (library.verbs.ibv_destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let queue = CompletionQueue { library, cq, channel };
        rustix::io::ioctl_fionbio(queue.descriptor(), true)
            .map_err(|source| RdmaError::Call { what: "making a completion channel", source })?;
        Ok(queue)
    }

    pub(super) fn pointer(&self) -> *mut Cq {
        self.cq.as_ptr()
    }

    /// Readable when there is an event for an armed queue.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive until the drop and holds the descriptor open.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// Takes what is there.
    pub(super) fn poll(&self, out: &mut [Wc; POLL_BATCH]) -> Result<usize, RdmaError> {
        let missing = RdmaError::Call { what: "polling a completion queue", source: Errno::NOSYS };
        // SAFETY: the queue and its device are alive; the table of functions is set when a device is opened.
        let poll = unsafe { (*(*self.cq.as_ptr()).context).ops.poll_cq }.ok_or(missing)?;
        // SAFETY: `out` has room for as many as are asked for.
        let found = unsafe { poll(self.cq.as_ptr(), POLL_BATCH as i32, out.as_mut_ptr()) };
        usize::try_from(found)
            .map_err(|_| RdmaError::Call { what: "polling a completion queue", source: Errno::IO })
    }

    /// Asks for an event at the next completion. One that came before the call makes none: poll once more after it.
    pub(super) fn arm(&self) -> Result<(), RdmaError> {
        let missing = RdmaError::Call { what: "arming a completion queue", source: Errno::NOSYS };
        // SAFETY: as in `poll`.
        let arm = unsafe { (*(*self.cq.as_ptr()).context).ops.req_notify_cq }.ok_or(missing)?;
        // SAFETY: the queue is alive.
        match unsafe { arm(self.cq.as_ptr(), 0) } {
            0 => Ok(()),
            code => Err(RdmaError::Call { what: "arming a completion queue", source: errno(code) }),
        }
    }

    /// Takes the events that the descriptor was readable for.
    pub(super) fn take_events(&self) {
        let (mut cq, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel is alive and does not block; the two places are ours.
        while unsafe { (self.library.verbs.ibv_get_cq_event)(self.channel.as_ptr(), &mut cq, &mut context) }
            == 0
        {
            // SAFETY: the only queue of this channel is ours, and it is alive.
            unsafe { (self.library.verbs.ibv_ack_cq_events)(self.cq.as_ptr(), 1) };
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: both were made by `new` and are released once, the queue before its channel. All events were
        // acknowledged when they were taken, and the queue pair that used it is destroyed before (see `Connection`).
        unsafe {
            (self.library.verbs.ibv_destroy_cq)(self.cq.as_ptr());
            (self.library.verbs.ibv_destroy_comp_channel)(self.channel.as_ptr());
        }
    }
}
