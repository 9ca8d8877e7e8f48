//! The endpoints. The agent routes by [`TABLE`]'s paths, the client fills them in.

/// `GET`: the agent itself, [`AgentStatus`](crate::AgentStatus).
pub const STATUS: &str = "/v1/status";
/// `POST`: the agent takes up what changed in this host's identity and tokens; 200,
/// [`AgentStatus`](crate::AgentStatus).
pub const IDENTITY: &str = "/v1/identity";
/// `GET`: list of [`GuestSummary`](crate::GuestSummary). `POST` [`StartGuest`](crate::StartGuest): 201,
/// [`GuestSummary`](crate::GuestSummary).
pub const GUESTS: &str = "/v1/guests";
/// `POST` [`AdoptGuest`](crate::AdoptGuest): 201, [`GuestSummary`](crate::GuestSummary). No guest can be called
/// `adopt`.
pub const GUESTS_ADOPT: &str = "/v1/guests/adopt";
/// `GET`: one guest's [`GuestDetail`](crate::GuestDetail).
pub const GUEST: &str = "/v1/guests/{name}";
/// `POST` [`StopGuest`](crate::StopGuest): 200, [`GuestSummary`](crate::GuestSummary) as it is then.
pub const GUEST_STOP: &str = "/v1/guests/{name}/stop";
/// `GET`: list of [`MigrationSummary`](crate::MigrationSummary), newest first, with sessions in doubt of earlier
/// incarnations of the agent. `POST` [`MigrateRequest`](crate::MigrateRequest): 202,
/// [`MigrationStarted`](crate::MigrationStarted).
pub const MIGRATIONS: &str = "/v1/migrations";
/// `GET`: [`MigrationDetail`](crate::MigrationDetail). `DELETE` cancels: 202,
/// [`MigrationSummary`](crate::MigrationSummary); it is over once the event stream says so.
pub const MIGRATION: &str = "/v1/migrations/{id}";
/// `GET`: [`Event`](crate::Event)s, one a line.
pub const MIGRATION_EVENTS: &str = "/v1/migrations/{id}/events";
/// `POST` [`ResolveRequest`](crate::ResolveRequest): 200, [`MigrationSummary`](crate::MigrationSummary).
pub const SESSION_RESOLVE: &str = "/v1/sessions/{id}/resolve";
/// `POST` [`BenchRequest`](crate::BenchRequest): 200, [`BenchEvent`](crate::BenchEvent)s, one a line. Closing the
/// connection stops the measurement.
pub const BENCH: &str = "/v1/bench";

/// `POST` [`DoctorRequest`](crate::DoctorRequest): 200, [`DoctorAnswer`](crate::DoctorAnswer).
pub const DOCTOR: &str = "/v1/doctor";
/// `POST` [`LinkRequest`](crate::LinkRequest): 200, [`LinkAnswer`](crate::LinkAnswer).
pub const LINK_SET: &str = "/v1/link/set";
/// `POST` [`LinkConfirm`](crate::LinkConfirm): 200, the same.
pub const LINK_CONFIRM: &str = "/v1/link/confirm";
/// `POST` [`LinkConfirm`](crate::LinkConfirm): 200, the same.
pub const LINK_PUT_BACK: &str = "/v1/link/put-back";
/// `POST` [`QosRequest`](crate::QosRequest): 200, [`QosAnswer`](crate::QosAnswer).
pub const QOS_APPLY: &str = "/v1/qos/apply";

/// `POST` [`TunnelRequest`](crate::TunnelRequest): 200, [`TunnelEvent`](crate::TunnelEvent)s, one a line. The tunnel
/// ends when the client closes the connection.
pub const TUNNELS: &str = "/v1/tunnels";

/// `POST` [`AuditRequest`](crate::AuditRequest): 200, [`AuditAnswer`](crate::AuditAnswer).
pub const AUDIT: &str = "/v1/audit";

/// `POST` [`CordonRequest`](crate::CordonRequest): 200, [`CordonAnswer`](crate::CordonAnswer). Guests that are arriving
/// go on.
pub const CORDON: &str = "/v1/cordon";
/// `POST` [`CordonRequest`](crate::CordonRequest): 200, [`CordonAnswer`](crate::CordonAnswer).
pub const UNCORDON: &str = "/v1/uncordon";

