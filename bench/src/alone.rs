//! How whole guests arrive that QEMU moves by itself, without Linerate: what is QEMU's own doing must be known before
//! anything is looked for in Linerate.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use linerate_lab::{
    DiskMode, GuestParameters, GuestSpec, Lab, LinkSpec, Qemu, QemuOptions, QemuVersion, Ram, make_disk,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::interrupt;
use crate::output::{Progress, replace, replace_json};
use crate::transcript::Transcript;

const DISK_MB: u64 = 128;
/// QEMU's default.
const DOWNTIME_MS: u64 = 300;
const LIMIT: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Args)]
pub struct Flags {
    /// Folder for results; made if it is not there
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Moves of each kind of guest
    #[arg(long, default_value_t = 12)]
    moves: usize,
    /// Only kinds whose name (such as `10.0 screen`) contains one of these
    #[arg(long, value_name = "PART,…", value_delimiter = ',')]
    only: Vec<String>,
    /// Threads of this program that keep the machine busy meanwhile
    #[arg(long, default_value_t = 0)]
    busy: usize,
    /// What QEMU may send, MiB/s; a low one makes for many rounds; 0: no limit
    #[arg(long, default_value_t = 0)]
    bandwidth: u64,
    /// For so long QEMU goes on copying, round after round, before it may stop the guest, s
    #[arg(long, default_value_t = 0)]
    copying: u64,
    /// What a guest writes into its memory, MiB/s
    #[arg(long, default_value_t = 10)]
    dirty_mbps: i64,
    /// What a guest writes into the memory of its display adapter, MiB/s; 0: as much as it can
    #[arg(long, default_value_t = 4)]
    screen_mbps: u64,
}

/// What a guest does beside writing its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Memory,
    Disk,
    Screen,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Memory, Kind::Disk, Kind::Screen];

    fn name(self) -> &'static str {
        match self {
            Kind::Memory => "memory",
            Kind::Disk => "disk",
            Kind::Screen => "screen",
        }
    }
}

/// All moves of one kind.
#[derive(Debug, Clone, Serialize)]
struct Moved {
    qemu: &'static str,
    guest: &'static str,
    moves: usize,
    /// Of these guests nothing more was to be expected: the next move is of a fresh one.
    harmed: usize,
    /// The first lines about each harm.
    seen: Vec<String>,
    error: Option<String>,
}

/// Threads that never rest; they end when this goes.
struct Busy(Arc<AtomicBool>);

