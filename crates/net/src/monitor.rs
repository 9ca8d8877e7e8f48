//! Reports when an interface loses or regains its carrier, so that a dead link is known before any time-out.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::interfaces;
use crate::netlink::{NetlinkError, decode, open, receive};

/// RTMGRP_LINK: changes of links.
const GROUP_LINK: u32 = 1;

/// A change of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceEvent {
    /// Name of the interface.
    pub name: String,
    /// The kernel's number of it.
    pub index: u32,
    /// Up and with carrier now. False also when the interface was removed.
    pub usable: bool,
}

/// A thread that watches interfaces until it is dropped.
#[derive(Debug)]
pub struct Monitor {
    /// Closing it ends the thread.
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    /// Watches the network namespace that the caller is in. Events come only for changes after this returned.
    pub fn start(events: Sender<InterfaceEvent>) -> Result<Monitor, NetlinkError> {
        // Subscribe first, list then: a change in between is seen twice rather than never.
        let socket = open(NETLINK_ROUTE, GROUP_LINK)?;
        let known = interfaces::list()?.into_iter().map(|one| (one.index, one.usable())).collect();
        let (stopped, stop) =
            pipe_with(PipeFlags::CLOEXEC).map_err(|error| NetlinkError::Open(error.into()))?;
        let watcher = Watcher { socket, stopped, known, events };
        let thread = std::thread::Builder::new()
            .name("interfaces".into())
            .spawn(move || watcher.run())
            .map_err(NetlinkError::Thread)?;
        Ok(Monitor { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // The thread cannot be helped if it panicked, and nothing depends on how it ended.
            let _ = thread.join();
        }
    }
}

struct Watcher {
    socket: Socket,
    stopped: OwnedFd,
    known: HashMap<u32, bool>,
    events: Sender<InterfaceEvent>,
}

impl Watcher {
    fn run(mut self) {
        while self.wait() {
            let delivered = match receive(&self.socket, Duration::ZERO) {
                Ok(Some(datagram)) => self.datagram(&datagram),
                Ok(None) => true,
                // The kernel dropped notices because there were too many (ENOBUFS), or one was not understood: look
                // anew.
                Err(error) => {
                    tracing::debug!(%error, "interface watcher lists anew");
                    self.list_anew()
                }
            };
            if !delivered {
                return;
            }
        }
    }

    /// False when the monitor was dropped.
    fn wait(&self) -> bool {
        let mut fds = [
            PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.stopped.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) => {
                let [_, stopped] = &fds;
                stopped.revents().is_empty()
            }
            Err(error) => error == rustix::io::Errno::INTR,
        }
    }

    fn datagram(&mut self, datagram: &[u8]) -> bool {
        let Ok(messages) = decode(datagram) else { return self.list_anew() };
        messages.into_iter().all(|message| match message.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => {
                let flags = link.header.flags;
                self.seen(&link, flags.contains(LinkFlags::Up | LinkFlags::LowerUp))
            }
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(link)) => self.seen(&link, false),
            _ => true,
        })
    }

    fn seen(&mut self, link: &LinkMessage, usable: bool) -> bool {
        let name = link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.clone()),
            _ => None,
        });
        self.changed(name.unwrap_or_default(), link.header.index, usable)
    }

    /// Reports a change. False when the receiver was dropped.
    fn changed(&mut self, name: String, index: u32, usable: bool) -> bool {
        let before = self.known.insert(index, usable);
        before == Some(usable) || self.events.send(InterfaceEvent { name, index, usable }).is_ok()
    }

    fn list_anew(&mut self) -> bool {
        match interfaces::list() {
            Ok(list) => list.into_iter().all(|one| {
                let usable = one.usable();
                self.changed(one.name, one.index, usable)
            }),
            Err(error) => {
                tracing::warn!(%error, "interfaces cannot be listed");
                true
            }
        }
    }
}
