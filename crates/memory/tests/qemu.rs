//! The same on a real hypervisor. Needs root and `qemu-system-x86_64`; fails without, on purpose.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::undocumented_unsafe_blocks,
    reason = "a test program: its helpers fail by panic, and its unsafe calls are system calls on live locals"
)]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Shm, is_watched};
use linerate_memory::{Mapping, RamBlock, Tracker};
use serde_json::Value;

struct Qemu {
    child: Child,
    monitor: BufReader<UnixStream>,
    ram: Shm,
    _directory: tempfile::TempDir,
}

impl Qemu {
    fn start() -> Qemu {
        let ram = Shm::new();
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("monitor");
        let child = Command::new("qemu-system-x86_64")
            .args(["-accel", "tcg", "-M", "q35", "-m", "256", "-smp", "2", "-display", "none", "-nodefaults"])
            .args(["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"])
            .args(["-machine", "memory-backend=ram0", "-object"])
            .arg(format!("memory-backend-file,id=ram0,size=256M,share=on,mem-path={}", ram.0.display()))
            .arg("-qmp")
            .arg(format!("unix:{},server=on,wait=off", socket.display()))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        let stream = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(error) => assert!(begun.elapsed() < Duration::from_secs(60), "no monitor: {error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut qemu = Qemu { child, monitor: BufReader::new(stream), ram, _directory: directory };
        qemu.line();
        qemu.ask("qmp_capabilities");
        qemu
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.monitor.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn ask(&mut self, command: &str) -> Value {
        writeln!(self.monitor.get_mut(), r#"{{"execute":"{command}"}}"#).unwrap();
        loop {
            let answer = self.line();
            assert!(answer.get("error").is_none(), "{answer}");
            if let Some(value) = answer.get("return") {
                return value.clone();
            }
        }
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn attaches_tracks_and_leaves_a_running_qemu() {
    let mut qemu = Qemu::start();
    let pid = qemu.child.id() as i32;
    let threads = qemu.ask("query-cpus-fast");
    let avoid: Vec<i32> =
        threads.as_array().unwrap().iter().map(|cpu| cpu["thread-id"].as_i64().unwrap() as i32).collect();
    assert_eq!(avoid.len(), 2);
    for _ in 0..20 {
        let block = RamBlock::find(pid, "ram0", &qemu.ram.0).unwrap();
        let mapping = Mapping::new(&block).unwrap();
        assert_eq!(mapping.size(), 256 << 20);
        let (tracker, report) = Tracker::attach(pid, &[block], &avoid).unwrap();
        assert!(!avoid.contains(&report.thread));
        tracker.protect().unwrap();
        // The firmware starts again and writes its memory.
        qemu.ask("system_reset");
        let begun = Instant::now();
        let mut found = Vec::new();
        while tracker.scan(true, &mut found).unwrap().pages == 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "the firmware wrote nothing");
            std::thread::sleep(Duration::from_millis(10));
        }
        tracker.check_mapped().unwrap();
        tracker.detach().unwrap();
        assert!(!is_watched(pid));
        assert_eq!(qemu.ask("query-status")["status"], "running");
    }
}

#[test]
fn a_paused_qemu_is_written_no_more() {
    let mut qemu = Qemu::start();
    let pid = qemu.child.id() as i32;
    let block = RamBlock::find(pid, "ram0", &qemu.ram.0).unwrap();
    let mapping = Mapping::new(&block).unwrap();
    let (tracker, _) = Tracker::attach(pid, &[block], &[]).unwrap();
    tracker.protect().unwrap();
    qemu.ask("stop");
    tracker.scan(true, &mut Vec::new()).unwrap();
    let digest = mapping.digest(2).unwrap();
    assert_eq!(qemu.ask("query-status")["running"], false);
    assert_eq!(tracker.scan(true, &mut Vec::new()).unwrap().pages, 0);
    assert_eq!(mapping.digest(1).unwrap(), digest);
    tracker.detach().unwrap();
    qemu.ask("cont");
    assert_eq!(qemu.ask("query-status")["status"], "running");
}
