//! Certificates for agents of the lab. A host that has them gets an agent with `security = "tls"`, any other speaks
//! plain text unless its test says otherwise.

use std::path::{Path, PathBuf};

use linerate_trust::authority::{Authority, Grounds};
use linerate_trust::bundle::Bundle;
use linerate_trust::identity::Identity;
use linerate_trust::name::Name;
use linerate_trust::request::{NewKey, Request};
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::{Host, LabError};

/// Name of every cluster of the lab.
const CLUSTER: &str = "lab";

/// An authority that makes hosts members of its cluster.
pub struct Cluster {
    authority: Authority,
    /// Authorities besides its own that its hosts trust.
    others: Vec<CertificateDer<'static>>,
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> LabError {
    LabError::Trust { source: Box::new(error) }
}

impl Cluster {
    /// A new authority, with its key in this folder.
    pub fn new(folder: &Path) -> Result<Cluster, LabError> {
        let cluster = CLUSTER.parse().map_err(failed)?;
        let authority = Authority::create(folder, &cluster, UnixTime::now()).map_err(failed)?;
        Ok(Cluster { authority, others: Vec::new() })
    }

    /// One that was made before.
    pub fn open(folder: &Path) -> Result<Cluster, LabError> {
        Ok(Cluster { authority: Authority::open(folder).map_err(failed)?, others: Vec::new() })
    }

    /// Has hosts that join from now on trust another cluster's authority, too.
    pub fn trust(&mut self, other: &Cluster) {
        self.others.push(other.authority.certificate().clone());
    }

    /// Makes the host a member under its own name. Its agent has the certificate from its next start on.
    pub fn join(&mut self, host: &Host) -> Result<(), LabError> {
        self.join_as(host, host.name())
    }

    /// The same under another name.
    pub fn join_as(&mut self, host: &Host, name: &str) -> Result<(), LabError> {
        let now = UnixTime::now();
        let name = Name { cluster: self.authority.cluster().clone(), host: name.parse().map_err(failed)? };
        let key = NewKey::make(name).map_err(failed)?;
        let request = Request::read(&key.request().map_err(failed)?).map_err(failed)?;
        let certificate = self.authority.issue(&request, &Grounds::Own, now).map_err(failed)?;
        let own = std::iter::once(self.authority.certificate());
        let bundle = Bundle::new(own.chain(&self.others).cloned().collect()).map_err(failed)?;
        leave(host)?;
        let id = self.authority.id();
        Identity::install(&folder(host), &key, &certificate, &bundle, id, now).map_err(failed)?;
        Ok(())
    }
}

/// Takes a host's certificate away: its agent speaks plain text from its next start on.
pub fn leave(host: &Host) -> Result<(), LabError> {
    match std::fs::remove_dir_all(folder(host)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(error)),
        _ => Ok(()),
    }
}

fn folder(host: &Host) -> PathBuf {
    host.directory.join("identity")
}

/// What the configuration of the host's agent has for it: keys, and a table. Plain text unless the host has a
/// certificate or the test says otherwise.
pub(crate) fn configuration(host: &Host, more: &str) -> (&'static str, String) {
    let folder = folder(host);
    let file = |name: &str| folder.join(name).display().to_string();
    let (own, authorities) = (file("host.pem"), file("trust.pem"));
    let table = format!(
        "[certificate]\ncluster = \"{CLUSTER}\"\ncertificate = {own:?}\nkey = {own:?}\nauthorities = {authorities:?}\n"
    );
    match folder.join("host.pem").exists() {
        true => ("security = \"tls\"\n", table),
        false if more.contains("security = ") => ("", String::new()),
        false => ("security = \"insecure\"\n", String::new()),
    }
}
