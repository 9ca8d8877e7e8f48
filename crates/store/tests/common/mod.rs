//! Both stores under the same tests.

#![allow(dead_code, reason = "each test program uses a part")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use linerate_lab::etcd::Cluster;
use linerate_store::etcd::{Etcd, Options};
use linerate_store::fleet::records::{DrainRecord, DrainState, GuestRecord, HostRecord};
use linerate_store::fleet::{Fleet, FleetError};
use linerate_store::local::Local;
use linerate_store::{Entry, Lease, Outcome, Store, StoreError, Transaction, Write};
use tempfile::TempDir;

pub const GIB: u64 = 1 << 30;
/// Time for what a busy machine does late.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// How long is waited between two looks.
const AGAIN: Duration = Duration::from_millis(50);

/// A store that clients open, one after another or several at a time.
pub enum Kind {
    Local(TempDir),
    Etcd(Box<Cluster>, TempDir),
}

impl Kind {
    pub fn both() -> [Kind; 2] {
        let folder = tempfile::tempdir().unwrap();
        let cluster = Cluster::start(folder.path(), 1).unwrap();
        [Kind::Local(tempfile::tempdir().unwrap()), Kind::Etcd(Box::new(cluster), folder)]
    }

    pub fn open(&self) -> Client {
        match self {
            Kind::Local(folder) => {
                Client::Local(Arc::new(Local::open(&folder.path().join("fleet.redb")).unwrap()))
            }
            Kind::Etcd(cluster, _) => {
                Client::Etcd(Arc::new(etcd(cluster.endpoints(), Duration::from_secs(60))))
            }
        }
    }

    /// Clients of one store at the same time. A file of redb has one for all.
    pub fn clients<const N: usize>(&self) -> [Client; N] {
        match self {
            Kind::Local(_) => {
                let one = self.open();
                std::array::from_fn(|_| one.clone())
            }
            Kind::Etcd(..) => std::array::from_fn(|_| self.open()),
        }
    }
}

pub fn etcd(endpoints: Vec<String>, lease: Duration) -> Etcd {
    let options = Options { endpoints, prefix: "/linerate/test/".into(), lease, ..Options::default() };
    let etcd = Etcd::open(&options).unwrap();
    wait("a lease", || etcd.lease().is_some());
    etcd
}

#[derive(Clone)]
pub enum Client {
    Local(Arc<Local>),
    Etcd(Arc<Etcd>),
}

impl Client {
    pub fn store(&self) -> Arc<dyn Store> {
        match self {
            Client::Local(local) => local.clone(),
            Client::Etcd(etcd) => Arc::new(Patient(etcd.clone())),
        }
    }

    pub fn fleet(&self, host: &str) -> Fleet {
        fleet(self.store(), host)
    }

    /// As when its agent ends.
    pub fn end(self) {
        match self {
            Client::Local(local) => drop(local),
            Client::Etcd(etcd) => etcd.end_lease(),
        }
    }
}

/// Each with an instance of its own.
pub fn fleet(store: Arc<dyn Store>, host: &str) -> Fleet {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    Fleet::new(store, host, &NEXT.fetch_add(1, Ordering::Relaxed).to_string()).unwrap()
}

pub fn wait(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < until, "{what} was waited for");
        std::thread::sleep(AGAIN);
    }
}

pub fn is_transient(error: &FleetError) -> bool {
    matches!(error, FleetError::Store(StoreError::Away(_) | StoreError::Unknown(_)) | FleetError::Contended)
}

/// What the store says once it answers. A cluster that has lost members may fail a while longer.
pub fn answer<T>(mut ask: impl FnMut() -> Result<T, FleetError>) -> Result<T, FleetError> {
    let until = Instant::now() + PATIENCE;
    loop {
        match ask() {
            Err(error) if is_transient(&error) && Instant::now() < until => std::thread::sleep(AGAIN),
            other => return other,
        }
    }
}

/// Ends other threads, also when the test fails.
pub struct End<'a>(pub &'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub fn host(name: &str, memory_gib: u64) -> HostRecord {
    let addresses = vec![format!("{name}:7979")];
    HostRecord { name: name.into(), addresses, memory_bytes: memory_gib * GIB, ..HostRecord::default() }
}

pub fn with_guests(host: HostRecord, guests: &[(&str, u64)]) -> HostRecord {
    let record = |gib| GuestRecord { memory_bytes: gib * GIB, ..GuestRecord::default() };
    HostRecord {
        guests: guests.iter().map(|(uuid, gib)| ((*uuid).to_owned(), record(*gib))).collect(),
        ..host
    }
}

pub fn drain(id: &str, host: &str) -> DrainRecord {
    DrainRecord {
        id: id.into(),
        host: host.into(),
        by: "root@here".into(),
        state: DrainState::Running,
        settings: serde_json::Value::Null,
        guests: BTreeMap::new(),
        begun_ms: 5,
        ended_ms: None,
    }
}

/// No host is overfilled, and sums are those of the reservations.
pub fn check(fleet: &Fleet) {
    let view = answer(|| fleet.view()).unwrap();
    for (name, host) in &view.hosts {
        let there: Vec<_> = view.reservations.iter().filter(|(_, reserved)| reserved.host == *name).collect();
        assert_eq!(
            host.reserved_bytes,
            there.iter().map(|(_, reserved)| reserved.bytes).sum::<u64>(),
            "{name}"
        );
        let on_way = there.iter().filter(|(guest, _)| !host.record.guests.contains_key(*guest));
        let on_way: u64 = on_way.map(|(_, reserved)| reserved.bytes).sum();
        let taken = host.record.used_bytes() + host.record.reserve_bytes + on_way;
        assert!(taken <= host.record.memory_bytes, "{name} is overfilled: {host:?}");
    }
}

