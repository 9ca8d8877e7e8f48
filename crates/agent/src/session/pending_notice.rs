//! Sessions that the other host shall give up if this agent dies: kept in files, so that the next start of the agent
//! sends the roll-back notice. Without that the other host holds sockets, and a hypervisor behind them, until its own
//! limit.

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
use crate::security::Security;

/// The folder, in the agent's own.
const FOLDER: &str = "withdraw";

#[derive(Serialize, Deserialize)]
struct Session {
    session: [u8; 16],
    token: [u8; 32],
    peers: Vec<SocketAddr>,
}

/// As long as it exists, the next start of the agent sends the roll-back notice.
#[derive(Debug)]
pub(crate) struct PendingNotice(PathBuf);

impl PendingNotice {
    /// Written before the other host receives anything of the session.
    pub fn new(state: &Path, identity: &Identity, peers: &[SocketAddr]) -> io::Result<PendingNotice> {
        let Identity { session, token, .. } = *identity;
        let folder = state.join(FOLDER);
        fs::create_dir_all(&folder)?;
        let path = folder.join(session.to_string());
        let unfinished = path.with_extension("new");
        let kept = Session { session: session.0, token: token.0, peers: peers.to_vec() };
        // No other user may read the token.
        let options = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::TRUNC | rustix::fs::OFlags::WRONLY;
        let file =
            rustix::fs::open(&unfinished, options | rustix::fs::OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)?;
        serde_json::to_writer(fs::File::from(file), &kept)?;
        fs::rename(&unfinished, &path)?;
        Ok(PendingNotice(path))
    }
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
        let identity = Identity::new(id, Token(session.token), security);
        roll_back_notice::send(session.peers, identity, false, move || drop(kept));
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

    use super::*;

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
}
