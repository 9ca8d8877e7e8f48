//! One of two links is lost at a random instant of a migration, and comes back.

use std::time::Duration;

use linerate_api::Step;
use linerate_lab::{GuestSpec, QemuVersion};

use super::stage::{NAME, victim};
use super::{Book, Outcome, series};
use crate::moving::{Ending, Moving};
use crate::random::Random;
use crate::shuttle::Cut;
use crate::site::{Site, SiteOptions, console_at};
use crate::transcript::Transcript;

/// The guest goes back and forth on one stage for as long as all is well.
struct Stage {
    site: Site,
    spec: GuestSpec,
    console: Transcript,
    at: usize,
    /// As QEMU's own streams: RAM is not compared.
    by_streams: bool,
    /// How long a migration takes here, with RAM compared as in those that follow.
    usual: Duration,
}

pub(super) fn run(book: &mut Book<'_>, names: &[String]) -> anyhow::Result<()> {
    series::play_all::<Stage>(book, names)
}

impl series::Stage for Stage {
    fn new(book: &Book<'_>) -> anyhow::Result<Stage> {
        let site = Site::new(&SiteOptions {
            links: "2x1000".to_owned(),
            linerate: book.flags.common.binary()?,
            ram_mb: 2048,
            ..Default::default()
        })?;
        let by_streams = book.flags.cuts_by == "stream";
        let mut spec = victim(&site);
        if by_streams {
            // QEMU 7.2 harms emulated guests that it moves (docs/stream-mode.md).
            spec = spec.qemu(QemuVersion::Ten);
        }
        let console = site.start_guest(0, &spec, None)?;
        let mut stage = Stage { site, spec, console, at: 0, by_streams, usual: Duration::ZERO };
        stage.console.wait_passes(2, Duration::from_secs(120))?;
        let ending = stage.go(|_| Ok(()))?;
        anyhow::ensure!(ending.completed(), "a migration without any fault: {}", ending.text());
        stage.usual = ending.total;
        Ok(stage)
    }

    fn play(&mut self, outcome: &mut Outcome) -> anyhow::Result<()> {
        self.cut(outcome)
    }

    fn logs(&self) -> String {
        self.site.logs()
    }
}

impl Stage {
    /// Moves the guest to the other host; `harm` is called once it has been asked for.
    fn go(&mut self, harm: impl FnOnce(&Site) -> anyhow::Result<()>) -> anyhow::Result<Ending> {
        let to = 1 - self.at;
        let (path, skip) = console_at(self.site.host(to)?, &self.spec);
        let mut flags = vec!["--link-timeout", "20s"];
        flags.extend(if self.by_streams { ["--mode", "stream"].as_slice() } else { &["--verify"] });
        let mut moving = Moving::begin(self.site.agent(self.at)?, NAME, &self.site.to(to)?, &flags)?;
        // Before the hosts have talked, the only address that is known is the one in the command, and it is on one of
        // the links.
        anyhow::ensure!(moving.reach(Step::Admit, Duration::from_secs(30)), "the migration did not begin");
        harm(&self.site)?;
        let ending = moving.finish(Duration::from_secs(120));
        if ending.completed() {
            self.at = to;
            self.console.arrived(path, skip);
        }
        Ok(ending)
    }

    fn cut(&mut self, outcome: &mut Outcome) -> anyhow::Result<()> {
        let mut random = Random::new(outcome.seed);
        // A little beyond the usual end as well: a link may be lost while the source cleans up.
        let cut = Cut::random(&mut random, self.usual.mul_f64(1.05));
        outcome.fault = cut.to_string();
        (outcome.step, outcome.side) = ("any".to_owned(), "both".to_owned());
        outcome.at_ms = cut.instant().as_secs_f64() * 1e3;
        outcome.at_step = format!("{:.0} ms of {:.0}", outcome.at_ms, self.usual.as_secs_f64() * 1e3);
        let ending = self.go(|site| cut.make(&site.lab))?;
        outcome.migration = ending.text();
        outcome.blackout_ms =
            ending.report.as_ref().and_then(|report| Some(report.blackout?.total_us as f64 / 1e3));
        outcome.retry = "–".to_owned();
        self.judge(&ending, outcome);
        Ok(())
    }

    fn judge(&mut self, ending: &Ending, outcome: &mut Outcome) {
        if !ending.completed() {
            outcome.wrong.push(format!("the migration did not succeed: {}", ending.text()));
            return;
        }
        outcome.guest = format!("runs on host {}; {} links lost on the way", self.at, ending.links_lost);
        let verified = ending.report.as_ref().and_then(|report| report.verified) == Some(true);
        if !self.by_streams && !verified {
            outcome.wrong.push("RAM was not found the same".to_owned());
        }
        outcome.wrong.extend(self.console.damage_in_two_passes(Duration::from_secs(60)));
        let seen = self.site.observer.blackout(self.site.lab.guest_address(0), Duration::ZERO);
        if seen.out_of_order + seen.mem_bad > 0 {
            outcome
                .wrong
                .push(format!("heartbeat: {} old packets, {} bad pages", seen.out_of_order, seen.mem_bad));
        }
    }
}
