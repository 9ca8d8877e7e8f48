//! This host for a fleet: what it has for guests, and which ones are there.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_fabric::model::Network;
use linerate_fabric::probe::Answer;
use linerate_guest::host::{QemuCache, folder_available, memory_available};
use linerate_guest::registry::{GuestRecord as Known, Registry};
use linerate_guest::{process, read};
use linerate_lock::Mutex;
use linerate_net::interfaces::{self, Interface};
use linerate_store::fleet::records::{GuestRecord, HostRecord, PortRecord};

use crate::cluster::watch::Watch;
use crate::config::Config;
use crate::faults::chain;
use crate::fleet::HostInFleet;
use crate::libvirt::domains::{self, Domain, Listed};
use crate::{cpu, incoming, outgoing};

/// All guests that are asked together answer within this. Other hosts wait 10 s for the record, or this host is lost.
const QMP_WAIT: Duration = Duration::from_secs(4);
/// Guests that are asked at the same time.
const ASKED_AT_ONCE: usize = 16;
/// A guest that has not answered is not asked again before this.
const SILENT_FOR: Duration = Duration::from_secs(3);
const QEMU_WAIT: Duration = Duration::from_secs(15);
/// libvirt is not asked more often for its domains.
const DOMAINS_FRESH: Duration = Duration::from_secs(2);
/// A port that does not say its speed, in bytes per second: one gigabit per second.
const UNKNOWN_PORT: u64 = 125_000_000;
/// Ports that a record has at most: a drain numbers them in 64 bits.
const PORTS_MAX: usize = 64;
/// What statfs calls a tmpfs.
const TMPFS: i64 = 0x0102_1994;

/// Makes the record of this host that the store and other agents get.
pub(crate) struct Describer {
    pub config: Arc<Config>,
    pub registry: Registry,
    pub qemu_cache: Arc<QemuCache>,
    pub outgoing: Arc<outgoing::Sessions>,
    pub incoming: Arc<incoming::Sessions>,
    pub cluster: Arc<Watch>,
    pub fleet: Arc<HostInFleet>,
    /// By process and its start: a guest is asked once. One that migrates cannot be asked.
    known: Mutex<BTreeMap<(i32, u64), (String, GuestRecord)>>,
    /// Guests that did not answer, and since when.
    silent: Mutex<BTreeMap<(i32, u64), Instant>>,
    /// Domains of libvirt, and when it was asked.
    domains: Mutex<Option<(Instant, Listed)>>,
}

impl Describer {
    pub fn new(
        config: Arc<Config>,
        registry: Registry,
        qemu_cache: Arc<QemuCache>,
        sessions: (Arc<outgoing::Sessions>, Arc<incoming::Sessions>),
        cluster: Arc<Watch>,
        fleet: Arc<HostInFleet>,
    ) -> Describer {
        let (outgoing, incoming) = sessions;
        Describer {
            config,
            registry,
            qemu_cache,
            outgoing,
            incoming,
            cluster,
            fleet,
            known: Mutex::default(),
            silent: Mutex::default(),
            domains: Mutex::default(),
        }
    }

    /// The answer to another agent that asks.
    pub fn answer(&self) -> Answer {
        let refused = |why: String| Answer::Refused { why };
        let cordon = match self.fleet.cordon() {
            Ok(cordon) => cordon,
            Err(error) => return refused(format!("whether this host is cordoned cannot be read: {error}")),
        };
        match serde_json::to_value(self.describe()) {
            Ok(record) => Answer::Host { record: Box::new(record), cordon },
            Err(error) => refused(format!("a defect in the agent: {error}")),
        }
    }

    /// The record of this host, as it is now.
    pub fn describe(&self) -> HostRecord {
        let guests = self.guests();
        let domains = self.domains();
        let (arriving, had) = self.arriving(&domains.arriving);
        let taken = guests.values().map(|guest| guest.memory_bytes).fold(0, u64::saturating_add);
        let (qemu, machines) = self.qemu();
        HostRecord {
            name: self.config.name.clone(),
            addresses: self.cluster.listens_at().iter().map(ToString::to_string).collect(),
            agent: env!("CARGO_PKG_VERSION").to_owned(),
            memory_bytes: taken.saturating_add(self.free_bytes(taken, &had)),
            reserve_bytes: self.config.memory_reserve_mib << 20,
            cpu_models: BTreeSet::new(),
            cpu_features: cpu::own_features(),
            qemu,
            machines,
            storage: BTreeSet::new(),
            networks: BTreeSet::new(),
            ports: self.ports(),
            guests,
            domains: domains.names,
            arriving,
        }
    }

