//! Who waits, what passes and what does not.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::*;

/// Only a hang meets it.
const LONG: Duration = Duration::from_secs(60);
/// Long enough for what is not held back to arrive.
const SHORT: Duration = Duration::from_millis(200);

/// A gate whose connections come out here.
fn gate(dir: &tempfile::TempDir) -> (Arc<Gate>, Receiver<UnixStream>) {
    let (out, outs) = channel();
    let out = Mutex::new(out);
    let connect = move |socket: UnixStream| {
        let _ = socket.set_read_timeout(Some(SHORT));
        let _ = lock(&out).send(socket);
        Ok(())
    };
    (Arc::new(Gate::new(&dir.path().join("gate.sock"), Box::new(connect)).unwrap()), outs)
}

/// A hypervisor that connects, in a thread because it waits.
fn hypervisor(gate: &Gate) -> std::thread::JoinHandle<io::Result<UnixStream>> {
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

fn wait_read(gate: &Gate, bytes: u64) {
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

    let (gate, outs) = self::gate(&tempfile::tempdir().unwrap());
    let waits = hypervisor(&gate);
    std::thread::sleep(SHORT);
    gate.shut("enough");
    assert!(waits.join().unwrap().is_err());
    assert!(gate.admit().is_err());
    assert!(outs.try_recv().is_err());
    assert_eq!(gate.why_shut().as_deref(), Some("enough"));
    assert!(!gate.path.exists());
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
