//! The guest of the tests of what breaks around commit, and what each of them does in the end.

use std::time::Duration;

use linerate_lab::guest::kvm_is_missing;
use linerate_lab::{GuestParameters, GuestSpec, QemuVersion};

use crate::stage::{Stage, ended};

/// Long enough for a slow machine; only a hang meets it.
pub const LONG: Duration = Duration::from_secs(40);
pub const FAST: [u64; 2] = [1000, 1000];

/// Without a kernel, under KVM if there is one: quick.
pub fn guest(version: QemuVersion) -> GuestSpec {
    let parameters = GuestParameters { mem_mb: 32, verify_mbps: 400, ..GuestParameters::default() };
    let quick = kvm_is_missing().is_none();
    let spec = if quick { GuestSpec::user_mode } else { GuestSpec::new };
    spec("g", parameters).qemu(version)
}

pub fn gated() -> (Stage, [linerate_lab::Gate; 2]) {
    Stage::gated(&FAST, guest(QemuVersion::Ten))
}

/// Moves the guest to the other host and looks at it there.
pub fn moves(stage: &mut Stage) {
    ended(&stage.migrate(&[]).finish()).completed();
    stage.settles_at(1 - stage.source);
}

/// Both agents again, in an order, and there and back.
pub fn goes_on(stage: &mut Stage, first: usize) {
    for host in [first, 1 - first] {
        stage.agent(host).kill().unwrap();
        stage.agent(host).restart().unwrap();
    }
    stage.settles_at(stage.source);
    moves(stage);
    moves(stage);
}
