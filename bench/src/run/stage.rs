//! One case with one QEMU: both guests on the same links, rounds of all methods.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use linerate_api::Step;
use linerate_lab::trust::{self, Cluster};
use linerate_lab::{GuestParameters, GuestSpec, Qemu, QemuVersion, guest};
use rustix::process::{Pid, Signal, kill_process};

use super::cases::{Case, Channels, Method};
use super::figures::Figures;
use super::qemu::{Baseline, QemuResult};
use super::{Book, Calibration, version_name, wire};
use crate::cpu::{self, Meter};
use crate::interrupt;
use crate::moving::{Ending, Moving};
use crate::site::{BEATS, PORT, Site, SiteOptions, console_at};
use crate::transcript::Transcript;

const NAME: &str = "direct";
/// A migration that has not ended by then does not converge.
const LIMIT: Duration = Duration::from_secs(40);
const CHANNELS: [u32; 3] = [2, 4, 8];

/// Fields go in this order: the guests before the site that they are on.
struct Stage<'a> {
    case: &'a Case,
    baseline: Baseline,
    /// In stream mode Linerate's guest has RAM of its own, as QEMU's has, and was started without an agent.
    _adopted: Option<Qemu>,
    site: Site,
    spec: GuestSpec,
    console: Transcript,
    at: usize,
    qemu: &'static str,
    channels: Channels,
    look: Duration,
    mode: String,
    populated: u64,
    /// Whose members the hosts are when they speak TLS; none if all of the run is plain text.
    cluster: Option<Cluster>,
    /// How long each method took without a cut, to know half of it.
    usual: HashMap<&'static str, Duration>,
}

pub(super) fn run(book: &mut Book, case: &Case, version: QemuVersion) -> anyhow::Result<()> {
    book.progress.doing(&format!("{} QEMU {}: guests start", case.name, version_name(version)));
    let mut stage = Stage::new(book, case, version)?;
    stage.calibrate(book)?;
    for pair in 1..=book.flags.pairs {
        interrupt::check()?;
        let before = wire::measure(&stage.site.lab, 0)?;
        let mut round = Vec::new();
        let mut methods = book.flags.methods.clone();
        // What came before may matter, and the direction does not change with the method alone.
        if pair % 2 == 0 {
            methods.reverse();
        }
        for method in methods {
            book.progress.doing(&format!("{} {} pair {pair} {}", case.name, stage.qemu, method.title()));
            let mut figures = stage.figures(method, pair);
            stage.secure(method)?;
            stage.measure(&mut figures)?;
            round.push(figures);
        }
        let after = wire::measure(&stage.site.lab, 0)?;
        for mut figures in round {
            figures.derive(Some((before + after) / 2.0));
            book.progress.done(&figures.text());
            book.results.runs.push(figures);
        }
        book.save()?;
    }
    Ok(())
}

fn spec(site: &Site, case: &Case, number: usize, name: &str, version: QemuVersion) -> GuestSpec {
    let parameters = GuestParameters {
        mem_mb: case.filled_mb,
        dirty_mbps: case.dirty_mbps,
        dirty_ws_mb: (case.working_set_mb > 0).then_some(case.working_set_mb),
        // Nothing but the heartbeat: checking memory would be taken for the cost of the migration.
        verify_mbps: 0,
        net: Some(guest::heartbeat(&site.lab, number, PORT, BEATS)),
        work: case.work,
        ..Default::default()
    };
    let mut spec = GuestSpec::new(name, parameters).tap(&format!("tap{number}")).qemu(version);
    spec.memory_mb = case.memory_mb;
    spec
}

