//! Many records at a time: where they may be cut, what lands, and what does not when one of them is damaged.

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use linerate_core::Run;
use linerate_net::channel::{AckReader, ChannelEnd, ChannelError, Sender, WriteOrder};
use linerate_net::region::Region;
use linerate_net::region::heap::HeapRegion;
use linerate_net::tcp::Stream;
use linerate_net::tcp::send::{StreamAcks, StreamSender};
use linerate_net::tls::TlsError;
use linerate_wire::frame::encode_write_without_checksum;
use rustls::ClientConnection;
use rustls::pki_types::ServerName;

use crate::common::forward::forward;
use crate::common::*;
use crate::identity::*;
use crate::pair;

/// A source whose records the test makes, and sends as it likes.
struct Source {
    connection: ClientConnection,
    socket: TcpStream,
}

impl Source {
    fn connected() -> (Source, Stream) {
        let parts = Parts::of(&Authority::new("cluster"));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = Stream::new(listener.accept().unwrap().0).unwrap();
        let tls = parts.tls();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let mut connection = ClientConnection::new(Arc::new(parts.client_config()), name).unwrap();
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| far.accept_tls(&tls, soon()).unwrap());
            while connection.is_handshaking() || connection.wants_write() {
                connection.complete_io(&mut socket).unwrap();
            }
            (Source { connection, socket }, accepting.join().unwrap())
        })
    }

    /// One record for each piece.
    fn records<'a>(&mut self, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
        let record = |piece: &[u8]| {
            self.connection.writer().write_all(piece).unwrap();
            self.made()
        };
        pieces.into_iter().map(record).collect()
    }

    fn made(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.connection.wants_write() {
            self.connection.write_tls(&mut bytes).unwrap();
        }
        bytes
    }

    /// The record that says the end.
    fn end(&mut self) -> Vec<u8> {
        self.connection.send_close_notify();
        self.made()
    }
}

/// A frame that writes this from an offset on.
fn frame(sequence: u64, offset: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let data = [run(offset, payload.len() as u64)];
    encode_write_without_checksum(&mut bytes, sequence, 0, &data, &[]).unwrap();
    bytes.extend_from_slice(payload);
    bytes
}

/// Sizes that follow no rule and are always the same.
fn sizes(limit: usize) -> impl FnMut() -> usize {
    let mut state = 1u32;
    move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        1 + (state >> 8) as usize % limit
    }
}

/// Cuts bytes into pieces of the sizes that are named one after the other.
fn cut(mut bytes: &[u8], mut size: impl FnMut() -> usize) -> Vec<&[u8]> {
    let mut pieces = Vec::new();
    while !bytes.is_empty() {
        let (piece, rest) = bytes.split_at(size().min(bytes.len()));
        pieces.push(piece);
        bytes = rest;
    }
    pieces
}

#[test]
fn records_may_be_cut_anywhere() {
    let (mut source, far) = Source::connected();
    let pieces: [&[u8]; 5] = [&[1], &[2; 40], &[3; 3], &[4; 17], &[5; 2]];
    let (all, mut cut) = (pieces.concat(), 0);
    loop {
        let records = source.records(pieces);
        let bytes = records.concat();
        let Some((first, rest)) = bytes.split_at_checked(cut) else { break };
        let (mut end, mut whole) = (0, 0);
        for (record, piece) in records.iter().zip(pieces) {
            end += record.len();
            whole += if end <= cut { piece.len() } else { 0 };
        }
        let mut got = vec![0; all.len()];
        source.socket.write_all(first).unwrap();
        far.receive_exact(&mut got[..whole], soon()).unwrap();
        let none = far.receive_exact(&mut [0], Instant::now()).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::TimedOut, "{cut} bytes are no more records: {none}");
        source.socket.write_all(rest).unwrap();
        far.receive_exact(&mut got[whole..], soon()).unwrap();
        assert!(got == all, "cut after {cut} bytes");
        cut += 1;
    }
    assert!(cut > 170, "only {cut} places");
}

