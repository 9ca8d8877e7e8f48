//! Requests to the kernel over netlink, and its answers.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use thiserror::Error;

use crate::socket::wait_readable;

/// The kernel answers from its own tables, so this is never reached unless it is stuck.
const ANSWER_WAIT: Duration = Duration::from_secs(2);

/// The kernel cuts its dumps into datagrams of at most 32 KiB.
const DATAGRAM_BYTES: usize = 64 << 10;

/// The kernel's answer has not what was asked for.
#[derive(Debug, Error)]
pub enum NetlinkError {
    /// No netlink socket could be had.
    #[error("no netlink socket: {0}; the agent needs access to the network configuration of its host")]
    Open(#[source] io::Error),
    #[error("asking the kernel over netlink failed: {0}")]
    Request(#[source] io::Error),
    #[error("the kernel refused a netlink request: {0}")]
    Refused(#[source] io::Error),
    /// The answer was not understood.
    #[error("the kernel's netlink answer could not be decoded: {0}")]
    Decode(#[source] netlink_packet_core::DecodeError),
    #[error("the kernel did not answer a netlink request within 2 s")]
    NoAnswer,
    /// A watcher thread could not be started.
    #[error("cannot start a thread for the interface watcher: {0}")]
    Thread(#[source] io::Error),
}

/// Opens a socket of the protocol, bound, non-blocking, subscribed to the multicast groups in the bit mask.
pub fn open(protocol: isize, groups: u32) -> Result<Socket, NetlinkError> {
    let mut socket = Socket::new(protocol).map_err(NetlinkError::Open)?;
    socket.bind(&SocketAddr::new(0, groups)).map_err(NetlinkError::Open)?;
    socket.set_non_blocking(true).map_err(NetlinkError::Open)?;
    Ok(socket)
}

/// Waits for one datagram. `Ok(None)` when the time is over.
pub fn receive(socket: &Socket, wait: Duration) -> Result<Option<Vec<u8>>, NetlinkError> {
    let deadline = Instant::now() + wait;
    loop {
        let mut buffer = vec![0; DATAGRAM_BYTES];
        match rustix::net::recv(socket.as_fd(), &mut buffer[..], RecvFlags::DONTWAIT) {
            Ok((bytes, _)) => {
                buffer.truncate(bytes);
                return Ok(Some(buffer));
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(NetlinkError::Request(error.into())),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || !wait_readable(socket.as_fd(), left).map_err(NetlinkError::Request)? {
            return Ok(None);
        }
    }
}

/// Asks for a whole table and gives every entry to `each`.
pub fn dump(
    request: RouteNetlinkMessage,
    mut each: impl FnMut(RouteNetlinkMessage),
) -> Result<(), NetlinkError> {
    let socket = open(NETLINK_ROUTE, 0)?;
    let mut message = NetlinkMessage::from(request);
    message.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    message.header.sequence_number = 1;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send_to(&bytes, &SocketAddr::new(0, 0), 0).map_err(NetlinkError::Request)?;
    loop {
        let datagram = receive(&socket, ANSWER_WAIT)?.ok_or(NetlinkError::NoAnswer)?;
        for message in decode(&datagram)? {
            match message.payload {
                NetlinkPayload::Done(_) => return Ok(()),
                NetlinkPayload::Error(error) if error.code.is_some() => {
                    return Err(NetlinkError::Refused(error.to_io()));
                }
                NetlinkPayload::InnerMessage(inner) => each(inner),
                _ => {}
            }
        }
    }
}

/// All messages of one datagram.
pub(crate) fn decode(datagram: &[u8]) -> Result<Vec<NetlinkMessage<RouteNetlinkMessage>>, NetlinkError> {
    let mut messages = Vec::new();
    let mut rest = datagram;
    while !rest.is_empty() {
        let message = NetlinkMessage::deserialize(rest).map_err(NetlinkError::Decode)?;
        // Messages are padded to four bytes; a length of nothing would never end.
        let length = (message.header.length as usize).next_multiple_of(4).max(16);
        messages.push(message);
        rest = rest.get(length..).unwrap_or_default();
    }
    Ok(messages)
}