impl Stage<'_> {
    fn new<'a>(book: &Book, case: &'a Case, version: QemuVersion) -> anyhow::Result<Stage<'a>> {
        let site = Site::new(&SiteOptions {
            links: case.links.to_owned(),
            linerate: book.flags.common.binary()?,
            ram_mb: case.memory_mb + 2048,
            ..Default::default()
        })?;
        let direct = spec(&site, case, 0, NAME, version);
        let (adopted, mut console) = match book.flags.mode.as_str() {
            "stream" => site.adopt_guest(0, &direct).map(|(qemu, console)| (Some(qemu), console))?,
            _ => (None, site.start_guest(0, &direct, None)?),
        };
        console.wait_for("FILLED", Duration::from_secs(180))?;
        let mut baseline = Baseline::start(&site, spec(&site, case, 1, "plain", version))?;
        if book.flags.methods.contains(&Method::MultifdTls) {
            baseline.make_credentials(&site)?;
        }
        let cluster = match book.flags.methods.contains(&Method::LinerateTls) {
            true => Some(Cluster::new(&site.lab.directory().join("authority"))?),
            false => None,
        };
        Ok(Stage {
            case,
            baseline,
            _adopted: adopted,
            site,
            spec: direct,
            console,
            at: 0,
            qemu: version_name(version),
            channels: Channels { multifd: 4, multifd_tls: 4, mptcp: 4 },
            look: Duration::from_millis(if book.flags.quick { 500 } else { 2000 }),
            mode: book.flags.mode.clone(),
            populated: case.filled_mb << 20,
            cluster,
            usual: HashMap::new(),
        })
    }

    /// Tries 2, 4 and 8 channels and keeps the fastest of each method.
    fn calibrate(&mut self, book: &mut Book) -> anyhow::Result<()> {
        let mut tried = Vec::new();
        let pid = self.site.pid(self.at, NAME)?;
        let _frozen = Frozen::new(pid);
        let counts: &[u32] = if book.flags.quick { &[] } else { &CHANNELS };
        let tunable = [Method::Multifd, Method::MultifdTls, Method::Mptcp];
        for method in tunable.into_iter().filter(|method| book.flags.methods.contains(method)) {
            for channels in counts {
                book.progress.doing(&format!(
                    "{} {}: {} with {channels} channels",
                    self.case.name,
                    self.qemu,
                    method.title()
                ));
                let result =
                    self.baseline.go(&self.site, method, Some(*channels), LIMIT / 2, |_| {}, |_| Ok(()))?;
                if result.completed {
                    tried.push((method, *channels, result.total.as_secs_f64()));
                }
            }
        }
        let best = |method| {
            let of = tried.iter().filter(|(one, _, _)| *one == method);
            of.min_by(|a, b| a.2.total_cmp(&b.2)).map_or(4, |(_, channels, _)| *channels)
        };
        self.channels = Channels {
            multifd: best(Method::Multifd),
            multifd_tls: best(Method::MultifdTls),
            mptcp: best(Method::Mptcp),
        };
        for (method, channels, seconds) in &tried {
            let usual = Duration::from_secs_f64(*seconds);
            if self.channels.of(*method) == Some(*channels) {
                self.usual.insert(method.title(), usual);
            }
        }
        let (case, qemu, channels) = (self.case.name.clone(), self.qemu, self.channels);
        book.results.calibrations.push(Calibration { case, qemu, channels, tried });
        Ok(())
    }

    /// Agents that speak TLS or plain text, as the method says. Where a run has both, they are started again before
    /// each, so that neither has more behind it.
    fn secure(&mut self, method: Method) -> anyhow::Result<()> {
        let Some(cluster) = self.cluster.as_mut().filter(|_| method.is_linerate()) else { return Ok(()) };
        for agent in &mut self.site.agents {
            match method {
                Method::LinerateTls => cluster.join(agent.host())?,
                _ => trust::leave(agent.host())?,
            }
            agent.reconfigure()?;
        }
        self.site.settle(Duration::from_secs(60))
    }

    fn figures(&self, method: Method, pair: usize) -> Figures {
        Figures {
            case: self.case.name.clone(),
            qemu: self.qemu,
            pair,
            method,
            channels: self.channels.of(method),
            completed: false,
            damaged: false,
            note: String::new(),
            total_s: None,
            destination_start_s: None,
            copy_s: None,
            other_steps_ms: None,
            populated_bytes: self.populated,
            sent_bytes: None,
            goodput_gbps: None,
            wire_gbps: None,
            wire_percent: None,
            blackout_qemu_ms: None,
            blackout_report_ms: None,
            blackout_split: None,
            blackout_seen_ms: None,
            cpu_s: None,
            cpu_s_per_gb: None,
            guest_cpu: 0.0,
            guest_pace: None,
            link_bytes: Vec::new(),
            cpu_by_process: HashMap::new(),
        }
    }

    fn measure(&mut self, figures: &mut Figures) -> anyhow::Result<()> {
        let direct = self.site.pid(self.at, NAME)?;
        let plain = self.baseline.pid();
        let (mine, other) = if figures.method.is_linerate() { (direct, plain) } else { (plain, direct) };
        let _frozen = Frozen::new(other);
        let (cpu, pace) = self.look_before(figures.method, mine);
        figures.guest_cpu = cpu;
        let from = if figures.method.is_linerate() { self.at } else { self.baseline.at };
        let before = wire::sent(&self.site.lab, from)?;
        let lines = self.lines_so_far(figures.method);
        let since = self.site.observer.now();
        if figures.method.is_linerate() {
            self.move_direct(figures)?;
        } else {
            self.move_plain(figures)?;
        }
        let sent = wire::sent(&self.site.lab, from)?.into_iter().zip(before);
        figures.link_bytes = sent.map(|(after, before)| after.saturating_sub(before)).collect();
        let during = self.pace(figures.method, lines);
        figures.guest_pace = pace.zip(during).map(|(before, during)| during / before);
        self.look_after(figures, since)
    }

    /// CPUs and pace of the guest when it is left alone.
    fn look_before(&mut self, method: Method, pid: u32) -> (f64, Option<f64>) {
        // A guest that was just woken has to catch up first.
        interrupt::sleep(Duration::from_millis(500));
        let (lines, began, before) = (self.lines_so_far(method), Instant::now(), cpu::seconds(pid));
        interrupt::sleep(self.look);
        let used = cpu::seconds(pid).zip(before).map_or(0.0, |(after, before)| after - before);
        (used / began.elapsed().as_secs_f64(), self.pace(method, lines))
    }

    fn transcript(&mut self, method: Method) -> &mut Transcript {
        if method.is_linerate() { &mut self.console } else { &mut self.baseline.console }
    }

    fn lines_so_far(&mut self, method: Method) -> usize {
        self.transcript(method).count()
    }

    fn pace(&mut self, method: Method, from: usize) -> Option<f64> {
        let (start, key) = match (self.case.work, self.case.dirty_mbps > 0) {
            (true, _) => ("WORK", "n"),
            (false, true) => ("OK", "dirty_mbps"),
            (false, false) => return None,
        };
        crate::statistics::median(self.transcript(method).rates(from, start, key))
    }

    fn look_after(&self, figures: &mut Figures, since: Duration) -> anyhow::Result<()> {
        let number = usize::from(!figures.method.is_linerate());
        let address = self.site.lab.guest_address(number);
        self.site.observer.wait_beats(address, 50, Duration::from_secs(30))?;
        let seen = self.site.observer.blackout(address, since);
        figures.blackout_seen_ms = Some(seen.longest_gap_us as f64 / 1e3);
        figures.damaged = seen.mem_bad + seen.out_of_order > 0;
        if figures.damaged {
            figures.note = format!("DAMAGE: {seen:?} {}", figures.note);
        }
        Ok(())
    }

    fn move_direct(&mut self, figures: &mut Figures) -> anyhow::Result<()> {
        let to = 1 - self.at;
        let arrival = console_at(self.site.host(to)?, &self.spec);
        let half = self.half(figures.method);
        let meter = Meter::start(self.site.lab.directory().to_owned(), &[]);
        let flags = ["--link-timeout", "20s", "--mode", &self.mode];
        let moving = Moving::begin(self.site.agent(self.at)?, NAME, &self.site.to(to)?, &flags)?;
        if self.case.cut {
            interrupt::sleep(half.saturating_sub(moving.began().elapsed()));
            self.site.lab.cut(0)?;
            interrupt::sleep(Duration::from_secs(1));
            self.site.lab.restore(0)?;
        }
        let ending = moving.finish(LIMIT * 2);
        let by_process = meter.stop();
        interrupt::check()?;
        figures.completed = ending.completed();
        if ending.completed() {
            self.at = to;
            self.console.arrived(arrival.0, arrival.1);
        } else {
            figures.note = ending.text();
            self.site.settle(Duration::from_secs(60))?;
        }
        self.take_report(figures, &ending);
        self.take_cpu(figures, by_process, ending.total);
        Ok(())
    }

    fn take_report(&mut self, figures: &mut Figures, ending: &Ending) {
        let Some(report) = &ending.report else { return };
        // QEMU's own first pass has pages of zeroes in it.
        let first = match self.mode.as_str() {
            "stream" => {
                let content = report.ram.total_bytes.saturating_sub(report.ram.zero_bytes);
                Some(content.min(report.ram.sent_bytes))
            }
            _ => report.rounds.first().map(|first| first.bytes),
        };
        self.populated = first.filter(|bytes| *bytes > 0).unwrap_or(self.populated);
        figures.populated_bytes = self.populated;
        figures.sent_bytes = Some(report.ram.sent_bytes);
        figures.total_s = Some(ending.runs_after.unwrap_or(ending.total).as_secs_f64());
        let took = |wanted: Step| {
            let steps = report.steps.iter().filter(|one| one.step == wanted);
            steps.map(|one| one.duration_us).sum::<u64>() as f64
        };
        let last_copy = report.blackout.map_or(0, |blackout| blackout.last_copy_us) as f64;
        figures.copy_s = Some((took(Step::Copy) + last_copy) / 1e6);
        // Steps overlap (a guest is prepared while others copy), so what is left of the whole counts, not their sum.
        let rest = ending.total.as_secs_f64() * 1e3 - (took(Step::Copy) + took(Step::Blackout)) / 1e3;
        figures.other_steps_ms = Some(rest.max(0.0));
        if let Some(blackout) = report.blackout {
            figures.blackout_report_ms = Some(blackout.total_us as f64 / 1e3);
            figures.blackout_split = Some(blackout);
            figures.blackout_qemu_ms = blackout.qemu_downtime_us.map(|us| us as f64 / 1000.0);
        }
        if !self.case.cut && ending.completed() {
            self.usual.insert(figures.method.title(), ending.total);
        }
    }

    fn move_plain(&mut self, figures: &mut Figures) -> anyhow::Result<()> {
        let half = self.half(figures.method);
        let folder = self.site.lab.directory().to_owned();
        let mut meter = None;
        let (was_cut, was_restored) = (AtomicBool::new(false), AtomicBool::new(false));
        let (site, cut) = (&self.site, self.case.cut);
        let during = |time: Duration| {
            if cut && time >= half && !was_cut.swap(true, Ordering::Relaxed) {
                site.lab.cut(0)?;
            }
            if cut && time >= half + Duration::from_secs(1) && !was_restored.swap(true, Ordering::Relaxed) {
                site.lab.restore(0)?;
            }
            Ok(())
        };
        // All CPU time of the destination counts, as Linerate's does.
        let ready = |destination| meter = Some(Meter::start(folder, &[destination]));
        let result = self.baseline.go(site, figures.method, figures.channels, LIMIT, ready, during);
        if was_cut.load(Ordering::Relaxed) && !was_restored.load(Ordering::Relaxed) {
            interrupt::sleep(Duration::from_millis(300));
            self.site.lab.restore(0)?;
        }
        let result = result?;
        let by_process = meter.context("the migration did not begin")?.stop();
        take_answer(figures, &result);
        self.take_cpu(figures, by_process, result.total);
        Ok(())
    }

    fn half(&self, method: Method) -> Duration {
        let over_all = method.is_linerate() || method == Method::Mptcp;
        let rate = if over_all { 5e9 } else { 2.5e9 };
        let guess = Duration::from_secs_f64(self.populated as f64 * 8.0 / rate + 0.2);
        self.usual.get(method.title()).copied().unwrap_or(guess) / 2
    }

    fn take_cpu(&self, figures: &mut Figures, by_process: HashMap<u32, f64>, total: Duration) {
        let sum: f64 = by_process.values().sum();
        // Never below nothing: a guest that got less CPU than before would otherwise count as a saving.
        figures.cpu_s = Some((sum - figures.guest_cpu * total.as_secs_f64()).max(0.0));
        figures.cpu_by_process = by_process;
    }
}

