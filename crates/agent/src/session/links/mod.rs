//! Links of a session at the host that asked for it: one thread each. It opens the control path and the channels, moves
//! a few bytes for a proof, and does so again whenever any of it is lost. A link is one thing: if its path or one of
//! its channels is lost, all of it is closed and opened again. `linerate-core` decides when, and whether RDMA is used
//! after it failed (`core/src/link`).
//!
//! | file | what it has |
//! |---|---|
//! | here | all links of a session |
//! | `session` | what a session is to its links |
//! | `supervisor` | the thread of one link |
//! | `opener` | its channels: queue pairs or TCP |
//! | `dialler` | connections and their numbers |
//! | `losses` | signals to a link's thread that something of it is lost |
//! | `view` | what a channel carries |
//! | `carrier_watch` | ports of this host that lose their carrier, or have it again |

mod carrier_watch;
mod dialler;
mod losses;
mod opener;
mod session;
mod supervisor;
mod view;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use linerate_core::{Code, Endpoint, Fault, Side, Step};
use linerate_net::interfaces;
use linerate_net::links::{Link, pair, parse_networks};

use crate::faults::fault;
use carrier_watch::CarrierWatch;
pub(crate) use dialler::Dialler;
pub(crate) use losses::Losses;
pub(crate) use opener::RdmaPort;
pub(crate) use session::{NotOpened, Session};
use supervisor::Supervisor;
pub(crate) use view::{ChannelStatus, describe};

/// All links of a session. Dropping it closes them.
pub(crate) struct Links<S: Session> {
    session: Arc<S>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    carrier_watch: Option<CarrierWatch>,
}

impl<S: Session> Links<S> {
    pub fn none(session: &Arc<S>) -> Links<S> {
        Links { session: session.clone(), stop: Arc::default(), threads: Vec::new(), carrier_watch: None }
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
        let notified = session.clone();
        links.carrier_watch = Some(CarrierWatch::watch(move |name, has_carrier| match has_carrier {
            true => notified.losses().interface_up(name),
            false => notified.losses().interface_down(name),
        }));
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
            Err(error) => tracing::error!(%error, "cannot start a thread for a link"),
        }
    }
}

impl<S: Session> Drop for Links<S> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.carrier_watch = None;
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
