//! Devices that are plugged in or unplugged while a guest is moved: the destination's QEMU has those of the beginning.

use std::time::Instant;

use serde_json::json;

use crate::qmp::{Qmp, QmpError};

/// Devices with and without an id.
const FOLDERS: [&str; 2] = ["/machine/peripheral", "/machine/peripheral-anon"];

/// All devices that were named on the command line or plugged in.
pub(super) fn devices(qmp: &mut Qmp, deadline: Instant) -> Result<Vec<String>, QmpError> {
    let mut found = Vec::new();
    for listed in qmp.execute_all(FOLDERS.map(|folder| ("qom-list", json!({ "path": folder }))), deadline)? {
        let children = listed.as_array().into_iter().flatten().filter_map(|member| {
            let kind = member["type"].as_str()?.strip_prefix("child<")?.trim_end_matches('>');
            Some(format!("{} ({kind})", member["name"].as_str()?))
        });
        found.extend(children);
    }
    found.sort_unstable();
    Ok(found)
}

/// What differs, in words; none if nothing does.
pub(super) fn change(before: &[String], now: &[String]) -> Option<String> {
    let came = now.iter().filter(|one| !before.contains(one)).map(|one| format!("{one} was plugged in"));
    let went = before.iter().filter(|one| !now.contains(one)).map(|one| format!("{one} was unplugged"));
    let all: Vec<String> = came.chain(went).collect();
    (!all.is_empty()).then(|| all.join(", "))
}