/// `GET`: list of [`DrainDetail`](crate::DrainDetail), newest first. `POST` [`DrainRequest`](crate::DrainRequest): 202,
/// [`DrainStarted`](crate::DrainStarted).
pub const DRAINS: &str = "/v1/drains";
/// `POST` [`DrainRequest`](crate::DrainRequest): 200, [`DrainDetail`](crate::DrainDetail) of what would be done. Each
/// guest's migration is tried without copying. No drain can be called `plan`.
pub const DRAIN_PLAN: &str = "/v1/drains/plan";
/// `GET`: [`DrainDetail`](crate::DrainDetail). `POST` [`DrainSteer`](crate::DrainSteer): 200, the same.
pub const DRAIN: &str = "/v1/drains/{id}";
/// `GET`: [`UndrainDetail`](crate::UndrainDetail) of the last one since the agent was started. `POST`
/// [`UndrainRequest`](crate::UndrainRequest): 202, the same of the one that has begun.
pub const UNDRAIN: &str = "/v1/undrain";
/// `POST` [`ForgetGuest`](crate::ForgetGuest): 200, [`GuestForgotten`](crate::GuestForgotten).
pub const UNDRAIN_FORGET: &str = "/v1/undrain/forget";
/// `POST` [`PlaceRequest`](crate::PlaceRequest): 200, [`PlaceAnswer`](crate::PlaceAnswer).
pub const PLACE: &str = "/v1/place";
/// `GET`: list of [`FleetHost`](crate::FleetHost), as this host's store has them.
pub const FLEET_HOSTS: &str = "/v1/fleet/hosts";
/// `GET`: list of [`DrainDetail`](crate::DrainDetail), newest first: of all hosts that share this host's store.
pub const FLEET_DRAINS: &str = "/v1/fleet/drains";
/// `GET`: [`FleetStatus`](crate::FleetStatus). A store that does not answer is no error: the answer says so.
pub const FLEET: &str = "/v1/fleet";
/// `POST` [`ForgetHost`](crate::ForgetHost): 200, [`HostForgotten`](crate::HostForgotten).
pub const FLEET_FORGET: &str = "/v1/fleet/forget";

/// Every endpoint: method and path.
pub const TABLE: [(&str, &str); 36] = [
    ("GET", STATUS),
    ("POST", IDENTITY),
    ("GET", GUESTS),
    ("POST", GUESTS),
    ("POST", GUESTS_ADOPT),
    ("GET", GUEST),
    ("POST", GUEST_STOP),
    ("GET", MIGRATIONS),
    ("POST", MIGRATIONS),
    ("GET", MIGRATION),
    ("DELETE", MIGRATION),
    ("GET", MIGRATION_EVENTS),
    ("POST", SESSION_RESOLVE),
    ("POST", BENCH),
    ("POST", DOCTOR),
    ("POST", LINK_SET),
    ("POST", LINK_CONFIRM),
    ("POST", LINK_PUT_BACK),
    ("POST", TUNNELS),
    ("POST", QOS_APPLY),
    ("POST", AUDIT),
    ("POST", CORDON),
    ("POST", UNCORDON),
    ("GET", DRAINS),
    ("POST", DRAINS),
    ("POST", DRAIN_PLAN),
    ("GET", DRAIN),
    ("POST", DRAIN),
    ("GET", UNDRAIN),
    ("POST", UNDRAIN),
    ("POST", UNDRAIN_FORGET),
    ("POST", PLACE),
    ("GET", FLEET_HOSTS),
    ("GET", FLEET_DRAINS),
    ("GET", FLEET),
    ("POST", FLEET_FORGET),
];

/// The path with its one parameter filled in, percent-encoded.
pub fn fill(path: &str, parameter: &str) -> String {
    match (path.find('{'), path.find('}')) {
        (Some(open), Some(close)) if open < close => {
            let (before, after) = (path.get(..open), path.get(close + 1..));
            format!("{}{}{}", before.unwrap_or_default(), encode(parameter), after.unwrap_or_default())
        }
        _ => path.to_owned(),
    }
}

/// Percent-encodes everything but unreserved characters. A name made of dots is encoded too, since dots alone would be
/// taken for a step up the path.
fn encode(parameter: &str) -> String {
    let only_dots = parameter.bytes().all(|byte| byte == b'.');
    let mut out = String::with_capacity(parameter.len());
    for byte in parameter.bytes() {
        match byte {
            b'.' if only_dots => out.push_str("%2E"),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_cannot_leave_its_place_in_the_path() {
        assert_eq!(fill(GUEST_STOP, "web"), "/v1/guests/web/stop");
        assert_eq!(fill(GUEST, "a/../b c?d"), "/v1/guests/a%2F..%2Fb%20c%3Fd");
        assert_eq!(fill(GUEST_STOP, ".."), "/v1/guests/%2E%2E/stop");
        assert_eq!(fill(STATUS, "x"), STATUS);
    }
}