fn take_answer(figures: &mut Figures, result: &QemuResult) {
    figures.completed = result.completed;
    figures.note = result.note.clone();
    // Linerate starts the incoming QEMU itself, so its whole includes that; QEMU's must too.
    figures.total_s = Some((result.start + result.total).as_secs_f64());
    figures.destination_start_s = Some(result.start.as_secs_f64());
    let number = |pointer: &str| result.answer.pointer(pointer).and_then(serde_json::Value::as_f64);
    let setup = number("/setup-time").unwrap_or(0.0);
    figures.other_steps_ms = Some(setup);
    if result.completed {
        figures.blackout_qemu_ms = number("/downtime");
        // Up to downtime-limit's worth of RAM is copied within the downtime, so that belongs to the copy.
        figures.copy_s = number("/total-time").map(|ms| (ms - setup) / 1e3);
        figures.sent_bytes = number("/ram/transferred").map(|bytes| bytes as u64);
    }
}

/// A guest that is paused while the other is measured, so that neither pays for the other.
struct Frozen(Option<Pid>);

impl Frozen {
    fn new(pid: u32) -> Frozen {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        // A process that has ended uses no CPU.
        let _ = pid.map(|pid| kill_process(pid, Signal::STOP));
        Frozen(pid)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = self.0.map(|pid| kill_process(pid, Signal::CONT));
    }
}
