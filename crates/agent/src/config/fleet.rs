//! The table `[fleet]` of the configuration: the etcd cluster that hosts share.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use linerate_store::etcd::{Options, Tls};
use linerate_trust::files::{self, FileError, Secrecy};
use serde::Deserialize;

use super::Protection;

/// The etcd cluster that this host shares with others. Without the table each host has a store of its own.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FleetSettings {
    /// Its members: `https://etcd1.example:2379`. One that answers is enough.
    pub endpoints: Vec<String>,
    /// What the keys of this fleet begin with. Fleets with different prefixes share one etcd. Default `/linerate/`.
    #[serde(default = "default_prefix")]
    pub prefix: String,
    /// PEM file of the authorities that the members' certificates are checked with. Needed with `https`.
    #[serde(default)]
    pub authorities: Option<PathBuf>,
    /// PEM file of this host's certificate for etcd, where etcd wants one; with `key`.
    #[serde(default)]
    pub certificate: Option<PathBuf>,
    /// PEM file of its private key.
    #[serde(default)]
    pub key: Option<PathBuf>,
    /// User of etcd, where it has users; with `password_file`.
    #[serde(default)]
    pub user: Option<String>,
    /// File with the user's password, in its first line.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// Whether members may be reached without TLS at other addresses than loopback: whoever is on the way can then
    /// cordon hosts and end drains. Default no.
    #[serde(default)]
    pub insecure: bool,
    /// A host that etcd has not heard of for so many seconds counts as not answering, 2 to 600. Default 10.
    #[serde(default = "default_lease_s")]
    pub lease_s: u64,
    /// The drain of a host that has not answered for so many seconds is ended by another host. Default 300.
    #[serde(default = "default_lost_s")]
    pub lost_s: u64,
}

fn default_prefix() -> String {
    "/linerate/".into()
}

fn default_lease_s() -> u64 {
    10
}

fn default_lost_s() -> u64 {
    300
}

/// Why a file that the table names is not used. The text has its cause.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FleetFileError {
    #[error("cannot read {}: {error}", .path.display())]
    Unread { path: PathBuf, error: io::Error },
    #[error("{0}")]
    Secret(FileError),
}

impl From<FileError> for FleetFileError {
    fn from(error: FileError) -> FleetFileError {
        FleetFileError::Secret(error)
    }
}

impl FleetSettings {
    /// What is wrong with it.
    pub(super) fn problem(&self, security: Option<Protection>) -> Option<String> {
        if self.endpoints.is_empty() {
            return Some("[fleet] names no endpoints: at least one member of the etcd cluster".into());
        }
        for endpoint in &self.endpoints {
            let Some((scheme, host)) = endpoint.split_once("://") else {
                return Some(format!("[fleet] endpoint {endpoint} is no address like https://HOST:2379"));
            };
            let is_plain_allowed =
                is_loopback(host) || self.insecure || security == Some(Protection::Insecure);
            match scheme {
                "https" if self.authorities.is_none() => {
                    return Some(format!(
                        "[fleet] endpoint {endpoint} needs authorities: the PEM file that its certificate is checked with"
                    ));
                }
                "https" => {}
                "http" if is_plain_allowed => {}
                "http" => {
                    return Some(format!(
                        "[fleet] endpoint {endpoint} is plain text: whoever is on the way could end drains; use https, or set insecure = true"
                    ));
                }
                _ => return Some(format!("[fleet] endpoint {endpoint} begins with neither https nor http")),
            }
        }
        if self.certificate.is_some() != self.key.is_some() {
            return Some("[fleet] needs both certificate and key, or neither".into());
        }
        if self.user.is_some() != self.password_file.is_some() {
            return Some("[fleet] needs both user and password_file, or neither".into());
        }
        if !self.prefix.starts_with('/') || !self.prefix.ends_with('/') {
            return Some(format!("[fleet] prefix {} must begin and end with a slash", self.prefix));
        }
        if !(2..=600).contains(&self.lease_s) || self.lost_s < self.lease_s {
            return Some("[fleet] lease_s must be 2 to 600, and lost_s at least as much".into());
        }
        let files = [&self.authorities, &self.certificate, &self.key, &self.password_file];
        let mut files = files.into_iter().flatten();
        files
            .find(|path| path.is_relative())
            .map(|path| format!("[fleet] {} is not absolute", path.display()))
    }

