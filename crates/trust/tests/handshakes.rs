//! What an attacker tries against a connection, and what two hosts of a cluster do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::result_large_err)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{
    At, Cluster, DAY, after, before, connect, handshake, host, host_params, key_of, write_identity,
};
use linerate_trust::bundle::{Bundle, BundleError};
use linerate_trust::identity::IdentityError;
use linerate_trust::peer::{PeerError, Side};
use linerate_trust::revocation::RevocationError;
use linerate_trust::tls;
use rcgen::{BasicConstraints, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, SanType};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, ClientConfig, ProtocolVersion, RootCertStore, ServerConfig};

#[test]
fn two_hosts_know_each_other() {
    let mut cluster = Cluster::new("lab");
    let (one, two) = (cluster.host("one"), cluster.host("two"));
    let found = connect(&one, &two).unwrap();
    assert_eq!(tls::peer(&one, &found.client, Side::Server, UnixTime::now()).unwrap().host, host("two"));
    let peer = tls::peer(&two, &found.server, Side::Client, UnixTime::now()).unwrap();
    assert_eq!((peer.host, peer.cluster.as_str()), (host("one"), "lab"));
    assert_eq!(found.client.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    assert_eq!(found.server.alpn_protocol(), Some(b"linerate/1".as_slice()));
    assert_eq!(found.client.tls13_tickets_received(), 0, "nothing to resume with");
}

#[test]
fn a_host_of_another_authority_is_refused_by_both_ends() {
    let (mut cluster, mut other) = (Cluster::new("lab"), Cluster::new("lab"));
    let (one, stranger) = (cluster.host("one"), other.host("two"));
    assert_eq!(*connect(&one, &stranger).err().unwrap().by_client(), PeerError::UnknownAuthority);
    // The server's own check: the client here trusts the server, so that it comes to its turn.
    let both =
        Bundle::new(vec![other.authority.certificate().clone(), cluster.authority.certificate().clone()])
            .unwrap();
    stranger.set_authorities(&both).unwrap();
    assert_eq!(*connect(&stranger, &one).err().unwrap().by_server(), PeerError::UnknownAuthority);
}

#[test]
fn an_authority_that_is_imitated_is_refused() {
    let mut cluster = Cluster::new("lab");
    let one = cluster.host("one");
    // The same names and serial number as the authority, another key.
    let mut params = rcgen::CertificateParams::default();
    let real = x509_parser::parse_x509_certificate(cluster.authority.certificate()).unwrap().1;
    let subject = real.subject().iter_common_name().next().unwrap().as_str().unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, subject);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let key = KeyPair::generate().unwrap();
    let imitation = rcgen::Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let certificate = host_params("spiffe://lab/host/two").signed_by(&key, &imitation).unwrap();
    let two =
        write_identity(&cluster.host_folder("two"), &key, &certificate.pem(), &cluster.bundle().to_pem());
    assert_eq!(*connect(&one, &two).err().unwrap().by_client(), PeerError::UnknownAuthority);
    assert_eq!(*connect(&two, &one).err().unwrap().by_server(), PeerError::UnknownAuthority);
}

#[test]
fn another_host_than_the_one_that_was_called_is_refused() {
    let mut cluster = Cluster::new("lab");
    let (one, two) = (cluster.host("one"), cluster.host("two"));
    let try_to = |name| handshake(tls::client(&one, Some(host(name))).unwrap(), tls::server(&two).unwrap());
    assert!(try_to("two").is_ok());
    let error = PeerError::Host { found: host("two"), expected: host("three") };
    assert_eq!(*try_to("three").err().unwrap().by_client(), error);
}

