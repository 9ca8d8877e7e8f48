//! The store in an etcd cluster.
//!
//! Calls block on a runtime of its own, so they must not be made from a thread that runs asynchronous tasks. A read is
//! tried again until [`ANSWER_MAX`]; a transaction is not, as a lost answer says nothing about it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, Error, GetOptions, Identity, KeyValue,
    PutOptions, TlsOptions, Txn, TxnOp,
};
use tokio::runtime::Runtime;

use crate::keeper::Keeper;
use crate::{ANSWER_MAX, Condition, Entry, Lease, Outcome, Store, StoreError, Transaction, Write};

/// Entries that are read at once, or fewer: a gRPC answer has at most 4 MiB, and an entry has at most 1.5 MiB.
const PAGE: i64 = 500;
/// One try of a read: long enough for an election of the cluster's leader, short enough for a second try.
const TRY_MAX: Duration = Duration::from_secs(2);
/// Between two tries of a read.
const TRY_AGAIN: Duration = Duration::from_millis(100);

/// How a cluster is reached.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Addresses of its members: `https://etcd1:2379`, or `http://…` without TLS.
    pub endpoints: Vec<String>,
    /// What all keys begin with: `/linerate/CLUSTER/`.
    pub prefix: String,
    /// What an `https` address needs.
    pub tls: Option<Tls>,
    /// Name and password, where the cluster wants them.
    pub user: Option<(String, String)>,
    /// How long the keys of a client stay after its last sign. Seconds; etcd takes no parts of one.
    pub lease: Duration,
}

/// Certificates and a key, each as the text of a PEM file.
#[derive(Clone, Default)]
pub struct Tls {
    /// Authorities that the members' certificates are checked with.
    pub authorities: Vec<u8>,
    /// The client's certificate and key, where the cluster wants them.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("has_identity", &self.identity.is_some()).finish_non_exhaustive()
    }
}

/// A client of an etcd cluster.
pub struct Etcd {
    runtime: Runtime,
    client: Client,
    prefix: String,
    keeper: Arc<Keeper>,
    ends: Arc<AtomicBool>,
}

impl std::fmt::Debug for Etcd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Etcd").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Etcd {
    /// Begins to keep a lease. A cluster without user names need not answer yet.
    ///
    /// # Errors
    /// [`StoreError::Refused`] for addresses, certificates or a user that cannot be right; [`StoreError::Away`].
    pub fn open(options: &Options) -> Result<Etcd, StoreError> {
        let refused = |error: &dyn std::fmt::Display| StoreError::Refused(error.to_string());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("store")
            .enable_all()
            .build()
            .map_err(|error| StoreError::Away(error.to_string()))?;
        let mut connect = ConnectOptions::new()
            .with_connect_timeout(TRY_MAX)
            .with_keep_alive(TRY_MAX, TRY_MAX)
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if let Some((name, password)) = &options.user {
            connect = connect.with_user(name, password);
        }
        if let Some(tls) = &options.tls {
            let mut given = TlsOptions::new().ca_certificate(Certificate::from_pem(&tls.authorities));
            if let Some((certificate, key)) = &tls.identity {
                given = given.identity(Identity::from_pem(certificate, key));
            }
            connect = connect.with_tls(given);
        }
        if options.endpoints.is_empty() {
            return Err(refused(&"no address of an etcd member is given"));
        }
        let connected = async {
            tokio::time::timeout(ANSWER_MAX, Client::connect(&options.endpoints, Some(connect))).await
        };
        let client = match runtime.block_on(connected) {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => return Err(failed(&error)),
            Err(_) => return Err(StoreError::Away(no_answer())),
        };
        let keeper = Arc::new(Keeper::default());
        let ends = Arc::new(AtomicBool::new(false));
        runtime.spawn(crate::keeper::keep(client.clone(), options.lease, keeper.clone(), ends.clone()));
        Ok(Etcd { runtime, client, prefix: options.prefix.clone(), keeper, ends })
    }

    /// Ends the lease now: what was written with it is gone when this returns, if the cluster answers. Without this it
    /// stays until the lease runs out.
    pub fn end_lease(&self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(Lease(id)) = self.keeper.give_up() {
            let mut client = self.client.clone();
            let revoked = async { tokio::time::timeout(TRY_MAX, client.lease_revoke(id)).await };
            if !matches!(self.runtime.block_on(revoked), Ok(Ok(_))) {
                tracing::debug!(lease = id, "etcd did not end the lease; it runs out");
            }
        }
    }

    /// Tries until there is an answer, or until [`ANSWER_MAX`].
    fn read<T, F: Future<Output = Result<T, Error>>>(
        &self,
        what: impl Fn(Client) -> F,
    ) -> Result<T, StoreError> {
        let until = Instant::now() + ANSWER_MAX;
        self.runtime.block_on(async {
            loop {
                let error = match tokio::time::timeout(TRY_MAX, what(self.client.clone())).await {
                    Ok(Ok(answer)) => return Ok(answer),
                    Ok(Err(error)) => failed(&error),
                    Err(_) => StoreError::Away(no_answer()),
                };
                if !matches!(error, StoreError::Away(_)) || Instant::now() >= until {
                    return Err(error);
                }
                tokio::time::sleep(TRY_AGAIN).await;
            }
        })
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn entry(&self, pair: &KeyValue) -> Result<Entry, StoreError> {
        let key = pair.key_str().ok().and_then(|key| key.strip_prefix(&self.prefix));
        let key = key.ok_or_else(|| StoreError::Refused("etcd has a key that is no text".into()))?;
        Ok(Entry {
            key: key.to_owned(),
            value: pair.value().to_vec(),
            revision: pair.mod_revision().cast_unsigned(),
            made: pair.create_revision().cast_unsigned(),
        })
    }

    fn compare(&self, condition: &Condition) -> Compare {
        match condition {
            Condition::Absent(key) => Compare::version(self.key(key), CompareOp::Equal, 0),
            Condition::Unchanged(key, revision) => {
                Compare::mod_revision(self.key(key), CompareOp::Equal, revision.cast_signed())
            }
            Condition::SameKey(key, made) => {
                Compare::create_revision(self.key(key), CompareOp::Equal, made.cast_signed())
            }
        }
    }

    fn operation(&self, write: &Write) -> Result<TxnOp, StoreError> {
        Ok(match write {
            Write::Put { key, value, leased: false } => TxnOp::put(self.key(key), value.clone(), None),
            Write::Put { key, value, leased: true } => {
                let lease = self.lease().ok_or_else(|| StoreError::Away("there is no lease".into()))?;
                let with = PutOptions::new().with_lease(lease.0);
                TxnOp::put(self.key(key), value.clone(), Some(with))
            }
            Write::Delete(key) => TxnOp::delete(self.key(key), None),
        })
    }
}

