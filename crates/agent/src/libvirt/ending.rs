//! The domain's state by both libvirts when a migration has ended.

use linerate_api::{ErrorBody, GuestState, Job, MigrationOutcome, Side, Step, code};

use super::target::Target;
use super::virsh::Virsh;

/// Where the connection to the other libvirt was lost.
pub const SEE_THERE: &str = "this host's libvirt got no answer how it ended there: see that the destination's does not \
run the domain too (`virsh domstate`) before you try again";

/// Where a domain is paused here, and may run at the destination.
const NEVER_BOTH: &str = "`virsh domstate` on both hosts: where the destination's runs it, end the paused one here (`virsh \
destroy`, then `virsh undefine` if it is still defined) and never resume it; `virsh resume` it here only where the \
destination's does not know it";

/// libvirt has let it run here again without an answer from the other one, which runs it.
const RUNS_TWICE: &str = "it runs on both hosts, and both write to its disks: look which of the two its clients reach, \
and end the other one at once (`virsh destroy`, then `virsh undefine` if it is still defined there)";

/// What the destination's libvirt says where its processor is not what the domain has here. It compares the two when
/// its QEMU waits, and nothing was copied then (libvirt's `virCPUx86UpdateLive`, `virCPUx86Compare`).
const LACKING: [&str; 2] = ["guest CPU doesn't match specification", "CPU is incompatible with host CPU"];

/// The domain as the destination's libvirt has it.
pub struct Outcome {
    pub state: String,
    pub job: Option<Job>,
}

/// How a migration ended.
pub struct Ended {
    pub outcome: MigrationOutcome,
    pub error: Option<ErrorBody>,
    /// libvirt has moved the domain.
    pub arrived: Option<Outcome>,
}

impl Ended {
    pub fn failed(error: ErrorBody, outcome: MigrationOutcome) -> Ended {
        Ended { outcome, error: Some(error), arrived: None }
    }
}

impl Target {
    /// Its state as long as it was not moved.
    pub fn guest_state(&self) -> GuestState {
        if self.paused { GuestState::PausedAtSource } else { GuestState::RunsAtSource }
    }
}

/// libvirt reports that it has moved the domain. It is a success only if the destination's libvirt has it in the same
/// state, and starts it if this one did. Nothing of it may be left here, and the copy has no `fault`.
pub async fn arrived(
    (here, there): (&Virsh, &Virsh),
    domain: &Target,
    fault: Option<String>,
    mut warn: impl FnMut(&str),
) -> Ended {
    if let Some(fault) = &fault {
        warn(&format!("libvirt has moved the domain, and then: {fault}"));
    }
    let found = there.find(&domain.uuid, &mut warn).await;
    // libvirt reports success also if it could not end the domain here.
    let here = here.find(&domain.uuid, &mut warn).await;
    let uuid = &domain.uuid;
    // Where the destination does not have it, what is left here may be all that there is.
    let left = found.as_ref().ok().and_then(Option::as_ref).and_then(|_| left_here(&here, uuid));
    let not_started = match &found {
        _ if !domain.definition.autostart => None,
        Ok(Some(_)) if left.is_some() => Some(start_later(uuid)),
        Ok(Some(_)) => keep_autostart(there, uuid).await,
        Ok(None) => None,
        Err(dead) => Some(not_started(dead, uuid)),
    };
    let trouble = match &found {
        Ok(Some(state)) if state == domain.state() => None,
        Ok(Some(state)) => Some(format!("it is {state} there, and was {} here", domain.state())),
        Ok(None) => Some("the destination's does not know it".to_owned()),
        Err(dead) => Some(format!("the destination's cannot be asked: {}", dead.message)),
    };
    let trouble = both(both(trouble, left), not_started);
    if let Some(trouble) = &trouble {
        warn(&format!(
            "libvirt reports that it has moved the domain, but {trouble}; check both with `virsh domstate {uuid}`"
        ));
    }
    let state = found.ok().flatten().unwrap_or_else(|| "unknown".into());
    let runs_here = matches!(&here, Ok(Some(state)) if state == "running");
    let guest = match state.as_str() {
        "running" if !runs_here => GuestState::RunsAtDestination,
        "paused" => GuestState::PausedAtDestination,
        _ => GuestState::Unknown,
    };
    let error = trouble.or(fault).map(|why| ErrorBody {
        step: Some(Step::CleanUp),
        side: Some(Side::Destination),
        guest_state: Some(guest),
        ..ErrorBody::new(code::LIBVIRT_FAILED, format!("libvirt has moved the domain, but {why}"))
    });
    let outcome = if error.is_none() { MigrationOutcome::Completed } else { MigrationOutcome::Failed };
    let job = there.job(uuid, true).await;
    Ended { outcome, error, arrived: Some(Outcome { state, job }) }
}

