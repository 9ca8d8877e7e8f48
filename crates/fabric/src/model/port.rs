//! A network port and how it is set, with its slot, its interrupts, and its data centre bridging (DCB).

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::Neighbour;

/// What sort of port it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortKind {
    /// A device of a bus: a real adapter, or a virtual machine's.
    Physical,
    /// A bond: several ports as one, in the kernel.
    Bond,
    /// A team: several ports as one, steered from outside the kernel (or by Windows).
    Team,
    /// A VLAN on another port.
    Vlan,
    /// A software switch (Linux bridge).
    Bridge,
    /// One end of a virtual cable.
    Veth,
    /// Another address on a port.
    Macvlan,
    /// A program's port, such as a guest's.
    Tun,
    /// The loopback port of the host.
    Loopback,
    /// Any other, and what a newer version names.
    #[default]
    #[serde(other)]
    Other,
}

/// Half or full duplex.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Duplex {
    /// One direction at a time.
    Half,
    /// Sends and receives at the same time.
    Full,
}

/// An address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The host's own address.
    pub ip: IpAddr,
    /// Length of the network prefix, bits.
    pub prefix: u8,
}

/// An address that another machine has too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// The own address for which another machine answered.
    pub ip: IpAddr,
    /// Hardware address of who answered.
    pub mac: String,
}

/// A network port of a host: hardware, settings, counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Port {
    /// Name, such as `ens1f0`.
    pub name: String,
    /// The kernel's number of it.
    pub index: Option<u32>,
    /// What sort of port it is.
    pub kind: PortKind,
    /// Hardware address, such as `aa:bb:cc:dd:ee:ff`.
    pub mac: Option<String>,
    /// Brought up by the administrator.
    pub up: Option<bool>,
    /// The cable has a signal.
    pub carrier: Option<bool>,
    /// How often the carrier came or went since the port exists.
    pub carrier_changes: Option<u32>,
    /// Largest packet, bytes, as set.
    pub mtu: Option<u32>,
    /// Largest MTU that the driver takes, bytes.
    pub mtu_max: Option<u32>,
    /// Addresses, in the kernel's order.
    pub addresses: Vec<Address>,
    /// Addresses of its own for which another machine answered.
    pub taken: Vec<Taken>,
    /// Speed, duplex and what is advertised.
    pub link: LinkSettings,
    /// Forward error correction; absent if the driver does not report it.
    pub fec: Option<Fec>,
    /// Pause frames (IEEE 802.3x).
    pub pause: Option<Pause>,
    /// Name of the driver.
    pub driver: Option<String>,
    /// Version of the driver; for drivers of the kernel, the kernel's.
    pub driver_version: Option<String>,
    /// Version of the adapter's firmware.
    pub firmware: Option<String>,
    /// Numbers of queues; absent if the driver does not report them.
    pub queues: Option<Queues>,
    /// Sizes of the rings; absent if the driver does not report them.
    pub rings: Option<Rings>,
    /// Interrupts of the port.
    pub irqs: Vec<Irq>,
    /// Offloads by the kernel's names, such as `tx-tcp-segmentation`, on or off.
    pub offloads: BTreeMap<String, bool>,
    /// Counters since the port exists.
    pub counters: Option<Counters>,
    /// What the counters gained while the inventory was collected.
    pub counters_change: Option<CountersChange>,
    /// The bond, team or bridge that it is a member of.
    pub master: Option<String>,
    /// The port below: of a VLAN or macvlan.
    pub parent: Option<String>,
    /// VLAN number of a VLAN port.
    pub vlan: Option<u16>,
    /// How a bond or team is set.
    pub bond: Option<Bond>,
    /// The slot of the adapter.
    pub pcie: Option<Pcie>,
    /// The driver's mark of the cable, where functions of an adapter can share one (NPAR, SR-IOV).
    pub physical_port: Option<String>,
    /// NUMA node that the adapter hangs on.
    pub numa_node: Option<u32>,
    /// Priorities and lossless classes.
    pub dcb: Option<Dcb>,
    /// What the other end of the cable says by LLDP.
    pub neighbours: Vec<Neighbour>,
    /// Reverse path filter: 0 off, 1 strict, 2 loose; the one that counts for the port.
    pub reverse_path_filter: Option<u8>,
    /// Queueing discipline at the root, such as `mq` or `tbf`.
    pub qdisc: Option<String>,
}

impl Port {
    /// Both are functions of one adapter (NPAR, SR-IOV), and one cable carries what they move. Ports of one host.
    pub fn shares_its_cable(&self, other: &Port) -> bool {
        let slots = self.pcie.as_ref().zip(other.pcie.as_ref());
        let by_function = slots.is_some_and(|(one, other)| {
            let is_virtual = one.physical_function.is_some() || other.physical_function.is_some();
            is_virtual && one.function_with_cable() == other.function_with_cable()
        });
        by_function || (self.physical_port.is_some() && self.physical_port == other.physical_port)
    }
}

