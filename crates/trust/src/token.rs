//! Tokens that let one host join a cluster.
//!
//! A token is one line that an operator copies from the authority's host to the new one. It names the authority by the
//! hash of its public key, so that the new host cannot be made to join another cluster. It holds a secret that
//! counts once. A checksum distinguishes a typing error from a token that was used or never made.
//!
//! | bytes | what |
//! |---|---|
//! | 32 | SHA-256 of the authority's SubjectPublicKeyInfo |
//! | 16 | the secret |
//! | 4 | beginning of the SHA-256 of the text before the bytes, and the bytes above |
//!
//! In base32 (RFC 4648, without padding, either case) behind `linerate1-`, where 1 is the version.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::rand;
use data_encoding::BASE32_NOPAD_NOCASE;

use crate::certificate::{AuthorityId, sha256};

mod store;

pub use store::{Listed, Redeemed, StoreError, TOKENS_MAX, TTL_MAX, TokenId, Tokens};

/// Characters of a token's line.
pub const TOKEN_CHARACTERS: usize = PREFIX.len() + ENCODED;

const FAMILY: &str = "linerate";
const PREFIX: &str = "linerate1-";
const AUTHORITY_BYTES: usize = 32;
const SECRET_BYTES: usize = 16;
const CHECKSUM_BYTES: usize = 4;
const ENCODED: usize = ((AUTHORITY_BYTES + SECRET_BYTES + CHECKSUM_BYTES) * 8).div_ceil(5);

/// Why a line is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The text does not begin with the prefix of tokens.
    #[error("this is no token; a token begins with {PREFIX}")]
    NoToken,
    /// A version of tokens that this release does not know.
    #[error("this host does not know this version of tokens; install the same release on both hosts")]
    Version,
    /// Characters are missing or too many.
    #[error("the token has {0} characters instead of {TOKEN_CHARACTERS}; copy the whole line")]
    Length(usize),
    /// A character that base32 does not have; the position is counted from 0.
    #[error("the token has a wrong character at position {0}; copy the line again")]
    Character(usize),
    /// The checksum differs: a character was mistyped.
    #[error("the token has a typing error; copy the line again")]
    Checksum,
    /// The system's random numbers.
    #[error("the system gave no random numbers")]
    Random,
}

/// What a joining host proves to know: 128 random bits. No display and no log shows it.
#[derive(Clone)]
pub struct Secret([u8; SECRET_BYTES]);

