//! Hosts that join and renew over real connections, and what comes between them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use linerate_net::tcp::listen::{ListenOptions, Listener, OnRefusal};
use linerate_net::tcp::options::TcpOptions;
use linerate_trust::authority::{Authority, RENEWAL_AGE};
use linerate_trust::identity::Identity;
use linerate_trust::request::NewKey;
use linerate_trust::tls;
use linerate_trust::token::{Secret, Token};
use rustls::{ClientConnection, StreamOwned};
use rustls_pki_types::UnixTime;
use tempfile::TempDir;

use super::deadline::Deadline;
use super::join::join_over;
use super::join_server::{AT_ONCE, Host, JoinServer};
use super::message::{self, ANSWER_BYTES_MAX, Answer, JoinRequest};
use super::operations::{self, NewToken};
use super::renewal::{self, refresh_revocations, renew_at};
use super::watch::Watch;
use super::{ClusterError, Kind, join};
use crate::audit::Audit;
use crate::config::Config;
use crate::security::Security;
use crate::security::tests::certificates;

const TTL: Duration = Duration::from_secs(900);
const LONG: Duration = Duration::from_secs(60);

/// A host with its folders.
pub(super) struct Site {
    pub(super) dir: TempDir,
    pub(super) config: Arc<Config>,
}

pub(super) fn site(name: &str, more: &str) -> Site {
    let dir = tempfile::tempdir().unwrap();
    let text = format!("name = {name:?}\nstate_dir = {:?}\n{more}", dir.path().join("state"));
    let config = Arc::new(toml::from_str(&text).unwrap());
    Site { dir, config }
}

impl Site {
    pub(super) fn identity(&self) -> Identity {
        Identity::open(&self.config.identity_folder()).unwrap()
    }

    pub(super) fn token(&self) -> NewToken {
        operations::create_token(&self.config, TTL, None).unwrap()
    }

    pub(super) fn audit(&self) -> Arc<Audit> {
        std::fs::create_dir_all(&self.config.state_dir).unwrap();
        Arc::new(Audit::open(&self.config.state_dir).unwrap())
    }

    pub(super) fn server(&self) -> JoinServer {
        let host = Host {
            authority: self.config.authority_folder(),
            identity: self.identity(),
            agents: vec!["192.0.2.1:7979".parse().unwrap()],
            audit: self.audit(),
        };
        JoinServer::start(&["127.0.0.1:0".parse().unwrap()], host).unwrap()
    }
}

/// The host that has the authority of cluster `lab`.
pub(super) fn first() -> Site {
    let site = site("One", "");
    operations::init(&site.config, Some("lab"), None).unwrap();
    site
}

pub(super) fn join_at(
    site: &Site,
    server: &JoinServer,
    token: &NewToken,
) -> Result<super::Membership, ClusterError> {
    join::join(&site.config, &server.addresses()[0].to_string(), &token.line, None, false)
}

#[test]
fn a_cluster_is_made_once_and_a_crash_between_is_mended() {
    let one = site("One", "");
    let made = operations::init(&one.config, None, None).unwrap();
    assert_eq!(made.name.to_string(), "spiffe://linerate/host/one");
    let again = operations::init(&one.config, None, None).unwrap_err();
    assert_eq!(again.kind(), Kind::Refused);
    assert!(again.to_string().contains("spiffe://linerate/host/one already"), "{again}");
    // As a crash leaves it: an authority, and no identity.
    std::fs::remove_dir_all(one.config.identity_folder()).unwrap();
    let other = operations::init(&one.config, Some("other"), None).unwrap_err();
    assert!(matches!(other, ClusterError::OtherCluster { .. }), "{other}");
    assert_eq!(operations::init(&one.config, None, Some("first")).unwrap().authority, made.authority);
    assert_eq!(operations::show(&one.config).unwrap().membership.name.host.as_str(), "first");
}

