//! Which port the kernel would choose for a destination.

use std::net::IpAddr;

use linerate_net::netlink::NetlinkError;
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::collect::kernel::ask::Asker;
use crate::collect::kernel::attributes::{Attributes, Writer};

const GET_ROUTE: u16 = 26;
/// `struct rtmsg`.
const HEADER_BYTES: usize = 12;
const DESTINATION: u16 = 1;
const SOURCE: u16 = 2;
const OUT_PORT: u16 = 4;

/// Number of the port by which packets from one address to another leave, if nothing binds them to a port.
pub fn leaves_by(from: IpAddr, to: IpAddr) -> Result<Option<u32>, NetlinkError> {
    let answers = Asker::open(NETLINK_ROUTE)?.ask(GET_ROUTE, 0, &request(from, to))?;
    let first = answers.first().and_then(|answer| answer.payload.get(HEADER_BYTES..));
    Ok(first.and_then(|attributes| Attributes::new(attributes).u32(OUT_PORT)))
}

fn request(from: IpAddr, to: IpAddr) -> Vec<u8> {
    let bytes = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let (family, bits) = if to.is_ipv4() { (2, 32) } else { (10, 128) };
    let mut message = vec![family, bits, bits, 0];
    message.resize(HEADER_BYTES, 0);
    message.extend(Writer::new().bytes(DESTINATION, &bytes(to)).bytes(SOURCE, &bytes(from)).finish());
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn to_itself_a_host_sends_by_loopback() {
        let local = [127, 0, 0, 1].into();
        assert_eq!(leaves_by(local, local).unwrap(), Some(1));
    }
}
