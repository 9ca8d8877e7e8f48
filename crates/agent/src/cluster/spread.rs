//! Revocation lists spread from host to host. With each connection the host that took it sends the numbers of its
//! lists. The host that opened it asks for newer ones, and gives those that are newer here. So a revocation gets around
//! while the authority's host is down.
//!
//! A list is taken only with the authority's signature and a larger number, so no host need be believed.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use linerate_lock::Mutex;
use linerate_net::tcp::connect::Route;
use linerate_net::tls::lists::ListExchange;
use linerate_trust::certificate::AuthorityId;
use linerate_trust::identity::Identity;
use linerate_wire::frame::ListNumber;

use super::renewal::exchange_lists;
use crate::config::Config;
use crate::security::Security;

/// A host is asked again no sooner: it may be that it cannot write its files.
const AGAIN: Duration = Duration::from_secs(10);
/// Hosts that wait to be asked. More are asked with their next connection.
const WAITING_MAX: usize = 64;
/// Addresses that are remembered for [`AGAIN`].
const REMEMBERED_MAX: usize = 1024;

/// A host with other lists than this one's.
struct Difference {
    address: SocketAddr,
    numbers: Vec<ListNumber>,
}

/// See the module.
pub(crate) struct Spread {
    security: Weak<Security>,
    queue: SyncSender<Difference>,
    /// When each host was asked last.
    asked: Mutex<HashMap<SocketAddr, Instant>>,
}

impl Spread {
    /// Every connection of this host exchanges lists from now on. An operator's own files are not changed by the agent,
    /// and plain text has no lists.
    pub fn start(config: &Arc<Config>, security: &Arc<Security>) {
        let Some(tls) = security.tls().filter(|_| config.certificate.is_none()) else { return };
        let (queue, differences) = sync_channel(WAITING_MAX);
        let spread = Spread { security: Arc::downgrade(security), queue, asked: Mutex::default() };
        tls.exchange_lists(Arc::new(spread));
        let (config, security) = (config.clone(), Arc::downgrade(security));
        let asking = move || work(&config, &security, &differences);
        if let Err(error) = std::thread::Builder::new().name("lists".into()).spawn(asking) {
            tracing::error!(%error, "cannot start a thread to exchange revocation lists");
        }
    }

    fn identity(&self) -> Option<Identity> {
        self.security.upgrade()?.identity()
    }
}

impl ListExchange for Spread {
    fn numbers(&self) -> Vec<ListNumber> {
        self.identity().map(|identity| numbers(&identity)).unwrap_or_default()
    }

    fn peer_lists_known(&self, route: &Route, of_peer: &[ListNumber]) {
        let Some(own) = self.identity().map(|identity| numbers(&identity)) else { return };
        if own.iter().all(|list| number_of(of_peer, list.authority) == list.number) {
            return;
        }
        let (address, now) = (route.remote, Instant::now());
        let mut asked = self.asked.lock();
        asked.retain(|_, last| now.duration_since(*last) < AGAIN);
        if asked.contains_key(&address) || asked.len() >= REMEMBERED_MAX {
            return;
        }
        if self.queue.try_send(Difference { address, numbers: of_peer.to_vec() }).is_ok() {
            asked.insert(address, now);
        }
    }
}

/// The list of each authority that this host trusts.
fn numbers(identity: &Identity) -> Vec<ListNumber> {
    let bundle = identity.bundle();
    let number =
        |id: AuthorityId| ListNumber { authority: *id.bytes(), number: identity.revocation_number(id) };
    bundle.authorities().iter().map(|one| number(one.id())).collect()
}

fn number_of(lists: &[ListNumber], authority: [u8; 32]) -> u64 {
    lists.iter().find(|list| list.authority == authority).map_or(0, |list| list.number)
}

/// Lists that are newer here than at a host that has these.
fn newer_than(identity: &Identity, numbers: &[ListNumber]) -> Vec<Vec<u8>> {
    let bundle = identity.bundle();
    let ids = bundle.authorities().iter().map(linerate_trust::bundle::TrustedAuthority::id);
    ids.filter(|id| identity.revocation_number(*id) > number_of(numbers, *id.bytes()))
        .filter_map(|id| identity.revocation_list(id))
        .collect()
}