#[test]
fn each_command_and_each_join_is_written_down() {
    use linerate_api::{AuditAction as A, AuditRequest, AuditResult as R};
    let (one, two) = (first(), site("two", ""));
    let (server, token, spare) = (one.server(), one.token(), one.token());
    join_at(&two, &server, &token).unwrap();
    join_at(&site("three", ""), &server, &token).unwrap_err();
    operations::revoke_token(&one.config, &spare.id.to_string()).unwrap();
    operations::revoke_host(&one.config, "two").unwrap();
    operations::revoke_host(&one.config, "two").unwrap_err();
    super::rotation::rotate(&one.config, false).unwrap();
    let all = AuditRequest { limit: 100, ..AuditRequest::default() };
    let lines = |site: &Site| site.audit().read(&all).unwrap().entries;
    let mut audited: Vec<_> =
        lines(&one).into_iter().map(|line| (line.action, line.result, line.to)).collect();
    // The agent's files and the commands' are read one after the other.
    audited.sort_by_key(|(action, result, _)| (action.name(), result.name()));
    let two_is = Some("two".to_owned());
    let expected = [
        (A::ClusterInit, R::Done, None),
        (A::ClusterRotate, R::Done, None),
        (A::Join, R::Done, two_is.clone()),
        (A::Join, R::Refused, None),
        (A::Revoke, R::Done, two_is.clone()),
        (A::Revoke, R::Failed, two_is),
        (A::Token, R::Done, None),
        (A::Token, R::Done, None),
        (A::Token, R::Done, None),
    ];
    assert_eq!(audited, expected);
    let text = format!("{:?}", lines(&one));
    assert!(!text.contains(&token.line), "a secret");
    let own: Vec<_> = lines(&two).into_iter().map(|line| (line.action, line.result)).collect();
    assert_eq!(own, [(A::Join, R::Done)]);
}

#[test]
fn private_files_are_the_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let one = first();
    let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let (identity, authority) = (one.config.identity_folder(), one.config.authority_folder());
    assert_eq!((mode(identity.clone()), mode(authority.clone())), (0o700, 0o700));
    one.token();
    for file in
        [identity.join("host.pem"), authority.join("authority-key.pem"), authority.join("tokens.json")]
    {
        assert_eq!(mode(file), 0o600);
    }
}

#[test]
fn a_host_joins_and_knows_where_the_authority_is() {
    let (one, two) = (first(), site("Two", ""));
    let (server, token) = (one.server(), one.token());
    let joined = join_at(&two, &server, &token).unwrap();
    assert_eq!(joined.name.to_string(), "spiffe://lab/host/two");
    assert_eq!(super::read_addresses(&two.config.identity_folder()), ["192.0.2.1:7979".parse().unwrap()]);
    two.identity().check_own(UnixTime::now()).unwrap();
    let hosts: Vec<String> =
        operations::hosts(&one.config).unwrap().into_iter().map(|one| one.host.to_string()).collect();
    assert_eq!(hosts, ["one", "two"]);
    // It has an identity now.
    let again = join_at(&two, &server, &one.token()).unwrap_err();
    assert!(matches!(again, ClusterError::Member { .. }), "{again}");
}

#[test]
fn a_used_expired_revoked_or_other_hosts_token_is_refused_and_the_reason_is_told() {
    let one = first();
    let server = one.server();
    let refused = |token: &NewToken| {
        let two = site("two", "");
        let error = join_at(&two, &server, token).unwrap_err();
        assert_eq!(error.kind(), Kind::Refused, "{error}");
        assert!(!Identity::exists(&two.config.identity_folder()));
        error.to_string()
    };
    let used = one.token();
    join_at(&site("three", ""), &server, &used).unwrap();
    assert!(refused(&used).contains("was used before"), "{}", refused(&used));
    let revoked = one.token();
    operations::revoke_token(&one.config, &revoked.id.to_string()).unwrap();
    assert!(refused(&revoked).contains("not known here, or was revoked"), "{}", refused(&revoked));
    let short = operations::create_token(&one.config, Duration::from_secs(1), None).unwrap();
    while UnixTime::now().as_secs() < short.expires.as_secs() {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(refused(&short).contains("has expired"), "{}", refused(&short));
    let for_four = operations::create_token(&one.config, TTL, Some("four")).unwrap();
    let said = refused(&for_four);
    assert!(said.contains("may only be spiffe://lab/host/four") && said.contains("token is spent"), "{said}");
    assert!(refused(&for_four).contains("was used before"), "it is spent");
    // The name of a host that is there, with a token for any.
    let taken = join::join(
        &site("two", "").config,
        &server.addresses()[0].to_string(),
        &one.token().line,
        Some("three"),
        false,
    );
    assert!(taken.unwrap_err().to_string().contains("host three has a certificate"));
}

/// Listens, and passes on what comes in both directions; what the client sent is returned once it has hung up.
fn relay(to: SocketAddr) -> (SocketAddr, std::thread::JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let passing = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(to).unwrap();
        let (mut from, mut back) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut from, &mut back));
        let (mut sent, mut buffer) = (Vec::new(), [0; 4096]);
        while let Ok(bytes @ 1..) = client.read(&mut buffer) {
            sent.extend_from_slice(&buffer[..bytes]);
            if server.write_all(&buffer[..bytes]).is_err() {
                break;
            }
        }
        sent
    });
    (address, passing)
}

