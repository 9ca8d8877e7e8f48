//! A destination that cannot give the guest the processor that it has.

use std::os::unix::fs::PermissionsExt;

use linerate_lab::{Cache, GuestParameters, QemuVersion};

use crate::REFUSED;
use crate::stage::{Stage, ended};

/// The destination's QEMU becomes one that gives guests this processor, whatever its command line says.
fn restart_destination_with_cpu(stage: &mut Stage, cpu: &str) {
    let program = stage.lab.directory().join("other-qemu");
    let real = Cache::locate().qemu(QemuVersion::System).unwrap();
    let real = real.display();
    let script = format!(
        "#!/bin/sh\ncase $1 in -version|-machine) exec {real} \"$@\";; esac\nexec {real} \"$@\" -cpu {cpu}\n"
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let binary = program.display();
    stage.restart_destination_with(&format!(
        "[[qemu]]\nname = \"other\"\nbinary = \"{binary}\"\ndata_dirs = []\n"
    ));
}

#[test]
fn a_processor_that_lacks_a_feature_takes_no_guest_and_one_with_more_does() {
    let mut stage = Stage::new(&[1000, 1000], GuestParameters { mem_mb: 64, ..crate::steady() });
    restart_destination_with_cpu(&mut stage, "qemu64,-cx16");
    for mode in ["direct", "stream"] {
        let failure = ended(&stage.migrate(&["--mode", mode]).finish()).failed(REFUSED);
        assert_eq!(
            (&failure["code"], &failure["side"], &failure["guest_state"]),
            (&"resource_missing".into(), &"destination".into(), &"runs_at_source".into()),
            "{mode}: {failure}"
        );
        let message = failure["message"].as_str().unwrap();
        assert!(message.contains("cx16") && message.contains("qemu64"), "{mode}: {failure}");
        stage.guest_goes_on();
        stage.wait_guests_at_destination(0, crate::LONG);
    }
    restart_destination_with_cpu(&mut stage, "qemu64,+popcnt");
    ended(&stage.migrate(&["--mode", "direct"]).finish()).completed();
    stage.arrived();
    stage.guest_goes_on();
}

#[test]
fn an_adopted_guest_is_refused_by_a_processor_that_lacks_a_feature() {
    let mut stage = Stage::adopted(GuestParameters { mem_mb: 64, ..crate::steady() });
    restart_destination_with_cpu(&mut stage, "qemu64,-cx16");
    let failure = ended(&stage.migrate(&["--mode", "direct"]).finish()).failed(REFUSED);
    assert_eq!(
        (&failure["code"], &failure["guest_state"]),
        (&"resource_missing".into(), &"runs_at_source".into()),
        "{failure}"
    );
    assert!(failure["message"].as_str().unwrap().contains("cx16"), "{failure}");
    stage.guest_goes_on();
}
