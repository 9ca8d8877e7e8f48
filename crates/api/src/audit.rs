//! The audit log: who did what on a host, or tried to.

use serde::{Deserialize, Serialize};

/// A line of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// When it was written, milliseconds since 1970 (UTC).
    pub unix_ms: u64,
    /// What was done, or asked for.
    pub action: AuditAction,
    /// What became of it.
    pub result: AuditResult,
    /// The user of this host, the other host or the agent that did it.
    pub caller: AuditCaller,
    /// Name of the guest that it concerns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<String>,
    /// Migration or tunnel that it belongs to, as in `linerate migration list`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The other host that was asked for, or its address; the host that joined or was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Cipher of the connections to the other host, where a migration from this host has ended; none in plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cipher: Option<String>,
    /// Why it was refused or failed, and what exactly was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How many lines of its kind before this one were not written, since they were too many.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// What was done or asked for; each command and each kind of connection is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditAction {
    /// The agent was started.
    AgentStart,
    /// The agent was ended.
    AgentStop,
    /// A program of this host asked for the state of something.
    Look,
    /// A guest was started (`linerate vm start`).
    GuestStart,
    /// A running QEMU was taken over (`linerate vm adopt`).
    GuestAdopt,
    /// A guest was shut down or ended (`linerate vm stop`).
    GuestStop,
    /// A migration from this host was begun.
    MigrationBegin,
    /// A migration from this host has ended.
    MigrationEnd,
    /// A migration was asked to stop (`linerate migration cancel`).
    MigrationCancel,
    /// A session in doubt was decided by hand (`linerate resolve`).
    Resolve,
    /// Another host began to send a guest.
    ArrivalBegin,
    /// A migration to this host has ended.
    ArrivalEnd,
    /// A connection of another host's agent.
    Connection,
    /// A tunnel, from here or from another host.
    Tunnel,
    /// The doctor looked at this host.
    Doctor,
    /// A measurement of the links.
    Bench,
    /// A port was set, on trial.
    LinkSet,
    /// A setting of a port stays.
    LinkConfirm,
    /// A port was set back.
    LinkPutBack,
    /// Ports were set from an intent.
    QosApply,
    /// Another host changed settings of ports here, or asked for that.
    Ports,
    /// A host takes no guests from others (`linerate cordon`).
    Cordon,
    /// A host takes guests again (`linerate uncordon`).
    Uncordon,
    /// A drain was begun, or has ended (`linerate drain`).
    Drain,
    /// The guests of a drain are brought back (`linerate undrain`).
    Undrain,
    /// A drain was paused, resumed or aborted.
    DrainSteer,
    /// A guest that will never come back was dismissed (`linerate undrain --forget`).
    ForgetGuest,
    /// A host that will never come back was dismissed (`linerate fleet forget`).
    ForgetHost,
    /// The agent looked whether this host's identity or its tokens have changed, as after `linerate join`.
    Identity,
    /// A cluster was made (`linerate cluster init`).
    ClusterInit,
    /// A step of a change of the cluster's authority (`linerate cluster rotate`).
    ClusterRotate,
    /// A token was made or revoked (`linerate token`).
    Token,
    /// A host joined a cluster, as its own host and the authority's saw it.
    Join,
    /// A host of the cluster got a new certificate here, or asked for one.
    Renew,
    /// A host was revoked (`linerate host revoke`).
    Revoke,
}

impl AuditAction {
    /// Its name in JSON.
    pub fn name(self) -> String {
        serde_json::to_value(self).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
    }
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditResult {
    /// It was done, or begun where it takes time.
    Done,
    /// The caller may not do it, or has not proved who it is.
    Refused,
    /// It could not be done.
    Failed,
}

impl AuditResult {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            AuditResult::Done => "done",
            AuditResult::Refused => "refused",
            AuditResult::Failed => "failed",
        }
    }
}