    /// Bytes that are not taken by guests that are here: by what the kernel says is available now, by what the host
    /// has, and by what the folder for RAM can have. A guest may use less than its memory, and use all of it later.
    /// What guests on their way have already is not taken here: whoever reads the record counts all of their memory.
    fn free_bytes(&self, taken: u64, had: &Had) -> u64 {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let total = meminfo(&text, "MemTotal:").unwrap_or(0).saturating_sub(taken);
        let available = memory_available().map_or(total, |bytes| bytes.saturating_add(had.memory));
        let folder = folder_available(&self.config.ram_dir);
        total.min(available).min(folder.map_or(u64::MAX, |bytes| bytes.saturating_add(had.folder)))
    }

    /// Memory of the guests that are arriving and have a QEMU here, by name, and of `domains` by UUID. With what they
    /// have of it so far.
    fn arriving(&self, domains: &[Domain]) -> (BTreeMap<String, u64>, Had) {
        let coming: BTreeMap<String, u64> = self
            .incoming
            .all()
            .into_iter()
            .filter(|one| one.outcome() != linerate_core::Outcome::Committed)
            .map(|one| (one.guest(), one.memory_bytes()))
            .collect();
        let (mut arriving, mut had) = (BTreeMap::new(), Had::default());
        for guest in self.registry.list().unwrap_or_default().iter().filter(|guest| guest.is_alive()) {
            let Some(bytes) = coming.get(&guest.name) else { continue };
            let of_it = Had::of(anonymous(guest.process.pid), &guest.ram_files, &self.config.ram_dir);
            // QEMU's own memory grows and shrinks: a figure that changes each second would be written each second.
            let memory = (*bytes).max(files(guest));
            had.memory = had.memory.saturating_add(of_it.memory.min(memory));
            had.folder = had.folder.saturating_add(of_it.folder);
            arriving.insert(guest.name.clone(), memory);
        }
        for domain in domains {
            let has = domains::process(&domain.name).map_or(0, memory_of);
            had.memory = had.memory.saturating_add(has.min(domain.memory_bytes));
            arriving.insert(domain.uuid.clone(), domain.memory_bytes);
        }
        (arriving, had)
    }

    fn qemu(&self) -> ((u16, u16), BTreeSet<String>) {
        let (mut newest, mut machines) = ((0, 0), BTreeSet::new());
        for qemu in &self.config.qemu {
            let Ok(facts) = self.qemu_cache.facts(&qemu.program(), Instant::now() + QEMU_WAIT) else {
                continue;
            };
            newest = newest.max(short(&facts.version));
            machines.extend(facts.machines);
        }
        (newest, machines)
    }

    /// Ports that the agent listens at, by the network of each address.
    pub fn ports(&self) -> Vec<PortRecord> {
        ports(&interfaces::list().unwrap_or_default(), &self.cluster.listens_at())
    }

    /// The guests that are here, by UUID, or by name where a guest has none. One that is arriving is not here yet.
    fn guests(&self) -> BTreeMap<String, GuestRecord> {
        self.guests_within(QMP_WAIT, SILENT_FOR)
    }

    /// The same with other waits.
    fn guests_within(&self, qmp_wait: Duration, silent_for: Duration) -> BTreeMap<String, GuestRecord> {
        let alive: Vec<Known> =
            self.registry.list().unwrap_or_default().into_iter().filter(Known::is_alive).collect();
        let key = |guest: &Known| (guest.process.pid, guest.process.start_ticks);
        let here: BTreeSet<_> = alive.iter().map(key).collect();
        self.known.lock().retain(|process, _| here.contains(process));
        self.silent.lock().retain(|process, since| here.contains(process) && since.elapsed() < silent_for);
        let guests = alive.iter().filter(|guest| !self.is_arriving(&guest.name));
        let (mut found, mut unknown) = (BTreeMap::new(), Vec::new());
        for guest in guests {
            match self.known.lock().get(&key(guest)).cloned() {
                Some(known) => found.extend([known]),
                None => unknown.push(guest),
            }
        }
        // One that hangs must not have the others, or this host, taken for lost.
        let deadline = Instant::now() + qmp_wait;
        for some in unknown.chunks(ASKED_AT_ONCE) {
            std::thread::scope(|scope| {
                let looks: Vec<_> =
                    some.iter().map(|guest| scope.spawn(move || self.look(guest, deadline))).collect();
                let looks = looks.into_iter().zip(some);
                found.extend(looks.map(|(look, guest)| look.join().unwrap_or_else(|_| bare(guest))));
            });
        }
        found
    }

