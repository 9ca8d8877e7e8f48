//! What both libvirts say of the domain when a migration has ended.

use linerate_api::{ErrorBody, GuestState, Job, MigrationOutcome, Side, Step, code};

use super::target::Target;
use super::virsh::Virsh;

/// Where the way to the other libvirt was lost.
pub const SEE_THERE: &str = "this host's libvirt did not hear how it ended there: see that the destination's does not \
run the domain too (`virsh domstate`) before you try again";

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
    /// What it does as long as nobody has moved it.
    pub fn guest_state(&self) -> GuestState {
        if self.paused { GuestState::PausedAtSource } else { GuestState::RunsAtSource }
    }
}

/// libvirt says that it has moved the domain. It is a success only if the destination's libvirt has it in the state that
/// it had, and if there is no `fault` of the copy.
pub async fn arrived(
    there: &Virsh,
    domain: &Target,
    fault: Option<String>,
    mut warn: impl FnMut(&str),
) -> Ended {
    if let Some(fault) = &fault {
        warn(&format!("libvirt has moved the domain, and then: {fault}"));
    }
    let found = there.find(&domain.uuid, &mut warn).await;
    let trouble = match &found {
        Ok(Some(state)) if state == domain.state() => None,
        Ok(Some(state)) => Some(format!("it is {state} there, and was {} here", domain.state())),
        Ok(None) => Some("the destination's does not know it".to_owned()),
        Err(dead) => Some(format!("the destination's cannot be asked: {}", dead.message)),
    };
    if let Some(trouble) = &trouble {
        warn(&format!(
            "libvirt says that it has moved the domain, but {trouble}: look at both with `virsh domstate {}`",
            domain.uuid
        ));
    }
    let state = found.ok().flatten().unwrap_or_else(|| "unknown".into());
    let guest = match state.as_str() {
        "running" => GuestState::RunsAtDestination,
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
    let job = there.job(&domain.uuid, true).await;
    Ended { outcome, error, arrived: Some(Outcome { state, job }) }
}

/// How it went wrong: `said` by libvirt, `asked` for by the operator, or `cut_off` from the other host.
pub struct Broken<'a> {
    pub said: &'a str,
    pub trouble: &'a str,
    pub asked: bool,
    pub cut_off: bool,
}

/// What became of it, and of the domain, by this host's libvirt.
pub async fn failed(here: &Virsh, domain: &Target, broken: Broken<'_>, warn: impl FnMut(&str)) -> Ended {
    let Broken { said, trouble, asked, cut_off } = broken;
    let found = here.find(&domain.uuid, warn).await;
    let guest = guest_state(found.as_ref().ok().and_then(|state| state.as_deref()), cut_off);
    let place = place(&found);
    let hint =
        if cut_off { SEE_THERE } else { "`virsh domstate` on both hosts; libvirt's own log says more" };
    let error = ErrorBody {
        step: Some(Step::Copy),
        side: Some(Side::Source),
        retry_can_help: !cut_off,
        guest_state: Some(guest),
        ..ErrorBody::new(
            if asked { code::CANCELLED } else { code::LIBVIRT_FAILED },
            format!("{said}{trouble}; {place}"),
        )
        .with_hint(hint)
    };
    let is_cancelled = asked && guest == domain.guest_state();
    Ended::failed(error, if is_cancelled { MigrationOutcome::Cancelled } else { MigrationOutcome::Failed })
}

/// Where this host's libvirt says that the domain is.
pub fn place(found: &Result<Option<String>, ErrorBody>) -> String {
    match found {
        Ok(Some(state)) => format!("the domain is {state} here"),
        Ok(None) => "this host's libvirt does not know the domain any more: look at the destination's".into(),
        Err(dead) => format!(
            "where the domain is cannot be said, as this host's libvirt does not answer: {}",
            dead.message
        ),
    }
}

/// What the domain does if this host's libvirt says that it is in this state. libvirt leaves it paused here if it did
/// not hear that it runs at the destination.
pub fn guest_state(state: Option<&str>, cut_off: bool) -> GuestState {
    match state {
        Some("running") => GuestState::RunsAtSource,
        Some("paused") if !cut_off => GuestState::PausedAtSource,
        _ => GuestState::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paused_domain_may_run_at_the_destination_where_the_way_there_was_lost() {
        for (state, cut_off, said) in [
            (Some("running"), true, GuestState::RunsAtSource),
            (Some("paused"), false, GuestState::PausedAtSource),
            (Some("paused"), true, GuestState::Unknown),
            (Some("shut off"), false, GuestState::Unknown),
            (None, true, GuestState::Unknown),
        ] {
            assert_eq!(guest_state(state, cut_off), said, "{state:?} {cut_off}");
        }
    }
}
