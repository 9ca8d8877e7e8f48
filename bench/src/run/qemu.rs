//! QEMU's own migration, as its users run it: RAM is memory of the process, the destination waits with `-incoming`.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use linerate_lab::{GuestSpec, Qemu, QemuOptions, Qmp, Ram};
use serde_json::{Value, json};

use super::cases::Method;
use super::credentials;
use crate::interrupt;
use crate::site::Site;
use crate::transcript::Transcript;

const PORT: u16 = 4444;
const FILL_WAIT: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(5);
/// 10^11 bytes a second: no limit.
const BANDWIDTH: u64 = 100_000_000_000;
const DOWNTIME_MS: u64 = 300;

/// A guest of QEMU alone.
#[derive(Debug)]
pub struct Baseline {
    spec: GuestSpec,
    qemu: Qemu,
    pub at: usize,
    pub console: Transcript,
    /// Folder of its certificates for TLS, if they were made.
    credentials: Option<PathBuf>,
}

/// What QEMU reported of a migration.
#[derive(Debug, Default)]
pub struct QemuResult {
    /// It reached the destination.
    pub completed: bool,
    pub note: String,
    /// From `migrate` to running at the destination.
    pub total: Duration,
    pub start: Duration,
    /// `query-migrate` at the end.
    pub answer: Value,
}

impl Baseline {
    /// Starts the guest on host 0, and waits until its memory is filled.
    pub fn start(site: &Site, spec: GuestSpec) -> anyhow::Result<Baseline> {
        let options = QemuOptions { ram: Ram::Plain, ..Default::default() };
        let qemu = Qemu::start(site.host(0)?, &spec, &options)?;
        let mut console = Transcript::new(spec.serial(site.host(0)?));
        console.wait_for("FILLED", FILL_WAIT)?;
        Ok(Baseline { spec, qemu, at: 0, console, credentials: None })
    }

    /// What the methods with TLS need.
    pub fn make_credentials(&mut self, site: &Site) -> anyhow::Result<()> {
        self.credentials = Some(credentials::write(site.lab.directory())?);
        Ok(())
    }

    /// Process of its QEMU.
    pub fn pid(&mut self) -> u32 {
        self.qemu.process().pid()
    }

    /// Moves it to the other host. `during` is called about every 5 ms with the time since the request.
    /// `ready` is called with the destination's process once it waits.
    pub fn go(
        &mut self,
        site: &Site,
        method: Method,
        channels: Option<u32>,
        limit: Duration,
        ready: impl FnOnce(u32),
        mut during: impl FnMut(Duration) -> anyhow::Result<()>,
    ) -> anyhow::Result<QemuResult> {
        let to = 1 - self.at;
        let mptcp = method == Method::Mptcp;
        mptcp_endpoints(site, self.at, mptcp)?;
        let options = if mptcp { ",mptcp=on" } else { "" };
        let uri = format!("tcp:{}:{PORT}{options}", site.host(to)?.address(0));
        // On every address: a subflow to an address that the destination signalled needs a listener there.
        let listen = format!("tcp:0.0.0.0:{PORT}{options}");
        let began = Instant::now();
        let options =
            QemuOptions { ram: Ram::Plain, incoming: Some("defer".to_owned()), ..Default::default() };
        let mut other = Qemu::start(site.host(to)?, &self.spec, &options)?;
        let start = began.elapsed();
        let (mut here, mut there) = (self.qemu.qmp()?, other.qmp()?);
        let tls = self.credentials.clone().filter(|_| method == Method::MultifdTls);
        set_up(&mut there, channels, tls.as_ref().map(|folder| (folder, "server")))?;
        there.execute("migrate-incoming", json!({ "uri": listen }))?;
        set_up(&mut here, channels, tls.as_ref().map(|folder| (folder, "client")))?;
        here.execute(
            "migrate-set-parameters",
            json!({ "max-bandwidth": BANDWIDTH, "downtime-limit": DOWNTIME_MS }),
        )?;
        ready(other.process().pid());
        let began = Instant::now();
        here.execute("migrate", json!({ "uri": uri }))?;
        let mut result = QemuResult { start, ..QemuResult::default() };
        result.answer = follow(&mut here, began, limit, &mut result.note, &mut during)
            .map_err(|error| self.ended(error, &result.note))?;
        result.completed = result.answer["status"] == "completed";
        if !result.completed {
            result.note = format!("{} {}", result.note, result.answer["error-desc"].as_str().unwrap_or(""))
                .trim()
                .to_owned();
            result.total = began.elapsed();
            ensure!(
                runs(&mut here).map_err(|error| self.ended(error, &result.note))?,
                "after a migration that failed ({}) QEMU's guest does not run",
                result.note
            );
            return Ok(result);
        }
        while !runs(&mut there)? {
            ensure!(began.elapsed() < limit + Duration::from_secs(30), "QEMU's destination does not run");
            std::thread::sleep(Duration::from_millis(1));
        }
        result.total = began.elapsed();
        self.console.arrived(self.spec.serial(site.host(to)?), 0);
        drop((here, there));
        self.qemu = other;
        self.at = to;
        Ok(result)
    }
}

