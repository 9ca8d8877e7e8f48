//! How memory and a copied disk share the links, with both always wanting more: what `--storage-share` asks for against
//! what the links carried.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use linerate_api::{GuestSummary, Progress};
use linerate_lab::guest::kvm_is_missing;
use linerate_lab::{
    Agent, DiskMode, GuestParameters, GuestSpec, Lab, LinkSpec, Qemu, QemuOptions, QemuVersion, Qmp, Ram,
    make_disk,
};
use serde::Serialize;
use serde_json::json;

use crate::moving::Moving;
use crate::output::{self, replace, replace_json};
use crate::site::{agents, answer};
use crate::statistics::{Spread, spread};
use crate::transcript::Transcript;
use crate::{Common, interrupt};

const NAME: &str = "g";
const SHARES: [u8; 3] = [20, 50, 80];
const DISK_MB: u64 = 24;
/// What QEMU lets the guest write to its disk until that is the same over there, bytes/s, so that it ever is.
const SLOWLY: u64 = 1 << 20;
/// From the first bytes of memory on, until both have all that they may have in flight.
const SETTLE: Duration = Duration::from_secs(1);
/// For so long it is measured.
const WINDOW: Duration = Duration::from_secs(3);
/// Only a hang meets it.
const LIMIT: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, clap::Args)]
pub struct Flags {
    #[command(flatten)]
    common: Common,
    /// How often each share is taken, in turn
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Rate of each of the two links, Mb/s
    #[arg(long, default_value_t = 100)]
    mbps: u64,
}

impl Flags {
    /// What both links carry, bytes/s.
    fn bytes_per_s(&self) -> u64 {
        2 * self.mbps * 1_000_000 / 8
    }
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Split {
    asked_percent: u8,
    round: usize,
    /// How long was looked.
    seconds: f64,
    /// Of the guest's disk, by QEMU's mirror.
    disk_bytes: u64,
    /// Of its memory, by what the links carried.
    ram_bytes: u64,
    /// Of everything, with headers.
    link_bytes: u64,
    /// What was least left of the disk at any look: with none, it wanted nothing more.
    disk_left_bytes_min: u64,
}

impl Split {
    fn disk_percent(&self) -> f64 {
        self.disk_bytes as f64 / (self.disk_bytes + self.ram_bytes).max(1) as f64 * 100.0
    }

