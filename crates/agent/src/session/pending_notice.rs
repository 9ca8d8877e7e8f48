//! Sessions that the other host shall give up if this agent dies. They are kept in files, so that the next start of the
//! agent sends the roll-back notice. Without that the other host holds sockets, and a hypervisor behind them, until its
//! own limit. The file names the host that the session's first connection reached, and the notice goes to no other.
//! Another one that has that address now would answer that it gave the session up.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use linerate_core::{SessionId, Token};
use rustix::fs::Mode;
use serde::{Deserialize, Serialize};

use super::identity::Identity;
use super::roll_back_notice;
use crate::faults::chain;
use crate::security::{PeerName, Security};

/// The folder, in the agent's own.
const FOLDER: &str = "withdraw";

#[derive(Serialize, Deserialize)]
struct Session {
    session: [u8; 16],
    token: [u8; 32],
    peers: Vec<SocketAddr>,
    /// The host at the other end, where hosts prove who they are and the first connection was made.
    #[serde(default)]
    peer: PeerName,
}

/// As long as it exists, the next start of the agent sends the roll-back notice.
#[derive(Debug)]
pub(crate) struct PendingNotice(PathBuf);

impl PendingNotice {
    /// Written before the other host receives anything of the session.
    pub fn new(state: &Path, identity: &Identity, peers: &[SocketAddr]) -> io::Result<PendingNotice> {
        let folder = state.join(FOLDER);
        fs::create_dir_all(&folder)?;
        let path = folder.join(identity.session.to_string());
        write(&path, identity, peers)?;
        Ok(PendingNotice(path))
    }

    /// Once the first connection was made: no other host of the cluster gets the notice.
    pub fn pin(&self, identity: &Identity, peers: &[SocketAddr]) -> io::Result<()> {
        if identity.peer().is_some() { write(&self.0, identity, peers) } else { Ok(()) }
    }
}

fn write(path: &Path, identity: &Identity, peers: &[SocketAddr]) -> io::Result<()> {
    let Identity { session, token, .. } = *identity;
    let unfinished = path.with_extension("new");
    let kept = Session { session: session.0, token: token.0, peers: peers.to_vec(), peer: identity.peer() };
    // No other user may read the token.
    let options = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::TRUNC | rustix::fs::OFlags::WRONLY;
    let file = rustix::fs::open(&unfinished, options | rustix::fs::OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)?;
    serde_json::to_writer(fs::File::from(file), &kept)?;
    fs::rename(&unfinished, path)
}

impl Drop for PendingNotice {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::debug!(%error, path = %self.0.display(), "the roll-back notice of a session is sent again at the next start");
        }
    }
}

/// Sends, in the background, the notices that an earlier agent process has left.
pub fn send_all(state: &Path, security: &Arc<Security>) {
    for (kept, session) in left(&state.join(FOLDER)) {
        let id = SessionId(session.session);
        tracing::warn!(session = %id, "the agent ended during this session; the other host is notified to give it up");
        match Identity::with_peer(id, Token(session.token), security, &session.peer) {
            Ok(identity) => roll_back_notice::send(session.peers, identity, false, move || drop(kept)),
            Err(fault) => {
                tracing::error!(session = %id, %fault, "the other host is not notified, and gives the session up by itself");
            }
        }
    }
}

