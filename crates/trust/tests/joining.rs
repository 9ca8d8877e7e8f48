//! A host that joins with a token, and what can prevent that.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Cluster, Connected, DAY, after, connect, handshake, host, key_of};
use linerate_trust::authority::{AuthorityError, Grounds, OF_ONE_HOST};
use linerate_trust::identity::{Identity, IdentityError};
use linerate_trust::name::Name;
use linerate_trust::peer::{Peer, PeerError, Side};
use linerate_trust::request::{NewKey, Request};
use linerate_trust::tls;
use linerate_trust::token::{StoreError, Token};
use rcgen::{CertificateParams, IsCa, KeyPair, KeyUsagePurpose, SanType};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};

const TTL: Duration = Duration::from_secs(900);

fn token(cluster: &mut Cluster) -> Token {
    cluster.authority.create_token(TTL, "test", None, cluster.made).unwrap()
}

fn request(name: &Name) -> (NewKey, Request) {
    let key = NewKey::make(name.clone()).unwrap();
    let request = Request::read(&key.request().unwrap()).unwrap();
    (key, request)
}

fn join_connection(token: &Token, cluster: &Cluster) -> Connected {
    let server = tls::join_server(&cluster.authority, cluster.made).unwrap();
    handshake(tls::join_client(token).unwrap(), server).unwrap()
}

/// All of it, as an agent will do it.
fn join(cluster: &mut Cluster, token: &Token, name: &str) -> Result<Identity, AuthorityError> {
    let connection = join_connection(token, cluster);
    let found = tls::join_peer(token, &connection.client, UnixTime::now()).unwrap();
    let (key, request) = request(&Name { cluster: found, host: host(name) });
    let now = cluster.made;
    let redeemed = cluster.authority.tokens().redeem(token.secret(), now)?;
    let certificate = cluster.authority.issue(&request, &Grounds::Token(&redeemed), now)?;
    let (folder, bundle) = (cluster.host_folder(name), cluster.bundle());
    Ok(Identity::install(&folder, &key, &certificate, &bundle, token.authority(), now).unwrap())
}

#[test]
fn a_host_joins_with_the_line_of_a_token() {
    let mut cluster = Cluster::new("lab");
    let one = cluster.host("one");
    let line = token(&mut cluster).line();
    let two = join(&mut cluster, &line.parse().unwrap(), "two").unwrap();
    let found = connect(&two, &one).unwrap();
    assert_eq!(tls::peer(&one, &found.server, Side::Client, UnixTime::now()).unwrap().host, host("two"));
    assert_eq!(two.name().to_string(), "spiffe://lab/host/two");
    assert_eq!(two.check_own(cluster.made).unwrap().host, host("two"));
}

#[test]
fn a_second_host_with_the_same_token_is_refused() {
    let mut cluster = Cluster::new("lab");
    let token = token(&mut cluster);
    join(&mut cluster, &token, "two").unwrap();
    assert!(matches!(join(&mut cluster, &token, "three"), Err(AuthorityError::Token(StoreError::Used))));
}

#[test]
fn a_man_in_the_middle_with_another_authority_does_not_get_the_secret() {
    let (mut cluster, other) = (Cluster::new("lab"), Cluster::new("lab"));
    let token = token(&mut cluster);
    let server = tls::join_server(&other.authority, other.made).unwrap();
    let refused = handshake(tls::join_client(&token).unwrap(), server).err().unwrap();
    assert_eq!(*refused.by_client(), PeerError::NotTheTokens);
}