#[test]
fn a_host_of_another_cluster_is_refused_though_the_authority_is_the_same() {
    let mut cluster = Cluster::new("lab");
    let one = cluster.host("one");
    let uri = "spiffe://other/host/two";
    let key = KeyPair::generate().unwrap();
    let certificate = host_params(uri).signed_by(&key, &cluster.issuer()).unwrap();
    // The stranger's own files are its own affair: here they trust anybody.
    let mut config = tls::client(&one, None).unwrap();
    config.client_auth_cert_resolver = single(vec![certificate.der().clone()], key);
    let refused = handshake(config, tls::server(&one).unwrap()).err().unwrap();
    let expected = PeerError::Cluster { found: "other".parse().unwrap(), expected: "lab".parse().unwrap() };
    assert_eq!(*refused.by_server(), expected);
}

#[test]
fn a_certificate_without_one_good_name_is_refused() {
    let mut cluster = Cluster::new("lab");
    let one = cluster.host("one");
    let uri = |text: &str| SanType::URI(text.to_owned().try_into().unwrap());
    let names = [
        vec![],
        vec![uri("spiffe://lab/host/two"), uri("spiffe://lab/host/three")],
        vec![uri("spiffe://lab/host/TWO")],
        vec![uri("spiffe://lab/authority")],
        vec![SanType::DnsName("two".try_into().unwrap())],
    ];
    for names in names {
        let key = KeyPair::generate().unwrap();
        let mut params = host_params("spiffe://lab/host/two");
        params.subject_alt_names = names.clone();
        let certificate = params.signed_by(&key, &cluster.issuer()).unwrap();
        let mut config = tls::client(&one, None).unwrap();
        config.client_auth_cert_resolver = single(vec![certificate.der().clone()], key);
        let refused = handshake(config, tls::server(&one).unwrap()).err().unwrap();
        let refused = refused.by_server();
        assert!(
            matches!(refused, PeerError::NoName | PeerError::ManyNames | PeerError::Name(_)),
            "{names:?} {refused}"
        );
    }
}

#[test]
fn a_certificate_counts_from_an_hour_before_it_was_made_for_ninety_days() {
    let mut cluster = Cluster::new("lab");
    let made = cluster.made;
    let (one, two) = (cluster.host("one"), cluster.host("two"));
    // Each end has a clock of its own; the other one is right.
    let at = |client_time, server_time| {
        let mut client = tls::client(&one, None).unwrap();
        client.time_provider = Arc::new(At(client_time));
        let mut server = tls::server(&two).unwrap();
        server.time_provider = Arc::new(At(server_time));
        handshake(client, server)
    };
    let minute = Duration::from_secs(60);
    for good in [before(made, 59 * minute), after(made, 90 * DAY - minute)] {
        assert!(at(good, made).is_ok() && at(made, good).is_ok());
    }
    let early = before(made, 61 * minute);
    assert!(matches!(at(early, made).err().unwrap().by_client(), PeerError::NotYetValid(_)));
    assert!(matches!(at(made, early).err().unwrap().by_server(), PeerError::NotYetValid(_)));
    let late = after(made, 90 * DAY + minute);
    assert!(matches!(at(late, made).err().unwrap().by_client(), PeerError::Expired(_)));
    assert!(matches!(at(made, late).err().unwrap().by_server(), PeerError::Expired(_)));
}

#[test]
fn a_revoked_certificate_is_found_also_when_it_has_ended() {
    let mut cluster = Cluster::at("lab", before(UnixTime::now(), 200 * DAY));
    let (one, _two) = (cluster.host("one"), cluster.host("two"));
    let list = cluster.authority.revoke(&host("two"), cluster.made).unwrap();
    let (own, revoked) = (key_of(&cluster, "one").0, key_of(&cluster, "two").0);
    assert!(!one.is_revoked(&revoked));
    one.accept_revocations(&list).unwrap();
    let refused = one.verify(&revoked, Side::Client, None, UnixTime::now()).unwrap_err();
    assert!(matches!(refused, PeerError::Expired(_)), "{refused}");
    assert!(one.is_revoked(&revoked) && !one.is_revoked(&own));
}

