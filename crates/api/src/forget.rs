//! Guests and hosts that will never come back, as an operator knows.

use serde::{Deserialize, Serialize};

use crate::Cordon;

/// Asks that no undrain brings a guest back any more: its host is gone for good.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForgetGuest {
    /// Name of the guest, or its UUID.
    pub guest: String,
    /// Name of the host that it was to come back to; the agent's own if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Only say whether that can be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// A guest that no undrain brings back any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestForgotten {
    /// Name of the guest that is dismissed.
    pub guest: String,
    /// Its UUID, or its name if it has none.
    pub uuid: String,
    /// The host that it was moved to, and that does not answer.
    pub from: String,
    /// Nothing was changed, as was asked.
    pub dry_run: bool,
}

/// Asks that the store forgets a host: its agent will never run again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForgetHost {
    /// Name of the host.
    pub host: String,
    /// Only say what would be forgotten.
    #[serde(default)]
    pub dry_run: bool,
}

/// A host that the store does not know any more, and what was kept for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostForgotten {
    /// Name of the host that is forgotten.
    pub host: String,
    /// Names of the guests and domains that it had when its agent last reported them.
    pub guests: Vec<String>,
    /// Guests that had memory reserved there, by their UUID.
    pub reserved: Vec<String>,
    /// Its drains, which had ended.
    pub drains: Vec<String>,
    /// Who cordoned it; `null` if it took guests.
    pub cordon: Option<Cordon>,
    /// Nothing was changed, as was asked.
    pub dry_run: bool,
}