/// Who did something, by the kernel's word or by a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AuditCaller {
    /// A program of this host, over the local API.
    Local {
        /// User that the kernel reports for its connection.
        uid: u32,
        /// Name of that user, where the host knows one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<String>,
        /// Process that opened the connection, where the kernel reports one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<i32>,
    },
    /// Another host's agent, over TCP or RDMA.
    Host {
        /// Name that its certificate proved; none in plain text, over RDMA, or where the proof failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// Where it connected from: address and port.
        address: String,
        /// Cipher of the connection; none in plain text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cipher: Option<String>,
    },
    /// The agent itself: its start, its end, and what ended by itself.
    Agent,
}

/// Lines of the audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditAnswer {
    /// Those that match, oldest first.
    pub entries: Vec<AuditEntry>,
    /// What of the log cannot be read and may be among them: how many lines of which file.
    pub unreadable: Vec<String>,
}

/// Which lines of the audit log to show. Everything that is given must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditRequest {
    /// Not older than this, milliseconds since 1970 (UTC).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_unix_ms: Option<u64>,
    /// Only lines that name this guest, by its whole name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<String>,
    /// Of this migration or tunnel; its first characters are enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// By this host, by its name or address, or by this local user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Only lines with this result; all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<AuditResult>,
    /// At most so many, the newest.
    pub limit: u32,
}

impl AuditRequest {
    /// Whether a line is among those asked for, but for `limit`.
    pub fn matches(&self, entry: &AuditEntry) -> bool {
        let session = entry.session.as_deref().unwrap_or_default();
        self.since_unix_ms.is_none_or(|since| entry.unix_ms >= since)
            && (self.guest.is_none() || self.guest == entry.guest)
            && self.session.as_deref().is_none_or(|wanted| !session.is_empty() && session.starts_with(wanted))
            && self.result.is_none_or(|result| result == entry.result)
            && self.by.as_deref().is_none_or(|by| entry.caller.is(by))
    }
}

impl AuditCaller {
    /// Whether it is the host or user of this name, address or number.
    fn is(&self, name: &str) -> bool {
        match self {
            AuditCaller::Local { uid, user, .. } => user.as_deref() == Some(name) || name.parse() == Ok(*uid),
            AuditCaller::Host { name: own, address, .. } => {
                let ip = address.rsplit_once(':').map_or("", |(ip, _)| ip);
                own.as_deref() == Some(name) || address == name || ip.trim_matches(['[', ']']) == name
            }
            AuditCaller::Agent => name == "agent",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(caller: AuditCaller) -> AuditEntry {
        AuditEntry {
            unix_ms: 1000,
            action: AuditAction::MigrationBegin,
            result: AuditResult::Done,
            caller,
            guest: Some("web".into()),
            session: Some("abc123".into()),
            to: None,
            cipher: None,
            reason: None,
            left_out: 0,
        }
    }

    #[test]
    fn everything_that_is_given_must_match() {
        let host =
            AuditCaller::Host { name: Some("b".into()), address: "[fd00::2]:4711".into(), cipher: None };
        let line = entry(host);
        let all = AuditRequest { limit: 10, ..AuditRequest::default() };
        let matching = [
            all.clone(),
            AuditRequest { since_unix_ms: Some(1000), ..all.clone() },
            AuditRequest { guest: Some("web".into()), session: Some("abc".into()), ..all.clone() },
            AuditRequest { by: Some("b".into()), ..all.clone() },
            AuditRequest { by: Some("fd00::2".into()), ..all.clone() },
            AuditRequest { result: Some(AuditResult::Done), ..all.clone() },
        ];
        assert!(matching.iter().all(|request| request.matches(&line)));
        let others = [
            AuditRequest { since_unix_ms: Some(1001), ..all.clone() },
            AuditRequest { guest: Some("we".into()), ..all.clone() },
            AuditRequest { session: Some("bc".into()), ..all.clone() },
            AuditRequest { by: Some("fd00::".into()), ..all.clone() },
            AuditRequest { guest: Some("web".into()), result: Some(AuditResult::Refused), ..all.clone() },
        ];
        assert!(!others.iter().any(|request| request.matches(&line)));
        let root = entry(AuditCaller::Local { uid: 0, user: Some("root".into()), pid: None });
        for by in ["0", "root"] {
            assert!(AuditRequest { by: Some(by.into()), ..all.clone() }.matches(&root));
        }
        assert!(!AuditRequest { by: Some("1".into()), ..all }.matches(&root));
    }
}
