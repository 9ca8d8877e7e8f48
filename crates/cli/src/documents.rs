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