impl Busy {
    fn new(threads: usize) -> Busy {
        let end = Arc::new(AtomicBool::new(false));
        for _ in 0..threads {
            let end = Arc::clone(&end);
            std::thread::spawn(move || {
                while !end.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Busy(end)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs it; a harmed guest is a result, not a failure.
pub fn run(flags: Flags, json: bool) -> anyhow::Result<bool> {
    let _busy = Busy::new(flags.busy);
    let kinds = QemuVersion::ALL.into_iter().flat_map(|qemu| Kind::ALL.map(|kind| (qemu, kind)));
    let wanted = |(qemu, kind): &(QemuVersion, Kind)| {
        let name = format!("{} {}", crate::run::version_name(*qemu), kind.name());
        flags.only.is_empty() || flags.only.iter().any(|part| name.contains(part))
    };
    let kinds: Vec<_> = kinds.filter(wanted).collect();
    let mut progress = Progress::new(kinds.len() * flags.moves)?;
    let mut results = Vec::new();
    for (qemu, kind) in kinds {
        let (qemu_name, guest) = (crate::run::version_name(qemu), kind.name());
        let mut moved = Moved { qemu: qemu_name, guest, moves: 0, harmed: 0, seen: Vec::new(), error: None };
        while moved.moves < flags.moves && moved.error.is_none() && !interrupt::asked() {
            if let Err(error) = guests(&flags, qemu, kind, &mut moved, &mut progress) {
                moved.error = Some(format!("{error:#}"));
                progress.print(&format!("{qemu_name} {guest}: {error:#}"));
            }
        }
        results.push(moved);
        replace_json(&flags.out.join("alone.json"), &results)?;
    }
    replace(&flags.out.join("alone.md"), &table(&results))?;
    if json {
        println!("{}", serde_json::to_string(&results)?);
    } else {
        println!("{}", table(&results));
    }
    Ok(results.iter().all(|moved| moved.error.is_none()) && !interrupt::asked())
}

/// One guest goes back and forth until it is harmed, or has moved often enough.
fn guests(
    flags: &Flags,
    version: QemuVersion,
    kind: Kind,
    moved: &mut Moved,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let lab = Lab::builder().links([LinkSpec::unshaped()]).ram_mb(1024).build()?;
    let parameters = GuestParameters {
        mem_mb: 128,
        dirty_mbps: flags.dirty_mbps,
        dirty_ws_mb: Some(8),
        screen_mbps: (kind == Kind::Screen).then_some(flags.screen_mbps),
        disk_generation: (kind == Kind::Disk).then_some(1),
        ..GuestParameters::default()
    };
    let mut spec = GuestSpec::new("alone", parameters).qemu(version);
    if kind == Kind::Disk {
        let image = lab.directory().join("disk.img");
        make_disk(&image, DISK_MB)?;
        spec = spec.disk(&image, DiskMode::Buffered);
    }
    let adapter = if kind == Kind::Screen { &["-device", "VGA"][..] } else { &[] };
    let options = |incoming: Option<&str>| QemuOptions {
        ram: Ram::Plain,
        incoming: incoming.map(str::to_owned),
        arguments: adapter.iter().map(|&word| word.to_owned()).collect(),
        ..QemuOptions::default()
    };
    progress.doing(&format!("{} {}: a guest starts", moved.qemu, moved.guest));
    let mut qemu = Qemu::start(lab.host(0)?, &spec, &options(None))?;
    let mut console = Transcript::new(spec.serial(lab.host(0)?));
    console.wait_passes(2, LIMIT)?;
    for number in 0.. {
        if moved.moves >= flags.moves {
            break;
        }
        interrupt::check()?;
        let host = lab.host((number + 1) % 2)?;
        let other = Qemu::start(host, &spec, &options(Some("defer")))?;
        let socket = lab.directory().join("migration");
        let rounds = carry(&qemu, &other, &format!("unix:{}", socket.display()), flags)?;
        console.arrived(spec.serial(host), 0);
        qemu = other;
        moved.moves += 1;
        let goes_on = console.wait_passes(2, LIMIT);
        interrupt::check()?;
        let seen = console.bad().into_iter().next().or(goes_on.err().map(|error| format!("{error:#}")));
        progress.done(&format!(
            "{} {}, {rounds} rounds: {}",
            moved.qemu,
            moved.guest,
            seen.as_deref().unwrap_or("arrived whole")
        ));
        if let Some(seen) = seen {
            moved.harmed += 1;
            moved.seen.push(seen);
            break;
        }
    }
    Ok(())
}

/// QEMU's own migration over one connection, to its end; the guest runs at `there` then. Gives how often QEMU looked
/// for what was written.
fn carry(here: &Qemu, there: &Qemu, uri: &str, flags: &Flags) -> anyhow::Result<u64> {
    let (mut here, mut there) = (here.qmp()?, there.qmp()?);
    there.execute("migrate-incoming", json!({ "uri": uri }))?;
    let bandwidth = if flags.bandwidth == 0 { 100_000_000_000 } else { flags.bandwidth << 20 };
    let downtime = if flags.copying == 0 { DOWNTIME_MS } else { 1 };
    let parameters = json!({ "max-bandwidth": bandwidth, "downtime-limit": downtime });
    here.execute("migrate-set-parameters", parameters)?;
    here.execute("migrate", json!({ "uri": uri }))?;
    interrupt::sleep(Duration::from_secs(flags.copying));
    here.execute("migrate-set-parameters", json!({ "downtime-limit": DOWNTIME_MS }))?;
    let answer = here.wait_migrated(LIMIT)?;
    ensure!(answer["status"] == "completed", "QEMU did not migrate: {answer}");
    // It runs a moment after the source has finished.
    let end = std::time::Instant::now() + LIMIT;
    while there.execute("query-status", Value::Null).context("the destination's QEMU")?["status"] != "running"
    {
        ensure!(std::time::Instant::now() < end, "the guest does not run at the destination");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(answer["ram"]["dirty-sync-count"].as_u64().unwrap_or(0))
}

fn table(results: &[Moved]) -> String {
    let mut text =
        String::from("| QEMU | guest | moves | guests harmed | first seen |\n|---|---|---|---|---|\n");
    for one in results {
        let first = one.error.as_ref().or(one.seen.first()).map_or("–", String::as_str);
        text.push_str(&format!(
            "| {} | {} | {} | {} | {first} |\n",
            one.qemu, one.guest, one.moves, one.harmed
        ));
    }
    text
}
