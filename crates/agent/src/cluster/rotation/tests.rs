use super::super::renewal::exchange_with_authority;
use super::super::testing::{Running, running};
use super::super::tests::{first, join_at, site};
use super::super::watch::Watch;
use super::super::{join, operations};
use super::*;

/// Every host takes connections of every other: a guest can move in any direction.
fn all_meet(hosts: &[&Running]) {
    for from in hosts {
        for to in hosts {
            from.connect_to(to).unwrap();
        }
    }
}

/// What a host's agent does each five minutes.
fn follows(host: &Running, authority: &Running) {
    let addresses = authority.listener.addresses();
    exchange_with_authority(&host.site.config, &host.identity(), addresses, UnixTime::now()).unwrap();
}

fn waits_for(authority: &Running) -> Vec<String> {
    match rotate(&authority.site.config, false).unwrap_err() {
        ClusterError::NotReady { hosts, .. } => hosts.iter().map(ToString::to_string).collect(),
        other => panic!("{other}"),
    }
}

fn step(authority: &Running, leave_behind: bool) -> Rotated {
    let done = rotate(&authority.site.config, leave_behind).unwrap();
    authority.look();
    done
}

fn trusts(host: &Running) -> Vec<AuthorityId> {
    host.identity().bundle().authorities().iter().map(|one| one.id()).collect()
}

#[test]
fn a_cluster_changes_its_authority_and_every_host_accepts_every_other_all_the_while() {
    let one = first();
    let server = one.server();
    let [two, three] = ["two", "three"].map(|name| {
        let site = site(name, "");
        join_at(&site, &server, &one.token()).unwrap();
        site
    });
    drop(server);
    let (one, two, three) = (running(one), running(two), running(three));
    let all = [&one, &two, &three];
    let begun = step(&one, false);
    assert_eq!(begun.step, Step::Begun);
    all_meet(&all);
    assert_eq!(waits_for(&one), ["three", "two"]);
    follows(&two, &one);
    all_meet(&all);
    assert_eq!(waits_for(&one), ["three"]);
    follows(&three, &one);
    assert_eq!(trusts(&three), [begun.old, begun.new]);
    assert_eq!(step(&one, false).step, Step::Switched);
    all_meet(&all);
    assert_eq!(waits_for(&one), ["three", "two"]);
    follows(&two, &one);
    all_meet(&all);
    assert_eq!(waits_for(&one), ["three"]);
    follows(&three, &one);
    assert_eq!(step(&one, false).step, Step::Finished);
    all_meet(&all);
    assert_eq!(trusts(&one), [begun.new]);
    for host in [&two, &three] {
        follows(host, &one);
        assert_eq!(trusts(host), [begun.new]);
    }
    all_meet(&all);
    // It is a whole authority: it revokes, and lets hosts join.
    operations::revoke_host(&one.site.config, "two").unwrap();
    one.look();
    assert!(two.connect_to(&one).is_err());
    let four = site("four", "");
    join_at(&four, &one.site.server(), &one.site.token()).unwrap();
    assert_eq!(step(&one, false).step, Step::Begun, "and can be changed again");
}

#[test]
fn a_host_that_missed_the_change_is_told_to_join_again() {
    let (one, two) = (first(), site("two", ""));
    join_at(&two, &one.server(), &one.token()).unwrap();
    let (one, two) = (running(one), running(two));
    step(&one, false);
    assert_eq!(waits_for(&one), ["two"]);
    let switched = step(&one, true);
    assert_eq!(switched.left_behind, ["two".parse().unwrap()]);
    step(&one, true);
    let error = two.connect_to(&one).unwrap_err();
    let text = crate::faults::chain(&error);
    assert!(text.contains("linerate join --replace"), "{text}");
    let addresses = one.listener.addresses();
    let asked = exchange_with_authority(&two.site.config, &two.identity(), addresses, UnixTime::now());
    let text = asked.err().unwrap().to_string();
    assert!(text.contains("linerate join --replace"), "{text}");
    let server = one.site.server();
    let (address, token) = (server.addresses()[0].to_string(), one.site.token());
    join::join(&two.site.config, &address, &token.line, None, true).unwrap();
    two.look();
    two.connect_to(&one).unwrap();
}

