//! `linerate drain`, `linerate undrain`, `linerate place`, `linerate fleet`

use linerate_api::{ClientError, DrainDetail, DrainGuestState, DrainOrder, DrainStarted, DrainState};

use super::progress::{change, look, with_progress};
use super::rolling;
use crate::context::Context;
use crate::display::drain::{unseen, watch, watch_abort};
use crate::display::undrain::watch as watch_undrain;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::{DrainCommand, DrainFlags, DrainIdFlags, FleetCommand, PlaceFlags, UndrainFlags};
use crate::interrupts::Interrupts;
use crate::render::drain;

/// Begins a drain and watches it, or does something with one.
pub async fn run(flags: &DrainFlags, context: &Context) -> Result<Exit, Failure> {
    match &flags.command {
        None if !flags.each.is_empty() => rolling::run(flags, context).await,
        None if flags.dry_run => plan(flags, context).await,
        None => begin(flags, context).await,
        Some(DrainCommand::Status(which)) => status(which, context).await,
        Some(DrainCommand::Attach(which)) => {
            let id = find(which, context).await?.id;
            watch(&id, false, &mut Interrupts::listen()?, context).await
        }
        Some(DrainCommand::Pause(which)) => steer(which, DrainOrder::Pause, context).await,
        Some(DrainCommand::Resume(which)) => steer(which, DrainOrder::Resume, context).await,
        Some(DrainCommand::Abort(which)) => abort(which, context).await,
    }
}

async fn begin(flags: &DrainFlags, context: &Context) -> Result<Exit, Failure> {
    let mut interrupts = Interrupts::listen()?;
    let what = "asking the destinations".to_owned();
    let request = flags.request();
    let asking = with_progress(what, context.err, context.client.drain(&request));
    let unknown = format!("see {}: it shows whether the drain has begun", context.command("drain status"));
    let asking = async { asking.await.map_err(|error| Failure::of_request(error, &unknown)) };
    let id = interrupts.answer(asking, &unknown, context).await?;
    let attach = context.command(&format!("drain attach {id}"));
    let named = match (context.json, flags.detach) {
        (true, _) => context.print_json_line(&DrainStarted { id: id.clone() }),
        (false, true) => context.print(&format!("{id}\nwatch it with {attach}\n")),
        (false, false) => Ok(()),
    };
    // It goes on without its name on the output.
    named.map_err(|failure| failure.while_watching(format!("the drain goes on: {attach}")))?;
    if flags.detach { Ok(Exit::Ok) } else { watch(&id, flags.quiet, &mut interrupts, context).await }
}

/// Where the agent's answer is lost.
const FORGET_AGAIN: &str = "it may have been forgotten: the same command again says so";

/// Where the agent's answer to a plan is lost.
pub(super) const DRY_RUNS: &str =
    "nothing is moved: wait until the agent's dry runs have ended, then give the command again";

async fn plan(flags: &DrainFlags, context: &Context) -> Result<Exit, Failure> {
    let what = "trying each guest's migration without copying".to_owned();
    let plan = with_progress(what, context.err, context.client.drain_plan(&flags.request())).await;
    let plan = plan.map_err(|error| Failure::of_request(error, DRY_RUNS))?;
    context.answer(&plan, || drain::plan(&plan, context.out.width, context.out.paint))?;
    planned(&plan)
}

fn planned(plan: &DrainDetail) -> Result<Exit, Failure> {
    if plan.count(DrainGuestState::InDoubt) > 0 {
        Ok(Exit::InDoubt)
    } else if plan.count(DrainGuestState::Failed) > 0 {
        Ok(Exit::Failed)
    } else {
        unseen(plan)
    }
}

async fn status(which: &DrainIdFlags, context: &Context) -> Result<Exit, Failure> {
    let found = find(which, context).await?;
    context.answer(&found, || drain::detail(&found, context.out.width, context.out.paint))?;
    Ok(Exit::Ok)
}

