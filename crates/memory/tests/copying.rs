//! Copying guest RAM the way a migration does, and each method of `Mapping`. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::undocumented_unsafe_blocks,
    reason = "a test program: its helpers fail by panic, and its unsafe calls are system calls on live locals"
)]

mod common;

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use common::{Guest, PAGE, Shm, run};
use linerate_core::Run;
use linerate_memory::{Mapping, Tracker};

fn mapping(bytes: u64) -> (Shm, File, Mapping) {
    let (shm, file) = Shm::sized(bytes);
    let mapping = Mapping::of_file(file.try_clone().unwrap()).unwrap();
    (shm, file, mapping)
}

/// Sends the runs from one to the other over a socket pair and compares checksums.
fn move_runs(source: &Mapping, target: &Mapping, runs: &[Run]) {
    let total: usize = runs.iter().map(|run| run.length as usize).sum();
    let (left, right) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut done = 0;
            while done < total {
                done += source.send(left.as_fd(), &[], runs, done).unwrap();
            }
        });
        let mut done = 0;
        while done < total {
            let got = target.receive(right.as_fd(), runs, done).unwrap();
            assert_ne!(got, 0);
            done += got;
        }
    });
}

fn copy(source: &Mapping, target: &Mapping, runs: &[Run]) {
    let (mut data, mut zero) = (Vec::new(), Vec::new());
    source.split_zero(runs, &mut data, &mut zero).unwrap();
    zero.iter().for_each(|run| target.clear(*run).unwrap());
    if !data.is_empty() {
        target.populate(&data).unwrap();
        data.chunks(700).for_each(|runs| move_runs(source, target, runs));
    }
}

#[test]
fn rounds_and_a_last_copy_give_equal_memory_and_keep_holes() {
    const SIZE: u64 = 256 << 20;
    let mut guest = Guest::start(SIZE, &["--threads", "2", "--pages-per-second", "6000"]);
    guest.wait_writes(500);
    let block = guest.block();
    let source = Mapping::new(&block).unwrap();
    let (_shm, _, target) = mapping(SIZE);
    let (tracker, _) = Tracker::attach(guest.pid(), &[block], &[]).unwrap();
    tracker.protect().unwrap();
    copy(&source, &target, &source.populated().unwrap());
    let writes = guest.wait_writes(0);
    for _ in 0..4 {
        let mut found = Vec::new();
        tracker.scan(true, &mut found).unwrap();
        copy(&source, &target, &found.iter().map(|(_, run)| *run).collect::<Vec<_>>());
        guest.wait_writes(writes);
    }
    // Reports from before the last scan may still be in the pipe; the answer to a command is behind them. The first
    // report behind it may be old. The third counts writes since the scan.
    guest.command("load 0 1");
    let first = guest.wait_writes(0);
    let second = guest.wait_writes(first);
    guest.wait_writes(second);
    guest.pause();
    let before = source.resident_bytes().unwrap();
    let mut found = Vec::new();
    let report = tracker.scan(true, &mut found).unwrap();
    assert!(report.pages > 0, "the guest wrote between the rounds");
    assert_ne!(source.digest(2).unwrap(), target.digest(2).unwrap(), "without the last copy they differ");
    copy(&source, &target, &found.iter().map(|(_, run)| *run).collect::<Vec<_>>());
    assert_eq!(source.digest(2).unwrap(), target.digest(1).unwrap());
    assert_eq!(source.resident_bytes().unwrap(), before, "copying filled holes of the source");
    assert!(target.resident_bytes().unwrap() <= before, "the target has fewer holes");
    tracker.check_mapped().unwrap();
    tracker.detach().unwrap();
    guest.resume();
    guest.command("verify");
}

#[test]
fn splits_data_zeros_and_holes_without_filling_any() {
    let (_shm, file, mapping) = mapping(64 * PAGE);
    for page in [1, 2, 5, 63] {
        file.write_all_at(&[9; PAGE as usize], page * PAGE).unwrap();
    }
    file.write_all_at(&[0; PAGE as usize], 3 * PAGE).unwrap();
    file.write_all_at(&[1], 8 * PAGE - 1).unwrap();
    let resident = mapping.resident_bytes().unwrap();
    assert_eq!(resident, 6 * PAGE);
    let (mut data, mut zero) = (Vec::new(), Vec::new());
    mapping.split_zero(&[run(0, 4), run(4, 2), run(7, 57)], &mut data, &mut zero).unwrap();
    assert_eq!(data, [run(1, 2), run(5, 1), run(7, 1), run(63, 1)]);
    assert_eq!(zero, [run(0, 1), run(3, 2), run(8, 55)]);
    assert_eq!(mapping.populated().unwrap(), [run(1, 3), run(5, 1), run(7, 1), run(63, 1)]);
    assert_eq!(mapping.holes_among(&[run(0, 6), run(8, 4)]).unwrap(), [run(0, 1), run(4, 1), run(8, 4)]);
    assert_eq!(mapping.resident_bytes().unwrap(), resident);
}

