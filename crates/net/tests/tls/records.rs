//! What happens to records on the way, and how a connection ends.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use linerate_net::tcp::Stream;
use linerate_net::tls::{Tls, TlsError};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig, ClientConnection, ServerConnection};

use crate::common::*;
use crate::identity::*;
use crate::relay::*;
use crate::{pair, pair_with_buffers};

fn tls() -> Tls {
    Parts::of(&Authority::new("cluster")).tls()
}

fn tls_error(error: &io::Error) -> &TlsError {
    TlsError::of(error).unwrap_or_else(|| panic!("{error}"))
}

fn receive(stream: &Stream, bytes: usize) -> io::Result<Vec<u8>> {
    let mut got = vec![0; bytes];
    stream.receive_exact(&mut got, soon()).map(|()| got)
}

#[test]
fn a_connection_that_is_cut_is_lost_and_not_ended() {
    // In a record, in its header, and between two records.
    for bytes in [700, 3, 0] {
        let tls = tls();
        let relayed = relayed(&tls, &tls, RelayFault::Cut(bytes));
        relayed.source.send_all(&[1; 5000], soon()).unwrap();
        assert_eq!(receive(&relayed.destination, 5000).unwrap(), [1; 5000]);
        relayed.arm();
        relayed.source.send_all(&[2; 5000], soon()).unwrap();
        let error = receive(&relayed.destination, 1).unwrap_err();
        assert!(matches!(tls_error(&error), TlsError::Truncated), "{error}");
        relayed.join();
    }
}

#[test]
fn a_connection_that_is_closed_ends() {
    let tls = tls();
    let (near, far) = pair(&tls, &tls);
    near.send_all(&[3; 100], soon()).unwrap();
    near.closer().close();
    assert_eq!(receive(&far, 100).unwrap(), [3; 100]);
    let end = receive(&far, 1).unwrap_err();
    assert!(end.kind() == io::ErrorKind::UnexpectedEof && TlsError::of(&end).is_none(), "{end}");
    let error = near.send_all(&[4], soon()).unwrap_err();
    assert!(matches!(tls_error(&error), TlsError::ClosedHere), "{error}");
    let end = receive(&near, 1).unwrap_err();
    assert!(end.kind() == io::ErrorKind::UnexpectedEof && TlsError::of(&end).is_none(), "no loss: {end}");
}

#[test]
fn a_changed_byte_ends_the_connection_for_both() {
    // In the content, in the tag, in the record's length (shorter, and longer than any record), and in its type.
    for (at, bits) in [(1000, 1), (5 + 5000 + 10, 0x80), (3, 0x10), (3, 0x80), (0, 0x10)] {
        let tls = tls();
        let relayed = relayed(&tls, &tls, RelayFault::Change(at, bits));
        relayed.arm();
        let (near, far) = (&relayed.source, &relayed.destination);
        near.send_all(&[1; 5000], soon()).unwrap();
        for _ in 0..2 {
            let error = receive(far, 1).unwrap_err();
            assert!(matches!(tls_error(&error), TlsError::Damaged(_)), "byte {at}: {error}");
            let error = far.send_all(&[1], soon()).unwrap_err();
            assert!(matches!(tls_error(&error), TlsError::Damaged(_)), "byte {at}: {error}");
        }
        let error = receive(near, 1).unwrap_err();
        let cause = tls_error(&error);
        assert!(
            matches!(cause, TlsError::Alert(AlertDescription::BadRecordMac | AlertDescription::DecodeError)),
            "byte {at}: {cause}"
        );
        relayed.join();
    }
}

#[test]
fn nothing_that_was_sent_stays_behind() {
    let tls = tls();
    // The kernels take a part of what is made into records at a time.
    let (near, far) = pair_with_buffers(&tls, 16 << 10);
    let sent = content(700_000);
    std::thread::scope(|scope| {
        scope.spawn(|| near.send_all(&sent, soon()).unwrap());
        assert!(receive(&far, sent.len()).unwrap() == sent);
    });
}

#[test]
fn keys_are_changed_when_they_have_made_enough_records() {
    let parts = Parts { provider: aes_128_gcm(5), ..Parts::of(&Authority::new("cluster")) };
    let (near, far) = pair(&parts.tls(), &parts.tls());
    assert_eq!(near.cipher(), Some("TLS13_AES_128_GCM_SHA256"));
    for round in 0..60u8 {
        // More than one record, and both ends at the same time.
        let sent = vec![round; 40_000];
        std::thread::scope(|scope| {
            for (from, to) in [(&near, &far), (&far, &near)] {
                scope.spawn(|| from.send_all(&sent, soon()).unwrap());
                scope.spawn(|| assert!(receive(to, sent.len()).unwrap() == sent));
            }
        });
    }
}

