//! Ctrl-C and SIGTERM: asked for between the parts of a run, so that labs are taken down and results are whole.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::signal::unix::{SignalKind, signal};

static ASKED: AtomicBool = AtomicBool::new(false);

/// From now on signals are only noted. A third one ends the program as it is.
pub fn listen() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    let wait = async move {
        for count in 1.. {
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
            ASKED.store(true, Ordering::Relaxed);
            eprintln!(
                "\nending: labs are being taken down (what stays behind, `linerate-lab sweep` removes)"
            );
            if count == 3 {
                std::process::exit(130);
            }
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || runtime.block_on(wait))
        .context("cannot start a thread")?;
    Ok(())
}

pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// An error if to end.
pub fn check() -> anyhow::Result<()> {
    if asked() { bail!("interrupted") } else { Ok(()) }
}

/// Sleeps, at most until asked to end.
pub fn sleep(time: Duration) {
    let end = Instant::now() + time;
    while !asked() && Instant::now() < end {
        std::thread::sleep(end.saturating_duration_since(Instant::now()).min(Duration::from_millis(50)));
    }
}
