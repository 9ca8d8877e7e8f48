//! Which peers are accepted, and what the others get as an answer.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linerate_net::tcp::Stream;
use linerate_net::tcp::connect::ConnectError;
use linerate_net::tcp::listen::ListenOptions;
use linerate_net::tls::TlsError;
use rustls::{AlertDescription, CertificateError};

use crate::common::*;
use crate::identity::*;
use crate::{dial, listening, pair, tcp_options};

fn tls_error(outcome: Result<Stream, ConnectError>) -> TlsError {
    match outcome {
        Err(ConnectError::Tls { source, .. }) => source,
        other => panic!("{other:?}"),
    }
}

/// Two ends of a TCP connection, without any handshake.
fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

#[test]
fn both_ends_know_each_other_and_bytes_go_both_ways() {
    let authority = Authority::new("cluster");
    let (source, destination) = (Parts::of(&authority), Parts::of(&authority));
    let (near, far) = pair(&source.tls(), &destination.tls());
    assert_eq!(near.peer_certificates(), destination.server.0);
    assert_eq!(far.peer_certificates(), source.client.as_ref().unwrap().0);
    for end in [&near, &far] {
        assert!(end.is_encrypted());
        assert!(end.cipher().unwrap().starts_with("TLS13_"), "{:?}", end.cipher());
    }
    for (from, to) in [(&near, &far), (&far, &near)] {
        from.send_all(b"placed writes", soon()).unwrap();
        let mut got = [0; 13];
        to.receive_exact(&mut got, soon()).unwrap();
        assert_eq!(&got, b"placed writes");
    }
}

#[test]
fn connections_of_a_peer_that_is_not_wanted_any_more_are_ended_at_either_end() {
    let authority = Authority::new("cluster");
    let (here, unwanted, kept) = (Parts::of(&authority), Parts::of(&authority), Parts::of(&authority));
    let tls = here.tls();
    // Opened there, opened here, and opened here with other configurations of the same host.
    let pinned = tls.with_configurations(here.client_config(), here.server_config());
    let ((there, ours), (opened, far)) = (pair(&unwanted.tls(), &tls), pair(&tls, &unwanted.tls()));
    let (of_session, far_too) = pair(&pinned, &unwanted.tls());
    let (stays, stays_far) = pair(&tls, &kept.tls());
    let is_unwanted = |chain: &[_], opened_here: bool| {
        let shown = if opened_here { &unwanted.server } else { unwanted.client.as_ref().unwrap() };
        chain == shown.0
    };
    // A reader that waits is woken.
    let waits = std::thread::spawn(move || ours.receive_exact(&mut [0; 1], soon()).is_err());
    assert_eq!(tls.end_connections(is_unwanted), 3);
    assert!(waits.join().unwrap());
    for end in [&there, &opened, &far, &of_session, &far_too] {
        assert!(end.receive_exact(&mut [0; 1], soon()).is_err());
    }
    stays.send_all(b"x", soon()).unwrap();
    stays_far.receive_exact(&mut [0; 1], soon()).unwrap();
    drop((there, opened, far, of_session, far_too));
    assert_eq!(tls.end_connections(is_unwanted), 0, "they are not kept");
}

#[test]
fn a_stranger_without_certificate_is_refused_and_gets_an_alert() {
    let authority = Authority::new("cluster");
    let (listener, streams) = listening(Some(&Parts::of(&authority).tls()));
    let stranger = Parts { client: None, ..Parts::of(&authority) };
    let error = tls_error(dial(&listener, Some(&stranger.tls())));
    assert!(matches!(error, TlsError::RefusedByPeer(AlertDescription::CertificateRequired)), "{error}");
    drop(listener);
    assert!(streams.try_recv().is_err(), "no connection was accepted");
}

#[test]
fn a_server_without_a_known_authority_is_refused() {
    let ours = Authority::new("cluster");
    for (name, reason) in
        [("other", CertificateError::UnknownIssuer), ("cluster", CertificateError::BadSignature)]
    {
        let (listener, _streams) = listening(Some(&Parts::of(&Authority::new(name)).tls()));
        let error = tls_error(dial(&listener, Some(&Parts::of(&ours).tls())));
        assert!(matches!(&error, TlsError::PeerRefused(refused) if *refused == reason), "{error}");
    }
}

#[test]
fn a_client_without_a_known_authority_is_refused_and_gets_an_alert() {
    let ours = Authority::new("cluster");
    let (listener, streams) = listening(Some(&Parts::of(&ours).tls()));
    for (name, expected) in
        [("other", AlertDescription::UnknownCA), ("cluster", AlertDescription::DecryptError)]
    {
        let stranger = Parts { client: Some(Authority::new(name).host()), ..Parts::of(&ours) };
        let error = tls_error(dial(&listener, Some(&stranger.tls())));
        assert!(matches!(&error, TlsError::RefusedByPeer(alert) if *alert == expected), "{error}");
    }
    drop(listener);
    assert!(streams.try_recv().is_err(), "no connection was accepted");
}