#[test]
fn a_revocation_during_a_change_counts_with_both_authorities() {
    let (one, two, three) = (first(), site("two", ""), site("three", ""));
    let server = one.server();
    join_at(&two, &server, &one.token()).unwrap();
    join_at(&three, &server, &one.token()).unwrap();
    let (one, two, three) = (running(one), running(two), running(three));
    step(&one, false);
    follows(&two, &one);
    follows(&three, &one);
    step(&one, false);
    // This host has certificates of both.
    follows(&two, &one);
    operations::revoke_host(&one.site.config, "two").unwrap();
    one.look();
    assert!(two.connect_to(&one).is_err());
    follows(&three, &one);
    assert!(two.connect_to(&three).is_err());
    assert_eq!(step(&one, false).step, Step::Finished, "a revoked host is not waited for");
}

/// As a crash leaves the last step after `done` renamings; the step was done before.
fn cut_off(one: &Running, done: &Rotated, renamed: usize) {
    let present = one.site.config.authority_folder();
    let retired = beside(&present, &format!("retired-{}", &done.old.to_string()[..16]));
    std::fs::rename(&present, next_folder(&one.site.config)).unwrap();
    if renamed == 0 {
        std::fs::rename(retired, &present).unwrap();
    }
}

/// A cluster of two whose authority is changed.
fn changed() -> (Running, Running, Rotated) {
    let (one, two) = (first(), site("two", ""));
    join_at(&two, &one.server(), &one.token()).unwrap();
    let (one, two) = (running(one), running(two));
    for _ in 0..2 {
        step(&one, false);
        follows(&two, &one);
    }
    let done = step(&one, false);
    (one, two, done)
}

/// A host whose certificate is the next authority's; the authority before is trusted still.
fn switched() -> (Running, Running) {
    let (one, two) = (first(), site("two", ""));
    join_at(&two, &one.server(), &one.token()).unwrap();
    let (one, two) = (running(one), running(two));
    step(&one, false);
    follows(&two, &one);
    step(&one, false);
    (one, two)
}

#[test]
fn a_host_that_comes_back_during_the_next_change_follows_both() {
    let (one, two, done) = changed();
    assert_eq!(trusts(&two), [done.old, done.new], "it was away");
    let next = step(&one, false);
    assert_eq!(next.step, Step::Begun);
    follows(&two, &one);
    assert_eq!(trusts(&two), [next.old, next.new]);
    assert_eq!(step(&one, false).step, Step::Switched);
    all_meet(&[&one, &two]);
}

#[test]
fn a_last_step_that_was_cut_off_is_ended_and_no_other_change_begins() {
    for renamed in [0, 1] {
        let (one, two, done) = changed();
        cut_off(&one, &done, renamed);
        let again = step(&one, false);
        assert_eq!((again.step, again.old, again.new), (Step::Finished, done.old, done.new));
        assert!(!next_folder(&one.site.config).exists(), "no other change");
        follows(&two, &one);
        assert_eq!(trusts(&two), [done.new]);
        all_meet(&[&one, &two]);
    }
}

#[test]
fn the_agent_ends_a_last_step_that_was_cut_off_and_a_host_is_revoked_before() {
    for renamed in [0, 1] {
        let (one, two, done) = changed();
        cut_off(&one, &done, renamed);
        operations::revoke_host(&one.site.config, "two").unwrap();
        one.look();
        assert!(two.connect_to(&one).is_err());
        let watch = Watch::new(one.site.config.clone(), one.security.clone());
        watch.take_newer_lists(&one.identity()).unwrap();
        assert!(!next_folder(&one.site.config).exists());
        assert_eq!(Authority::id_in(&one.site.config.authority_folder()).unwrap(), done.new);
    }
}

/// Otherwise it would refuse its own certificate, and no host that trusts the old authority would be accepted.
#[test]
fn a_host_without_a_certificate_of_the_next_authority_keeps_the_one_before() {
    let (one, two) = switched();
    let next = open_authority(&next_folder(&one.site.config)).unwrap();
    let present = open_authority(&one.site.config.authority_folder()).unwrap();
    let now = UnixTime::now();
    let retired = next.state(Statement::Retired, present.certificate(), now).unwrap();
    let change = AuthorityChange { retired: Some(BASE64.encode(&retired)), ..AuthorityChange::default() };
    assert!(!follow(&two.site.config, &two.identity(), &change, now).unwrap());
    assert_eq!(trusts(&two), [present.id(), next.id()]);
}

