//! Documents of `--json` that no agent sends. docs/json.md lists them with those of the API.

use linerate_api::ErrorBody;
use serde::Serialize;

/// Answer of `linerate agent --check`. A configuration with a fault is an error.
#[derive(Serialize)]
pub struct ConfigChecked<'a> {
    /// Path of the configuration.
    pub config: &'a str,
    /// The configuration has no fault. Always true: a fault is an error.
    pub good: bool,
}

/// Answer of `linerate link confirm`.
#[derive(Serialize)]
pub struct PortConfirmed<'a> {
    /// Name of the port.
    pub port: &'a str,
    /// The setting stays. Always true: otherwise there is an error.
    pub confirmed: bool,
}

/// Answer of `linerate link put-back`.
#[derive(Serialize)]
pub struct PortPutBack<'a> {
    /// Name of the port.
    pub port: &'a str,
    /// The port is set as before. Always true: otherwise there is an error.
    pub put_back: bool,
}

/// Configuration text for another system.
#[derive(Serialize)]
pub struct QosText<'a> {
    /// The system: `windows`, or a switch's as `--system` names it.
    pub system: &'a str,
    /// The configuration, one command or line of it in each line.
    pub text: &'a str,
}

/// A host that is in a cluster now.
#[derive(Serialize)]
pub struct Member {
    /// Name of the cluster.
    pub cluster: String,
    /// Name of this host in it.
    pub host: String,
    /// SHA-256 of the authority's public key, in hex; `None` if two are trusted.
    pub authority: Option<String>,
    /// The end of this host's certificate.
    pub ends_unix_ms: u64,
    /// The running agent uses it.
    pub in_force: bool,
}

/// Answer of `linerate token create`.
#[derive(Serialize)]
pub struct NewTokenLine<'a> {
    /// What to run on the other host. Whoever reads it can join.
    pub command: &'a str,
    /// The token alone, without address and command; secret until it is used.
    pub token: &'a str,
    /// Names the token in the list; not secret.
    pub id: String,
    /// The only host that may join with it.
    pub host: Option<String>,
    /// Where this host's agent lets hosts join.
    pub addresses: Vec<String>,
    /// From then on the token does not count.
    pub expires_unix_ms: u64,
    /// The running agent lets hosts join now.
    pub can_join: bool,
    /// Why hosts cannot join now, or why that is not known; `None` if they can.
    pub cannot_join: Option<String>,
}

/// A token, without what is secret of it.
#[derive(Serialize)]
pub struct TokenListed {
    /// For `linerate token revoke`.
    pub id: String,
    /// The only host that may join with it.
    pub host: Option<String>,
    /// From then on it does not count.
    pub expires_unix_ms: u64,
    /// Whether it can be used.
    pub state: TokenState,
}

/// Whether a token can be used.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenState {
    /// A host can join with it.
    Open,
    /// A host has sent it, and may have joined.
    Used,
    /// Its time is over.
    Expired,
}

/// Answer of `linerate token revoke`.
#[derive(Serialize)]
pub struct TokenRevoked<'a> {
    /// Id of the token.
    pub id: &'a str,
    /// It cannot be used any more. Always true: otherwise there is an error.
    pub revoked: bool,
}

/// A certificate that a host of the cluster has.
#[derive(Serialize)]
pub struct HostCertificate {
    /// Name of the host.
    pub host: String,
    /// Number of the certificate, in hex.
    pub serial: String,
    /// The end of the certificate.
    pub ends_unix_ms: u64,
}

/// Answer of `linerate host revoke`.
#[derive(Serialize)]
pub struct HostRevoked<'a> {
    /// Name of the host.
    pub host: &'a str,
    /// Its certificates are revoked. Always true: otherwise there is an error.
    pub revoked: bool,
    /// Number of the revocation list from then on.
    pub list_number: u64,
    /// The running agent refuses it.
    pub in_force: bool,
}

/// Answer of `linerate cluster rotate`.
#[derive(Serialize)]
pub struct AuthorityRotated {
    /// The step that was done: `begun`, `switched` or `finished`.
    pub step: &'static str,
    /// The authority that leaves: SHA-256 of its public key.
    pub old: String,
    /// The authority that comes.
    pub new: String,
    /// Hosts that were not waited for (`--leave-behind`): they must join again.
    pub left_behind: Vec<String>,
}

/// Answer of `linerate certificate show`.
#[derive(Serialize)]
pub struct CertificateShown {
    /// The name in the certificate, a URI.
    pub name: String,
    /// Name of the cluster.
    pub cluster: String,
    /// Name of this host in it.
    pub host: String,
    /// Number of the certificate, in hex.
    pub serial: String,
    /// The end of the certificate.
    pub ends_unix_ms: u64,
    /// From then on the agent renews it.
    pub renewal_from_unix_ms: u64,
    /// Why other hosts would refuse it; `None` if they would not.
    pub problem: Option<String>,
    /// The authority's key is on this host.
    pub has_authority: bool,
    /// Authorities that this host trusts.
    pub authorities: Vec<TrustedAuthority>,
}

/// An authority that a host trusts.
#[derive(Serialize)]
pub struct TrustedAuthority {
    /// SHA-256 of its public key, in hex.
    pub id: String,
    /// Number of its newest revocation list here; 0 without one.
    pub list_number: u64,
}

/// The last line of every command that failed.
#[derive(Serialize)]
pub struct ErrorLine<'a> {
    /// Always `error`: distinguishes this line from an event.
    pub kind: &'static str,
    /// What failed, on which side, and where the guest is.
    pub error: &'a ErrorBody,
    /// Exit code of the command.
    pub exit_code: u8,
}

/// One line for each step of `linerate drain --each`, before what it prints.
#[derive(Serialize)]
pub struct RollingLine<'a> {
    /// Always `rolling`: the lines of drains have no kind.
    pub kind: &'a str,
    /// Name of the host.
    pub host: &'a str,
    /// What follows.
    pub step: RollingStep,
}

/// A step of `linerate drain --each`.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RollingStep {
    /// Its guests leave.
    Drain,
    /// The operator's command runs.
    Command,
    /// Its guests come back.
    Undrain,
    /// The next host follows.
    Done,
}
