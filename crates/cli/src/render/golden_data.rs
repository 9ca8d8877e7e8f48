//! A migration to draw in tests.

use linerate_api::{
    BlackoutSplit, CpuTime, LinkProgress, LinkState, LinkTotals, MigrationId, MigrationOutcome, Mode,
    Progress, RamTotals, Report, RoundTotals, Step, StepTime,
};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// In the first pass, one of two links cut.
pub fn progress() -> Progress {
    Progress {
        step: Step::Copy,
        round: 0,
        populated_bytes: 4 * GIB,
        round_bytes_total: 4 * GIB,
        round_bytes_done: 5 * GIB / 2,
        remaining_bytes: 3 * GIB / 2,
        sent_bytes: 2 * GIB,
        zero_bytes: GIB / 2,
        rate_bytes_per_s: 307_500_000,
        dirty_rate_bytes_per_s: Some(126_000_000),
        predicted_blackout_us: Some(14_000),
        predicted_left_us: Some(5_400_000),
        disks: None,
        links: vec![
            LinkProgress {
                id: 0,
                name: "eth1".into(),
                local: "10.0.1.1:40112".into(),
                remote: "10.0.1.2:7475".into(),
                state: LinkState::Up,
                rate_bytes_per_s: 307_500_000,
                sent_bytes: 1228 * MIB,
                speed_mbps: 2500,
                channels: 1,
                retransmits: 0,
                rdma: false,
                rdma_port: None,
            },
            LinkProgress {
                id: 1,
                name: "eth2".into(),
                local: "10.0.2.1:51034".into(),
                remote: "10.0.2.2:7475".into(),
                state: LinkState::Lost,
                rate_bytes_per_s: 0,
                sent_bytes: 820 * MIB,
                speed_mbps: 2500,
                channels: 0,
                retransmits: 37,
                rdma: false,
                rdma_port: None,
            },
        ],
    }
}

fn link(name: &str, network: u8, sent_bytes: u64, lost_count: u32, retransmits: u64) -> LinkTotals {
    LinkTotals {
        name: name.into(),
        local: format!("10.0.{network}.1:40112"),
        remote: format!("10.0.{network}.2:7475"),
        speed_mbps: 2500,
        sent_bytes,
        rate_bytes_per_s: 305_000_000 - 1_000_000 * u64::from(network),
        lost_count,
        retransmits,
        rdma: false,
        fallback: None,
        failure: None,
        rdma_port: None,
    }
}

/// Over and well, with everything that a report can say.
pub fn report() -> Report {
    let step_us = [310, 1_240, 840, 312_000, 41_300, 4_120, 8_120_000, 9_460, 1_020, 24_800];
    Report {
        id: MigrationId("3f9a01c2d4e5f60718293a4b5c6d7e8f".into()),
        guest: "web".into(),
        from: "alpha".into(),
        to: "beta".into(),
        mode: Mode::Direct,
        mode_reason: None,
        stream_channels: None,
        outcome: MigrationOutcome::Completed,
        total_us: step_us.iter().sum(),
        steps: Step::ALL
            .iter()
            .zip(step_us)
            .map(|(step, duration_us)| StepTime { step: *step, duration_us })
            .collect(),
        rounds: vec![
            RoundTotals {
                number: 0,
                bytes: 7 * GIB / 2,
                duration_us: Some(7_520_000),
                dirty_bytes_after: Some(210 * MIB),
            },
            RoundTotals {
                number: 1,
                bytes: 210 * MIB,
                duration_us: Some(532_000),
                dirty_bytes_after: Some(18 * MIB),
            },
            RoundTotals {
                number: 2,
                bytes: 18 * MIB,
                duration_us: Some(48_000),
                dirty_bytes_after: Some(900 << 10),
            },
        ],
        ram: RamTotals {
            total_bytes: 8 * GIB,
            sent_bytes: 7 * GIB / 2 + 229 * MIB,
            zero_bytes: GIB / 2,
            hole_bytes: 4 * GIB,
        },
        disks: None,
        shared_by_assertion: Vec::new(),
        arrived_paused: false,
        goodput_bytes_per_s: 492_000_000,
        links: vec![link("eth1", 1, 2260 * MIB, 0, 12), link("eth2", 2, 1553 * MIB, 1, 431)],
        cpu: CpuTime { source_agent_us: 2_410_000, destination_agent_us: 1_870_000 },
        blackout: Some(BlackoutSplit {
            total_us: 8_430,
            stop_us: 610,
            scan_us: 1_480,
            last_copy_us: 2_310,
            verify_us: 0,
            device_state_us: 2_870,
            journal_us: 390,
            resume_us: 420,
            qemu_downtime_us: Some(5000),
        }),
        pauses_us: 0,
        device_state_bytes: 312 << 10,
        verified: Some(true),
        damaged_writes: 0,
    }
}
