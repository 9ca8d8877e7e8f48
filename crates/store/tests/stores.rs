//! What both stores promise: a real etcd, a real file.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use common::{End, Kind, PATIENCE, wait};
use linerate_store::local::Local;
use linerate_store::{Condition, Outcome, Store, StoreError, Transaction, Write};

fn put(key: &str, value: &str) -> Write {
    Write::Put { key: key.into(), value: value.into(), leased: false }
}

fn when(conditions: &[Condition], writes: &[Write]) -> Transaction {
    Transaction { conditions: conditions.to_vec(), writes: writes.to_vec() }
}

fn done(store: &dyn Store, transaction: &Transaction) -> u64 {
    match store.commit(transaction).unwrap() {
        Outcome::Done(revision) => revision,
        Outcome::Refused => panic!("refused: {transaction:?}"),
    }
}

#[test]
fn a_transaction_is_carried_out_as_a_whole_if_all_its_conditions_hold() {
    for kind in Kind::both() {
        let store = kind.open().store();
        let made = done(&*store, &when(&[Condition::Absent("a".into())], &[put("a", "1"), put("b", "2")]));
        let written = done(&*store, &when(&[], &[put("a", "3")]));
        assert!(written > made);
        let entry = store.get("a").unwrap().unwrap();
        assert_eq!((entry.value.as_slice(), entry.revision, entry.made), (&b"3"[..], written, made));

        let wrong = [
            Condition::Absent("a".into()),
            Condition::Unchanged("a".into(), made),
            Condition::Unchanged("c".into(), made),
            Condition::SameKey("a".into(), written),
            Condition::SameKey("c".into(), made),
        ];
        for condition in wrong {
            let right = Condition::SameKey("b".into(), made);
            let both = when(&[right, condition.clone()], &[put("a", "4"), Write::Delete("b".into())]);
            assert_eq!(store.commit(&both).unwrap(), Outcome::Refused, "{condition:?}");
            assert_eq!(store.get("a").unwrap().unwrap(), entry, "{condition:?}");
            assert!(store.get("b").unwrap().is_some(), "{condition:?}");
        }

        let right = [Condition::Unchanged("a".into(), written), Condition::SameKey("a".into(), made)];
        done(&*store, &when(&right, &[Write::Delete("a".into()), Write::Delete("c".into())]));
        let again = done(&*store, &when(&[Condition::as_read("a", None)], &[put("a", "5")]));
        assert_eq!(store.get("a").unwrap().unwrap().made, again);
    }
}

#[test]
fn a_list_has_every_key_of_its_prefix_in_order() {
    for kind in Kind::both() {
        let store = kind.open().store();
        // More than a page of etcd's, with values that are large together.
        let keys: Vec<String> = (0..1203).map(|number| format!("host/{number:05}")).collect();
        for some in keys.chunks(100) {
            let writes: Vec<Write> = some.iter().map(|key| put(key, &"x".repeat(5000))).collect();
            done(&*store, &when(&[], &writes));
        }
        done(&*store, &when(&[], &[put("host", "no"), put("host0", "no"), put("hos/t", "no")]));
        let found = store.list("host/").unwrap();
        assert_eq!(found.iter().map(|entry| &entry.key).collect::<Vec<_>>(), keys.iter().collect::<Vec<_>>());
        assert!(found.iter().all(|entry| entry.value.len() == 5000));
        assert_eq!(store.list("").unwrap().len(), keys.len() + 3);
        assert!(store.list("nothing").unwrap().is_empty());
    }
}

#[test]
fn a_list_is_read_however_large_its_values_are_together() {
    for kind in Kind::both() {
        let store = kind.open().store();
        // Far fewer entries than a page of etcd's, and more bytes than one answer of gRPC has.
        let keys: Vec<String> = (0..6).map(|number| format!("drain/{number}")).collect();
        for key in &keys {
            done(&*store, &when(&[], &[put(key, &"x".repeat(1 << 20))]));
        }
        done(&*store, &when(&[], &[put("host/a", "1")]));
        let found = store.list("").unwrap();
        let of_drains = found.iter().filter(|entry| entry.value.len() == 1 << 20);
        assert_eq!(of_drains.map(|entry| &entry.key).collect::<Vec<_>>(), keys.iter().collect::<Vec<_>>());
        assert_eq!((found.len(), found[6].key.as_str()), (7, "host/a"));
    }
}

