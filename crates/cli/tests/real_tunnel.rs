//! Real agents carry sockets between two hosts in namespaces, over two real links. As root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Tests say what they expect.

#[path = "tunnel/stage.rs"]
mod stage;

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use linerate_lab::Way;
use rustix::process::Signal;
use stage::{Bytes, LONG, Stage, gone, receive, send};

/// Many streams in both directions, each half-closed by both of its ends, while something is done to the links.
fn streams_while(stage: &Stage, streams: u64, blocks: usize, meanwhile: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        for seed in 1..=streams {
            let (near, far) = stage.connection();
            let clones = (near.try_clone().unwrap(), far.try_clone().unwrap());
            for (socket, seed) in [(near, seed), (far, seed + 1000)] {
                scope.spawn(move || {
                    send(&socket, seed, blocks);
                    socket.shutdown(Shutdown::Write).unwrap();
                });
            }
            scope.spawn(move || receive(clones.0, seed + 1000, blocks));
            scope.spawn(move || receive(clones.1, seed, blocks));
        }
        scope.spawn(meanwhile);
    });
}

#[test]
fn many_streams_survive_cut_links_and_nothing_is_left() {
    let stage = Stage::new();
    let before = stage.held();
    let tunnel = stage.tunnel(&[&stage.pair()]);
    let idle = {
        streams_while(&stage, 1, 1, || {});
        stage.held()
    };
    streams_while(&stage, 6, 800, || {
        for (round, link) in [0, 1, 0, 1].into_iter().enumerate() {
            std::thread::sleep(Duration::from_millis(150 + 83 * round as u64));
            match round {
                1 => stage.lab.drop_silently(link).unwrap(),
                2 => stage.lab.cut_one_way(link, 1).unwrap(),
                _ => stage.lab.cut(link).unwrap(),
            }
            tunnel_sleeps();
            stage.lab.restore(link).unwrap();
            std::thread::sleep(Duration::from_millis(700));
        }
    });
    tunnel.wait("link_lost");
    stage.wait_released(&idle);
    tunnel.signal(Signal::TERM);
    assert_eq!(tunnel.exit().code(), Some(0));
    stage.wait_released(&before);
    assert!(gone(&stage.listen_path), "the socket that was listened on is still there");
}

/// Longer than a link's loss takes to be noticed.
fn tunnel_sleeps() {
    std::thread::sleep(Duration::from_millis(1500));
}

#[test]
fn all_links_gone_for_a_while_is_waited_for() {
    let stage = Stage::new();
    let _tunnel = stage.tunnel(&[&stage.pair()]);
    streams_while(&stage, 2, 600, || {
        std::thread::sleep(Duration::from_millis(200));
        for link in [0, 1] {
            stage.lab.drop_silently(link).unwrap();
        }
        std::thread::sleep(Duration::from_secs(3));
        for link in [0, 1] {
            stage.lab.restore(link).unwrap();
        }
    });
}

#[test]
fn streams_go_both_ways_over_a_link_with_a_round_trip_of_600_ms_that_is_not_lost() {
    let stage = Stage::through_a_switch();
    let way = Way { delay: Duration::from_millis(300), loses_one_of: 0 };
    let _far = stage.lab.forward(0, [0, 1], [way, way]).unwrap();
    let tunnel = stage.tunnel(&[&stage.pair()]);
    streams_while(&stage, 2, 40, || {});
    // A busy machine may lose it now and then. With limits that are too short each connection moves its first window
    // alone, a fiftieth of all.
    let lost = tunnel.events().filter(|event| event["event"] == "link_lost").count();
    assert!(lost <= 5, "the link was lost {lost} times");
    tunnel.signal(Signal::TERM);
    assert_eq!(tunnel.exit().code(), Some(0));
}

