//! TLS between two ends over real sockets: who gets in, what is seen on the way, and what lands.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;

mod batches;
mod channels;
mod handshakes;
mod identity;
mod records;
mod relay;

use std::sync::mpsc;

use common::*;
use linerate_net::tcp::Stream;
use linerate_net::tcp::connect::{ConnectError, connect};
use linerate_net::tcp::listen::{ListenOptions, Listener};
use linerate_net::tcp::options::TcpOptions;
use linerate_net::tls::Tls;
use linerate_wire::frame::Role;

fn tcp_options(tls: Option<&Tls>) -> TcpOptions {
    TcpOptions { tls: tls.cloned(), connect_wait: WAIT, user_timeout: WAIT, ..TcpOptions::default() }
}

fn listening(tls: Option<&Tls>) -> (Listener, mpsc::Receiver<Stream>) {
    listener_with(ListenOptions { tcp: tcp_options(tls), handshake_wait: WAIT, ..ListenOptions::default() })
}

fn dial(listener: &Listener, tls: Option<&Tls>) -> Result<Stream, ConnectError> {
    connect(&route(listener.addresses()[0]), &hello(Role::Data), &tcp_options(tls)).map(|(stream, _)| stream)
}

/// Both ends of a connection between hosts that trust each other.
fn pair(source: &Tls, destination: &Tls) -> (Stream, Stream) {
    let (listener, streams) = listening(Some(destination));
    let near = dial(&listener, Some(source)).unwrap();
    (near, streams.recv_timeout(WAIT).unwrap())
}

/// Both ends of a connection with socket buffers of this size.
fn pair_with_buffers(tls: &Tls, buffer_bytes: usize) -> (Stream, Stream) {
    let tcp = TcpOptions { buffer_bytes, ..tcp_options(Some(tls)) };
    let (listener, streams) =
        listener_with(ListenOptions { tcp: tcp.clone(), handshake_wait: WAIT, ..ListenOptions::default() });
    let (near, _) = connect(&route(listener.addresses()[0]), &hello(Role::Data), &tcp).unwrap();
    (near, streams.recv_timeout(WAIT).unwrap())
}