#[test]
fn plain_text_and_tls_do_not_meet_and_each_end_reports_why() {
    let tls = Parts::of(&Authority::new("cluster")).tls();
    let (listener, _streams) = listening(Some(&tls));
    assert!(matches!(tls_error(dial(&listener, None)), TlsError::PeerExpectsTls));
    let (listener, _streams) = listening(None);
    assert!(matches!(tls_error(dial(&listener, Some(&tls))), TlsError::PeerExpectsPlain));
    let (mut plain, port) = sockets();
    plain.write_all(b"G").unwrap();
    let error = Stream::new(port).unwrap().accept_tls(&tls, soon()).unwrap_err();
    assert!(matches!(error, TlsError::PeerSpokePlain), "{error}");
    let mut alert = Vec::new();
    plain.read_to_end(&mut alert).unwrap();
    assert_eq!(alert, [21, 3, 3, 0, 2, 2, 10], "unexpected_message");
}

#[test]
fn another_application_protocol_is_refused() {
    let authority = Authority::new("cluster");
    let ours = Parts::of(&authority).tls();
    for alpn in [vec![b"linerate/99".to_vec()], vec![]] {
        let other = Parts { alpn, ..Parts::of(&authority) }.tls();
        let (listener, _streams) = listening(Some(&other));
        assert!(matches!(tls_error(dial(&listener, Some(&ours))), TlsError::Alpn));
        let (listener, streams) = listening(Some(&ours));
        assert!(dial(&listener, Some(&other)).is_err());
        drop(listener);
        assert!(streams.try_recv().is_err());
    }
}

#[test]
fn a_handshake_that_never_ends_is_given_up() {
    let tls = Parts::of(&Authority::new("cluster")).tls();
    let (mut slow, port) = sockets();
    let over = Arc::new(AtomicBool::new(false));
    let until = Arc::clone(&over);
    let trickling = std::thread::spawn(move || {
        // The beginning of a record of 512 bytes, then a byte now and then.
        let mut bytes = vec![22, 3, 1, 2, 0, 1, 0, 1, 252];
        let end = soon();
        while !until.load(Ordering::SeqCst) && Instant::now() < end && slow.write_all(&bytes).is_ok() {
            bytes = vec![0];
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let begun = Instant::now();
    let deadline = begun + Duration::from_millis(400);
    let error = Stream::new(port).unwrap().accept_tls(&tls, deadline).unwrap_err();
    over.store(true, Ordering::SeqCst);
    trickling.join().unwrap();
    assert!(matches!(error, TlsError::Timeout { .. }), "{error}");
    assert!(Instant::now() >= deadline && begun.elapsed() < WAIT);
}

#[test]
fn a_handshake_of_too_many_bytes_is_given_up() {
    let tls = Parts::of(&Authority::new("cluster")).tls();
    let (mut talker, port) = sockets();
    let talking = std::thread::spawn(move || {
        // A message of 65535 bytes in records of 16 KiB, which never is complete: each record has a header.
        let mut message = vec![1, 0, 255, 255];
        message.resize(65_535, 0);
        for part in message.chunks(16 << 10) {
            let length = u16::try_from(part.len()).unwrap().to_be_bytes();
            let sent = talker.write_all(&[&[22, 3, 3], &length[..], part].concat());
            if sent.is_err() {
                return;
            }
        }
        let _ = talker.read(&mut [0]);
    });
    let error = Stream::new(port).unwrap().accept_tls(&tls, soon()).unwrap_err();
    talking.join().unwrap();
    assert!(matches!(error, TlsError::TooLong { .. }), "{error}");
}

#[test]
fn a_silent_client_takes_a_slot_for_a_time_only() {
    let tls = Parts::of(&Authority::new("cluster")).tls();
    let options = ListenOptions {
        tcp: tcp_options(Some(&tls)),
        handshake_wait: Duration::from_millis(300),
        handshakes_max: 1,
        ..ListenOptions::default()
    };
    let (listener, streams) = listener_with(options);
    let silent: Vec<TcpStream> =
        (0..3).map(|_| TcpStream::connect(listener.addresses()[0]).unwrap()).collect();
    // A host that is slow itself may lose its own slot to the short wait.
    until("an honest peer gets in", || dial(&listener, Some(&tls)).is_ok());
    assert!(streams.recv_timeout(WAIT).unwrap().is_encrypted());
    drop(silent);
}
