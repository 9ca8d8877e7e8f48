//! The guest of the tests of what breaks around commit, and what each of them does in the end.

use std::time::Duration;

use linerate_lab::{GuestParameters, GuestSpec, QemuVersion};

use crate::stage::{Stage, ended};

/// Long enough for a slow machine; only a hang reaches it.
pub const LONG: Duration = Duration::from_secs(120);
pub const FAST: [u64; 2] = [1000, 1000];

/// Without a kernel: it starts quickly, and leaves the CPU to others.
pub fn guest(version: QemuVersion) -> GuestSpec {
    let parameters = GuestParameters { mem_mb: 32, dirty_ws_mb: Some(2), ..GuestParameters::default() };
    GuestSpec::bare("g", parameters).qemu(version)
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
