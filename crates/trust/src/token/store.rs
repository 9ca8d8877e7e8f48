//! The tokens of an authority: hashes of their secrets, on disk. A token counts once, whatever crashes when.

use std::path::{Path, PathBuf};
use std::time::Duration;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use rustls::pki_types::UnixTime;
use serde::{Deserialize, Serialize};

use super::{Secret, Token, TokenError};
use crate::certificate::AuthorityId;
use crate::files::{self, FileError, Secrecy};
use crate::name::HostName;

/// Tokens that are kept at a time.
pub const TOKENS_MAX: usize = 64;

/// Longest lifetime of a token. Fifteen minutes are enough for an operator at both hosts.
pub const TTL_MAX: Duration = Duration::from_secs(24 * 3600);

/// How long an expired token is kept, so that a late host gets this reason.
const KEPT: Duration = Duration::from_secs(24 * 3600);

const LABEL_BYTES_MAX: usize = 200;
const FILE: &str = "tokens.json";

/// Why a token was not made, accepted or revoked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No token has this secret.
    #[error("the token is not known here, or was revoked; make a new one with `linerate token create`")]
    Unknown,
    /// Some host has joined with it.
    #[error("the token was used before; if that was not you, revoke the host that joined with it")]
    Used,
    /// Its time is over.
    #[error("the token has expired; make a new one with `linerate token create`")]
    Expired,
    /// There are [`TOKENS_MAX`] tokens already: no more are made.
    #[error("{TOKENS_MAX} tokens are open; revoke one with `linerate token revoke`")]
    Full,
    /// Zero, or more than [`TTL_MAX`].
    #[error("a token is valid from one second to {} hours", TTL_MAX.as_secs() / 3600)]
    Ttl,
    /// The label is too long or has control characters.
    #[error("a token's label has at most {LABEL_BYTES_MAX} bytes, without control characters")]
    Label,
    /// The file cannot be understood.
    #[error("{} is damaged; remove it to revoke all tokens, and make new ones", .0.display())]
    Damaged(PathBuf),
    /// The system's random numbers.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The tokens' file was not read or written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Names a token in a list; says nothing about its secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TokenId(String);

impl TokenId {
    /// As an operator typed it.
    pub fn new(text: &str) -> TokenId {
        TokenId(text.to_owned())
    }
}

impl std::fmt::Display for TokenId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// A token in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Name in lists, for [`Tokens::revoke`].
    pub id: TokenId,
    /// What its maker wrote.
    pub label: String,
    /// The only host that may join with it, if it names one.
    pub host: Option<HostName>,
    /// From then on it does not count.
    pub expires: UnixTime,
    /// Whether a host has joined with it.
    pub used: bool,
}

/// That a token was accepted, which happens once: it is marked as used on disk. Needed to sign a certificate.
#[derive(Debug)]
pub struct Redeemed {
    host: Option<HostName>,
    label: String,
}

impl Redeemed {
    /// The only name that may be given, if the token has one.
    pub fn host(&self) -> Option<&HostName> {
        self.host.as_ref()
    }

    /// What the token's maker wrote, for the log.
    pub fn label(&self) -> &str {
        &self.label
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    id: TokenId,
    /// SHA-256 of the secret, in hex.
    hash: String,
    label: String,
    host: Option<HostName>,
    /// End of its validity, in seconds since 1970.
    expires: u64,
    used: bool,
}

impl Entry {
    fn expired(&self, now: UnixTime) -> bool {
        now.as_secs() >= self.expires
    }
}

/// The authority's tokens, and the file that has them.
#[derive(Debug)]
pub struct Tokens {
    path: PathBuf,
    entries: Vec<Entry>,
}

impl Tokens {
    /// Of the authority in this folder. The authority's lock keeps other processes away.
    pub(crate) fn open(folder: &Path) -> Result<Tokens, StoreError> {
        let path = folder.join(FILE);
        let entries = match files::read(&path, Secrecy::Private) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|_| StoreError::Damaged(path.clone()))?,
            Err(error) if error.is_missing() => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        Ok(Tokens { path, entries })
    }

