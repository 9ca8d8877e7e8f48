//! What the helper reports to the agent, and how it passes the descriptor.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd, RawFd};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// What failed in the helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Failure {
    /// The thread could not be seized.
    Seize = 1,
    /// The thread did not stop in time.
    NotStopping = 2,
    Ended = 3,
    /// The thread does not run 64-bit code.
    Not64Bit = 4,
    /// Registers or signals could not be read or set.
    Trace = 5,
    /// A system call filter caught the call.
    Sandboxed = 6,
    /// The injected call returned an error.
    Userfaultfd = 7,
    /// The agent could not take the descriptor over: `pidfd_getfd` failed.
    TakeOver = 8,
}

impl Failure {
    const ALL: [Failure; 8] = [
        Failure::Seize,
        Failure::NotStopping,
        Failure::Ended,
        Failure::Not64Bit,
        Failure::Trace,
        Failure::Sandboxed,
        Failure::Userfaultfd,
        Failure::TakeOver,
    ];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Report {
    /// `None` if all went well.
    pub(super) failure: Option<Failure>,
    /// The kernel's error that belongs to the failure.
    pub(super) errno: i32,
    /// Nanoseconds from the interruption to the release of the thread.
    pub(super) stopped_ns: u64,
}

const BYTES: usize = 16;

impl Report {
    fn encode(&self) -> [u8; BYTES] {
        let failure = self.failure.map_or(0, |failure| failure as u32);
        let word = u64::from(failure) | (u64::from(self.errno as u32) << 32);
        let mut out = [0; BYTES];
        let (low, high) = out.split_at_mut(8);
        low.copy_from_slice(&word.to_le_bytes());
        high.copy_from_slice(&self.stopped_ns.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8; BYTES]) -> Option<Report> {
        let (low, high) = bytes.split_at(8);
        let word = u64::from_le_bytes(low.try_into().ok()?);
        let failure = match word as u32 {
            0 => None,
            number => Some(Failure::ALL.into_iter().find(|failure| *failure as u32 == number)?),
        };
        let stopped_ns = u64::from_le_bytes(high.try_into().ok()?);
        Some(Report { failure, errno: (word >> 32) as u32 as i32, stopped_ns })
    }
}

/// Room for one descriptor in a control message, aligned as the kernel wants it.
#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    descriptor: RawFd,
    padding: u32,
}

/// Sends the report, with the descriptor if there is one. Async-signal-safe; a lost agent is no error here.
pub(super) fn send(socket: RawFd, report: &Report, descriptor: Option<RawFd>) {
    let mut bytes = report.encode();
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: BYTES };
    // SAFETY: `msghdr` is numbers and pointers, for which all zero is "none". The control message holds what CMSG_LEN
    // and CMSG_SPACE of one `int` are on 64-bit Linux: a 16-byte header, 4 bytes, 4 bytes of padding. All of it
    // outlives the call.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        let mut control = Control {
            header: libc::cmsghdr {
                cmsg_len: size_of::<libc::cmsghdr>() + size_of::<RawFd>(),
                cmsg_level: libc::SOL_SOCKET,
                cmsg_type: libc::SCM_RIGHTS,
            },
            descriptor: descriptor.unwrap_or(-1),
            padding: 0,
        };
        if descriptor.is_some() {
            message.msg_control = (&raw mut control).cast();
            message.msg_controllen = size_of::<Control>();
        }
        libc::syscall(libc::SYS_sendmsg, socket, &message, libc::MSG_NOSIGNAL);
    }
}

/// The report and its descriptor; `None` if the helper ended without one.
pub(super) fn receive(socket: impl AsFd) -> Option<(Report, Option<OwnedFd>)> {
    let mut bytes = [0; BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut bytes)];
    let received = recvmsg(socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    (received.bytes == BYTES).then(|| Report::decode(&bytes)).flatten().map(|report| (report, descriptor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::AsRawFd;

    #[test]
    fn a_report_and_its_descriptor_arrive() {
        let (left, right) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let file = tempfile::tempfile().unwrap();
        for failure in Failure::ALL.into_iter().map(Some).chain([None]) {
            let report = Report { failure, errno: -7, stopped_ns: u64::MAX };
            let descriptor = failure.is_none().then(|| file.as_raw_fd());
            send(left.as_raw_fd(), &report, descriptor);
            let (got, passed) = receive(&right).unwrap();
            assert_eq!((got, passed.is_some()), (report, descriptor.is_some()));
        }
        drop(left);
        assert!(receive(&right).is_none());
    }
}
