//! `linerate tunnel`: runs in the foreground for as long as the tunnel shall live.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use linerate_api::{TunnelEvent, TunnelRequest};
use tokio::signal::unix::{SignalKind, signal};

use crate::context::Context;
use crate::display::tunnel_text;
use crate::exit::{self, Exit};
use crate::failure::Failure;
use crate::flags::TunnelFlags;

/// Makes the tunnel and says what happens to it, until a signal or its end.
pub async fn run(flags: &TunnelFlags, context: &Context) -> Result<Exit, Failure> {
    let request = flags.request();
    let signals = |error| Failure::new(Exit::Failed, format!("signals cannot be watched: {error}"), "");
    let mut terminate = signal(SignalKind::terminate()).map_err(signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(signals)?;
    let mut events = tokio::select! {
        events = context.client.tunnel(&request) => events?,
        _ = terminate.recv() => return Ok(Exit::Ok),
        _ = interrupt.recv() => return Ok(Exit::Ok),
    };
    loop {
        let event = tokio::select! {
            event = events.next() => event?,
            _ = terminate.recv() => return Ok(Exit::Ok),
            _ = interrupt.recv() => return Ok(Exit::Ok),
        };
        let gone = || {
            let text = "the agent has ended, and the tunnel with it: its connections are reset";
            Failure::new(Exit::Failed, text, "when the agent runs again, give the command again")
        };
        print_event(&event.ok_or_else(gone)?, &request, context)?;
    }
}

/// An end is a failure: it was not requested.
fn print_event(event: &TunnelEvent, request: &TunnelRequest, context: &Context) -> Result<(), Failure> {
    if context.json {
        context.print_json_line(event)?;
    }
    let line = match event {
        TunnelEvent::Ready { listen } => {
            notify_ready(context);
            let pairs = listen.iter().zip(&request.pairs);
            let lines: Vec<String> = pairs
                .map(|(listen, pair)| format!("{listen} -> {} at {}", pair.connect, request.to))
                .collect();
            lines.join("\n")
        }
        TunnelEvent::Ended { error } => return Err(Failure::of_body(exit::of_body(error), error)),
        other => match tunnel_text(other) {
            Some(line) => line,
            None => return Ok(()),
        },
    };
    if !context.json {
        context.print(&(line + "\n"))?;
    }
    Ok(())
}

/// Notifies systemd (`Type=notify`). If the variable is set and the socket does not answer, standard error reports it.
fn notify_ready(context: &Context) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let sent = UnixDatagram::unbound().and_then(|socket| {
        let name = path.as_encoded_bytes();
        let address = match name.strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&path)?,
        };
        socket.send_to_addr(b"READY=1", &address)
    });
    if let Err(error) = sent {
        context.print_line(&format!("the service manager could not be notified: {error}"));
    }
}
