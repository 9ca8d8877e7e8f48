//! Guests under KVM, whose writes reach RAM through KVM's own page tables. Where there is no /dev/kvm, each says so and
//! does nothing.

use linerate_lab::guest::{kvm_is_missing, not_run};
use linerate_lab::{GuestParameters, GuestSpec, QemuVersion};

use crate::goes_there_and_back;
use crate::stage::Stage;

/// 8 MiB are written up to 18 times a second, each page checked before; all of the rest is checked in every eighth
/// pass.
fn writing() -> GuestParameters {
    GuestParameters { mem_mb: 96, dirty_ws_mb: Some(8), ..GuestParameters::default() }
}

fn there_and_back(version: QemuVersion) {
    if let Some(error) = kvm_is_missing() {
        return not_run(&format!("no /dev/kvm ({error})"));
    }
    let mut stage = Stage::with_guest(&[2500, 2500], GuestSpec::user_mode("g", writing()).qemu(version));
    assert_eq!(stage.description()["accelerator"], "kvm");
    goes_there_and_back(&mut stage, false);
    assert_eq!(stage.description()["accelerator"], "kvm");
}

#[test]
fn a_guest_under_kvm_with_qemu_7() {
    there_and_back(QemuVersion::System);
}

#[test]
fn a_guest_under_kvm_with_qemu_10() {
    there_and_back(QemuVersion::Ten);
}