    /// Until when a token of the authority in this folder can be used; `None` if none can. Reads without the
    /// authority's lock, since the file is replaced as a whole.
    pub fn open_until(folder: &Path, now: UnixTime) -> Result<Option<UnixTime>, StoreError> {
        let tokens = Tokens::open(folder)?;
        let open = tokens.entries.iter().filter(|entry| !entry.used && !entry.expired(now));
        let end = open.map(|entry| entry.expires).max();
        Ok(end.map(|seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds))))
    }

    pub(crate) fn create(
        &mut self,
        authority: AuthorityId,
        ttl: Duration,
        label: &str,
        host: Option<HostName>,
        now: UnixTime,
    ) -> Result<Token, StoreError> {
        if ttl < Duration::from_secs(1) || ttl > TTL_MAX {
            return Err(StoreError::Ttl);
        }
        if label.len() > LABEL_BYTES_MAX || label.chars().any(char::is_control) {
            return Err(StoreError::Label);
        }
        let mut entries = self.entries.clone();
        entries.retain(|entry| now.as_secs() < entry.expires.saturating_add(KEPT.as_secs()));
        if entries.iter().filter(|entry| !entry.expired(now) && !entry.used).count() >= TOKENS_MAX {
            return Err(StoreError::Full);
        }
        // Used and expired ones only explain a refusal: they make room.
        while entries.len() >= TOKENS_MAX {
            let Some(spent) = entries.iter().position(|entry| entry.used || entry.expired(now)) else {
                break;
            };
            entries.remove(spent);
        }
        let token = Token::make(authority)?;
        let mut id = [0; 4];
        aws_lc_rs::rand::fill(&mut id).map_err(|_| TokenError::Random)?;
        entries.push(Entry {
            id: TokenId(data_encoding::HEXLOWER.encode(&id)),
            hash: data_encoding::HEXLOWER.encode(&token.secret().hash()),
            label: label.to_owned(),
            host,
            expires: now.as_secs().saturating_add(ttl.as_secs()),
            used: false,
        });
        self.save(entries)?;
        Ok(token)
    }

    /// Accepts a secret once. When this returns, the disk has it as used; if it cannot be written, the host does not
    /// join.
    pub fn redeem(&mut self, secret: &Secret, now: UnixTime) -> Result<Redeemed, StoreError> {
        let hash = data_encoding::HEXLOWER.encode(&secret.hash());
        // All are compared, each in constant time: how long it takes says nothing about the secrets.
        let mut found = None;
        for (index, entry) in self.entries.iter().enumerate() {
            if verify_slices_are_equal(entry.hash.as_bytes(), hash.as_bytes()).is_ok() {
                found = Some(index);
            }
        }
        let mut entries = self.entries.clone();
        let entry = found.and_then(|index| entries.get_mut(index)).ok_or(StoreError::Unknown)?;
        if entry.used {
            return Err(StoreError::Used);
        }
        if entry.expired(now) {
            return Err(StoreError::Expired);
        }
        entry.used = true;
        let redeemed = Redeemed { host: entry.host.clone(), label: entry.label.clone() };
        self.save(entries)?;
        Ok(redeemed)
    }

    /// All that are kept, in the order in which they were made.
    pub fn list(&self) -> Vec<Listed> {
        let listed = |entry: &Entry| Listed {
            id: entry.id.clone(),
            label: entry.label.clone(),
            host: entry.host.clone(),
            expires: UnixTime::since_unix_epoch(Duration::from_secs(entry.expires)),
            used: entry.used,
        };
        self.entries.iter().map(listed).collect()
    }

    /// Removes a token: no host can join with it any more. Fails if it is not listed, or the disk refuses.
    pub fn revoke(&mut self, id: &TokenId) -> Result<(), StoreError> {
        let mut entries = self.entries.clone();
        entries.retain(|entry| entry.id != *id);
        if entries.len() == self.entries.len() {
            return Err(StoreError::Unknown);
        }
        self.save(entries)
    }

    /// The disk first: what is not written is not so.
    fn save(&mut self, entries: Vec<Entry>) -> Result<(), StoreError> {
        let bytes =
            serde_json::to_vec_pretty(&entries).map_err(|_| StoreError::Damaged(self.path.clone()))?;
        files::write(&self.path, &bytes, Secrecy::Private)?;
        self.entries = entries;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(seconds))
    }

    fn create(tokens: &mut Tokens, now: UnixTime) -> Result<Token, StoreError> {
        tokens.create(AuthorityId([7; 32]), MINUTE, "for the new host", None, now)
    }

    #[test]
    fn a_token_counts_once_also_for_the_next_process() {
        let folder = tempfile::tempdir().unwrap();
        let mut tokens = Tokens::open(folder.path()).unwrap();
        let token = create(&mut tokens, at(0)).unwrap();
        assert_eq!(
            Tokens::open(folder.path()).unwrap().redeem(token.secret(), at(1)).unwrap().label(),
            "for the new host"
        );
        let mut next = Tokens::open(folder.path()).unwrap();
        assert!(matches!(next.redeem(token.secret(), at(2)), Err(StoreError::Used)));
        assert!(next.list().iter().all(|listed| listed.used));
    }

    #[test]
    fn tokens_are_open_until_they_are_used_or_late() {
        let folder = tempfile::tempdir().unwrap();
        let open = |now| Tokens::open_until(folder.path(), now).unwrap();
        assert_eq!(open(at(0)), None);
        let mut tokens = Tokens::open(folder.path()).unwrap();
        let (first, _second) = (create(&mut tokens, at(0)).unwrap(), create(&mut tokens, at(10)).unwrap());
        assert_eq!(open(at(0)), Some(at(70)));
        assert_eq!(open(at(70)), None);
        let last = tokens.list()[1].id.clone();
        tokens.revoke(&last).unwrap();
        assert_eq!(open(at(0)), Some(at(60)));
        tokens.redeem(first.secret(), at(1)).unwrap();
        assert_eq!(open(at(1)), None);
    }

    #[test]
    fn a_late_token_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut tokens = Tokens::open(folder.path()).unwrap();
        let token = create(&mut tokens, at(0)).unwrap();
        assert!(matches!(tokens.redeem(token.secret(), at(60)), Err(StoreError::Expired)));
        assert!(tokens.redeem(token.secret(), at(59)).is_ok());
    }

    #[test]
    fn another_secret_and_a_revoked_token_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut tokens = Tokens::open(folder.path()).unwrap();
        assert!(matches!(tokens.redeem(&Secret::from_bytes([0; 16]), at(0)), Err(StoreError::Unknown)));
        let token = create(&mut tokens, at(0)).unwrap();
        let id = tokens.list()[0].id.clone();
        tokens.revoke(&id).unwrap();
        assert!(matches!(tokens.redeem(token.secret(), at(1)), Err(StoreError::Unknown)));
        assert!(matches!(tokens.revoke(&id), Err(StoreError::Unknown)));
        assert!(Tokens::open(folder.path()).unwrap().list().is_empty());
    }

    #[test]
    fn a_token_that_cannot_be_marked_as_used_admits_no_host() {
        let folder = tempfile::tempdir().unwrap();
        let mut tokens = Tokens::open(folder.path()).unwrap();
        let token = create(&mut tokens, at(0)).unwrap();
        // A folder in the way of the temporary file, which also root cannot remove as a file.
        let in_the_way = folder.path().join(".tokens.json.new");
        std::fs::create_dir(&in_the_way).unwrap();
        assert!(matches!(tokens.redeem(token.secret(), at(1)), Err(StoreError::File(_))));
        std::fs::remove_dir(&in_the_way).unwrap();
        assert!(tokens.redeem(token.secret(), at(1)).is_ok());
    }

    #[test]
    fn the_disk_has_no_secret() {
        let folder = tempfile::tempdir().unwrap();
        let mut tokens = Tokens::open(folder.path()).unwrap();
        let token = create(&mut tokens, at(0)).unwrap();
        let text = std::fs::read_to_string(folder.path().join(FILE)).unwrap();
        let secret = data_encoding::HEXLOWER.encode(token.secret().bytes());
        assert!(!text.contains(&secret) && !text.contains(&token.line()), "{text}");
        assert!(!format!("{tokens:?}").contains(&secret));
    }

    #[test]
    fn tokens_are_bounded_and_expired_ones_make_room() {
        let folder = tempfile::tempdir().unwrap();
        let mut tokens = Tokens::open(folder.path()).unwrap();
        for _ in 0..TOKENS_MAX {
            create(&mut tokens, at(0)).unwrap();
        }
        assert!(matches!(create(&mut tokens, at(1)), Err(StoreError::Full)));
        create(&mut tokens, at(60)).unwrap();
        assert_eq!(tokens.list().len(), TOKENS_MAX);
        create(&mut tokens, at(120 + KEPT.as_secs())).unwrap();
        assert_eq!(tokens.list().len(), 1, "old ones are removed");
    }

    #[test]
    fn a_lifetime_or_label_out_of_bounds_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut tokens = Tokens::open(folder.path()).unwrap();
        let mut try_one =
            |ttl, label: &str| tokens.create(AuthorityId([7; 32]), ttl, label, None, at(0)).map(drop);
        assert!(matches!(try_one(Duration::ZERO, ""), Err(StoreError::Ttl)));
        assert!(matches!(try_one(TTL_MAX + MINUTE, ""), Err(StoreError::Ttl)));
        assert!(matches!(try_one(MINUTE, "a\nb"), Err(StoreError::Label)));
        assert!(matches!(try_one(MINUTE, &"x".repeat(LABEL_BYTES_MAX + 1)), Err(StoreError::Label)));
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        files::write(&folder.path().join(FILE), b"[{\"id\":", Secrecy::Private).unwrap();
        assert!(matches!(Tokens::open(folder.path()), Err(StoreError::Damaged(_))));
    }
}
