//! One host of a lab.

use std::net::Ipv4Addr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::io_error;
use crate::{LabError, Side, lab, netns, tool};

/// Name of the network namespace of a host that is a machine of its own.
const MACHINE: &str = "machine";

/// A host: a network namespace, directories, and a tmpfs for guest RAM.
#[derive(Debug, Clone)]
pub struct Host {
    pub(crate) name: String,
    pub(crate) index: usize,
    pub(crate) namespace: String,
    pub(crate) directory: PathBuf,
    pub(crate) octet: u8,
    pub(crate) links: usize,
    pub(crate) mounts: Option<PathBuf>,
}

impl Host {
    /// This very machine as a host, for programs that run in one of two machines of the RDMA lab which links join
    /// (`Machine::wires`). There devices and addresses are named as in a lab. It goes with the machine.
    pub fn of_machine(side: Side, links: usize, ram_mb: u64) -> Result<Host, LabError> {
        let namespace = MACHINE;
        // The namespace of process 1 gets a name, so that all else is as for any host.
        tool::run("ip", &["netns", "attach", namespace, "1"])?;
        let host = Host {
            name: side.name().to_owned(),
            index: usize::from(side == Side::B),
            namespace: namespace.to_owned(),
            directory: lab::root().join(side.name()),
            octet: crate::machine::OCTET,
            links,
            mounts: None,
        };
        host.make_directories(ram_mb)?;
        Ok(host)
    }

    /// Lets guests of this host have so many MiB of RAM in explicit huge pages, in [`Host::huge_directory`]. For a host
    /// that is a machine of its own; a lab does it for its hosts.
    pub fn give_huge_pages(&self, mb: u64) -> Result<(), LabError> {
        crate::huge::claim_pages(&self.directory, mb)?;
        crate::huge::mount(&self.huge_directory())
    }

    /// Short name: `a`, `b`, …
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Position in the lab, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Name of the network namespace, for `ip netns exec`.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Sockets, logs and serial files.
    pub fn run_directory(&self) -> PathBuf {
        self.directory.join("run")
    }

    /// What survives a restart of the agent.
    pub fn state_directory(&self) -> PathBuf {
        self.directory.join("state")
    }

    /// A tmpfs of its own (huge pages on advice) for guest RAM files.
    pub fn ram_directory(&self) -> PathBuf {
        self.directory.join("ram")
    }

    /// A hugetlbfs for guest RAM files in explicit huge pages, where the lab was built with them.
    pub fn huge_directory(&self) -> PathBuf {
        self.directory.join("huge")
    }

    /// Device of a link: the same name on every host.
    pub fn device(&self, link: usize) -> String {
        format!("l{link}")
    }

    /// Address on a link, in a /24 that all hosts of the link share.
    pub fn address(&self, link: usize) -> Ipv4Addr {
        address(self.octet, link, self.index)
    }

    /// Addresses on all links, in their order.
    pub fn addresses(&self) -> Vec<Ipv4Addr> {
        (0..self.links).map(|link| self.address(link)).collect()
    }

    /// All that it has: the folders above, and the agent's configuration.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The same host, whose commands run in this mount namespace.
    pub(crate) fn with_mounts(self, mounts: PathBuf) -> Host {
        Host { mounts: Some(mounts), ..self }
    }

    /// A command that runs in the host. The child's process id is the program's own.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = match &self.mounts {
            None => Command::new("ip"),
            Some(mounts) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--mount={}", mounts.display())).arg("ip");
                command
            }
        };
        command.args(["netns", "exec", &self.namespace]).arg(program);
        command
    }

    /// Makes a tap device on the guest LAN for a guest's network card.
    pub fn add_tap(&self, name: &str) -> Result<(), LabError> {
        tool::ip(&self.namespace, &["tuntap", "add", "dev", name, "mode", "tap"])?;
        lab::no_ipv6(&self.namespace, name)?;
        tool::ip(&self.namespace, &["link", "set", name, "master", "br0", "up"]).map(drop)
    }

    /// Removes a tap device.
    pub fn remove_tap(&self, name: &str) -> Result<(), LabError> {
        tool::ip(&self.namespace, &["tuntap", "del", "dev", name, "mode", "tap"]).map(drop)
    }

    /// Runs `body` on a thread inside the host's network; sockets made there stay there.
    pub fn inside<T: Send>(&self, body: impl FnOnce() -> Result<T, LabError> + Send) -> Result<T, LabError> {
        netns::inside(&self.namespace, body)
    }

    pub(crate) fn create(&self, ram_mb: u64) -> Result<(), LabError> {
        netns::create(&self.namespace)?;
        self.make_directories(ram_mb)
    }

    fn make_directories(&self, ram_mb: u64) -> Result<(), LabError> {
        for directory in [self.run_directory(), self.state_directory(), self.ram_directory()] {
            // QEMUs of libvirt, which are not root, pass through the host's own folder.
            std::fs::create_dir_all(&self.directory).map_err(io_error("create", &self.directory))?;
            let private = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory);
            private.map_err(io_error("create", &directory))?;
        }
        mount_ram(&self.ram_directory(), ram_mb)
    }
}

pub(crate) fn address(octet: u8, link: usize, host: usize) -> Ipv4Addr {
    let byte = |value: usize| u8::try_from(value).unwrap_or(u8::MAX);
    Ipv4Addr::new(10, octet, byte(link), byte(host + 1))
}

fn mount_ram(directory: &Path, ram_mb: u64) -> Result<(), LabError> {
    let options = format!("huge=advise,mode=0711,size={ram_mb}m");
    let path = directory.to_string_lossy();
    tool::run("mount", &["-t", "tmpfs", "-o", &options, "linerate-lab", &path]).map(drop)
}
