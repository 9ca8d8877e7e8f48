//! Everything that can be wrong, and the sentence for it.

use super::*;

fn failure(remote: SocketAddr, local: Option<IpAddr>) -> ConnectError {
    let options = patient();
    let route = Route { local, device: None, remote };
    connect(&route, &hello(), &options, &Domains::default()).expect_err("no connection")
}

#[test]
fn a_host_without_a_device_reports_that() {
    // Also where there is one: loopback belongs to none.
    let error = Listener::start(&["127.0.0.1:0".parse().unwrap()], |_| {}).unwrap_err();
    assert!(error.to_string().starts_with("no RDMA: this host has no device"), "{error}");
    let error = failure("127.0.0.1:1".parse().unwrap(), None).to_string();
    assert!(error.contains("127.0.0.1:1") && error.contains("`rdma link`"), "{error}");
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn no_listener() {
    let _link = link();
    let error = failure(SocketAddr::new(FAR, 4), Some(NEAR));
    assert!(matches!(error, ConnectError::Rejected { .. }), "{error:?}");
    assert!(error.to_string().contains("10.9.0.2:4 takes no RDMA connection"), "{error}");
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn an_address_that_is_no_gid_of_a_device() {
    let _link = link();
    for local in ["127.0.0.1", "10.9.0.77"] {
        let error = failure(SocketAddr::new(FAR, 4), Some(local.parse().unwrap()));
        assert!(matches!(error, ConnectError::Address { .. }), "{local}: {error:?}");
        assert!(error.to_string().contains("GID"), "{error}");
    }
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn a_port_that_is_down() {
    let _link = link();
    set_link("down");
    let error = failure(SocketAddr::new(FAR, 4), Some(NEAR));
    restore_link();
    assert!(
        matches!(
            error,
            ConnectError::Address { .. } | ConnectError::Unreachable { .. } | ConnectError::Here { .. }
        ),
        "{error:?}"
    );
    assert!(error.to_string().contains("10.9.0.2:4"), "{error}");
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn an_agent_that_refuses_sends_the_reason() {
    let _link = link();
    let detail = "a reason that is longer than a rejection has room for ".repeat(10);
    let listener = Listener::start(&[SocketAddr::new(FAR, 0)], move |accepted: Accepted| {
        let fault = Fault::new(Code::NotAuthorised, Step::Authorise, Side::Destination, detail.clone());
        accepted.refuse(fault).unwrap();
    })
    .unwrap();
    let error = failure(listener.addresses()[0], Some(NEAR));
    let ConnectError::Refused { fault, .. } = &error else { panic!("{error:?}") };
    assert_eq!(fault.code, Code::NotAuthorised);
    assert!(fault.detail.starts_with("a reason that is longer than"), "{fault}");
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn a_peer_that_ends_is_reported_as_closed() {
    let _link = link();
    let (source, destination) = connected(&patient());
    let (_sender, mut acks, _) = halves(source, patient());
    drop(destination);
    let error = acks.next(WAIT).unwrap_err();
    assert!(matches!(error, ChannelError::Closed), "{error:?}");
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn no_byte_changes_after_the_source_was_revoked_and_both_ends_notice() {
    let _link = link();
    let (landed, table) = region(64 * PAGE);
    let (source, destination) = connected(&patient());
    let (fence, serving_end) = (Fence::new(closer(&destination)), Arc::clone(&destination));
    let serving = std::thread::spawn(move || RdmaReceiver::new(serving_end).serve(&table, &fence));
    let (sender, acks, _closer) = halves(source, patient());
    let sending = keep_sending(sender, acks, Arc::default());
    until("some writes", || landed.snapshot().unwrap()[4 * PAGE as usize..].iter().any(|byte| *byte > 40));
    destination.end_revoked();
    let after = landed.snapshot().unwrap();
    // The source ends by itself: it is disconnected.
    sending.join().unwrap();
    let end = serving.join().unwrap();
    assert!(matches!(end, ChannelEnd::Failed(ChannelError::Rdma(RdmaError::Revoked))), "{end:?}");
    assert!(landed.snapshot().unwrap() == after, "a byte changed afterwards");
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn a_revoked_destination_is_the_reason_at_the_source() {
    let _link = link();
    let (source, _destination) = connected(&patient());
    let (_sender, mut acks, _) = halves(Arc::clone(&source), patient());
    source.end_revoked();
    let error = acks.next(WAIT).unwrap_err();
    assert!(matches!(error, ChannelError::Rdma(RdmaError::Revoked)), "{error:?}");
    assert!(!error.may_be_the_transports());
}

/// Opens a channel of a session with these regions, and writes a page and its frame with a key that is not of this
/// session. The adapter refuses the write, and the frame is not applied.
fn write_is_refused(to: u64, remote_key: u32, table: Arc<RegionTable>) {
    let (source, destination) = connected(&patient());
    let fence = Arc::new(Fence::new(closer(&destination)));
    let inner = Arc::clone(&fence);
    let serving = std::thread::spawn(move || RdmaReceiver::new(destination).serve(&table, &inner));
    let end = SourceEnd::new(Arc::clone(&source));
    let buffer = super::super::memory::Buffer::new(
        &source.domain.protection,
        PAGE as usize,
        super::super::verbs::Access::Send,
    )
    .unwrap();
    assert!(buffer.put(0, &[0x66; PAGE as usize]));
    let place = RdmaWrite {
        from: buffer.address(),
        length: PAGE as u32,
        local_key: buffer.local_key(),
        to,
        remote_key,
    };
    let mut frame = Vec::new();
    encode_write(&mut frame, 1, 0, &[run(0, PAGE)], &[], 1).unwrap();
    end.post(&[place], &frame, Some((1, PAGE)), Vec::new(), 0).unwrap();
    let error = end.wait_until("the refusal", WAIT, |_| Ok(false)).unwrap_err();
    assert!(matches!(error, ChannelError::Rdma(RdmaError::RemoteAccess)), "{error:?}");
    let ended = serving.join().unwrap();
    assert!(!matches!(ended, ChannelEnd::Fenced), "{ended:?}");
    assert_eq!(fence.close(WAIT).unwrap().applied, 0);
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn a_wrong_key_writes_nothing_and_ends_the_channel() {
    let _link = link();
    let (landed, table) = region(WINDOW_BYTES);
    let to = landed.mapped().unwrap().base.as_ptr() as u64;
    write_is_refused(to, 0x1234_5678, table);
    assert!(landed.snapshot().unwrap().iter().all(|byte| *byte == 0));
}

/// Keys are not encrypted on the wire. A host has seen one of another session's, and has a session of its own at the
/// same destination: it writes nothing with that key. The session to which the key belongs has just written with it.
#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn a_key_of_another_session_writes_nothing_and_ends_the_channel() {
    let _link = link();
    let ((source, _), (landed, table)) = (region(WINDOW_BYTES), region(WINDOW_BYTES));
    source.store(0, &[0x11; PAGE as usize]).unwrap();
    let (near, far) = connected(&patient());
    let mut owner = Channel::over((near, Arc::clone(&far)), patient(), &table);
    owner.sender.write(&order(1, source.as_ref(), &[run(0, PAGE)], &[])).unwrap();
    assert_eq!(owner.acknowledged(1), []);
    let holds_the_owners = || landed.snapshot().unwrap().iter().take(PAGE as usize).all(|byte| *byte == 0x11);
    assert!(holds_the_owners());
    // The key that was granted: a window is registered once.
    let (mapped, window) = (landed.mapped().unwrap(), run(0, WINDOW_BYTES));
    let granted = far.domain.register(mapped, window, super::super::verbs::Access::RemoteWrite).unwrap();
    let (_, others) = region(WINDOW_BYTES);
    write_is_refused(mapped.base.as_ptr() as u64, granted.remote_key(), others);
    assert!(holds_the_owners(), "the key is good for another session");
}

/// What the destination says of a frame that has no business there.
fn hostile(frames: &[(u64, u16, Run)]) -> ChannelEnd {
    let (_, table) = region(WINDOW_BYTES);
    let (source, destination) = connected(&patient());
    let fence = Fence::new(closer(&destination));
    let serving = std::thread::spawn(move || RdmaReceiver::new(destination).serve(&table, &fence));
    let end = SourceEnd::new(source);
    for (sequence, region, run) in frames {
        let mut frame = Vec::new();
        encode_write(&mut frame, *sequence, *region, &[], &[*run], 0).unwrap();
        let _ = end.post(&[], &frame, Some((*sequence, 0)), Vec::new(), 0);
    }
    serving.join().unwrap()
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn a_peer_cannot_name_what_is_outside_or_go_back() {
    let _link = link();
    let outside = hostile(&[(1, 0, run(WINDOW_BYTES, PAGE))]);
    assert!(matches!(outside, ChannelEnd::Failed(ChannelError::RunOutside { .. })), "{outside:?}");
    let unknown = hostile(&[(1, 9, run(0, PAGE))]);
    assert!(matches!(unknown, ChannelEnd::Failed(ChannelError::RegionUnknown { region: 9 })), "{unknown:?}");
    let back = hostile(&[(2, 0, run(0, PAGE)), (2, 0, run(0, PAGE))]);
    assert!(matches!(back, ChannelEnd::Failed(ChannelError::SequenceOrder { .. })), "{back:?}");
}

/// It makes a completion like a message, and what is in its slot is an older one.
#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn a_write_that_notifies_is_no_message() {
    let _link = link();
    let (landed, table) = region(WINDOW_BYTES);
    let (source, destination) = connected(&patient());
    let fence = Fence::new(closer(&destination));
    let serving = std::thread::spawn(move || RdmaReceiver::new(destination).serve(&table, &fence));
    assert!(source.notifies_of_writes());
    // Of nothing, for which no key is looked at.
    let nothing = RdmaWrite {
        from: 0,
        length: 0,
        local_key: 0,
        to: landed.mapped().unwrap().base.as_ptr() as u64,
        remote_key: 0,
    };
    source.post_write_with_immediate(&nothing, 1, 0, true).unwrap();
    let ended = serving.join().unwrap();
    assert!(matches!(ended, ChannelEnd::Failed(ChannelError::Rdma(RdmaError::Rules(_)))), "{ended:?}");
}

/// In a process of its own that never had CAP_IPC_LOCK: the kernel takes nothing from a process whose privileges are
/// others than when it opened the device.
#[test]
#[ignore = "needs an RDMA device, and no CAP_IPC_LOCK; the lab runs it in its RDMA machine"]
fn registration_that_is_refused_is_reported_to_the_source_in_a_sentence() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    use rustix::thread::{CapabilitySet, capabilities};
    let _link = link();
    assert!(!capabilities(None).unwrap().effective.contains(CapabilitySet::IPC_LOCK), "run it without");
    // Room for the messages of both ends, and for no window.
    setrlimit(Resource::Memlock, Rlimit { current: Some(3 << 20), maximum: None }).unwrap();
    let (source, _) = region(WINDOW_BYTES);
    source.store(0, &[1; PAGE as usize]).unwrap();
    let (_, table) = region(WINDOW_BYTES);
    let mut channel = Channel::open(patient(), &table);
    let data = [run(0, PAGE)];
    let error = channel.sender.write(&order(1, source.as_ref(), &data, &[])).unwrap_err();
    let is_refused = matches!(error, ChannelError::Rdma(RdmaError::Refused(_)));
    assert!(is_refused && error.to_string().contains("LimitMEMLOCK"), "{error:?}");
    let end = channel.end();
    assert!(matches!(end, ChannelEnd::Failed(ChannelError::Rdma(RdmaError::Register { .. }))), "{end:?}");
}
