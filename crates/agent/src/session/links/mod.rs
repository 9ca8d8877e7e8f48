//! Links of a session at the host that asked for it: one thread each. It opens the control path and the channels, moves a few
//! bytes for a proof, and does so again whenever any of it is lost. A link is one thing: if its path or one of its channels is
//! lost, all of it is closed and opened anew.
//!
//! | file | what it has |
//! |---|---|
//! | here | all links of a session; what a session has to say to its links |
//! | `supervisor` | the thread of one link |
//! | `opener`, `trust` | its channels: queue pairs or TCP; whether RDMA is trusted after it failed |
//! | `dialler` | connections and their numbers |
//! | `losses` | who is told that something of a link is lost |
//! | `view` | what a channel carries |
//! | `carriers` | ports of this host that lose their carrier |

mod carriers;
mod dialler;
mod losses;
mod opener;
mod supervisor;
mod trust;
mod view;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use linerate_core::{ChannelId, Code, Endpoint, Fault, LinkId, PathId, Side, Step};
use linerate_net::control::ControlPath;
use linerate_net::interfaces;
use linerate_net::links::{Link, pair, parse_networks};
use linerate_net::pump::{Carrier, PumpHandle};

use super::carriage::Carriage;
use super::probe::OpenError;
use crate::faults::fault;
use carriers::Carriers;
pub(crate) use dialler::Dialler;
pub(crate) use losses::Losses;
pub(crate) use opener::RdmaPort;
use supervisor::Supervisor;
pub(crate) use view::ChannelView;

/// A session as the threads of its links know it.
pub(crate) trait Session: Send + Sync + 'static {
    fn dialler(&self) -> &Dialler;

    fn losses(&self) -> &Losses;

    /// The streams of the session; a link then has channels back, too.
    fn streams(&self) -> Option<Arc<Carriage>>;

    /// Puts a welcomed control connection to use, and gives it to the loop.
    fn attach_path(&self, connection: ControlPath, link: Option<LinkId>) -> std::io::Result<PathId>;

    /// Puts a proven channel to work.
    fn pump(
        self: &Arc<Self>,
        channel: ChannelId,
        link: LinkId,
        carrier: Carrier,
    ) -> Result<PumpHandle, OpenError>;

    /// All of it is about to end: what is lost now is no news.
    fn is_ending(&self) -> bool;

    /// A link is going to be used.
    fn added(&self, _link: &Link, _rdma: Option<RdmaPort>) {}

    fn warn(&self, text: String);

    /// RDMA failed: TCP is used instead.
    fn fell_back(&self, link: &Link, reason: &str);

    /// All channels of a link have moved their probes, and carry from now on.
    fn opened(&self, link: &Link, channels: Vec<ChannelView>, rdma: bool);

    fn not_opened(&self, failure: &NotOpened<'_>);

    /// The link's channels are going to be closed.
    fn closing(&self, _link: LinkId) {}

    /// They carry nothing more: their fences are to be asked for.
    fn closed(&self, link: LinkId, channels: &[ChannelId]);

    fn lost(&self, link: &Link, reason: &str);
}

/// A link could not be opened; it is tried again.
pub(crate) struct NotOpened<'a> {
    pub link: &'a Link,
    pub reason: &'a str,
    /// The other host's agent lives and does not know the session.
    pub is_forgotten: bool,
    /// Not the reason of the try before.
    pub is_news: bool,
    /// It carried before.
    pub was_up: bool,
}

/// All links of a session. Dropping it closes them.
pub(crate) struct Links<S: Session> {
    session: Arc<S>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    carriers: Option<Carriers>,
}

impl<S: Session> Links<S> {
    /// None.
    pub fn none(session: &Arc<S>) -> Links<S> {
        Links { session: session.clone(), stop: Arc::default(), threads: Vec::new(), carriers: None }
    }

    /// Pairs the other host's endpoints with this host's ports, and opens what pairs.
    pub fn open(session: &Arc<S>, endpoints: &[Endpoint], filter: &[String]) -> Result<Links<S>, Fault> {
        let failed = |error: &(dyn std::error::Error + 'static)| {
            fault(Code::NoLink, Step::Connect, Side::Source, error)
        };
        let ours = interfaces::list().map_err(|error| failed(&error))?;
        let filter = parse_networks(&filter.join(",")).map_err(|error| failed(&error))?;
        let paired = pair(&ours, endpoints, &filter);
        if paired.is_empty() {
            return Err(no_link(endpoints));
        }
        let mut links = Links::none(session);
        for link in paired {
            links.start(link);
        }
        let told = session.clone();
        links.carriers = Some(Carriers::watch(move |name| told.losses().interface_down(name)));
        Ok(links)
    }

    fn start(&mut self, link: Link) {
        if link.mtu_differs {
            let text =
                format!("{}: the two ports have different MTUs; large packets may be lost", describe(&link));
            self.session.warn(text);
        }
        let name = format!("link-{}", link.id);
        let supervisor = Supervisor::new(self.session.clone(), self.stop.clone(), link);
        match std::thread::Builder::new().name(name).spawn(move || supervisor.run()) {
            Ok(thread) => self.threads.push(thread),
            Err(error) => tracing::error!(%error, "no thread for a link"),
        }
    }
}

impl<S: Session> Drop for Links<S> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.carriers = None;
        self.session.losses().end();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn no_link(endpoints: &[Endpoint]) -> Fault {
    let offered: Vec<String> =
        endpoints.iter().map(|one| format!("{} ({})", one.address, one.interface)).collect();
    let detail = format!(
        "the destination listens on {}; none of it pairs with a port of this host",
        offered.join(", ")
    );
    Fault::new(Code::NoLink, Step::Connect, Side::Source, detail)
}

pub(crate) fn describe(link: &Link) -> String {
    let device = link.device.as_deref().unwrap_or("routed");
    format!("{device} to {} ({})", link.remote.ip(), link.remote_interface)
}
