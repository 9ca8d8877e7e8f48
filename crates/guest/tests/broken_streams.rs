//! QEMU's own streams break while it sends, with real QEMUs: the guest runs on at the source, however often.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests, too, say what they expect

mod common;

use std::io::Read;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use common::*;
use linerate_guest::migrate::{MigrateError, SourceQemu, StreamLimits, StreamOptions};
use linerate_guest::run_state::RunState;

const SPEC: &str = "name = 'web'\nmemory = '192M'\nmachine = 'pc'\naccel = 'tcg'\n";
/// What the firmware does not use, so that there is something to send.
const FILLED_MB: std::ops::Range<u64> = 32..160;

fn fill(ram: &Path) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().write(true).open(ram).unwrap();
    for mib in FILLED_MB {
        let words = (0..1_u64 << 17)
            .flat_map(|at| (mib << 32 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        file.write_all_at(&words.collect::<Vec<u8>>(), mib << 20).unwrap();
    }
}

/// Takes some of each connection, and then all of them end at once.
fn cut(connections: Vec<UnixStream>, bytes: usize) {
    let readers: Vec<_> = connections
        .into_iter()
        .map(|mut connection| {
            std::thread::spawn(move || {
                connection.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
                // Less comes on those that carry little.
                let _ = connection.read_exact(&mut vec![0; bytes]);
                connection
            })
        })
        .collect();
    drop(readers.into_iter().map(|reader| reader.join().unwrap()).collect::<Vec<_>>());
}

fn connections_break(channels: u16, times: usize) {
    for qemu in qemus() {
        let place = Place::new();
        let mut source = start_spec(&place, &qemu, SPEC);
        fill(&source.record.ram_files[0]);
        let mut from = SourceQemu::new(source.qmp.take().unwrap(), soon()).unwrap();
        // As the destination chooses, but for the number of channels.
        let chosen = StreamOptions::between(from.qmp().version(), channels, |_| true);
        let options = StreamOptions { channels, zero_pages_in_channels: true, ..chosen };
        let limits = StreamLimits { downtime: Duration::from_millis(1), throttle: false };
        for number in 0..times {
            let path = place.path("c.sock");
            let _ = std::fs::remove_file(&path);
            let listener = UnixListener::bind(&path).unwrap();
            let log = || std::fs::read_to_string(place.path("run/guests/web/start.log")).unwrap_or_default();
            let begun =
                from.prepare_streams(options, limits, soon()).and_then(|()| from.begin(&path, soon()));
            begun.unwrap_or_else(|error| panic!("{qemu:?}, {number}: {error:?}\n{}", log()));
            let accepted = (0..=channels).map(|_| listener.accept().unwrap().0).collect();
            cut(accepted, (number % 8 + 1) << 18);
            let held = from.wait_streams_held(&|| false, &mut |_| None);
            assert!(matches!(held, Err(MigrateError::Failed { .. })), "{number}: {held:?}");
            let cancelled = from.cancel(soon());
            cancelled.unwrap_or_else(|error| panic!("{qemu:?}, {number}: {error:?}\n{}", log()));
            assert_eq!(from.status(soon()).unwrap(), RunState::Running);
        }
    }
}

#[test]
fn one_connection() {
    connections_break(0, 8);
}

/// Settings that change while QEMU still cleans up end its process within the first ten.
#[test]
fn parallel_connections() {
    connections_break(4, 25);
}
