//! A real etcd that speaks TLS and wants certificates of its clients.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::path::Path;
use std::time::Duration;

use common::wait;
use linerate_lab::etcd::Cluster;
use linerate_store::etcd::{Etcd, Options, Tls};
use linerate_store::{Store, Transaction, Write};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Certificate and key, as PEM.
fn identity(authority: &Authority, name: &str) -> (Vec<u8>, Vec<u8>) {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, authority).unwrap();
    (certificate.pem().into_bytes(), key.serialize_pem().into_bytes())
}

fn start(folder: &Path, of: &Authority) -> Cluster {
    Cluster::start_tls(folder, |address| {
        let (certificate, key) = identity(of, &address.to_string());
        std::fs::write(folder.join("ca.pem"), of.pem()).unwrap();
        std::fs::write(folder.join("server.pem"), certificate).unwrap();
        std::fs::write(folder.join("server.key"), key).unwrap();
        Ok(())
    })
    .unwrap()
}

fn open(cluster: &Cluster, authority: &Authority, identity: Option<(Vec<u8>, Vec<u8>)>) -> Etcd {
    let options = Options {
        endpoints: cluster.endpoints(),
        prefix: "/linerate/".into(),
        tls: Some(Tls { authorities: authority.pem().into_bytes(), identity }),
        lease: Duration::from_secs(60),
        ..Options::default()
    };
    Etcd::open(&options).unwrap()
}

#[test]
fn only_members_of_the_right_authority_speak_with_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let (right, wrong) = (authority(), authority());
    let cluster = start(folder.path(), &right);
    let own = open(&cluster, &right, Some(identity(&right, "host")));
    wait("a lease", || own.lease().is_some());
    let put = Write::Put { key: "a".into(), value: b"1".to_vec(), leased: true };
    let transaction = Transaction { conditions: Vec::new(), writes: vec![put] };
    wait("an answer to a write", || own.commit(&transaction).is_ok());
    wait("what was written", || {
        own.get("a").is_ok_and(|entry| entry.is_some_and(|entry| entry.value == b"1"))
    });
    // It runs, so whoever gets no answer was refused.
    let strangers = [
        open(&cluster, &right, None),
        open(&cluster, &right, Some(identity(&wrong, "host"))),
        open(&cluster, &wrong, Some(identity(&right, "host"))),
    ];
    for stranger in strangers {
        let refused = stranger.get("a");
        assert!(refused.is_err(), "{refused:?}");
    }
}
