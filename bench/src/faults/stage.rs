//! A case: its own site and guest, the migration with the fault, what became of the guest, and the migration after it.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use linerate_api::{MigrationState, MigrationSummary, Side};
use linerate_lab::{GuestParameters, GuestSpec, guest};

use super::case::{Case, Fault, LIMIT};
use super::inject::{self, RESERVE};
use super::{Book, Outcome};
use crate::interrupt;
use crate::moving::{Ending, Moving};
use crate::random::{Random, seed_for};
use crate::site::{BEATS, PORT, Site, SiteOptions, console_at};
use crate::transcript::Transcript;

pub const NAME: &str = "victim";
const SETTLE: Duration = Duration::from_secs(120);
/// The exit code of a migration that waits for its operator.
const IN_DOUBT: i32 = 6;

pub(super) fn run(book: &mut Book<'_>, cases: &[Case]) -> anyhow::Result<()> {
    for case in cases {
        interrupt::check()?;
        book.progress.doing(&case.name());
        let seed = seed_for(book.seed, &case.name());
        let mut outcome = Outcome {
            name: case.name(),
            fault: case.fault.name().to_owned(),
            step: case.step_name(),
            side: case.side_name(),
            seed,
            ..Outcome::default()
        };
        if let Err(error) = play(book, case, &mut outcome) {
            interrupt::check()?;
            outcome.wrong.push(format!("{error:#}"));
        }
        book.add(outcome)?;
    }
    Ok(())
}

/// A site for the guest's way from host 0 to host 1, slow enough that each step can be met.
fn site(book: &Book<'_>, case: &Case) -> anyhow::Result<Site> {
    let mut configuration = [String::new(), String::new()];
    if case.fault == Fault::MemoryShort {
        configuration[1] = RESERVE.to_owned();
    }
    Site::new(&SiteOptions {
        links: "2x500".to_owned(),
        linerate: book.flags.common.binary()?,
        configuration,
        small_state: (case.fault == Fault::JournalFull).then_some(case.host()),
        ram_mb: 2048,
    })
}

/// A guest that writes some memory all the time.
pub(super) fn victim(site: &Site) -> GuestSpec {
    let parameters = GuestParameters {
        mem_mb: 192,
        dirty_mbps: 20,
        dirty_ws_mb: Some(8),
        net: Some(guest::heartbeat(&site.lab, 0, PORT, BEATS)),
        ..Default::default()
    };
    GuestSpec::new(NAME, parameters).tap("tap0")
}

fn play(book: &Book<'_>, case: &Case, outcome: &mut Outcome) -> anyhow::Result<()> {
    let mut site = site(book, case)?;
    let played = act(&mut site, case, outcome);
    if played.is_err() || !outcome.wrong.is_empty() {
        outcome.logs = site.logs();
    }
    played
}

fn act(site: &mut Site, case: &Case, outcome: &mut Outcome) -> anyhow::Result<()> {
    let spec = victim(site);
    let mut console = site.start_guest(0, &spec, None)?;
    console.wait_passes(2, Duration::from_secs(120))?;
    if case.fault == Fault::NameTaken {
        let other = GuestSpec::new(NAME, GuestParameters { mem_mb: 16, ..Default::default() });
        site.start_guest(1, &other, None)?;
    }
    let arrival = console_at(site.host(1)?, &spec);
    let ending = with_fault(site, case, outcome)?;
    outcome.migration = ending.text();
    outcome.exit = ending.exit;
    outcome.answered_s = ending.answered.map(|time| (time.as_secs_f64() - outcome.at_ms / 1e3).max(0.0));
    outcome.blackout_ms =
        ending.report.as_ref().and_then(|report| Some(report.blackout?.total_us as f64 / 1e3));
    let answered = Instant::now();
    inject::undo(site, case)?;
    if case.fault == Fault::QemuKill && ending.exit == Some(IN_DOUBT) {
        give_up(site, outcome)?;
    }
    site.settle(SETTLE)?;
    outcome.settled_s = Some(answered.elapsed().as_secs_f64());
    let place = place(site, case, &ending, outcome)?;
    if place == Some(1) {
        console.arrived(arrival.0, arrival.1);
    }
    examine(site, case, place, &mut console, outcome)?;
    match place {
        Some(host) => retry(site, &spec, host, &mut console, outcome),
        None => {
            outcome.retry = "–".to_owned();
            Ok(())
        }
    }
}

/// The guest ran at the destination, and its QEMU there is dead: the source keeps its older copy for an operator, who
/// wants none.
fn give_up(site: &Site, outcome: &mut Outcome) -> anyhow::Result<()> {
    let in_doubt = |migration: &MigrationSummary| migration.state == MigrationState::InDoubt;
    for migration in site.migrations(0)?.iter().filter(|one| in_doubt(one)) {
        let mut resolve = site.agent(0)?.client();
        resolve.args(["resolve", &migration.id.to_string(), "--give-up"]);
        inject::run(resolve)?;
        outcome.migration.push_str("; the operator gave the copy at the source up");
    }
    Ok(())
}

