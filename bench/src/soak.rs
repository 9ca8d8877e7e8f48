//! Guests go back and forth while they write memory and disk, and notice what is lost.

use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use linerate_api::BlackoutSplit;
use linerate_lab::{DiskMode, GuestParameters, GuestSpec, QemuVersion, guest, make_disk};
use serde::Serialize;

use crate::moving::Moving;
use crate::output::{Progress, replace, replace_json};
use crate::site::{BEATS, PORT, Site, SiteOptions, console_at};
use crate::statistics::{Spread, spread};
use crate::transcript::Transcript;
use crate::{Common, interrupt};

const NAME: &str = "soak";
const DISK_MB: u64 = 128;

#[derive(Debug, Clone, Args)]
pub struct Flags {
    #[command(flatten)]
    common: Common,
    /// Migrations over all combinations together
    #[arg(long, default_value_t = 200)]
    migrations: usize,
    /// Compare all guest RAM on both sides each time
    #[arg(long)]
    verify: bool,
    /// Only combinations whose name (such as `10.0 none+io_uring`) contains one of these
    #[arg(long, value_name = "PART,…", value_delimiter = ',')]
    only: Vec<String>,
    /// What each guest reads and writes on its disk, MiB/s; 0: as much as it can
    #[arg(long, default_value_t = 16)]
    disk_mbps: u64,
    /// Its threads that do so
    #[arg(long, default_value_t = 2)]
    disk_threads: u32,
    /// What each guest writes into the memory of a display adapter, MiB/s; without it, it has no display adapter
    #[arg(long)]
    screen_mbps: Option<u64>,
    /// Links, as for linerate-lab
    #[arg(long, default_value = "2x2500")]
    links: String,
}

/// How a guest uses its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cache {
    Writeback,
    NoneIoUring,
    NoneNative,
}

impl Cache {
    const ALL: [Cache; 3] = [Cache::Writeback, Cache::NoneIoUring, Cache::NoneNative];

    fn name(self) -> &'static str {
        match self {
            Cache::Writeback => "writeback",
            Cache::NoneIoUring => "none+io_uring",
            Cache::NoneNative => "none+native",
        }
    }

    fn aio(self) -> Option<&'static str> {
        match self {
            Cache::Writeback => None,
            Cache::NoneIoUring => Some("io_uring"),
            Cache::NoneNative => Some("native"),
        }
    }

    fn mode(self) -> DiskMode {
        if self == Cache::Writeback { DiskMode::Buffered } else { DiskMode::Direct }
    }
}

#[derive(Debug, Clone, Serialize)]
struct Move {
    number: usize,
    from: usize,
    outcome: String,
    completed: bool,
    total_s: f64,
    blackout_ms: Option<f64>,
    blackout: Option<BlackoutSplit>,
    device_state_bytes: u64,
    pauses_ms: Option<f64>,
    seen_gap_ms: f64,
    verified: Option<bool>,
    /// Everything that is not as it must be.
    differences: Vec<String>,
}

/// All migrations of a QEMU and a cache mode.
#[derive(Debug, Clone, Serialize)]
struct Combination {
    qemu: &'static str,
    cache: &'static str,
    planned: usize,
    failures: usize,
    differences: usize,
    blackout_ms: Option<Spread>,
    passes: usize,
    disk_operations: u64,
    error: Option<String>,
    moves: Vec<Move>,
}

