//! Interfaces and their watcher, in a network namespace of the test's own. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use linerate_net::interfaces;
use linerate_net::monitor::{InterfaceEvent, Monitor};

/// Two ports with a cable between them in a namespace, which goes with it.
struct Namespace(String);

impl Namespace {
    fn new() -> Namespace {
        let namespace = Namespace(format!("lr-net-{}", std::process::id()));
        namespace.ip(&["netns", "add", &namespace.0]);
        namespace.inside(&["link", "add", "lrt0", "mtu", "9000", "type", "veth", "peer", "name", "lrt1"]);
        namespace.inside(&["address", "add", "10.77.0.1/24", "dev", "lrt0"]);
        namespace.inside(&["link", "set", "lrt0", "up"]);
        namespace.inside(&["link", "set", "lrt1", "up"]);
        namespace
    }

    fn ip(&self, arguments: &[&str]) {
        let status = Command::new("ip").args(arguments).status().expect("ip of iproute2");
        assert!(status.success(), "ip {arguments:?} failed; this test needs root");
    }

    fn inside(&self, arguments: &[&str]) {
        self.ip(&[&["-n", &self.0], arguments].concat());
    }

    fn enter(&self) {
        let file = std::fs::File::open(format!("/run/netns/{}", self.0)).unwrap();
        rustix::thread::move_into_link_name_space(
            std::os::fd::AsFd::as_fd(&file),
            Some(rustix::thread::LinkNameSpaceType::Network),
        )
        .expect("setns; this test needs root");
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

fn wait_for(events: &mpsc::Receiver<InterfaceEvent>, name: &str, usable: bool) {
    loop {
        let event = events.recv_timeout(Duration::from_secs(60)).expect("an event");
        if event.name == name && event.usable == usable {
            return;
        }
    }
}

#[test]
fn a_port_is_listed_and_its_loss_and_return_are_reported() {
    let namespace = Namespace::new();
    namespace.enter();
    let list = interfaces::list().unwrap();
    let port = list.iter().find(|one| one.name == "lrt0").expect("the port");
    assert_eq!(port.mtu, 9000);
    assert!(port.addresses.iter().any(|one| one.ip.to_string() == "10.77.0.1" && one.prefix == 24));
    let (sent, events) = mpsc::channel();
    let monitor = Monitor::start(sent).unwrap();
    wait_until_usable("lrt0");
    namespace.inside(&["link", "set", "lrt1", "down"]);
    wait_for(&events, "lrt0", false);
    namespace.inside(&["link", "set", "lrt1", "up"]);
    wait_for(&events, "lrt0", true);
    namespace.inside(&["link", "delete", "lrt0"]);
    wait_for(&events, "lrt0", false);
    drop(monitor);
    while events.try_recv().is_ok() {}
    assert_eq!(events.recv(), Err(mpsc::RecvError), "the thread has ended");
}

fn wait_until_usable(name: &str) {
    for _ in 0..2000 {
        if interfaces::list().unwrap().iter().any(|one| one.name == name && one.usable()) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{name} does not come up");
}
