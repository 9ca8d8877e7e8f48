//! Files of an authority and of a host that were damaged, replaced or opened to others; an operator's own files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use common::{Cluster, DAY, after, connect, host};
use linerate_trust::authority::{Authority, AuthorityError, Grounds};
use linerate_trust::bundle::BundleError;
use linerate_trust::files::{FileError, Secrecy, write};
use linerate_trust::identity::{Identity, IdentityError};
use linerate_trust::peer::{PeerError, Side};
use linerate_trust::pem::{PemError, PemSettings};
use linerate_trust::request::{NewKey, Request};
use linerate_trust::tls;
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    PKCS_ECDSA_P384_SHA384, SanType,
};
use rustls::pki_types::UnixTime;

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o7777
}

#[test]
fn an_authority_is_the_same_after_a_restart() {
    let mut cluster = Cluster::new("lab");
    let one = cluster.host("one");
    let folder = cluster.folder.path().join("authority");
    assert_eq!((mode(&folder), mode(&folder.join("authority-key.pem"))), (0o700, 0o600));
    assert!(matches!(Authority::open(&folder), Err(AuthorityError::Busy)));
    let Cluster { folder: _kept, authority, made } = cluster;
    let id = authority.id();
    drop(authority);
    let mut authority = Authority::open(&folder).unwrap();
    assert_eq!((authority.id(), authority.cluster().as_str()), (id, "lab"));
    assert_eq!(authority.hosts(made).map(|issued| issued.host).collect::<Vec<_>>(), [host("one")]);
    let first = authority.revoke(&host("one"), made).unwrap();
    assert!(one.accept_revocations(&first).unwrap());
    assert!(
        matches!(authority.revoke(&host("one"), made), Err(AuthorityError::Register(_))),
        "it has none now"
    );
    drop(authority);
    // The number goes on, and who was revoked stays so.
    let mut authority = Authority::open(&folder).unwrap();
    assert_eq!(authority.revocations(), Some(first.as_slice()));
    let key = NewKey::make("spiffe://lab/host/two".parse().unwrap()).unwrap();
    authority.issue(&Request::read(&key.request().unwrap()).unwrap(), &Grounds::Own, made).unwrap();
    assert!(one.accept_revocations(&authority.revoke(&host("two"), made).unwrap()).unwrap());
    assert!(matches!(one.check_own(made), Err(IdentityError::Own(PeerError::Revoked))));
}

#[test]
fn a_certificate_that_cannot_be_written_down_is_not_issued() {
    let mut cluster = Cluster::new("lab");
    let in_the_way = cluster.folder.path().join("authority/.register.json.new");
    std::fs::create_dir(&in_the_way).unwrap();
    let key = NewKey::make(cluster.name("one")).unwrap();
    let request = Request::read(&key.request().unwrap()).unwrap();
    assert!(cluster.authority.issue(&request, &Grounds::Own, cluster.made).is_err());
    assert_eq!(cluster.authority.hosts(cluster.made).count(), 0);
    std::fs::remove_dir(&in_the_way).unwrap();
    assert!(cluster.authority.issue(&request, &Grounds::Own, cluster.made).is_ok());
    assert_eq!(cluster.authority.hosts(after(cluster.made, 91 * DAY)).count(), 0, "it has ended");
}

#[test]
fn an_authority_is_not_made_twice() {
    let cluster = Cluster::new("lab");
    let folder = cluster.folder.path().join("authority");
    drop(cluster.authority);
    let again = Authority::create(&folder, &"lab".parse().unwrap(), UnixTime::now());
    assert!(matches!(again, Err(AuthorityError::File(FileError::Exists(_)))));
}

/// The folder of an authority that no process uses.
fn resting() -> (tempfile::TempDir, PathBuf) {
    let Cluster { folder, .. } = Cluster::new("lab");
    let path = folder.path().join("authority");
    (folder, path)
}

