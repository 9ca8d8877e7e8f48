//! Membership of a cluster: its authority, tokens, joining, renewal and revocation. docs/trust.md says why it is so.
//!
//! What a command does, it does to files, with or without a running agent. The agent looks at them every second, or at
//! once when the command asks it to.
//!
//! | module | what it has |
//! |---|---|
//! | [mod@operations] | what the commands do |
//! | `message` | the two messages of a host that joins |
//! | `deadline` | a socket whose reads and writes end in time |
//! | [mod@join], `join_server` | the two ends of joining |
//! | [mod@renewal] | a new certificate, and the list of revoked ones, from the authority's agent |
//! | [mod@rotation] | the change from one authority to the next |
//! | `spread` | lists of revoked hosts, from host to host with each connection |
//! | `watch` | the running agent: files that change, its listeners, the port to join at |

mod deadline;
mod error;
pub mod join;
mod join_server;
mod message;
pub mod operations;
pub mod renewal;
pub mod rotation;
mod spread;
pub(crate) mod watch;

pub use error::{ClusterError, Kind};
pub use linerate_trust::certificate::utc;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use linerate_trust::authority::Authority;
use linerate_trust::certificate::AuthorityId;
use linerate_trust::files::{self, Secrecy};
use linerate_trust::identity::Identity;
use linerate_trust::name::Name;
use rustls_pki_types::UnixTime;
use serde::{Deserialize, Serialize};

/// Where the authority's agent answers, in the folder of a host that joined.
const ADDRESSES_FILE: &str = "authority.json";

/// The same of milliseconds since 1970.
pub fn utc_of_ms(ms: u64) -> String {
    utc(&UnixTime::since_unix_epoch(Duration::from_millis(ms)))
}

/// A host of a cluster, as a command shows it.
#[derive(Clone, Debug)]
pub struct Membership {
    /// Name of the cluster and of the host in it, as in the certificate.
    pub name: Name,
    /// The authority that signed its certificate, where it is known.
    pub authority: Option<AuthorityId>,
    /// The end of its certificate.
    pub not_after: UnixTime,
}

impl Membership {
    fn of(identity: &Identity) -> Membership {
        let bundle = identity.bundle();
        let [authority] = bundle.authorities() else {
            return Membership { name: identity.name(), authority: None, not_after: identity.not_after() };
        };
        Membership { name: identity.name(), authority: Some(authority.id()), not_after: identity.not_after() }
    }
}

#[derive(Serialize, Deserialize)]
struct Addresses {
    agents: Vec<SocketAddr>,
}

fn write_addresses(folder: &Path, agents: &[SocketAddr]) -> Result<(), ClusterError> {
    let text = serde_json::to_vec_pretty(&Addresses { agents: agents.to_vec() });
    let text = text.map_err(|_| ClusterError::NoAddresses)?;
    Ok(files::write(&folder.join(ADDRESSES_FILE), &text, Secrecy::Public)?)
}

/// Where the authority's agent is asked. Empty if this host was not told.
fn read_addresses(folder: &Path) -> Vec<SocketAddr> {
    let bytes = files::read(&folder.join(ADDRESSES_FILE), Secrecy::Public).unwrap_or_default();
    serde_json::from_slice::<Addresses>(&bytes).map(|found| found.agents).unwrap_or_default()
}

/// Whether the host that this authority made may still answer for it: it has the authority's own files.
fn is_authoritys_host(folder: &Path) -> bool {
    Authority::exists(folder)
}

/// Whether the authority here is one that this identity trusts. A host that made a cluster and then joined another has
/// one that is not: it asks the other cluster's authority. True for an authority that cannot be read: its use says why.
fn has_own_authority(folder: &Path, identity: &Identity) -> bool {
    let trusts = |id| identity.bundle().authorities().iter().any(|one| one.id() == id);
    is_authoritys_host(folder) && Authority::id_in(folder).map_or(true, trusts)
}