async fn steer(which: &DrainIdFlags, order: DrainOrder, context: &Context) -> Result<Exit, Failure> {
    let id = find(which, context).await?.id;
    let unknown = format!("{} shows whether the order was followed", context.command("drain status"));
    let asked = context.client.steer_drain(&id, order);
    let now = change("waiting for the drain", unknown, context, asked).await?;
    let output = context.answer(&now, || drain::detail(&now, context.out.width, context.out.paint));
    Failure::of_ended(steered(&now, order), output, Exit::Failed, context)
}

/// An abort that came first is final, and a drain may end before the order reaches it.
fn steered(now: &DrainDetail, order: DrainOrder) -> Result<Exit, Failure> {
    let state = match (order, now.state) {
        (DrainOrder::Pause, DrainState::Paused) | (DrainOrder::Resume, DrainState::Running) => {
            return Ok(Exit::Ok);
        }
        (_, DrainState::Ended) => "is over",
        (_, DrainState::Aborting) => "is being aborted",
        (_, DrainState::Paused) => "is paused",
        (_, DrainState::Planned | DrainState::Running) => "goes on",
    };
    let text = format!("the order was not followed: drain {} {state}", now.id);
    Err(Failure::new(Exit::Refused, text, "see `linerate drain status`"))
}

/// Waits for the end: until then guests may still arrive.
async fn abort(which: &DrainIdFlags, context: &Context) -> Result<Exit, Failure> {
    let id = find(which, context).await?.id;
    let mut interrupts = Interrupts::listen()?;
    let unknown = format!("whether it is being ended: see {}", context.command("drain status"));
    let asking = async {
        let asked = context.client.steer_drain(&id, DrainOrder::Abort).await;
        asked.map_err(|error| Failure::of_request(error, &unknown))
    };
    interrupts.answer(asking, &unknown, context).await?;
    watch_abort(&id, &mut interrupts, context).await
}

/// The last one, or the one whose name begins so.
async fn find(which: &DrainIdFlags, context: &Context) -> Result<DrainDetail, Failure> {
    let Some(prefix) = &which.id else {
        return look(context, context.client.drains()).await?.into_iter().next().ok_or_else(|| {
            Failure::new(
                Exit::Refused,
                "no drain of this host is known",
                "begin one with `linerate drain --to HOST`",
            )
        });
    };
    let all = match look(context, context.client.fleet_drains()).await {
        // Without its store the agent knows the drain that it carries on, and takes orders to it.
        Err(ClientError::Agent { .. }) => look(context, context.client.drains()).await?,
        answer => answer?,
    };
    let mut found: Vec<DrainDetail> = all.into_iter().filter(|one| one.id.starts_with(prefix)).collect();
    match (found.pop(), found.len()) {
        (Some(only), 0) => Ok(only),
        (None, _) => Err(Failure::new(
            Exit::Refused,
            format!("no drain whose name begins with `{prefix}`"),
            "see `linerate fleet drains`",
        )),
        (Some(_), others) => Err(Failure::new(
            Exit::Refused,
            format!("the names of {} drains begin with `{prefix}`", others + 1),
            "name more of it: see `linerate fleet drains`",
        )),
    }
}

/// Has the guests come back that drains have moved since the host was cordoned, and watches that.
pub async fn undrain(flags: &UndrainFlags, context: &Context) -> Result<Exit, Failure> {
    if let Some(request) = flags.forget_request() {
        let asking = context.client.forget_guest(&request);
        let answer = change("asking the hosts", FORGET_AGAIN.to_owned(), context, asking).await?;
        context.done(&answer, || drain::guest_forgotten(&answer))?;
        return Ok(Exit::Ok);
    }
    let mut interrupts = Interrupts::listen()?;
    let request = flags.request();
    let unknown = format!("{} begins it, or watches it if it has begun", context.command("undrain"));
    let asking = change("asking the agent", unknown.clone(), context, context.client.undrain(&request));
    let begun = interrupts.answer(asking, &unknown, context).await?;
    if flags.detach {
        context
            .answer(&begun, || drain::undrained(&begun, context.out.width, context.out.paint))
            .map_err(|failure| failure.while_watching(unknown))?;
        return Ok(Exit::Ok);
    }
    watch_undrain(begun, false, &mut interrupts, context).await
}

