//! Tunnels: sockets in at this host and out at another.

use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ErrorBody;

/// A socket on one host: `unix:/PATH` or `tcp:127.0.0.1:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum TunnelAddress {
    /// A UNIX socket. A path that ends in `/` names all sockets in that folder, where that makes sense.
    Unix(PathBuf),
    /// A TCP port on a loopback address.
    Tcp(SocketAddr),
}

/// Why a text is no socket of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelAddressError {
    /// Neither `unix:` nor `tcp:`.
    Kind,
    /// Not an absolute path, or one with `..`.
    Path,
    /// It is not an `ADDRESS:PORT`.
    Address,
    /// Not a loopback address.
    NotLoopback,
}

impl std::error::Error for TunnelAddressError {}

impl std::fmt::Display for TunnelAddressError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            TunnelAddressError::Kind => "write unix:/PATH or tcp:127.0.0.1:PORT",
            TunnelAddressError::Path => "a UNIX socket needs an absolute path without `..`",
            TunnelAddressError::Address => "a TCP socket is written ADDRESS:PORT, such as 127.0.0.1:4444",
            TunnelAddressError::NotLoopback => {
                "only loopback addresses (127.0.0.1, ::1) can be used: a tunnel does not open a host to its network"
            }
        })
    }
}

impl FromStr for TunnelAddress {
    type Err = TunnelAddressError;

    fn from_str(text: &str) -> Result<TunnelAddress, TunnelAddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            let steps_up = Path::new(path).components().any(|part| part == Component::ParentDir);
            let good = path.starts_with('/') && !steps_up && !path.contains('\0');
            return if good { Ok(TunnelAddress::Unix(path.into())) } else { Err(TunnelAddressError::Path) };
        }
        let address = text.strip_prefix("tcp:").ok_or(TunnelAddressError::Kind)?;
        let address: SocketAddr = address.parse().map_err(|_| TunnelAddressError::Address)?;
        if address.ip().is_loopback() {
            Ok(TunnelAddress::Tcp(address))
        } else {
            Err(TunnelAddressError::NotLoopback)
        }
    }
}

impl std::fmt::Display for TunnelAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TunnelAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            TunnelAddress::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

impl TryFrom<String> for TunnelAddress {
    type Error = TunnelAddressError;

    fn try_from(text: String) -> Result<TunnelAddress, TunnelAddressError> {
        text.parse()
    }
}

impl From<TunnelAddress> for String {
    fn from(address: TunnelAddress) -> String {
        address.to_string()
    }
}

impl TunnelAddress {
    /// The folder whose sockets an entry of a list names, if it does not name a single one.
    pub fn folder(&self) -> Option<&Path> {
        match self {
            TunnelAddress::Unix(path) if path.as_os_str().as_encoded_bytes().ends_with(b"/") => Some(path),
            _ => None,
        }
    }

    /// Whether this, as an entry of a list, allows connecting to `wanted`: the same socket, or one in the folder.
    pub fn allows(&self, wanted: &TunnelAddress) -> bool {
        match (self.folder(), wanted) {
            (Some(folder), TunnelAddress::Unix(path)) => {
                path.parent() == Some(folder) && path.file_name().is_some()
            }
            _ => self == wanted,
        }
    }
}

/// One socket here and where its connections come out there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunnelPair {
    /// Where this host listens. Port 0 lets the system choose.
    pub listen: TunnelAddress,
    /// Where the other host connects to, for each connection here.
    pub connect: TunnelAddress,
    /// Connections wait here until the migration that names the socket lets them in ([`crate::DomainMigration`]); a
    /// UNIX socket.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits: bool,
    /// The one connection here is that by which libvirt drives the migration that names the socket
    /// ([`crate::DomainMigration`]): it waits when it comes and when it ends; a UNIX socket.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drives: bool,
}

/// Makes a tunnel. It is open as long as its event stream is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunnelRequest {
    /// The other host's agent, `HOST` or `HOST:PORT`.
    pub to: String,
    /// What listens here and what it connects to; at least one pair.
    pub pairs: Vec<TunnelPair>,
    /// Networks that links may be in; empty: all.
    #[serde(default)]
    pub links: Vec<String>,
    /// How long all links may be gone before the tunnel ends, seconds; at most 120.
    #[serde(default = "default_link_timeout_s")]
    pub link_timeout_s: u32,
}

fn default_link_timeout_s() -> u32 {
    30
}

/// What happens to a tunnel, one document a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum TunnelEvent {
    /// Connections are taken from now on, at these sockets, in the order of the request, and wait at those that wait.
    Ready {
        /// With the ports that the system chose.
        listen: Vec<TunnelAddress>,
    },
    /// A link carries data now.
    LinkUp {
        /// The link's two ports, as people read it.
        link: String,
    },
    /// A link was lost; streams go on over the others, or wait for one.
    LinkLost {
        /// The link's two ports, as people read it.
        link: String,
        /// A sentence: what caused it.
        reason: String,
    },
    /// A connection was not taken at the other host, and was reset here.
    Refused {
        /// A sentence: what caused it.
        reason: String,
    },
    /// Something that the operator should know.
    Warning {
        /// What is wrong, for the operator to read.
        text: String,
    },
    /// It is over; nothing comes after it.
    Ended {
        /// What ended the tunnel.
        error: ErrorBody,
    },
    /// From a newer agent.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> TunnelAddress {
        text.parse().unwrap()
    }

    #[test]
    fn what_is_no_local_socket_is_refused_with_a_reason() {
        for (text, error) in [
            ("/run/x.sock", TunnelAddressError::Kind),
            ("unix:x.sock", TunnelAddressError::Path),
            ("unix:/run/../etc/x", TunnelAddressError::Path),
            ("tcp:4444", TunnelAddressError::Address),
            ("tcp:10.0.0.1:4444", TunnelAddressError::NotLoopback),
            ("tcp:0.0.0.0:4444", TunnelAddressError::NotLoopback),
        ] {
            assert_eq!(text.parse::<TunnelAddress>(), Err(error), "{text}");
        }
        for text in ["unix:/run/x.sock", "tcp:127.0.0.1:0", "tcp:[::1]:4444"] {
            assert_eq!(address(text).to_string(), text);
        }
    }

    #[test]
    fn an_entry_allows_itself_or_what_is_in_its_folder() {
        let folder = address("unix:/run/vm/");
        assert!(folder.allows(&address("unix:/run/vm/a.sock")));
        for other in ["unix:/run/vm/sub/a.sock", "unix:/run/vm", "unix:/run/vm2/a", "tcp:127.0.0.1:1"] {
            assert!(!folder.allows(&address(other)), "{other}");
        }
        assert!(address("tcp:127.0.0.1:9").allows(&address("tcp:127.0.0.1:9")));
        assert!(!address("tcp:127.0.0.1:9").allows(&address("tcp:127.0.0.1:90")));
    }
}
