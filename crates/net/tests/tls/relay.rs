//! A man in the middle, who sees the records of a connection, and may change or cut them.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use linerate_net::tcp::Stream;
use linerate_net::tls::Tls;

use crate::common::soon;

/// What becomes of a record.
pub enum RelayFault {
    /// This number of bytes goes on, and then the connection ends.
    Cut(usize),
    /// These bits of a byte are others.
    Change(usize, u8),
}

/// Both ends of a connection that has shaken hands, and what waits for the first record after it.
pub struct Relayed {
    pub source: Stream,
    pub destination: Stream,
    armed: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Relayed {
    /// The next record from the source meets its fate.
    pub fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    pub fn join(self) {
        drop((self.source, self.destination));
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

pub fn relayed(source: &Tls, destination: &Tls, fault: RelayFault) -> Relayed {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (one, near) = (TcpStream::connect(address).unwrap(), listener.accept().unwrap().0);
    let (far, other) = (TcpStream::connect(address).unwrap(), listener.accept().unwrap().0);
    let armed = Arc::new(AtomicBool::new(false));
    let (mut back_from, mut back_to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
    let seen = Arc::clone(&armed);
    let threads = vec![
        std::thread::spawn(move || pass_records(near, far, &seen, &fault)),
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut back_from, &mut back_to);
            let _ = back_to.shutdown(Shutdown::Write);
        }),
    ];
    let (source, destination) = std::thread::scope(|scope| {
        let accepting = scope.spawn(|| Stream::new(other).unwrap().accept_tls(destination, soon()).unwrap());
        let source = Stream::new(one).unwrap().begin_tls(source, soon()).unwrap();
        (source, accepting.join().unwrap())
    });
    Relayed { source, destination, armed, threads }
}

fn pass_records(mut from: TcpStream, mut to: TcpStream, armed: &AtomicBool, fault: &RelayFault) {
    let mut done = false;
    while let Some(mut record) = next_record(&mut from) {
        if armed.load(Ordering::SeqCst) && !std::mem::replace(&mut done, true) {
            match fault {
                RelayFault::Change(at, bits) => record[*at] ^= bits,
                RelayFault::Cut(bytes) => {
                    to.write_all(&record[..*bytes]).unwrap();
                    break;
                }
            }
        }
        if to.write_all(&record).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// A record with its header.
pub fn next_record(from: &mut impl Read) -> Option<Vec<u8>> {
    let mut record = vec![0; 5];
    from.read_exact(&mut record).ok()?;
    let length = usize::from(u16::from_be_bytes([record[3], record[4]]));
    record.resize(5 + length, 0);
    from.read_exact(&mut record[5..]).ok()?;
    Some(record)
}
