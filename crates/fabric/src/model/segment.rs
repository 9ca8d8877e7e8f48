//! Networks, and which ports of a room are on the same one.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Address, PortRef};

/// A network: address with all host bits zero, and the length of its prefix. In JSON `10.1.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

impl Network {
    /// The network that an address is in. A prefix that is too long is taken as a single address.
    pub fn of(address: IpAddr, prefix: u8) -> Network {
        match address {
            IpAddr::V4(ip) => {
                let prefix = prefix.min(32);
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
                Network { address: IpAddr::V4((ip.to_bits() & mask).into()), prefix }
            }
            IpAddr::V6(ip) => {
                let prefix = prefix.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
                Network { address: IpAddr::V6((ip.to_bits() & mask).into()), prefix }
            }
        }
    }

    /// Length of the prefix, bits.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Whether the address is in it.
    pub fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.address.is_ipv4() && Network::of(ip, self.prefix).address == self.address
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl From<Network> for String {
    fn from(network: Network) -> String {
        network.to_string()
    }
}

/// A text that is no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no network; write networks like 10.1.0.0/16")]
pub struct NotANetwork(String);

impl FromStr for Network {
    type Err = NotANetwork;

    fn from_str(text: &str) -> Result<Network, NotANetwork> {
        let parts =
            text.split_once('/').and_then(|(ip, prefix)| Some((ip.parse().ok()?, prefix.parse().ok()?)));
        let (ip, prefix) = parts.ok_or_else(|| NotANetwork(text.to_owned()))?;
        Ok(Network::of(ip, prefix))
    }
}

impl TryFrom<String> for Network {
    type Error = NotANetwork;

    fn try_from(text: String) -> Result<Network, NotANetwork> {
        text.parse()
    }
}

impl Address {
    /// The network that it is in.
    pub fn network(&self) -> Network {
        Network::of(self.ip, self.prefix)
    }

    /// Other hosts can use it: not of the host itself, not only of one cable, not a network of one address.
    pub fn shared(&self) -> bool {
        let whole = if self.ip.is_ipv4() { 32 } else { 128 };
        let link_local = match self.ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        !self.ip.is_loopback() && !link_local && self.prefix < whole
    }
}

/// The ports of a room that are on one network: a migration between two of its hosts can use it as a link.
#[derive(Clone, Debug)]
pub struct Segment<'a> {
    /// The network.
    pub network: Network,
    /// Its ports, at most one entry for each address, in the room's order of hosts.
    pub members: Vec<(PortRef<'a>, IpAddr)>,
}

impl Segment<'_> {
    /// How many hosts are on it.
    pub fn hosts(&self) -> usize {
        let mut names: Vec<&str> = self.members.iter().map(|(at, _)| at.host.host.as_str()).collect();
        names.dedup();
        names.len()
    }
}