/// Until the host's security is gone.
fn work(config: &Config, security: &Weak<Security>, differences: &Receiver<Difference>) {
    for Difference { address, numbers } in differences {
        let Some(security) = security.upgrade() else { return };
        let Some(identity) = security.identity() else { continue };
        let offered = newer_than(&identity, &numbers);
        match exchange_lists(config, &identity, &[address], &offered) {
            Ok(newer) => {
                tracing::info!(%address, newer, given = offered.len(), "revocation lists were exchanged");
                if newer {
                    security.end_revoked();
                }
            }
            Err(error) => tracing::warn!(%address, %error, "revocation lists were not exchanged"),
        }
    }
}

#[cfg(test)]
mod tests {
    use linerate_trust::identity::IdentityError;
    use linerate_trust::revocation::RevocationError;
    use rustls_pki_types::UnixTime;

    use super::super::renewal::{refresh_revocations, take_lists};
    use super::super::testing::running;
    use super::super::tests::{agent, first, join_at, site};
    use super::super::{ClusterError, operations};

    #[test]
    fn a_revocation_spreads_with_any_handshake_while_the_authoritys_host_is_down() {
        let one = first();
        let server = one.server();
        let joined = |name| {
            let site = site(name, "");
            join_at(&site, &server, &one.token()).unwrap();
            site
        };
        let [two, three, revoked, five] = ["two", "three", "revoked", "five"].map(joined);
        operations::revoke_host(&one.config, "revoked").unwrap();
        let asked = agent(&one, UnixTime::now());
        refresh_revocations(&two.config, &two.identity(), asked.addresses()).unwrap();
        drop((asked, server));
        let [two, three, revoked, five] = [two, three, revoked, five].map(running);
        revoked.connect_to(&three).expect("it does not know yet");
        // The one that opened the connection has the newer list, and gives it.
        two.connect_to(&three).unwrap();
        three.waits_for(1);
        revoked.waits_until_refused_by(&three);
        // The one that took it has the newer list, and is asked.
        five.connect_to(&three).unwrap();
        five.waits_for(1);
        revoked.waits_until_refused_by(&five);
    }

    #[test]
    fn an_older_list_is_not_taken_from_any_host() {
        let one = first();
        let server = one.server();
        let [two, three, four] = ["two", "three", "four"].map(|name| {
            let site = site(name, "");
            join_at(&site, &server, &one.token()).unwrap();
            site
        });
        let authority = one.identity().bundle().authorities()[0].id();
        let mut lists = Vec::new();
        for host in ["three", "four"] {
            operations::revoke_host(&one.config, host).unwrap();
            lists.push(one.identity().revocation_list(authority).unwrap());
        }
        let (two, identity) = (two, four.identity());
        let own = two.identity();
        assert!(take_lists(&two.config, &own, &lists[1..]).unwrap());
        let older = take_lists(&two.config, &own, &lists[..1]).unwrap_err();
        let ClusterError::Identity(IdentityError::Revocation(RevocationError::Older { offered, known })) =
            older
        else {
            panic!("{older}");
        };
        assert_eq!((offered, known, own.revocation_number(authority)), (1, 2, 2));
        // A changed list. It is refused while a command has the files: no member keeps commands from them with forged
        // ones.
        let mut changed = lists[1].clone();
        *changed.last_mut().unwrap() ^= 1;
        let locked = super::super::operations::lock_identity(&two.config.identity_folder()).unwrap();
        for forged in [changed, lists[0].clone(), vec![0x30; 1 << 20]] {
            let error = take_lists(&two.config, &own, &[forged]).unwrap_err();
            assert!(matches!(error, ClusterError::Identity(_)), "{error}");
        }
        drop(locked);
        assert_eq!(identity.revocation_number(authority), 0, "nobody told this one");
        drop(three);
    }
}