/// Where a guest can go.
pub async fn place(flags: &PlaceFlags, context: &Context) -> Result<Exit, Failure> {
    let what = "asking the hosts".to_owned();
    let answer = with_progress(what, context.err, context.client.place(&flags.request())).await?;
    context.answer(&answer, || drain::place(&answer, flags.explain, context.out.paint))?;
    Ok(if answer.best.is_some() { Exit::Ok } else { Exit::Refused })
}

/// `linerate fleet`: what the store knows of hosts and drains, and is to forget.
pub async fn fleet(command: &FleetCommand, context: &Context) -> Result<Exit, Failure> {
    match command {
        FleetCommand::Status => {
            let status = look(context, context.client.fleet()).await?;
            context.answer(&status, || drain::fleet(&status, context.out.paint))?;
            if status.error.is_some() {
                return Ok(Exit::Failed);
            }
        }
        FleetCommand::Hosts => {
            let hosts = look(context, context.client.fleet_hosts()).await?;
            context.answer(&hosts, || drain::hosts(&hosts, context.out.paint))?;
        }
        FleetCommand::Drains => {
            let drains = look(context, context.client.fleet_drains()).await?;
            context.answer(&drains, || drain::list(&drains, context.out.paint))?;
        }
        FleetCommand::Forget(flags) => {
            let (what, request) = (format!("asking {}", flags.host), flags.request());
            let asking = context.client.forget_host(&request);
            let answer = change(&what, FORGET_AGAIN.to_owned(), context, asking).await?;
            context.done(&answer, || drain::host_forgotten(&answer))?;
        }
    }
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use linerate_api::DrainBound;

    use super::*;

    #[test]
    fn a_plan_with_guests_that_cannot_move_now_is_no_success() {
        let plan = |states: &[&str]| {
            let guest = |state: &&str| {
                serde_json::json!({
                    "guest": "web", "uuid": "u", "state": state, "to": null, "memory_bytes": 1, "copy_bytes": 1,
                    "copied_bytes": 0, "rate_bytes_per_s": 0, "write_rate_bytes_per_s": 0, "tries": []
                })
            };
            let detail: DrainDetail = serde_json::from_value(serde_json::json!({
                "id": "", "host": "a", "by": "", "state": "planned", "begun_unix_ms": 0, "ended_unix_ms": null,
                "guests": states.iter().map(guest).collect::<Vec<_>>(), "rate_bytes_per_s": 0,
                "links_bytes_per_s": 0, "left_ms": null, "bound": DrainBound::default(), "warnings": []
            }))
            .unwrap();
            planned(&detail).map_err(|failure| failure.exit)
        };
        assert_eq!(plan(&["waiting", "kept"]), Ok(Exit::Ok));
        assert_eq!(plan(&["waiting", "failed"]), Ok(Exit::Failed));
        assert_eq!(plan(&["failed", "in_doubt"]), Ok(Exit::InDoubt));
    }

    #[test]
    fn an_order_that_a_drain_did_not_follow_is_refused() {
        let end = |state: &str, order| {
            let detail: DrainDetail = serde_json::from_value(serde_json::json!({
                "id": "d1", "host": "a", "by": "", "state": state, "begun_unix_ms": 0, "ended_unix_ms": null,
                "guests": [], "rate_bytes_per_s": 0, "links_bytes_per_s": 0, "left_ms": null,
                "bound": DrainBound::default(), "warnings": []
            }))
            .unwrap();
            steered(&detail, order).map_err(|failure| failure.exit)
        };
        assert_eq!(end("paused", DrainOrder::Pause), Ok(Exit::Ok));
        assert_eq!(end("running", DrainOrder::Resume), Ok(Exit::Ok));
        for state in ["aborting", "ended"] {
            assert_eq!(end(state, DrainOrder::Pause), Err(Exit::Refused));
            assert_eq!(end(state, DrainOrder::Resume), Err(Exit::Refused));
        }
    }
}
