//! lldpd in a host: the other end of a cable as a switch would be, with a daemon that others wrote.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::io_error;
use crate::{Cache, Host, LabError, Process};

/// What it says of the port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switch {
    /// Name of the switch.
    pub system: String,
    /// Name of its port.
    pub port: String,
    /// Largest frame, bytes with header and check sum.
    pub frame_bytes_max: u16,
    /// VLAN of untagged frames.
    pub vlan: u16,
}

/// A running lldpd; ended when dropped.
#[derive(Debug)]
pub struct Lldpd {
    process: Process,
}

// It wants a user and folders of its own, as its package makes them: here they are in a mount namespace, which `ip
// netns exec` has made, and go with it.
const SURROUNDINGS: &str = r#"
mount -t tmpfs lldpd /run && mkdir /run/lldpd
printf 'root:x:0:0:root:/root:/bin/sh\n_lldpd:x:65533:65533::/nonexistent:/bin/false\n' >/run/passwd
printf 'root:x:0:\n_lldpd:x:65533:\n' >/run/group
mount --bind /run/passwd /etc/passwd && mount --bind /run/group /etc/group
exec "$0" -d -u /run/lldpd.socket -p /run/lldpd.pid -L "$1" -O "$2" -I "$3""#;

impl Lldpd {
    /// Speaks every second on a device of a host.
    pub fn start(host: &Host, device: &str, switch: &Switch) -> Result<Lldpd, LabError> {
        let cache = Cache::locate();
        let (daemon, client) = (cache.lldpd("lldpd")?, cache.lldpd("lldpcli")?);
        let file = |end: &str| host.run_directory().join(format!("lldpd-{device}.{end}"));
        let (configuration, log) = (file("conf"), file("log"));
        std::fs::write(&configuration, configured(device, switch))
            .map_err(io_error("write", &configuration))?;
        let mut command = host.command("sh");
        command.env("LD_LIBRARY_PATH", cache.lldpd_libraries()?);
        command.args(["-ec", SURROUNDINGS]).args([&daemon, &client, &configuration] as [&PathBuf; 3]);
        command.arg(device);
        Ok(Lldpd { process: Process::start("lldpd", command, Path::new(&log))? })
    }

    /// Ends it as an administrator does: it notifies its neighbours.
    pub fn stop(mut self) -> Result<(), LabError> {
        self.process.terminate(Duration::from_secs(30)).map(drop)
    }

    /// An error with the end of its log when it has ended.
    pub fn must_run(&mut self) -> Result<(), LabError> {
        self.process.must_run()
    }
}

/// Its configuration. The frame size and the VLAN are not those of the veth. So they are said by custom TLVs of IEEE
/// 802.3 (4) and 802.1 (1): lldpd sends these bytes as a switch's would be.
fn configured(device: &str, switch: &Switch) -> String {
    let Switch { system, port, frame_bytes_max, vlan } = switch;
    let bytes = |number: u16| number.to_be_bytes().map(|byte| format!("{byte:02x}")).join(",");
    let lldp = format!("configure ports {device} lldp");
    format!(
        "configure system hostname {system}\n\
         configure lldp tx-interval 1\n\
         {lldp} portidsubtype local {port}\n\
         {lldp} custom-tlv oui 00,12,0f subtype 4 oui-info {}\n\
         {lldp} custom-tlv oui 00,80,c2 subtype 1 oui-info {}\n",
        bytes(*frame_bytes_max),
        bytes(*vlan)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_bytes_of_a_frame() {
        let switch =
            Switch { system: "leaf0".into(), port: "Ethernet1/7".into(), frame_bytes_max: 1518, vlan: 100 };
        let text = configured("l0", &switch);
        assert!(
            text.contains("subtype 4 oui-info 05,ee\n") && text.contains("subtype 1 oui-info 00,64\n"),
            "{text}"
        );
    }
}