/// In place of a full disk: the file beside, which is written first, cannot be made.
fn cannot_write(file: &Path) -> PathBuf {
    let beside = file.with_file_name(format!(".{}.new", file.file_name().unwrap().to_str().unwrap()));
    std::fs::create_dir(&beside).unwrap();
    beside
}

#[test]
fn a_certificate_that_a_host_could_not_write_is_none() {
    let (one, two) = switched();
    let full = cannot_write(&two.site.config.identity_folder().join("host.pem"));
    let addresses = one.listener.addresses();
    let asked = exchange_with_authority(&two.site.config, &two.identity(), addresses, UnixTime::now());
    assert!(asked.is_err());
    assert_eq!(waits_for(&one), ["two"]);
    std::fs::remove_dir(full).unwrap();
    follows(&two, &one);
    assert_eq!(step(&one, false).step, Step::Finished);
    all_meet(&[&one, &two]);
}

#[test]
fn a_host_that_joins_again_during_the_change_is_waited_for_again() {
    let (one, two) = switched();
    follows(&two, &one);
    // Certificates are told apart by their seconds.
    let second = UnixTime::now().as_secs();
    while UnixTime::now().as_secs() == second {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let server = one.site.server();
    let ttl = std::time::Duration::from_secs(900);
    let token = operations::create_token(&one.site.config, ttl, Some("two")).unwrap();
    join::join(&two.site.config, &server.addresses()[0].to_string(), &token.line, None, true).unwrap();
    two.look();
    assert_eq!(waits_for(&one), ["two"]);
    follows(&two, &one);
    assert_eq!(step(&one, false).step, Step::Finished);
    all_meet(&[&one, &two]);
}

#[test]
fn a_host_that_one_of_two_authorities_could_not_revoke_is_not_called_revoked() {
    let (one, two) = switched();
    follows(&two, &one);
    let full = cannot_write(&next_folder(&one.site.config).join("register.json"));
    let error = operations::revoke_host(&one.site.config, "two").unwrap_err();
    assert!(error.to_string().contains("authority-next/register.json"), "{error}");
    std::fs::remove_dir(full).unwrap();
    operations::revoke_host(&one.site.config, "two").unwrap();
    one.look();
    assert!(two.connect_to(&one).is_err());
    let error = operations::revoke_host(&one.site.config, "two").unwrap_err();
    assert!(error.to_string().contains("no host two"), "{error}");
}

/// Who has the next authority may wait for the one before, and never the other way round.
#[test]
fn a_step_that_waits_for_the_next_authority_does_not_hold_the_one_before() {
    let (one, two) = switched();
    follows(&two, &one);
    let next = open_authority(&next_folder(&one.site.config)).unwrap();
    let config = one.site.config.clone();
    let stepping = std::thread::spawn(move || rotate(&config, false));
    // It has the identity's lock, and waits.
    while files::lock(&one.site.config.identity_folder().join("lock")).unwrap().is_some() {
        std::thread::yield_now();
    }
    for _ in 0..20 {
        std::thread::sleep(std::time::Duration::from_millis(10));
        Authority::open(&one.site.config.authority_folder()).unwrap();
    }
    drop(next);
    assert_eq!(stepping.join().unwrap().unwrap().step, Step::Finished);
}

#[test]
fn a_name_of_the_next_authority_alone_is_not_given_to_another_host() {
    let (one, two) = switched();
    follows(&two, &one);
    // As if the certificate of before had ended.
    let register = one.site.config.authority_folder().join("register.json");
    files::write(&register, br#"{"number":0,"list":"","issued":[]}"#, Secrecy::Private).unwrap();
    let listed = operations::hosts(&one.site.config).unwrap();
    assert!(listed.iter().any(|listed| listed.host.as_str() == "two"));
    let error = join_at(&site("two", ""), &one.site.server(), &one.site.token()).unwrap_err().to_string();
    assert!(error.contains("host two has a certificate"), "{error}");
    all_meet(&[&one, &two]);
}

#[test]
fn after_the_highest_number_a_host_is_not_called_revoked() {
    let (one, _two) = switched();
    let register = one.site.config.authority_folder().join("register.json");
    let text = std::fs::read_to_string(&register).unwrap();
    let text = text.replace(r#""number":0"#, &format!(r#""number":{}"#, u64::MAX));
    files::write(&register, text.as_bytes(), Secrecy::Private).unwrap();
    let error = operations::revoke_host(&one.site.config, "two").unwrap_err().to_string();
    assert!(error.contains("linerate cluster rotate"), "{error}");
}