#[test]
fn a_revoked_host_is_refused_also_in_the_middle_of_a_connection() {
    let mut cluster = Cluster::new("lab");
    let (one, two, three) = (cluster.host("one"), cluster.host("two"), cluster.host("three"));
    let open = connect(&two, &one).unwrap();
    assert!(tls::peer(&one, &open.server, Side::Client, UnixTime::now()).is_ok());
    let list = cluster.authority.revoke(&host("two"), cluster.made).unwrap();
    assert!(one.accept_revocations(&list).unwrap());
    assert_eq!(tls::peer(&one, &open.server, Side::Client, UnixTime::now()), Err(PeerError::Revoked));
    assert_eq!(*connect(&two, &one).err().unwrap().by_server(), PeerError::Revoked);
    assert_eq!(*connect(&one, &two).err().unwrap().by_client(), PeerError::Revoked);
    assert!(connect(&one, &three).is_ok(), "others are not concerned");
    // The list counts also when the next one is long overdue, and for an agent that starts again.
    let mut server =
        tls::server(&linerate_trust::identity::Identity::open(&cluster.host_folder("one")).unwrap()).unwrap();
    server.time_provider = Arc::new(At(after(cluster.made, 80 * DAY)));
    let refused = handshake(tls::client(&two, None).unwrap(), server).err().unwrap();
    assert_eq!(*refused.by_server(), PeerError::Revoked);
}

