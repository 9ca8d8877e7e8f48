//! The RDMA lab's machine: a virtual machine under software emulation with a full Debian kernel and soft-RoCE, in which
//! a command of the host runs. The machine sees the host's `/usr` and the shared folders read-only, under the same
//! paths. So a test binary that was just built runs there as it is. `lab/rdma/init` is the other side of this module.
//!
//! What the command says leaves by two virtio-serial ports and appears on QEMU's own outputs. Its exit code is a file
//! that the machine writes last. No file means that the machine died, and the console's end says of what.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crate::error::io_error;
use crate::process::tail;
use crate::{Cache, LabError, wait};

mod command_line;
mod directory;
mod script;
mod slots;
mod wires;

use directory::Directory;
pub use slots::Slot;
pub(crate) use wires::OCTET;
pub use wires::Side;
use wires::Wires;

/// A machine that has not come to its command by then hangs: on a busy host one of its CPUs may never leave the
/// kernel's start (seen with 6.1, "soft lockup" of swapper for minutes). Nothing of the command has run, so it is
/// started again.
const BOOT_LIMIT: Duration = Duration::from_secs(90);
/// How often a machine is started until its kernel boots.
const BOOTS: usize = 3;

/// Which kernel the machine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineKernel {
    /// Debian 12's own, 6.1: no PAGEMAP_SCAN.
    Debian12,
    /// 6.12 of bookworm-backports.
    Backports,
}

impl MachineKernel {
    /// Both, for tests that go over all.
    pub const ALL: [MachineKernel; 2] = [MachineKernel::Debian12, MachineKernel::Backports];

    /// The series, as in the cache folder's names.
    pub fn series(self) -> &'static str {
        match self {
            MachineKernel::Debian12 => "6.1",
            MachineKernel::Backports => "6.12",
        }
    }

    /// The kernel of a series.
    pub fn from_series(series: &str) -> Option<MachineKernel> {
        MachineKernel::ALL.into_iter().find(|kernel| kernel.series() == series)
    }
}

/// What the machine's kernel starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum System {
    /// The RDMA lab's image; the command is started by process 1.
    Rdma,
    /// Debian with systemd, of which the command is a unit.
    Debian,
}

/// A machine and the command that it is made for.
#[derive(Debug, Clone)]
pub struct Machine {
    kernel: MachineKernel,
    system: System,
    memory_mb: u64,
    cpus: u32,
    links: u32,
    wires: Option<Wires>,
    slots: Vec<Slot>,
    mtu: u32,
    deadline: Duration,
    shares: Vec<PathBuf>,
    results: Option<PathBuf>,
    environment: Vec<(String, String)>,
    parameters: String,
    command: Vec<String>,
}

/// How a command in a machine ended, with what it said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineOutput {
    /// Exit code of the command; 128 + N after signal N.
    pub code: i32,
    pub stdout: String,
    /// Its standard error, and what QEMU itself had to say.
    pub stderr: String,
}

impl Machine {
    /// A machine that runs a program with arguments: 1 GiB, two CPUs, two links with soft-RoCE on both ends, ten
    /// minutes.
    pub fn new(kernel: MachineKernel, command: impl IntoIterator<Item = impl Into<String>>) -> Machine {
        let command = command.into_iter().map(Into::into).collect();
        Machine {
            kernel,
            system: System::Rdma,
            memory_mb: 1024,
            cpus: 2,
            links: 2,
            wires: None,
            slots: Vec::new(),
            mtu: 9000,
            deadline: Duration::from_secs(600),
            shares: Vec::new(),
            results: None,
            environment: Vec::new(),
            parameters: String::new(),
            command,
        }
    }

    /// Boots Debian 12 with systemd and QEMU, in which the command runs as root in a unit. It may write everywhere:
    /// changes are kept in the machine's memory. It has no RDMA, and the host's `/usr` only if that is shared.
    pub fn debian(mut self) -> Machine {
        self.system = System::Debian;
        self
    }

