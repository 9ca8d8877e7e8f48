//! What the tests share: the QEMUs to test with, guests that end with their test, a description to vary.
#![allow(dead_code)] // not every test file uses all of it

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use linerate_guest::description::*;
use linerate_guest::incoming_qemu::{IncomingOptions, IncomingQemu, QemuBinary};
use linerate_guest::process::{Launch, start};
use linerate_guest::qmp::{QemuVersion, Qmp};
use linerate_guest::registry::{GuestRecord, Origin, Registry};
use linerate_guest::run_state::RunState;
use linerate_guest::spec::{GuestSpec, SpecFolders};

pub const KERNEL: (u32, u32) = (6, 7);

pub fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// The system's QEMU, and the newer one where the lab has unpacked it.
pub fn qemus() -> Vec<QemuBinary> {
    let mut found = vec![QemuBinary::new("/usr/bin/qemu-system-x86_64")];
    let lab = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/qemu10/usr");
    let newer = lab.join("bin/qemu-system-x86_64");
    if newer.exists() {
        let data_dirs = vec![lab.join("share/seabios"), lab.join("share/qemu"), "/usr/share/qemu".into()];
        found.push(QemuBinary { path: newer, data_dirs });
    } else {
        eprintln!("note: no QEMU 10 in the lab's cache, tested with the system's QEMU only");
    }
    found
}

/// A folder in memory for everything of one test, with a registry.
pub struct Place {
    pub dir: tempfile::TempDir,
    pub registry: Registry,
}

impl Place {
    pub fn new() -> Place {
        let dir = tempfile::Builder::new().prefix("lr").tempdir_in("/dev/shm").unwrap();
        let registry = Registry::open(&dir.path().join("run")).unwrap();
        std::fs::create_dir_all(dir.path().join("disks")).unwrap();
        Place { dir, registry }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn disk(&self, name: &str, megabytes: u64) -> PathBuf {
        let path = self.path("disks").join(name);
        std::fs::File::create(&path).unwrap().set_len(megabytes << 20).unwrap();
        path
    }

    pub fn incoming_options(&self, qemu: &QemuBinary) -> IncomingOptions {
        IncomingOptions {
            runtime_dir: self.path("run/guests/incoming"),
            ram_dir: self.path("ram-incoming"),
            huge_ram_dir: None,
            qemu: qemu.clone(),
            file_roots: vec![self.path("disks")],
            paths: Default::default(),
            taps: Default::default(),
            allow_user_network: true,
            keep_page_cache: false,
        }
    }
}

/// A guest of the registry that ends with the test.
pub struct Running {
    pub record: GuestRecord,
    pub qmp: Option<Qmp>,
}

impl Running {
    pub fn qmp(&mut self) -> &mut Qmp {
        self.qmp.as_mut().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.record.kill();
        self.record.process.wait_end(soon());
    }
}

pub fn start_spec(place: &Place, qemu: &QemuBinary, text: &str) -> Running {
    let spec = GuestSpec::parse(text, &place.path("disks")).unwrap();
    let folder = place.registry.reserve(&spec.name).unwrap();
    let ram_dir = place.path("ram");
    std::fs::create_dir_all(&ram_dir).unwrap();
    let guest = spec.launch(qemu, &SpecFolders { folder: folder.clone(), ram_dir });
    let launch = Launch {
        name: &spec.name,
        qemu,
        arguments: &guest.arguments,
        folder: &folder,
        qmp: &guest.qmp,
        pid_file: &guest.pid_file,
        ram_files: vec![guest.ram_file],
        ram_is_made: false,
        user: None,
        origin: Origin::Started,
        session: None,
    };
    let (record, qmp) = start(&place.registry, &launch, soon()).unwrap();
    Running { record, qmp: Some(qmp) }
}

/// Starts an incoming QEMU in a registry of its own, as another host has one.
pub fn start_incoming(place: &Place, qemu: &QemuBinary, incoming: &IncomingQemu) -> Running {
    let folder = incoming.qmp.parent().unwrap();
    std::fs::create_dir_all(folder).unwrap();
    std::fs::create_dir_all(place.path("ram-incoming")).unwrap();
    let registry = Registry::open(&place.path("other")).unwrap();
    let launch = Launch {
        name: &incoming.name,
        qemu,
        arguments: &incoming.arguments,
        folder,
        qmp: &incoming.qmp,
        pid_file: &incoming.pid_file,
        ram_files: incoming.ram_files.iter().map(|file| file.path.clone()).collect(),
        ram_is_made: false,
        user: None,
        origin: Origin::Arrived,
        session: None,
    };
    let (record, qmp) = start(&registry, &launch, soon()).unwrap();
    Running { record, qmp: Some(qmp) }
}

/// A QEMU started as people do by hand.
pub struct ByHand(pub Child);

impl ByHand {
    pub fn start(qemu: &QemuBinary, line: &str) -> ByHand {
        let child = Command::new(&qemu.path)
            .args(qemu.data_arguments())
            .args(line.split_whitespace())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        ByHand(child)
    }

    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for ByHand {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until QEMU listens at a socket. The file is there a moment earlier, from `bind` to `listen`.
pub fn wait_until_listening(path: &Path) {
    let deadline = soon();
    while !is_listening(path) {
        assert!(Instant::now() < deadline, "nothing listens at {}", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// As the kernel says it (`proc(5)`, /proc/net/unix), so that no connection takes QEMU's only place.
fn is_listening(path: &Path) -> bool {
    const ACCEPTS: &str = "00010000"; // `__SO_ACCEPTCON`
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let name = path.to_str().unwrap();
    sockets.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(3) == Some(&ACCEPTS) && fields.get(7) == Some(&name)
    })
}

/// The option of the block that [`description`] has.
pub const RAM_IN_A_FILE: &[&str] =
    &["-object", "memory-backend-file,id=ram,size=64M,mem-path=/dev/shm/x,share=on,discard-data=off"];

/// A description as an honest source sends it.
pub fn description(arguments: &[&str]) -> GuestDescription {
    GuestDescription {
        schema: SCHEMA,
        name: "web".into(),
        uuid: None,
        machine: "pc-i440fx-7.2".into(),
        cpu: "qemu64".into(),
        processor: None,
        accelerator: "tcg".into(),
        memory_bytes: 64 << 20,
        vcpus: 1,
        qemu: QemuVersion { major: 7, minor: 2, micro: 22 },
        arguments: arguments.iter().map(|a| (*a).to_owned()).collect(),
        ram: vec![RamBlock {
            id: "ram".into(),
            size: 64 << 20,
            page_bytes: 4096,
            backend: Backend::File,
            share: true,
            path: Some("/dev/shm/x".into()),
            descriptor: Some(9),
            ignored_when_shared: true,
        }],
        disks: Vec::new(),
        nics: Vec::new(),
        traits: Traits {
            capabilities: ["x-ignore-shared", "events", "pause-before-switchover"].map(String::from).into(),
            ..Traits::default()
        },
        run_state: RunState::Running,
        process: ProcessFacts { pid: 1, vcpu_threads: vec![2], executable: "/usr/bin/qemu".into() },
        copied: Vec::new(),
        storage: None,
        domain: false,
        graph: None,
    }
}
