//! Migration capabilities and parameters: set for a migration, and put back.

use std::time::Instant;

use serde::{Deserialize, Serialize};
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
/// Parameters that Linerate changes.
const PARAMETERS: &[&str] =
    &["announce-rounds", "downtime-limit", "max-bandwidth", "multifd-channels", "zero-page-detection"];

/// Bytes per second: more than any wire carries. The limit is the links', and the operator's for all of them together.
pub(super) const UNLIMITED: u64 = 1 << 40;
/// Where QEMU must not come to an end: some pages a second. It decides ten times a second then, and what it has found
/// written since the last time, however little, takes longer than the shortest limit.
pub(super) const HELD: u64 = 64 << 10;

/// How a QEMU was set before a migration. The journal keeps it, so that a restarted agent can put it back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Capabilities that were on and are not ours.
    capabilities: Vec<String>,
    /// What a migration may change, as far as this QEMU knows it.
    parameters: Map<String, Value>,
}

impl Settings {
    /// How QEMU is set now.
    pub(super) fn read(qmp: &mut Qmp, deadline: Instant) -> Result<Settings, MigrateError> {
        let on = capabilities(qmp, deadline)?.into_iter().filter_map(|(name, on)| on.then_some(name));
        let before = qmp.execute("query-migrate-parameters", json!({}), deadline)?;
        let parameter = |name: &&str| Some(((*name).to_owned(), before.get(*name)?.clone()));
        Ok(Settings {
            capabilities: on.filter(|name| !OURS.contains(&name.as_str())).collect(),
            parameters: PARAMETERS.iter().filter_map(parameter).collect(),
        })
    }

    /// Puts back what was, or where that is not known (the journal's record is of an older agent), switches our
    /// capabilities off.
    pub(super) fn put_back(
        found: Option<&Settings>,
        qmp: &mut Qmp,
        deadline: Instant,
    ) -> Result<(), MigrateError> {
        let now = capabilities(qmp, deadline)?;
        let was = |name: &str, on: bool| match found {
            Some(found) => found.capabilities.iter().any(|one| one == name),
            None => on && !OURS.contains(&name),
        };
        let change = now.iter().map(|(name, on)| (name.as_str(), *on, was(name, *on)));
        let change: Vec<(&str, bool)> =
            change.filter(|(_, on, was)| on != was).map(|(name, _, was)| (name, was)).collect();
        set_capabilities(qmp, &change, deadline)?;
        if let Some(found) = found {
            let parameters = Value::Object(found.parameters.clone());
            qmp.execute("migrate-set-parameters", parameters, deadline)?;
        }
        Ok(())
    }
}

/// Switches the wanted capabilities on and all others off, and sets the parameters, which are of those that are put
/// back.
pub(super) fn set(
    qmp: &mut Qmp,
    wanted: &[&'static str],
    parameters: Value,
    deadline: Instant,
) -> Result<(), MigrateError> {
    debug_assert!(
        parameters.as_object().is_some_and(|all| all.keys().all(|one| PARAMETERS.contains(&one.as_str())))
    );
    let found = check(qmp, wanted, deadline)?;
    let change = found.iter().map(|(name, on)| (name.as_str(), *on, wanted.contains(&name.as_str())));
    let change: Vec<(&str, bool)> =
        change.filter(|(_, on, wanted)| on != wanted).map(|(name, _, wanted)| (name, wanted)).collect();
    set_capabilities(qmp, &change, deadline)?;
    qmp.execute("migrate-set-parameters", parameters, deadline)?;
    Ok(())
}

/// Whether QEMU has these capabilities; gives all that it has.
pub(super) fn check(
    qmp: &mut Qmp,
    wanted: &[&'static str],
    deadline: Instant,
) -> Result<Vec<(String, bool)>, MigrateError> {
    let found = capabilities(qmp, deadline)?;
    match wanted.iter().find(|name| !found.iter().any(|(has, _)| has == *name)) {
        Some(name) => Err(MigrateError::CapabilityMissing(name)),
        None => Ok(found),
    }
}

/// Whether the source's QEMU is set as for a migration of Linerate's, and as for hardly any other.
pub(super) fn are_ours(qmp: &mut Qmp, deadline: Instant) -> Result<bool, MigrateError> {
    let on = capabilities(qmp, deadline)?;
    let paused = on.iter().any(|(name, on)| name == "pause-before-switchover" && *on);
    let parameters = qmp.execute("query-migrate-parameters", json!({}), deadline)?;
    let pace = parameters.get("max-bandwidth").and_then(Value::as_u64);
    Ok(paused && pace.is_some_and(|pace| [UNLIMITED, HELD].contains(&pace)))
}

pub(super) fn capabilities(qmp: &mut Qmp, deadline: Instant) -> Result<Vec<(String, bool)>, MigrateError> {
    let listed = qmp.execute("query-migrate-capabilities", json!({}), deadline)?;
    let pair =
        |entry: &Value| Some((entry.get("capability")?.as_str()?.to_owned(), entry.get("state")?.as_bool()?));
    Ok(listed.as_array().into_iter().flatten().filter_map(pair).collect())
}

pub(super) fn set_capabilities(
    qmp: &mut Qmp,
    change: &[(&str, bool)],
    deadline: Instant,
) -> Result<(), MigrateError> {
    if change.is_empty() {
        return Ok(());
    }
    let list: Vec<Value> =
        change.iter().map(|(name, on)| json!({ "capability": name, "state": on })).collect();
    qmp.execute("migrate-set-capabilities", json!({ "capabilities": list }), deadline)?;
    Ok(())
}
