//! One migration: `linerate migrate` with its own display, and the one who may pull a cable meanwhile.

use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use linerate_api::{MigrationId, Report};
use rustix::process::{Pid, Signal, kill_process};

use super::cable::{self, Cable};
use super::stage::{GUEST, LONG, Stage};
use super::{PASSES_AFTER, Screen};

/// Which way, and whether in peace.
pub struct Journey {
    pub from: usize,
    pub to: usize,
    pub pull_cable: bool,
}

/// What was seen of a journey.
pub struct Seen {
    pub status: ExitStatus,
    /// The cable, if it was to be pulled.
    pub cable: Option<Cable>,
    pub report: Option<Report>,
    /// Finished passes over its memory before the guest left.
    pub passes_before: u64,
    /// When it began, on the observer's clock.
    pub since: Duration,
}

/// After Ctrl-C the command cancels the migration by itself; this long it may take.
const CANCEL_LIMIT: Duration = Duration::from_secs(10);

impl Journey {
    pub fn run(&self, stage: &mut Stage<'_>, screen: &Screen) -> Result<Seen> {
        let (since, passes_before) = (stage.observer.now(), stage.console.last_pass());
        let mut cable = self.pull_cable.then(Cable::default);
        let (status, id) = self.move_guest(stage, screen, cable.as_mut())?;
        if status.success() {
            self.watch_arrival(stage)?;
        }
        let report = self.report(stage, id.as_ref())?;
        Ok(Seen { status, cable, report, passes_before, since })
    }

    fn move_guest(
        &self,
        stage: &Stage<'_>,
        screen: &Screen,
        cable: Option<&mut Cable>,
    ) -> Result<(ExitStatus, Option<MigrationId>)> {
        let to = stage.agent(self.to)?.address(0).to_string();
        screen.command(&format!("linerate migrate {GUEST} --to {to}"));
        let mut command = stage.agent(self.from)?.client();
        let (client, over) = (stage.client(self.from)?, AtomicBool::new(false));
        let drawn = screen.is_drawn_on();
        let print = |text: &str| {
            if !drawn {
                println!("     >> {text}")
            }
        };
        std::thread::scope(|scope| {
            let follow = cable::follow(&client, &stage.lab, cable, &over, &print);
            let follower = scope.spawn(|| stage.interrupt.runtime().block_on(follow));
            let status = command
                .args(["migrate", GUEST, "--to", &to])
                .spawn()
                .context("cannot start linerate migrate")
                .and_then(|mut child| wait(stage, &mut child));
            over.store(true, Ordering::Relaxed);
            let followed =
                follower.join().map_err(|_| anyhow::anyhow!("the one who follows the migration died"))?;
            Ok((status?, followed?))
        })
    }

    /// The guest goes on at the other host: its console too, and it finishes passes there.
    fn watch_arrival(&self, stage: &mut Stage<'_>) -> Result<()> {
        let file = stage.spec.arrived_serial(stage.lab.host(self.to)?);
        // An agent removes what it made for a guest when the guest leaves; a second name keeps what it said.
        let kept = stage.lab.directory().join(format!("console-{}-{}", self.from, self.to));
        std::fs::hard_link(&file, &kept).with_context(|| format!("cannot keep {}", file.display()))?;
        stage.console.then(kept);
        let target = stage.console.last_pass() + PASSES_AFTER;
        let wanted = stage.observer.beats(stage.guest_address()).len() + 100;
        let arrived = stage.interrupt.wait("the guest's going on after the migration", || {
            let beats = stage.observer.beats(stage.guest_address()).len();
            let hurt = !stage.console.bad_lines().is_empty();
            Ok((hurt || (stage.console.last_pass() >= target && beats >= wanted)).then_some(()))
        });
        // What it did not do is judged later, from what it said.
        if stage.interrupt.came() { arrived } else { Ok(()) }
    }

    fn report(&self, stage: &Stage<'_>, id: Option<&MigrationId>) -> Result<Option<Report>> {
        let Some(id) = id else { return Ok(None) };
        let client = stage.client(self.from)?;
        Ok(stage.interrupt.runtime().block_on(client.migration(id))?.report)
    }
}

fn wait(stage: &Stage<'_>, child: &mut Child) -> Result<ExitStatus> {
    let ended = stage.interrupt.wait("the end of the migration", || Ok(child.try_wait()?));
    if ended.is_ok() {
        return ended;
    }
    // On a terminal Ctrl-C has reached the command as well. It puts the terminal in order and cancels.
    let end = Instant::now() + CANCEL_LIMIT;
    let mut asked = false;
    while child.try_wait()?.is_none() {
        if Instant::now() >= end {
            child.kill()?;
            child.wait()?;
            break;
        }
        if !asked && Instant::now() + CANCEL_LIMIT / 2 >= end {
            asked = true;
            interrupt(child);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    match ended {
        Err(error) => Err(error),
        Ok(_) => bail!("the migration was not over after {LONG:?}"),
    }
}

fn interrupt(child: &Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It may have ended in this very moment.
        let _ = kill_process(pid, Signal::INT);
    }
}