#[test]
fn an_older_list_a_strangers_list_and_a_changed_list_are_refused() {
    let mut cluster = Cluster::new("lab");
    let (one, _two, _three) = (cluster.host("one"), cluster.host("two"), cluster.host("three"));
    let first = cluster.authority.revoke(&host("two"), cluster.made).unwrap();
    let second = cluster.authority.revoke(&host("three"), cluster.made).unwrap();
    assert!(one.accept_revocations(&second).unwrap());
    assert!(!one.accept_revocations(&second).unwrap(), "nothing new");
    let refused = |der: &[u8]| match one.accept_revocations(der) {
        Err(IdentityError::Revocation(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&first), RevocationError::Older { offered: 1, known: 2 });
    let mut stranger = Cluster::new("lab");
    let _ = stranger.host("two");
    let forged = stranger.authority.revoke(&host("two"), stranger.made).unwrap();
    assert_eq!(refused(&forged), RevocationError::Signature);
    let mut changed = second.clone();
    *changed.last_mut().unwrap() ^= 1;
    assert!(matches!(refused(&changed), RevocationError::Signature | RevocationError::Encoding));
    for length in 0..second.len() {
        assert_eq!(refused(&second[..length]), RevocationError::Encoding);
    }
    assert!(matches!(refused(&vec![0x30; 1 << 20]), RevocationError::Large(_)));
    assert_eq!(one.revocation_number(cluster.authority.id()), 2);
    // The file may not go back either: what was in force stays.
    let path = cluster.host_folder("one").join("trust.pem");
    let newer = std::fs::read(&path).unwrap();
    std::fs::write(
        &path,
        cluster.bundle().to_pem() + &pem::encode(&pem::Pem::new("X509 CRL", first.clone())),
    )
    .unwrap();
    assert!(matches!(one.reload(), Err(IdentityError::Revocation(RevocationError::Older { .. }))));
    assert_eq!(one.revocation_list(cluster.authority.id()).unwrap(), second);
    std::fs::write(&path, newer).unwrap();
    one.reload().unwrap();
}

#[test]
fn an_older_tls_is_refused_by_both_ends() {
    let mut cluster = Cluster::new("lab");
    let (one, two) = (cluster.host("one"), cluster.host("two"));
    let (chain, key) = key_of(&cluster, "two");
    let mut old = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_client_auth_cert(chain.clone(), key.clone_key())
        .unwrap();
    old.alpn_protocols = vec![b"linerate/1".to_vec()];
    let refused = handshake(old, tls::server(&one).unwrap()).err().unwrap();
    assert_eq!(refused.client, Some(rustls::Error::AlertReceived(AlertDescription::ProtocolVersion)));
    let mut old = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    old.alpn_protocols = vec![b"linerate/1".to_vec()];
    let refused = handshake(tls::client(&one, None).unwrap(), old).err().unwrap();
    assert_eq!(refused.client, Some(rustls::Error::AlertReceived(AlertDescription::ProtocolVersion)));
    assert!(connect(&one, &two).is_ok());
}

#[test]
fn a_peer_of_another_protocol_is_refused() {
    let mut cluster = Cluster::new("lab");
    let (one, two) = (cluster.host("one"), cluster.host("two"));
    for protocols in [vec![], vec![b"h2".to_vec()], vec![b"linerate-join/1".to_vec()]] {
        let mut config = tls::client(&one, None).unwrap();
        config.alpn_protocols = protocols.clone();
        assert!(handshake(config, tls::server(&two).unwrap()).is_err(), "{protocols:?}");
    }
    // A server that is no agent: the handshake may succeed, and it is no known host.
    let (chain, key) = key_of(&cluster, "two");
    let server = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let found = handshake(tls::client(&one, None).unwrap(), server).unwrap();
    assert_eq!(
        tls::peer(&one, &found.client, Side::Server, UnixTime::now()),
        Err(PeerError::Protocol("linerate/1"))
    );
}

#[test]
fn a_client_without_a_certificate_is_refused() {
    let mut cluster = Cluster::new("lab");
    let one = cluster.host("one");
    let mut config = tls::client(&one, None).unwrap();
    config.client_auth_cert_resolver = Arc::new(Nobody);
    let refused = handshake(config, tls::server(&one).unwrap()).err().unwrap();
    assert_eq!(refused.server, Some(rustls::Error::NoCertificatesPresented));
}

#[test]
fn a_hosts_certificate_is_no_authority() {
    let mut cluster = Cluster::new("lab");
    let (one, _two) = (cluster.host("one"), cluster.host("two"));
    // Host two signs a certificate for three.
    let (chain, key) = key_of(&cluster, "two");
    let key = KeyPair::try_from(&key).unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_der(&chain[0], key).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = host_params("spiffe://lab/host/three").signed_by(&key, &issuer).unwrap();
    let mut config = tls::client(&one, None).unwrap();
    config.client_auth_cert_resolver = single(vec![certificate.der().clone(), chain[0].clone()], key);
    let refused = handshake(config, tls::server(&one).unwrap()).err().unwrap();
    assert_eq!(*refused.by_server(), PeerError::Chain);
    // Nor is it taken into a list of authorities.
    assert!(matches!(Bundle::new(vec![chain[0].clone()]), Err(BundleError::NoAuthority(_))));
}

#[test]
fn an_authority_below_the_authority_is_refused() {
    let mut cluster = Cluster::new("lab");
    let one = cluster.host("one");
    let mut params = host_params("spiffe://lab");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let below_key = KeyPair::generate().unwrap();
    let below = params.signed_by(&below_key, &cluster.issuer()).unwrap();
    let issuer = rcgen::Issuer::new(params, below_key);
    let key = KeyPair::generate().unwrap();
    let certificate = host_params("spiffe://lab/host/three").signed_by(&key, &issuer).unwrap();
    let mut config = tls::client(&one, None).unwrap();
    config.client_auth_cert_resolver = single(vec![certificate.der().clone(), below.der().clone()], key);
    let refused = handshake(config, tls::server(&one).unwrap()).err().unwrap();
    assert_eq!(*refused.by_server(), PeerError::Chain);
}

#[test]
fn an_authoritys_certificate_is_no_hosts() {
    let mut cluster = Cluster::new("lab");
    let one = cluster.host("one");
    let mut params = host_params("spiffe://lab/host/two");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &cluster.issuer()).unwrap();
    let mut config = tls::client(&one, None).unwrap();
    config.client_auth_cert_resolver = single(vec![certificate.der().clone()], key);
    let refused = handshake(config, tls::server(&one).unwrap()).err().unwrap();
    assert_eq!(*refused.by_server(), PeerError::Chain);
}

