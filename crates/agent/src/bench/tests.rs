//! Both sides in one process; what the other side refuses and survives.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Instant;

use linerate_api::{AuditAction, AuditResult, BenchCpu, BenchTest, BenchTransport, code};
use linerate_core::{Code, SessionId, Token};
use linerate_net::bench::document_channel::{DocumentChannel, DocumentError};
use linerate_net::channel::Closer;
use linerate_net::links::Link;
use linerate_net::rdma::test_connection::MEMORY_BYTES;
use linerate_net::tcp::connect::{ConnectError, Route, connect};
use linerate_net::tcp::options::TcpOptions;
use linerate_wire::frame::{Hello, Role};
use linerate_wire::{VERSION_MAX, VERSION_MIN};

use super::documents::{PeerReply, QUEUE_PAIRS_MAX, receive};
use super::*;
use crate::security::tests::{member, revoke};
use crate::security::{Security, SessionPart};
use crate::testing::authority;

const LONG: Duration = Duration::from_secs(60);

fn request(test: BenchTest) -> BenchRequest {
    BenchRequest {
        to: String::new(),
        links: Vec::new(),
        transport: BenchTransport::Tcp,
        channels: 0,
        cpu: BenchCpu::Any,
        speed_mbps: Some(10_000),
        force: false,
        test,
    }
}

fn pingpong(sizes: &[u32]) -> BenchRequest {
    request(BenchTest::Pingpong { sizes: sizes.to_vec(), repetitions: 20, time_per_size_ms: 10_000 })
}

fn bandwidth(time_ms: u32) -> BenchRequest {
    request(BenchTest::Bandwidth { time_ms })
}

fn loopback() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

