//! What an authority issued and revoked, on disk.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{CertificateRevocationListParams, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber};
use rustls::pki_types::UnixTime;
use serde::{Deserialize, Serialize};

use super::{AuthorityError, HOST_VALIDITY};
use crate::certificate::{Serial, date_time};
use crate::files::{self, FileError, Secrecy};
use crate::name::HostName;
use crate::revocation::RevocationList;

/// Certificates that an authority keeps: with renewals three valid ones for each of 1,000 hosts. Their list fits
/// [`REVOCATION_BYTES_MAX`](crate::revocation::REVOCATION_BYTES_MAX), also if all are revoked.
pub const ISSUED_MAX: usize = 3000;

/// A list counts for longer than this; the field must be there (RFC 5280 section 5.1.2.5).
const NEXT_UPDATE: Duration = Duration::from_secs(30 * 24 * 3600);

const FILE: &str = "register.json";

/// Why the register did not take an entry.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// There are [`ISSUED_MAX`] valid certificates: no more are issued.
    #[error("{ISSUED_MAX} certificates are valid; wait until some have ended")]
    Full,
    /// The newest list has the largest number that there is.
    #[error(
        "no revocation list can follow list {}; change the authority: `linerate cluster rotate`",
        u64::MAX
    )]
    Numbers,
    /// No valid certificate has the name.
    #[error("no host {0} has a valid certificate; see `linerate host list`")]
    UnknownHost(HostName),
    /// The file cannot be understood.
    #[error("{} is damaged; restore it from a backup", .0.display())]
    Damaged(PathBuf),
    /// The register's file was not read or written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// A certificate that was issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    /// Serial number, by which it is revoked.
    pub serial: Serial,
    /// Host that the certificate names.
    pub host: HostName,
    /// Last second of its validity.
    pub not_after: UnixTime,
}

/// A revoked certificate stays on the list for so long after its end. Clocks of hosts may differ by an hour
/// ([`super::CLOCK_DIFFERENCE`]).
const KEPT_REVOKED: Duration = Duration::from_secs(25 * 3600);

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    #[serde(with = "hex")]
    serial: Vec<u8>,
    /// `None` of one that only a revocation list has, see [`Register::catch_up`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    host: Option<HostName>,
    /// Seconds since 1970, as the next.
    not_after: u64,
    revoked: Option<u64>,
}