fn with_fault(site: &mut Site, case: &Case, outcome: &mut Outcome) -> anyhow::Result<Ending> {
    let mut random = Random::new(outcome.seed);
    let delay = random.part_of(case.span());
    let mut moving = Moving::begin(site.agent(0)?, NAME, &site.to(1)?, &["--link-timeout", LIMIT])?;
    if let Some(step) = case.step {
        if !moving.reach(step, Duration::from_secs(60)) {
            let ending = moving.finish(Duration::from_secs(60));
            bail!("{step} was not reached: {}", ending.text());
        }
        std::thread::sleep(delay);
        // What has happened by now, without waiting for more.
        moving.follow(Duration::ZERO);
        outcome.at_ms = moving.began().elapsed().as_secs_f64() * 1e3;
        outcome.at_step = moving.step().map_or("–".to_owned(), |step| step.text().to_owned());
    }
    let note = inject::make(site, case)?;
    let ending = moving.finish(Duration::from_secs(150));
    outcome.at_step = format!("{}{}{note}", outcome.at_step, if note.is_empty() { "" } else { "; " });
    Ok(ending)
}

/// The host where the guest runs. None only where its QEMU was killed.
fn place(site: &Site, case: &Case, ending: &Ending, outcome: &mut Outcome) -> anyhow::Result<Option<usize>> {
    let runs = [site.runs(0, NAME)?, site.runs(1, NAME)?];
    let place = match runs {
        [true, true] => bail!("the guest runs on both hosts"),
        [true, false] => Some(0),
        [false, true] => Some(1),
        [false, false] if case.fault == Fault::QemuKill => None,
        [false, false] => bail!("the guest runs on no host: {:?} {:?}", site.guests(0)?, site.guests(1)?),
    };
    outcome.guest = match place {
        Some(0) => "runs at the source".to_owned(),
        Some(_) => "runs at the destination".to_owned(),
        None => "gone, its QEMU was killed".to_owned(),
    };
    // A killed destination takes the guest with it only if it had it; a killed source, only if it still had it.
    if case.fault == Fault::QemuKill && case.side == Some(Side::Destination) && place.is_none() {
        let after = outcome.at_step.contains("blackout")
            || outcome.at_step.contains("commit")
            || outcome.at_step.contains("clean up");
        if !after {
            outcome
                .wrong
                .push("the guest was lost although only the waiting destination was killed".to_owned());
        }
    }
    if ending.completed() && place == Some(0) {
        outcome.wrong.push("reported as completed, but the guest runs at the source".to_owned());
    }
    Ok(place)
}

fn examine(
    site: &Site,
    case: &Case,
    place: Option<usize>,
    console: &mut Transcript,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let address = site.lab.guest_address(0);
    let seen = site.observer.blackout(address, Duration::ZERO);
    if seen.out_of_order > 0 {
        outcome.wrong.push(format!("{} packets of a second or older copy of the guest", seen.out_of_order));
    }
    if seen.mem_bad > 0 {
        outcome.wrong.push(format!("heartbeat: {} bad pages", seen.mem_bad));
    }
    if let Some(host) = place {
        site.observer
            .wait_beats(address, 20, Duration::from_secs(20))
            .context("the guest is reported as running")?;
        console.wait_passes(2, Duration::from_secs(60))?;
        let pid = site.pid(host, NAME)?;
        if protected(pid) {
            outcome.wrong.push("its RAM is still write-protected".to_owned());
        }
    } else if site.observer.wait_beats(address, 1, Duration::from_secs(1)).is_ok() {
        outcome.wrong.push("the guest is reported as ended, but sends packets".to_owned());
    }
    outcome.wrong.extend(console.damage());
    for host in [0, 1].into_iter().filter(|host| Some(*host) != place) {
        let left = crate::cpu::hypervisors(&site.host(host)?.run_directory());
        if !left.is_empty() {
            outcome.wrong.push(format!("{}: a QEMU is left on host {host}", case.name()));
        }
    }
    Ok(())
}

/// Whether any memory of the process is registered for write protection (`uw` in its mappings' flags).
fn protected(pid: u32) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    maps.lines()
        .filter_map(|line| line.strip_prefix("VmFlags:"))
        .any(|flags| flags.split(' ').any(|flag| flag == "uw"))
}

fn retry(
    site: &Site,
    spec: &GuestSpec,
    from: usize,
    console: &mut Transcript,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let to = 1 - from;
    let arrival = console_at(site.host(to)?, spec);
    let ending = Moving::begin(site.agent(from)?, NAME, &site.to(to)?, &["--verify"])?.finish(SETTLE);
    let way = if from == 0 { "there" } else { "back" };
    outcome.retry = format!("{way}: {}", ending.text());
    if !ending.completed() {
        outcome.wrong.push(format!("the retry did not succeed: {}", ending.text()));
        return Ok(());
    }
    if ending.report.as_ref().and_then(|report| report.verified) != Some(true) {
        outcome.wrong.push("the retry did not find RAM the same".to_owned());
    }
    console.arrived(arrival.0, arrival.1);
    console.wait_passes(2, Duration::from_secs(60))?;
    outcome.wrong.extend(console.bad());
    Ok(())
}