impl Secret {
    /// To send, over a connection whose other end is proven to be the authority's host.
    pub fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }

    /// As a joining host sent it.
    pub fn from_bytes(bytes: [u8; SECRET_BYTES]) -> Secret {
        Secret(bytes)
    }

    /// The secret has 128 bits, so one round of a hash is enough: they cannot all be tried.
    pub(crate) fn hash(&self) -> [u8; 32] {
        sha256(&self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// See the module. It has no `Display`, so that it is not written somewhere by mistake: see [`Token::line`].
#[derive(Clone)]
pub struct Token {
    authority: AuthorityId,
    secret: Secret,
}

impl Token {
    pub(crate) fn make(authority: AuthorityId) -> Result<Token, TokenError> {
        let mut secret = [0; SECRET_BYTES];
        rand::fill(&mut secret).map_err(|_| TokenError::Random)?;
        Ok(Token { authority, secret: Secret(secret) })
    }

    /// The authority that has to answer.
    pub fn authority(&self) -> AuthorityId {
        self.authority
    }

    /// What to send to it.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// The line for the operator. A person who reads it can join in place of the new host.
    pub fn line(&self) -> String {
        let mut bytes = Vec::with_capacity(AUTHORITY_BYTES + SECRET_BYTES + CHECKSUM_BYTES);
        bytes.extend(self.authority.0);
        bytes.extend(self.secret.0);
        bytes.extend(checksum(&bytes));
        format!("{PREFIX}{}", BASE32_NOPAD_NOCASE.encode(&bytes).to_ascii_lowercase())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token {{ authority: {}, {:?} }}", self.authority, self.secret)
    }
}

impl FromStr for Token {
    type Err = TokenError;

    /// Blanks around the line are passed over.
    fn from_str(text: &str) -> Result<Token, TokenError> {
        let text = text.trim();
        let head = text.get(..FAMILY.len()).filter(|head| head.eq_ignore_ascii_case(FAMILY));
        let (version, encoded) = head
            .and_then(|head| text.get(head.len()..))
            .and_then(|rest| rest.split_once('-'))
            .filter(|(version, _)| !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit()))
            .ok_or(TokenError::NoToken)?;
        if version != "1" {
            return Err(TokenError::Version);
        }
        if encoded.len() != ENCODED {
            return Err(TokenError::Length(PREFIX.len() + encoded.chars().count()));
        }
        let bytes = BASE32_NOPAD_NOCASE.decode(encoded.as_bytes());
        let bytes = bytes.map_err(|error| TokenError::Character(PREFIX.len() + error.position))?;
        let (content, sum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(TokenError::Checksum)?;
        let (authority, secret) =
            content.split_first_chunk::<AUTHORITY_BYTES>().ok_or(TokenError::Checksum)?;
        let secret = <[u8; SECRET_BYTES]>::try_from(secret).map_err(|_| TokenError::Checksum)?;
        if *sum != checksum(content) {
            return Err(TokenError::Checksum);
        }
        Ok(Token { authority: AuthorityId(*authority), secret: Secret(secret) })
    }
}

fn checksum(content: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let hash = sha256(&[PREFIX.as_bytes(), content].concat());
    let mut sum = [0; CHECKSUM_BYTES];
    sum.iter_mut().zip(hash).for_each(|(to, from)| *to = from);
    sum
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::string_slice)]

    use super::*;

    fn token() -> Token {
        Token::make(AuthorityId([7; 32])).unwrap()
    }

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let token = token();
        let line = token.line();
        assert_eq!(line.len(), TOKEN_CHARACTERS);
        for text in [line.clone(), line.to_uppercase(), format!("  {line}\n")] {
            let read: Token = text.parse().unwrap();
            assert_eq!(read.authority(), token.authority());
            assert_eq!(read.secret().bytes(), token.secret().bytes());
        }
    }

    #[test]
    fn every_single_typing_error_is_reported_as_one() {
        let line = token().line();
        for position in PREFIX.len()..line.len() {
            for other in ['a', 'q', '7'] {
                if line[position..].starts_with(other) {
                    continue;
                }
                let typed = format!("{}{other}{}", &line[..position], &line[position + 1..]);
                let error = typed.parse::<Token>().unwrap_err();
                assert!(
                    matches!(error, TokenError::Checksum | TokenError::Character(_)),
                    "{position} {other} {error}"
                );
            }
        }
    }

    #[test]
    fn what_is_no_token_is_distinguished() {
        let line = token().line();
        let error = |text: &str| text.parse::<Token>().unwrap_err();
        assert_eq!(error(""), TokenError::NoToken);
        assert_eq!(error("hello"), TokenError::NoToken);
        assert_eq!(error("linerate-abc"), TokenError::NoToken);
        assert_eq!(error(&line.replace("linerate1-", "linerate2-")), TokenError::Version);
        assert_eq!(error(&line[..line.len() - 1]), TokenError::Length(TOKEN_CHARACTERS - 1));
        assert_eq!(error(&format!("{line}a")), TokenError::Length(TOKEN_CHARACTERS + 1));
        assert_eq!(error(&format!("{}1{}", &line[..20], &line[21..])), TokenError::Character(20));
        assert_eq!(error(&format!("linerate1-{}", "\u{f6}".repeat(42))), TokenError::Character(PREFIX.len()));
    }

    #[test]
    fn no_display_shows_the_secret() {
        let token = token();
        let shown = format!("{token:?} {token:#?} {:?}", token.secret());
        let hex: String = token.secret().bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let decimal = format!("{:?}", token.secret().bytes());
        assert!(!shown.contains(&hex) && !shown.contains(decimal.trim_matches(['[', ']'])), "{shown}");
        assert!(!shown.contains(&token.line()[PREFIX.len() + 52..]), "{shown}");
    }
}
