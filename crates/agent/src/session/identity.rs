//! What names a session on both hosts, and which connections may join it.

use std::sync::Arc;

use linerate_core::{ChannelId, Code, Fault, LinkId, SessionId, Side, Step, Token};
use linerate_wire::frame::{Hello, Role};
use linerate_wire::{VERSION_MAX, VERSION_MIN};

use crate::security::Security;

/// Number and token of a session, and how its connections are protected.
#[derive(Clone)]
pub(crate) struct Identity {
    pub session: SessionId,
    pub token: Token,
    pub security: Arc<Security>,
}

impl Identity {
    /// One that no other session has.
    pub fn random(security: &Arc<Security>) -> Result<Identity, Fault> {
        Ok(Identity { session: SessionId(random()?), token: Token(random()?), security: security.clone() })
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
        Fault::new(Code::Internal, Step::Authorise, Side::Source, format!("no random numbers: {error}"))
    })?;
    Ok(bytes)
}

/// A token as the journal keeps it: hexadecimal digits.
pub(crate) fn token_text(token: &Token) -> String {
    token.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A token that the journal kept.
pub(crate) fn parse_token(text: &str) -> Token {
    let mut token = Token([0; 32]);
    for (place, byte) in token.0.iter_mut().enumerate() {
        let digits = text.get(2 * place..2 * place + 2);
        *byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).unwrap_or(0);
    }
    token
}

#[cfg(test)]
mod tests {
    use super::*;

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