/// Speed, duplex and negotiation. Link modes have the kernel's names, such as `25000baseCR/Full`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkSettings {
    /// Megabits per second, as running.
    pub speed_mbps: Option<u32>,
    /// Half or full duplex, as running.
    pub duplex: Option<Duplex>,
    /// Speed is negotiated (else forced).
    pub autonegotiation: Option<bool>,
    /// Connector, such as `twisted_pair`, `fibre`, `direct_attach`.
    pub connector: Option<String>,
    /// Link modes that the adapter can do.
    pub supported: Vec<String>,
    /// Link modes that it offers to the other side.
    pub advertised: Vec<String>,
    /// Link modes that the other side offers.
    pub peer: Vec<String>,
    /// Why there is no link, if the adapter says so.
    pub down_reason: Option<String>,
}

impl LinkSettings {
    /// The fastest that the adapter can do, megabits per second.
    pub fn speed_max_mbps(&self) -> Option<u32> {
        self.supported.iter().filter_map(|mode| mode_speed_mbps(mode)).max()
    }

    /// The fastest that the other side offers, megabits per second.
    pub fn peer_speed_max_mbps(&self) -> Option<u32> {
        self.peer.iter().filter_map(|mode| mode_speed_mbps(mode)).max()
    }
}

/// Speed of a link mode by its name: the number in front of `base`.
fn mode_speed_mbps(mode: &str) -> Option<u32> {
    mode.split_once("base").and_then(|(speed, _)| speed.parse().ok())
}

/// Forward error correction. Names: `none`, `rs`, `baser`, `llrs`, `auto`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fec {
    /// The mode that the link uses now.
    pub active: Option<String>,
    /// What is allowed by the setting.
    pub configured: Vec<String>,
    /// The adapter chooses by itself.
    pub auto: Option<bool>,
}

/// Pause frames (IEEE 802.3x) of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pause {
    /// Negotiated with the other side; otherwise forced.
    pub autonegotiation: Option<bool>,
    /// Obeys the other side's.
    pub rx: Option<bool>,
    /// Sends them when its buffers fill up.
    pub tx: Option<bool>,
}

/// How many queues are set, and how many there could be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Queues {
    /// Queues that only receive.
    pub rx: Option<u32>,
    /// Queues that only send.
    pub tx: Option<u32>,
    /// Queues that receive and send.
    pub combined: Option<u32>,
    /// Largest number of receive-only queues.
    pub rx_max: Option<u32>,
    /// Largest number of send-only queues.
    pub tx_max: Option<u32>,
    /// Largest number of combined queues.
    pub combined_max: Option<u32>,
}

impl Queues {
    /// Queues that can receive.
    pub fn receiving(&self) -> u32 {
        self.rx.unwrap_or(0) + self.combined.unwrap_or(0)
    }

    /// Most queues that could receive.
    pub fn receiving_max(&self) -> u32 {
        self.rx_max.unwrap_or(0) + self.combined_max.unwrap_or(0)
    }
}

/// Sizes of the rings, in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rings {
    /// Receive ring, as set.
    pub rx: Option<u32>,
    /// Receive ring, the largest that can be set.
    pub rx_max: Option<u32>,
    /// Send ring, as set.
    pub tx: Option<u32>,
    /// Send ring, the largest that can be set.
    pub tx_max: Option<u32>,
}

/// Counters of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Bytes received, as the kernel counts them.
    pub rx_bytes: u64,
    /// Bytes sent, as the kernel counts them.
    pub tx_bytes: u64,
    /// Packets received, as the kernel counts them.
    pub rx_packets: u64,
    /// Packets sent, as the kernel counts them.
    pub tx_packets: u64,
    /// Packets received in error, of any sort.
    pub rx_errors: u64,
    /// Packets that could not be sent.
    pub tx_errors: u64,
    /// Received packets dropped for want of room.
    pub rx_dropped: u64,
    /// Packets to send that were dropped.
    pub tx_dropped: u64,
    /// Packets that the adapter had no buffer for.
    pub rx_missed: u64,
    /// Packets with a wrong check sum: a bad cable or transceiver, or FEC that differs.
    pub rx_crc_errors: u64,
    /// Collisions, which only a half-duplex link has.
    pub collisions: u64,
}

/// What counters gained over a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CountersChange {
    /// Over how long, milliseconds.
    pub over_ms: u64,
    /// The increase of each counter in that time.
    pub gained: Counters,
}

/// How a bond or team is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bond {
    /// Mode by the kernel's name, such as `802.3ad` or `active-backup`; on Windows `switch-independent` and so on.
    pub mode: Option<String>,
    /// What the sending member is chosen by, such as `layer2` or `layer3+4`.
    pub hash: Option<String>,
    /// The member in use, of an active-backup bond.
    pub active: Option<String>,
    /// How often the link is looked at, milliseconds; 0 is never.
    pub monitor_interval_ms: Option<u32>,
    /// LACP: how many members are aggregated with the switch.
    pub aggregated: Option<u32>,
}

