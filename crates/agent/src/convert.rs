//! The core's types as the API's.

use linerate_api as api;
use linerate_core::{Code, Fault, GuestState, ModeTag, Side, Step};

pub fn step(step: Step) -> api::Step {
    // The numbers are the same; a test in this module holds them together.
    api::Step::from_number(step as u8).unwrap_or(api::Step::Resolve)
}

/// What carries RAM; the API names the owner of a domain elsewhere.
pub fn mode(mode: ModeTag) -> api::Mode {
    match mode {
        ModeTag::Direct | ModeTag::Handover => api::Mode::Direct,
        ModeTag::Streams => api::Mode::Stream,
    }
}

fn side(side: Side) -> api::Side {
    api::Side::from_number(side as u8).unwrap_or(api::Side::Source)
}

pub fn guest_state(state: GuestState) -> api::GuestState {
    api::GuestState::from_number(state as u8).unwrap_or(api::GuestState::InDoubt)
}

/// The API's name of a code: `GuestUnknown` is `guest_unknown`.
pub fn code_name(code: Code) -> String {
    let camel = code.name();
    let mut snake = String::with_capacity(camel.len() + 4);
    for (place, letter) in camel.char_indices() {
        if place > 0 && letter.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

/// What to do about a fault.
fn hint(code: Code) -> &'static str {
    match code {
        Code::VersionMismatch => "install the same version of linerate on both hosts",
        Code::NotAuthorised => {
            "in agent.toml of the host that refused, see `[peers]` (permissions of this host), `tunnel_targets` and `settings_from_agents`"
        }
        Code::GuestUnknown => "`linerate vm list` shows the guests of this host",
        Code::GuestExists => {
            "stop or rename the guest of that name at the destination, or remove what a crash left of it"
        }
        Code::GuestBusy => "`linerate migration list` shows the migration that has it",
        Code::NotMigratable => {
            "change what the error names, at the host that it names; docs/guests.md shows how to start a guest that can move"
        }
        Code::MemoryShort => "free memory at the destination or choose another one",
        Code::ResourceMissing | Code::GuestDiffers => {
            "make the destination alike: disks on shared storage, the same taps and bridges, a QEMU that is not older"
        }
        Code::HypervisorFailed => "read the log of that side's agent and of its QEMU, then try again",
        Code::NoLink | Code::PeerLost => {
            "`linerate doctor` with the other host shows what is wrong with the links; else check cables, switch ports and `listen` of both agents"
        }
        Code::NotConverging => {
            "allow a longer blackout (--max-blackout), let the guest be slowed down (--throttle), or add a link"
        }
        Code::JournalFailed => "free space under state_dir on that side, then try again",
        Code::TrackingFailed => {
            "see whether another tool holds a userfaultfd or ptrace on this QEMU (a debugger, a background snapshot)"
        }
        Code::ChecksumMismatch => "suspect a network card or a cable; try again over other links (--links)",
        Code::VerifyMismatch => {
            "a device writes past the tracker, or linerate has a defect: please report it with both agents' logs"
        }
        Code::Cordoned => "release that host with `linerate uncordon` there, or choose another one",
        Code::GuestGone => {
            "see `linerate vm list` and `linerate migration list` on both hosts: start the guest again only if no copy of it is left"
        }
        Code::GuestStopped => {
            "`linerate vm list` at the destination shows what it does; read the log of its QEMU there, repair what stopped it (its storage), and let it run on with `cont` at its monitor"
        }
        Code::ProtocolViolation | Code::Internal => "please report it with both agents' logs",
        Code::SessionUnknown
        | Code::Cancelled
        | Code::MemoryFailed
        | Code::TimedOut
        | Code::AgentRestarted => {
            if code.retry_can_help() {
                "try again"
            } else {
                ""
            }
        }
    }
}

/// A fault for the operator. `guest` is what the guest does now, if that is known.
pub fn error(fault: &Fault, guest: Option<GuestState>) -> api::ErrorBody {
    api::ErrorBody {
        code: code_name(fault.code),
        step: Some(step(fault.step)),
        side: Some(side(fault.side)),
        retry_can_help: fault.code.retry_can_help(),
        guest_state: guest.map(guest_state),
        message: if fault.detail.is_empty() {
            fault.code.sentence().to_owned()
        } else {
            format!("{}: {}", fault.code.sentence(), fault.detail)
        },
        hint: match (fault.code, fault.step) {
            // The one cause in that step is the destination that was named.
            (Code::NotMigratable, Step::Authorise) => "name another host with --to",
            (code, _) => hint(code),
        }
        .to_owned(),
    }
}

/// A migration's end by a fault. To try again fits only a guest that is at the source as it was. `unfinished`: recovery
/// goes on with it.
pub fn ended(fault: &Fault, guest: GuestState, unfinished: bool) -> api::ErrorBody {
    let body = error(fault, Some(guest));
    let hint = match guest {
        GuestState::RunsAtSource => return body,
        GuestState::PausedAtSource if !unfinished => return body,
        GuestState::PausedAtSource => {
            "the guest could not be resumed at the source yet, and its agent tries until QEMU answers; neither move nor start the guest before `linerate migration list` on both hosts shows where it is: the destination runs it if an operator has decided so there"
        }
        GuestState::Gone => hint(Code::GuestGone),
        // The agent there has said why.
        GuestState::StoppedAtDestination => hint(fault.code),
        GuestState::InDoubt | GuestState::Unknown => {
            "`linerate migration list` on both hosts shows what is waited for, and who may decide (`linerate resolve`); neither move nor start the guest before that"
        }
        GuestState::RunsAtDestination | GuestState::PausedAtDestination => {
            "the guest is at the destination; `linerate migration list` and the log of this agent show what is left to do here"
        }
    };
    api::ErrorBody { retry_can_help: false, hint: hint.to_owned(), ..body }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_guest_that_is_where_it_was_is_to_be_moved_again() {
        let fault = Fault::new(Code::HypervisorFailed, Step::Blackout, Side::Source, "no answer");
        for guest in (0..=255u8).filter_map(GuestState::from_number) {
            for unfinished in [true, false] {
                let body = ended(&fault, guest, unfinished);
                let is_there =
                    guest == GuestState::RunsAtSource || (guest == GuestState::PausedAtSource && !unfinished);
                let has_stopped = guest == GuestState::StoppedAtDestination;
                assert_eq!(body.retry_can_help, is_there, "{guest:?}");
                assert_eq!(
                    body.hint.contains("try again") && !has_stopped,
                    is_there,
                    "{guest:?}: {}",
                    body.hint
                );
                assert!(
                    is_there || has_stopped || body.hint.contains("linerate migration list"),
                    "{}",
                    body.hint
                );
                assert_eq!(body.guest_state, Some(guest_state(guest)));
            }
        }
    }

    #[test]
    fn the_two_tables_of_numbers_agree() {
        for ours in Step::ALL {
            assert_eq!(step(ours).text(), ours.name());
        }
        for number in 0..=255u8 {
            assert_eq!(
                api::Side::from_number(number).map(api::Side::text),
                Side::from_number(number).map(|s| match s {
                    Side::Source => "source",
                    Side::Destination => "destination",
                })
            );
            let sentence = GuestState::from_number(number).map(GuestState::sentence);
            assert_eq!(api::GuestState::from_number(number).map(api::GuestState::text), sentence);
        }
    }

    #[test]
    fn every_code_has_a_name() {
        assert_eq!(code_name(Code::GuestUnknown), "guest_unknown");
        assert!(
            Code::ALL.iter().all(|code| code_name(*code).chars().all(|c| c.is_ascii_lowercase() || c == '_'))
        );
    }
}