#[test]
fn a_long_chain_is_refused() {
    let mut cluster = Cluster::new("lab");
    let one = cluster.host("one");
    let (chain, key) = key_of(&cluster, "one");
    let with = |more: usize| {
        let mut chain = chain.clone();
        chain.extend(std::iter::repeat_n(cluster.authority.certificate().clone(), more));
        let mut config = tls::client(&one, None).unwrap();
        config.client_auth_cert_resolver = single(chain, KeyPair::try_from(&key).unwrap());
        handshake(config, tls::server(&one).unwrap())
    };
    assert!(with(4).is_ok());
    assert_eq!(*with(5).err().unwrap().by_server(), PeerError::TooMany(6));
}

#[test]
fn a_certificate_for_another_use_is_refused() {
    let mut cluster = Cluster::new("lab");
    let one = cluster.host("one");
    let usages = |usages: Vec<ExtendedKeyUsagePurpose>| {
        move |params: &mut rcgen::CertificateParams| params.extended_key_usages = usages
    };
    let server_only = cluster.forged("two", usages(vec![ExtendedKeyUsagePurpose::ServerAuth]));
    assert!(connect(&one, &server_only).is_ok());
    assert_eq!(*connect(&server_only, &one).err().unwrap().by_server(), PeerError::Usage);
    let client_only = cluster.forged("three", usages(vec![ExtendedKeyUsagePurpose::ClientAuth]));
    assert!(connect(&client_only, &one).is_ok());
    assert_eq!(*connect(&one, &client_only).err().unwrap().by_client(), PeerError::Usage);
    let neither = cluster.forged("four", usages(vec![]));
    assert_eq!(*connect(&neither, &one).err().unwrap().by_server(), PeerError::Usage);
}

#[test]
fn two_authorities_are_trusted_while_hosts_change_over() {
    let (mut old, mut new) = (Cluster::new("lab"), Cluster::new("lab"));
    let certificates = vec![old.authority.certificate().clone(), new.authority.certificate().clone()];
    let both = Bundle::new(certificates.clone()).unwrap();
    let (one, two) = (old.host("one"), new.host_with("two", &both));
    assert!(connect(&two, &one).is_err(), "one does not know the new authority yet");
    one.set_authorities(&both).unwrap();
    assert!(connect(&one, &two).is_ok() && connect(&two, &one).is_ok());
    // Each has a list of its own: the old authority's does not stand in the way of hosts of the new one.
    let _ = old.host("three");
    one.accept_revocations(&old.authority.revoke(&host("three"), old.made).unwrap()).unwrap();
    assert!(connect(&two, &one).is_ok());
    let list = new.authority.revoke(&host("two"), new.made).unwrap();
    one.accept_revocations(&list).unwrap();
    assert_eq!(*connect(&two, &one).err().unwrap().by_server(), PeerError::Revoked);
    one.set_authorities(&old.bundle()).unwrap();
    assert_eq!(*connect(&two, &one).err().unwrap().by_server(), PeerError::UnknownAuthority);
    assert_eq!(one.revocation_number(old.authority.id()), 1);
    let third = Cluster::new("lab").authority.certificate().clone();
    assert_eq!(Bundle::new([certificates, vec![third]].concat()).unwrap_err(), BundleError::Many);
}

#[test]
fn an_authority_of_another_cluster_is_not_trusted() {
    let (mut cluster, other) = (Cluster::new("lab"), Cluster::new("other"));
    let one = cluster.host("one");
    let both =
        Bundle::new(vec![cluster.authority.certificate().clone(), other.authority.certificate().clone()]);
    assert!(matches!(
        one.set_authorities(&both.unwrap()),
        Err(IdentityError::Bundle(BundleError::Cluster { .. }))
    ));
}

