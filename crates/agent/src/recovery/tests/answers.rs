//! What another host of the cluster answers about a guest that left.

use linerate_core::GuestState;
use linerate_guest::stale;
use linerate_net::tcp::listen::{Accepted, Listener};

use super::*;
use crate::ran_here::RanHere;
use crate::recovery::{Doubt, continue_session};
use crate::security::Security;
use crate::security::tests::member;
use crate::testing::{authority, listen, secured};

/// Hosts of one cluster: this one, and two that answer that every session was committed.
struct Cluster {
    dir: TempDir,
    security: Arc<Security>,
    one: Listener,
    other: Listener,
}

impl Cluster {
    fn new() -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let mut authority = authority(&dir.path().join("authority"));
        let mut made = |name: &str| member(&mut authority, &dir.path().join(name), name, "");
        let (security, one, other) = (made("own"), made("one"), made("other"));
        let answers = |security: &Security| {
            listen(security, |accepted: Accepted| {
                let _ = accepted.outcome(Outcome::Committed);
            })
        };
        let (one, other) = (answers(&one), answers(&other));
        Cluster { dir, security, one, other }
    }

    /// An agent that finds a session whose commit was sent, with a host of this name, at this address.
    fn recovers(&self, ending: &Ending, name: Option<&str>, at: &Listener) -> (Arc<Agent>, SessionId) {
        let agent = secured(&self.dir, &[], self.security.clone());
        let mut role = leaves(&arrived(&agent, ending.pid()), SourcePhase::CommitSent);
        let Role::Source { peers, peer, .. } = &mut role else { panic!("{role:?}") };
        *peers = at.addresses().to_vec();
        *peer = name.map(|name| name.parse().unwrap());
        let (order, session) = (agent.journal.next_order(), SessionId([7; 16]));
        agent.journal.put(session, &Record::new("g", order, role)).unwrap();
        recover(&agent.recovery).unwrap();
        (agent, session)
    }
}