/// Has the destination start the domain when it boots, as this host did: libvirt does not move that. Why not, if that
/// cannot be set.
pub async fn keep_autostart(there: &Virsh, uuid: &str) -> Option<String> {
    let refused = there.run(&["autostart", uuid]).await.err()?;
    Some(not_started(&refused, uuid))
}

/// For the end of a sentence.
pub fn not_started(why: &ErrorBody, uuid: &str) -> String {
    let why = &why.message;
    format!(
        "the destination does not start it when it boots, as this host did ({why}): `virsh autostart {uuid}` there"
    )
}

/// The same where something of the domain is left here: both hosts would start it after a power failure. For the end of
/// a sentence.
pub fn start_later(uuid: &str) -> String {
    format!(
        "the destination does not start it when it boots, as both hosts would start it then: `virsh autostart {uuid}` \
         there once it is undefined here"
    )
}

/// Both of them, of those that there are.
pub fn both(one: Option<String>, other: Option<String>) -> Option<String> {
    one.into_iter().chain(other).reduce(|one, other| format!("{one}; {other}"))
}

/// What is left here of a domain that is at the destination, and what to do with it. For the end of a sentence.
pub fn left_here(here: &Result<Option<String>, ErrorBody>, uuid: &str) -> Option<String> {
    Some(match here {
        Ok(None) => return None,
        Ok(Some(state)) if state == "shut off" => format!(
            "it is still defined here, where a start would run it a second time: `virsh undefine {uuid}` here"
        ),
        Ok(Some(state)) => format!(
            "it is {state} here too: end it here (`virsh destroy {uuid}`, then `virsh undefine` if it is still \
             defined) and never resume it"
        ),
        Err(dead) => format!(
            "this host's libvirt does not answer whether it has let go of it ({}): `virsh domstate {uuid}` here",
            dead.message
        ),
    })
}

/// How it failed: libvirt's `message`, `asked` for by the operator, or `cut_off` from the other host.
pub struct Broken<'a> {
    pub message: &'a str,
    pub trouble: &'a str,
    pub asked: bool,
    pub cut_off: bool,
}

/// How the migration ended, and where the domain is. This host's libvirt says so, and also the destination's (`there`)
/// of a domain that runs or is paused here.
pub async fn failed(
    here: &Virsh,
    there: &Virsh,
    domain: &Target,
    broken: Broken<'_>,
    mut warn: impl FnMut(&str),
) -> Ended {
    let Broken { message, trouble, asked, cut_off } = broken;
    // virsh may have ended alone. The tunnel is open until this returns. Without it a libvirt that switches over would
    // not learn that the domain runs there, and would let it run here too.
    let found = here.find_at_rest(&domain.uuid, &mut warn).await;
    let state = found.as_ref().ok().and_then(|state| state.as_deref());
    // A libvirt that ended during the switch-over leaves it so, and does not know whether it runs there.
    let beyond = match state {
        Some("paused") if !cut_off => Some(there.find(&domain.uuid, &mut warn).await),
        _ => None,
    };
    let guest = beyond.as_ref().map_or_else(|| guest_state(state, cut_off), if_paused_here);
    let not_started = match guest {
        GuestState::RunsAtDestination if domain.definition.autostart => {
            format!("; {}", start_later(&domain.uuid))
        }
        _ => String::new(),
    };
    let hint = match (&beyond, guest) {
        _ if cut_off => SEE_THERE,
        (Some(_), GuestState::RunsAtDestination | GuestState::Unknown) => NEVER_BOTH,
        (_, GuestState::PausedAtSource) if guest != domain.guest_state() => {
            "`virsh resume` here, if `virsh domstate` at the destination shows that it does not run there"
        }
        _ => "`virsh domstate` on both hosts; libvirt's own log has more",
    };
    let (place, beyond) = (place(&found), beyond.as_ref().map(place_there).unwrap_or_default());
    let runs_there = guest == GuestState::RunsAtDestination;
    let mut error = ErrorBody {
        step: Some(Step::Copy),
        side: Some(if runs_there { Side::Destination } else { Side::Source }),
        // One that libvirt has left paused would arrive paused, as if its user had paused it.
        retry_can_help: !cut_off && (guest == GuestState::RunsAtSource || guest == domain.guest_state()),
        guest_state: Some(guest),
        ..ErrorBody::new(
            if asked { code::CANCELLED } else { code::LIBVIRT_FAILED },
            format!("{message}{trouble}; {place}{beyond}{not_started}"),
        )
        .with_hint(hint)
    };
    // If the other libvirt ended during the switch-over, this one lets the domain run again.
    if state == Some("running") && !cut_off {
        note_there(&mut error, &there.find(&domain.uuid, &mut warn).await);
    }
    let is_as_before = error.guest_state == Some(domain.guest_state());
    let is_lacking = is_as_before && !asked && LACKING.iter().any(|words| message.contains(words));
    let error = if is_lacking { lacking(error) } else { error };
    // Where the destination is silent it may run there too: a drain must not move it on.
    let is_cancelled = asked && is_as_before && error.retry_can_help;
    Ended::failed(error, if is_cancelled { MigrationOutcome::Cancelled } else { MigrationOutcome::Failed })
}