/// Runs it; false if anything was different or failed.
pub fn run(flags: Flags, json: bool) -> anyhow::Result<bool> {
    let combinations: Vec<(QemuVersion, Cache)> =
        QemuVersion::ALL.into_iter().flat_map(|qemu| Cache::ALL.map(|cache| (qemu, cache))).collect();
    let wanted = |(qemu, cache): &(QemuVersion, Cache)| {
        let name = format!("{} {}", crate::run::version_name(*qemu), cache.name());
        flags.only.is_empty() || flags.only.iter().any(|part| name.contains(part))
    };
    let combinations: Vec<_> = combinations.into_iter().filter(wanted).collect();
    anyhow::ensure!(
        !combinations.is_empty(),
        "no combination has such a name, as `10.0 none+io_uring` is one"
    );
    let mut progress = Progress::new(flags.migrations)?;
    let mut results: Vec<Combination> = Vec::new();
    for (index, (qemu, cache)) in combinations.iter().enumerate() {
        // The remainder goes to the first ones.
        let planned = (flags.migrations + combinations.len() - 1 - index) / combinations.len();
        if interrupt::asked() {
            break;
        }
        if planned == 0 {
            let (qemu, cache) = (crate::run::version_name(*qemu), cache.name());
            progress
                .print(&format!("not run: {qemu} {cache}, as there are fewer migrations than combinations"));
            continue;
        }
        let mut result = Combination::new(*qemu, *cache, planned);
        if let Err(error) = soak(&flags, *qemu, *cache, &mut result, &mut progress) {
            result.error = Some(format!("{error:#}"));
            progress.print(&format!("{} {}: {error:#}", result.qemu, result.cache));
        }
        result.sum_up();
        results.push(result);
        save(&flags, &results)?;
    }
    if json {
        println!("{}", serde_json::to_string(&results)?);
    } else {
        println!("{}", table(&results));
    }
    let good = |one: &Combination| {
        one.failures + one.differences == 0 && one.error.is_none() && one.moves.len() == one.planned
    };
    Ok(results.iter().all(good) && !interrupt::asked())
}

impl Combination {
    fn new(qemu: QemuVersion, cache: Cache, planned: usize) -> Combination {
        Combination {
            qemu: crate::run::version_name(qemu),
            cache: cache.name(),
            planned,
            failures: 0,
            differences: 0,
            blackout_ms: None,
            passes: 0,
            disk_operations: 0,
            error: None,
            moves: Vec::new(),
        }
    }

    fn sum_up(&mut self) {
        self.failures = self.moves.iter().filter(|one| !one.completed).count();
        self.differences = self.moves.iter().filter(|one| !one.differences.is_empty()).count();
        self.blackout_ms = spread(self.moves.iter().filter_map(|one| one.blackout_ms));
    }
}

fn soak(
    flags: &Flags,
    qemu: QemuVersion,
    cache: Cache,
    result: &mut Combination,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let options = SiteOptions {
        links: flags.links.clone(),
        linerate: flags.common.binary()?,
        ram_mb: 4096,
        ..Default::default()
    };
    let site = Site::new(&options)?;
    let image = site.lab.directory().join("disk.img");
    make_disk(&image, DISK_MB)?;
    let parameters = GuestParameters {
        mem_mb: 256,
        dirty_mbps: 60,
        dirty_ws_mb: Some(32),
        disk_mbps: flags.disk_mbps,
        disk_threads: flags.disk_threads,
        screen_mbps: flags.screen_mbps,
        disk_generation: Some(1),
        net: Some(guest::heartbeat(&site.lab, 0, PORT, BEATS)),
        ..Default::default()
    };
    let spec = GuestSpec::new(NAME, parameters).disk(&image, cache.mode()).tap("tap0").qemu(qemu);
    progress.doing(&format!("{} {}: the guest starts", result.qemu, result.cache));
    let mut console = site.start_guest(0, &spec, cache.aio())?;
    console.wait_passes(2, Duration::from_secs(120))?;
    for number in 0..result.planned {
        interrupt::check()?;
        progress.doing(&format!("{} {} move {}", result.qemu, result.cache, number + 1));
        let one = back_or_forth(flags, &site, &spec, &mut console, number)?;
        let note = if one.differences.is_empty() { String::new() } else { format!(" {:?}", one.differences) };
        let blackout = one.blackout_ms.map_or("-".to_owned(), |ms| format!("{ms:.1} ms"));
        progress.done(&format!(
            "{} {} move {}: {}, blackout {blackout}{note}",
            result.qemu,
            result.cache,
            number + 1,
            one.outcome
        ));
        let go_on = one.completed;
        if !one.differences.is_empty() || !go_on {
            progress.print(&site.logs());
        }
        result.moves.push(one);
        result.passes = console.passes().len();
        result.disk_operations = disk_operations(&site);
        result.sum_up();
        replace_json(&flags.common.out.join("soak.partial.json"), result)?;
        if !go_on {
            anyhow::bail!("a migration did not complete; the rest of this combination is left out");
        }
    }
    Ok(())
}