    /// This host's domains. Where libvirt does not answer, as they were when it did.
    fn domains(&self) -> Listed {
        let mut last = self.domains.lock();
        if let Some((asked, known)) = last.as_ref()
            && asked.elapsed() < DOMAINS_FRESH
        {
            return known.clone();
        }
        let before = last.take().map(|(_, known)| known).unwrap_or_default();
        let found = domains::list().unwrap_or_else(|why| {
            tracing::debug!(why = chain(&why), "domains of libvirt are not seen");
            before
        });
        *last = Some((Instant::now(), found.clone()));
        found
    }

    fn is_arriving(&self, guest: &str) -> bool {
        let of_guest = self.incoming.all().into_iter().filter(|one| one.guest() == guest);
        of_guest.into_iter().any(|one| one.outcome() != linerate_core::Outcome::Committed)
    }

    /// Asks a guest's QEMU, unless its QMP socket is in use.
    fn look(&self, guest: &Known, deadline: Instant) -> (String, GuestRecord) {
        let leaving =
            self.outgoing.all().into_iter().find(|one| one.request.guest == guest.name && !one.is_over());
        if let Some(leaving) = leaving {
            return (listed_by(guest), record(&guest.name, leaving.ram_bytes()));
        }
        let process = (guest.process.pid, guest.process.start_ticks);
        // One that was not asked, because another used the time up, is not called silent.
        if self.silent.lock().contains_key(&process) || Instant::now() >= deadline {
            return bare(guest);
        }
        let described = process::connect(guest, deadline)
            .ok()
            .and_then(|mut qmp| read::read(&mut qmp, guest.process.pid, deadline).ok());
        let Some(described) = described else {
            self.silent.lock().insert(process, Instant::now());
            return bare(guest);
        };
        let id = described.uuid.clone().unwrap_or_else(|| guest.name.clone());
        let found = (id, record(&guest.name, described.memory_bytes));
        self.known.lock().insert(process, found.clone());
        found
    }
}

/// What a guest has of this host already, in bytes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Had {
    /// Of what the kernel would have available.
    memory: u64,
    /// Of the folder for RAM. There the holes of files count too.
    folder: u64,
}

impl Had {
    /// `process`: bytes of its QEMU that are no file's.
    fn of(process: u64, ram_files: &[PathBuf], ram_dir: &Path) -> Had {
        let in_folder = ram_files.iter().filter(|file| file.parent() == Some(ram_dir));
        let mut had = Had {
            memory: process,
            folder: in_folder.filter_map(|file| Some(std::fs::metadata(file).ok()?.len())).sum(),
        };
        // Elsewhere the kernel can drop the pages of a file, and calls them available.
        let in_memory =
            |file: &&PathBuf| rustix::fs::statfs(file.as_path()).is_ok_and(|found| found.f_type == TMPFS);
        for file in ram_files.iter().filter(in_memory) {
            let blocks = std::fs::metadata(file).map_or(0, |file| file.blocks());
            had.memory = had.memory.saturating_add(blocks.saturating_mul(512));
        }
        had
    }
}

/// Bytes of a process that are no file's.
fn anonymous(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    status.ok().and_then(|text| meminfo(&text, "RssAnon:")).unwrap_or(0)
}

/// Bytes of a process that the kernel does not have available: those of no file, and of its open files in memory.
fn memory_of(pid: i32) -> u64 {
    let mut seen = BTreeSet::new();
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let in_memory = |file: std::fs::DirEntry| {
        // The link leads to the file also where it has no name.
        let found = std::fs::metadata(file.path()).ok().filter(std::fs::Metadata::is_file)?;
        let is_tmpfs = rustix::fs::statfs(file.path()).is_ok_and(|on| on.f_type == TMPFS);
        let is_new = is_tmpfs && seen.insert((found.dev(), found.ino()));
        is_new.then(|| found.blocks().saturating_mul(512))
    };
    files.filter_map(in_memory).fold(anonymous(pid), u64::saturating_add)
}

fn record(name: &str, memory_bytes: u64) -> GuestRecord {
    GuestRecord { name: name.to_owned(), memory_bytes }
}

/// A guest that does not answer.
fn bare(guest: &Known) -> (String, GuestRecord) {
    (listed_by(guest), record(&guest.name, files(guest)))
}

