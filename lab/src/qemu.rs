//! QEMU started by the lab itself, without Linerate: what benchmarks of QEMU's own migration need.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::{Cache, DiskMode, GuestSpec, Host, LabError, Process, Qmp, wait};

/// Where guest RAM is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ram {
    /// A shared file in the host's RAM directory.
    SharedFile,
    /// Memory of the process.
    Plain,
}

/// What may be chosen about a bare QEMU.
#[derive(Debug, Clone)]
pub struct QemuOptions {
    /// Where guest RAM is kept.
    pub ram: Ram,
    /// `-incoming`: a destination, stopped until a migration comes; `defer` to say by QMP from where.
    pub incoming: Option<String>,
    /// Images are locked, as QEMU does by itself. Two QEMUs of the lab's own that share one have it open at once.
    pub locks: bool,
    /// Arguments at the end of its command line.
    pub arguments: Vec<String>,
}

impl Default for QemuOptions {
    fn default() -> Self {
        QemuOptions { ram: Ram::SharedFile, incoming: None, locks: false, arguments: Vec::new() }
    }
}

/// A running QEMU; killed when dropped.
#[derive(Debug)]
pub struct Qemu {
    process: Process,
    socket: PathBuf,
}

impl Qemu {
    /// Starts QEMU in a host and waits until it answers.
    pub fn start(host: &Host, spec: &GuestSpec, options: &QemuOptions) -> Result<Qemu, LabError> {
        let socket = host.run_directory().join(format!("{}.qmp", spec.name));
        let log = host.run_directory().join(format!("{}.log", spec.name));
        let process = Process::start(&format!("QEMU {}", spec.name), command(host, spec, options)?, &log)?;
        let mut qemu = Qemu { process, socket };
        qemu.wait_ready(&log)?;
        Ok(qemu)
    }

    // QEMU greets from its main loop, so an answer means that its devices are made and that it listens for a migration.
    fn wait_ready(&mut self, log: &Path) -> Result<(), LabError> {
        let tail = || crate::process::tail(log);
        wait::until("QEMU's greeting", Duration::from_secs(60), tail, || {
            self.process.must_run()?;
            Ok(Qmp::connect(&self.socket).ok().map(drop))
        })
    }

    /// A control connection; one at a time.
    pub fn qmp(&self) -> Result<Qmp, LabError> {
        Qmp::connect(&self.socket)
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// The whole command line.
pub fn command(host: &Host, spec: &GuestSpec, options: &QemuOptions) -> Result<Command, LabError> {
    let cache = Cache::locate();
    let mut command = host.command(cache.qemu(spec.qemu)?);
    for folder in cache.qemu_data(spec.qemu)? {
        command.arg("-L").arg(folder);
    }
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    command.args(["-accel", spec.program.accelerator()]);
    command.args([
        "-name",
        &spec.name,
        "-smp",
        &spec.vcpus.to_string(),
        "-m",
        &format!("{}M", spec.memory_mb),
    ]);
    command.args(memory(host, spec, options.ram));
    let (kernel, initrd) = spec.program.files()?;
    command.arg("-kernel").arg(kernel);
    if let Some(initrd) = initrd {
        command.arg("-initrd").arg(initrd);
    }
    command.arg("-append").arg(spec.command_line());
    command.args(serial(host, spec)).args(disk(spec, options.locks)).args(network(spec));
    let socket = host.run_directory().join(format!("{}.qmp", spec.name));
    command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", socket.display()));
    if let Some(from) = &options.incoming {
        command.args(["-incoming", from]);
    }
    command.args(&options.arguments);
    Ok(command)
}

fn memory(host: &Host, spec: &GuestSpec, ram: Ram) -> Vec<String> {
    match ram {
        Ram::Plain => vec!["-machine".into(), "pc".into()],
        Ram::SharedFile => {
            let path = spec.ram_file(host);
            let backend = format!(
                "memory-backend-file,id=ram,size={}M,share=on,discard-data=off,mem-path={}",
                spec.memory_mb,
                path.display()
            );
            vec!["-machine".into(), "pc,memory-backend=ram".into(), "-object".into(), backend]
        }
    }
}

fn serial(host: &Host, spec: &GuestSpec) -> [String; 4] {
    let chardev = format!("file,id=serial0,path={}", spec.serial(host).display());
    ["-chardev".into(), chardev, "-serial".into(), "chardev:serial0".into()]
}

fn disk(spec: &GuestSpec, locks: bool) -> Vec<String> {
    let Some((image, mode)) = &spec.disk else { return Vec::new() };
    let cache = if *mode == DiskMode::Direct { "none" } else { "writeback" };
    // Source and destination have the image open at once during a migration.
    let locking = if locks { "" } else { "file.locking=off," };
    let drive = format!("if=none,id=disk0,format=raw,cache={cache},{locking}file={}", image.display());
    vec!["-drive".into(), drive, "-device".into(), "virtio-blk-pci,drive=disk0".into()]
}

fn network(spec: &GuestSpec) -> Vec<String> {
    let Some(tap) = &spec.tap else { return Vec::new() };
    let netdev = format!("tap,id=net0,ifname={tap},script=no,downscript=no");
    let device = format!("virtio-net-pci,netdev=net0,romfile=,mac={}", spec.hardware_address());
    vec!["-netdev".into(), netdev, "-device".into(), device]
}
