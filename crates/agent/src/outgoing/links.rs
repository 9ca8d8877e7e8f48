//! Links of a migration, as [`crate::session::links`] opens them; and what is asked of the destination beside them.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::Arc;

use linerate_api::EventKind;
use linerate_core::source::Event;
use linerate_core::{ChannelId, Endpoint, LinkId, PathId};
use linerate_net::channel_thread::{ChannelEnds, ChannelHandle, ChannelThreadOptions};
use linerate_net::control::ControlPath;
use linerate_net::links::Link;
use linerate_net::pacer::Pacer;
use linerate_net::region::Region;
use linerate_net::table::RegionTable;

use super::{Input, Outgoing};
use crate::journal::{Journal, Record, Role};
use crate::session::contact::{ask_any, commit_any};
use crate::session::links::{ChannelStatus, Dialler, Links, Losses, NotOpened, RdmaPort, Session, describe};
use crate::session::probe::OpenError;
use crate::session::stream_transport::StreamTransport;
use crate::session::withdraw;

/// Opens the links of a migration. Where none can be, the core is told.
pub(super) fn open(shared: &Arc<Outgoing>, endpoints: &[Endpoint]) -> Links<Outgoing> {
    Links::open(shared, endpoints, &shared.request.links).unwrap_or_else(|fault| {
        shared.tell(Event::Failed(fault));
        Links::none(shared)
    })
}

/// Asks the destination how the session stands, in a thread of its own; the answer goes to the core if there is one.
/// The question says commit once more, for the message may not have come, and whether this host still has its copy.
pub(super) fn query(shared: &Arc<Outgoing>, record: &Record) {
    let (asked, peers) = (shared.clone(), peers(shared, record));
    let has_copy = matches!(&record.role, Role::Source { qemu, .. } if qemu.is_alive());
    let asking = move || {
        let ask = if has_copy { ask_any } else { commit_any };
        let answer = ask(&peers, &asked.dialler.identity);
        asked.tell(answer.map_or(Event::Unanswered, Event::Answered));
    };
    if let Err(error) = std::thread::Builder::new().name("query".into()).spawn(asking) {
        tracing::error!(%error, "no thread to ask the destination");
        shared.tell(Event::Unanswered);
    }
}

/// Tells the destination of a roll-back on a connection of its own. `held`: it may have the guest complete.
pub(super) fn withdraw(shared: &Outgoing, journal: &Arc<Journal>, record: &Record, held: bool) {
    let (journal, session) = (journal.clone(), shared.session);
    withdraw::withdraw(peers(shared, record), shared.dialler.identity, held, move || {
        journal.note_told(session);
    });
}

/// Every address at which the destination may be reached.
pub(super) fn peers(shared: &Outgoing, record: &Record) -> Vec<SocketAddr> {
    let Role::Source { peers, .. } = &record.role else { return Vec::new() };
    let mut peers = peers.clone();
    for remote in shared.losses.remotes() {
        if !peers.contains(&remote) {
            peers.push(remote);
        }
    }
    peers
}

/// The bandwidth limit that all channels share.
pub(super) fn pacer(bytes_per_s: Option<u64>) -> Option<Arc<Pacer>> {
    NonZeroU64::new(bytes_per_s?).map(|rate| Arc::new(Pacer::new(rate)))
}

fn pump_options(shared: &Outgoing) -> ChannelThreadOptions {
    let regions = shared.ram().into_iter().enumerate();
    let regions = regions.filter_map(|(id, ram)| Some((u16::try_from(id).ok()?, ram as Arc<dyn Region>)));
    ChannelThreadOptions {
        pacer: shared.pacer.clone(),
        ..ChannelThreadOptions::new(Arc::new(RegionTable::new(regions)))
    }
}

impl Session for Outgoing {
    fn dialler(&self) -> &Dialler {
        &self.dialler
    }

    fn losses(&self) -> &Losses {
        &self.losses
    }

    fn streams(&self) -> Option<Arc<StreamTransport>> {
        self.carriage()
    }

    fn attach_path(&self, mut connection: ControlPath, link: Option<LinkId>) -> io::Result<PathId> {
        let path = self.door.listen(&mut connection)?;
        let _ = self.inbox.send(Input::Path(path, link, connection));
        Ok(path)
    }

    fn pump(
        self: &Arc<Self>,
        channel: ChannelId,
        link: LinkId,
        carrier: ChannelEnds,
    ) -> Result<ChannelHandle, OpenError> {
        self.tell_machine(Event::ChannelUp { channel, link });
        match self.carriage() {
            Some(carriage) => carriage.pump(channel, link, carrier, self.pacer.clone()),
            None => Ok(ChannelHandle::start(channel, carrier, self.clone(), pump_options(self))?),
        }
    }

    fn is_ending(&self) -> bool {
        self.machine().is_leaving()
    }

    fn added(&self, link: &Link, rdma: Option<RdmaPort>) {
        self.board.add(link.clone(), rdma);
    }

    fn warn(&self, text: String) {
        self.hub.publish(EventKind::Warning { text });
    }

    fn fell_back(&self, link: &Link, reason: &str) {
        self.board.fell_back(link.id, reason);
        self.warn(format!("{}: RDMA failed, TCP is used instead: {reason}", describe(link)));
    }

    fn opened(&self, link: &Link, channels: Vec<ChannelStatus>, rdma: bool) {
        if self.board.up(link.id, channels, rdma) {
            tracing::info!(link = describe(link), "a lost link carries again");
            self.hub.publish(EventKind::LinkRestored { link: link.id });
        }
    }

    fn not_opened(&self, failure: &NotOpened<'_>) {
        if failure.is_forgotten {
            self.tell(Event::Forgotten);
        }
        // When all is done the destination takes no connections any more.
        if !self.is_ending() {
            self.board.not_opened(failure.link.id, failure.reason);
        }
        // Of a link that was lost the operator has been told already.
        if failure.is_news && !failure.was_up {
            self.warn(format!("{}: {}", describe(failure.link), failure.reason));
        }
    }

    fn closing(&self, link: LinkId) {
        self.board.closes(link);
    }

    /// Part of the link may have been opened and told.
    fn closed(&self, link: LinkId, _channels: &[ChannelId]) {
        self.link_lost(link);
    }

    fn lost(&self, link: &Link, reason: &str) {
        self.board.down(link.id, reason);
        self.hub.publish(EventKind::LinkLost { link: link.id, reason: reason.to_owned() });
    }
}

impl Outgoing {
    /// All of a link is gone: no more work for its channels, and the destination is asked to fence them.
    fn link_lost(&self, link: LinkId) {
        let carriage = self.carriage();
        super::lose_link(&self.machine, self.clock.now(), link, |channel| {
            if let Some(carriage) = &carriage {
                // The core asks for its fence.
                let _ = carriage.streams.channel_gone(channel);
            }
        });
        self.work.notify_all();
        let _ = self.inbox.send(Input::LinkLost(link));
    }
}
