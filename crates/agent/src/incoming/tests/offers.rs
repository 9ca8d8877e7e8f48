//! What hosts of the cluster try over TLS: guests that would have QEMU read files of this host, and sessions of others.

use std::sync::mpsc::sync_channel;

use linerate_core::Fault;
use linerate_net::control::ControlEvent;
use linerate_net::tcp::connect::{ConnectError, Route, connect, query};
use linerate_net::tcp::listen::Listener;
use linerate_net::tcp::options::TcpOptions;
use linerate_wire::frame::encode_control;
use tempfile::TempDir;

use super::*;
use crate::agent::Agent;
use crate::security::Security;
use crate::security::tests::member;
use crate::session::contact::open_session;
use crate::testing::{listening, wait};

/// A host that may send guests, and the agent that takes them. Of the folders that the agent allows to guests one is
/// granted to the host.
pub(super) struct Hosts {
    pub(super) source: Arc<Security>,
    /// Another host that may do the same.
    pub(super) other: Arc<Security>,
    pub(super) agent: Arc<Agent>,
    pub(super) listener: Listener,
    _dir: TempDir,
}

impl Hosts {
    pub(super) fn new() -> Hosts {
        let dir = tempfile::tempdir().unwrap();
        let mut authority = authority(&dir.path().join("authority"));
        let policy = "[hosts.source.grants]\nfolders = [\"/srv\"]\n";
        let mut made = |name: &str| member(&mut authority, &dir.path().join(name), name, policy);
        let (source, other, here) = (made("source"), made("other"), made("here"));
        let (agent, listener) = listening(&dir, here, |agent, accepted| agent.accept(accepted));
        Hosts { source, other, agent, listener, _dir: dir }
    }

    /// Offers a guest with this command line. Why it is refused.
    fn offer(&self, number: usize, line: &str) -> Fault {
        let guest = format!("g{number}");
        let mut arguments = vec!["-nodefaults".to_owned()];
        arguments.extend(line.splitn(2, ' ').map(str::to_owned));
        let waits = domain::tests::waits();
        let described = GuestDescription { name: guest.clone(), arguments, domain: false, ..waits };
        let description = described.to_json().unwrap();
        let offer = Message::Offer { guest, description, mode: Ok(Mode::Streams { channels: 1 }) };
        let identity = Identity::random(&self.source).unwrap();
        let opened = open_session(self.listener.addresses(), Role::ControlNew, &identity);
        let (mut control, _) = opened.map_err(|fault| fault.detail).unwrap();
        let (events, received) = sync_channel(64);
        control.listen(0, events).unwrap();
        let mut frame = Vec::new();
        encode_control(&mut frame, 1, &offer).unwrap();
        control.sender().send(&frame).unwrap();
        let end = Instant::now() + LONG;
        let fault = loop {
            match received.recv_timeout(end.saturating_duration_since(Instant::now())).unwrap() {
                ControlEvent::Message { sequence, message: Message::Abort(fault), .. } => {
                    control.sender().acknowledge(sequence).unwrap();
                    break fault;
                }
                ControlEvent::Lost { error, .. } => panic!("{line}: {error}"),
                ControlEvent::Message { message, .. } => panic!("{line}: {message:?}"),
                _ => {}
            }
        };
        wait(&format!("{line}: the session stays"), || self.agent.incoming_live().is_empty());
        fault
    }
}

/// A file of the agent's folders for guests that is not granted to the host; one outside of them; one that no option
/// may name.
const TRIES: [(Code, &str, &[&str]); 4] = [
    (
        Code::NotAuthorised,
        "is not granted to guests of host source",
        &[
            "-kernel /mnt/x",
            "-initrd /mnt/x",
            "-fw_cfg name=opt/x,file=/mnt/x",
            "-drive if=pflash,format=raw,readonly=on,file=/mnt/x",
            "-drive if=floppy,format=raw,readonly=on,file=/mnt/x",
            "-cdrom /mnt/x",
            "-object rng-random,id=r,filename=/dev/hwrng",
        ],
    ),
    (
        Code::NotMigratable,
        "none of the folders that guests may open files in",
        &[
            "-kernel /etc/shadow",
            "-initrd /etc/shadow",
            "-fw_cfg name=opt/x,file=/etc/shadow",
            "-drive if=pflash,format=raw,readonly=on,file=/etc/shadow",
            "-cdrom /etc/shadow",
        ],
    ),
    (
        Code::NotMigratable,
        "not the full path of a local file",
        &["-kernel /srv/../etc/shadow", "-initrd shadow", "-kernel /dev/fdset/1"],
    ),
    (
        Code::NotMigratable,
        "",
        &[
            "-bios .",
            "-option-rom /etc/shadow",
            "-dtb /etc/shadow",
            "-acpitable file=/etc/shadow",
            "-smbios file=/etc/shadow",
            "-device loader,file=/etc/shadow",
            "-device virtio-net-pci,romfile=/etc/shadow",
            "-global virtio-net-pci.romfile=x.rom",
            "-machine pc,firmware=shadow",
            "-object rng-random,id=r,filename=/etc/shadow",
            "-object secret,id=s,file=/etc/shadow",
            "-k ../shadow",
        ],
    ),
];

#[test]
fn files_that_a_guest_only_reads_are_bounded_as_its_disks_are() {
    let hosts = Hosts::new();
    let mut number = 0;
    for (code, words, lines) in TRIES {
        for line in lines {
            number += 1;
            let fault = hosts.offer(number, line);
            assert_eq!((fault.code, fault.side), (code, Side::Destination), "{line}: {fault}");
            // One that is refused with no words of its own is refused by its name.
            let words = if words.is_empty() { line.split(' ').next().unwrap() } else { words };
            assert!(fault.detail.contains(words), "{line}: {fault}");
        }
    }
    assert!(hosts.agent.names_here().is_empty());
}

/// Each way into a session or to its outcome, by another host that has its number and its token.
#[test]
fn another_host_gets_into_no_session_and_decides_none() {
    let hosts = Hosts::new();
    let identity = Identity::random(&hosts.source).unwrap();
    let opened = open_session(hosts.listener.addresses(), Role::ControlNew, &identity);
    let _control = opened.map_err(|fault| fault.detail).unwrap();
    let route = Route { local: None, device: None, remote: hosts.listener.addresses()[0] };
    let asks = |by: &Arc<Security>, role: Role| {
        let tcp = TcpOptions { connect_wait: LONG, tls: by.tls().cloned(), ..TcpOptions::default() };
        let hello = identity.hello(role, 0, 0);
        match role {
            Role::Query | Role::CommitAgain | Role::RolledBack | Role::Resumes => {
                query(&route, &hello, &tcp).map(drop)
            }
            _ => connect(&route, &hello, &tcp).map(drop),
        }
    };
    for role in [
        Role::ControlJoin,
        Role::Data,
        Role::ReverseData,
        Role::Query,
        Role::CommitAgain,
        Role::RolledBack,
        Role::Resumes,
        Role::ControlNew,
    ] {
        match asks(&hosts.other, role) {
            Err(ConnectError::Refused { fault, .. }) => {
                let found = (fault.code, &*fault.detail);
                assert_eq!(found, (Code::NotAuthorised, "another host opened this session"), "{role:?}");
            }
            found => panic!("{role:?}: {found:?}"),
        }
    }
    let session = hosts.agent.incoming.get(identity.session).unwrap();
    assert_eq!(session.outcome(), Outcome::Pending, "it was given up for another host");
    asks(&hosts.source, Role::ControlJoin).unwrap();
}
