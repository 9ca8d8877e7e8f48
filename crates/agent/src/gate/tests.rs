//! Who waits, what passes and what does not.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::*;

/// Only a hang meets it.
const LONG: Duration = Duration::from_secs(60);
/// Long enough for what is not held back to arrive.
const SHORT: Duration = Duration::from_millis(200);

/// A gate whose connections come out here.
fn gate(dir: &tempfile::TempDir) -> (Arc<StreamGate>, Receiver<UnixStream>) {
    gate_with_room(dir, HELD_BYTES_MAX)
}

fn gate_with_room(dir: &tempfile::TempDir, held_max: u64) -> (Arc<StreamGate>, Receiver<UnixStream>) {
    let (out, outs) = channel();
    let out = Mutex::new(out);
    let connect = move |socket: UnixStream| {
        let _ = socket.set_read_timeout(Some(SHORT));
        let _ = out.lock().send(socket);
        Ok(())
    };
    let path = dir.path().join("gate.sock");
    (Arc::new(StreamGate::with_room(&path, Box::new(connect), held_max).unwrap()), outs)
}

/// A hypervisor that connects, in a thread because it waits.
fn hypervisor(gate: &StreamGate) -> std::thread::JoinHandle<io::Result<UnixStream>> {
    let path = gate.path.clone();
    std::thread::spawn(move || UnixStream::connect(path))
}

fn read(socket: &mut UnixStream, bytes: usize) -> Vec<u8> {
    let mut got = vec![0; bytes];
    socket.set_read_timeout(Some(LONG)).unwrap();
    socket.read_exact(&mut got).unwrap();
    socket.set_read_timeout(Some(SHORT)).unwrap();
    got
}

fn says_nothing(socket: &mut UnixStream) -> bool {
    socket.read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

fn wait_read(gate: &StreamGate, bytes: u64) {
    while gate.mark() != [bytes] {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_connection_waits_until_it_is_let_in_and_is_refused_when_the_gate_is_shut() {
    let dir = tempfile::tempdir().unwrap();
    let (gate, outs) = gate(&dir);
    let waits = hypervisor(&gate);
    std::thread::sleep(SHORT);
    assert!(!waits.is_finished(), "nothing makes it wait");
    gate.admit().unwrap();
    let _connected = waits.join().unwrap().unwrap();
    outs.recv_timeout(LONG).unwrap();
    assert!(gate.admit().is_err(), "it is opened once");

    let dir = tempfile::tempdir().unwrap();
    let (gate, outs) = self::gate(&dir);
    let waits = hypervisor(&gate);
    std::thread::sleep(SHORT);
    gate.shut("enough");
    assert!(waits.join().unwrap().is_err());
    assert!(gate.admit().is_err());
    assert!(outs.try_recv().is_err());
    assert_eq!(gate.why_shut().as_deref(), Some("enough"));
    let refused = UnixStream::connect(&gate.path).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "its name is nobody else's to take");
    let path = gate.path.clone();
    StreamGates::default().forget(&gate);
    assert!(!path.exists());
}

#[test]
fn nothing_passes_but_what_came_while_the_guest_ran_until_all_is_let_through() {
    let dir = tempfile::tempdir().unwrap();
    let (gate, outs) = gate(&dir);
    let waits = hypervisor(&gate);
    gate.admit().unwrap();
    let mut hypervisor = waits.join().unwrap().unwrap();
    let mut out = outs.recv_timeout(LONG).unwrap();
    hypervisor.write_all(b"set-up").unwrap();
    wait_read(&gate, 6);
    assert!(says_nothing(&mut out), "a byte went through early");
    let mark = gate.mark();
    hypervisor.write_all(b"device state").unwrap();
    wait_read(&gate, 18);
    gate.pass(&mark);
    assert_eq!(read(&mut out, 6), b"set-up");
    assert!(says_nothing(&mut out), "what came after the mark went through");
    // The other side's word always comes back.
    out.write_all(b"ack").unwrap();
    assert_eq!(read(&mut hypervisor, 3), b"ack");
    // Neither an older mark nor the end of the connection lets anything through.
    gate.pass(&[0]);
    hypervisor.shutdown(Shutdown::Write).unwrap();
    assert!(says_nothing(&mut out));
    gate.release();
    assert_eq!(read(&mut out, 12), b"device state");
    assert_eq!(out.read(&mut [0]).unwrap(), 0, "and its end");
}

#[test]
fn what_is_held_when_the_gate_is_shut_never_goes_through() {
    let dir = tempfile::tempdir().unwrap();
    let (gate, outs) = gate(&dir);
    let waits = hypervisor(&gate);
    gate.admit().unwrap();
    let mut hypervisor = waits.join().unwrap().unwrap();
    let mut out = outs.recv_timeout(LONG).unwrap();
    hypervisor.write_all(b"device state").unwrap();
    wait_read(&gate, 12);
    gate.shut("rolled back");
    gate.release();
    assert_eq!(out.read(&mut [0; 64]).unwrap(), 0, "only the end");
    assert_eq!(hypervisor.read(&mut [0]).unwrap_or(0), 0);
}

#[test]
fn a_hypervisor_that_writes_without_end_is_cut_off_and_nothing_of_it_goes_through() {
    let dir = tempfile::tempdir().unwrap();
    let (gate, outs) = gate_with_room(&dir, 1 << 20);
    let waits = hypervisor(&gate);
    gate.admit().unwrap();
    let mut hypervisor = waits.join().unwrap().unwrap();
    let mut out = outs.recv_timeout(LONG).unwrap();
    // Only a gate that keeps it all takes so much.
    let piece = vec![7; 1 << 20];
    let broken = (0..64).find_map(|_| hypervisor.write_all(&piece).err());
    assert!(broken.is_some(), "64 MiB were kept");
    assert!(gate.why_shut().is_some_and(|why| why.contains("more than 1048576 bytes")));
    gate.release();
    assert_eq!(out.read(&mut [0; 64]).unwrap(), 0, "only the end");
}

#[test]
fn a_connection_that_comes_while_the_gate_is_shut_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    let (gate, outs) = gate(&dir);
    gate.shut("rolled back");
    let (hypervisor, mut other) = UnixStream::pair().unwrap();
    other.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(gate.take(hypervisor).unwrap_err(), "rolled back");
    assert_eq!(other.read(&mut [0]).unwrap(), 0);
    assert!(outs.try_recv().is_err(), "nothing goes on");
}
