//! Why a command about the cluster was not done.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use linerate_trust::authority::{AuthorityError, RegisterError};
use linerate_trust::bundle::BundleError;
use linerate_trust::files::FileError;
use linerate_trust::identity::IdentityError;
use linerate_trust::name::{HostName, Name, NameError};
use linerate_trust::peer::PeerError;
use linerate_trust::request::RequestError;
use linerate_trust::succession::SuccessionError;
use linerate_trust::tls::ConfigError;
use linerate_trust::token::{StoreError, TokenError};

/// How such an error is told apart by programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A name or a token that cannot be one.
    Usage,
    /// The other side, or a rule of this one, does not allow it.
    Refused,
    /// Nobody answered, and nothing was done.
    Unreachable,
    /// A file, the network or the answer failed; it may work when it is tried again.
    Failed,
}

/// Why it was not done, with what to do in [`hint`](ClusterError::hint).
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A name of a cluster or host.
    #[error("{text:?} cannot be a name: {source}")]
    Name {
        /// The text that the user gave as a name.
        text: String,
        /// The character or length that a name cannot have.
        source: NameError,
    },
    /// The line that was copied.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The host has joined already.
    #[error("this host is {name} already; its identity is in {}", .folder.display())]
    Member {
        /// The name in the certificate that it has.
        name: Name,
        /// Where its files are.
        folder: PathBuf,
    },
    /// The files of an identity cannot be used, and they are in the way.
    #[error("{} has an identity that cannot be used: {source}", .folder.display())]
    Damaged {
        /// Where its files are.
        folder: PathBuf,
        /// The file that is wrong, and how.
        source: Box<IdentityError>,
    },
    /// The host has not joined.
    #[error("this host is in no cluster: there is no identity in {}", .0.display())]
    NotMember(PathBuf),
    /// The host has no authority.
    #[error("this host has no authority in {}", .0.display())]
    NoAuthority(PathBuf),
    /// The authority is for another cluster than was asked for.
    #[error("{} has the authority of cluster {found}, not of {wanted}", .folder.display())]
    OtherCluster {
        /// Where its files are.
        folder: PathBuf,
        /// The cluster that the authority's certificate names.
        found: String,
        /// What was asked for.
        wanted: String,
    },
    /// This host was not told where the authority's agent is.
    #[error("this host does not know the address of its cluster's authority")]
    NoAddresses,
    /// Another command is at it.
    #[error("another process writes to {}", .0.display())]
    Locked(PathBuf),
    /// The authority's files, its register or its rules for names.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The files of this host's key and certificate.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// What the authority has signed.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// The other host's certificate.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// A request for a certificate.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A file that could not be read, written or replaced.
    #[error(transparent)]
    File(#[from] FileError),
    /// The system gave no key, most likely no random bytes.
    #[error("a key could not be made: {0}")]
    Key(String),
    /// The certificates do not make a configuration for TLS.
    #[error(transparent)]
    Tls(#[from] ConfigError),
    /// The name has no address.
    #[error("cannot find the host {host}: {source}")]
    Resolve {
        /// The name or address that the user gave.
        host: String,
        /// What the resolver reported.
        source: io::Error,
    },
    /// No address answered. Nothing was sent.
    #[error("no connection to {address}: {source}")]
    Connect {
        /// The last that was tried.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The other end is not the token's authority, or no port to join at. Nothing secret was sent.
    #[error("{address} did not prove to be the token's authority: {why}; the token's secret was not sent")]
    NotProved {
        /// Address and port that the request went to.
        address: SocketAddr,
        /// What the handshake or the certificate lacks.
        why: String,
    },
    /// The connection ended after the secret was sent.
    #[error(
        "the connection to {address} broke after the token's secret was sent: {source}; the token may be spent"
    )]
    Broken {
        /// Address and port that the request went to.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The authority said no.
    #[error("the cluster's authority at {address} refused: {why}")]
    Refused {
        /// Address and port that the request went to.
        address: SocketAddr,
        /// The reason that the authority's agent gave.
        why: String,
    },
    /// What came is no answer.
    #[error("the answer of {address} was not understood; install the same release on both hosts")]
    Form {
        /// Address and port that the request went to.
        address: SocketAddr,
    },
    /// The authority's agent did not answer a member.
    #[error("the authority's agent gave no answer: {0}")]
    Asked(String),
    /// The next authority's certificate, or a statement about it.
    #[error(transparent)]
    Succession(#[from] SuccessionError),
    /// The folder of an authority.
    #[error("the folder {} of the authority could not be renamed: {source}", .folder.display())]
    Rename {
        /// The folder as it is now.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Hosts that would be cut off by the next step of a change of the authority.
    #[error("the change of the authority waits for {}: {what}", names(.hosts))]
    NotReady {
        /// What they have not done.
        what: &'static str,
        /// The hosts that have not done it.
        hosts: Vec<HostName>,
    },
    /// A host revokes itself.
    #[error("{0} is this host, which has the authority: it is not revoked here")]
    OwnHost(HostName),
}

impl From<StoreError> for ClusterError {
    fn from(error: StoreError) -> ClusterError {
        AuthorityError::Token(error).into()
    }
}

impl ClusterError {
    /// For the exit code.
    pub fn kind(&self) -> Kind {
        match self {
            ClusterError::Name { .. } | ClusterError::Token(_) => Kind::Usage,
            ClusterError::Resolve { .. } | ClusterError::Connect { .. } => Kind::Unreachable,
            ClusterError::Member { .. }
            | ClusterError::NotMember(_)
            | ClusterError::NoAuthority(_)
            | ClusterError::OtherCluster { .. }
            | ClusterError::NoAddresses
            | ClusterError::NotProved { .. }
            | ClusterError::Refused { .. }
            | ClusterError::NotReady { .. }
            | ClusterError::OwnHost(_) => Kind::Refused,
            ClusterError::Authority(error) => kind_of_authority(error),
            _ => Kind::Failed,
        }
    }

    /// What to do, where the message does not say it.
    pub fn hint(&self) -> &'static str {
        match self {
            ClusterError::Name { .. } => {
                "name the host with --host, or the cluster with --name: a-z, 0-9, '-', '.' and '_'"
            }
            ClusterError::Member { .. } => {
                "to join another cluster, or this one again, add --replace to `linerate join`"
            }
            ClusterError::Damaged { .. } => "restore the folder from a backup, or join with --replace",
            ClusterError::NotMember(_) => {
                "run `linerate cluster init` on the first host, or `linerate join` with a token of it"
            }
            ClusterError::NoAuthority(_) => "run this on the host where `linerate cluster init` was run",
            ClusterError::NotReady { .. } => {
                "their agents ask within five minutes, or at once: run `linerate certificate renew` there, then this again. \
                 A host that is gone for good: revoke it. With --leave-behind they must join again (`linerate join --replace`)"
            }
            ClusterError::Rename { .. } => "run `linerate cluster rotate` again: it goes on from there",
            ClusterError::Locked(_) => "wait until the other command has ended, then try again",
            ClusterError::NoAddresses => "name it: linerate certificate renew --from HOST",
            ClusterError::Connect { .. } => {
                "the authority's agent must run, and answers there only while a token can be used: `linerate token list` \
                 there says whether one can"
            }
            ClusterError::NotProved { .. } => {
                "compare the address with the line of `linerate token create`; somebody may be between the hosts"
            }
            ClusterError::Broken { .. } => {
                "see `linerate token list` on the authority's host: if the token is used, make another with `linerate token \
                 create`, and revoke this host first if it is in `linerate host list`"
            }
            _ => "",
        }
    }
}

fn names(hosts: &[HostName]) -> String {
    hosts.iter().map(HostName::as_str).collect::<Vec<_>>().join(", ")
}

fn kind_of_authority(error: &AuthorityError) -> Kind {
    match error {
        AuthorityError::Name { .. }
        | AuthorityError::Cluster { .. }
        | AuthorityError::NameInUse(_)
        | AuthorityError::Early { .. }
        | AuthorityError::Often { .. }
        | AuthorityError::NotIssued(_)
        | AuthorityError::Register(RegisterError::Full | RegisterError::UnknownHost(_))
        | AuthorityError::Token(
            StoreError::Unknown | StoreError::Used | StoreError::Expired | StoreError::Full,
        ) => Kind::Refused,
        AuthorityError::Token(StoreError::Ttl | StoreError::Label | StoreError::Token(_)) => Kind::Usage,
        _ => Kind::Failed,
    }
}
