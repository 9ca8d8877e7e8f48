//! Which connections wait; which bytes are forwarded and which are not.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::*;

/// Only a hang reaches it.
const LONG: Duration = Duration::from_secs(60);
/// Long enough for what is not held back to arrive.
const SHORT: Duration = Duration::from_millis(200);

/// A gate, and the receiver of its connections.
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

/// A hypervisor that is admitted, and the connection that its bytes go to.
fn admitted(gate: &Arc<StreamGate>, outs: &Receiver<UnixStream>) -> (UnixStream, UnixStream) {
    let waits = hypervisor(gate);
    gate.admit().unwrap();
    (waits.join().unwrap().unwrap(), outs.recv_timeout(LONG).unwrap())
}

fn read(socket: &mut UnixStream, bytes: usize) -> Vec<u8> {
    let mut got = vec![0; bytes];
    socket.set_read_timeout(Some(LONG)).unwrap();
    socket.read_exact(&mut got).unwrap();
    socket.set_read_timeout(Some(SHORT)).unwrap();
    got
}

/// Whether the next that comes is the end, however long it takes.
fn has_ended(socket: &mut UnixStream) -> bool {
    socket.set_read_timeout(Some(LONG)).unwrap();
    socket.read(&mut [0; 64]).unwrap() == 0
}

fn is_silent(socket: &mut UnixStream) -> bool {
    socket.read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

fn wait_read(gate: &StreamGate, bytes: u64) {
    while gate.mark() != [bytes] {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_connection_waits_until_it_is_admitted_and_is_refused_when_the_gate_is_closed() {
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
    gate.close("enough");
    assert!(waits.join().unwrap().is_err());
    assert!(gate.admit().is_err());
    assert!(outs.try_recv().is_err());
    assert_eq!(gate.close_reason().as_deref(), Some("enough"));
    let refused = UnixStream::connect(&gate.path).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "no other program can take its name");
    let path = gate.path.clone();
    StreamGates::default().forget(&gate);
    assert!(!path.exists());
}

#[test]
fn nothing_is_forwarded_but_what_was_read_while_the_guest_ran_until_all_is_released() {
    let dir = tempfile::tempdir().unwrap();
    let (gate, outs) = gate(&dir);
    let (mut hypervisor, mut out) = admitted(&gate, &outs);
    hypervisor.write_all(b"set-up").unwrap();
    wait_read(&gate, 6);
    assert!(is_silent(&mut out), "a byte was forwarded early");
    let mark = gate.mark();
    hypervisor.write_all(b"device state").unwrap();
    wait_read(&gate, 18);
    gate.release_up_to(&mark);
    assert_eq!(read(&mut out, 6), b"set-up");
    assert!(is_silent(&mut out), "bytes after the mark were forwarded");
    // What the other side sends is always forwarded.
    out.write_all(b"ack").unwrap();
    assert_eq!(read(&mut hypervisor, 3), b"ack");
    // Neither an older mark nor the end of the connection releases anything.
    gate.release_up_to(&[0]);
    hypervisor.shutdown(Shutdown::Write).unwrap();
    assert!(is_silent(&mut out));
    gate.release();
    assert_eq!(read(&mut out, 12), b"device state");
    assert!(has_ended(&mut out), "and its end");
}

#[test]
fn what_is_held_when_the_gate_is_closed_is_never_forwarded() {
    let dir = tempfile::tempdir().unwrap();
    let (gate, outs) = gate(&dir);
    let (mut hypervisor, mut out) = admitted(&gate, &outs);
    hypervisor.write_all(b"device state").unwrap();
    wait_read(&gate, 12);
    gate.close("rolled back");
    gate.release();
    assert!(has_ended(&mut out), "only the end");
    assert_eq!(hypervisor.read(&mut [0]).unwrap_or(0), 0);
}

#[test]
fn a_hypervisor_that_writes_without_end_is_reset_and_nothing_of_it_is_forwarded() {
    let dir = tempfile::tempdir().unwrap();
    let (gate, outs) = gate_with_room(&dir, 1 << 20);
    let (mut hypervisor, mut out) = admitted(&gate, &outs);
    // Only a gate that keeps it all takes so much.
    let piece = vec![7; 1 << 20];
    let broken = (0..64).find_map(|_| hypervisor.write_all(&piece).err());
    assert!(broken.is_some(), "64 MiB were kept");
    assert!(gate.close_reason().is_some_and(|why| why.contains("more than 1048576 bytes")));
    gate.release();
    assert!(has_ended(&mut out), "only the end");
}

#[test]
fn a_connection_to_a_closed_gate_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    let (gate, outs) = gate(&dir);
    gate.close("rolled back");
    let (hypervisor, mut other) = UnixStream::pair().unwrap();
    other.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(gate.take(hypervisor).unwrap_err().to_string(), "rolled back");
    assert_eq!(other.read(&mut [0]).unwrap(), 0);
    assert!(outs.try_recv().is_err(), "nothing is forwarded");
}

/// Whoever connects is taken for the domain's QEMU, or for libvirt.
#[test]
fn nobody_but_the_agents_user_connects_to_a_gate() {
    let dir = tempfile::tempdir().unwrap();
    let (gate, _outs) = gate(&dir);
    let path = dir.path().join("job.sock");
    let job = LibvirtJob::new(&path, Box::new(|_| Ok(()))).unwrap();
    for path in [&gate.path, &path] {
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600, "{path:?}");
    }
    job.close("the test is over");
}