/// An etcd that is asked again while it does not answer: a busy machine's disk may delay it for longer than a client
/// waits.
struct Patient(Arc<Etcd>);

impl Patient {
    fn read<T>(&self, ask: impl Fn(&Etcd) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let until = Instant::now() + PATIENCE;
        loop {
            match ask(&self.0) {
                Err(StoreError::Away(_)) if Instant::now() < until => std::thread::sleep(AGAIN),
                other => return other,
            }
        }
    }

    /// Whether all writes of a transaction are there.
    fn holds(&self, transaction: &Transaction) -> Result<Outcome, StoreError> {
        let mut revision = 0;
        for write in &transaction.writes {
            let (key, wanted) = match write {
                Write::Put { key, value, .. } => (key, Some(value)),
                Write::Delete(key) => (key, None),
            };
            let found = self.get(key)?;
            if found.as_ref().map(|entry| &entry.value) != wanted {
                return Ok(Outcome::Refused);
            }
            revision = found.map_or(revision, |entry| entry.revision);
        }
        Ok(Outcome::Done(revision))
    }
}

impl Store for Patient {
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        self.read(|etcd| etcd.get(key))
    }

    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        self.read(|etcd| etcd.list(prefix))
    }

    fn commit(&self, transaction: &Transaction) -> Result<Outcome, StoreError> {
        let until = Instant::now() + PATIENCE;
        let mut is_unsure = false;
        loop {
            // Without a lease it answers, and says so.
            let again = self.0.lease().is_some() && Instant::now() < until;
            match self.0.commit(transaction) {
                Err(StoreError::Away(_)) if again => {}
                Err(StoreError::Unknown(_)) if again => is_unsure = true,
                // Perhaps by what an earlier try has written.
                Ok(Outcome::Refused) if is_unsure => return self.holds(transaction),
                other => return other,
            }
            std::thread::sleep(AGAIN);
        }
    }

    fn lease(&self) -> Option<Lease> {
        self.0.lease()
    }
}

/// A store whose answers are lost by a rule: the number of the transaction decides.
pub struct Lossy {
    pub store: Arc<dyn Store>,
    pub loses: fn(u64) -> Loss,
    pub count: AtomicU64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    Nothing,
    /// It was written, and the answer was lost.
    Answer,
    /// It was not written, and nobody said so.
    Question,
}

impl Lossy {
    pub fn new(store: Arc<dyn Store>, loses: fn(u64) -> Loss) -> Arc<Lossy> {
        Arc::new(Lossy { store, loses, count: AtomicU64::new(0) })
    }
}

impl Store for Lossy {
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        self.store.get(key)
    }

    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        self.store.list(prefix)
    }

    fn commit(&self, transaction: &Transaction) -> Result<Outcome, StoreError> {
        let loss = (self.loses)(self.count.fetch_add(1, Ordering::Relaxed));
        let lost = || Err(StoreError::Unknown("lost by the test".into()));
        match loss {
            Loss::Nothing => self.store.commit(transaction),
            Loss::Answer => self.store.commit(transaction).and_then(|_| lost()),
            Loss::Question => lost(),
        }
    }

    fn lease(&self) -> Option<Lease> {
        self.store.lease()
    }
}

/// A client whose lease has ended and who has another one, while the store still has what the first wrote.
pub struct Leased {
    store: Arc<dyn Store>,
    now: AtomicI64,
    /// The lease ends behind the next write.
    pub ends: AtomicBool,
}

impl Leased {
    pub fn new(store: Arc<dyn Store>) -> Arc<Leased> {
        Arc::new(Leased { store, now: AtomicI64::new(1), ends: AtomicBool::new(false) })
    }

    pub fn next(&self) {
        self.now.fetch_add(1, Ordering::Relaxed);
    }
}

impl Store for Leased {
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        self.store.get(key)
    }

    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        self.store.list(prefix)
    }

    fn commit(&self, transaction: &Transaction) -> Result<Outcome, StoreError> {
        let done = self.store.commit(transaction);
        if self.ends.swap(false, Ordering::Relaxed) {
            self.next();
        }
        done
    }

    fn lease(&self) -> Option<Lease> {
        Some(Lease(self.now.load(Ordering::Relaxed)))
    }
}

/// What another agent does between the reads of an operation and its write, once.
type Deed = Box<dyn FnOnce(&Fleet) + Send>;

/// A store in which something happens before the next write.
pub struct Meanwhile {
    store: Arc<dyn Store>,
    deed: Mutex<Option<Deed>>,
}

impl Meanwhile {
    pub fn new(store: Arc<dyn Store>) -> Arc<Meanwhile> {
        Arc::new(Meanwhile { store, deed: Mutex::new(None) })
    }

    pub fn next(&self, deed: impl FnOnce(&Fleet) + Send + 'static) {
        *self.deed.lock().unwrap() = Some(Box::new(deed));
    }

    pub fn has_happened(&self) -> bool {
        self.deed.lock().unwrap().is_none()
    }
}

impl Store for Meanwhile {
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        self.store.get(key)
    }

    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        self.store.list(prefix)
    }

    fn commit(&self, transaction: &Transaction) -> Result<Outcome, StoreError> {
        if let Some(deed) = self.deed.lock().unwrap().take() {
            let other = fleet(self.store.clone(), "other");
            other.register(&host("other", 8)).unwrap();
            deed(&other);
        }
        self.store.commit(transaction)
    }

    fn lease(&self) -> Option<Lease> {
        self.store.lease()
    }
}
