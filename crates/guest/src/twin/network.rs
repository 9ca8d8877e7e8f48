//! Network back ends: taps and bridges of this host; no scripts, no helpers, no descriptors of the source's process.

use super::{Builder, NeededNetwork, TwinError, check_id, only_keys, refused};
use crate::argv::Argument;
use crate::options::Options;

/// Keys of a tap that mean the same on any host.
const TAP_KEPT: &[&str] = &[
    "type", "id", "model", "mac", "addr", "vectors", "name", "vhost", "queues", "sndbuf", "vnet_hdr",
    "poll-us",
];
/// Keys of a tap that concern the source's host: replaced or left out.
const TAP_REPLACED: &[&str] =
    &["ifname", "script", "downscript", "helper", "br", "fd", "fds", "vhostfd", "vhostfds", "vhostforce"];
const USER_KEYS: &[&str] = &[
    "type",
    "id",
    "model",
    "mac",
    "net",
    "host",
    "restrict",
    "ipv4",
    "ipv6",
    "dhcpstart",
    "dns",
    "domainname",
    "hostname",
    "addr",
    "vectors",
    "name",
];

impl Builder<'_> {
    pub(super) fn network(&mut self, option: &str, value: &str) -> Result<(), TwinError> {
        if value == "none" && option != "netdev" {
            return self.emit(option, value);
        }
        if option == "net" {
            return Err(refused(option, value, "this old form is not understood, use -netdev and -device"));
        }
        let options = self.parse(option, value, Some("type"))?;
        match options.get("type").unwrap_or_default() {
            "tap" => self.tap(option, &options),
            "bridge" => self.bridge(option, &options),
            "user" => self.user(option, &options),
            other => Err(refused(option, other, "only tap, bridge and user networks are")),
        }
    }

    /// Without any network option QEMU makes a port with a user-mode network by itself.
    pub(super) fn check_default_network(&self, arguments: &[Argument]) -> Result<(), TwinError> {
        let given = arguments
            .iter()
            .any(|argument| matches!(argument.name.as_str(), "nodefaults" | "nic" | "net" | "netdev"));
        if given || self.options.allow_user_network { Ok(()) } else { Err(TwinError::UserNetwork) }
    }

    fn tap(&mut self, option: &str, options: &Options) -> Result<(), TwinError> {
        let mut made = Options::default();
        for (key, value) in options.pairs() {
            if TAP_KEPT.contains(&key) {
                super::no_file_name(option, key, value)?;
                made.set(key, value);
            } else if !TAP_REPLACED.contains(&key) {
                return Err(refused(option, key, "this key is not among the known ones"));
            }
        }
        let (source, bridge) = self.source_tap(options);
        let source =
            source.ok_or_else(|| refused(option, "tap", "the name of its interface is not known"))?;
        let name = self.options.taps.get(&source).unwrap_or(&source).clone();
        check_interface(option, &name)?;
        made.set("ifname", &name);
        made.set("script", "no");
        made.set("downscript", "no");
        self.twin.networks.push(NeededNetwork::Tap { name, bridge });
        self.emit(option, &made.to_string())
    }

    // QEMU may have got the interface as a descriptor, or have chosen its name itself: the description was read from the
    // running process and knows it.
    fn source_tap(&self, options: &Options) -> (Option<String>, Option<String>) {
        let by_netdev = options.get("id");
        let nic = self.guest.nics.iter().find(|nic| {
            let same_name = nic.tap.as_deref().is_some_and(|tap| options.get("ifname") == Some(tap));
            same_name || (by_netdev.is_some() && nic.netdev.as_deref() == by_netdev)
        });
        let named = options.get("ifname").map(str::to_owned);
        (named.or_else(|| nic?.tap.clone()), nic.and_then(|nic| nic.bridge.clone()))
    }

    fn bridge(&mut self, option: &str, options: &Options) -> Result<(), TwinError> {
        let mut made = options.clone();
        made.remove("helper");
        only_keys(option, &made, &["type", "id", "br", "model", "mac", "addr", "vectors", "name"])?;
        let name = options.get("br").unwrap_or("br0").to_owned();
        check_interface(option, &name)?;
        self.twin.networks.push(NeededNetwork::Bridge { name });
        self.emit(option, &made.to_string())
    }

    fn user(&mut self, option: &str, options: &Options) -> Result<(), TwinError> {
        if !self.options.allow_user_network {
            return Err(TwinError::UserNetwork);
        }
        // Ports, files and programs of the host (hostfwd, guestfwd, smb, tftp) are not among the keys.
        for (key, value) in options.pairs() {
            if !USER_KEYS.contains(&key) {
                return Err(refused(option, key, "this key is not among the known ones"));
            }
            // A network is written with its prefix: 10.0.2.0/24.
            if key != "net" {
                super::no_file_name(option, key, value)?;
            }
        }
        self.emit(option, &options.to_string())
    }
}

fn check_interface(option: &str, name: &str) -> Result<(), TwinError> {
    if name.len() > 15 {
        return Err(refused(option, name, "it is not the name of an interface"));
    }
    check_id(option, name)
}