fn run(request: &BenchRequest) -> Result<BenchReport, ErrorBody> {
    match local(&[loopback()], request, &Arc::default(), &mut |_| {}) {
        BenchEvent::Finished { report: Some(report), error: None } => Ok(*report),
        BenchEvent::Finished { error: Some(error), .. } => Err(*error),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_ping_pong_in_one_process_counts_every_byte() {
    let report = run(&BenchRequest { channels: 2, ..pingpong(&[0, 4, 100_000]) }).unwrap();
    let rows = &report.pingpong[0].rows;
    let counts: Vec<_> = rows.iter().map(|row| (row.bytes, row.repetitions, row.moved_bytes)).collect();
    // Two channels of 20 each; a message of nothing is one byte on a stream.
    assert_eq!(counts, [(0, 20, 40), (4, 20, 160), (100_000, 20, 4_000_000)]);
    let last = &rows[2];
    assert!((last.mbps - 8.0 * 2.0 * 100_000.0 / last.latency_us).abs() < 1e-6 * last.mbps);
    assert!((last.link_percent.unwrap() - last.mbps / 100.0).abs() < 1e-6 * last.mbps);
    assert_eq!(rows[0].mbps, 0.0);
    let link = &report.links[0];
    assert_eq!((link.source.interface.as_str(), link.channels), ("lo", 2));
    assert_eq!(link.source.mtu, link.destination.mtu);
}

#[test]
fn all_sizes_are_those_of_the_rules() {
    let request = request(BenchTest::Pingpong { sizes: vec![], repetitions: 1, time_per_size_ms: 1000 });
    let report = run(&request).unwrap();
    let sizes: Vec<u32> = report.pingpong[0].rows.iter().map(|row| row.bytes).collect();
    assert_eq!((sizes.len(), &sizes[..4], sizes[23]), (24, &[0, 1, 2, 4][..], 4 << 20));
}

#[test]
fn a_stream_is_measured_out_in_and_in_both_directions() {
    let report = run(&BenchRequest { channels: 1, ..bandwidth(50) }).unwrap();
    let [out, back, both] = report.bandwidth.try_into().unwrap();
    assert!(out.sum.out_mbps > 0.0 && out.sum.in_mbps == 0.0 && out.links[0].in_bytes == 0);
    assert!(back.sum.in_mbps > 0.0 && back.links[0].out_bytes == 0);
    assert!(both.links[0].out_bytes > 0 && both.links[0].in_bytes > 0 && both.cpu_s_per_gbit > 0.0);
}

#[test]
fn absurd_requests_are_refused_before_any_host_is_asked() {
    for bad in [
        pingpong(&[(4 << 20) + 1]),
        pingpong(&[0; 65]),
        request(BenchTest::Pingpong { sizes: vec![], repetitions: 0, time_per_size_ms: 1 }),
        bandwidth(0),
        bandwidth(300_001),
        BenchRequest { channels: 1000, ..bandwidth(50) },
        BenchRequest { channels: 33, ..pingpong(&[4 << 20]) },
        BenchRequest { cpu: BenchCpu::Number(100_000), ..pingpong(&[4]) },
    ] {
        assert_eq!(run(&bad).unwrap_err().code, code::BAD_REQUEST, "{bad:?}");
    }
}

#[test]
fn cpus_are_pinned_or_the_reason_is_reported() {
    let report = run(&BenchRequest { cpu: BenchCpu::Far, ..pingpong(&[4]) }).unwrap();
    // Loopback has no node: either there is one only, or it is not known which is near.
    assert!(report.notes.iter().any(|note| note.contains("not pinned")), "{:?}", report.notes);
    run(&BenchRequest { cpu: BenchCpu::Number(0), ..pingpong(&[4]) }).unwrap();
}

/// An answering host, and a conversation with it.
fn answering(migrating: bool) -> (Arc<Host>, Listener) {
    answering_on(migrating, true)
}

fn answering_on(migrating: bool, may_force: bool) -> (Arc<Host>, Listener) {
    answering_as(&Security::insecure(), Terms { migrating, may_force })
}

fn answering_as(security: &Arc<Security>, terms: Terms) -> (Arc<Host>, Listener) {
    let host = Arc::new(Host::new("beta".into(), Vec::new(), security.clone()));
    let other = Arc::clone(&host);
    let accept = move |accepted| drop(host::accept(&other, accepted, terms));
    let options = ListenOptions { tcp: host.tcp_options(), ..ListenOptions::default() };
    let listener = Listener::start(&[loopback()], options, accept).unwrap();
    host.listen_at(listener.addresses().to_vec());
    (host, listener)
}

fn hello(number: u8, role: Role, channel: u32) -> Hello {
    let (session, token) = (SessionId([number; 16]), Token([number; 32]));
    Hello { version_min: VERSION_MIN, version_max: VERSION_MAX, session, role, link: 0, channel, token }
}

fn dial(listener: &Listener, number: u8, role: Role, channel: u32) -> Stream {
    try_dial(listener, number, role, channel).unwrap()
}

fn try_dial(listener: &Listener, number: u8, role: Role, channel: u32) -> Result<Stream, ConnectError> {
    let route = Route { local: None, device: None, remote: listener.addresses()[0] };
    connect(&route, &hello(number, role, channel), &TcpOptions::default()).map(|(stream, _)| stream)
}

fn opened(listener: &Listener, number: u8, force: bool) -> (DocumentChannel, PeerReply) {
    let talk = DocumentChannel::new(dial(listener, number, Role::Bench, 0));
    send(&talk, &format!(r#"{{"say":"open","force":{force}}}"#));
    let answer = receive(&talk, LONG).unwrap();
    (talk, answer)
}

fn send(talk: &DocumentChannel, text: &str) {
    talk.send(text.as_bytes(), Instant::now() + LONG).unwrap();
}

fn refusal(answer: PeerReply) -> String {
    match answer {
        PeerReply::Refused { code, .. } => code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_measurement_at_a_time_and_none_during_a_migration_unless_forced() {
    let (_host, listener) = answering(false);
    let (first, ready) = opened(&listener, 1, false);
    assert!(matches!(ready, PeerReply::Ready { .. }), "{ready:?}");
    assert_eq!(refusal(opened(&listener, 2, true).1), code::BENCH_BUSY);
    drop(first);
    // The place is free as soon as the other side has seen the end.
    let end = Instant::now() + LONG;
    while !matches!(opened(&listener, 3, false).1, PeerReply::Ready { .. }) {
        assert!(Instant::now() < end);
    }
    let (_host, listener) = answering(true);
    assert_eq!(refusal(opened(&listener, 1, false).1), code::MIGRATION_IN_PROGRESS);
    let end = Instant::now() + LONG;
    while !matches!(opened(&listener, 2, true).1, PeerReply::Ready { .. }) {
        assert!(Instant::now() < end);
    }
}

#[test]
fn a_host_that_only_looks_measures_without_force() {
    for migrating in [false, true] {
        let (_host, listener) = answering_on(migrating, false);
        assert_eq!(refusal(opened(&listener, 1, true).1), "not_authorised");
    }
    let (_host, listener) = answering_on(false, false);
    let (_talk, ready) = opened(&listener, 2, false);
    assert!(matches!(ready, PeerReply::Ready { .. }), "{ready:?}");
}

#[test]
fn a_measurement_that_is_refused_is_told_apart_from_one_that_was_done() {
    let host = Arc::new(Host::new("beta".into(), Vec::new(), Security::insecure()));
    let (accepted_here, asked) = std::sync::mpsc::channel();
    let accept = move |accepted| {
        let terms = Terms { migrating: false, may_force: false };
        drop(accepted_here.send(host::accept(&host, accepted, terms).unwrap().unwrap()));
    };
    let listener = Listener::start(&[loopback()], ListenOptions::default(), accept).unwrap();
    for (force, result) in [(true, AuditResult::Refused), (false, AuditResult::Done)] {
        drop(opened(&listener, 1, force));
        let asked = asked.recv_timeout(LONG).unwrap();
        assert!(asked.only_looks && asked.reason.is_some() == force, "{asked:?}");
        assert_eq!((asked.action, asked.result), (AuditAction::Bench, result));
    }
}

#[test]
fn the_answering_side_refuses_what_is_absurd() {
    for (part, wanted) in [
        (r#"{"answer":{"bytes":4194305,"repetitions":1}}"#, "4194305 bytes"),
        (r#"{"answer":{"bytes":1,"repetitions":100001}}"#, "100001 repetitions"),
        (r#"{"send":{"ms":300001}}"#, "300001 ms"),
    ] {
        let (_host, listener) = answering(false);
        let (talk, _) = opened(&listener, 1, false);
        let _data = dial(&listener, 1, Role::BenchData, 7);
        send(
            &talk,
            &format!(
                r#"{{"say":"play","parts":[{{"channel":7,"part":{part}}}],"cpu":"any","limit_ms":1000}}"#
            ),
        );
        let PeerReply::Refused { code, message } = receive(&talk, LONG).unwrap() else { panic!("{part}") };
        assert!(code == code::BAD_REQUEST && message.contains(wanted), "{code}: {message}");
        assert!(matches!(
            receive::<PeerReply>(&talk, LONG),
            Err(BenchError::DocumentChannel(DocumentError::Closed))
        ));
    }
}

#[test]
fn data_connections_without_the_token_are_refused() {
    let (_host, listener) = answering(false);
    let (_talk, _) = opened(&listener, 1, false);
    let hello = Hello { token: Token([9; 32]), ..hello(1, Role::BenchData, 1) };
    let route = Route { local: None, device: None, remote: listener.addresses()[0] };
    let error = connect(&route, &hello, &TcpOptions::default()).unwrap_err().to_string();
    assert!(error.contains("not authorised"), "{error}");
}

/// The channel of a place is taken until the measurement is over, whether its connection is not there yet, idle or in
/// use.
#[test]
fn a_channel_has_one_connection_also_while_that_is_in_use() {
    let (_host, listener) = answering(false);
    let (talk, _) = opened(&listener, 1, false);
    let _data = dial(&listener, 1, Role::BenchData, 7);
    let again = || try_dial(&listener, 1, Role::BenchData, 7).map(drop).map_err(|error| error.to_string());
    assert!(again().unwrap_err().contains("a number twice"), "{:?}", again());
    let part = r#"{"say":"play","parts":[{"channel":7,"part":{"receive":{}}}],"cpu":"any","limit_ms":60000}"#;
    send(&talk, part);
    assert!(matches!(receive(&talk, LONG).unwrap(), PeerReply::Playing {}));
    assert!(again().unwrap_err().contains("a number twice"), "{:?}", again());
}

/// What a queue pair costs is reserved with its place only, and the place is free again if the connection fails. Both
/// transports are admitted like this.
#[test]
fn a_flood_of_requests_gets_no_more_than_there_is_room_for() {
    let (host, listener) = answering(false);
    let (_talk, _) = opened(&listener, 1, false);
    let ask = |channel| host.admit(&hello(1, Role::BenchData, channel), MEMORY_BYTES);
    let refused = |channel| match ask(channel) {
        Ok(_) => panic!("a place for {channel}"),
        Err(fault) => fault.detail,
    };
    let first = ask(0).unwrap();
    // None of them is connected yet, and each waits for its peer in a thread of its own.
    assert!((0..1000).all(|_| refused(0).contains("a number twice")));
    let others: Vec<_> = (1..QUEUE_PAIRS_MAX as u32).map(|channel| ask(channel).unwrap()).collect();
    assert!((1000..2000).all(|channel| refused(channel).contains("256 MiB")));
    drop(first);
    drop((ask(0).unwrap(), others));
    assert!((0..QUEUE_PAIRS_MAX as u32).all(|channel| ask(channel).is_ok()));
}

/// A connection that is still being made is closed with the measurement, and one that failed is not kept.
#[test]
fn a_connection_being_made_ends_with_the_measurement_and_is_dropped_if_it_fails() {
    let (host, listener) = answering(false);
    let (talk, _) = opened(&listener, 1, false);
    let connection = Arc::new(AtomicBool::new(false));
    let closer = || {
        let closed = Arc::clone(&connection);
        Closer::new(move || closed.store(true, Ordering::SeqCst))
    };
    let (mut failed, _) = host.admit(&hello(1, Role::BenchData, 1), MEMORY_BYTES).unwrap();
    failed.closes(closer());
    drop(failed);
    assert_eq!(Arc::strong_count(&connection), 1);
    let (mut pending, _) = host.admit(&hello(1, Role::BenchData, 1), MEMORY_BYTES).unwrap();
    pending.closes(closer());
    drop(talk);
    let end = Instant::now() + LONG;
    while !connection.load(Ordering::SeqCst) {
        assert!(Instant::now() < end, "it waits on for its peer");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn queue_pairs_are_as_many_as_a_migration_would_open() {
    let link = |speed_mbps| Link {
        id: 0,
        local: None,
        device: None,
        remote_interface: "e".into(),
        remote: loopback(),
        speed_mbps,
        mtu: 9000,
        numa: -1,
        mtu_differs: false,
        rdma: None,
    };
    let links = [link(10_000), link(200_000)];
    let rdma = BenchRequest { transport: BenchTransport::Rdma, ..bandwidth(1) };
    assert_eq!(ask::connections(&rdma, &links, true, 64), [1, 6]);
    assert_eq!(ask::connections(&bandwidth(1), &links, true, 64), [1, 16]);
    assert_eq!(ask::connections(&rdma, &links, false, 64), [1, 1]);
    assert_eq!(ask::connections(&BenchRequest { channels: 4, ..rdma }, &links, true, 64), [4, 4]);
}

/// Begins a long stream and returns when it is in progress.
fn begin_measurement(listener: &Listener) -> (Arc<Host>, Arc<Stop>, std::thread::JoinHandle<BenchEvent>) {
    begin_measurement_as(&Security::insecure(), listener)
}

fn begin_measurement_as(
    security: &Arc<Security>,
    listener: &Listener,
) -> (Arc<Host>, Arc<Stop>, std::thread::JoinHandle<BenchEvent>) {
    let stop = Arc::new(Stop::default());
    let asking = Arc::new(Host::new("alpha".into(), Vec::new(), security.clone()));
    let request = BenchRequest { to: listener.addresses()[0].to_string(), ..bandwidth(60_000) };
    let (begun, beginning) = channel();
    let (host, stopping) = (Arc::clone(&asking), Arc::clone(&stop));
    let thread = std::thread::spawn(move || {
        let mut report = |_| begun.send(()).unwrap_or_default();
        measure(&host, &request, false, &stopping, &mut report)
    });
    beginning.recv_timeout(LONG).unwrap();
    (asking, stop, thread)
}

fn error_of(event: BenchEvent) -> ErrorBody {
    let BenchEvent::Finished { error: Some(error), report: None } = event else { panic!("{event:?}") };
    *error
}

#[test]
fn a_measurement_that_is_stopped_ends_at_once_on_both_sides() {
    let (_host, listener) = answering(false);
    let (_asking, stop, thread) = begin_measurement(&listener);
    stop.stop(Reason::Cancelled);
    assert_eq!(error_of(thread.join().unwrap()).code, "cancelled");
    let end = Instant::now() + LONG;
    while !matches!(opened(&listener, 3, false).1, PeerReply::Ready { .. }) {
        assert!(Instant::now() < end, "the other side continues");
    }
}

#[test]
fn a_measurement_ends_on_the_side_that_learns_that_the_other_host_is_revoked() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let mut authority = authority(&path("authority"));
    let here = member(&mut authority, &path("a"), "a", "");
    let there = member(&mut authority, &path("b"), "b", "");
    let terms = Terms { migrating: false, may_force: true };
    let (_host, listener) = answering_as(&there, terms);
    let (_asking, stop, thread) = begin_measurement_as(&here, &listener);
    revoke(&mut authority, "b", &here);
    let error = error_of(thread.join().unwrap());
    assert!(error.code == "peer_lost" && error.message.ends_with("the other host was revoked"), "{error:?}");
    assert_eq!(stop.reason(), Some(Reason::Revoked));
}

/// Its queue pairs would not be closed by the end of TLS connections.
#[test]
fn a_measurement_of_a_revoked_host_takes_no_more_connections() {
    let host = Arc::new(Host::new("beta".into(), Vec::new(), Security::insecure()));
    let stop = Arc::<Stop>::default();
    let data = hello(7, Role::BenchData, 1);
    let _claim = host.claim((data.session, data.token), &stop, true).unwrap();
    let mut place = host.admit(&data, MEMORY_BYTES).map_err(|fault| fault.detail).unwrap().0;
    let closed = Arc::new(AtomicBool::new(false));
    let closing = Arc::clone(&closed);
    place.closes(Closer::new(move || closing.store(true, Ordering::SeqCst)));
    stop.peer_revoked();
    assert!(closed.load(Ordering::SeqCst), "it goes on");
    let more = host.admit(&hello(7, Role::BenchData, 2), MEMORY_BYTES);
    assert_eq!(more.map(drop).map_err(|fault| fault.code), Err(Code::SessionUnknown));
}

#[test]
fn a_migration_that_begins_on_either_side_ends_it_and_is_named() {
    let (host, listener) = answering(false);
    let (_asking, _stop, thread) = begin_measurement(&listener);
    host.yield_to_migration();
    let error = error_of(thread.join().unwrap());
    assert!(error.code == code::MIGRATION_IN_PROGRESS && error.message.starts_with("beta: "), "{error:?}");
    let (_host, listener) = answering(false);
    let (asking, _stop, thread) = begin_measurement(&listener);
    asking.yield_to_migration();
    assert_eq!(error_of(thread.join().unwrap()).code, code::MIGRATION_IN_PROGRESS);
}

/// It was asked just before whether guests move.
#[test]
fn a_migration_that_begins_before_a_measurement_has_its_place_is_not_overlooked() {
    let host = Arc::new(Host::new("beta".into(), Vec::new(), Security::insecure()));
    let begun = host.begun();
    host.yield_to_migration();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let talk = DocumentChannel::new(Stream::new(ours).unwrap());
    let asking = DocumentChannel::new(Stream::new(theirs).unwrap());
    send(&asking, r#"{"say":"open","force":false}"#);
    let terms = Terms { migrating: false, may_force: true };
    let names = (SessionId([1; 16]), Token([1; 32]));
    let served = answer::serve(&host, &talk, names, &Arc::default(), (terms, begun), &mut false);
    assert!(matches!(served, Err(BenchError::Migration { .. })), "{served:?}");
    assert_eq!(refusal(receive(&asking, LONG).unwrap()), code::MIGRATION_IN_PROGRESS);
}

/// To reach the other host may take seconds, in which nobody knows of the migration.
#[test]
fn a_measurement_that_begins_while_a_migration_does_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let (outgoing, _inputs) = crate::outgoing::tests::outgoing_of(linerate_core::ModeTag::Direct);
    let stop = Arc::<Stop>::default();
    let mut claim = None;
    let begin = || {
        claim = agent.bench.claim((SessionId([1; 16]), Token([1; 32])), &stop, false).ok();
        Ok(outgoing)
    };
    agent.begin_outgoing("g", begin).map(drop).map_err(|fault| fault.detail).unwrap();
    assert!(claim.is_some() && stop.reason() == Some(Reason::Migration));
}
