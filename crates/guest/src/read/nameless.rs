//! Devices without an id that were plugged or unplugged since the guest started. QEMU numbers them as it makes them,
//! and gives no number twice: below the highest number all are there, unless one was unplugged.

use serde_json::{Value, json};

use super::{Asker, ReadError, parsed, text};
use crate::argv::Argument;
use crate::options::Options;

const FOLDER: &str = "/machine/peripheral-anon";

/// What came and went, in words.
pub(super) fn changes(asker: &mut Asker<'_>, options: &[Argument]) -> Result<Vec<String>, ReadError> {
    let listed = asker.ask("qom-list", json!({ "path": FOLDER }))?;
    let (mut changes, mut present, mut made) = (Vec::new(), 0, given(options));
    for (name, driver) in listed.as_array().into_iter().flatten().filter_map(device) {
        let came = asker.property(&format!("{FOLDER}/{name}"), "hotplugged")? == Some(Value::Bool(true));
        if came {
            changes.push(format!("{driver} without an id plugged"));
            continue;
        }
        present += 1;
        made = made.max(number(&name).map_or(0, |number| number.saturating_add(1)));
    }
    if present < made {
        changes.push(format!("{} without an id unplugged", made - present));
    }
    Ok(changes)
}

/// Name and driver of a device in the folder.
fn device(member: &Value) -> Option<(String, String)> {
    let kind = text(member, "type")?;
    let driver = kind.strip_prefix("child<")?.trim_end_matches('>').to_owned();
    Some((text(member, "name")?, driver))
}

/// The 3 in `device[3]`.
fn number(name: &str) -> Option<usize> {
    name.strip_prefix("device[")?.strip_suffix(']')?.parse().ok()
}

/// How many the command line has at least. A virtio drive brings its device with it.
fn given(options: &[Argument]) -> usize {
    let is_nameless = |device: &Options| device.get("driver").is_some() && device.get("id").is_none();
    let devices = parsed(options, "device", Some("driver")).filter(is_nameless);
    let drives = parsed(options, "drive", None).filter(|drive| drive.get("if") == Some("virtio"));
    devices.count() + drives.count()
}
