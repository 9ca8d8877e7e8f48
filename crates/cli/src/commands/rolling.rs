//! `linerate drain --each HOST,… --then COMMAND`: hosts are emptied, worked on and filled again, one after another.

use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use linerate_api::{
    AgentStatus, Cordon, DrainGuest, DrainGuestState, DrainRequest, DrainStarted, UndrainRequest,
};

use super::drain::DRY_RUNS;
use super::progress::with_progress;
use crate::context::Context;
use crate::display::drain::{unseen, watch};
use crate::display::undrain::watch as watch_undrain;
use crate::documents::{RollingLine, RollingStep};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::DrainFlags;
use crate::interrupts::Interrupts;
use crate::remote::Remote;
use crate::render::format::clean;

/// A host that the command has restarted is waited for so long.
const BACK_MAX: Duration = Duration::from_secs(1800);
const BACK_PAUSE: Duration = Duration::from_secs(1);
/// Ctrl-C reaches the command and this process; the command may have ended before it is seen here.
const INTERRUPT_MAX: Duration = Duration::from_millis(200);

/// One of the hosts.
struct Host {
    /// As ssh knows it.
    target: String,
    /// As its agent calls itself.
    name: String,
    to: Vec<String>,
    /// Guests that stay on the host while its command runs.
    keep: Vec<String>,
}

/// Does it for each host. The first failure ends it: what one host does not survive, the others shall not be put
/// through.
pub async fn run(flags: &DrainFlags, context: &Context) -> Result<Exit, Failure> {
    let mut interrupts = Interrupts::listen_to_terminate()?;
    let mut hosts: Vec<Host> = Vec::new();
    for target in &flags.each {
        let looked = unless(&mut interrupts, look(target, flags, context)).await;
        let host = looked.map_err(|failure| failure.of_agent_at(target).and("nothing was begun"))?;
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
        let place = format!("[{}/{}]", at + 1, hosts.len());
        // Guests may have come or changed since all were looked at.
        let looked =
            if at == 0 { None } else { Some(look_again(host, &mut interrupts, flags, context).await) };
        let ran = match looked.transpose() {
            Ok(now) => {
                let host = now.as_ref().unwrap_or(host);
                Step { host, place, interrupts: &mut interrupts, flags, context }.run().await
            }
            Err(failure) => Err(failure),
        };
        ran.map_err(|failure| {
            let failure = if at > 0 { something_was_done(failure) } else { failure };
            failure.and(&format!("done: {}; not begun: {}", names(&hosts[..at]), names(&hosts[at + 1..])))
        })?;
    }
    Ok(Exit::Ok)
}

/// These exit codes say that nothing was done.
fn something_was_done(mut failure: Failure) -> Failure {
    if matches!(failure.exit, Exit::Usage | Exit::Refused | Exit::Unreachable) {
        failure.exit = Exit::Failed;
    }
    failure
}

/// What the work gives, or its end by Ctrl-C.
async fn unless<T>(
    interrupts: &mut Interrupts,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let ended = || Err(Failure::new(Exit::NotWatched, "ended by Ctrl-C or SIGTERM", ""));
    interrupts.unless(work).await.unwrap_or_else(ended)
}

/// What is not known is not taken for no cordon.
fn knows_cordon(status: &AgentStatus) -> Result<Option<&Cordon>, Failure> {
    let Some(why) = &status.cordon_error else { return Ok(status.cordon.as_ref()) };
    let text = format!("it is not known whether host {} is cordoned: {}", clean(&status.name), clean(why));
    Err(Failure::new(Exit::Failed, text, "see `linerate fleet status` there"))
}

/// The operator's cordon must not be lifted on the way.
fn free_of_cordon(status: &AgentStatus, target: &str) -> Result<(), Failure> {
    let Some(cordon) = knows_cordon(status)? else { return Ok(()) };
    let text = format!("host {} is cordoned by {} already, and would be released", status.name, cordon.by);
    let hint = format!("`linerate --connect {target} uncordon` or `undrain` first, or leave it out");
    Err(Failure::new(Exit::Refused, text, hint))
}