#[test]
fn a_reset_over_loopback_tcp_arrives_as_a_reset() {
    let stage = Stage::new();
    let tunnel = stage.tunnel(&["tcp:127.0.0.1:6000=tcp:127.0.0.1:7000"]);
    let listener = stage.tcp_target();
    let (mut near, mut far) = stage.tcp_connection(&listener, 6000);
    near.write_all(b"x").unwrap();
    far.read_exact(&mut [0]).unwrap();
    // Unread bytes at the close are a reset.
    far.write_all(b"nobody reads this").unwrap();
    near.peek(&mut [0]).unwrap();
    drop(near);
    far.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(far.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    // Another stream survives it.
    let (mut near, mut far) = stage.tcp_connection(&listener, 6000);
    near.write_all(b"y").unwrap();
    far.read_exact(&mut [0]).unwrap();
    drop(tunnel);
    for socket in [&mut near, &mut far] {
        socket.set_read_timeout(Some(LONG)).unwrap();
        let error = socket.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "the tunnel's end is no end of the stream");
    }
}

#[test]
fn what_is_not_allowed_is_refused_with_what_to_do() {
    let stage = Stage::new();
    let tunnel = stage.tunnel(&["tcp:127.0.0.1:6000=unix:/etc/passwd", &stage.pair()]);
    let mut near =
        stage.lab.hosts()[0].inside(|| Ok(std::net::TcpStream::connect("127.0.0.1:6000").unwrap())).unwrap();
    near.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(near.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    let reason = tunnel.wait("refused")["reason"].to_string();
    assert!(reason.contains("tunnel_targets") && reason.contains("unix:/etc/passwd"), "{reason}");
    streams_while(&stage, 1, 3, || {});
}

#[test]
fn when_the_other_agent_ends_sockets_close_and_the_command_shows_the_reason() {
    let mut stage = Stage::new();
    let before = stage.held();
    let tunnel = stage.tunnel(&["--link-timeout", "5s", &stage.pair()]);
    let (mut near, _far) = stage.connection();
    near.write_all(b"x").unwrap();
    stage.agents[1].kill().unwrap();
    near.set_read_timeout(Some(LONG)).unwrap();
    assert!(matches!(near.read(&mut [0]), Ok(0) | Err(_)));
    let ended = tunnel.wait("ended");
    assert_eq!(ended["error"]["code"], "peer_lost", "{ended}");
    assert_ne!(tunnel.exit().code(), Some(0));
    stage.agents[1].restart().unwrap();
    stage.wait_released(&[before[0], (usize::MAX, usize::MAX - 1)]);
    // The same again works.
    let _tunnel = stage.tunnel(&[&stage.pair()]);
    streams_while(&stage, 1, 3, || {});
}

#[test]
fn systemd_is_notified_when_connections_are_accepted() {
    let stage = Stage::new();
    let path = stage.lab.directory().join("notify.sock");
    let notify = UnixDatagram::bind(&path).unwrap();
    notify.set_read_timeout(Some(LONG)).unwrap();
    let mut command = stage.command(&[&stage.pair()]);
    command.env("NOTIFY_SOCKET", &path).stdout(std::process::Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut message = [0; 64];
    let length = notify.recv(&mut message);
    let connected = std::os::unix::net::UnixStream::connect(&stage.listen_path);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(&message[..length.unwrap()], b"READY=1");
    connected.unwrap();
}

/// `qemu-nbd` at the other host; ended when dropped.
struct Export(std::process::Child);

impl Export {
    fn start(stage: &Stage, image: &Path, socket: &Path) -> Export {
        let mut nbd = stage.lab.hosts()[1].command("qemu-nbd");
        nbd.args(["--persistent", "--shared=4", "--format=raw", "--socket"]).arg(socket).arg(image);
        // When a connection ends before its export, it says so.
        let export = Export(nbd.stderr(std::process::Stdio::null()).spawn().unwrap());
        let deadline = Instant::now() + LONG;
        while UnixStream::connect(socket).is_err() {
            assert!(Instant::now() < deadline, "qemu-nbd does not listen at {}", socket.display());
            std::thread::sleep(Duration::from_millis(20));
        }
        export
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A copy of a disk; ended when dropped.
struct Converting(std::process::Child);

impl Drop for Converting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Begins to copy a disk; QEMU's own tool waits as long as its NBD connection does.
fn copy(stage: &Stage, arguments: &[&str], from: &str, to: &str) -> Converting {
    let mut convert = stage.lab.hosts()[0].command("qemu-img");
    convert.args(["convert", "-f", "raw", "-O", "raw", "-W"]).args(arguments).args([from, to]);
    Converting(convert.spawn().unwrap())
}

/// One connection writes and two others read, all at once and over both links. One of the links is lost on the way.
#[test]
fn nbd_exports_are_read_and_written_while_a_link_is_lost() {
    const BYTES: usize = 32 << 20;
    let stage = Stage::new();
    // Slow enough for a link to be lost in the middle, however late that is noticed.
    (0..2).for_each(|link| stage.lab.slow(link, 40).unwrap());
    let targets = stage.target_path.parent().unwrap();
    let file = |name: &str| targets.join(name);
    let disk = |name: &str, seed: u64| {
        let mut content = vec![0; BYTES];
        Bytes(seed).fill(&mut content);
        std::fs::write(file(name), &content).unwrap();
        content
    };
    let (read, written) = (disk("read.img", 1), disk("source.img", 2));
    disk("written.img", 3);
    let exports = ["read", "written"]
        .map(|name| Export::start(&stage, &file(&format!("{name}.img")), &file(&format!("{name}.nbd"))));
    let here = |name: &str| stage.lab.directory().join(format!("{name}.here"));
    let pair =
        |name: &str| format!("unix:{}=unix:{}", here(name).display(), file(&format!("{name}.nbd")).display());
    let tunnel = stage.tunnel(&[&pair("read"), &pair("written")]);
    let address = |name: &str| format!("nbd+unix:///?socket={}", here(name).display());
    let path = |name: &str| file(name).display().to_string();
    let mut copies = [
        copy(&stage, &[], &address("read"), &path("first.img")),
        copy(&stage, &["-m", "16"], &address("read"), &path("second.img")),
        copy(&stage, &["-n"], &path("source.img"), &address("written")),
    ];
    let deadline = Instant::now() + LONG;
    let arrived = |name: &str| file(name).metadata().map_or(0, |file| file.blocks() * 512);
    while arrived("first.img") < BYTES as u64 / 8 {
        assert!(Instant::now() < deadline, "nothing comes");
        std::thread::sleep(Duration::from_millis(10));
    }
    stage.lab.cut(0).unwrap();
    tunnel.wait("link_lost");
    assert!(copies[0].0.try_wait().unwrap().is_none(), "it was over before the link was lost");
    (0..2).for_each(|link| stage.lab.restore(link).unwrap());
    tunnel.wait("link_up");
    let end = Instant::now() + LONG;
    for Converting(child) in &mut copies {
        assert!(linerate_lab::wait::exit(child, end).unwrap().success());
    }
    for (name, content) in [("first.img", &read), ("second.img", &read), ("written.img", &written)] {
        assert!(std::fs::read(file(name)).unwrap() == *content, "{name} differs");
    }
    // Written, made durable and read again by connections that come one after the other.
    for commands in [["write -P 90 1M 3M", "flush"], ["read -P 90 1M 3M", "write -z 2M 1M"]] {
        let mut io = stage.lab.hosts()[0].command("qemu-io");
        io.args(["-f", "raw", "-c", commands[0], "-c", commands[1]]).arg(address("written"));
        let output = io.output().unwrap();
        let message = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && !message.contains("failed"), "{output:?}");
    }
    let now = std::fs::read(file("written.img")).unwrap();
    let part = |from: usize, to: usize| now.get(from << 20..to << 20).unwrap();
    assert!(part(1, 2).iter().chain(part(3, 4)).all(|&byte| byte == 90));
    assert!(part(2, 3).iter().all(|&byte| byte == 0));
    assert!(part(0, 1) == &written[..1 << 20] && part(4, 32) == &written[4 << 20..]);
    drop(tunnel);
    drop(exports);
}
