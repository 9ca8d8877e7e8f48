//! Links of a session at the host that asked for it: one thread each. It opens the control path and the channels of
//! both directions and moves a few bytes for a proof. It does so again whenever any of it is lost.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use linerate_api::TunnelEvent;
use linerate_core::{ChannelId, Code, Endpoint, Fault, LinkId, PathId, Side, Step};
use linerate_net::interfaces;
use linerate_net::links::{Link, channels_for, pair, parse_networks};
use linerate_net::pump::PumpHandle;
use linerate_net::tcp::Stream;
use linerate_net::tcp::connect::{Route, connect};
use linerate_wire::frame::Role;

use super::{Input, Tunnel};
use crate::carriage::{self, Back};
use crate::carriers::Carriers;
use crate::faults::{chain, fault};
use crate::outgoing::channels::OpenError;
use crate::outgoing::links::{describe, hello, keep, no_link, tcp_options};

/// A lost link is tried again this often.
const RETRY: Duration = Duration::from_millis(250);
/// Looks this often whether it shall end.
const LOOK: Duration = Duration::from_secs(1);

/// Why a link is to be closed.
struct Loss {
    /// The control connection that is lost; `None` if it is the link itself.
    path: Option<PathId>,
    reason: String,
}

impl Loss {
    fn of_all(reason: &str) -> Loss {
        Loss { path: None, reason: reason.to_owned() }
    }

    /// Whether it is of the opening with this control connection. That of an opening before it may be told of late.
    fn concerns(&self, path: Option<PathId>) -> bool {
        self.path.is_none() || self.path == path
    }
}

struct Handle {
    link: Link,
    lost: Sender<Loss>,
    channels: Arc<Mutex<HashSet<ChannelId>>>,
}

/// All links of a session. Dropping it closes them.
pub(super) struct Links {
    stop: Arc<AtomicBool>,
    handles: Vec<Handle>,
    threads: Vec<JoinHandle<()>>,
    carriers: Option<Carriers>,
}

impl Links {
    /// Pairs the other host's endpoints with this host's ports, and opens what pairs.
    pub fn open(tunnel: &Arc<Tunnel>, endpoints: &[Endpoint], filter: &[String]) -> Result<Links, Fault> {
        let failed = |error: &(dyn std::error::Error + 'static)| {
            fault(Code::NoLink, Step::Connect, Side::Source, error)
        };
        let ours = interfaces::list().map_err(|error| failed(&error))?;
        let filter = parse_networks(&filter.join(",")).map_err(|error| failed(&error))?;
        let paired = pair(&ours, endpoints, &filter);
        if paired.is_empty() {
            return Err(no_link(endpoints));
        }
        let mut links =
            Links { stop: Arc::default(), handles: Vec::new(), threads: Vec::new(), carriers: None };
        for link in paired {
            links.start(tunnel, link);
        }
        links.watch();
        Ok(links)
    }

    fn start(&mut self, tunnel: &Arc<Tunnel>, link: Link) {
        if link.mtu_differs {
            let text =
                format!("{}: the two ports have different MTUs; large packets may be lost", describe(&link));
            tunnel.publish(TunnelEvent::Warning { text });
        }
        let (lost, losses) = channel();
        let told = lost.clone();
        let channels = Arc::new(Mutex::new(HashSet::new()));
        let supervisor = Supervisor {
            tunnel: tunnel.clone(),
            stop: self.stop.clone(),
            lost: told,
            losses,
            channels: channels.clone(),
            link: link.clone(),
        };
        let name = format!("link-{}", link.id);
        match std::thread::Builder::new().name(name).spawn(move || supervisor.run()) {
            Ok(thread) => self.threads.push(thread),
            Err(error) => tracing::error!(%error, "no thread for a link"),
        }
        self.handles.push(Handle { link, lost, channels });
    }

    /// An interface that loses its carrier takes its links with it.
    fn watch(&mut self) {
        let ports: Vec<(Option<String>, Sender<Loss>)> =
            self.handles.iter().map(|one| (one.link.device.clone(), one.lost.clone())).collect();
        self.carriers = Some(Carriers::watch(move |name| {
            for (_, lost) in ports.iter().filter(|(device, _)| device.as_deref() == Some(name)) {
                let _ = lost.send(Loss::of_all(&format!("{name} is down")));
            }
        }));
    }

    /// Addresses of the other host.
    pub fn remotes(&self) -> impl Iterator<Item = SocketAddr> {
        self.handles.iter().map(|handle| handle.link.remote)
    }

    /// A control connection of a link is lost, so all of the link is, if it is not open anew already.
    pub fn lost(&self, link: LinkId, path: PathId, reason: &str) {
        for handle in self.handles.iter().filter(|handle| handle.link.id == link) {
            let _ = handle.lost.send(Loss { path: Some(path), reason: reason.to_owned() });
        }
    }