#[test]
fn the_answer_of_another_host_of_the_cluster_decides_nothing() {
    let cluster = Cluster::new();
    let ending = Ending::start(&cluster.dir);
    let (agent, session) = cluster.recovers(&ending, Some("one"), &cluster.other);
    let end = Instant::now() + Duration::from_secs(60);
    let why = loop {
        let note = agent.unfinished()[0].summary().note.unwrap();
        assert_eq!(written(&agent, session), (SourcePhase::CommitSent, false), "{note}");
        // On a busy machine a try may get no answer in time.
        if note.contains("other answered instead of one") {
            break note;
        }
        assert!(Instant::now() < end, "{note}");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(why.contains("the guest is paused here until the destination answers"), "{why}");
    assert!(why.contains("last try"), "{why}");
    assert_eq!(written(&agent, session), (SourcePhase::CommitSent, false));
    assert!(agent.unfinished()[0].is_in_doubt());
}

#[test]
fn the_answer_of_the_sessions_host_decides_and_of_an_old_record_that_of_any_host() {
    for name in [Some("one"), None] {
        let cluster = Cluster::new();
        let mut ending = Ending::start(&cluster.dir);
        let at = if name.is_some() { &cluster.one } else { &cluster.other };
        let (agent, session) = cluster.recovers(&ending, name, at);
        ending.end();
        wait_written(&agent, session, (SourcePhase::Finished, false));
    }
}

/// A guest that left with a copied image for host `one`, which answers that it runs there.
fn left_with_an_image(cluster: &Cluster, agent: &Agent) -> (SessionId, std::path::PathBuf) {
    let image = cluster.dir.path().join("g.img");
    std::fs::write(&image, "x").unwrap();
    let mut role = leaves(&ended(agent, &cluster.dir), SourcePhase::CommitSent);
    let Role::Source { peers, peer, copied, .. } = &mut role else { panic!("{role:?}") };
    *peers = cluster.one.addresses().to_vec();
    *peer = Some("one".parse().unwrap());
    *copied = vec![image.clone()];
    let (order, session) = (agent.journal.next_order(), SessionId([7; 16]));
    agent.journal.put(session, &Record::new("g", order, role)).unwrap();
    (session, image)
}

/// The session of a guest that comes with this image.
fn comes_with(agent: &Agent, image: &std::path::Path, phase: DestinationPhase) {
    let incoming = IncomingRecord { copied: vec![image.into()], ..IncomingRecord::default() };
    let record = Record::new("g", agent.journal.next_order(), incoming.role(phase));
    agent.journal.put(SessionId([8; 16]), &record).unwrap();
}

/// The answer arrives late: the guest has come back, and runs with the image or has ended.
#[test]
fn an_answer_about_a_guest_that_came_back_leaves_its_image_alone() {
    for came_back in [None, Some("runs"), Some("has ended")] {
        let cluster = Cluster::new();
        let agent = secured(&cluster.dir, &[], cluster.security.clone());
        let (session, image) = left_with_an_image(&cluster, &agent);
        let own = i32::try_from(std::process::id()).unwrap();
        match came_back {
            None => {}
            Some("runs") => agent.registry.put(&arrived(&agent, own)).unwrap(),
            Some(_) => comes_with(&agent, &image, DestinationPhase::Running),
        }
        recover(&agent.recovery).unwrap();
        wait_written(&agent, session, (SourcePhase::Finished, false));
        assert_eq!(stale::of(&image).is_some(), came_back.is_none(), "{came_back:?}");
        assert_eq!(agent.registry.has("g"), came_back == Some("runs"));
    }
}

/// Whether the image belongs to the guest that arrives is known when it has arrived, or has not.
#[test]
fn an_answer_about_a_guest_that_is_on_its_way_back_waits_for_its_arrival() {
    for phase in [DestinationPhase::Started, DestinationPhase::Loaded] {
        let cluster = Cluster::new();
        let agent = secured(&cluster.dir, &[], cluster.security.clone());
        let (session, image) = left_with_an_image(&cluster, &agent);
        comes_with(&agent, &image, phase);
        let record = agent.journal.get(session).unwrap().unwrap();
        continue_session(&agent.recovery, session, record, GuestState::InDoubt);
        let (one, wait) = the_one(&agent);
        while !one.summary().note.unwrap().contains("is arriving here") {
            wait("it does not wait");
        }
        assert_eq!(written(&agent, session), (SourcePhase::CommitSent, false));
        assert_eq!(stale::of(&image), None, "the guest that arrives writes to it");
        comes_with(&agent, &image, DestinationPhase::Aborted);
        wait_written(&agent, session, (SourcePhase::Finished, false));
        assert!(stale::of(&image).is_some());
    }
}

#[test]
fn an_agent_without_tls_does_not_ask_about_a_session_with_a_host_that_proved_its_name() {
    let cluster = Cluster::new();
    let ending = Ending::start(&cluster.dir);
    let plain = Cluster { security: Security::insecure(), ..cluster };
    let (agent, session) = plain.recovers(&ending, Some("one"), &plain.one);
    let end = Instant::now() + Duration::from_secs(60);
    while !agent.unfinished()[0].summary().note.unwrap().contains("security = \"insecure\"") {
        assert!(Instant::now() < end, "it says nothing");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(written(&agent, session), (SourcePhase::CommitSent, false));
}

#[test]
fn an_operator_reads_on_which_host_to_look_and_nothing_of_a_copy_that_has_ended() {
    let answers = [None, Some(Outcome::Pending), Some(Outcome::Gone), Some(Outcome::Unknown)];
    for answer in answers {
        for decided in [None, Some(Decided::Waiting), Some(Decided::Void)] {
            let ended = Doubt { decided, ran_here: RanHere::No, answer, is_alive: false }.sentence();
            assert!(ended.contains("on this host has ended") && !ended.contains("paused"), "{ended}");
        }
    }
    let paused =
        |decided, answer| Doubt { decided, ran_here: RanHere::No, answer, is_alive: true }.sentence();
    assert!(paused(None, Some(Outcome::Pending)).contains("look there"));
    // Its QEMU has ended since: nothing is left there to decide about.
    let gone = paused(Some(Decided::Void), Some(Outcome::Gone));
    assert!(gone.contains("until you decide") && !gone.contains("decide there"), "{gone}");
}

/// Another program let it run here after commit, and stopped it again. Neither copy is older than the other, and an
/// operator has decided to keep this one.
#[test]
fn a_guest_that_ran_here_is_not_ended_for_one_that_runs_at_the_destination() {
    let cluster = Cluster::new();
    let agent = secured(&cluster.dir, &[], cluster.security.clone());
    let (_hand, qemu) = runs(&cluster.dir);
    let mut role = leaves(&qemu, SourcePhase::ResumingHere);
    let Role::Source { peers, peer, ran_here, .. } = &mut role else { panic!("{role:?}") };
    (*peers, *peer) = (cluster.one.addresses().to_vec(), Some("one".parse().unwrap()));
    *ran_here = RanHere::Yes;
    let (order, session) = (agent.journal.next_order(), SessionId([7; 16]));
    agent.journal.put(session, &Record::new("g", order, role)).unwrap();
    recover(&agent.recovery).unwrap();
    let (one, wait) = the_one(&agent);
    while !crate::both_hosts::has(&agent.journal, &session.to_string()) {
        wait("it is not noted");
    }
    while !one.is_in_doubt() {
        wait("an operator may not decide");
    }
    assert!(qemu.is_alive());
    assert_eq!(written(&agent, session).0, SourcePhase::ResumingHere);
}