#[test]
fn a_man_in_the_middle_with_an_authority_of_the_same_name_gets_nothing() {
    let (one, imitation, two) = (first(), first(), site("two", ""));
    let (server, token) = (one.server(), one.token());
    // His own join server, for his own authority of the same name and with a token that can be used.
    let (middle, _his) = (imitation.server(), imitation.token());
    let error = join_at(&two, &middle, &token).unwrap_err();
    assert!(matches!(error, ClusterError::NotProved { .. }), "{error}");
    assert!(error.to_string().contains("the token's secret was not sent"), "{error}");
    assert_eq!(middle.wrong_secrets(), 0, "no request came to him");
    // One who only passes bytes on sees none of the secret, and the host joins.
    let (address, passing) = relay(server.addresses()[0]);
    join::join(&two.config, &address.to_string(), &token.line, None, false).unwrap();
    let seen = passing.join().unwrap();
    let secret = *token.line.parse::<Token>().unwrap().secret().bytes();
    let written = data_encoding::BASE64.encode(&secret);
    assert!(!seen.windows(16).any(|bytes| bytes == secret) && seen.len() > 200);
    assert!(!seen.windows(24).any(|bytes| bytes == written.as_bytes()));
}

#[test]
fn a_wrong_secret_is_counted_and_spends_nothing() {
    let (one, two) = (first(), site("two", ""));
    let (server, token) = (one.server(), one.token());
    let line: Token = token.line.parse().unwrap();
    for tries in 1..=3 {
        let answer = ask_with(&server, &line, &Secret::from_bytes([7; 16]));
        assert!(matches!(&answer, Answer::Refused { why } if why.contains("not known here")), "{answer:?}");
        assert_eq!(server.wrong_secrets(), tries);
    }
    join_at(&two, &server, &token).unwrap();
}

/// Joins by hand with any secret.
fn ask_with(server: &JoinServer, token: &Token, secret: &Secret) -> Answer {
    let mut stream = connection(server, token);
    let key = NewKey::make("spiffe://lab/host/two".parse().unwrap()).unwrap();
    message::send(&mut stream, &JoinRequest::new(secret, &key.request().unwrap())).unwrap();
    message::receive(&mut stream, ANSWER_BYTES_MAX).unwrap()
}

fn connection(server: &JoinServer, token: &Token) -> StreamOwned<ClientConnection, Deadline> {
    let socket = TcpStream::connect(server.addresses()[0]).unwrap();
    let client = tls::join_client(token).unwrap();
    let client = ClientConnection::new(Arc::new(client), tls::server_name()).unwrap();
    StreamOwned::new(client, Deadline::new(socket, LONG).unwrap())
}

