//! A guest whose network card QEMU's own helper plugs into a bridge, on each host anew.

use std::time::Duration;

use linerate_lab::{GuestParameters, GuestSpec, Lab, Observer, guest};

use crate::stage::{Stage, ended};
use crate::{LONG, busy};

const PORT: u16 = 7000;

#[test]
fn packets_of_a_guest_on_a_bridge_reach_the_other_host() {
    // The helper makes a tap as root, which no other QEMU can run.
    let root = "qemu_user = \"root\"\n";
    let mut stage = Stage::with_hosts_set(Lab::builder().bridge_helper(), &[1000, 1000], root, |lab| {
        let net = Some(guest::heartbeat(lab, 0, PORT, 50));
        GuestSpec::new("g", GuestParameters { net, ..busy() }).bridge("br0")
    });
    let observer = Observer::start(&stage.lab, PORT).unwrap();
    let address = stage.lab.guest_address(0);
    observer.wait_beats(address, 20, LONG).unwrap();
    for _ in 0..2 {
        let nic = stage.description()["nics"][0].clone();
        assert_eq!(nic["bridge"], "br0", "{nic}");
        assert_eq!(ended(&stage.migrate(&["--verify"]).finish()).completed()["verified"], true);
        stage.arrived();
        observer.wait_beats(address, 50, LONG).unwrap();
        stage.guest_goes_on();
    }
    let seen = observer.blackout(address, Duration::ZERO);
    assert_eq!((seen.mem_bad, seen.disk_bad), (0, 0), "{seen:?}");
}