/// A server for joining hosts that has this key and shows this chain.
fn middle(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> ServerConfig {
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![b"linerate-join/1".to_vec()];
    config
}

#[test]
fn a_host_of_the_cluster_does_not_get_the_secret() {
    let mut cluster = Cluster::new("lab");
    let _ = cluster.host("one");
    let token = token(&mut cluster);
    let (mut chain, key) = key_of(&cluster, "one");
    chain.push(cluster.authority.certificate().clone());
    let refused = handshake(tls::join_client(&token).unwrap(), middle(chain, key)).err().unwrap();
    assert_eq!(*refused.by_client(), PeerError::NotTheTokens);
}

#[test]
fn the_authoritys_certificate_beside_a_strangers_does_not_help() {
    let mut cluster = Cluster::new("lab");
    let token = token(&mut cluster);
    let key = KeyPair::generate().unwrap();
    let params = common::host_params("spiffe://lab/authority");
    let own = params.self_signed(&key).unwrap().der().clone();
    let chain = vec![own, cluster.authority.certificate().clone()];
    let refused =
        handshake(tls::join_client(&token).unwrap(), middle(chain, PrivateKeyDer::Pkcs8(key.into())));
    assert_eq!(*refused.err().unwrap().by_client(), PeerError::UnknownAuthority);
}

#[test]
fn the_server_for_joining_hosts_is_no_host() {
    let mut cluster = Cluster::new("lab");
    let one = cluster.host("one");
    let token = token(&mut cluster);
    let mut server = tls::join_server(&cluster.authority, cluster.made).unwrap();
    server.alpn_protocols.push(b"linerate/1".to_vec());
    assert!(handshake(tls::client(&one, None).unwrap(), server).is_err());
    // A joining host at the port of hosts, and one that names no protocol.
    assert!(handshake(tls::join_client(&token).unwrap(), tls::server(&one).unwrap()).is_err());
    let mut silent = tls::join_client(&token).unwrap();
    silent.alpn_protocols.clear();
    assert!(handshake(silent, tls::join_server(&cluster.authority, cluster.made).unwrap()).is_err());
}

#[test]
fn a_token_for_one_host_is_for_no_other() {
    let mut cluster = Cluster::new("lab");
    let (now, other) = (cluster.made, cluster.name("three"));
    let token = cluster.authority.create_token(TTL, "", Some(host("two")), now).unwrap();
    let redeemed = cluster.authority.tokens().redeem(token.secret(), now).unwrap();
    let refused = cluster.authority.issue(&request(&other).1, &Grounds::Token(&redeemed), now);
    assert!(matches!(refused, Err(AuthorityError::Name { .. })), "{refused:?}");
    let good = cluster.name("two");
    assert!(cluster.authority.issue(&request(&good).1, &Grounds::Token(&redeemed), now).is_ok());
}

#[test]
fn a_token_for_any_host_does_not_give_the_name_of_one_that_exists() {
    let mut cluster = Cluster::new("lab");
    let _ = cluster.host("one");
    let first = token(&mut cluster);
    assert!(matches!(join(&mut cluster, &first, "one"), Err(AuthorityError::NameInUse(_))));
    // Its owner lost the key: a token with its name, or after it was revoked.
    let now = cluster.made;
    let named = cluster.authority.create_token(TTL, "", Some(host("one")), now).unwrap();
    join(&mut cluster, &named, "one").unwrap();
    cluster.authority.revoke(&host("one"), now).unwrap();
    let again = token(&mut cluster);
    join(&mut cluster, &again, "one").unwrap();
}

#[test]
fn a_request_for_another_cluster_is_refused() {
    let mut cluster = Cluster::new("lab");
    let foreign: Name = "spiffe://other/host/two".parse().unwrap();
    let refused = cluster.authority.issue(&request(&foreign).1, &Grounds::Own, cluster.made);
    assert!(matches!(refused, Err(AuthorityError::Cluster { .. })));
}

fn peer(cluster: &mut Cluster, name: &str) -> Peer {
    let one = cluster.host(name);
    one.check_own(cluster.made).unwrap()
}

#[test]
fn a_host_renews_its_own_name_from_day_thirty_on() {
    let mut cluster = Cluster::new("lab");
    let one = peer(&mut cluster, "one");
    let (made, own, other) = (cluster.made, cluster.name("one"), cluster.name("two"));
    let mut renew = |name: &Name, time: UnixTime| {
        cluster.authority.issue(&request(name).1, &Grounds::Renewal(&one), time)
    };
    assert!(matches!(renew(&own, after(made, 29 * DAY)), Err(AuthorityError::Early { .. })));
    assert!(matches!(renew(&other, after(made, 31 * DAY)), Err(AuthorityError::Name { .. })));
    assert!(renew(&own, after(made, 30 * DAY)).is_ok());
    assert!(matches!(renew(&own, after(made, 91 * DAY)), Err(AuthorityError::NotIssued(_))), "too late");
}

#[test]
fn a_host_that_renews_without_end_does_not_fill_the_register() {
    let mut cluster = Cluster::new("lab");
    let (one, two) = (peer(&mut cluster, "one"), peer(&mut cluster, "two"));
    let (made, names) = (cluster.made, [cluster.name("one"), cluster.name("two")]);
    let mut renew = |name: &Name, grounds: &Grounds<'_>, time: UnixTime| {
        cluster.authority.issue(&request(name).1, grounds, time)
    };
    let (first, next) = (after(made, 31 * DAY), after(made, 32 * DAY));
    let own = Grounds::Renewal(&one);
    // It has one from the beginning.
    let renewed = (0..2 * OF_ONE_HOST).filter(|_| renew(&names[0], &own, first).is_ok()).count();
    assert_eq!(renewed, OF_ONE_HOST - 1);
    for grounds in [&own, &Grounds::Succession(&one)] {
        assert!(matches!(renew(&names[0], grounds, first), Err(AuthorityError::Often { .. })));
    }
    renew(&names[1], &Grounds::Renewal(&two), first).unwrap();
    renew(&names[0], &own, next).unwrap();
    assert!(matches!(renew(&names[0], &own, next), Err(AuthorityError::Often { .. })), "one a day");
}