fn no_answer() -> String {
    format!("no answer from etcd within {} s", ANSWER_MAX.as_secs())
}

/// What an error of etcd means for what was asked, if it changes nothing.
fn failed(error: &Error) -> StoreError {
    const REFUSALS: [i32; 5] = [3, 7, 8, 12, 16];
    let text = error.to_string();
    match error {
        Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::EndpointError(_) => StoreError::Refused(text),
        // Invalid argument, denied, exhausted (out of space), not implemented, unauthenticated.
        Error::GRpcStatus(status) if REFUSALS.contains(&(status.code() as i32)) => StoreError::Refused(text),
        // Among them a revision that was compacted while its pages were read.
        _ => StoreError::Away(text),
    }
}

/// The answer is longer than this client takes: gRPC calls that out of range. So does etcd with a revision that was
/// compacted, which it refuses for smaller pages too.
fn is_too_long(error: &Error) -> bool {
    const OUT_OF_RANGE: i32 = 11;
    matches!(error, Error::GRpcStatus(status) if status.code() as i32 == OUT_OF_RANGE)
}

/// The first key behind all that begin with `prefix`.
fn behind(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

impl Store for Etcd {
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let key = self.key(key);
        let answer = self.read(|mut client| {
            let key = key.clone();
            async move { client.get(key, None).await }
        })?;
        answer.kvs().first().map(|pair| self.entry(pair)).transpose()
    }

    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        let (first, end) = (self.key(prefix).into_bytes(), behind(&self.key(prefix)));
        self.read(|mut client| {
            let (mut from, end) = (first.clone(), end.clone());
            async move {
                let (mut found, mut moment, mut limit) = (Vec::new(), 0, PAGE);
                loop {
                    let page =
                        GetOptions::new().with_range(end.clone()).with_limit(limit).with_revision(moment);
                    let mut answer = match client.get(from.clone(), Some(page)).await {
                        Err(error) if limit > 1 && is_too_long(&error) => {
                            limit /= 2;
                            continue;
                        }
                        answer => answer?,
                    };
                    limit = PAGE.min(2 * limit);
                    if moment == 0 {
                        moment = answer.header().map_or(0, |header| header.revision());
                    }
                    found.extend(answer.take_kvs());
                    match found.last() {
                        Some(last) if answer.more() => from = [last.key(), &[0]].concat(),
                        _ => return Ok(found),
                    }
                }
            }
        })?
        .iter()
        .map(|pair| self.entry(pair))
        .collect()
    }

    fn commit(&self, transaction: &Transaction) -> Result<Outcome, StoreError> {
        let conditions: Vec<Compare> = transaction.conditions.iter().map(|one| self.compare(one)).collect();
        let writes = transaction.writes.iter().map(|write| self.operation(write));
        let writes = writes.collect::<Result<Vec<TxnOp>, StoreError>>()?;
        let mut client = self.client.clone();
        let asked = client.txn(Txn::new().when(conditions).and_then(writes));
        match self.runtime.block_on(async { tokio::time::timeout(ANSWER_MAX, asked).await }) {
            Ok(Ok(answer)) if answer.succeeded() => {
                Ok(Outcome::Done(answer.header().map_or(0, |header| header.revision().cast_unsigned())))
            }
            Ok(Ok(_)) => Ok(Outcome::Refused),
            Ok(Err(Error::GRpcStatus(status))) if status.message().contains("lease not found") => {
                self.keeper.give_up();
                Err(StoreError::Away("the lease has ended".into()))
            }
            Ok(Err(error)) => Err(match failed(&error) {
                refused @ StoreError::Refused(_) => refused,
                other => StoreError::Unknown(other.to_string()),
            }),
            Err(_) => Err(StoreError::Unknown(no_answer())),
        }
    }

    fn lease(&self) -> Option<Lease> {
        self.keeper.lease()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_behind_all_its_keys() {
        assert_eq!(behind("/a/"), b"/a0");
        assert_eq!(behind(""), [0]);
        assert_eq!(behind("\u{7f}"), [0x80]);
    }

    #[test]
    fn a_cluster_without_addresses_is_refused() {
        assert!(matches!(Etcd::open(&Options::default()), Err(StoreError::Refused(_))));
    }
}