/// One width and speed of a PCIe link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PcieLink {
    /// Megatransfers per second and lane: 2500, 5000, 8000, 16000, 32000, 64000.
    pub speed_mts: u32,
    /// Number of PCIe lanes.
    pub width: u32,
}

impl PcieLink {
    /// What packets can move in one direction, megabits per second: the line code (8b/10b up to 5 GT/s, 128b/130b
    /// from 8 GT/s) and about a tenth for the headers of transactions of 256 bytes.
    pub fn throughput_mbps(&self) -> u64 {
        let raw = u64::from(self.speed_mts) * u64::from(self.width);
        let coded = if self.speed_mts <= 5000 { raw * 8 / 10 } else { raw * 128 / 130 };
        coded * 9 / 10
    }
}

/// The slot of an adapter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pcie {
    /// Address, such as `0000:3b:00.0`. Ports whose addresses differ in the last digit only share a slot.
    pub address: String,
    /// Vendor and device numbers, such as `15b3:1015`.
    pub id: Option<String>,
    /// What the adapter is able to.
    pub able: Option<PcieLink>,
    /// Width and speed that were negotiated.
    pub running: Option<PcieLink>,
    /// What the slot is able to (the bridge above), if it can be asked.
    pub slot_able: Option<PcieLink>,
    /// Address of the adapter's function whose cable this one uses, if this is a virtual function (SR-IOV).
    pub physical_function: Option<String>,
}

impl Pcie {
    /// The slot: the address without the function's number.
    pub fn slot(&self) -> &str {
        self.address.rsplit_once('.').map_or(self.address.as_str(), |(slot, _)| slot)
    }

    /// Address of the function that has the cable: its own, unless it is a virtual function.
    pub fn function_with_cable(&self) -> &str {
        self.physical_function.as_deref().unwrap_or(&self.address)
    }
}

/// An interrupt of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Irq {
    /// The kernel's number of the interrupt.
    pub number: u32,
    /// Its name in the kernel, such as `mlx5_comp3@pci:0000:3b:00.0`.
    pub name: Option<String>,
    /// CPUs that may take it.
    pub cpus_allowed: Vec<u32>,
    /// CPUs that do take it.
    pub cpus: Vec<u32>,
    /// How often it came.
    pub count: Option<u64>,
}

/// What dcbnl says of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dcb {
    /// Traffic classes and their shares.
    pub ets: Option<Ets>,
    /// Which priorities are lossless.
    pub pfc: Option<Pfc>,
    /// Which traffic gets which priority.
    pub applications: Vec<Application>,
    /// Who exchanges settings with the switch, and by which protocol.
    pub dcbx: Option<Dcbx>,
}

/// Enhanced transmission selection (IEEE 802.1Qaz).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ets {
    /// Takes the other side's settings.
    pub willing: Option<bool>,
    /// How many traffic classes the adapter has.
    pub classes_max: Option<u8>,
    /// Traffic class of each of the eight priorities.
    pub priority_class: Vec<u8>,
    /// Share of each of the eight traffic classes, percent.
    pub share_percent: Vec<u8>,
    /// How each of the eight traffic classes is served: `strict`, `ets`, `credit_shaper`, `vendor`.
    pub selection: Vec<String>,
}

/// Priority flow control (IEEE 802.1Qbb).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pfc {
    /// Takes the other side's settings.
    pub willing: Option<bool>,
    /// How many priorities can be lossless.
    pub lossless_max: Option<u8>,
    /// Priorities that are lossless.
    pub lossless: Vec<u8>,
}

/// What kind of number classifies the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selector {
    /// An Ethernet type; 0 is all that nothing else says.
    EtherType,
    /// A TCP or SCTP port.
    Stream,
    /// A UDP or DCCP port; RoCE v2 is 4791.
    Datagram,
    /// The port of any transport: TCP, UDP, SCTP or DCCP.
    AnyPort,
    /// The DSCP of the IP header.
    Dscp,
    /// A kind that this version does not know.
    #[serde(other)]
    Other,
}

/// One entry of the application priority table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Application {
    /// What the number in `protocol` means.
    pub selector: Selector,
    /// Number of the protocol.
    pub protocol: u16,
    /// Priority of this traffic, 0 to 7.
    pub priority: u8,
}

/// Who speaks DCBX, and which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dcbx {
    /// The operating system decides (else the adapter's firmware).
    pub host: bool,
    /// The adapter's firmware speaks DCBX.
    pub firmware: bool,
    /// Speaks the IEEE version of DCBX.
    pub ieee: bool,
    /// Speaks CEE, the version of DCBX before IEEE's.
    pub cee: bool,
    /// Settings are static: nothing is exchanged.
    pub fixed: bool,
}
