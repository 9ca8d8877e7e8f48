//! Migration capabilities and parameters: set for a migration, and put back.

use std::time::Instant;

use serde_json::{Map, Value, json};

use super::MigrateError;
use crate::qmp::Qmp;

/// Capabilities that Linerate uses; after a migration they are off, whatever an earlier agent left behind.
const OURS: &[&str] = &[
    "x-ignore-shared",
    "events",
    "late-block-activate",
    "pause-before-switchover",
    "multifd",
    "return-path",
    "auto-converge",
];

/// What was found before it was changed.
#[derive(Debug, Default)]
pub(super) struct Settings {
    capabilities: Vec<(String, bool)>,
    parameters: Map<String, Value>,
}

impl Settings {
    /// Switches the wanted capabilities on and all others off, sets the parameters, and remembers what was.
    pub(super) fn apply(
        qmp: &mut Qmp,
        wanted: &[&'static str],
        parameters: Value,
        deadline: Instant,
    ) -> Result<Settings, MigrateError> {
        let found = capabilities(qmp, deadline)?;
        for name in wanted {
            if !found.iter().any(|(has, _)| has == name) {
                return Err(MigrateError::CapabilityMissing(name));
            }
        }
        let before = qmp.execute("query-migrate-parameters", json!({}), deadline)?;
        let kept = parameters.as_object().into_iter().flatten();
        let parameters_before =
            kept.filter_map(|(key, _)| Some((key.clone(), before.get(key)?.clone()))).collect();
        let change = found.iter().map(|(name, on)| (name.as_str(), *on, wanted.contains(&name.as_str())));
        let change: Vec<(&str, bool)> =
            change.filter(|(_, on, wanted)| on != wanted).map(|(name, _, wanted)| (name, wanted)).collect();
        set_capabilities(qmp, &change, deadline)?;
        qmp.execute("migrate-set-parameters", parameters, deadline)?;
        let capabilities = found
            .into_iter()
            .map(|(name, on)| {
                let keep = on && !OURS.contains(&name.as_str());
                (name, keep)
            })
            .collect();
        Ok(Settings { capabilities, parameters: parameters_before })
    }

    /// Puts back what was.
    pub(super) fn restore(&self, qmp: &mut Qmp, deadline: Instant) -> Result<(), MigrateError> {
        let now = capabilities(qmp, deadline)?;
        let known = |name: &str| now.iter().any(|(has, _)| has == name);
        let change = self.capabilities.iter().filter(|before| !now.contains(before) && known(&before.0));
        let change: Vec<(&str, bool)> = change.map(|(name, on)| (name.as_str(), *on)).collect();
        set_capabilities(qmp, &change, deadline)?;
        if !self.parameters.is_empty() {
            qmp.execute("migrate-set-parameters", Value::Object(self.parameters.clone()), deadline)?;
        }
        Ok(())
    }

    /// For a guest whose settings an earlier agent changed: our capabilities off.
    pub(super) fn ours_off() -> Settings {
        let capabilities = OURS.iter().map(|name| ((*name).to_owned(), false)).collect();
        Settings { capabilities, parameters: Map::new() }
    }
}

pub(super) fn capabilities(qmp: &mut Qmp, deadline: Instant) -> Result<Vec<(String, bool)>, MigrateError> {
    let listed = qmp.execute("query-migrate-capabilities", json!({}), deadline)?;
    let pair =
        |entry: &Value| Some((entry.get("capability")?.as_str()?.to_owned(), entry.get("state")?.as_bool()?));
    Ok(listed.as_array().into_iter().flatten().filter_map(pair).collect())
}

fn set_capabilities(qmp: &mut Qmp, change: &[(&str, bool)], deadline: Instant) -> Result<(), MigrateError> {
    if change.is_empty() {
        return Ok(());
    }
    let list: Vec<Value> =
        change.iter().map(|(name, on)| json!({ "capability": name, "state": on })).collect();
    qmp.execute("migrate-set-capabilities", json!({ "capabilities": list }), deadline)?;
    Ok(())
}
