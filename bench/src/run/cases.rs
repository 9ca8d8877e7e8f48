//! What is compared: cases (guest and links) and methods.

use serde::Serialize;

use super::Flags;

/// A guest on some links.
#[derive(Debug, Clone, Serialize)]
pub struct Case {
    /// Such as `idle-2x2500`.
    pub name: String,
    /// As `linerate-lab up --links`.
    pub links: &'static str,
    /// Guest RAM, MiB.
    pub memory_mb: u64,
    /// Of it filled with what cannot be compressed, MiB.
    pub filled_mb: u64,
    /// Writing rate, MiB/s; 0: idle.
    pub dirty_mbps: i64,
    /// Part of RAM that is written, MiB.
    pub working_set_mb: u64,
    /// A thread that uses a whole vCPU.
    pub work: bool,
    /// Link 0 is cut at half time and restored a second later.
    pub cut: bool,
}

impl Case {
    fn idle(links: &'static str, filled_mb: u64) -> Case {
        let words = match links {
            "2500,1000" => "2500+1000",
            "2" => "2xunshaped",
            other => other,
        };
        Case {
            name: format!("idle-{words}"),
            links,
            // The kernel keeps some of it: its own, and 1/64 for page descriptors.
            memory_mb: filled_mb + 128 + filled_mb / 8,
            filled_mb,
            dirty_mbps: 0,
            working_set_mb: 0,
            work: false,
            cut: false,
        }
    }

    /// All cases, in the order in which they run.
    pub fn all(flags: &Flags) -> Vec<Case> {
        let mb = if flags.quick { 384 } else { 1536 };
        let base = Case::idle("2x2500", mb);
        let mut cases: Vec<Case> =
            ["2x2500", "2500,1000", "4x1000", "2"].map(|links| Case::idle(links, mb)).to_vec();
        if flags.mode == "stream" {
            // What carrying QEMU's streams costs where there is nothing to gain, and what it gives where the CPUs are
            // not the limit.
            cases.splice(0..0, ["1000", "2500", "2x1000"].map(|links| Case::idle(links, mb)));
        }
        cases.push(Case { name: "empty-2x2500".into(), memory_mb: 8192, filled_mb: 32, ..base.clone() });
        // MiB/s of both links together.
        let wire = 5000.0 * 1e6 / 8.0 / f64::from(1 << 20);
        for percent in &flags.hot_percent {
            cases.push(Case {
                name: format!("hot{percent}-2x2500"),
                dirty_mbps: (wire * f64::from(*percent) / 100.0) as i64,
                working_set_mb: flags.hot_mb.min(mb),
                ..base.clone()
            });
        }
        cases.push(Case { name: "work-2x2500".into(), work: true, ..base.clone() });
        cases.push(Case { name: "cut-2x2500".into(), cut: true, ..base });
        cases
    }
}

/// How a guest is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Linerate over all links, in the mode that the run is of. Plain text.
    Linerate,
    /// The same with TLS, as agents use it by default.
    LinerateTls,
    /// QEMU's default: one TCP stream over one link.
    OneStream,
    /// QEMU multifd over one link.
    Multifd,
    /// The same with QEMU's own TLS, both sides with certificates.
    MultifdTls,
    /// QEMU multifd over MPTCP with all links as endpoints.
    Mptcp,
}

impl Method {
    /// In the order of tables.
    pub const ALL: [Method; 6] = [
        Method::Linerate,
        Method::LinerateTls,
        Method::OneStream,
        Method::Multifd,
        Method::MultifdTls,
        Method::Mptcp,
    ];
    /// What runs where nothing else is said, in the order of the interleaving.
    pub const USUAL: [Method; 4] = [Method::Linerate, Method::OneStream, Method::Multifd, Method::Mptcp];

    pub fn title(self) -> &'static str {
        match self {
            Method::Linerate => "linerate",
            Method::LinerateTls => "linerate, TLS",
            Method::OneStream => "QEMU one stream",
            Method::Multifd => "QEMU multifd",
            Method::MultifdTls => "QEMU multifd, TLS",
            Method::Mptcp => "QEMU multifd, MPTCP",
        }
    }

    /// Whether Linerate moves the guest, and not QEMU.
    pub fn is_linerate(self) -> bool {
        matches!(self, Method::Linerate | Method::LinerateTls)
    }
}

/// Channels of the multifd methods, chosen by trying.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Channels {
    pub multifd: u32,
    pub multifd_tls: u32,
    pub mptcp: u32,
}

impl Channels {
    /// Of a method; None without multifd.
    pub fn of(&self, method: Method) -> Option<u32> {
        match method {
            Method::Multifd => Some(self.multifd),
            Method::MultifdTls => Some(self.multifd_tls),
            Method::Mptcp => Some(self.mptcp),
            Method::Linerate | Method::LinerateTls | Method::OneStream => None,
        }
    }
}
