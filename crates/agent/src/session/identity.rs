//! What names a session on both hosts, and which connections may join it.

use std::sync::{Arc, OnceLock};

use linerate_core::{ChannelId, Code, Fault, LinkId, SessionId, Side, Step, Token};
use linerate_lock::Mutex;
use linerate_net::tls::Tls;
use linerate_trust::roles::Permission;
use linerate_wire::frame::{Hello, Role};
use linerate_wire::{VERSION_MAX, VERSION_MIN};
use rustls_pki_types::CertificateDer;

use crate::security::{PeerName, Pinned, Security, SessionPart};

/// Number and token of a session, and how its connections are protected.
#[derive(Clone)]
pub(crate) struct Identity {
    pub session: SessionId,
    pub token: Token,
    security: Arc<Security>,
    /// Of the connections after the first.
    pinned: Arc<OnceLock<Pinned>>,
    /// What the other host proved itself with last. It may renew its certificate during a session.
    shown: Arc<Mutex<Vec<CertificateDer<'static>>>>,
    /// Of the first connection, where this agent opened it.
    cipher: Arc<OnceLock<&'static str>>,
}

impl Identity {
    /// Of a session that has begun.
    pub fn new(session: SessionId, token: Token, security: &Arc<Security>) -> Identity {
        Identity {
            session,
            token,
            security: security.clone(),
            pinned: Arc::default(),
            shown: Arc::default(),
            cipher: Arc::default(),
        }
    }

    /// Of a session that an earlier agent process began. If its other host is known by name, no other host gets its
    /// connections.
    pub fn with_peer(
        session: SessionId,
        token: Token,
        security: &Arc<Security>,
        peer: &PeerName,
    ) -> Result<Identity, Fault> {
        let identity = Identity::new(session, token, security);
        if let Some(host) = peer {
            let _ = identity.pinned.set(security.pin_to(host.clone())?);
        }
        Ok(identity)
    }

    /// One that no other session has. If a host is named, no other gets its connections.
    pub fn random_with(security: &Arc<Security>, peer: &PeerName) -> Result<Identity, Fault> {
        Identity::with_peer(SessionId(random()?), Token(random()?), security, peer)
    }

    /// The host that takes the session's connections, where hosts prove who they are and the first one was made.
    pub fn peer(&self) -> PeerName {
        self.pinned.get().map(|pinned| pinned.host.clone())
    }

    /// Has only the host with these certificates take further connections. Refuses one that does not have what it
    /// `needs`.
    pub fn pin(&self, chain: &[CertificateDer<'static>], needs: Option<Permission>) -> Result<(), Fault> {
        if let Some(pinned) = self.security.pin(chain, needs)? {
            let _ = self.pinned.set(pinned);
        }
        self.note_peer(chain);
        Ok(())
    }

    /// A control connection of the session showed these certificates of the other host.
    pub fn note_peer(&self, chain: &[CertificateDer<'static>]) {
        *self.shown.lock() = chain.to_vec();
    }

    /// The session's first connection, which this agent opened, has this cipher.
    pub fn note_cipher(&self, cipher: Option<&'static str>) {
        if let Some(cipher) = cipher {
            let _ = self.cipher.set(cipher);
        }
    }

    /// Cipher of the session, for the audit log; none in plain text, and at the host that was asked.
    pub fn cipher(&self) -> Option<&'static str> {
        self.cipher.get().copied()
    }

    /// Whether the other host was revoked.
    pub fn peer_is_revoked(&self) -> bool {
        let chain = self.shown.lock().clone();
        self.security.is_revoked(&chain)
    }

    /// Ends a part of the session when the other host is revoked, and now if it is revoked already.
    pub fn end_with_peer(&self, part: Arc<dyn SessionPart>) {
        let chain = self.shown.lock().clone();
        self.security.end_with_peer(&chain, part);
    }

    /// What the next connection is protected with; `None` for plain text.
    pub fn tls(&self) -> Option<&Tls> {
        self.pinned.get().map(|pinned| &pinned.tls).or_else(|| self.security.tls())
    }

    /// One that no other session has.
    pub fn random(security: &Arc<Security>) -> Result<Identity, Fault> {
        Ok(Identity::new(SessionId(random()?), Token(random()?), security))
    }

    /// Whether a connection that shows this token belongs here. Takes the same time whichever byte differs.
    pub fn knows(&self, token: &Token) -> bool {
        self.token.0.iter().zip(token.0).fold(0, |differs, (ours, theirs)| differs | (ours ^ theirs)) == 0
    }

    /// The first message of a connection of the session.
    pub fn hello(&self, role: Role, link: LinkId, channel: ChannelId) -> Hello {
        let Identity { session, token, .. } = *self;
        Hello { version_min: VERSION_MIN, version_max: VERSION_MAX, session, role, link, channel, token }
    }
}

pub fn random<const N: usize>() -> Result<[u8; N], Fault> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        Fault::new(
            Code::Internal,
            Step::Authorise,
            Side::Source,
            format!("the kernel gave no random numbers: {error}"),
        )
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{parse_token, token_text};

    #[test]
    fn token_survives_the_journal_and_no_other_is_known() {
        let identity = Identity::random(&Security::insecure()).unwrap();
        let kept = parse_token(&token_text(&identity.token));
        assert!(identity.knows(&kept));
        for place in 0..32 {
            let mut other = kept;
            other.0[place] ^= 1;
            assert!(!identity.knows(&other), "byte {place}");
        }
    }
}