/// Certificates end with it then, and each is old enough to be renewed when it is issued.
#[test]
fn nor_does_it_in_the_last_days_of_the_authority() {
    let mut cluster = Cluster::new("lab");
    let one = peer(&mut cluster, "one");
    let (made, name) = (cluster.made, cluster.name("one"));
    let mut renewed = |day: u32| {
        let grounds = Grounds::Succession(&one);
        let time = after(made, day * DAY);
        let mut renew = || cluster.authority.issue(&request(&name).1, &grounds, time);
        (0..2 * OF_ONE_HOST).filter(|_| renew().is_ok()).count()
    };
    assert_eq!(renewed(3600), OF_ONE_HOST);
    assert_eq!(renewed(3602), 0);
}

#[test]
fn a_revoked_host_does_not_renew() {
    let mut cluster = Cluster::new("lab");
    let one = peer(&mut cluster, "one");
    let (own, later) = (cluster.name("one"), after(cluster.made, 31 * DAY));
    cluster.authority.revoke(&host("one"), cluster.made).unwrap();
    let refused = cluster.authority.issue(&request(&own).1, &Grounds::Renewal(&one), later);
    assert!(matches!(refused, Err(AuthorityError::NotIssued(_))));
}

/// The agent of the authority's host renews its own certificate by itself, also while the clock is wrong.
#[test]
fn a_clock_that_is_ahead_for_a_while_makes_no_revoked_host_welcome() {
    let mut cluster = Cluster::new("lab");
    let one = cluster.host("one");
    let two = peer(&mut cluster, "two");
    let (_three, made, own) = (cluster.host("three"), cluster.made, cluster.name("one"));
    cluster.authority.revoke(&host("two"), made).unwrap();
    cluster.authority.issue(&request(&own).1, &Grounds::Own, after(made, 365 * DAY)).unwrap();
    // It is right again: hosts are known, and the next list has the first one, too.
    assert!(!cluster.authority.has_issued(&two, made));
    let list = cluster.authority.revoke(&host("three"), made).unwrap();
    one.accept_revocations(&list).unwrap();
    for name in ["two", "three"] {
        let refused = one.verify(&key_of(&cluster, name).0, Side::Client, None, UnixTime::now());
        assert_eq!(refused.unwrap_err(), PeerError::Revoked, "{name}");
    }
}

