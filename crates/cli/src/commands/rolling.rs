//! `linerate drain --each HOST,… --then COMMAND`: hosts are emptied, worked on and filled again, one after another.

use std::process::Stdio;
use std::time::{Duration, Instant};

use linerate_api::{AgentStatus, DrainGuest, DrainGuestState, DrainRequest, DrainStarted, UndrainRequest};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::progress::with_progress;
use crate::context::Context;
use crate::display::drain::{unseen, watch};
use crate::display::undrain::watch as watch_undrain;
use crate::documents::{RollingLine, RollingStep};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::DrainFlags;
use crate::remote::Remote;
use crate::render::format::clean;

/// A host that the command has restarted is waited for so long.
const BACK_MAX: Duration = Duration::from_secs(1800);
const BACK_PAUSE: Duration = Duration::from_secs(1);

/// One of the hosts.
struct Host {
    /// As ssh knows it.
    target: String,
    /// As its agent calls itself.
    name: String,
    to: Vec<String>,
    /// Guests that stay.
    keep: Vec<String>,
}

/// Does it for each host. The first failure ends it: what one host does not survive, the others shall not be put through.
pub async fn run(flags: &DrainFlags, context: &Context) -> Result<Exit, Failure> {
    let mut hosts: Vec<Host> = Vec::new();
    for target in &flags.each {
        let looked = unless_interrupted(look(target, flags, context)).await;
        let host = looked.map_err(|failure| failure.and("nothing was begun"))?;
        if let Some(same) = hosts.iter().find(|other| other.name == host.name) {
            let text =
                format!("{} and {target} are the same host, {}; nothing was begun", same.target, host.name);
            return Err(Failure::new(Exit::Usage, text, "name each host once"));
        }
        hosts.push(host);
    }
    let kept = |guest: &&String| hosts.iter().any(|host| host.keep.contains(guest));
    if let Some(unknown) = flags.keep.iter().find(|guest| !kept(guest)) {
        let text = format!("--keep names a guest that none of the hosts has: {unknown}; nothing was begun");
        return Err(Failure::new(
            Exit::Usage,
            text,
            "`linerate --connect HOST vm list` shows those that are there",
        ));
    }
    for (at, host) in hosts.iter().enumerate() {
        let names = |hosts: &[Host]| {
            let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        };
        one(host, at, hosts.len(), flags, context).await.map_err(|mut failure| {
            // These say that nothing was done.
            if at > 0 && matches!(failure.exit, Exit::Usage | Exit::Refused | Exit::Unreachable) {
                failure.exit = Exit::Failed;
            }
            failure.and(&format!("done: {}; not begun: {}", names(&hosts[..at]), names(&hosts[at + 1..])))
        })?;
    }
    Ok(Exit::Ok)
}

/// What the work gives, or its end by Ctrl-C.
async fn unless_interrupted<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let interrupts = signal(SignalKind::interrupt());
    let mut interrupts =
        interrupts.map_err(|error| Failure::new(Exit::Failed, format!("no signals: {error}"), ""))?;
    tokio::select! {
        done = work => done,
        _ = interrupts.recv() => Err(Failure::new(Exit::NotWatched, "ended by Ctrl-C", "")),
    }
}

/// The operator's cordon must not be lifted on the way.
fn free_of_cordon(status: &AgentStatus, target: &str) -> Result<(), Failure> {
    let Some(cordon) = &status.cordon else { return Ok(()) };
    let text = format!("host {} is cordoned by {} already, and would be released", status.name, cordon.by);
    let hint = format!("`linerate --connect {target} uncordon` or `undrain` first, or leave it out");
    Err(Failure::new(Exit::Refused, text, hint))
}

/// Whether the host can be begun with. Nothing is changed.
async fn look(target: &str, flags: &DrainFlags, context: &Context) -> Result<Host, Failure> {
    let remote = Remote::open(target, context).await?;
    let there = remote.context(context);
    let status = there.client.status().await?;
    free_of_cordon(&status, target)?;
    let name = status.name;
    let plain = target.rsplit_once('@').map_or(target, |(_, host)| host);
    let to: Vec<String> = flags.to.iter().filter(|to| **to != name && **to != plain).cloned().collect();
    if to.is_empty() && !flags.to.is_empty() {
        let text = format!("host {name} has no destination but itself");
        return Err(Failure::new(Exit::Usage, text, "name other hosts with --to"));
    }
    let request = DrainRequest { to: to.clone(), keep: Vec::new(), ..flags.request() };
    let what = format!("trying each migration of {name} without copying");
    let plan = with_progress(what, context.err, there.client.drain_plan(&request)).await?;
    unseen(&plan)?;
    let (kept, leave): (Vec<&DrainGuest>, Vec<&DrainGuest>) =
        plan.guests.iter().partition(|guest| flags.keep.contains(&guest.guest));
    let refused = |guest: &DrainGuest, why: &str, hint: &str| {
        let text = format!("{} cannot leave host {name}: {}", clean(&guest.guest), clean(why));
        Err(Failure::new(Exit::Refused, text, hint))
    };
    for guest in leave {
        if guest.state == DrainGuestState::Failed {
            return refused(guest, guest.reason.as_deref().unwrap_or_default(), &guest.hint);
        }
        if guest.domain {
            let why = "it is a domain of libvirt, which `undrain` does not bring back";
            return refused(guest, why, "keep it there with --keep, or drain that host by itself");
        }
    }
    let keep = kept.into_iter().map(|guest| guest.guest.clone()).collect();
    Ok(Host { target: target.to_owned(), name, to, keep })
}