#[test]
fn a_key_of_an_authority_that_others_may_read_is_refused() {
    let (_kept, folder) = resting();
    let key = folder.join("authority-key.pem");
    set_permissions(&key, Permissions::from_mode(0o640)).unwrap();
    assert!(matches!(Authority::open(&folder), Err(AuthorityError::File(FileError::KeyMode { .. }))));
}

#[test]
fn a_link_in_place_of_an_authoritys_key_is_refused() {
    let (_kept, folder) = resting();
    let (key, elsewhere) = (folder.join("authority-key.pem"), folder.join("elsewhere.pem"));
    std::fs::rename(&key, &elsewhere).unwrap();
    symlink(&elsewhere, &key).unwrap();
    assert!(matches!(Authority::open(&folder), Err(AuthorityError::File(FileError::SymbolicLink(_)))));
}

#[test]
fn another_key_than_the_authoritys_is_refused() {
    let (_kept, folder) = resting();
    let key = folder.join("authority-key.pem");
    write(&key, KeyPair::generate().unwrap().serialize_pem().as_bytes(), Secrecy::Private).unwrap();
    assert!(matches!(Authority::open(&folder), Err(AuthorityError::Key)));
    let text = std::fs::read_to_string(&key).unwrap();
    write(&key, &text.as_bytes()[..text.len() / 2], Secrecy::Private).unwrap();
    assert!(matches!(Authority::open(&folder), Err(AuthorityError::Key)));
}

#[test]
fn a_hosts_key_that_others_may_read_is_refused_and_the_one_in_force_stays() {
    let mut cluster = Cluster::new("lab");
    let (one, two) = (cluster.host("one"), cluster.host("two"));
    let path = cluster.host_folder("one").join("host.pem");
    set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    let refused = |result: Result<(), IdentityError>| match result {
        Err(IdentityError::Pem(PemError::File(FileError::KeyMode { .. }))) => {}
        other => panic!("{other:?}"),
    };
    refused(Identity::open(&cluster.host_folder("one")).map(drop));
    refused(one.reload());
    assert!(connect(&one, &two).is_ok());
}

#[test]
fn files_that_are_cut_or_huge_are_refused() {
    let mut cluster = Cluster::new("lab");
    let one = cluster.host("one");
    let folder = cluster.host_folder("one");
    let (host_file, trust_file) = (folder.join("host.pem"), folder.join("trust.pem"));
    for path in [&host_file, &trust_file] {
        let whole = std::fs::read(path).unwrap();
        for length in (0..whole.len() - 1).step_by(7) {
            std::fs::write(path, &whole[..length]).unwrap();
            assert!(one.reload().is_err(), "{} {length}", path.display());
        }
        std::fs::File::options().write(true).open(path).unwrap().set_len(1 << 40).unwrap();
        let huge = one.reload();
        assert!(matches!(huge, Err(IdentityError::Pem(PemError::File(FileError::Large(_))))), "{huge:?}");
        std::fs::write(path, &whole).unwrap();
        one.reload().unwrap();
    }
    let many = cluster.bundle().to_pem().repeat(40);
    std::fs::write(&trust_file, many).unwrap();
    assert!(matches!(one.reload(), Err(IdentityError::Pem(PemError::Sections(_)))));
    std::fs::write(&trust_file, "").unwrap();
    assert!(matches!(one.reload(), Err(IdentityError::Bundle(BundleError::Empty))));
}

#[test]
fn a_key_that_is_not_the_certificates_is_refused() {
    let mut cluster = Cluster::new("lab");
    let one = cluster.host("one");
    let path = cluster.host_folder("one").join("host.pem");
    let text = std::fs::read_to_string(&path).unwrap();
    let certificate = &text[text.find("-----BEGIN CERTIFICATE").unwrap()..];
    write(&path, (KeyPair::generate().unwrap().serialize_pem() + certificate).as_bytes(), Secrecy::Private)
        .unwrap();
    assert!(matches!(one.reload(), Err(IdentityError::Key(_))));
    write(&path, certificate.as_bytes(), Secrecy::Private).unwrap();
    assert!(matches!(one.reload(), Err(IdentityError::Pem(PemError::NoKey(_)))));
}

