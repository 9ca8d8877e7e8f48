//! Statements of one authority about another: which are followed, and which are not.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::{Cluster, DAY};
use linerate_trust::authority::Grounds;
use linerate_trust::bundle::{Bundle, BundleError};
use linerate_trust::peer::Side;
use linerate_trust::request::{NewKey, Request};
use linerate_trust::succession::{Statement, SuccessionError, with_successor, without_retired};
use rustls::pki_types::{CertificateDer, UnixTime};

fn later(time: UnixTime, by: Duration) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(time.as_secs() + by.as_secs()))
}

#[test]
fn the_present_authority_names_the_next_and_the_next_retires_the_one_before() {
    let (old, new) = (Cluster::new("lab"), Cluster::new("lab"));
    let now = old.made;
    let next = new.authority.certificate().clone();
    let statement = old.authority.state(Statement::Successor, &next, now).unwrap();
    let both = with_successor(&old.bundle(), &statement, next.clone(), now).unwrap().unwrap();
    assert_eq!(both.authorities().len(), 2);
    assert!(with_successor(&both, &statement, next, now).unwrap().is_none(), "it is trusted already");
    let retired = new.authority.state(Statement::Retired, old.authority.certificate(), now).unwrap();
    let one = without_retired(&both, &retired, now).unwrap().unwrap();
    assert_eq!(one.authorities().iter().map(|one| one.id()).collect::<Vec<_>>(), [new.authority.id()]);
    assert!(without_retired(&one, &retired, now).unwrap().is_none(), "it is gone already");
}

#[test]
fn a_statement_of_a_stranger_or_of_another_kind_key_or_time_is_not_followed() {
    let (old, new, stranger) = (Cluster::new("lab"), Cluster::new("lab"), Cluster::new("lab"));
    let (now, trusted) = (old.made, old.bundle());
    let next = new.authority.certificate().clone();
    let follow = |statement: &CertificateDer<'static>, now| {
        with_successor(&trusted, statement, next.clone(), now).map(|_| ())
    };
    // Signed by one that is not trusted, also by the next one itself.
    for signer in [&stranger, &new] {
        let statement = signer.authority.state(Statement::Successor, &next, now).unwrap();
        assert_eq!(follow(&statement, now), Err(SuccessionError::Signature(new.authority.id())));
    }
    let about_another =
        old.authority.state(Statement::Successor, stranger.authority.certificate(), now).unwrap();
    assert_eq!(follow(&about_another, now), Err(SuccessionError::Other));
    let other_kind = old.authority.state(Statement::Retired, &next, now).unwrap();
    assert_eq!(follow(&other_kind, now), Err(SuccessionError::Other));
    let good = old.authority.state(Statement::Successor, &next, now).unwrap();
    follow(&good, now).unwrap();
    let behind = UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs() - 3599));
    follow(&good, behind).expect("a clock may be an hour behind");
    assert_eq!(follow(&good, later(now, 4000 * DAY)), Err(SuccessionError::Time));
    let early = UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs() - 7200));
    assert_eq!(follow(&good, early), Err(SuccessionError::Time));
    // No third authority comes in during a change: a stolen key of the one that leaves gets no further.
    let both = with_successor(&trusted, &good, next, now).unwrap().unwrap();
    let third = stranger.authority.certificate().clone();
    let statement = old.authority.state(Statement::Successor, &third, now).unwrap();
    let refused = with_successor(&both, &statement, third, now).unwrap_err();
    assert_eq!(refused, SuccessionError::Bundle(BundleError::Many));
    // The one that leaves does not retire the one that comes by a statement of another kind, nor the only one.
    let successor = old.authority.state(Statement::Successor, old.authority.certificate(), now).unwrap();
    assert!(without_retired(&both, &successor, now).is_err());
    let retired = new.authority.state(Statement::Retired, old.authority.certificate(), now).unwrap();
    assert_eq!(
        without_retired(&old.bundle(), &retired, now).unwrap_err(),
        SuccessionError::NotOneOfTwo(old.authority.id())
    );
    // Nobody states anything of itself, or of another cluster's authority.
    let of_itself = old.authority.state(Statement::Retired, old.authority.certificate(), now).unwrap();
    assert_eq!(
        without_retired(&both, &of_itself, now).unwrap_err(),
        SuccessionError::Signature(old.authority.id())
    );
    let other = Cluster::new("other").authority.certificate().clone();
    let statement = old.authority.state(Statement::Successor, &other, now).unwrap();
    let refused = with_successor(&trusted, &statement, other, now).unwrap_err();
    assert_eq!(refused, SuccessionError::Other);
}

#[test]
fn a_statement_is_no_hosts_certificate() {
    let mut old = Cluster::new("lab");
    let new = Cluster::new("lab");
    let one = old.host("one");
    let statement = old.authority.state(Statement::Successor, new.authority.certificate(), old.made).unwrap();
    for side in [Side::Client, Side::Server] {
        assert!(one.verify(std::slice::from_ref(&statement), side, None, old.made).is_err());
    }
}

#[test]
fn a_member_gets_its_own_name_and_no_other_from_the_next_authority() {
    let (mut old, mut new) = (Cluster::new("lab"), Cluster::new("lab"));
    let (one, now) = (old.host("one"), old.made);
    let peer = one.check_own(now).unwrap();
    let request =
        |name: &str| Request::read(&NewKey::make(old.name(name)).unwrap().request().unwrap()).unwrap();
    assert!(new.authority.issue(&request("two"), &Grounds::Succession(&peer), now).is_err());
    new.authority.issue(&request("one"), &Grounds::Succession(&peer), now).unwrap();
    assert!(old.authority.has_issued(&peer, now) && !new.authority.has_issued(&peer, now));
    let host = "one".parse().unwrap();
    old.authority.revoke(&host, now).unwrap();
    assert!(!old.authority.has_issued(&peer, now), "then its agent signs nothing");
    assert!(Bundle::new(vec![new.authority.certificate().clone()]).is_ok());
}
