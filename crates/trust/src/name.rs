//! Names of clusters and hosts, and the URI that names a host in its certificate: `spiffe://CLUSTER/host/NAME`.
//!
//! A name has one spelling, so that two different texts never name the same host. Upper case is refused, not converted.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest name of a cluster or a host in bytes: that of a DNS label (RFC 1035).
pub const NAME_BYTES_MAX: usize = 63;

const SCHEME: &str = "spiffe://";

/// Why a text is no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// No text at all.
    #[error("a name is missing; write 1 to {NAME_BYTES_MAX} characters")]
    Empty,
    /// Its bytes, more than [`NAME_BYTES_MAX`].
    #[error("a name has {0} bytes; at most {NAME_BYTES_MAX} are allowed")]
    Long(usize),
    /// Not one of the allowed characters; the position is counted from 0, in bytes.
    #[error("a name may have a-z, 0-9, '-', '.' and '_'; the character at position {0} is another")]
    Character(usize),
    /// `.`, `-` or `_` at an end.
    #[error("a name begins and ends with a letter or a digit")]
    Edge,
    /// `..` within the name.
    #[error("a name may not have two dots in a row")]
    Dots,
    /// The scheme is missing or another.
    #[error("the name of a host begins with {SCHEME}")]
    Scheme,
    /// The URI's path is not `CLUSTER/host/NAME`.
    #[error("the name of a host is {SCHEME}CLUSTER/host/NAME")]
    Path,
}

fn check(text: &str) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty);
    }
    if text.len() > NAME_BYTES_MAX {
        return Err(NameError::Long(text.len()));
    }
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let allowed = |byte: u8| letter(byte) || b"-._".contains(&byte);
    if let Some(position) = text.bytes().position(|byte| !allowed(byte)) {
        return Err(NameError::Character(position));
    }
    let edges = [text.bytes().next(), text.bytes().next_back()];
    if !edges.into_iter().flatten().all(letter) {
        return Err(NameError::Edge);
    }
    if text.contains("..") { Err(NameError::Dots) } else { Ok(()) }
}

macro_rules! name {
    ($(#[$about:meta])* $name:ident) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// As it was written.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<$name, NameError> {
                check(text).map(|()| $name(text.to_owned()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(text: String) -> Result<$name, NameError> {
                check(&text).map(|()| $name(text))
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name! {
    /// Hosts that trust the same authorities.
    ClusterName
}
name! {
    /// One host of a cluster.
    HostName
}

/// A host with its cluster, as its certificate has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Where the host belongs.
    pub cluster: ClusterName,
    /// Which host of the cluster.
    pub host: HostName,
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Name, NameError> {
        let rest = text.strip_prefix(SCHEME).ok_or(NameError::Scheme)?;
        let mut parts = rest.split('/');
        let (Some(cluster), Some("host"), Some(host), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(NameError::Path);
        };
        Ok(Name { cluster: cluster.parse()?, host: host.parse()? })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/host/{}", self.cluster, self.host)
    }
}

/// The URI of a cluster's authority: SPIFFE's form for a signing certificate, which has no path.
pub(crate) fn authority_uri(cluster: &ClusterName) -> String {
    format!("{SCHEME}{cluster}")
}

/// The URI of the server that answers a host which joins. It is no host's name, so no host's certificate has it.
pub(crate) fn join_uri(cluster: &ClusterName) -> String {
    format!("{SCHEME}{cluster}/authority")
}

/// The URI of what one authority states of another. It is no host's name either.
pub(crate) fn statement_uri(cluster: &ClusterName, what: &str) -> String {
    format!("{SCHEME}{cluster}/authority/{what}")
}

/// The cluster of an authority's URI.
pub(crate) fn cluster_of_authority(uri: &str) -> Result<ClusterName, NameError> {
    uri.strip_prefix(SCHEME).ok_or(NameError::Scheme)?.parse()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_name_is_written_as_it_was_read() {
        for text in ["spiffe://lab/host/one", "spiffe://lab.example_1/host/node-12.rack3"] {
            assert_eq!(text.parse::<Name>().unwrap().to_string(), text);
        }
        let longest = format!("spiffe://{}/host/{}", "c".repeat(NAME_BYTES_MAX), "h".repeat(NAME_BYTES_MAX));
        assert_eq!(longest.parse::<Name>().unwrap().to_string(), longest);
    }

    #[test]
    fn another_spelling_is_refused() {
        let refused = [
            ("", NameError::Scheme),
            ("SPIFFE://lab/host/one", NameError::Scheme),
            ("https://lab/host/one", NameError::Scheme),
            ("spiffe://lab", NameError::Path),
            ("spiffe://lab/host", NameError::Path),
            ("spiffe://lab/authority", NameError::Path),
            ("spiffe://lab/node/one", NameError::Path),
            ("spiffe://lab/host/one/", NameError::Path),
            ("spiffe://lab/host/one/two", NameError::Path),
            ("spiffe:///host/one", NameError::Empty),
            ("spiffe://lab/host/", NameError::Empty),
            ("spiffe://lab/host/One", NameError::Character(0)),
            ("spiffe://lab/host/on%65", NameError::Character(2)),
            ("spiffe://lab/host/one?x", NameError::Character(3)),
            ("spiffe://lab:1/host/one", NameError::Character(3)),
            ("spiffe://a@lab/host/one", NameError::Character(1)),
            ("spiffe://lab/host/one\n", NameError::Character(3)),
            ("spiffe://lab/host/one\0", NameError::Character(3)),
            ("spiffe://lab/host/h\u{f6}st", NameError::Character(1)),
            ("spiffe://lab/host/..", NameError::Edge),
            ("spiffe://lab/host/-one", NameError::Edge),
            ("spiffe://lab/host/a..b", NameError::Dots),
        ];
        for (text, error) in refused {
            assert_eq!(text.parse::<Name>(), Err(error), "{text:?}");
        }
        let long = "h".repeat(NAME_BYTES_MAX + 1);
        assert_eq!(long.parse::<HostName>(), Err(NameError::Long(NAME_BYTES_MAX + 1)));
    }
}