#[test]
fn one_way_traffic_changes_keys_too() {
    let parts = Parts { provider: aes_128_gcm(5), ..Parts::of(&Authority::new("cluster")) };
    let (near, far) = pair(&parts.tls(), &parts.tls());
    let sent = content(8 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| near.send_all(&sent, soon()).unwrap());
        assert!(receive(&far, sent.len()).unwrap() == sent);
    });
    // The answer to a change of keys goes before what is sent next.
    far.send_all(&sent[..1000], soon()).unwrap();
    assert!(receive(&near, 1000).unwrap() == sent[..1000]);
}

#[test]
fn readers_and_writers_of_one_connection_do_not_wait_for_each_other() {
    let tls = tls();
    let (near, far) = pair(&tls, &tls);
    let sent = content(24 << 20);
    // Far more than both kernels hold: a reader that waited for its writer first would wait for ever.
    std::thread::scope(|scope| {
        for (from, to) in [(&near, &far), (&far, &near)] {
            scope.spawn(|| from.send_all(&sent, soon()).unwrap());
            scope.spawn(|| assert!(receive(to, sent.len()).unwrap() == sent));
        }
    });
}

#[test]
fn a_configuration_with_small_records_and_tickets_is_overruled() {
    let parts = Parts::of(&Authority::new("cluster"));
    let (mut client, mut server) = (parts.client_config(), parts.server_config());
    (client.max_fragment_size, server.max_fragment_size) = (Some(100), Some(100));
    server.send_tls13_tickets = 2;
    server.ticketer = aws_lc_rs::Ticketer::new().unwrap();
    let tls = Tls::new(client, server);
    let (near, far) = pair(&tls, &tls);
    near.send_all(&[1; 40_000], soon()).unwrap();
    assert_eq!(receive(&far, 40_000).unwrap(), [1; 40_000]);
    assert_eq!(tickets_of(&tls, parts.client_config()), 0);
}

/// Tickets that a client gets from a server with this configuration.
fn tickets_of(tls: &Tls, client: ClientConfig) -> u32 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let other = Stream::new(listener.accept().unwrap().0).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || other.accept_tls(tls, soon()).unwrap().send_all(b"!", soon()).unwrap());
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let mut connection = ClientConnection::new(Arc::new(client), name).unwrap();
        rustls::Stream::new(&mut connection, &mut socket).read_exact(&mut [0]).unwrap();
        connection.tls13_tickets_received()
    })
}

/// A server that speaks TLS by itself, after the handshake, with the records that it would send next.
fn server_with_tickets(parts: &Parts, socket: &mut TcpStream) -> Vec<Vec<u8>> {
    let mut config = parts.server_config();
    config.send_tls13_tickets = 1;
    config.max_fragment_size = Some(48);
    let mut connection = ServerConnection::new(Arc::new(config)).unwrap();
    while connection.is_handshaking() {
        while connection.wants_write() {
            connection.write_tls(socket).unwrap();
        }
        connection.read_tls(socket).unwrap();
        connection.process_new_packets().unwrap();
    }
    let mut bytes = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut bytes).unwrap();
    }
    let mut rest = bytes.as_slice();
    std::iter::from_fn(|| next_record(&mut rest)).collect()
}

#[test]
fn a_part_of_a_handshake_message_after_the_handshake_ends_the_connection() {
    let parts = Parts::of(&Authority::new("cluster"));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut server = listener.accept().unwrap().0;
    let tls = parts.tls();
    let (near, records) = std::thread::scope(|scope| {
        let serving = scope.spawn(|| server_with_tickets(&parts, &mut server));
        let near = Stream::new(socket).unwrap().begin_tls(&tls, soon()).unwrap();
        (near, serving.join().unwrap())
    });
    assert!(records.len() > 1, "a ticket in one record");
    near.send_all(b"before", soon()).unwrap();
    server.write_all(&records[0]).unwrap();
    let error = receive(&near, 1).unwrap_err();
    assert!(matches!(tls_error(&error), TlsError::Fragmented), "{error}");
    // The rest of the message changes nothing, and neither does anything else.
    server.write_all(&records[1..].concat()).unwrap();
    for _ in 0..2 {
        let error = near.send_all(b"after", soon()).unwrap_err();
        assert!(matches!(tls_error(&error), TlsError::Fragmented), "{error}");
        assert!(receive(&near, 1).is_err());
        near.closer().close();
    }
}