/// What a guest is listed by that cannot be asked now. A host that listed it by its name would not have it for those
/// who look for its UUID: they would take a guest that has arrived here for one that has ended.
fn listed_by(guest: &Known) -> String {
    guest.uuid().unwrap_or_else(|| guest.name.clone())
}

/// Lengths of the files that were made for its RAM.
fn files(guest: &Known) -> u64 {
    guest.ram_files.iter().filter_map(|file| std::fs::metadata(file).ok()).map(|file| file.len()).sum()
}

/// Major and minor version of QEMU, without its micro version.
pub(crate) fn short(version: &linerate_guest::qmp::QemuVersion) -> (u16, u16) {
    let number = |part| u16::try_from(part).unwrap_or(u16::MAX);
    (number(version.major), number(version.minor))
}

fn meminfo(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok()?.checked_mul(1024)
}

fn ports(interfaces: &[Interface], listens_at: &[std::net::SocketAddr]) -> Vec<PortRecord> {
    let mut ports = Vec::new();
    for port in interfaces.iter().filter(|port| port.usable()) {
        let speed = u64::from(port.speed_mbps).saturating_mul(125_000);
        let bytes_per_s = if speed == 0 { UNKNOWN_PORT } else { speed };
        let addresses = port.addresses.iter();
        let mut receiving = addresses.filter(|own| listens_at.iter().any(|at| at.ip() == own.ip));
        if let Some(own) = receiving.next() {
            ports.push(PortRecord { network: Network::of(own.ip, own.prefix).to_string(), bytes_per_s });
        }
    }
    ports.truncate(PORTS_MAX);
    ports
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use linerate_net::interfaces::InterfaceAddress;

    #[test]
    fn what_a_guest_on_its_way_has_already_is_known() {
        let (dir, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
        let (in_memory, elsewhere) = (shared.path().join("web-0"), dir.path().join("web-1"));
        std::fs::write(&in_memory, [7; 64 << 10]).unwrap();
        std::fs::File::options().append(true).open(&in_memory).unwrap().set_len(1 << 30).unwrap();
        std::fs::write(&elsewhere, [7; 64 << 10]).unwrap();
        assert_eq!(Had::of(5, &[], shared.path()), Had { memory: 5, folder: 0 });
        let had = Had::of(5, &[in_memory, elsewhere], shared.path());
        assert_eq!(had.folder, 1 << 30, "with its holes");
        assert!((5 + (64 << 10)..16 << 20).contains(&had.memory), "without them: {had:?}");
        assert!(anonymous(i32::try_from(std::process::id()).unwrap()) > 0);
    }

    #[test]
    fn files_in_memory_that_a_process_has_open_are_its_memory() {
        let shared = tempfile::tempdir_in("/dev/shm").unwrap();
        let file = shared.path().join("ram");
        std::fs::write(&file, vec![7; 4 << 20]).unwrap();
        // A process of its own: this one has other files, and its memory changes.
        let open = std::fs::File::open(&file).unwrap();
        let mut command = std::process::Command::new("sleep");
        let mut child = command.arg("600").stdin(open).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let end = Instant::now() + LONG;
        // Until it is `sleep`, it has the memory of this process.
        let is_sleep =
            || std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "sleep");
        while !is_sleep() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        let all = memory_of(pid);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(all >= 4 << 20, "{all}");
        assert_eq!(memory_of(pid), 0, "it has ended");
    }

    #[test]
    fn a_domain_on_its_way_counts_in_full() {
        let dir = tempfile::tempdir().unwrap();
        let agent = crate::testing::agent(&dir, &[]);
        let domain =
            Domain { name: "no such".into(), uuid: "u1".into(), memory_bytes: 5 << 20, has_hosts_cpu: false };
        let (arriving, had) = agent.describer.arriving(&[domain]);
        assert_eq!((arriving, had), (BTreeMap::from([("u1".into(), 5 << 20)]), Had::default()));
    }

    /// Only a hang reaches it.
    const LONG: Duration = Duration::from_secs(60);

    /// Guests of this process, and their sockets. Nobody takes connections there yet.
    fn silent_guests(agent: &crate::agent::Agent, names: &[&str]) -> Vec<UnixListener> {
        let add = |name: &&str| {
            let socket = agent.registry.reserve(name).unwrap().join("q");
            let listener = UnixListener::bind(&socket).unwrap();
            listener.set_nonblocking(true).unwrap();
            // A socket of another process than the guest's is not asked anything.
            let guest = crate::testing::arrived(agent, i32::try_from(std::process::id()).unwrap());
            agent.registry.put(&Known { name: (*name).to_owned(), qmp: socket, ..guest }).unwrap();
            listener
        };
        names.iter().map(add).collect()
    }

    #[test]
    fn a_guest_that_does_not_answer_is_listed_by_its_uuid() {
        const UUID: &str = "0F0E8C9A-0000-4000-8000-000000000001";
        let dir = tempfile::tempdir().unwrap();
        let agent = crate::testing::agent(&dir, &[]);
        let _guest = crate::testing::SilentGuest::start(&agent, UUID);
        let listed: Vec<(String, String)> =
            agent.describer.guests().into_iter().map(|(key, guest)| (key, guest.name)).collect();
        assert_eq!(listed, [(UUID.to_lowercase(), "g".to_owned())]);
    }

    /// Takes a connection, and says nothing until `all` are there. Whether they were all there.
    fn hangs_until_all_are_asked(listener: &UnixListener, asked: &AtomicUsize, all: usize) -> bool {
        let end = Instant::now() + LONG;
        let mut connection = None;
        while Instant::now() < end && asked.load(Ordering::SeqCst) < all {
            if connection.is_none() {
                connection = listener.accept().ok();
                asked.fetch_add(usize::from(connection.is_some()), Ordering::SeqCst);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        asked.load(Ordering::SeqCst) == all
    }

    #[test]
    fn guests_that_hang_do_not_delay_the_record_for_long() {
        let dir = tempfile::tempdir().unwrap();
        let agent = crate::testing::agent(&dir, &[]);
        let sockets = silent_guests(&agent, &["g1", "g2", "g3"]);
        let count = AtomicUsize::new(0);
        let (asked, describer) = (&count, &agent.describer);
        std::thread::scope(|scope| {
            let hang = |socket| scope.spawn(move || hangs_until_all_are_asked(socket, asked, 3));
            let hanging: Vec<_> = sockets.iter().map(hang).collect();
            // This wait is longer than theirs: it ends none of them.
            assert_eq!(describer.guests_within(3 * LONG, 3 * LONG).len(), 3);
            assert!(hanging.into_iter().all(|one| one.join().unwrap()), "they are asked together");
        });
        assert_eq!(describer.guests_within(3 * LONG, 3 * LONG).len(), 3);
        for socket in &sockets {
            assert!(socket.accept().is_err(), "it is remembered that it did not answer");
        }
    }

    #[test]
    fn a_guest_that_never_answers_is_given_up_when_the_time_is_over() {
        assert!(QMP_WAIT < Duration::from_secs(10), "other hosts take this one for lost");
        let (ends, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let dir = tempfile::tempdir().unwrap();
            let agent = crate::testing::agent(&dir, &[]);
            let sockets = silent_guests(&agent, &["g1"]);
            assert_eq!(agent.describer.guests().len(), 1);
            // What is seen below is not from this.
            while sockets[0].accept().is_ok() {}
            let end = Instant::now() + LONG;
            // A busy machine may use the time up before the guest is asked.
            while sockets[0].accept().is_err() {
                assert!(Instant::now() < end, "the guest is never asked");
                assert_eq!(agent.describer.guests_within(Duration::from_millis(50), Duration::ZERO).len(), 1);
            }
            ends.send(()).unwrap();
        });
        ended.recv_timeout(2 * LONG).expect("it is given up");
    }

    #[test]
    fn ports_are_those_that_the_agent_listens_at() {
        let address = |ip: &str| InterfaceAddress { ip: ip.parse().unwrap(), prefix: 24 };
        let port = |name: &str, carrier, speed_mbps, ips: &[&str]| Interface {
            name: name.into(),
            index: 1,
            up: true,
            carrier,
            loopback: false,
            mtu: 1500,
            speed_mbps,
            numa: -1,
            addresses: ips.iter().map(|ip| address(ip)).collect(),
        };
        let all = [
            port("a", true, 1000, &["192.0.2.1", "198.51.100.1"]),
            port("b", true, 0, &["10.0.0.1"]),
            port("c", false, 1000, &["10.0.1.1"]),
            port("d", true, 1000, &["10.0.2.1"]),
        ];
        let at = ["198.51.100.1:1", "10.0.0.1:1", "10.0.1.1:1"].map(|at| at.parse().unwrap());
        let found: Vec<_> =
            ports(&all, &at).into_iter().map(|port| (port.network, port.bytes_per_s)).collect();
        let expected = [("198.51.100.0/24", 125_000_000), ("10.0.0.0/24", UNKNOWN_PORT)];
        assert_eq!(found, expected.map(|(network, rate)| (network.to_owned(), rate)));
    }
}