#[test]
fn of_two_hosts_with_one_token_exactly_one_joins() {
    let one = first();
    let (server, token) = (one.server(), one.token());
    let sites = [site("two", ""), site("three", ""), site("four", ""), site("five", "")];
    let joined = std::thread::scope(|scope| {
        let joining: Vec<_> =
            sites.iter().map(|site| scope.spawn(|| join_at(site, &server, &token))).collect();
        joining.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(joined.iter().filter(|one| one.is_ok()).count(), 1, "{joined:?}");
    for refused in joined.iter().filter_map(|one| one.as_ref().err()) {
        assert!(refused.to_string().contains("was used before"), "{refused}");
    }
    assert_eq!(operations::hosts(&one.config).unwrap().len(), 2);
}

#[test]
fn a_token_is_spent_before_anything_is_signed() {
    let (one, two) = (first(), site("two", ""));
    let (server, token) = (one.server(), one.token());
    // The authority cannot sign any more: its register cannot be written.
    let blocked = one.config.authority_folder().join(".register.json.new");
    std::fs::create_dir(&blocked).unwrap();
    let said = join_at(&two, &server, &token).unwrap_err().to_string();
    assert!(said.contains("the token is spent all the same"), "{said}");
    std::fs::remove_dir(&blocked).unwrap();
    let again = join_at(&two, &server, &token).unwrap_err().to_string();
    assert!(again.contains("was used before"), "{again}");
    // A request that cannot be signed spends none.
    let token = one.token();
    let line: Token = token.line.parse().unwrap();
    let mut stream = connection(&server, &line);
    message::send(&mut stream, &JoinRequest::new(line.secret(), b"no request")).unwrap();
    let answer: Answer = message::receive(&mut stream, ANSWER_BYTES_MAX).unwrap();
    assert!(matches!(answer, Answer::Refused { .. }), "{answer:?}");
    join_at(&two, &server, &token).unwrap();
}

#[test]
fn a_connection_that_breaks_after_the_secret_says_that_the_token_may_be_spent() {
    let (one, two) = (first(), site("two", ""));
    let token: Token = one.token().line.parse().unwrap();
    let authority = Authority::open(&one.config.authority_folder()).unwrap();
    let server = tls::join_server(&authority, UnixTime::now()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let dies = std::thread::spawn(move || {
        let server = rustls::ServerConnection::new(Arc::new(server)).unwrap();
        let socket = Deadline::new(listener.accept().unwrap().0, LONG).unwrap();
        let mut stream = StreamOwned::new(server, socket);
        message::receive::<JoinRequest>(&mut stream, 4096).unwrap();
    });
    let socket = TcpStream::connect(address).unwrap();
    let folder = two.config.identity_folder();
    let error = join_over(&folder, socket, address, &token, "two".parse().unwrap()).unwrap_err();
    dies.join().unwrap();
    assert!(matches!(error, ClusterError::Broken { .. }), "{error}");
    assert!(error.to_string().contains("the token may be spent"), "{error}");
    assert!(error.hint().contains("linerate token list"), "{}", error.hint());
}

#[test]
fn strangers_who_say_nothing_or_too_much_keep_nobody_from_joining() {
    let (one, two) = (first(), site("two", ""));
    let (server, token) = (one.server(), one.token());
    let line: Token = token.line.parse().unwrap();
    // More than is read.
    let mut stream = connection(&server, &line);
    let end = stream.write_all(&u32::MAX.to_le_bytes()).and_then(|()| {
        stream.flush()?;
        stream.read(&mut [0; 1])
    });
    assert!(end.is_err() || end.is_ok_and(|bytes| bytes == 0));
    let silent: Vec<TcpStream> =
        (0..3 * AT_ONCE).map(|_| TcpStream::connect(server.addresses()[0]).unwrap()).collect();
    let is_open = |one: &&TcpStream| {
        one.set_nonblocking(true).unwrap();
        one.peek(&mut [0; 1]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    let end = std::time::Instant::now() + LONG;
    while silent.iter().filter(is_open).count() > AT_ONCE {
        assert!(std::time::Instant::now() < end, "more are served than there are slots");
        std::thread::sleep(Duration::from_millis(20));
    }
    // To make room, silent connections are closed, the oldest first.
    join_at(&two, &server, &token).unwrap();
}

/// The agent of the authority's host, as far as members ask it.
pub(super) fn agent(site: &Site, now: UnixTime) -> Listener {
    let security = Security::open(&site.config).unwrap();
    let tcp = TcpOptions { tls: security.tls().cloned(), ..TcpOptions::default() };
    let (options, config) = (ListenOptions { tcp, ..ListenOptions::default() }, site.config.clone());
    Listener::start(&["127.0.0.1:0".parse().unwrap()], options, move |accepted| {
        renewal::serve(&config, security.identity(), accepted, now).unwrap();
    })
    .unwrap()
}

fn after_renewal_age() -> UnixTime {
    let later = UnixTime::now().as_secs() + RENEWAL_AGE.as_secs() + 60;
    UnixTime::since_unix_epoch(Duration::from_secs(later))
}

#[test]
fn a_member_renews_from_day_thirty_on_and_no_sooner() {
    let (one, two) = (first(), site("two", ""));
    join_at(&two, &one.server(), &one.token()).unwrap();
    let (identity, serial) = (two.identity(), two.identity().serial());
    let now = UnixTime::now();
    let early = renew_at(&two.config, &identity, agent(&one, now).addresses(), now).unwrap_err();
    assert!(early.to_string().contains("is renewed from"), "{early}");
    assert_eq!(two.identity().serial(), serial);
    let later = after_renewal_age();
    renew_at(&two.config, &identity, agent(&one, later).addresses(), later).unwrap();
    assert_ne!(two.identity().serial(), serial);
    assert_eq!(identity.serial(), two.identity().serial(), "in force without being opened again");
    // The authority's own host asks nobody.
    let own = one.identity();
    renew_at(&one.config, &own, &[], later).unwrap();
    assert!(own.not_after() > now);
}

#[test]
fn a_revocation_reaches_the_members_that_ask_and_ends_the_revoked_ones_renewals() {
    let (one, two, three) = (first(), site("two", ""), site("three", ""));
    let server = one.server();
    join_at(&two, &server, &one.token()).unwrap();
    join_at(&three, &server, &one.token()).unwrap();
    assert_eq!(operations::revoke_host(&one.config, "three").unwrap(), 1);
    let (identity, now) = (two.identity(), UnixTime::now());
    let listener = agent(&one, now);
    assert!(refresh_revocations(&two.config, &identity, listener.addresses()).unwrap());
    assert!(!refresh_revocations(&two.config, &identity, listener.addresses()).unwrap(), "it has it");
    assert_eq!(operations::show(&two.config).unwrap().authorities[0].1, 1);
    // The revoked host does not come in any more.
    let later = after_renewal_age();
    let refused = renew_at(&three.config, &three.identity(), agent(&one, later).addresses(), later);
    assert!(matches!(refused, Err(ClusterError::Asked(_))), "{refused:?}");
    // A host that joins afterwards has the list from the beginning.
    let four = site("four", "");
    join_at(&four, &server, &one.token()).unwrap();
    assert_eq!(operations::show(&four.config).unwrap().authorities[0].1, 1);
    // And the revoked one comes back with a new token.
    let (address, token) = (server.addresses()[0].to_string(), one.token());
    join::join(&three.config, &address, &token.line, None, true).unwrap();
    let own = operations::revoke_host(&one.config, "one").unwrap_err();
    assert!(matches!(own, ClusterError::OwnHost(_)), "{own}");
}

/// As a crash or a full disk leaves it: the authority has the list, and its own host has not.
#[test]
fn a_revocation_that_was_cut_off_is_in_force_after_the_next_command_or_by_the_agent() {
    for by_agent in [true, false] {
        let (one, two) = (first(), site("two", ""));
        join_at(&two, &one.server(), &one.token()).unwrap();
        let mut authority = Authority::open(&one.config.authority_folder()).unwrap();
        authority.revoke(&"two".parse().unwrap(), UnixTime::now()).unwrap();
        drop(authority);
        let revoked = || operations::show(&one.config).unwrap().authorities[0].1 == 1;
        assert!(!revoked());
        if by_agent {
            let watch = Watch::new(one.config.clone(), Security::open(&one.config).unwrap());
            assert!(watch.take_newer_lists(&one.identity()).unwrap());
            assert!(!watch.take_newer_lists(&one.identity()).unwrap(), "it has it");
        } else {
            let error = operations::revoke_host(&one.config, "two").unwrap_err().to_string();
            assert!(error.contains("no host two has a valid certificate"), "{error}");
        }
        assert!(revoked());
    }
}

/// The backup is older than a revocation. Hosts take no older list, and the next one must not leave that host out.
#[test]
fn an_authority_that_was_restored_from_a_backup_goes_on_from_the_newest_list() {
    for by_agent in [true, false] {
        let (one, two, three, four) = (first(), site("two", ""), site("three", ""), site("four", ""));
        let server = one.server();
        for host in [&two, &three] {
            join_at(host, &server, &one.token()).unwrap();
        }
        let register = one.config.authority_folder().join("register.json");
        let backup = std::fs::read(&register).unwrap();
        join_at(&four, &server, &one.token()).unwrap();
        operations::revoke_host(&one.config, "two").unwrap();
        operations::revoke_host(&one.config, "four").unwrap();
        std::fs::write(&register, backup).unwrap();
        if by_agent {
            let watch = Watch::new(one.config.clone(), Security::open(&one.config).unwrap());
            assert!(watch.take_newer_lists(&one.identity()).unwrap());
            assert!(!watch.take_newer_lists(&one.identity()).unwrap(), "the register is not older any more");
        }
        // One list more is that which the register went on with.
        assert_eq!(operations::revoke_host(&one.config, "three").unwrap(), 4);
        for host in [&two, &three, &four] {
            let revoked = one.identity().is_revoked(&certificates(&host.config.identity_folder()));
            assert!(revoked, "{}, by the agent: {by_agent}", host.identity().name());
        }
    }
}

/// `cluster init` on two hosts, and then `join --replace` on one of them.
#[test]
fn a_host_that_has_another_clusters_authority_asks_the_authority_of_its_own() {
    let (one, two, three) = (first(), first(), site("three", ""));
    let server = one.server();
    let (address, token) = (server.addresses()[0].to_string(), one.token());
    join::join(&two.config, &address, &token.line, Some("two"), true).unwrap();
    join_at(&three, &server, &one.token()).unwrap();
    operations::revoke_host(&one.config, "three").unwrap();
    let later = after_renewal_age();
    let listener = agent(&one, later);
    super::write_addresses(&two.config.identity_folder(), listener.addresses()).unwrap();
    let watch = Watch::new(two.config.clone(), Security::open(&two.config).unwrap());
    assert!(watch.take_newer_lists(&two.identity()).unwrap());
    let before = two.identity().serial();
    renew_at(&two.config, &two.identity(), listener.addresses(), later).unwrap();
    assert_ne!(two.identity().serial(), before);
}

/// The agent has not read the files again when it renews, or takes a list.
#[test]
fn a_renewal_or_a_list_behind_a_join_leaves_the_new_identity() {
    let (one, other) = (first(), site("other", ""));
    operations::init(&other.config, Some("elsewhere"), None).unwrap();
    join_at(&site("two", ""), &one.server(), &one.token()).unwrap();
    operations::revoke_host(&one.config, "two").unwrap();
    let stale = [one.identity(), one.identity()];
    let (server, token) = (other.server(), other.token());
    join::join(&one.config, &server.addresses()[0].to_string(), &token.line, None, true).unwrap();
    let renewed = renew_at(&one.config, &stale[0], &[], after_renewal_age());
    assert!(
        matches!(renewed, Err(ClusterError::NoAddresses)),
        "its own authority signs nothing: {renewed:?}"
    );
    assert!(!operations::own_revocations(&one.config, &stale[1]).unwrap());
    let shown = operations::show(&one.config).unwrap();
    assert_eq!(shown.membership.name.to_string(), "spiffe://elsewhere/host/one");
    assert_eq!((shown.problem, shown.authorities.len(), shown.authorities[0].1), (None, 1, 0));
}

#[test]
fn a_list_that_cannot_be_put_in_force_is_not_made() {
    let (one, two) = (first(), site("two", ""));
    join_at(&two, &one.server(), &one.token()).unwrap();
    // Another command has this host's identity.
    let lock = one.config.identity_folder().join("lock");
    let held = linerate_trust::files::lock(&lock).unwrap().unwrap();
    assert!(matches!(operations::revoke_host(&one.config, "two"), Err(ClusterError::Locked(_))));
    drop(held);
    assert_eq!(operations::revoke_host(&one.config, "two").unwrap(), 1);
}

#[test]
fn a_running_agent_takes_up_an_identity_and_listens_only_then() {
    // An address of this machine that is not loopback's is not certain: so loopback and a foreign one are
    // distinguished. The system chooses the ports, so that nobody else has them.
    let one = site("one", "listen = [\"127.0.0.1:0\"]\njoin_listen = [\"127.0.0.1:0\"]\n");
    let security = Security::open(&one.config).unwrap();
    let watch = Arc::new(Watch::new(one.config.clone(), security.clone()));
    watch.start(|_| {}, OnRefusal(Arc::new(|_, _| {})), one.audit()).unwrap();
    assert!(!security.is_ready());
    let status = watch.status();
    let advice = status.advice.unwrap_or_default();
    assert!(advice.contains("linerate cluster init") && advice.contains("linerate join"), "{advice}");
    operations::init(&one.config, None, None).unwrap();
    watch.look();
    assert!(security.is_ready() && watch.status().advice.is_none());
    let at = watch.listens_at();
    assert!(at.len() == 1 && TcpStream::connect(at[0]).is_ok(), "{at:?}");
    assert!(watch.joins_at().is_empty(), "no token can be used");
    let token = one.token();
    watch.look();
    let joins_at = watch.joins_at();
    assert!(joins_at.len() == 1 && joins_at != at, "{joins_at:?}");
    let two = site("two", "");
    join::join(&two.config, &joins_at[0].to_string(), &token.line, None, false).unwrap();
    watch.look();
    assert!(watch.joins_at().is_empty(), "the only token was used");
    // A damaged file changes nothing, and is reported.
    let file = one.config.identity_folder().join("trust.pem");
    let good = std::fs::read(&file).unwrap();
    std::fs::write(&file, "nothing").unwrap();
    watch.look();
    let advice = watch.status().advice.unwrap_or_default();
    assert!(security.is_ready() && advice.contains("the former one still is"), "{advice}");
    assert_eq!(watch.status().not_taken_up, Some(advice));
    std::fs::write(&file, good).unwrap();
    watch.look();
    let status = watch.status();
    assert!(status.advice.is_none() && status.not_taken_up.is_none());
    watch.stop();
    drop(one.dir);
}

#[test]
fn without_an_identity_no_address_but_loopback_is_listened_at() {
    // An address of documentation, which no host has.
    let one = site("one", "listen = [\"192.0.2.77:0\"]\n");
    let watch = Arc::new(Watch::new(one.config.clone(), Security::open(&one.config).unwrap()));
    watch.start(|_| {}, OnRefusal(Arc::new(|_, _| {})), one.audit()).unwrap();
    assert!(watch.bound().is_empty());
    watch.stop();
    let insecure = site("one", "listen = [\"192.0.2.77:0\"]\nsecurity = \"insecure\"\n");
    let watch = Arc::new(Watch::new(insecure.config.clone(), Security::open(&insecure.config).unwrap()));
    watch.start(|_| {}, OnRefusal(Arc::new(|_, _| {})), insecure.audit()).unwrap();
    assert_eq!(watch.bound().len(), 1, "no identity is needed here");
    assert!(watch.status().advice.is_some_and(|advice| advice.contains("plain text")));
    watch.stop();
}

/// The address is for documentation: no host has it.
#[test]
fn hosts_join_although_no_port_has_one_of_the_addresses() {
    let (one, two) = (first(), site("two", ""));
    let (absent, here) = ("192.0.2.77:0".parse().unwrap(), "127.0.0.1:0".parse().unwrap());
    let host = || Host {
        authority: one.config.authority_folder(),
        identity: one.identity(),
        agents: vec!["192.0.2.1:7979".parse().unwrap()],
        audit: one.audit(),
    };
    assert!(JoinServer::start(&[absent], host()).is_err(), "nobody could join");
    let server = JoinServer::start(&[absent, here], host()).unwrap();
    join_at(&two, &server, &one.token()).unwrap();
}

/// A port may have failed, or get its address when the agent has long been started.
#[test]
fn an_address_that_no_port_has_keeps_the_agent_from_no_other() {
    let text = "listen = [\"192.0.2.77:0\", \"127.0.0.1:0\"]\nsecurity = \"insecure\"\n";
    let one = site("one", text);
    let watch = Arc::new(Watch::new(one.config.clone(), Security::open(&one.config).unwrap()));
    watch.start(|_| {}, OnRefusal(Arc::new(|_, _| {})), one.audit()).unwrap();
    let at = watch.listens_at();
    assert!(at.len() == 1 && TcpStream::connect(at[0]).is_ok(), "{at:?}");
    assert_eq!(watch.bound().len(), 2, "it is answered once a port has it");
    watch.stop();
}
