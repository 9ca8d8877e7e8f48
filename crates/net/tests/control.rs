//! Control connections, and the handshake before any connection.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use common::*;
use linerate_core::{Code, Fault, Message, Outcome, Side, Step};
use linerate_net::control::{ControlError, ControlEvent, ControlOptions, ControlPath};
use linerate_net::tcp::connect::{ConnectError, connect, query};
use linerate_net::tcp::listen::{ListenOptions, Listener};
use linerate_wire::frame::{Role, encode_control};

fn with_a_long_limit() -> ControlOptions {
    ControlOptions { silence_max: WAIT, ..ControlOptions::default() }
}

/// The next event that is not a keepalive.
fn next(events: &mpsc::Receiver<ControlEvent>) -> ControlEvent {
    loop {
        match events.recv_timeout(WAIT).unwrap() {
            ControlEvent::Keepalive { .. } => {}
            event => return event,
        }
    }
}

#[test]
fn messages_and_acknowledgements_arrive_with_their_path() {
    let (one, other) = tcp_pair();
    let (sent, events) = mpsc::sync_channel(64);
    let (back, answers) = mpsc::sync_channel(64);
    let source = ControlPath::start(4, one, with_a_long_limit(), back).unwrap();
    let destination = ControlPath::start(5, other, with_a_long_limit(), sent).unwrap();
    let mut frame = Vec::new();
    let message = Message::RoundMark { round: 2, bytes: 77 };
    encode_control(&mut frame, 9, &message).unwrap();
    source.sender().send(&frame).unwrap();
    match next(&events) {
        ControlEvent::Message { path: 5, sequence: 9, message: got, .. } => assert_eq!(got, message),
        other => panic!("{other:?}"),
    }
    destination.sender().acknowledge(9).unwrap();
    assert!(matches!(next(&answers), ControlEvent::Acknowledged { path: 4, through: 9 }));
    drop(source);
    assert!(matches!(next(&events), ControlEvent::Lost { path: 5, error: ControlError::Closed }));
    drop(destination);
    assert!(
        answers.iter().all(|event| matches!(event, ControlEvent::Keepalive { .. })),
        "own end is no loss"
    );
}

#[test]
fn an_idle_path_is_kept_alive() {
    let (one, other) = tcp_pair();
    let (sent, events) = mpsc::sync_channel(64);
    let (unread_events, _own_events) = mpsc::sync_channel(64);
    let _source = ControlPath::start(0, one, with_a_long_limit(), unread_events).unwrap();
    let _destination = ControlPath::start(1, other, with_a_long_limit(), sent).unwrap();
    for _ in 0..5 {
        assert!(matches!(events.recv_timeout(WAIT).unwrap(), ControlEvent::Keepalive { path: 1 }));
    }
}

#[test]
fn silence_loses_a_path_once() {
    let (one, _mute) = tcp_pair();
    let (sent, events) = mpsc::sync_channel(64);
    let _path = ControlPath::start(3, one, ControlOptions::default(), sent).unwrap();
    assert!(matches!(next(&events), ControlEvent::Lost { path: 3, error: ControlError::Silent { .. } }));
    assert!(events.recv_timeout(Duration::from_millis(200)).is_err());
}

/// Opening a link's channels takes longer than the peer bears silence: far hosts, slow adapters.
#[test]
fn a_path_that_is_not_yet_listened_to_is_not_lost_and_what_came_meanwhile_is_received() {
    let (one, other) = tcp_pair();
    let (sent, events) = mpsc::sync_channel(64);
    let (back, answers) = mpsc::sync_channel(64);
    let options = ControlOptions { silence_max: Duration::from_secs(2), ..ControlOptions::default() };
    let mut opening = ControlPath::keep(one, options).unwrap();
    let destination = ControlPath::start(5, other, options, sent).unwrap();
    destination.sender().acknowledge(7).unwrap();
    std::thread::sleep(2 * options.silence_max);
    let lost = events.try_iter().find(|event| matches!(event, ControlEvent::Lost { .. }));
    assert!(lost.is_none(), "{lost:?}");
    opening.listen(4, back).unwrap();
    assert!(matches!(next(&answers), ControlEvent::Acknowledged { path: 4, through: 7 }));
}

#[test]
fn garbage_closes_a_control_connection() {
    let (one, other) = tcp_pair();
    let (sent, events) = mpsc::sync_channel(64);
    let _path = ControlPath::start(3, one, with_a_long_limit(), sent).unwrap();
    rustix::net::send(other.as_fd(), &[0x5a; 64], rustix::net::SendFlags::empty()).unwrap();
    assert!(matches!(next(&events), ControlEvent::Lost { error: ControlError::Decode(_), .. }));
}

#[test]
fn a_refusal_and_an_outcome_reach_the_source() {
    let fault = Fault::new(Code::SessionUnknown, Step::Connect, Side::Destination, "nobody here");
    let refusal = fault.clone();
    let listener =
        Listener::start(&["127.0.0.1:0".parse().unwrap()], ListenOptions::default(), move |accepted| {
            match accepted.hello.role {
                Role::Query => accepted.outcome(Outcome::Committed),
                _ => accepted.refuse(refusal.clone()),
            }
            .unwrap();
        })
        .unwrap();
    let route = route(listener.addresses()[0]);
    match connect(&route, &hello(Role::Data), &patient()) {
        Err(ConnectError::Refused { fault: got, .. }) => assert_eq!(got, fault),
        other => panic!("{other:?}"),
    }
    assert_eq!(query(&route, &hello(Role::Query), &patient()).unwrap(), Outcome::Committed);
}

#[test]
fn slow_handshakes_end_and_do_not_keep_others_out() {
    let options = ListenOptions {
        handshake_wait: Duration::from_millis(300),
        handshakes_max: 2,
        ..ListenOptions::default()
    };
    let listener = Listener::start(&["127.0.0.1:0".parse().unwrap()], options, |accepted| {
        drop(accepted.welcome(welcome()));
    })
    .unwrap();
    let address = listener.addresses()[0];
    let mut slow: Vec<TcpStream> = (0..2).map(|_| TcpStream::connect(address).unwrap()).collect();
    slow.iter_mut().for_each(|stream| stream.write_all(&[1; 7]).unwrap());
    // A host that is slow itself may lose its own slot to the short wait.
    until("a slot is free", || connect(&route(address), &hello(Role::Data), &patient()).is_ok());
    for mut stream in slow {
        stream.set_read_timeout(Some(WAIT)).unwrap();
        // The end, or a reset because bytes of ours were never read.
        assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0);
    }
}

/// The addresses are for documentation: no host has them.
#[test]
fn an_address_that_no_port_has_yet_is_listened_on() {
    let has_ipv6 = Path::new("/proc/net/if_inet6").exists();
    let addresses: [SocketAddr; 2] = ["192.0.2.77:0", "[2001:db8::77]:0"].map(|text| text.parse().unwrap());
    for address in addresses.into_iter().filter(|address| address.is_ipv4() || has_ipv6) {
        let options = ListenOptions { may_be_absent: true, ..ListenOptions::default() };
        let listener = Listener::start(&[address], options, drop).unwrap();
        assert_eq!(listener.addresses()[0].ip(), address.ip());
    }
}

#[test]
fn a_listener_that_is_dropped_lets_its_address_go() {
    let (listener, _streams) = listener();
    let address = listener.addresses()[0];
    drop(listener);
    assert!(matches!(
        connect(&route(address), &hello(Role::Data), &patient()),
        Err(ConnectError::Connect { .. })
    ));
}
