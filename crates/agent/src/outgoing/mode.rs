//! In which mode a guest moves.

use linerate_api::{MigrateRequest, ModeChoice};
use linerate_core::{Code, Fault, Side, Step};
use linerate_guest::description::GuestDescription;
use linerate_guest::qmp::QemuVersion;
use linerate_guest::verdict::{Reason, Verdict, judge_images, judge_streams};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RamChoice {
    /// Linerate, from RAM to RAM.
    Direct,
    /// QEMU's own streams. The reason is why RAM is not copied directly, where that was not the operator's choice.
    Streams { reason: Option<String> },
}

/// Chooses, or returns why the guest cannot move as was asked for.
pub(super) fn choose(
    request: &MigrateRequest,
    guest: &GuestDescription,
    direct: &Verdict,
) -> Result<RamChoice, Fault> {
    match request.mode {
        ModeChoice::Direct => check_direct(request, direct).map(|()| RamChoice::Direct),
        ModeChoice::Auto if direct.direct && request.copies_disks() => streams(
            request,
            guest,
            Some("disks are copied (--copy-storage, --copy-disks), by QEMU's own copying".into()),
        ),
        ModeChoice::Auto if direct.direct => Ok(RamChoice::Direct),
        ModeChoice::Auto => streams(request, guest, Some(direct.to_string())),
        ModeChoice::Stream => streams(request, guest, None),
    }
}

/// Whether Linerate can copy RAM from RAM to RAM.
pub(super) fn check_direct(request: &MigrateRequest, direct: &Verdict) -> Result<(), Fault> {
    if request.copies_disks() {
        let detail = "disks are copied along (--copy-storage, --copy-disks) in stream mode only";
        return Err(refused(detail.into()));
    }
    if direct.direct { Ok(()) } else { Err(refused(direct.to_string())) }
}

fn streams(
    request: &MigrateRequest,
    guest: &GuestDescription,
    reason: Option<String>,
) -> Result<RamChoice, Fault> {
    let mut against: Vec<String> = judge_streams(guest).iter().map(Reason::to_string).collect();
    if request.verify {
        against.push("guest RAM can be compared (--verify) in direct mode only".into());
    }
    if against.is_empty() {
        return Ok(RamChoice::Streams { reason });
    }
    let direct = reason.map(|reason| format!("{reason}; ")).unwrap_or_default();
    Err(refused(format!("{direct}stream: no, because {}", against.join("; "))))
}

/// Images that no destination would open for the guest, now that it is known which are copied instead.
pub(super) fn check_images(guest: &GuestDescription) -> Result<(), Fault> {
    let reasons: Vec<String> = judge_images(guest).iter().map(Reason::to_string).collect();
    if reasons.is_empty() {
        return Ok(());
    }
    let why = reasons.join("; ");
    Err(refused(format!(
        "{why}. Repair the image, or copy the disk along (--copy-storage all, --copy-disks)"
    )))
}

fn refused(detail: String) -> Fault {
    Fault::new(Code::NotMigratable, Step::Resolve, Side::Source, detail)
}

/// What the operator should know of a guest that moves in stream mode.
pub(super) fn stream_caution(guest: &GuestDescription) -> Option<String> {
    let doubtful = guest.accelerator == "tcg" && guest.qemu < EMULATION_TRIED;
    doubtful.then(|| {
        format!(
            "QEMU {} may lose what an emulated guest (accel tcg) writes while QEMU migrates it, as 7.2 was seen to: \
             use direct mode, KVM or QEMU 10",
            guest.qemu
        )
    })
}

/// With this version emulated guests with busy disks arrived whole (docs/stream-mode.md).
const EMULATION_TRIED: QemuVersion = QemuVersion { major: 10, minor: 0, micro: 0 };

/// Parallel channels that QEMU's stream is to have: one thread of QEMU's for each 10 Gb/s of what the ports of this
/// host could carry together. Two at least, so that finding zeros and sending run at the same time, and never more than
/// there are CPUs.
pub(super) fn stream_channels(mbps: u64, cpus: usize) -> u16 {
    let cpus = u16::try_from(cpus).unwrap_or(CHANNELS_MAX);
    let channels = u16::try_from(mbps.div_ceil(MBPS_PER_CHANNEL)).unwrap_or(CHANNELS_MAX);
    channels.max(2).min(cpus.max(1)).min(CHANNELS_MAX)
}

const MBPS_PER_CHANNEL: u64 = 10_000;
/// More than any pair of hosts can use.
const CHANNELS_MAX: u16 = 32;

#[cfg(test)]
mod tests {
    use linerate_guest::description::REGIONS_MAX;
    use linerate_guest::run_state::RunState;
    use linerate_guest::verdict::judge;

    use super::*;

    #[test]
    fn a_kernel_that_loses_writes_refuses_direct_mode_and_not_stream_mode() {
        let mut guest = crate::incoming::domain::tests::waits();
        guest.run_state = RunState::Running;
        guest.traits.capabilities = ["pause-before-switchover", "events"].map(str::to_owned).to_vec();
        let fit = Verdict { direct: true, reasons: Vec::new() };
        let why = "this kernel (6.14.0) loses written pages: use stream mode, or a newer kernel".to_owned();
        let unfit = fit.and(Reason::KernelUnfit { why: why.clone() });
        let asked = |mode| MigrateRequest {
            mode,
            ..serde_json::from_str(r#"{"guest": "web", "to": "[::1]:1"}"#).unwrap()
        };
        let refused = choose(&asked(ModeChoice::Direct), &guest, &unfit).unwrap_err();
        assert!(refused.to_string().contains(&why), "{refused}");
        let chosen = choose(&asked(ModeChoice::Auto), &guest, &unfit).unwrap();
        let RamChoice::Streams { reason: Some(reason) } = chosen else { panic!("{chosen:?}") };
        assert!(reason.contains(&why));
    }

    #[test]
    fn a_guest_with_more_ram_blocks_than_an_offer_names_moves_in_stream_mode() {
        assert_eq!(REGIONS_MAX, linerate_wire::message::REGIONS_MAX);
        let mut guest = crate::incoming::domain::tests::waits();
        guest.run_state = RunState::Running;
        guest.traits.capabilities = ["pause-before-switchover", "events"].map(str::to_owned).to_vec();
        let block = guest.ram.remove(0);
        guest.ram = vec![block.clone(); REGIONS_MAX];
        let reason = Reason::TooManyRegions { count: REGIONS_MAX + 1 };
        assert!(!judge(&guest, (6, 7)).reasons.contains(&reason));
        guest.ram.push(block);
        let verdict = judge(&guest, (6, 7));
        assert!(verdict.reasons.contains(&reason), "{verdict}");
        let request: MigrateRequest = serde_json::from_str(r#"{"guest": "web", "to": "[::1]:1"}"#).unwrap();
        let chosen = choose(&request, &guest, &verdict).unwrap();
        let RamChoice::Streams { reason: Some(why) } = chosen else { panic!("{chosen:?}") };
        assert!(why.contains("65 RAM blocks"), "{why}");
    }

    #[test]
    fn channels_follow_the_ports_and_the_cpus() {
        for ((mbps, cpus), channels) in [
            ((0, 8), 2),
            ((10_000, 8), 2),
            ((50_000, 8), 5),
            ((200_000, 8), 8),
            ((200_000, 1), 1),
            ((u64::MAX, usize::MAX), 32),
        ] {
            assert_eq!(stream_channels(mbps, cpus), channels, "{mbps} Mb/s, {cpus} CPUs");
        }
    }
}