/// An operator's authority of another kind of key, with one below it that signs hosts.
struct Operator {
    folder: tempfile::TempDir,
    root: String,
    below: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Operator {
    fn new() -> Operator {
        let authority = |name: &str| {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            (params, KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap())
        };
        let (root_params, root_key) = authority("root");
        let root = root_params.self_signed(&root_key).unwrap().pem();
        let (params, key) = authority("below");
        let below = params.signed_by(&key, &Issuer::new(root_params, root_key)).unwrap().pem();
        Operator { folder: tempfile::tempdir().unwrap(), root, below, issuer: Issuer::new(params, key) }
    }

    fn settings(&self, name: &str, names: Vec<SanType>) -> PemSettings {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem() + &self.below;
        let path = |kind: &str| self.folder.path().join(format!("{name}-{kind}.pem"));
        write(&path("certificate"), certificate.as_bytes(), Secrecy::Public).unwrap();
        write(&path("key"), key.serialize_pem().as_bytes(), Secrecy::Private).unwrap();
        write(&path("authorities"), self.root.as_bytes(), Secrecy::Public).unwrap();
        let text = format!(
            "cluster = \"lab\"\ncertificate = {:?}\nkey = {:?}\nauthorities = {:?}\n\
             [hosts]\n\"KVM1.example\" = \"one\"\n\"kvm2.example\" = \"two\"\n",
            path("certificate"),
            path("key"),
            path("authorities")
        );
        toml::from_str(&text).unwrap()
    }
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().unwrap())
}

#[test]
fn hosts_with_an_operators_own_certificates_know_each_other() {
    let operator = Operator::new();
    let one = Identity::open_pem(operator.settings("one", vec![dns("kvm1.example")])).unwrap();
    let uri = SanType::URI("spiffe://lab/host/three".try_into().unwrap());
    let three = Identity::open_pem(operator.settings("three", vec![uri, dns("kvm2.example")])).unwrap();
    let found = connect(&one, &three).unwrap();
    assert_eq!(tls::peer(&one, &found.client, Side::Server, UnixTime::now()).unwrap().host, host("three"));
    assert_eq!(tls::peer(&three, &found.server, Side::Client, UnixTime::now()).unwrap().host, host("one"));
    assert!(matches!(one.accept_revocations(b""), Err(IdentityError::Operators)));
}

#[test]
fn another_machine_with_a_certificate_of_the_operators_is_refused() {
    let operator = Operator::new();
    let one = Identity::open_pem(operator.settings("one", vec![dns("kvm1.example")])).unwrap();
    let mut settings = operator.settings("printer", vec![dns("printer.example")]);
    assert!(matches!(Identity::open_pem(settings.clone()), Err(IdentityError::Own(PeerError::NoName))));
    // Its own files say what they like.
    settings.hosts.insert("printer.example".to_owned(), host("two"));
    let printer = Identity::open_pem(settings).unwrap();
    assert_eq!(*connect(&printer, &one).err().unwrap().by_server(), PeerError::NoName);
}

#[test]
fn an_unknown_key_of_the_operators_settings_is_refused() {
    let text = "cluster = \"lab\"\ncertificate = \"/a\"\nkey = \"/b\"\nauthorities = \"/c\"\n";
    assert!(toml::from_str::<PemSettings>(text).is_ok());
    assert!(toml::from_str::<PemSettings>(&format!("{text}password = \"x\"\n")).is_err());
    assert!(toml::from_str::<PemSettings>(&format!("{text}[hosts]\n\"a.example\" = \"A\"\n")).is_err());
}