    fn link_mbps(&self) -> f64 {
        self.link_bytes as f64 * 8.0 / 1e6 / self.seconds
    }
}

/// Runs it. True: there are no targets that could be missed here.
pub fn run(flags: &Flags, json: bool) -> anyhow::Result<bool> {
    if let Some(error) = kvm_is_missing() {
        bail!("the guest that writes its disk so fast needs /dev/kvm: {error}");
    }
    let mut stage = Stage::new(flags)?;
    let mut progress = output::Progress::new(flags.rounds * SHARES.len())?;
    let mut splits = Vec::new();
    for round in 1..=flags.rounds {
        for share in SHARES {
            interrupt::check()?;
            progress.doing(&format!("round {round}: {share} % for disks"));
            let split = stage.measure(share, round)?;
            let (disk, rate) = (split.disk_percent(), split.link_mbps());
            let left = split.disk_left_bytes_min >> 20;
            progress.done(&format!(
                "{share} % asked for, {disk:.1} % carried, {rate:.0} Mb/s; of the disk {left} MiB were left at least"
            ));
            splits.push(split);
            replace_json(&flags.common.out.join("storage-share.json"), &splits)?;
        }
    }
    let text = table(&splits);
    replace(&flags.common.out.join("storage-share.md"), &text)?;
    if json {
        println!("{}", serde_json::to_string(&splits)?);
    } else {
        print!("{text}");
    }
    Ok(true)
}

fn table(splits: &[Split]) -> String {
    let mut text = String::from("| share asked for, % | of disks, % | both links, Mb/s |\n|---|---|---|\n");
    let show = |spread: Spread| format!("{:.1} ({:.1} to {:.1})", spread.median, spread.min, spread.max);
    for share in SHARES {
        let of = || splits.iter().filter(|split| split.asked_percent == share);
        if let (Some(disk), Some(rate)) =
            (spread(of().map(Split::disk_percent)), spread(of().map(Split::link_mbps)))
        {
            text += &format!("| {share} | {} | {} |\n", show(disk), show(rate));
        }
    }
    text
}

/// Two hosts that do not share disks, and a guest at the first that writes its disk as fast as its QEMU lets it.
struct Stage {
    /// What QEMU lets the guest write to its disk once memory is being copied, bytes/s.
    fast: u64,
    qmp: Qmp,
    _guest: Qemu,
    agents: Vec<Agent>,
    _lab: Lab,
}

impl Stage {
    fn new(flags: &Flags) -> anyhow::Result<Stage> {
        let lab = Lab::builder().links([LinkSpec::shaped(flags.mbps); 2]).build()?;
        let [here, there] = ["here", "there"].map(|name| lab.directory().join(name));
        for folder in [&here, &there] {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let binary = flags.common.binary()?;
        let paths = format!("paths = {{ \"{}/\" = \"{}/\" }}\n", here.display(), there.display());
        let agents = agents(&lab, &binary, &paths)?;
        let image = here.join("g.img");
        make_disk(&image, DISK_MB)?;
        // More memory than the links carry for as long as is looked.
        let seconds = (SETTLE + 2 * WINDOW).as_secs();
        let parameters = GuestParameters {
            mem_mb: (flags.bytes_per_s() * seconds) >> 20,
            dirty_ws_mb: Some(1),
            disk_mbps: 0,
            disk_generation: Some(1),
            ..GuestParameters::default()
        };
        let spec =
            GuestSpec::user_mode(NAME, parameters).disk(&image, DiskMode::Direct).qemu(QemuVersion::Ten);
        let (guest, qmp) = start(&lab, agents.first().context("a lab without hosts")?, &spec)?;
        // More than all that the links carry.
        Ok(Stage { fast: 2 * flags.bytes_per_s(), qmp, _guest: guest, agents, _lab: lab })
    }

    /// How fast the guest may write its disk.
    fn let_write(&mut self, bytes_per_s: u64) -> anyhow::Result<()> {
        let limits = json!({
            "device": "disk0", "bps": 0, "bps_rd": 0, "bps_wr": bytes_per_s, "iops": 0, "iops_rd": 0, "iops_wr": 0,
        });
        self.qmp.execute("block_set_io_throttle", limits)?;
        Ok(())
    }

    /// Begins to move the guest, looks while memory and disk are being copied, and cancels.
    fn measure(&mut self, share: u8, round: usize) -> anyhow::Result<Split> {
        self.let_write(SLOWLY)?;
        let [source, destination] = self.agents.as_slice() else { bail!("a lab of two hosts") };
        let (address, percent) = (destination.address(0).to_string(), share.to_string());
        let flags = ["--copy-storage", "all", "--storage-share", &percent];
        let mut moving = Moving::begin(source, NAME, &address, &flags)?;
        let end = Instant::now() + LIMIT;
        let next = |moving: &mut Moving, what: &str| {
            moving.progress(end).with_context(|| format!("no progress {what}"))
        };
        while next(&mut moving, "before memory is copied")?.1.sent_bytes == 0 {}
        self.let_write(self.fast)?;
        let from = Instant::now() + SETTLE;
        let left = |progress: &Progress| {
            progress.disks.as_ref().map_or(0, |disks| disks.total_bytes.saturating_sub(disks.done_bytes))
        };
        let mut least = u64::MAX;
        let mut after = |moving: &mut Moving, instant: Instant| -> anyhow::Result<(u64, Progress)> {
            loop {
                let seen = next(moving, "while memory is copied")?;
                ensure!(seen.1.round == 0, "all of the memory was sent before it was looked at");
                if Instant::now() >= from {
                    least = least.min(left(&seen.1));
                }
                if Instant::now() >= instant {
                    return Ok(seen);
                }
            }
        };
        let (began, first) = after(&mut moving, from)?;
        let (ended, last) = after(&mut moving, from + WINDOW)?;
        moving.cancel()?;
        let ending = moving.finish(LIMIT);
        ensure!(ending.exit == Some(5), "it was not cancelled: {}", ending.text());
        let disk = |progress: &Progress| progress.disks.as_ref().map_or(0, |disks| disks.done_bytes);
        let links = |progress: &Progress| progress.links.iter().map(|link| link.sent_bytes).sum::<u64>();
        Ok(Split {
            asked_percent: share,
            round,
            seconds: ended.saturating_sub(began) as f64 / 1e6,
            disk_bytes: disk(&last).saturating_sub(disk(&first)),
            ram_bytes: last.sent_bytes.saturating_sub(first.sent_bytes),
            link_bytes: links(&last).saturating_sub(links(&first)),
            disk_left_bytes_min: least,
        })
    }
}

/// A guest that its agent adopts, and a control connection beside the agent's.
fn start(lab: &Lab, agent: &Agent, spec: &GuestSpec) -> anyhow::Result<(Qemu, Qmp)> {
    let host = lab.host(0)?;
    let beside = lab.directory().join("beside.qmp");
    let arguments = ["-qmp".to_owned(), format!("unix:{},server=on,wait=off", beside.display())];
    let options =
        QemuOptions { ram: Ram::Plain, locks: true, arguments: arguments.into(), ..QemuOptions::default() };
    let guest = Qemu::start(host, spec, &options)?;
    Transcript::new(spec.serial(host)).wait_passes(2, LIMIT)?;
    let socket = host.run_directory().join(format!("{NAME}.qmp"));
    let mut adopt = agent.client();
    adopt.args(["vm", "adopt", "--json", "--qmp"]).arg(&socket);
    answer::<GuestSummary>(adopt)?;
    Ok((guest, Qmp::connect(Path::new(&beside))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_carried_is_shown_by_share() {
        let split = |asked_percent, disk_bytes| Split {
            asked_percent,
            round: 1,
            seconds: 2.0,
            disk_bytes,
            ram_bytes: 10_000_000 - disk_bytes,
            link_bytes: 10_000_000,
            disk_left_bytes_min: 1,
        };
        let text = table(&[split(20, 1_900_000), split(20, 2_100_000), split(80, 8_000_000)]);
        assert!(text.contains("| 20 | 20.0 (19.0 to 21.0) | 40.0 (40.0 to 40.0) |\n| 80 | 80.0"), "{text}");
    }
}