async fn one(
    host: &Host,
    at: usize,
    of: usize,
    flags: &DrainFlags,
    context: &Context,
) -> Result<(), Failure> {
    let Host { target, name, to, keep } = host;
    let say = |step: RollingStep, text: &str| {
        if context.json {
            return context.print_json_line(&RollingLine { kind: "rolling", host: name, step });
        }
        if !flags.quiet {
            context.print_line(&format!("[{}/{of}] {name}: {text}", at + 1));
        }
        Ok(())
    };
    say(RollingStep::Drain, "its guests leave")?;
    {
        let remote = Remote::open(target, context).await?;
        let there = remote.context(context);
        free_of_cordon(&there.client.status().await?, target)?;
        let request = DrainRequest { to: to.clone(), keep: keep.clone(), ..flags.request() };
        let asks = async {
            let what = format!("{name} asks the destinations");
            Ok(with_progress(what, context.err, there.client.drain(&request)).await?)
        };
        let id = unless_interrupted(asks).await.map_err(|failure| {
            let refused = matches!(failure.exit, Exit::Usage | Exit::Refused);
            let state =
                format!("`linerate --connect {target} drain status` shows whether {name} is being drained");
            if refused { failure } else { failure.and(&state) }
        })?;
        if context.json {
            context.print_json_line(&DrainStarted { id: id.clone() })?;
        }
        let ended = watch(&id, flags.quiet, &there).await;
        ended.map_err(|failure| {
            failure.and(&format!(
                "the command was not run on {name}, which is cordoned; `linerate --connect {target} drain status`, and \
                 `undrain` brings back what has left"
            ))
        })?;
    }
    let command = flags.then.as_deref().unwrap_or_default();
    say(RollingStep::Command, command)?;
    let empty = || {
        format!(
            "host {name} is empty and cordoned; `linerate --connect {target} undrain` brings its guests back"
        )
    };
    execute(command, host, context).await.map_err(|failure| failure.and(&empty()))?;
    say(RollingStep::Undrain, "its guests come back")?;
    let back = async {
        let remote = back(host, flags.quiet, context).await?;
        let there = remote.context(context);
        let asks = async { Ok(there.client.undrain(&UndrainRequest::default()).await?) };
        watch_undrain(unless_interrupted(asks).await?, flags.quiet, &there).await
    };
    back.await.map_err(|mut failure| {
        // Its guests have left, and the command has run.
        if matches!(failure.exit, Exit::Usage | Exit::Refused | Exit::Unreachable) {
            failure.exit = Exit::Failed;
        }
        failure.and(&format!(
            "the command has run on {name}; `linerate --connect {target} undrain` brings back what is still elsewhere"
        ))
    })?;
    say(RollingStep::Done, "done")
}

/// Runs the command here, in a shell. Its output is the terminal's, or standard error where documents are printed.
async fn execute(command: &str, host: &Host, context: &Context) -> Result<(), Failure> {
    let failed = |text: String| {
        let text = format!("the command for host {} {text}", host.name);
        Failure::new(Exit::Failed, text, "mend it, have the guests come back, and begin again with this host")
    };
    let mut shell = tokio::process::Command::new("sh");
    shell.args(["-c", command]).env("LINERATE_HOST", &host.name).env("LINERATE_CONNECT", &host.target);
    if context.json {
        shell.stdout(Stdio::from(std::io::stderr()));
    }
    let ended = shell.status().await.map_err(|error| failed(format!("cannot be started: {error}")))?;
    if ended.success() { Ok(()) } else { Err(failed(format!("failed: {ended}"))) }
}

/// The host's agent, as soon as it answers: the command may have restarted either.
async fn back(host: &Host, quiet: bool, context: &Context) -> Result<Remote, Failure> {
    let interrupts = signal(SignalKind::interrupt());
    let mut interrupts =
        interrupts.map_err(|error| Failure::new(Exit::Failed, format!("no signals: {error}"), ""))?;
    let end = Instant::now() + BACK_MAX;
    let mut told = false;
    loop {
        let failure = match answering(host, context).await {
            Ok(remote) => return Ok(remote),
            Err(failure) => failure,
        };
        if Instant::now() >= end {
            return Err(failure);
        }
        if !told && !quiet && !context.json {
            context.print_line(&format!("waiting for the agent of {}: {}", host.name, failure.message()));
            told = true;
        }
        pause(&mut interrupts).await?;
    }
}

async fn pause(interrupts: &mut Signal) -> Result<(), Failure> {
    tokio::select! {
        _ = interrupts.recv() => Err(Failure::new(Exit::NotWatched, "ended while waiting for the host", "")),
        () = tokio::time::sleep(BACK_PAUSE) => Ok(()),
    }
}

async fn answering(host: &Host, context: &Context) -> Result<Remote, Failure> {
    let remote = Remote::open(&host.target, context).await?;
    let there = remote.context(context);
    let name = there.client.status().await?.name;
    if name != host.name {
        let text = format!("{} was host {} before, and is host {name} now", host.target, host.name);
        return Err(Failure::new(Exit::Refused, text, "see `name` in its agent.toml"));
    }
    // An agent that was started again waits for the end of its earlier lease.
    match there.client.fleet().await?.error {
        Some(error) => Err(Failure::new(Exit::Failed, error, "see `linerate fleet status` there")),
        None => Ok(remote),
    }
}