    /// The same of the link that has this channel.
    pub fn channel_lost(&self, channel: ChannelId, reason: &str) {
        let has = |handle: &&Handle| {
            handle.channels.lock().unwrap_or_else(PoisonError::into_inner).contains(&channel)
        };
        for handle in self.handles.iter().filter(has) {
            let _ = handle.lost.send(Loss::of_all(reason));
        }
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.carriers = None;
        for handle in &self.handles {
            let _ = handle.lost.send(Loss::of_all("the tunnel ends"));
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// An open link, or the part of it that is open.
struct Open {
    pumps: Vec<(ChannelId, PumpHandle)>,
    back: Back,
    path: Option<PathId>,
}

struct Supervisor {
    tunnel: Arc<Tunnel>,
    stop: Arc<AtomicBool>,
    lost: Sender<Loss>,
    losses: Receiver<Loss>,
    channels: Arc<Mutex<HashSet<ChannelId>>>,
    link: Link,
}

impl Supervisor {
    fn run(self) {
        let mut said = String::new();
        while !self.stop.load(Ordering::SeqCst) {
            // What was told of the last opening is of no interest any more.
            while self.losses.try_recv().is_ok() {}
            match self.open() {
                Ok(open) => {
                    said.clear();
                    self.hold(open);
                }
                Err(error) => {
                    let error = chain(&error);
                    if error != said {
                        let text = format!("{}: {error}", describe(&self.link));
                        tracing::warn!(text, "a link cannot be used");
                        self.tunnel.publish(TunnelEvent::Warning { text });
                        said = error;
                    }
                    let _ = self.losses.recv_timeout(RETRY);
                }
            }
        }
    }

    /// All of the link, or nothing of it.
    fn open(&self) -> Result<Open, OpenError> {
        let lost = self.lost.clone();
        let back = Back::new(move |reason| drop(lost.send(Loss::of_all(&reason))));
        let mut open = Open { pumps: Vec::new(), back, path: None };
        match self.fill(&mut open) {
            Ok(()) => Ok(open),
            Err(error) => {
                self.close(open);
                Err(error)
            }
        }
    }

    fn fill(&self, open: &mut Open) -> Result<(), OpenError> {
        let (tunnel, link) = (&self.tunnel, self.link.id);
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let route = Route::from(&self.link);
        let join = hello(tunnel.session, tunnel.token, Role::ControlJoin, link, 0);
        let (control, _) = connect(&route, &join, &tcp_options())?;
        let control = keep(control)?;
        let mut proven = Vec::new();
        for _ in 0..channels_for(self.link.speed_mbps, cpus) {
            let (channel, stream) = self.connect(&route, Role::Data)?;
            proven.push((channel, carriage::proven(&stream)?));
            let (channel, stream) = self.connect(&route, Role::DataBack)?;
            open.back.serve(&tunnel.carriage, channel, stream)?;
        }
        open.path = Some(tunnel.attach_path(control, Some(link))?);
        for (channel, carrier) in proven {
            self.channels.lock().unwrap_or_else(PoisonError::into_inner).insert(channel);
            open.pumps.push((channel, tunnel.carriage.pump(channel, link, carrier, None)?));
        }
        tunnel.publish(TunnelEvent::LinkUp { link: describe(&self.link) });
        Ok(())
    }

    fn close(&self, open: Open) {
        for (channel, pump) in open.pumps {
            // Who waits for work must come back before its thread can end.
            if self.tunnel.carriage.streams.channel_gone(channel) {
                self.tunnel.tell(Input::Fence(channel));
            }
            drop(pump);
            self.channels.lock().unwrap_or_else(PoisonError::into_inner).remove(&channel);
        }
        drop(open.back);
        self.tunnel.tell(Input::LinkLost(self.link.id));
    }

    fn connect(&self, route: &Route, role: Role) -> Result<(ChannelId, Stream), OpenError> {
        let channel = self.tunnel.next_channel.fetch_add(1, Ordering::Relaxed);
        let hello = hello(self.tunnel.session, self.tunnel.token, role, self.link.id, channel);
        Ok((channel, connect(route, &hello, &tcp_options())?.0))
    }

    /// Keeps the link until something of it is lost, and closes all of it.
    fn hold(&self, open: Open) {
        let reason = loop {
            match self.losses.recv_timeout(LOOK) {
                Ok(loss) if loss.concerns(open.path) => break loss.reason,
                Ok(_) => {}
                Err(_) if self.stop.load(Ordering::SeqCst) => break String::new(),
                Err(_) => {}
            }
        };
        self.close(open);
        if !self.stop.load(Ordering::SeqCst) && !self.tunnel.is_over() {
            let link = describe(&self.link);
            tracing::warn!(link, reason, "a link is lost");
            self.tunnel.publish(TunnelEvent::LinkLost { link, reason });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_connection_of_an_opening_before_closes_nothing() {
        let of = |path| Loss { path: Some(path), reason: String::new() };
        assert!(of(7).concerns(Some(7)) && Loss::of_all("eth1 is down").concerns(Some(7)));
        assert!(!of(6).concerns(Some(7)));
    }
}