#[test]
fn nothing_but_the_key_comes_from_a_request() {
    let mut cluster = Cluster::new("lab");
    let uri = SanType::URI("spiffe://lab/host/two".try_into().unwrap());
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![uri, SanType::DnsName("root.example".try_into().unwrap())];
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::Any];
    params.distinguished_name.push(rcgen::DnType::CommonName, "root");
    let der = params.serialize_request(&KeyPair::generate().unwrap()).unwrap();
    let request = Request::read(der.der()).unwrap();
    let certificate = cluster.authority.issue(&request, &Grounds::Own, cluster.made).unwrap();
    let (_, parsed) = x509_parser::parse_x509_certificate(&certificate).unwrap();
    assert!(!parsed.is_ca());
    let usage = parsed.key_usage().unwrap().unwrap().value;
    assert!(usage.digital_signature() && !usage.key_cert_sign() && !usage.crl_sign());
    let extended = parsed.extended_key_usage().unwrap().unwrap().value;
    assert!(!extended.any && extended.client_auth && extended.server_auth);
    let names = &parsed.subject_alternative_name().unwrap().unwrap().value.general_names;
    assert_eq!(names.len(), 1, "{names:?}");
    assert_eq!(parsed.subject().to_string(), "CN=two");
}

#[test]
fn a_certificate_for_another_key_name_or_authority_is_not_installed() {
    let (mut cluster, other) = (Cluster::new("lab"), Cluster::new("lab"));
    let now = cluster.made;
    let (key, certificate) = cluster.issue("two", now);
    let (_, for_another_key) = cluster.issue("two", now);
    let (_, for_another_name) = cluster.issue("three", now);
    let (bundle, id) = (cluster.bundle(), cluster.authority.id());
    let folder = cluster.host_folder("two");
    for wrong in [&for_another_key, &for_another_name] {
        let refused = Identity::install(&folder, &key, wrong, &bundle, id, now);
        assert!(matches!(refused, Err(IdentityError::NotRequested)), "{refused:?}");
    }
    let refused = Identity::install(&folder, &key, &certificate, &other.bundle(), id, now);
    assert!(matches!(refused, Err(IdentityError::NoAuthority(_))), "{refused:?}");
    let refused = Identity::install(&folder, &key, &certificate, &other.bundle(), other.authority.id(), now);
    assert!(matches!(refused, Err(IdentityError::Own(PeerError::UnknownAuthority))), "{refused:?}");
    assert!(!folder.exists(), "nothing was written");
    assert!(Identity::install(&folder, &key, &certificate, &bundle, id, now).is_ok());
}

#[test]
fn no_display_shows_a_secret() {
    let mut cluster = Cluster::new("lab");
    let one = cluster.host("one");
    let token = token(&mut cluster);
    let redeemed = cluster.authority.tokens().redeem(token.secret(), cluster.made).unwrap();
    let config = (tls::client(&one, None).unwrap(), tls::server(&one).unwrap());
    let connection = join_connection(&token, &cluster);
    let key = NewKey::make(cluster.name("two")).unwrap();
    let shown = format!(
        "{:?} {one:?} {token:?} {redeemed:?} {config:?} {:?} {:?} {key:?}",
        cluster.authority, connection.client, connection.server
    );
    let mut secrets = vec![token.line()[60..].to_owned()];
    for path in [
        cluster.folder.path().join("authority/authority-key.pem"),
        cluster.host_folder("one").join("host.pem"),
    ] {
        let text = std::fs::read_to_string(path).unwrap();
        // The second line of base64 in a PKCS #8 of P-256 has the private number.
        secrets.push(text.lines().nth(2).unwrap()[..32].to_owned());
        let der = pem::parse(text).unwrap();
        secrets.push(format!("{:?}", &der.contents()[40..60]).trim_matches(['[', ']']).to_owned());
    }
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    secrets.push(hex(token.secret().bytes()));
    for secret in secrets {
        assert!(!shown.contains(&secret), "{secret} in {shown}");
    }
}
