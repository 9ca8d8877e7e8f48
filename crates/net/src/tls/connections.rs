//! Connections in progress, so that those of a peer that is not wanted any more can be ended.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use rustls::pki_types::CertificateDer;

use super::session::Session;
use crate::tcp::Stream;
use linerate_lock::Mutex;

/// See the module. It keeps none of them open.
#[derive(Default)]
pub(crate) struct Connections {
    all: Mutex<Vec<Entry>>,
}

struct Entry {
    socket: Weak<OwnedFd>,
    session: Weak<Session>,
    opened_here: bool,
}

impl Entry {
    fn stream(&self) -> Option<(Stream, bool)> {
        let stream = Stream::of_session(self.socket.upgrade()?, self.session.upgrade()?);
        Some((stream, self.opened_here))
    }
}

impl Connections {
    pub fn add(&self, socket: &Arc<OwnedFd>, session: &Arc<Session>, opened_here: bool) {
        let mut all = self.all.lock();
        all.retain(|entry| entry.session.strong_count() > 0);
        let (socket, session) = (Arc::downgrade(socket), Arc::downgrade(session));
        all.push(Entry { socket, session, opened_here });
    }

    pub fn end(&self, unwanted: impl Fn(&[CertificateDer<'static>], bool) -> bool) -> usize {
        // Asked and ended without the lock: a new connection does not wait for it.
        let open: Vec<_> = self.all.lock().iter().filter_map(Entry::stream).collect();
        let ended = open.iter().filter(|(stream, here)| unwanted(stream.peer_certificates(), *here));
        ended.map(|(stream, _)| stream.shut()).count()
    }
}
