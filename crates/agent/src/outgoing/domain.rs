//! Domains of libvirt that leave this host: what is done before the migration begins. Then their driver is
//! `driver/handover`.

use std::time::Instant;

use linerate_api::{DomainMigration, MigrateRequest, ModeChoice};
use linerate_core::{Code, Fault, Side, Step};
use linerate_guest::description::GuestDescription;
use linerate_guest::domain::{self, DomainError};
use linerate_guest::qmp::Qmp;
use linerate_guest::registry::GuestRecord;

use super::Sessions;
use crate::faults::fault;

/// The domain's second monitor.
pub(super) fn open(sessions: &Sessions, name: &str, deadline: Instant) -> Result<(GuestRecord, Qmp), Fault> {
    domain::open(&sessions.config.domain_sockets, name, deadline).map_err(|error| {
        let code = match &error {
            DomainError::Silent { .. } | DomainError::Process(_) => Code::HypervisorFailed,
            DomainError::Name(_)
            | DomainError::NoSocket { .. }
            | DomainError::Folder(_)
            | DomainError::Foreign { .. } => Code::NotMigratable,
        };
        fault(code, Step::Resolve, Side::Source, &error)
    })
}

/// Whether libvirt can hand it over, apart from its memory and devices.
pub(super) fn check(
    request: &MigrateRequest,
    domain: &DomainMigration,
    description: &GuestDescription,
) -> Result<(), Fault> {
    let name = &request.guest;
    if description.name != *name {
        let detail = format!("the QEMU behind the socket of {name} calls itself {}", description.name);
        return Err(here(Code::NotMigratable, detail));
    }
    if description.uuid.as_ref() != Some(&domain.uuid) {
        let detail = format!("the QEMU behind the socket of {name} is not that of this domain");
        return Err(here(Code::NotMigratable, detail));
    }
    if !description.is_running() {
        return Err(here(Code::NotMigratable, format!("{name} is {}, and must run", description.run_state)));
    }
    if request.mode != ModeChoice::Direct || request.throttle {
        let detail =
            "a domain is asked for in direct mode, and is not slowed down: libvirt would see it stop";
        return Err(here(Code::NotMigratable, detail));
    }
    Ok(())
}

fn here(code: Code, detail: impl Into<String>) -> Fault {
    Fault::new(code, Step::Resolve, Side::Source, detail)
}

#[cfg(test)]
mod tests {
    use linerate_guest::run_state::RunState;

    use super::*;
    use crate::incoming::domain::tests::waits;

    #[test]
    fn a_socket_of_another_domain_is_refused() {
        let guest = || GuestDescription { run_state: RunState::Running, ..waits() };
        let request = MigrateRequest { mode: ModeChoice::Direct, ..MigrateRequest::new("web", "beta") };
        let domain = DomainMigration {
            stream: "mig.sock".into(),
            job: "job.sock".into(),
            uuid: guest().uuid.unwrap_or_default(),
        };
        assert!(check(&request, &domain, &guest()).is_ok());
        let other = "0f0e8c9a-0000-4000-8000-000000000002".to_owned();
        for (what, found) in [
            ("calls itself db", GuestDescription { name: "db".into(), ..guest() }),
            ("not that of this domain", GuestDescription { uuid: Some(other), ..guest() }),
            ("not that of this domain", GuestDescription { uuid: None, ..guest() }),
            ("must run", GuestDescription { run_state: RunState::Paused, ..guest() }),
        ] {
            let refused = check(&request, &domain, &found).unwrap_err();
            assert_eq!(refused.code, Code::NotMigratable);
            assert!(refused.detail.contains(what), "{refused}");
        }
    }
}