fn left(folder: &Path) -> Vec<(PendingNotice, Session)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let read = fs::read(&path).and_then(|text| Ok(serde_json::from_slice(&text)?));
        match read {
            Ok(session) => found.push((PendingNotice(path), session)),
            Err(error) => {
                tracing::debug!(error = chain(&error), path = %path.display(), "it was being written, or is no session");
                let _ = fs::remove_file(&path);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use linerate_core::Outcome;
    use linerate_lock::Mutex;
    use linerate_net::tcp::listen::{Accepted, Listener};
    use linerate_wire::VERSION_MAX;
    use linerate_wire::frame::{Role, Welcome};

    use super::*;
    use crate::security::tests::member;
    use crate::session::contact::open_session;
    use crate::testing::{authority, listen, wait};

    /// Only a hang reaches it.
    const LONG: Duration = Duration::from_secs(60);

    /// A host that takes every session and answers each notice that it gave the session up. With what it was asked.
    fn host(security: &Security) -> (Listener, Receiver<Role>) {
        let (roles, asked) = channel();
        let roles = Mutex::new(roles);
        let answer = move |accepted: Accepted| {
            let role = accepted.hello.role;
            let _ = roles.lock().send(role);
            if role == Role::RolledBack {
                let _ = accepted.outcome(Outcome::Aborted);
            } else {
                let _ = accepted.welcome(Welcome { version: VERSION_MAX, control_received: 0 });
            }
        };
        (listen(security, answer), asked)
    }

    #[test]
    fn a_session_is_left_by_an_agent_that_dies_and_by_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let peers = ["10.0.0.2:7979".parse().unwrap()];
        let keep = |n: u8| {
            let identity = Identity::new(SessionId([n; 16]), Token([n; 32]), &Security::insecure());
            PendingNotice::new(dir.path(), &identity, &peers).unwrap()
        };
        drop(keep(1));
        std::mem::forget(keep(2));
        let folder = dir.path().join(FOLDER);
        fs::write(folder.join("half.new"), "{").unwrap();
        let mut left = left(&folder);
        let (kept, session) = left.pop().unwrap();
        assert!(left.is_empty());
        assert_eq!((session.session, session.token, session.peers), ([2; 16], [2; 32], peers.to_vec()));
        assert_eq!(fs::metadata(&kept.0).unwrap().permissions().mode() & 0o777, 0o600);
        drop(kept);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    }

    #[test]
    fn the_notice_goes_to_the_host_that_the_session_was_opened_at_and_to_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let mut authority = authority(&dir.path().join("authority"));
        let mut made = |name: &str| member(&mut authority, &dir.path().join(name), name, "");
        let (own, one, other) = (made("own"), made("one"), made("other"));
        let ((one, asked_one), (other, asked_other)) = (host(&one), host(&other));
        let identity = Identity::random(&own).unwrap();
        let kept = PendingNotice::new(dir.path(), &identity, one.addresses()).unwrap();
        open_session(one.addresses(), Role::TunnelNew, &identity).map_err(|fault| fault.detail).unwrap();
        // Another member has the first of the host's addresses by the time this agent starts again.
        kept.pin(&identity, &[other.addresses()[0], one.addresses()[0]]).unwrap();
        std::mem::forget(kept);
        send_all(dir.path(), &own);
        assert_eq!(asked_one.recv_timeout(LONG).unwrap(), Role::TunnelNew);
        assert_eq!(asked_one.recv_timeout(LONG).unwrap(), Role::RolledBack);
        let due = || fs::read_dir(dir.path().join(FOLDER)).unwrap().count();
        wait("the notice stays due", || due() == 0);
        assert!(asked_other.try_recv().is_err(), "another host of the cluster got the session's token");
    }

    #[test]
    fn an_agent_in_plain_text_sends_no_notice_to_a_host_that_proved_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let security = Security::insecure();
        let (listener, asked) = host(&security);
        let kept = Session {
            session: [1; 16],
            token: [2; 32],
            peers: listener.addresses().to_vec(),
            peer: Some("one".parse().unwrap()),
        };
        let folder = dir.path().join(FOLDER);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("named"), serde_json::to_vec(&kept).unwrap()).unwrap();
        // No thread was begun for it, so nothing is sent later.
        send_all(dir.path(), &security);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        // An earlier version's file names no host.
        let kept = Session { peer: None, ..kept };
        let mut text = serde_json::to_value(&kept).unwrap();
        text.as_object_mut().unwrap().remove("peer");
        fs::write(folder.join("old"), text.to_string()).unwrap();
        send_all(dir.path(), &security);
        assert_eq!(asked.recv_timeout(LONG).unwrap(), Role::RolledBack);
        assert!(asked.try_recv().is_err(), "the first was sent too");
    }
}
