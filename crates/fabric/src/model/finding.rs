//! Something that is wrong, said so that it can be put right.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::link::RequestedSettings;

/// How bad it is. Worst last, so that `max` is the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Could be better; nothing fails.
    Hint,
    /// Migrations are slower than they could be, or fail sometimes.
    Warning,
    /// Migrations fail, hang, or go the wrong way.
    Error,
}

/// Where: a host, or one of its ports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Location {
    /// Name of the host, as its inventory has it.
    pub host: String,
    /// Port; `None` is the host as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
}

impl Location {
    /// A host as a whole.
    pub fn host(host: &str) -> Location {
        Location { host: host.to_owned(), port: None }
    }

    /// A port of a host.
    pub fn port(host: &str, port: &str) -> Location {
        Location { host: host.to_owned(), port: Some(port.to_owned()) }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.port {
            Some(port) => write!(f, "{} {port}", self.host),
            None => write!(f, "{}", self.host),
        }
    }
}

/// A value that was seen at a location. A finding shows them side by side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// The host or port that has the value.
    pub location: Location,
    /// What, such as `MTU`.
    pub what: String,
    /// Its value with its unit, as an operator writes it.
    pub value: String,
}

/// One step that puts it right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fix {
    /// Where to do it; `None` is anywhere, or on the switch.
    pub location: Option<Location>,
    /// What to do, one sentence.
    pub what: String,
    /// The command, ready to be pasted; `None` if hands are needed.
    pub command: Option<String>,
    /// How `linerate doctor --fix` does it; `None` if it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_fix: Option<AutoFix>,
}

/// How Linerate itself puts it right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AutoFix {
    /// Settings of the port, as `linerate link set` makes them.
    Port(RequestedSettings),
    /// The operator's intent, as `linerate qos apply` does.
    Intent,
}

/// What follows from a finding, and would be one of its own without it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effect {
    /// Id of the check that saw it.
    pub id: String,
    /// The finding's title, as the check wrote it.
    pub title: String,
    /// Hosts and ports that the check named.
    pub locations: Vec<Location>,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Id of the check, such as `mtu-between-hosts`.
    pub id: String,
    /// How bad it is.
    pub severity: Severity,
    /// One line with the values in it, for a tired person.
    pub title: String,
    /// Where, the culprits first.
    pub locations: Vec<Location>,
    /// What was seen, side by side.
    pub seen: Vec<Observation>,
    /// What else was seen that follows from it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub effects: Vec<Effect>,
    /// Why it matters: what it does to a migration.
    pub why: String,
    /// How to put it right.
    pub fixes: Vec<Fix>,
    /// Page of the documentation, from the top of the repository.
    pub page: String,
}

impl Finding {
    /// A finding of the check `id`. Its page is the check's section in `docs/findings.md`.
    pub fn new(id: &str, severity: Severity, title: impl Into<String>) -> Finding {
        let finding = Finding {
            id: String::new(),
            severity,
            title: title.into(),
            locations: Vec::new(),
            seen: Vec::new(),
            effects: Vec::new(),
            why: String::new(),
            fixes: Vec::new(),
            page: String::new(),
        };
        finding.of_check(id)
    }

    /// Gives it the check's id and page.
    pub fn of_check(mut self, id: &str) -> Finding {
        (self.id, self.page) = (id.to_owned(), format!("docs/findings.md#{id}"));
        self
    }

    /// Adds a location, unless the finding has it already.
    pub fn at(mut self, location: Location) -> Finding {
        if !self.locations.contains(&location) {
            self.locations.push(location);
        }
        self
    }

    /// Adds a value that was observed; `what` names it, such as `MTU`.
    pub fn seen(mut self, location: Location, what: &str, value: impl ToString) -> Finding {
        self.seen.push(Observation { location, what: what.to_owned(), value: value.to_string() });
        self
    }

    /// Says why it matters.
    pub fn why(mut self, why: impl Into<String>) -> Finding {
        self.why = why.into();
        self
    }

    /// Adds a command that puts it right.
    pub fn command(mut self, location: Location, what: &str, command: impl Into<String>) -> Finding {
        self.fixes.push(Fix {
            location: Some(location),
            what: what.to_owned(),
            command: Some(command.into()),
            auto_fix: None,
        });
        self
    }

    /// Adds a command that puts a port right, and what `--fix` sets there.
    pub fn fix(
        mut self,
        location: Location,
        what: &str,
        command: impl Into<String>,
        requested: RequestedSettings,
    ) -> Finding {
        let (what, auto_fix) = (what.to_owned(), Some(AutoFix::Port(requested)));
        self.fixes.push(Fix { location: Some(location), what, command: Some(command.into()), auto_fix });
        self
    }

    /// Adds the command that makes a host as the operator's intent says.
    pub fn by_intent(mut self, host: &str, what: &str) -> Finding {
        let command = Some("linerate qos apply FILE".to_owned());
        let location = Some(Location::host(host));
        self.fixes.push(Fix { location, what: what.to_owned(), command, auto_fix: Some(AutoFix::Intent) });
        self
    }

    /// Adds a step that needs hands or another system.
    pub fn step(mut self, location: Option<Location>, what: impl Into<String>) -> Finding {
        self.fixes.push(Fix { location, what: what.into(), command: None, auto_fix: None });
        self
    }
}
