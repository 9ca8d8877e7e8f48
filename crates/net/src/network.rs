//! Networks in CIDR notation, as an operator names them to narrow the choice of links.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use thiserror::Error;

/// A network: an address and the length of its prefix.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

/// Why a text is not a network.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NetworkError {
    /// The part before the slash is no address.
    #[error("{0:?} is not an IP address; write networks like 10.1.0.0/16")]
    Address(String),
    /// The part behind the slash is no number.
    #[error("{0:?} is not a prefix length; write networks like 10.1.0.0/16")]
    Prefix(String),
    /// The prefix is longer than the address.
    #[error("a prefix of {prefix} bits is longer than the address {address}")]
    TooLong {
        address: IpAddr,
        /// The prefix length given, bits.
        prefix: u8,
    },
}

impl Network {
    /// The network of an address; the bits behind the prefix do not matter.
    pub fn new(address: IpAddr, prefix: u8) -> Result<Network, NetworkError> {
        if prefix > address_bits(address) {
            return Err(NetworkError::TooLong { address, prefix });
        }
        Ok(Network { address, prefix })
    }

    /// The address it was made from.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Whether the address is in this network. Never across families.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let behind = u32::from(address_bits(self.address) - self.prefix);
        match (self.address, ip) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                own.to_bits().checked_shr(behind) == other.to_bits().checked_shr(behind)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                own.to_bits().checked_shr(behind) == other.to_bits().checked_shr(behind)
            }
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Network, NetworkError> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NetworkError::Address(address.to_owned()))?;
        let prefix = match prefix {
            Some(text) => text.parse().map_err(|_| NetworkError::Prefix(text.to_owned()))?,
            None => address_bits(address),
        };
        Network::new(address, prefix)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Networks from a list with commas between, as of `--links`.
pub fn parse_networks(text: &str) -> Result<Vec<Network>, NetworkError> {
    text.split(',').map(str::trim).filter(|one| !one.is_empty()).map(str::parse).collect()
}

fn address_bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}