/// A host that somebody has cordoned since its drain began stays so, and its guests stay elsewhere.
fn not_by_hand(cordon: Option<&Cordon>, host: &str) -> Result<(), Failure> {
    let Some(cordon) = cordon.filter(|cordon| cordon.by_hand) else { return Ok(()) };
    let text = format!("host {host} was cordoned by {} meanwhile, and is not released", clean(&cordon.by));
    Err(Failure::new(Exit::Refused, text, "undrain it when it may get guests again"))
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
    let mut request = DrainRequest { to: to.clone(), keep: Vec::new(), ..flags.request() };
    let what = || format!("trying each migration of {name} without copying");
    let lost = |error| Failure::of_request(error, DRY_RUNS);
    let asking = there.client.drain_plan(&request);
    let mut plan = with_progress(what(), context.err, asking).await.map_err(lost)?;
    // A host refuses names of guests that it does not have.
    let here = plan.guests.iter().filter(|guest| flags.keep.contains(&guest.guest));
    request.keep = here.map(|guest| guest.guest.clone()).collect();
    if !request.keep.is_empty() {
        let asking = there.client.drain_plan(&request);
        plan = with_progress(what(), context.err, asking).await.map_err(lost)?;
    }
    unseen(&plan)?;
    all_can_leave(&plan.guests, &name)?;
    Ok(Host { target: target.to_owned(), name, to, keep: request.keep })
}

/// A host whose turn it is, as it is now.
async fn look_again(
    host: &Host,
    interrupts: &mut Interrupts,
    flags: &DrainFlags,
    context: &Context,
) -> Result<Host, Failure> {
    let looked = unless(interrupts, look(&host.target, flags, context)).await;
    let now = looked.map_err(|failure| failure.of_agent_at(&host.target))?;
    is_still(host, &now.name)?;
    Ok(now)
}

/// `now`: what its agent calls itself.
fn is_still(host: &Host, now: &str) -> Result<(), Failure> {
    let Host { target, name, .. } = host;
    if now == name {
        return Ok(());
    }
    let text = format!("{target} was host {name} before, and is host {now} now");
    Err(Failure::new(Exit::Refused, text, "see `name` in its agent.toml"))
}

/// As far as the plan knows: domains of libvirt have a destination, and were not tried.
fn all_can_leave(guests: &[DrainGuest], host: &str) -> Result<(), Failure> {
    let stays =
        |guest: &&DrainGuest| matches!(guest.state, DrainGuestState::Failed | DrainGuestState::InDoubt);
    let Some(guest) = guests.iter().find(stays) else { return Ok(()) };
    let why = clean(guest.reason.as_deref().unwrap_or_default());
    let text = format!("{} cannot leave host {host}: {why}", clean(&guest.guest));
    Err(Failure::new(Exit::Refused, text, guest.hint.clone()))
}

/// One host's turn: drain, command, undrain.
struct Step<'a> {
    host: &'a Host,
    /// Which one of how many.
    place: String,
    interrupts: &'a mut Interrupts,
    flags: &'a DrainFlags,
    context: &'a Context,
}

