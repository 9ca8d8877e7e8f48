//! devlink: versions of the firmware that runs on adapters. Numbers are those of `linux/devlink.h`.

use std::collections::BTreeMap;

use linerate_net::netlink::NetlinkError;
use netlink_packet_core::NLM_F_DUMP;

use super::attributes::{Attributes, Writer};
use super::generic::Family;

const INFO_GET: u8 = 51;
/// What the field calls *the* firmware version, best first.
const NAMES: [&str; 3] = ["fw", "fw.version", "fw.mgmt"];

/// Firmware version by the device's address, such as `0000:3b:00.0`. Empty where the kernel has no devlink.
pub fn firmware() -> Result<BTreeMap<String, String>, NetlinkError> {
    let Some(mut family) = Family::find("devlink")? else { return Ok(BTreeMap::new()) };
    let answers = family.ask(INFO_GET, NLM_F_DUMP, Writer::new())?;
    Ok(answers.iter().filter_map(|answer| version(Attributes::new(answer))).collect())
}

fn version(answer: Attributes<'_>) -> Option<(String, String)> {
    const DEVICE: u16 = 2;
    const RUNNING: u16 = 101;
    const NAME: u16 = 103;
    const VALUE: u16 = 104;
    let running = answer.iter().filter(|(kind, _)| *kind == RUNNING).map(|(_, one)| Attributes::new(one));
    let versions: BTreeMap<String, String> =
        running.filter_map(|one| Some((one.text(NAME)?, one.text(VALUE)?))).collect();
    let version = NAMES.iter().find_map(|name| versions.get(*name))?;
    Some((answer.text(DEVICE)?, version.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Form: Documentation/networking/devlink/devlink-info.rst of Linux.
    #[test]
    fn the_running_firmware_of_an_adapter() {
        let one = |name: &str, value: &str| Writer::new().text(103, name).text(104, value);
        let answer = Writer::new()
            .text(1, "pci")
            .text(2, "0000:3b:00.0")
            .nest(101, one("fw.psid", "MT_0000000011"))
            .nest(101, one("fw.version", "14.32.1900"))
            .nest(102, one("fw.version", "14.33.0001"))
            .finish();
        let expected = ("0000:3b:00.0".to_owned(), "14.32.1900".to_owned());
        assert_eq!(version(Attributes::new(&answer)), Some(expected));
        assert_eq!(version(Attributes::new(b"")), None);
    }

    #[test]
    fn a_kernel_without_devlink_is_no_failure() {
        firmware().unwrap();
    }
}