    pub fn memory_mb(mut self, memory_mb: u64) -> Machine {
        self.memory_mb = memory_mb;
        self
    }

    /// Number of emulated CPUs.
    pub fn cpus(mut self, cpus: u32) -> Machine {
        self.cpus = cpus;
        self
    }

    /// Links made before the command starts; with none, it finds a bare machine and may run `rdma-links` itself.
    pub fn links(mut self, links: u32) -> Machine {
        self.links = links;
        self
    }

    /// One of two machines that the links join, by sockets in a folder that both are given: lN 10.9.N.1 with rxN on one
    /// side, 10.9.N.2 on the other. Without it both ends of the links are in the one machine.
    pub fn wires(mut self, folder: &Path, side: Side) -> Machine {
        self.wires = Some(Wires { folder: folder.to_owned(), side });
        self
    }

    /// A PCIe slot with a network card; its driver is `e1000e`, which the command loads.
    pub fn slot(mut self, slot: Slot) -> Machine {
        self.slots.push(slot);
        self
    }

    /// Largest packet on the links.
    pub fn mtu(mut self, mtu: u32) -> Machine {
        self.mtu = mtu;
        self
    }

    /// How long boot and command may take together.
    pub fn deadline(mut self, deadline: Duration) -> Machine {
        self.deadline = deadline;
        self
    }

    /// A folder of the host that the machine sees read-only under the same path.
    pub fn share(mut self, folder: &Path) -> Machine {
        self.shares.push(folder.to_owned());
        self
    }

    /// A folder of the host that the machine may write, under the same path.
    pub fn results(mut self, folder: &Path) -> Machine {
        self.results = Some(folder.to_owned());
        self
    }

    /// A variable of the command's environment.
    pub fn env(mut self, name: &str, value: &str) -> Machine {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Another parameter on the kernel's command line.
    pub fn kernel_parameter(mut self, parameter: &str) -> Machine {
        self.parameters += " ";
        self.parameters += parameter;
        self
    }

    /// Runs the command to its end and keeps what it says.
    pub fn run(&self) -> Result<MachineOutput, LabError> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let code = self.stream(&mut stdout, &mut stderr)?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(MachineOutput { code, stdout: text(stdout), stderr: text(stderr) })
    }

    /// Runs the command to its end, passes on what it says as it comes, and returns its exit code.
    pub fn stream(
        &self,
        stdout: &mut (dyn Write + Send),
        stderr: &mut (dyn Write + Send),
    ) -> Result<i32, LabError> {
        for _ in 1..BOOTS {
            if let Some(code) = self.boot(BOOT_LIMIT, stdout, stderr)? {
                return Ok(code);
            }
            let note =
                format!("linerate-lab: the machine ended in its start, or hung for {BOOT_LIMIT:?}; again\n");
            // Without a reader only a remark is lost.
            let _ = stderr.write_all(note.as_bytes());
        }
        let last = self.boot(self.deadline, stdout, stderr)?;
        last.ok_or_else(|| LabError::Deadline {
            what: "the machine's start".to_owned(),
            waited: self.deadline,
            tail: String::new(),
        })
    }

    /// The same with one start; none if it has not come to the command after `limit`, unless no more time than that was
    /// given anyway.
    fn boot(
        &self,
        limit: Duration,
        stdout: &mut (dyn Write + Send),
        stderr: &mut (dyn Write + Send),
    ) -> Result<Option<i32>, LabError> {
        let directory = Directory::create()?;
        self.prepare(directory.path())?;
        let mut command = self.command(directory.path())?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let spawned = command.spawn();
        let child =
            spawned.map_err(|source| LabError::Spawn { program: "setpriv (for QEMU)".to_owned(), source })?;
        let mut guard = Guard(child);
        let console = directory.path().join("console.log");
        let ended = std::thread::scope(|scope| {
            let out = pump(scope, guard.0.stdout.take(), stdout);
            let err = pump(scope, guard.0.stderr.take(), stderr);
            let ended = if limit >= self.deadline || guard.comes_up(directory.path(), limit)? {
                guard.wait(self.deadline, &console).map(Some)
            } else {
                Ok(None)
            };
            // Only its end closes the pipes that the pumps read.
            drop(guard);
            for pump in [out, err] {
                // A pump stops early when its output is closed; the command's exit code is still worth having.
                let _ = pump.join();
            }
            ended
        })?;
        ended.map(|ended| status(directory.path(), ended, &console)).transpose()
    }