impl Step<'_> {
    async fn run(&mut self) -> Result<(), Failure> {
        let Host { target, name, .. } = self.host;
        let command = self.flags.then.as_deref().unwrap_or_default();
        self.report(RollingStep::Drain, "its guests leave")?;
        self.empty().await.map_err(|failure| failure.of_agent_at(target))?;
        let executed = match self.report(RollingStep::Command, command) {
            Err(failure) => Err(failure.and("the command was not run")),
            Ok(()) if self.interrupts.take_noted() => Err(Failure::new(
                Exit::NotWatched,
                "ended by Ctrl-C or SIGTERM before the command was run",
                "",
            )),
            Ok(()) => self.execute(command).await,
        };
        executed.map_err(|failure| {
            failure.and(&format!(
                "host {name} is empty and cordoned; `linerate --connect {target} undrain` brings its guests back"
            ))
        })?;
        let filled = match self.report(RollingStep::Undrain, "its guests come back") {
            Err(failure) => Err(failure),
            Ok(()) => self.fill().await,
        };
        filled.map_err(|failure| {
            something_was_done(failure).of_agent_at(target).and(&format!(
                "the command has run on {name}; `linerate --connect {target} undrain` brings back what is still \
                 elsewhere"
            ))
        })?;
        let done = format!("the command has run on {name}, and its guests are back");
        self.report(RollingStep::Done, "done").map_err(|failure| failure.and(&done))
    }

    fn report(&self, step: RollingStep, text: &str) -> Result<(), Failure> {
        let name = &self.host.name;
        if self.context.json {
            return self.context.print_json_line(&RollingLine { kind: "rolling", host: name, step });
        }
        if !self.flags.quiet {
            self.context.print_line(&format!("{} {name}: {text}", self.place));
        }
        Ok(())
    }

    async fn empty(&mut self) -> Result<(), Failure> {
        let Host { target, name, to, keep } = self.host;
        let remote = unless(self.interrupts, Remote::open(target, self.context)).await?;
        let there = remote.context(self.context);
        let status = async { Ok(there.client.status().await?) };
        free_of_cordon(&unless(self.interrupts, status).await?, target)?;
        let request = DrainRequest { to: to.clone(), keep: keep.clone(), ..self.flags.request() };
        let asks = async {
            let what = format!("{name} asks the destinations");
            let asked = with_progress(what, self.context.err, there.client.drain(&request)).await;
            asked.map_err(|error| Failure::of_request(error, "`linerate drain status` there"))
        };
        let id = unless(self.interrupts, asks).await.map_err(|failure| {
            let refused = matches!(failure.exit, Exit::Usage | Exit::Refused);
            let state =
                format!("`linerate --connect {target} drain status` shows whether {name} is being drained");
            if refused { failure } else { failure.and(&state) }
        })?;
        if self.context.json {
            let named = self.context.print_json_line(&DrainStarted { id: id.clone() });
            let goes_on = format!("`linerate --connect {target} drain attach {id}`");
            named.map_err(|failure| {
                failure.while_watching(goes_on).and(&format!("{name} is being drained"))
            })?;
        }
        watch(&id, self.flags.quiet, self.interrupts, &there).await.map(drop).map_err(|failure| {
            failure.and(&format!(
                "the command was not run on {name}, which is cordoned; `linerate --connect {target} drain status`, and \
                 `undrain` brings back what has left"
            ))
        })
    }

    /// Runs the command here, in a shell. Its output is the terminal's, or standard error where documents are printed.
    /// The terminal's Ctrl-C reaches it too; it is waited for all the same, and nothing follows it then.
    async fn execute(&mut self, command: &str) -> Result<(), Failure> {
        let Host { target, name, .. } = self.host;
        let failed = |exit, text: String| {
            let text = format!("the command for host {name} {text}");
            Err(Failure::new(
                exit,
                text,
                "repair what failed, bring the guests back with `undrain`, and begin again with this host",
            ))
        };
        let mut shell = tokio::process::Command::new("sh");
        shell.args(["-c", command]).env("LINERATE_HOST", name).env("LINERATE_CONNECT", target);
        if self.context.json {
            shell.stdout(Stdio::from(std::io::stderr()));
        }
        let mut running = match shell.spawn() {
            Ok(running) => running,
            Err(error) => return failed(Exit::Failed, format!("cannot be started: {error}")),
        };
        let mut interrupted = false;
        let ended = loop {
            tokio::select! {
                ended = running.wait() => break ended,
                () = self.interrupts.next() => {
                    interrupted = true;
                    // Nobody else sends it that.
                    let child = running.id().filter(|_| self.interrupts.was_terminated());
                    let child = child.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
                    child.map(|child| kill_process(child, Signal::TERM));
                }
            }
        };
        interrupted |= tokio::time::timeout(INTERRUPT_MAX, self.interrupts.next()).await.is_ok();
        match ended {
            Err(error) => failed(Exit::Failed, format!("cannot be waited for: {error}")),
            Ok(status) if interrupted => {
                failed(Exit::NotWatched, format!("was ended by Ctrl-C or SIGTERM: {status}"))
            }
            Ok(status) if status.success() => Ok(()),
            Ok(status) => failed(Exit::Failed, format!("failed: {status}")),
        }
    }

    async fn fill(&mut self) -> Result<(), Failure> {
        let remote = unless(self.interrupts, back(self.host, self.flags, self.context)).await?;
        let there = remote.context(self.context);
        let status = async { Ok(there.client.status().await?) };
        not_by_hand(knows_cordon(&unless(self.interrupts, status).await?)?, &self.host.name)?;
        let request = UndrainRequest::default();
        let asks = async {
            there
                .client
                .undrain(&request)
                .await
                .map_err(|error| Failure::of_request(error, "`linerate undrain` there watches it"))
        };
        let begun = unless(self.interrupts, asks).await?;
        watch_undrain(begun, self.flags.quiet, self.interrupts, &there).await.map(drop)
    }
}