/// The end of a copy whose stream was released, where libvirt lets the domain run here again: it may run there too.
pub async fn seen_there(mut ended: Ended, there: &Virsh, domain: &Target, warn: impl FnMut(&str)) -> Ended {
    let Some(error) = &mut ended.error else { return ended };
    if error.step != Some(Step::Commit) || error.guest_state != Some(GuestState::RunsAtSource) {
        return ended;
    }
    let found = there.find(&domain.uuid, warn).await;
    note_there(error, &found);
    ended
}

/// The destination's answer about a domain that runs here. Without one it is not known that it does not run there too.
fn note_there(error: &mut ErrorBody, found: &Result<Option<String>, ErrorBody>) {
    error.message += &place_there(found);
    let hint = match found {
        Ok(Some(state)) if state == "running" => {
            error.guest_state = Some(GuestState::Unknown);
            RUNS_TWICE
        }
        Ok(_) => return,
        Err(_) => SEE_THERE,
    };
    error.retry_can_help = false;
    error.hint = hint.into();
}

/// No later try helps at that host. A drain tries another one.
fn lacking(error: ErrorBody) -> ErrorBody {
    let error = ErrorBody {
        code: "resource_missing".into(),
        side: Some(Side::Destination),
        retry_can_help: false,
        ..error
    };
    error.with_hint("move it to another host, or start the domain with a CPU model that both hosts can")
}

/// Where the domain is by this host's libvirt.
pub fn place(found: &Result<Option<String>, ErrorBody>) -> String {
    match found {
        Ok(Some(state)) => format!("the domain is {state} here"),
        Ok(None) => "this host's libvirt does not know the domain any more: check the destination's".into(),
        Err(dead) => format!(
            "the domain's place is not known, as this host's libvirt does not answer: {}",
            dead.message
        ),
    }
}

/// The guest's state if this host's libvirt has the domain in this state. libvirt leaves it paused here if it got no
/// answer that it runs at the destination.
pub fn guest_state(state: Option<&str>, cut_off: bool) -> GuestState {
    match state {
        Some("running") => GuestState::RunsAtSource,
        Some("paused") if !cut_off => GuestState::PausedAtSource,
        _ => GuestState::Unknown,
    }
}

/// The guest's state if the domain is paused here, by the destination's libvirt.
fn if_paused_here(there: &Result<Option<String>, ErrorBody>) -> GuestState {
    match there {
        Ok(None) => GuestState::PausedAtSource,
        Ok(Some(state)) if state == "shut off" => GuestState::PausedAtSource,
        Ok(Some(state)) if state == "running" => GuestState::RunsAtDestination,
        // One that is paused there may be complete.
        Ok(Some(_)) | Err(_) => GuestState::Unknown,
    }
}

