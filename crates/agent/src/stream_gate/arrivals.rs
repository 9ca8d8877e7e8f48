//! Domains whose stream is released to this host, and whose QEMU leaves RAM out until it has arrived. libvirt ends its
//! job for such a domain, after which it can be saved, only when the other libvirt sends that: its messages wait until
//! QEMU's setting is put back.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use linerate_lock::{Condvar, Mutex};

use crate::security::PeerName;

/// QEMU takes its stream within milliseconds; what goes wrong with it ends sooner elsewhere.
const WAIT: Duration = Duration::from_secs(10);
const PIECE_BYTES: usize = 64 << 10;

/// Number of such domains, and which hosts have connections to libvirt here.
#[derive(Default)]
pub struct ArrivalCount {
    count: Mutex<usize>,
    changed: Condvar,
    /// The host of each connection.
    connected: Mutex<Vec<PeerName>>,
}

/// One of them, until it is dropped.
pub struct DomainArrival(Arc<ArrivalCount>);

impl Drop for DomainArrival {
    fn drop(&mut self) {
        *self.0.count.lock() -= 1;
        self.0.changed.notify_all();
    }
}

impl ArrivalCount {
    /// Counts one more, until the result is dropped.
    pub fn begin(self: &Arc<ArrivalCount>) -> DomainArrival {
        *self.count.lock() += 1;
        DomainArrival(self.clone())
    }

    /// Whether that host has a connection to libvirt here. Only such a host can have a domain arrive.
    pub fn has_connection_of(&self, peer: &PeerName) -> bool {
        self.connected.lock().contains(peer)
    }

    fn note_end(&self, peer: &PeerName) {
        let mut connected = self.connected.lock();
        if let Some(at) = connected.iter().position(|one| one == peer) {
            connected.swap_remove(at);
        }
    }

    /// A connection of that host to libvirt here: what the other side sends to it waits as long as a domain arrives.
    pub fn hold(self: &Arc<ArrivalCount>, libvirt: UnixStream, peer: &PeerName) -> io::Result<UnixStream> {
        let (ours, other) = UnixStream::pair()?;
        let (mut from, mut to) = (ours.try_clone()?, libvirt.try_clone()?);
        let (arrivals, opener) = (self.clone(), peer.clone());
        self.connected.lock().push(peer.clone());
        let begun = std::thread::Builder::new().name("libvirt-in".into()).spawn(move || {
            let _ = arrivals.carry(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
            arrivals.note_end(&opener);
        });
        if let Err(error) = begun {
            self.note_end(peer);
            return Err(error);
        }
        let (mut from, mut to) = (libvirt, ours);
        std::thread::Builder::new().name("libvirt-out".into()).spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        })?;
        Ok(other)
    }

    fn carry(&self, from: &mut UnixStream, to: &mut UnixStream) -> io::Result<()> {
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let read = from.read(&mut piece)?;
            drop(self.changed.wait_timeout_while(self.count.lock(), WAIT, |count| *count > 0));
            if read == 0 {
                return Ok(());
            }
            to.write_all(piece.get(..read).unwrap_or_default())?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libvirt_receives_nothing_as_long_as_a_domain_arrives() {
        let arrivals = Arc::<ArrivalCount>::default();
        let (libvirt, mut daemon) = UnixStream::pair().unwrap();
        let host: PeerName = Some("a".parse().unwrap());
        let mut other = arrivals.hold(libvirt, &host).unwrap();
        assert!(
            arrivals.has_connection_of(&host) && !arrivals.has_connection_of(&Some("b".parse().unwrap()))
        );
        other.write_all(b"prepare").unwrap();
        daemon.read_exact(&mut [0; 7]).unwrap();
        let arriving = arrivals.begin();
        other.write_all(b"finish").unwrap();
        daemon.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        assert_eq!(daemon.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        daemon.set_read_timeout(None).unwrap();
        daemon.write_all(b"event").unwrap();
        other.read_exact(&mut [0; 5]).unwrap();
        drop(arriving);
        daemon.read_exact(&mut [0; 6]).unwrap();
        drop(other);
        assert_eq!(daemon.read(&mut [0]).unwrap(), 0);
        while arrivals.has_connection_of(&host) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