/// The host's agent, as soon as it answers: the command may have restarted either.
async fn back(host: &Host, flags: &DrainFlags, context: &Context) -> Result<Remote, Failure> {
    let end = Instant::now() + BACK_MAX;
    let mut noted = flags.quiet || context.json;
    loop {
        let failure = match answering(host, context).await {
            Ok(remote) => return Ok(remote),
            Err(failure) => failure,
        };
        if Instant::now() >= end {
            return Err(failure);
        }
        if !noted {
            let text = format!("waiting for the agent of {}: {}", host.name, failure.message());
            context.print_line(&clean(&text));
            noted = true;
        }
        tokio::time::sleep(BACK_PAUSE).await;
    }
}

async fn answering(host: &Host, context: &Context) -> Result<Remote, Failure> {
    let remote = Remote::open(&host.target, context).await?;
    let there = remote.context(context);
    is_still(host, &there.client.status().await?.name)?;
    // An agent that was started again waits for the end of its earlier lease.
    match there.client.fleet().await?.error {
        Some(error) => Err(Failure::new(Exit::Failed, error, "see `linerate fleet status` there")),
        None => Ok(remote),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_somebody_has_cordoned_meanwhile_is_not_released() {
        let cordon = |by_hand| Cordon { by: "anna".into(), since_unix_ms: 1, by_hand };
        assert_eq!(not_by_hand(None, "alpha").map_err(|failure| failure.exit), Ok(()));
        assert_eq!(not_by_hand(Some(&cordon(false)), "alpha").map_err(|failure| failure.exit), Ok(()));
        let failure = not_by_hand(Some(&cordon(true)), "alpha").unwrap_err();
        assert_eq!(something_was_done(failure).exit, Exit::Failed);
    }

    #[test]
    fn a_host_of_which_the_cordon_is_not_known_is_neither_begun_nor_released() {
        let status = |cordon_error: Option<&str>| -> AgentStatus {
            serde_json::from_value(json!({
                "name": "alpha", "version": "1", "uptime_s": 1, "listen": [], "guests": 0, "migrations": 0,
                "in_doubt": 0, "protocol_versions": [], "kernel_features": [], "cordon_error": cordon_error,
            }))
            .unwrap()
        };
        assert!(free_of_cordon(&status(None), "alpha").is_ok());
        let failure = free_of_cordon(&status(Some("etcd does not answer")), "alpha").unwrap_err();
        assert_eq!(failure.exit, Exit::Failed);
        assert!(failure.message().contains("not known"), "{}", failure.message());
        assert!(knows_cordon(&status(Some("etcd does not answer"))).is_err());
    }

    #[test]
    fn a_domain_that_has_a_destination_can_leave_and_one_without_cannot() {
        let guest = |domain: bool, state: &str, reason: Option<&str>| -> DrainGuest {
            let text = json!({
                "guest": "web", "uuid": "u1", "domain": domain, "state": state, "reason": reason, "memory_bytes": 1,
                "copy_bytes": 1, "copied_bytes": 0, "rate_bytes_per_s": 0, "write_rate_bytes_per_s": 0, "tries": [],
            });
            serde_json::from_value(text).unwrap()
        };
        let leaves = |guests: &[DrainGuest]| all_can_leave(guests, "alpha").map_err(|failure| failure.exit);
        let kept = guest(true, "kept", None);
        assert_eq!(leaves(&[guest(false, "waiting", None), guest(true, "waiting", None), kept]), Ok(()));
        for (domain, state) in [(true, "failed"), (false, "failed"), (false, "in_doubt")] {
            assert_eq!(leaves(&[guest(domain, state, Some("no memory"))]), Err(Exit::Refused));
        }
        let failure = all_can_leave(&[guest(true, "failed", Some("no memory"))], "alpha").unwrap_err();
        assert_eq!(failure.message(), "web cannot leave host alpha: no memory");
    }
}
