//! Real agents carry sockets between two hosts in namespaces, over two real links. As root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Tests say what they expect.

#[path = "tunnel/stage.rs"]
mod stage;

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use rustix::process::Signal;
use stage::{LONG, Stage, gone, hear, say};

/// Many streams in both directions, each half-closed by both of its ends, while something is done to the links.
fn streams_while(stage: &Stage, streams: u64, blocks: usize, meanwhile: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        for seed in 1..=streams {
            let (near, far) = stage.connection();
            let clones = (near.try_clone().unwrap(), far.try_clone().unwrap());
            for (socket, seed) in [(near, seed), (far, seed + 1000)] {
                scope.spawn(move || {
                    say(&socket, seed, blocks);
                    socket.shutdown(Shutdown::Write).unwrap();
                });
            }
            scope.spawn(move || hear(clones.0, seed + 1000, blocks));
            scope.spawn(move || hear(clones.1, seed, blocks));
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
    // Another stream lives through it.
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
fn when_the_other_agent_dies_sockets_are_closed_and_the_command_says_why() {
    let mut stage = Stage::new();
    let before = stage.held();
    let tunnel = stage.tunnel(&["--link-timeout", "2s", &stage.pair()]);
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
fn systemd_is_told_when_connections_are_taken() {
    let stage = Stage::new();
    let path = stage.lab.directory().join("notify.sock");
    let notify = UnixDatagram::bind(&path).unwrap();
    notify.set_read_timeout(Some(LONG)).unwrap();
    let mut command = stage.command(&[&stage.pair()]);
    command.env("NOTIFY_SOCKET", &path).stdout(std::process::Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut said = [0; 64];
    let heard = notify.recv(&mut said);
    let connected = std::os::unix::net::UnixStream::connect(&stage.listen_path);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(&said[..heard.unwrap()], b"READY=1");
    connected.unwrap();
}