#[test]
fn clearing_makes_holes_that_read_as_zero() {
    let (_shm, file, mapping) = mapping(16 * PAGE);
    file.write_all_at(&[7; 16 * PAGE as usize], 0).unwrap();
    mapping.clear(run(4, 8)).unwrap();
    mapping.clear(run(4, 8)).unwrap();
    assert_eq!(mapping.populated().unwrap(), [run(0, 4), run(12, 4)]);
    assert_eq!(file.metadata().unwrap().len(), 16 * PAGE);
    let mut page = [1; PAGE as usize];
    file.read_exact_at(&mut page, 4 * PAGE).unwrap();
    assert_eq!(page, [0; PAGE as usize]);
}

#[test]
fn head_and_runs_arrive_in_order_from_any_point_on() {
    let (_shm, file, source) = mapping(8 * PAGE);
    let (_shm2, copy, target) = mapping(8 * PAGE);
    let bytes: Vec<u8> = (0..8 * PAGE).map(|n| (n * 31 % 251) as u8).collect();
    file.write_all_at(&bytes, 0).unwrap();
    let runs = [Run { offset: 5000, length: 100 }, run(3, 1), Run { offset: 1, length: 7 }];
    let total: usize = 10 + runs.iter().map(|run| run.length as usize).sum::<usize>();
    let mut expected = b"0123456789".to_vec();
    runs.iter().for_each(|run| expected.extend(&bytes[run.offset as usize..run.end() as usize]));
    for done in [0, 1, 9, 10, 11, 110, 4206, total - 1] {
        let (left, right) = UnixStream::pair().unwrap();
        assert_eq!(source.send(left.as_fd(), b"0123456789", &runs, done).unwrap(), total - done);
        let mut got = vec![0; total - done];
        std::io::Read::read_exact(&mut &right, &mut got).unwrap();
        assert_eq!(got, expected[done..], "from {done}");
    }
    move_runs(&source, &target, &runs);
    assert_eq!(source.checksum(&runs).unwrap(), target.checksum(&runs).unwrap());
    assert_eq!(source.checksum(&runs).unwrap(), linerate_wire::payload_checksum(&expected[10..]));
    for cut in 0..=runs.len() {
        let (first, rest) = runs.split_at(cut);
        let before = source.checksum(first).unwrap();
        assert_eq!(
            source.checksum_after(before, rest).unwrap(),
            source.checksum(&runs).unwrap(),
            "after {cut}"
        );
    }
    let mut outside = [1; 1];
    copy.read_exact_at(&mut outside, 8).unwrap();
    assert_eq!(outside, [0], "nothing may land outside the runs");
}

#[test]
fn more_runs_than_one_call_takes_are_sent_piecewise() {
    let (_shm, file, source) = mapping(4096 * PAGE);
    let (_shm2, _, target) = mapping(4096 * PAGE);
    (0..4096).for_each(|page| file.write_all_at(&[page as u8 | 1; 64], page * PAGE).unwrap());
    let runs: Vec<Run> = (0..4096).map(|page| Run { offset: page * PAGE, length: 64 }).collect();
    move_runs(&source, &target, &runs);
    assert_eq!(source.digest(1).unwrap(), target.digest(1).unwrap());
}

#[test]
fn a_closed_peer_is_reported() {
    let (_shm, file, mapping) = mapping(PAGE);
    file.write_all_at(&[1; 8], 0).unwrap();
    let (left, right) = UnixStream::pair().unwrap();
    drop(right);
    assert_eq!(mapping.receive(left.as_fd(), &[run(0, 1)], 0).unwrap(), 0);
    // Without MSG_NOSIGNAL this would end the process.
    let error = mapping.send(left.as_fd(), &[], &[run(0, 1)], 0).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    for done in [PAGE as usize, usize::MAX] {
        let error = mapping.receive(left.as_fd(), &[run(0, 1)], done).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    }
}

#[test]
fn runs_over_the_end_are_refused_by_every_method() {
    let (_shm, _, mapping) = mapping(4 * PAGE);
    let (left, _right) = UnixStream::pair().unwrap();
    let bad = [
        run(4, 1),
        run(3, 2),
        Run { offset: u64::MAX - PAGE + 1, length: PAGE },
        Run { offset: PAGE, length: u64::MAX },
        Run { offset: 0, length: 0 },
    ];
    for bad in bad {
        let runs = [run(0, 1), bad];
        let refusals = [
            mapping.checksum(&runs).map(drop),
            mapping.split_zero(&runs, &mut Vec::new(), &mut Vec::new()),
            mapping.send(left.as_fd(), b"x", &runs, 0).map(drop),
            mapping.receive(left.as_fd(), &runs, 0).map(drop),
            mapping.clear(bad),
            mapping.populate(&runs),
            mapping.holes_among(&runs).map(drop),
        ];
        for (method, refusal) in refusals.into_iter().enumerate() {
            let kind = refusal.map_err(|error| error.kind());
            assert_eq!(kind, Err(std::io::ErrorKind::InvalidInput), "method {method}, {bad:?}");
        }
    }
}

#[test]
fn only_files_in_memory_are_mapped() {
    let on_disk = File::open(std::env::current_exe().unwrap()).unwrap();
    assert!(Mapping::of_file(on_disk).is_err());
    let (_shm, odd) = Shm::sized(PAGE + 1);
    assert!(Mapping::of_file(odd).is_err());
}
