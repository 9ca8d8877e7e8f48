//! The generation ID of a `vmgenid` device, by which a guest knows that it was restored or cloned. QEMU makes one up
//! where the command line says none, and writes its own into the guest's memory when it has loaded a guest. Another
//! QEMU would make up another one: a guest that was only moved would take itself for a clone.

use serde_json::json;

use super::{Asker, ReadError, text};
use crate::argv::{Argument, join, split_loose};
use crate::options::Options;

/// The command line with the ID that the guest has now.
pub(super) fn in_arguments(asker: &mut Asker<'_>, arguments: Vec<String>) -> Result<Vec<String>, ReadError> {
    if !split_loose(&arguments).iter().any(|argument| made_up(argument).is_some()) {
        return Ok(arguments);
    }
    let answer = asker.ask_if_known("query-vm-generation-id", json!({}))?;
    let id = answer.as_ref().and_then(|answer| text(answer, "guid"));
    Ok(match id {
        Some(id) => with_id(&arguments, &id),
        None => arguments,
    })
}

fn with_id(arguments: &[String], id: &str) -> Vec<String> {
    let mut all = split_loose(arguments);
    for argument in &mut all {
        if let Some(mut device) = made_up(argument) {
            device.set("guid", id);
            argument.value = Some(device.to_string());
        }
    }
    join(all)
}

/// The device of an option, if QEMU makes its ID up.
fn made_up(argument: &Argument) -> Option<Options> {
    let value = argument.value.as_deref().filter(|_| argument.name == "device")?;
    let device = Options::parse(value, Some("driver")).ok()?;
    let is_made_up = device.get("guid").is_none_or(|id| id == "auto");
    (device.get("driver") == Some("vmgenid") && is_made_up).then_some(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_qemu_made_up_is_named_and_a_given_one_is_kept() {
        let with_id = |line: &str| {
            let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
            with_id(&arguments, "1-2").join(" ")
        };
        for made_up in ["vmgenid", "vmgenid,guid=auto", r#"{"driver":"vmgenid"}"#] {
            let line = format!("-S -device {made_up} -device vmcoreinfo");
            assert_eq!(with_id(&line), "-S -device driver=vmgenid,guid=1-2 -device vmcoreinfo");
        }
        for kept in ["-device vmgenid,guid=3-4", "-append vmgenid"] {
            assert_eq!(with_id(kept), kept);
        }
    }
}