#[test]
fn a_list_of_many_pages_is_of_one_moment() {
    for kind in Kind::both() {
        let [writer, reader] = kind.clients();
        let keys: Vec<String> = (0..1203).map(|number| format!("host/{number:05}")).collect();
        for some in keys.chunks(100) {
            let writes: Vec<Write> = some.iter().map(|key| put(key, "0")).collect();
            done(&*writer.store(), &when(&[], &writes));
        }
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut number = 0;
                while !over.load(Ordering::Relaxed) {
                    number += 1;
                    let both = ["host/00000", "host/01202"].map(|key| put(key, &number.to_string()));
                    done(&*writer.store(), &when(&[], &both));
                }
            });
            let _end = End(&over);
            let store = reader.store();
            let (mut lists, mut changes, mut before) = (0, 0, None);
            let until = Instant::now() + PATIENCE;
            // Until it was written between two lists, however long the writer's disk takes.
            while lists < 40 || changes < 2 {
                assert!(Instant::now() < until, "{lists} lists, with {changes} changes between them");
                let list = store.list("host/").unwrap();
                assert_eq!(list.len(), keys.len());
                assert_eq!(list[0].value, list[1202].value, "the first and the last page differ");
                let now = Some(list[0].value.clone());
                changes += usize::from(before.is_some() && before != now);
                (lists, before) = (lists + 1, now);
            }
        });
    }
}

#[test]
fn what_is_written_with_a_lease_ends_with_it() {
    for kind in Kind::both() {
        let client = kind.open();
        let leased = Write::Put { key: "leased".into(), value: b"1".to_vec(), leased: true };
        let twice = Write::Put { key: "kept".into(), value: b"1".to_vec(), leased: true };
        done(&*client.store(), &when(&[], &[leased, twice, put("plain", "1")]));
        // Written again without a lease, it stays.
        done(&*client.store(), &when(&[], &[put("kept", "2")]));
        let before = client.store().lease();
        client.end();
        let store = kind.open().store();
        assert!(store.lease().is_some() && store.lease() != before);
        wait("the end of the leased key", || store.get("leased").unwrap().is_none());
        assert_eq!(store.get("plain").unwrap().unwrap().value, b"1");
        assert_eq!(store.get("kept").unwrap().unwrap().value, b"2");
    }
}

#[test]
fn a_file_has_one_client_and_outlives_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fleet.redb");
    let first = Local::open(&file).unwrap();
    done(&first, &when(&[], &[put("a", "1")]));
    assert!(matches!(Local::open(&file), Err(StoreError::Away(_))));
    drop(first);
    assert_eq!(Local::open(&file).unwrap().get("a").unwrap().unwrap().value, b"1");
    std::fs::write(&file, b"no database").unwrap();
    assert!(matches!(Local::open(&file), Err(StoreError::Away(_))));
}

/// A small file system in a folder; unmounted when dropped.
struct Small(tempfile::TempDir);

impl Small {
    fn new() -> Small {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=8m", "linerate-store"]).arg(folder.path());
        assert!(mount.status().unwrap().success(), "tests run as root");
        Small(folder)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

#[test]
fn a_file_on_a_full_disk_loses_nothing_and_takes_more_when_there_is_room() {
    let disk = Small::new();
    let store = Local::open(&disk.0.path().join("fleet.redb")).unwrap();
    let leased = Write::Put { key: "leased".into(), value: b"1".to_vec(), leased: true };
    done(&store, &when(&[], &[put("a", "1"), leased]));
    let (lease, filler) = (store.lease(), disk.0.path().join("filler"));
    let mut file = std::fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &[7; 4096]).is_ok() {}
    let large = when(&[], &[put("b", &"x".repeat(4 << 20))]);
    for _ in 0..3 {
        let refused = store.commit(&large);
        assert!(matches!(refused, Err(StoreError::Away(_) | StoreError::Unknown(_))), "{refused:?}");
    }
    assert_eq!(store.get("a").unwrap().unwrap().value, b"1", "it is read all the same");
    drop(file);
    std::fs::remove_file(filler).unwrap();
    done(&store, &when(&[Condition::Absent("b".into())], &[put("b", "2")]));
    assert!(store.get("leased").unwrap().is_some() && store.lease() == lease, "its process has not ended");
}

#[test]
fn a_cluster_that_is_not_there_is_said_to_be_away() {
    let options = linerate_store::etcd::Options {
        endpoints: vec!["http://127.0.0.1:9".into()],
        lease: PATIENCE,
        ..Default::default()
    };
    let store = linerate_store::etcd::Etcd::open(&options).unwrap();
    assert!(matches!(store.get("a"), Err(StoreError::Away(_))));
    assert!(store.lease().is_none());
    let leased = Write::Put { key: "a".into(), value: Vec::new(), leased: true };
    assert!(matches!(store.commit(&when(&[], &[leased])), Err(StoreError::Away(_))));
}