impl Baseline {
    /// An error of its control connection, and how its QEMU ended if that is why; with status 0 when its guest reboots.
    fn ended(&mut self, error: anyhow::Error, note: &str) -> anyhow::Error {
        match self.qemu.process().wait(Duration::from_secs(2)) {
            Ok(status) => error.context(format!("QEMU's own source ended, {status} ({note})")),
            Err(_) => error,
        }
    }
}

/// `tls`: folder of the certificates and which end this is; plain text if none.
fn set_up(qmp: &mut Qmp, channels: Option<u32>, tls: Option<(&PathBuf, &str)>) -> anyhow::Result<()> {
    let capability = json!({ "capability": "multifd", "state": channels.is_some() });
    qmp.execute("migrate-set-capabilities", json!({ "capabilities": [capability] }))?;
    if let Some(channels) = channels {
        qmp.execute("migrate-set-parameters", json!({ "multifd-channels": channels }))?;
    }
    let (id, name) = match tls {
        Some((folder, end)) => {
            let id = format!("tls-{end}");
            // Left of a migration that failed.
            let _ = qmp.execute("object-del", json!({ "id": id }));
            let object = json!({
                "qom-type": "tls-creds-x509", "id": id, "dir": folder, "endpoint": end, "verify-peer": true
            });
            qmp.execute("object-add", object)?;
            (id, credentials::NAME)
        }
        None => (String::new(), ""),
    };
    qmp.execute("migrate-set-parameters", json!({ "tls-creds": id, "tls-hostname": name }))?;
    Ok(())
}

fn follow(
    qmp: &mut Qmp,
    began: Instant,
    limit: Duration,
    note: &mut String,
    during: &mut impl FnMut(Duration) -> anyhow::Result<()>,
) -> anyhow::Result<Value> {
    loop {
        let answer = qmp.execute("query-migrate", Value::Null)?;
        match answer["status"].as_str() {
            // QEMU 7.2 says that it is complete a moment before it has computed the times.
            Some("completed") if answer["total-time"] == 0 => {}
            Some("completed" | "failed" | "cancelled") => return Ok(answer),
            _ if began.elapsed() > limit + Duration::from_secs(60) => {
                bail!("QEMU's migration does not end: {answer}")
            }
            _ => {}
        }
        interrupt::check()?;
        if began.elapsed() > limit && note.is_empty() {
            *note = format!("cancelled after {} s: it did not converge", limit.as_secs());
            qmp.execute("migrate_cancel", Value::Null)?;
        }
        during(began.elapsed())?;
        std::thread::sleep(POLL);
    }
}

fn runs(qmp: &mut Qmp) -> anyhow::Result<bool> {
    Ok(qmp.execute("query-status", Value::Null)?["status"] == "running")
}

/// The destination offers its other addresses, the source takes the offers: one more subflow for each link.
fn mptcp_endpoints(site: &Site, from: usize, on: bool) -> anyhow::Result<()> {
    for host in site.lab.hosts() {
        mptcp(host.namespace(), &["endpoint", "flush"])?;
        mptcp(host.namespace(), &["limits", "set", "subflows", "8", "add_addr_accepted", "8"])?;
    }
    let destination = site.host(1 - from)?;
    for link in (1..destination.addresses().len()).filter(|_| on) {
        let (address, device) = (destination.address(link).to_string(), destination.device(link));
        mptcp(destination.namespace(), &["endpoint", "add", &address, "dev", &device, "signal"])?;
    }
    Ok(())
}

fn mptcp(namespace: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new("ip");
    command.args(["-n", namespace, "mptcp"]).args(arguments);
    let done = command.output().context("cannot start ip")?;
    ensure!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr).trim());
    Ok(())
}