    /// What the client needs. The files are read now, those with secrets only if no other user could have read them.
    pub(crate) fn options(&self) -> Result<Options, FleetFileError> {
        let open = |path: &Path| {
            std::fs::read(path).map_err(|error| FleetFileError::Unread { path: path.to_owned(), error })
        };
        let secret = |path: &Path| files::read(path, Secrecy::Private);
        let identity = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => Some((open(certificate)?, secret(key)?)),
            _ => None,
        };
        let authorities = self.authorities.as_deref().map(open).transpose()?;
        let tls = authorities.map(|authorities| Tls { authorities, identity });
        let user = match (&self.user, &self.password_file) {
            (Some(user), Some(file)) => {
                let text = String::from_utf8_lossy(&secret(file)?).into_owned();
                Some((user.clone(), text.lines().next().unwrap_or_default().to_owned()))
            }
            _ => None,
        };
        Ok(Options {
            endpoints: self.endpoints.clone(),
            prefix: self.prefix.clone(),
            tls,
            user,
            lease: Duration::from_secs(self.lease_s),
        })
    }
}

/// Of `HOST:PORT`, with or without a path.
fn is_loopback(host: &str) -> bool {
    let host = host.split('/').next().unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name).trim_matches(['[', ']']);
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn problem(text: &str) -> String {
        let settings: FleetSettings = toml::from_str(text).unwrap();
        settings.problem(Some(Protection::Tls)).unwrap_or_default()
    }

    #[test]
    fn etcd_is_reached_by_tls_or_at_loopback() {
        assert_eq!(problem("endpoints = ['http://[::1]:2379', 'http://127.0.0.1:2379']"), "");
        assert_eq!(problem("endpoints = ['https://a:2379']\nauthorities = '/ca.pem'"), "");
        assert!(problem("endpoints = ['https://a:2379']").contains("authorities"));
        assert!(problem("endpoints = ['http://localhost.example:2379']").contains("plain text"));
        assert!(problem("endpoints = ['http://10.0.0.1:2379']").contains("insecure = true"));
        assert_eq!(problem("endpoints = ['http://10.0.0.1:2379']\ninsecure = true"), "");
        for wrong in ["endpoints = []", "endpoints = ['10.0.0.1:2379']", "endpoints = ['ftp://a']"] {
            assert!(problem(wrong).starts_with("[fleet]"), "{wrong}");
        }
    }

    #[test]
    fn half_of_a_pair_is_refused() {
        let with = |rest: &str| problem(&format!("endpoints = ['http://localhost:2379']\n{rest}"));
        assert!(with("certificate = '/a'").contains("both"));
        assert!(with("user = 'a'").contains("both"));
        assert!(with("prefix = 'linerate'").contains("slash"));
        assert!(with("lease_s = 1").contains("lease_s"));
        assert!(with("lease_s = 20\nlost_s = 10").contains("lost_s"));
        assert!(with("authorities = 'a.pem'").contains("absolute"));
    }

    #[test]
    fn a_missing_file_is_named() {
        let settings: FleetSettings =
            toml::from_str("endpoints = ['https://a:2379']\nauthorities = '/nowhere/ca.pem'").unwrap();
        assert!(settings.options().unwrap_err().to_string().contains("/nowhere/ca.pem"));
    }

    #[test]
    fn secrets_that_others_may_read_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, mode: u32| {
            let path = dir.path().join(name);
            std::fs::write(&path, "secret\n").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path.display().to_string()
        };
        let with = |key: u32, password: u32| {
            let text = format!(
                "endpoints = ['https://a:2379']\nauthorities = '{}'\ncertificate = '{}'\nkey = '{}'\n\
                 user = 'linerate'\npassword_file = '{}'",
                file("ca.pem", 0o644),
                file("own.pem", 0o644),
                file("own.key", key),
                file("password", password),
            );
            toml::from_str::<FleetSettings>(&text).unwrap().options()
        };
        let options = with(0o600, 0o400).unwrap();
        assert_eq!(options.user, Some(("linerate".into(), "secret".into())));
        for (key, password, named) in [(0o640, 0o600, "own.key"), (0o600, 0o604, "password")] {
            let refused = with(key, password).map(drop).unwrap_err().to_string();
            assert!(refused.contains(named) && refused.contains("chmod 600"), "{refused}");
        }
    }
}
