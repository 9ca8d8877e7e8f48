//! What the loop of a session does with its guest's QEMU.

use std::sync::mpsc::channel;

use linerate_core::destination::Action;
use linerate_core::{Mode, ModeTag, SessionId, Token};
use linerate_net::stream::endpoint::Socket;

use super::super::{ChannelTarget, streams};
use super::*;
use crate::journal::IncomingRecord;
use crate::session::identity::Identity;
use crate::session::paths::Door;
use crate::testing::{Ending, agent, arrived};

/// A source must not wait for a QEMU that takes long to end: the message that the guest runs is held back at once.
#[test]
fn a_guest_whose_qemu_is_ending_is_not_reported_as_running() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let mut ending = Ending::start(&dir);
    let (session, peer) = (SessionId([1; 16]), ([127, 0, 0, 1], 1).into());
    let identity = Identity::new(session, Token([2; 32]), &crate::security::Security::insecure());
    let incoming = Arc::new(Incoming::new(identity, 1, peer, channel().0, Door::closed()));
    let session_loop = SessionLoop::new(agent.incoming.clone(), incoming).unwrap();
    let own = i32::try_from(std::process::id()).unwrap();
    let is_gone = |pid: i32| {
        let incoming_record =
            IncomingRecord { qemu: Some(arrived(&agent, pid)), ..IncomingRecord::default() };
        session_loop.worker.set_record(incoming_record.clone());
        let record = Record::new("g", 1, incoming_record.role(DestinationPhase::Running));
        agent.journal.put(session, &record).unwrap();
        session_loop.is_gone()
    };
    assert!(!is_gone(own));
    assert!(is_gone(ending.pid()), "it runs no code any more, and the source would give its copy up");
    ending.end();
    assert!(session_loop.is_gone());
}

#[test]
fn streams_are_reset_before_the_incoming_qemu_is_discarded() {
    let dir = tempfile::tempdir().unwrap();
    let peer = ([127, 0, 0, 1], 1).into();
    let identity = Identity::new(SessionId([1; 16]), Token([2; 32]), &crate::security::Security::insecure());
    let (inbox, _inputs) = channel();
    let shared = Arc::new(Incoming::new(identity, 1, peer, inbox, Door::closed()));
    shared.target.set(ChannelTarget::Streams(streams::stream_transport(&shared))).ok().unwrap();
    let mut session_loop = SessionLoop::new(agent(&dir, &[]).incoming.clone(), shared.clone()).unwrap();
    let open = || {
        let (here, _there) = std::os::unix::net::UnixStream::pair().unwrap();
        shared.stream_transport().unwrap().streams.open("x", Socket::new(here).unwrap())
    };
    assert!(open().is_ok());
    session_loop.execute(Action::Discard);
    assert!(open().is_err(), "they are not reset");
    session_loop.worker.finish();
}

#[test]
fn first_record_names_the_mode_that_was_offered() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let (session, peer) = (SessionId([1; 16]), ([127, 0, 0, 1], 1).into());
    let identity = Identity::new(session, Token([2; 32]), &crate::security::Security::insecure());
    let incoming = Arc::new(Incoming::new(identity, 1, peer, channel().0, Door::closed()));
    let mut session_loop = SessionLoop::new(agent.incoming.clone(), incoming).unwrap();
    let mode = Ok(Mode::Handover { regions: Vec::new() });
    let message = Message::Offer { guest: "g".into(), description: "{}".into(), mode };
    session_loop.handle(Event::Received { path: 0, sequence: 1, message });
    session_loop.act();
    let record = agent.journal.get(session).unwrap().unwrap();
    assert_eq!((record.guest.as_str(), record.mode()), ("g", Some(ModeTag::Handover)));
    session_loop.worker.finish();
}
