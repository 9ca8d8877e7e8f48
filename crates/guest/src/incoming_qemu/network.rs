//! Network back ends: taps and bridges of this host; no scripts, no helpers, no descriptors of the source's process.

use super::{Builder, IncomingError, NeededNetwork, check_id, only_keys, refused};
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

/// Keys of a user-mode network that reach into the host.
const USER_REFUSED: &[(&str, &str)] = &[
    ("hostfwd", "it opens a port of the host, where connections to the guest would end: use a tap"),
    ("guestfwd", "it connects the guest to the source's host: use a tap"),
    ("smb", "it shares a folder of the source's host: start the guest without it"),
    ("tftp", "it shares a folder of the source's host: start the guest without it"),
    ("bootfile", "it names a file of the source's host: start the guest without it"),
];

/// Keys of a port in the old notation, whose peer is found by its order.
const OLD_NIC_KEYS: &[&str] = &["type", "model", "macaddr", "name", "addr", "vectors", "netdev"];

fn why_not(kind: &str) -> &'static str {
    match kind {
        "vhost-user" | "vhost-vdpa" => "its other end is a process or device of the source's host: use a tap",
        "socket" | "stream" | "dgram" | "l2tpv3" | "vde" | "passt" => {
            "its other end is found from the source's host only: use a tap"
        }
        _ => "only tap, bridge and user networks are: use a tap",
    }
}

impl Builder<'_> {
    pub(super) fn network(&mut self, option: &str, value: &str) -> Result<(), IncomingError> {
        if value == "none" && option != "netdev" {
            return self.emit(option, value);
        }
        let options = self.parse(option, value, Some("type"))?;
        match options.get("type").unwrap_or_default() {
            "tap" => self.tap(option, &options),
            "bridge" => self.bridge(option, &options),
            "user" => self.user(option, &options),
            "nic" if option == "net" => {
                only_keys(option, &options, OLD_NIC_KEYS)?;
                self.emit(option, &options.to_string())
            }
            other => Err(refused(option, other, why_not(other))),
        }
    }

    /// Without any network option QEMU makes a port with a user-mode network by itself.
    pub(super) fn check_default_network(&mut self) -> Result<(), IncomingError> {
        let given = self
            .arguments
            .iter()
            .any(|argument| matches!(argument.name.as_str(), "nodefaults" | "nic" | "net" | "netdev"));
        if given { Ok(()) } else { self.user_network() }
    }

    fn user_network(&mut self) -> Result<(), IncomingError> {
        self.incoming.user_network = true;
        if self.options.allow_user_network { Ok(()) } else { Err(IncomingError::UserNetwork) }
    }

    fn tap(&mut self, option: &str, options: &Options) -> Result<(), IncomingError> {
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
        let unknown =
            "QEMU got it as an open file (macvtap), which no other host can find by its name: use a tap";
        let source = source.ok_or_else(|| refused(option, "tap", unknown))?;
        let name = self.options.taps.get(&source).unwrap_or(&source).clone();
        check_interface(option, &name)?;
        made.set("ifname", &name);
        made.set("script", "no");
        made.set("downscript", "no");
        self.incoming.networks.push(NeededNetwork::Tap { name, bridge });
        self.emit(option, &made.to_string())
    }

    // QEMU may have got the interface as a descriptor, or have chosen its name itself: the description was read from
    // the running process and knows it.
    fn source_tap(&self, options: &Options) -> (Option<String>, Option<String>) {
        let by_netdev = options.get("id");
        let nic = self.guest.nics.iter().find(|nic| {
            let same_name = nic.tap.as_deref().is_some_and(|tap| options.get("ifname") == Some(tap));
            same_name || (by_netdev.is_some() && nic.netdev.as_deref() == by_netdev)
        });
        let named = options.get("ifname").map(str::to_owned);
        (named.or_else(|| nic?.tap.clone()), nic.and_then(|nic| nic.bridge.clone()))
    }

    fn bridge(&mut self, option: &str, options: &Options) -> Result<(), IncomingError> {
        let mut made = options.clone();
        made.remove("helper");
        only_keys(option, &made, &["type", "id", "br", "model", "mac", "addr", "vectors", "name"])?;
        let name = options.get("br").unwrap_or("br0").to_owned();
        check_interface(option, &name)?;
        self.incoming.networks.push(NeededNetwork::Bridge { name });
        self.emit(option, &made.to_string())
    }

    fn user(&mut self, option: &str, options: &Options) -> Result<(), IncomingError> {
        for (key, value) in options.pairs() {
            if let Some((_, why)) = USER_REFUSED.iter().find(|(refused, _)| *refused == key) {
                return Err(refused(option, key, why));
            }
            if !USER_KEYS.contains(&key) {
                return Err(refused(option, key, "this key is not among the known ones"));
            }
            // A network is written with its prefix: 10.0.2.0/24.
            if key != "net" {
                super::no_file_name(option, key, value)?;
            }
        }
        self.user_network()?;
        self.emit(option, &options.to_string())
    }
}

fn check_interface(option: &str, name: &str) -> Result<(), IncomingError> {
    if name.len() > 15 {
        return Err(refused(option, name, "it is not the name of an interface"));
    }
    check_id(option, name)
}