#[test]
fn a_renewed_certificate_counts_without_a_new_configuration() {
    let mut cluster = Cluster::new("lab");
    let (one, two) = (cluster.host("one"), cluster.host("two"));
    let (client, server) = (tls::client(&one, None).unwrap(), tls::server(&two).unwrap());
    let serial = || {
        let found = handshake(client.clone(), server.clone()).unwrap();
        let at_server = tls::peer(&two, &found.server, Side::Client, UnixTime::now()).unwrap();
        let at_client = tls::peer(&one, &found.client, Side::Server, UnixTime::now()).unwrap();
        (at_server.serial, at_client.serial)
    };
    let first = serial();
    let (key, certificate) = cluster.issue("one", cluster.made);
    one.renew(&key, &certificate, cluster.made).unwrap();
    let second = serial();
    assert!(second.0 != first.0 && second.1 == first.1);
    // Another process wrote the files of two.
    let (key, certificate) = cluster.issue("two", cluster.made);
    let folder = cluster.host_folder("two");
    let id = cluster.authority.id();
    linerate_trust::identity::Identity::install(
        &folder,
        &key,
        &certificate,
        &cluster.bundle(),
        id,
        cluster.made,
    )
    .unwrap();
    assert_eq!(serial(), second);
    two.reload().unwrap();
    assert!(serial().1 != second.1);
}

#[test]
fn a_handshake_that_is_cut_or_repeated_makes_no_peer() {
    let mut cluster = Cluster::new("lab");
    let (one, two) = (cluster.host("one"), cluster.host("two"));
    let config = Arc::new(tls::server(&two).unwrap());
    let mut client =
        rustls::ClientConnection::new(Arc::new(tls::client(&one, None).unwrap()), tls::server_name())
            .unwrap();
    let mut server = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
    let (mut hello, mut answer, mut end) = (Vec::new(), Vec::new(), Vec::new());
    client.write_tls(&mut hello).unwrap();
    server.read_tls(&mut hello.as_slice()).unwrap();
    server.process_new_packets().unwrap();
    while server.wants_write() {
        server.write_tls(&mut answer).unwrap();
    }
    assert_eq!(
        tls::peer(&two, &server, Side::Client, UnixTime::now()),
        Err(PeerError::NoCertificate),
        "not finished"
    );
    let mut rest = answer.as_slice();
    while !rest.is_empty() {
        client.read_tls(&mut rest).unwrap();
        client.process_new_packets().unwrap();
    }
    while client.wants_write() {
        client.write_tls(&mut end).unwrap();
    }
    // Cut: all but the last byte.
    server.read_tls(&mut &end[..end.len() - 1]).unwrap();
    server.process_new_packets().unwrap();
    assert_eq!(tls::peer(&two, &server, Side::Client, UnixTime::now()), Err(PeerError::NoCertificate));
    server.read_tls(&mut &end[end.len() - 1..]).unwrap();
    server.process_new_packets().unwrap();
    assert!(tls::peer(&two, &server, Side::Client, UnixTime::now()).is_ok());
    // Said again, to the same server.
    let mut again = rustls::ServerConnection::new(config).unwrap();
    again.read_tls(&mut hello.as_slice()).unwrap();
    again.process_new_packets().unwrap();
    while again.wants_write() {
        again.write_tls(&mut Vec::new()).unwrap();
    }
    again.read_tls(&mut end.as_slice()).unwrap();
    assert!(again.process_new_packets().is_err());
    assert!(tls::peer(&two, &again, Side::Client, UnixTime::now()).is_err());
}

#[derive(Debug)]
struct Nobody;

impl rustls::client::ResolvesClientCert for Nobody {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<rustls::sign::CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

/// A client that shows this chain, whatever its identity is.
fn single(
    chain: Vec<rustls::pki_types::CertificateDer<'static>>,
    key: KeyPair,
) -> Arc<dyn rustls::client::ResolvesClientCert> {
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(key.into());
    let key = rustls::sign::CertifiedKey::from_der(chain, key, &default_provider()).unwrap();
    Arc::new(rustls::sign::SingleCertAndKey::from(key))
}