#[test]
fn frames_land_whatever_their_records_and_their_pieces_on_the_way_are() {
    // Records that are small, of any size, and full; the last two are more than is read, or written, at once.
    for record_bytes in [100, 16 << 10, usize::MAX] {
        let size = if record_bytes == 100 { 200_000 } else { 3_000_000 };
        let (mut source, far) = Source::connected();
        let sent = content(size);
        let (landed, regions) = heap(vec![0xee; size]);
        let destination = Destination::serve(far, regions);
        let (mut frame_size, mut record_size, mut offset) =
            (sizes(600_000), sizes(record_bytes.min(16 << 10)), 0);
        let mut bytes = Vec::new();
        for (number, payload) in (1..).zip(cut(&sent, &mut frame_size)) {
            bytes.extend(frame(number, offset, payload));
            offset += payload.len() as u64;
        }
        let full = || 16 << 10;
        let pieces =
            if record_bytes == usize::MAX { cut(&bytes, full) } else { cut(&bytes, &mut record_size) };
        let mut wire = source.records(pieces).concat();
        wire.extend(source.end());
        for piece in cut(&wire, sizes(400_000)) {
            source.socket.write_all(piece).unwrap();
        }
        assert!(matches!(destination.end(), ChannelEnd::Closed));
        assert!(landed.snapshot() == sent, "records of {record_bytes} bytes");
    }
}

#[test]
fn nothing_of_a_damaged_record_or_behind_it_lands() {
    const RECORDS: usize = 40;
    const BYTES: usize = 1 << 10;
    // In the content, in the tag, in the length, and in the type.
    for at in [5, 600, 5 + BYTES + 3, 3, 0] {
        for damaged in [0, 1, 7, 8, 20, RECORDS - 1] {
            let (mut source, far) = Source::connected();
            let (landed, regions) = heap(vec![0xee; RECORDS * BYTES]);
            let sent = vec![0x55; RECORDS * BYTES];
            let bytes = frame(1, 0, &sent);
            let (head, payload) = bytes.split_at(bytes.len() - sent.len());
            let mut wire = source.records([head]).concat();
            for (number, mut record) in (0..).zip(source.records(payload.chunks(BYTES))) {
                record[at] ^= if number == damaged { 0x80 } else { 0 };
                wire.extend(record);
            }
            source.socket.write_all(&wire).unwrap();
            let end = Destination::serve(far, regions).end();
            let ChannelEnd::Failed(ChannelError::Socket(error)) = &end else { panic!("{end:?}") };
            assert!(matches!(TlsError::of(error), Some(TlsError::Damaged(_))), "byte {at}: {error}");
            let landed = landed.snapshot();
            let (before, behind) = landed.split_at(damaged * BYTES);
            assert!(before.iter().all(|byte| *byte == 0x55), "before record {damaged}");
            assert!(behind.iter().all(|byte| *byte == 0xee), "from record {damaged} on");
        }
    }
}

/// Memory that counts how often it is copied from and to.
struct Counted(HeapRegion, AtomicUsize);

impl Counted {
    fn new(bytes: Vec<u8>) -> Arc<Counted> {
        Arc::new(Counted(HeapRegion::from(bytes), AtomicUsize::new(0)))
    }

    fn copies(&self) -> usize {
        self.1.load(Ordering::SeqCst)
    }
}

impl Region for Counted {
    forward!(size checksum_after split_zero send receive clear populate);

    fn read(&self, run: Run, to: &mut [u8]) -> io::Result<()> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.read(run, to)
    }
    fn write(&self, run: Run, from: &[u8]) -> io::Result<()> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.write(run, from)
    }
}

#[test]
fn many_records_are_copied_from_and_to_memory_at_once() {
    let (mut source, far) = Source::connected();
    let sent = content(40 << 10);
    let landed = Counted::new(vec![0xee; sent.len()]);
    let bytes = frame(1, 0, &sent);
    // All is there before anything is read.
    let mut wire = source.records(bytes.chunks(1 << 10)).concat();
    wire.extend(source.end());
    source.socket.write_all(&wire).unwrap();
    assert!(matches!(Destination::serve(far, table(landed.clone())).end(), ChannelEnd::Closed));
    assert!(landed.0.snapshot() == sent);
    assert!(landed.copies() <= 4, "{} copies of {} bytes", landed.copies(), sent.len());

    let tls = Parts::of(&Authority::new("cluster")).tls();
    let (near, far) = pair(&tls, &tls);
    let source = Counted::new(content(1 << 20));
    let (landed, regions) = heap(vec![0xee; 1 << 20]);
    let destination = Destination::serve(far, regions);
    let data = [run(0, 1 << 20)];
    let order = WriteOrder { sequence: 1, region_id: 0, region: source.as_ref(), data: &data, zero: &[] };
    StreamSender::new(near.clone()).write(&order).unwrap();
    assert_eq!(StreamAcks::new(near).next(WAIT).unwrap().unwrap().through, 1);
    assert!(landed.snapshot() == source.0.snapshot());
    assert!(source.copies() <= 16, "{} copies of 64 records", source.copies());
    drop(destination);
}
