//! What the kernel knows of a TCP connection, asked for over sock_diag: the same numbers as `TCP_INFO`.
//!
//! Layouts are those of `linux/inet_diag.h` and `struct tcp_info` in `linux/tcp.h`, which only ever grow at the end.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use netlink_sys::{Socket, SocketAddr as NetlinkAddress, protocols::NETLINK_SOCK_DIAG};
use rustix::net::netdevice::name_to_index;
use socket2::SockRef;

use super::Stream;
use crate::netlink::{open, receive};
use crate::stats::TcpInfo;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const IPPROTO_TCP: u8 = 6;
/// Attribute with `struct tcp_info`, and the bit that asks for it.
const INET_DIAG_INFO: u16 = 2;
const ASK_INFO: u8 = 1 << (INET_DIAG_INFO - 1);
const NETLINK_HEADER_BYTES: usize = 16;
/// `struct inet_diag_msg`, in front of the attributes.
const MESSAGE_BYTES: usize = 72;
const ANSWER_WAIT: Duration = Duration::from_millis(200);

/// Asks about one connection.
pub struct Progress {
    socket: Socket,
    request: Vec<u8>,
}

impl Progress {
    /// `None` if the socket is not TCP, or the kernel has no sock_diag.
    pub fn of(stream: &Stream) -> Option<Progress> {
        let reference = SockRef::from(stream);
        let local = reference.local_addr().ok()?.as_socket()?;
        let remote = reference.peer_addr().ok()?.as_socket()?;
        let device = reference.device().ok()?.and_then(|name| {
            let name = name.strip_suffix(&[0]).unwrap_or(&name);
            name_to_index(stream, std::str::from_utf8(name).ok()?).ok()
        });
        let socket = open(NETLINK_SOCK_DIAG, 0).ok()?;
        Some(Progress { socket, request: request(local, remote, device.unwrap_or(0)) })
    }

    /// The numbers now; `None` if the connection has ended.
    pub fn read(&mut self) -> Option<TcpInfo> {
        self.socket.send_to(&self.request, &NetlinkAddress::new(0, 0), 0).ok()?;
        let answer = receive(&self.socket, ANSWER_WAIT).ok()??;
        parse(&answer)
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Progress")
    }
}

/// The numbers of a connection now, for reports.
pub fn tcp_info(stream: &Stream) -> Option<TcpInfo> {
    Progress::of(stream)?.read()
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2`; addresses and ports in network order, the rest in the host's.
fn request(local: SocketAddr, remote: SocketAddr, device: u32) -> Vec<u8> {
    const BYTES: u32 = NETLINK_HEADER_BYTES as u32 + 56;
    const AF_INET: u8 = 2;
    const AF_INET6: u8 = 10;
    let mut out = Vec::with_capacity(BYTES as usize);
    out.extend(BYTES.to_ne_bytes());
    out.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    out.extend(NLM_F_REQUEST.to_ne_bytes());
    out.extend([0; 8]);
    out.extend([if local.is_ipv4() { AF_INET } else { AF_INET6 }, IPPROTO_TCP, ASK_INFO, 0]);
    out.extend(u32::MAX.to_ne_bytes());
    out.extend(local.port().to_be_bytes());
    out.extend(remote.port().to_be_bytes());
    out.extend(address(local.ip()));
    out.extend(address(remote.ip()));
    out.extend(device.to_ne_bytes());
    // No cookie: the four addresses say which connection.
    out.extend([0xff; 8]);
    out
}

fn address(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V6(v6) => v6.octets(),
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
    }
}

fn parse(answer: &[u8]) -> Option<TcpInfo> {
    let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
    if kind != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    let mut rest = answer.get(NETLINK_HEADER_BYTES + MESSAGE_BYTES..)?;
    loop {
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
        if kind == INET_DIAG_INFO {
            return fields(rest.get(4..length)?);
        }
        rest = rest.get(length.max(4).next_multiple_of(4)..)?;
    }
}

fn fields(info: &[u8]) -> Option<TcpInfo> {
    let word = |at: usize| Some(u32::from_ne_bytes(*info.get(at..)?.first_chunk()?));
    let long = |at: usize| Some(u64::from_ne_bytes(*info.get(at..)?.first_chunk()?));
    Some(TcpInfo {
        segment_bytes: word(16)?,
        rtt: Duration::from_micros(word(68)?.into()),
        congestion_window: word(80)?,
        retransmits: word(100)?,
        bytes_acknowledged: long(120)?,
        // Not there before Linux 4.9, and all ones before the first sample.
        rtt_min: word(148).filter(|least| *least < u32::MAX).map(|least| Duration::from_micros(least.into())),
    })
}
