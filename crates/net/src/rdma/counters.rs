//! What an RDMA port counts: it goes past the kernel's network counters, so no task manager shows it.
//!
//! Every driver has its own names; those of the common ones are summed under one. What a driver does not count is
//! `None`, which is not 0.

use std::path::Path;

use super::devices::text;

/// Counters of a port, or what they grew by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Bytes that the port has sent; `None` without this counter.
    pub sent_bytes: Option<u64>,
    /// Bytes that the port has received; `None` without this counter.
    pub received_bytes: Option<u64>,
    pub sent_packets: Option<u64>,
    pub received_packets: Option<u64>,
    /// Packets sent again, or that the peer asked for again.
    pub retransmits: Option<u64>,
    /// Packets that switches marked as congested, and the notices of it that came back.
    pub congestion_marks: Option<u64>,
    /// Times that the link's partner asked to pause (PFC, all priorities).
    pub pauses: Option<u64>,
}

/// Files of `counters` and `hw_counters` that make up each. Where a driver has several, they count different events.
const RETRANSMITS: &[&str] = &[
    "hw_counters/packet_seq_err",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/rnr_nak_retry_err",
    "hw_counters/retransmits",
    "hw_counters/tcpRetransSegs",
    "hw_counters/to_retransmits",
    "hw_counters/retry_exceeded_err",
    "hw_counters/completer_retry_err",
    "hw_counters/rcvd_seq_err",
];
const CONGESTION: &[&str] = &[
    "hw_counters/np_ecn_marked_roce_packets",
    "hw_counters/rp_cnp_handled",
    "hw_counters/rx_cnp_pkts",
    "hw_counters/rx_ecn_marked_pkts",
    "hw_counters/cnpHandled",
    "hw_counters/rxCnpHandled",
    "hw_counters/RxECNMrkd",
];
/// The InfiniBand counter of ticks in which nothing could be sent.
const PAUSES: &[&str] = &["hw_counters/rx_pause_pkts", "counters/port_xmit_wait"];
/// InfiniBand's data counters are in words of four bytes; drivers keep to it on Ethernet.
const WORD_BYTES: u64 = 4;

/// The counters of a port's folder now.
pub fn read(port: &Path) -> PortCounters {
    let one = |name: &str| text(&port.join(name)).and_then(|text| text.parse::<u64>().ok());
    let first = |names: &[&str]| names.iter().find_map(|name| one(name));
    let sum = |names: &[&str]| {
        let found = names.iter().filter_map(|name| one(name));
        found.fold(None, |sum: Option<u64>, value| Some(sum.unwrap_or(0).saturating_add(value)))
    };
    let bytes = |words: &str, own: &[&str]| {
        one(words).map(|count| count.saturating_mul(WORD_BYTES)).or_else(|| first(own))
    };
    PortCounters {
        sent_bytes: bytes("counters/port_xmit_data", &["hw_counters/tx_bytes", "hw_counters/sent_bytes"]),
        received_bytes: bytes("counters/port_rcv_data", &["hw_counters/rx_bytes", "hw_counters/rcvd_bytes"]),
        sent_packets: one("counters/port_xmit_packets")
            .or_else(|| first(&["hw_counters/sent_pkts", "hw_counters/tx_pkts"])),
        received_packets: one("counters/port_rcv_packets")
            .or_else(|| first(&["hw_counters/rcvd_pkts", "hw_counters/rx_pkts"])),
        retransmits: sum(RETRANSMITS),
        congestion_marks: sum(CONGESTION),
        pauses: first(PAUSES),
    }
}

impl PortCounters {
    /// What they grew by since `before`. A counter that was reset meanwhile counts from 0.
    pub fn since(&self, before: &PortCounters) -> PortCounters {
        let grown = |now: Option<u64>, before: Option<u64>| {
            now.map(|now| now.checked_sub(before.unwrap_or(0)).unwrap_or(now))
        };
        PortCounters {
            sent_bytes: grown(self.sent_bytes, before.sent_bytes),
            received_bytes: grown(self.received_bytes, before.received_bytes),
            sent_packets: grown(self.sent_packets, before.sent_packets),
            received_packets: grown(self.received_packets, before.received_packets),
            retransmits: grown(self.retransmits, before.retransmits),
            congestion_marks: grown(self.congestion_marks, before.congestion_marks),
            pauses: grown(self.pauses, before.pauses),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(files: &[(&str, u64)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, value) in files {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{value}\n")).unwrap();
        }
        root
    }

    #[test]
    fn words_become_bytes_and_names_of_drivers_one() {
        let root = port(&[
            ("counters/port_xmit_data", 250),
            ("counters/port_xmit_packets", 3),
            ("hw_counters/packet_seq_err", 2),
            ("hw_counters/local_ack_timeout_err", 5),
            ("hw_counters/np_ecn_marked_roce_packets", 9),
        ]);
        let counters = read(root.path());
        assert_eq!((counters.sent_bytes, counters.sent_packets), (Some(1000), Some(3)));
        assert_eq!((counters.retransmits, counters.congestion_marks), (Some(7), Some(9)));
        assert_eq!((counters.pauses, counters.received_bytes), (None, None), "not counted is not 0");
    }

    #[test]
    fn soft_roce_has_its_own_names() {
        let root = port(&[
            ("hw_counters/sent_pkts", 11),
            ("hw_counters/rcvd_pkts", 12),
            ("hw_counters/completer_retry_err", 1),
            ("hw_counters/rcvd_seq_err", 2),
        ]);
        let counters = read(root.path());
        assert_eq!((counters.sent_packets, counters.received_packets), (Some(11), Some(12)));
        assert_eq!(counters.retransmits, Some(3));
    }

    #[test]
    fn differences_survive_a_reset() {
        let before = PortCounters { sent_bytes: Some(100), sent_packets: Some(9), ..PortCounters::default() };
        let now = PortCounters { sent_bytes: Some(175), sent_packets: Some(4), ..PortCounters::default() };
        let grown = now.since(&before);
        assert_eq!((grown.sent_bytes, grown.sent_packets, grown.pauses), (Some(75), Some(4), None));
    }
}