fn back_or_forth(
    flags: &Flags,
    site: &Site,
    spec: &GuestSpec,
    console: &mut Transcript,
    number: usize,
) -> anyhow::Result<Move> {
    let (from, to) = (number % 2, (number + 1) % 2);
    let (path, skip) = console_at(site.host(to)?, spec);
    let since = site.observer.now();
    let mut options = vec!["--link-timeout", "20s"];
    options.extend(flags.verify.then_some("--verify"));
    let ending =
        Moving::begin(site.agent(from)?, NAME, &site.to(to)?, &options)?.finish(Duration::from_secs(180));
    let mut differences = Vec::new();
    if ending.completed() {
        console.arrived(path, skip);
        // A page or a slot that was harmed is only seen when the guest comes to it again.
        if let Err(error) = console.wait_passes(2, Duration::from_secs(60)) {
            differences.push(format!("{error:#}"));
        }
        disk_goes_on(site, &mut differences);
    }
    let seen = site.observer.blackout(site.lab.guest_address(0), since);
    differences.extend(console.damage());
    if seen.mem_bad + seen.disk_bad > 0 {
        differences.push(format!("heartbeat: {} bad pages, {} bad slots", seen.mem_bad, seen.disk_bad));
    }
    if seen.out_of_order > 0 {
        differences.push(format!("heartbeat: {} packets of an older guest", seen.out_of_order));
    }
    let report = ending.report.as_ref();
    if flags.verify && ending.completed() && report.and_then(|report| report.verified) != Some(true) {
        differences.push("RAM was not found the same".to_owned());
    }
    Ok(Move {
        number,
        from,
        outcome: ending.text(),
        completed: ending.completed(),
        total_s: ending.total.as_secs_f64(),
        blackout_ms: report.and_then(|report| Some(report.blackout?.total_us as f64 / 1e3)),
        blackout: report.and_then(|report| report.blackout),
        device_state_bytes: report.map_or(0, |report| report.device_state_bytes),
        pauses_ms: report.map(|report| report.pauses_us as f64 / 1e3),
        seen_gap_ms: seen.longest_gap_us as f64 / 1e3,
        verified: report.and_then(|report| report.verified),
        differences,
    })
}

fn disk_operations(site: &Site) -> u64 {
    site.observer.beats(site.lab.guest_address(0)).last().map_or(0, |beat| beat.disk_ops)
}

fn disk_goes_on(site: &Site, differences: &mut Vec<String>) {
    let (before, end) = (disk_operations(site), Instant::now() + Duration::from_secs(20));
    while disk_operations(site) < before + 50 && !interrupt::asked() {
        if Instant::now() >= end {
            differences.push("the disk makes no progress".to_owned());
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn save(flags: &Flags, results: &[Combination]) -> anyhow::Result<()> {
    let out = &flags.common.out;
    replace_json(&out.join("soak.json"), &results).context("soak.json")?;
    // What it held is in soak.json now.
    let _ = std::fs::remove_file(out.join("soak.partial.json"));
    replace(&out.join("soak.md"), &table(results))
}

fn table(results: &[Combination]) -> String {
    let mut text = String::from(
        "| QEMU | cache | migrations | failures | with differences | blackout min / median / max, ms | disk operations |\n|---|---|---|---|---|---|---|\n",
    );
    for one in results {
        let blackout = one.blackout_ms.map_or("–".to_owned(), |spread| {
            format!("{:.1} / {:.1} / {:.1}", spread.min, spread.median, spread.max)
        });
        let done = one.moves.len();
        let error = one.error.as_ref().map_or(String::new(), |error| format!(" {error}"));
        text.push_str(&format!(
            "| {} | {} | {done} of {} | {}{error} | {} | {blackout} | {} |\n",
            one.qemu, one.cache, one.planned, one.failures, one.differences, one.disk_operations
        ));
    }
    text
}