impl Entry {
    /// A revoked certificate stays on the list after its end: a host whose clock is behind would take it again.
    fn is_kept(&self, now: UnixTime) -> bool {
        let more = if self.revoked.is_some() { KEPT_REVOKED } else { Duration::ZERO };
        now.as_secs() <= self.not_after.saturating_add(more.as_secs())
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    /// Of the newest revocation list.
    number: u64,
    /// The newest list in DER, empty before the first.
    #[serde(with = "hex")]
    list: Vec<u8>,
    issued: Vec<Entry>,
}

impl Content {
    /// For one more certificate. Only the one that ended first goes, and only where its place is needed: while a clock
    /// is ahead, all seem to have ended. A valid one that is forgotten cannot be revoked, and a revoked one would be
    /// welcome again.
    fn make_room(&mut self, now: UnixTime) -> Result<(), RegisterError> {
        while self.issued.len() >= ISSUED_MAX {
            let ended = self.issued.iter().enumerate().filter(|(_, entry)| !entry.is_kept(now));
            let first = ended.min_by_key(|(_, entry)| entry.not_after).map(|(place, _)| place);
            self.issued.remove(first.ok_or(RegisterError::Full)?);
        }
        Ok(())
    }
}

/// See the module. Number and list are in one file: no crash gives one number to two lists.
#[derive(Debug)]
pub(super) struct Register {
    path: PathBuf,
    content: Content,
}

impl Register {
    pub(super) fn open(folder: &Path) -> Result<Register, RegisterError> {
        let path = folder.join(FILE);
        let content = match files::read(&path, Secrecy::Private) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|_| RegisterError::Damaged(path.clone()))?,
            Err(error) if error.is_missing() => Content::default(),
            Err(error) => return Err(error.into()),
        };
        Ok(Register { path, content })
    }

    pub(super) fn add(&mut self, issued: Issued, now: UnixTime) -> Result<(), RegisterError> {
        let mut content = self.content.clone();
        content.make_room(now)?;
        let serial = issued.serial.bytes().to_vec();
        let not_after = issued.not_after.as_secs();
        content.issued.push(Entry { serial, host: Some(issued.host), not_after, revoked: None });
        self.save(content)
    }

    pub(super) fn revoke(
        &mut self,
        host: &HostName,
        now: UnixTime,
        issuer: &Issuer<'static, KeyPair>,
    ) -> Result<Vec<u8>, AuthorityError> {
        if !self.has(host, now) {
            return Err(RegisterError::UnknownHost(host.clone()).into());
        }
        let mut content = self.content.clone();
        for entry in content.issued.iter_mut().filter(|entry| entry.host.as_ref() == Some(host)) {
            entry.revoked.get_or_insert(now.as_secs());
        }
        self.save_with_list(content, now, issuer)?;
        Ok(self.content.list.clone())
    }

    /// A register that was restored from a backup may be older than a list of its authority: `known`. What that list
    /// revokes stays revoked, and the next list is newer. False if the register is not older.
    pub(super) fn catch_up(
        &mut self,
        known: &RevocationList,
        now: UnixTime,
        issuer: &Issuer<'static, KeyPair>,
    ) -> Result<bool, AuthorityError> {
        if known.number() < self.content.number || known.der() == self.content.list {
            return Ok(false);
        }
        let mut content = self.content.clone();
        for (serial, revoked) in known.revoked() {
            match content.issued.iter_mut().find(|entry| entry.serial == serial.bytes()) {
                Some(entry) => {
                    entry.revoked.get_or_insert(revoked);
                }
                // Issued since the backup was made, and valid when it was revoked: it ends no later than this.
                None => content.issued.push(Entry {
                    serial: serial.bytes().to_vec(),
                    host: None,
                    not_after: revoked.saturating_add(HOST_VALIDITY.as_secs()),
                    revoked: Some(revoked),
                }),
            }
        }
        content.number = known.number();
        self.save_with_list(content, now, issuer)?;
        Ok(true)
    }

    /// Signs the next list of what is revoked.
    fn save_with_list(
        &mut self,
        mut content: Content,
        now: UnixTime,
        issuer: &Issuer<'static, KeyPair>,
    ) -> Result<(), AuthorityError> {
        content.number = content.number.checked_add(1).ok_or(RegisterError::Numbers)?;
        let revoked_certs = content.issued.iter().filter_map(|entry| Some((entry, entry.revoked?)));
        let revoked_certs = revoked_certs.map(|(entry, seconds)| {
            let revocation_time = date_time(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))?;
            let serial_number = SerialNumber::from_slice(&entry.serial);
            Ok(RevokedCertParams { serial_number, revocation_time, reason_code: None, invalidity_date: None })
        });
        let list = CertificateRevocationListParams {
            this_update: date_time(now)?,
            next_update: date_time(now)? + NEXT_UPDATE,
            crl_number: SerialNumber::from(content.number),
            issuing_distribution_point: None,
            revoked_certs: revoked_certs.collect::<Result<_, AuthorityError>>()?,
            key_identifier_method: KeyIdMethod::Sha256,
        };
        content.list = list.signed_by(issuer)?.der().to_vec();
        Ok(self.save(content)?)
    }

    pub(super) fn revocations(&self) -> Option<&[u8]> {
        Some(self.content.list.as_slice()).filter(|list| !list.is_empty())
    }

    pub(super) fn valid(&self, now: UnixTime) -> impl Iterator<Item = Issued> {
        self.entries(now).filter_map(|entry| {
            Some(Issued {
                serial: Serial::new(&entry.serial),
                host: entry.host.clone()?,
                not_after: UnixTime::since_unix_epoch(Duration::from_secs(entry.not_after)),
            })
        })
    }

    pub(super) fn has(&self, host: &HostName, now: UnixTime) -> bool {
        self.entries(now).any(|entry| entry.host.as_ref() == Some(host))
    }

    pub(super) fn is_valid(&self, serial: &Serial, host: &HostName, now: UnixTime) -> bool {
        self.entries(now).any(|entry| entry.serial == serial.bytes() && entry.host.as_ref() == Some(host))
    }

    fn entries(&self, now: UnixTime) -> impl Iterator<Item = &Entry> {
        self.content
            .issued
            .iter()
            .filter(move |entry| entry.revoked.is_none() && now.as_secs() <= entry.not_after)
    }

    /// The disk first: what is not written is not so.
    fn save(&mut self, content: Content) -> Result<(), RegisterError> {
        let bytes = serde_json::to_vec(&content).map_err(|_| RegisterError::Damaged(self.path.clone()))?;
        files::write(&self.path, &bytes, Secrecy::Private)?;
        self.content = content;
        Ok(())
    }
}

mod hex {
    use data_encoding::HEXLOWER;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&HEXLOWER.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        HEXLOWER.decode(String::deserialize(deserializer)?.as_bytes()).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revoked_certificate_stays_on_the_list_until_no_clock_takes_it_for_valid() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let entry =
            |revoked| Entry { serial: vec![1], host: "a".parse().ok(), not_after: 1_000_000, revoked };
        assert!(entry(None).is_kept(at(1_000_000)) && !entry(None).is_kept(at(1_000_001)));
        let ends = 1_000_000 + super::super::CLOCK_DIFFERENCE.as_secs();
        assert!(entry(Some(5)).is_kept(at(ends)));
        assert!(!entry(Some(5)).is_kept(at(ends + 86_401)));
    }

    #[test]
    fn the_certificate_that_ended_first_makes_room_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let host: HostName = "a".parse().unwrap();
        let entry = |not_after| Entry { serial: vec![1], host: Some(host.clone()), not_after, revoked: None };
        let next = || Issued { serial: Serial::new(&[2]), host: host.clone(), not_after: at(9_000) };
        let mut register = Register::open(dir.path()).unwrap();
        register.content.issued = (1_000..1_000 + ISSUED_MAX as u64).rev().map(entry).collect();
        assert!(matches!(register.add(next(), at(999)), Err(RegisterError::Full)), "all are valid");
        // A clock that is ahead takes all for ended.
        register.add(next(), at(8_000)).unwrap();
        let ends: Vec<u64> = register.content.issued.iter().map(|entry| entry.not_after).collect();
        assert!(ends.len() == ISSUED_MAX && !ends.contains(&1_000) && ends.contains(&1_001));
    }
}
