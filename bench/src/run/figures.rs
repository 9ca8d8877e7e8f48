//! Figures of one migration.

use linerate_api::BlackoutSplit;
use std::collections::HashMap;

use serde::Serialize;

use super::cases::Method;

/// One migration. Figures that could not be had are absent, not 0.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// Name of the case.
    pub case: String,
    /// `7.2` or `10.0`.
    pub qemu: &'static str,
    /// Round of the interleaving, from 1.
    pub pair: usize,
    /// How it was moved.
    pub method: Method,
    pub channels: Option<u32>,
    /// The guest runs at the destination.
    pub completed: bool,
    /// Its heartbeat reported bad memory, or an older copy of the guest was heard.
    pub damaged: bool,
    /// Why not; or what is worth knowing.
    pub note: String,
    /// From the request to the guest running at the destination, as the client sees it. QEMU's destination is started
    /// before, Linerate's within this time.
    pub total_s: Option<f64>,
    /// Time to start QEMU's destination; part of `total_s`, as Linerate's own start of it is.
    pub destination_start_s: Option<f64>,
    /// Copying guest RAM: what is copied during the blackout counts too.
    pub copy_s: Option<f64>,
    /// All steps that are neither the copy nor the blackout.
    pub other_steps_ms: Option<f64>,
    /// Guest RAM in use and not zero, as the first pass of this pair found it.
    pub populated_bytes: u64,
    /// Guest RAM that went over the wire, over all rounds.
    pub sent_bytes: Option<u64>,
    /// `populated_bytes` over `copy_s`.
    pub goodput_gbps: Option<f64>,
    /// What iperf3 got over all links around this pair.
    pub wire_gbps: Option<f64>,
    /// The one over the other.
    pub wire_percent: Option<f64>,
    /// The downtime that QEMU itself counted.
    pub blackout_qemu_ms: Option<f64>,
    /// The blackout in Linerate's report.
    pub blackout_report_ms: Option<f64>,
    /// The parts of it, by Linerate's report.
    pub blackout_split: Option<BlackoutSplit>,
    /// The longest time without a heartbeat, network included.
    pub blackout_seen_ms: Option<f64>,
    /// Agents and QEMUs of both hosts, without what the guest used by itself.
    pub cpu_s: Option<f64>,
    /// Per 10^9 bytes of `populated_bytes`.
    pub cpu_s_per_gb: Option<f64>,
    /// What the guest used before, of one CPU; subtracted.
    pub guest_cpu: f64,
    /// What the guest got done during the migration, of what it got done before.
    pub guest_pace: Option<f64>,
    /// Bytes that left the source on each link, headers included: shows which links were used.
    pub link_bytes: Vec<u64>,
    /// Seconds of each process, by process id.
    pub cpu_by_process: HashMap<u32, f64>,
}

impl Figures {
    /// Derives what follows from bytes and times.
    pub fn derive(&mut self, wire_gbps: Option<f64>) {
        self.wire_gbps = wire_gbps;
        let populated = self.populated_bytes as f64;
        self.goodput_gbps = self
            .copy_s
            .filter(|copy| *copy > 0.0 && populated > 0.0 && self.completed)
            .map(|copy| populated * 8.0 / copy / 1e9);
        self.wire_percent = self
            .goodput_gbps
            .zip(wire_gbps)
            .filter(|(_, wire)| *wire > 0.0)
            .map(|(goodput, wire)| 100.0 * goodput / wire);
        self.cpu_s_per_gb = self
            .cpu_s
            .filter(|_| populated > 0.0 && self.completed)
            .map(|seconds| seconds / (populated / 1e9));
    }

    /// The blackout as the mover reports it.
    pub fn blackout_ms(&self) -> Option<f64> {
        self.blackout_report_ms.or(self.blackout_qemu_ms)
    }

    /// The outcome in one line.
    pub fn text(&self) -> String {
        let show = |figure: Option<f64>, digits: usize| {
            figure.map_or("–".to_owned(), |figure| format!("{figure:.digits$}"))
        };
        format!(
            "{} {} pair {} {}: {}{} s, copy {} s, {} Gb/s ({} % of {}), blackout {} ms (seen {}), {} CPU s/GB",
            self.case,
            self.qemu,
            self.pair,
            self.method.title(),
            if self.completed { "" } else { "NOT COMPLETED " },
            show(self.total_s, 2),
            show(self.copy_s, 2),
            show(self.goodput_gbps, 2),
            show(self.wire_percent, 1),
            show(self.wire_gbps, 2),
            show(self.blackout_ms(), 1),
            show(self.blackout_seen_ms, 0),
            show(self.cpu_s_per_gb, 2),
        )
    }
}