/// For the end of a sentence.
fn place_there(found: &Result<Option<String>, ErrorBody>) -> String {
    match found {
        Ok(Some(state)) => format!(", and {state} at the destination"),
        Ok(None) => ", and the destination's libvirt does not know it".into(),
        Err(dead) => format!(", and the destination's libvirt does not answer: {}", dead.message),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{FakeLibvirt, target};
    use super::*;

    #[tokio::test]
    async fn a_host_whose_processor_lacks_a_feature_is_not_one_where_a_retry_can_help() {
        let (here, there) = (FakeLibvirt::new(Some("running")), FakeLibvirt::new(None));
        for (message, known_as, side) in [
            (
                "operation failed: guest CPU doesn't match specification: missing features: cx16",
                "resource_missing",
                Side::Destination,
            ),
            (
                "the CPU is incompatible with host CPU: Host CPU does not provide required features: avx",
                "resource_missing",
                Side::Destination,
            ),
            ("Requested operation is not valid: migration was refused", code::LIBVIRT_FAILED, Side::Source),
        ] {
            let broken = Broken { message, trouble: "", asked: false, cut_off: false };
            let ended = failed(&here.virsh(), &there.virsh(), &target(), broken, |_: &str| ()).await;
            let error = ended.error.unwrap();
            assert_eq!((error.code.as_str(), error.side), (known_as, Some(side)), "{message}");
            assert_eq!(error.retry_can_help, side == Side::Source, "{message}");
            assert!(error.message.starts_with(message), "{}", error.message);
            assert_eq!(error.guest_state, Some(GuestState::RunsAtSource), "{message}");
        }
    }

    #[tokio::test]
    async fn a_copied_domain_that_runs_here_again_after_its_release_is_looked_for_at_the_destination() {
        use GuestState::{RunsAtSource, Unknown};
        for (step, there, guest) in [
            (Step::Commit, Some("running"), Unknown),
            (Step::Commit, None, RunsAtSource),
            // Nothing was released before: it cannot run there.
            (Step::Copy, Some("running"), RunsAtSource),
        ] {
            let there = FakeLibvirt::new(there);
            let error = ErrorBody {
                step: Some(step),
                guest_state: Some(RunsAtSource),
                retry_can_help: true,
                ..ErrorBody::new("hypervisor_failed", "libvirt runs the guest here again")
            };
            let ended = Ended::failed(error, MigrationOutcome::Failed);
            let ended = seen_there(ended, &there.virsh(), &target(), |_: &str| ()).await;
            let error = ended.error.unwrap();
            assert_eq!(error.guest_state, Some(guest), "{step:?}: {}", error.message);
            assert_eq!(error.retry_can_help, guest == RunsAtSource, "{step:?}");
        }
    }

    #[test]
    fn a_domain_that_runs_here_again_is_not_moved_again_while_the_destination_is_silent() {
        let state = |state: &str| Ok(Some(state.to_owned()));
        for (found, again) in [
            (Ok(None), true),
            (state("paused"), true),
            (state("running"), false),
            (Err(ErrorBody::new(code::LIBVIRT_FAILED, "no answer")), false),
        ] {
            let mut error = ErrorBody {
                guest_state: Some(GuestState::RunsAtSource),
                retry_can_help: true,
                ..ErrorBody::new("hypervisor_failed", "libvirt runs the guest here again")
            };
            note_there(&mut error, &found);
            assert_eq!(error.retry_can_help, again, "{}", error.message);
        }
    }

    /// In a drain it would be moved to another host, and may run at the first one too.
    #[tokio::test]
    async fn a_domain_is_not_called_cancelled_where_the_destination_cannot_be_asked() {
        for (cut_off, outcome) in [(false, MigrationOutcome::Cancelled), (true, MigrationOutcome::Failed)] {
            let (here, there) = (FakeLibvirt::new(Some("running")), FakeLibvirt::new(None));
            let broken = Broken { message: "it was canceled", trouble: "", asked: true, cut_off };
            let ended = failed(&here.virsh(), &there.virsh(), &target(), broken, |_: &str| ()).await;
            assert_eq!(ended.outcome, outcome, "cut off: {cut_off}");
            let error = ended.error.unwrap();
            assert_eq!((error.code.as_str(), error.retry_can_help), (code::CANCELLED, !cut_off));
        }
    }

    #[test]
    fn a_paused_domain_may_run_at_the_destination_if_the_connection_was_lost() {
        for (state, cut_off, message) in [
            (Some("running"), true, GuestState::RunsAtSource),
            (Some("paused"), false, GuestState::PausedAtSource),
            (Some("paused"), true, GuestState::Unknown),
            (Some("shut off"), false, GuestState::Unknown),
            (None, true, GuestState::Unknown),
        ] {
            assert_eq!(guest_state(state, cut_off), message, "{state:?} {cut_off}");
        }
    }
    #[test]
    fn a_paused_domain_is_at_the_source_only_if_the_destination_says_that_it_is_not_there() {
        let state = |state: &str| Ok(Some(state.to_owned()));
        for (there, guest) in [
            (Ok(None), GuestState::PausedAtSource),
            (state("shut off"), GuestState::PausedAtSource),
            (state("running"), GuestState::RunsAtDestination),
            (state("paused"), GuestState::Unknown),
            (state("in shutdown"), GuestState::Unknown),
            (Err(ErrorBody::new(code::LIBVIRT_FAILED, "no answer")), GuestState::Unknown),
        ] {
            assert_eq!(if_paused_here(&there), guest, "{}", place_there(&there));
        }
    }
}