    fn prepare(&self, directory: &Path) -> Result<(), LabError> {
        let cache = Cache::locate();
        let initrd = directory.join("initrd");
        let mut image = std::fs::File::create(&initrd).map_err(io_error("create", &initrd))?;
        let start = match self.system {
            System::Rdma => cache.machine_root()?,
            System::Debian => cache.system_image()?,
        };
        for part in [cache.machine_modules(self.kernel)?, start] {
            let mut part_file = std::fs::File::open(&part).map_err(io_error("open", &part))?;
            std::io::copy(&mut part_file, &mut image).map_err(io_error("write", &initrd))?;
        }
        let write = |name: &str, text: String| {
            let path = directory.join(name);
            std::fs::write(&path, text).map_err(io_error("write", &path))
        };
        let shares = self.folders().map(|folder| script::share(&folder));
        write("shares", shares.collect::<Vec<_>>().concat())?;
        let links =
            script::links(self.system, self.links, self.mtu, self.wires.as_ref().map(|wires| wires.side));
        write("command", links + &script::command(&self.environment, &self.command))
    }
}

fn pump<'scope>(
    scope: &'scope Scope<'scope, '_>,
    from: Option<impl Read + Send + 'scope>,
    to: &'scope mut (dyn Write + Send),
) -> ScopedJoinHandle<'scope, ()> {
    scope.spawn(move || {
        let Some(mut from) = from else { return };
        let mut buffer = [0; 8192];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let bytes = buffer.get(..count).unwrap_or_default();
            if to.write_all(bytes).and_then(|()| to.flush()).is_err() {
                break;
            }
        }
    })
}

/// The machine's process; killed when dropped.
struct Guard(Child);

impl Guard {
    /// Whether its command begins in time. An emulated kernel may also stumble over itself while it starts, and end.
    fn comes_up(&mut self, directory: &Path, limit: Duration) -> Result<bool, LabError> {
        let end = Instant::now() + limit;
        let up = directory.join("up");
        while !up.exists() {
            if self.0.try_wait().map_err(io_error("wait for", "QEMU"))?.is_some() {
                // Its command may have been short.
                return Ok(up.exists());
            }
            if Instant::now() >= end {
                return Ok(false);
            }
            std::thread::sleep(wait::STEP);
        }
        Ok(true)
    }

    fn wait(&mut self, limit: Duration, console: &Path) -> Result<ExitStatus, LabError> {
        wait::until(
            "the end of the command in the machine",
            limit,
            || tail(console),
            || self.0.try_wait().map_err(io_error("wait for", "QEMU")),
        )
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Errors mean that it has ended already, as intended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn status(directory: &Path, ended: ExitStatus, console: &Path) -> Result<i32, LabError> {
    let text = std::fs::read_to_string(directory.join("status")).unwrap_or_default();
    text.trim().parse().map_err(|_| LabError::Ended {
        name: "the machine".to_owned(),
        status: ended,
        tail: tail(console),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_up_when_it_reports_so_and_not_before_nor_if_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let start = |seconds: &str| Guard(std::process::Command::new("sleep").arg(seconds).spawn().unwrap());
        let (short, long) = (Duration::from_millis(200), Duration::from_secs(60));
        let mut machine = start("600");
        assert!(!machine.comes_up(folder.path(), short).unwrap());
        assert!(!start("0").comes_up(folder.path(), long).unwrap());
        std::fs::write(folder.path().join("up"), "").unwrap();
        assert!(start("0").comes_up(folder.path(), long).unwrap());
        assert!(machine.comes_up(folder.path(), Duration::ZERO).unwrap());
    }
}
