//! Links of a migration, as [`crate::session::links`] opens them; and questions to the destination on a connection of
//! their own.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use linerate_api::EventKind;
use linerate_core::source::Event;
use linerate_core::{ChannelId, Endpoint, LinkId, Outcome, PathId};
use linerate_net::channel_thread::{ChannelEnds, ChannelHandle, ChannelThreadOptions};
use linerate_net::control::ControlPath;
use linerate_net::links::Link;
use linerate_net::pacer::Pacer;
use linerate_net::region::Region;
use linerate_net::table::RegionTable;

use super::{ChannelSource, Input, Outgoing, Sessions};
use crate::both_hosts;
use crate::journal::{Record, Role};
use crate::ram::Ram;
use crate::ran_here::RanHere;
use crate::recovery;
use crate::security::SessionPart;
use crate::session::contact::{ask_any, ask_before_resuming, commit_any};
use crate::session::links::{ChannelStatus, Dialler, Links, Losses, NotOpened, RdmaPort, Session, describe};
use crate::session::probe::OpenError;
use crate::session::roll_back_notice;
use crate::session::stream_transport::StreamTransport;

/// Opens the links of a migration. Where none can be, the core gets the fault.
pub(super) fn open(shared: &Arc<Outgoing>, endpoints: &[Endpoint]) -> Links<Outgoing> {
    Links::open(shared, endpoints, &shared.request.links).unwrap_or_else(|fault| {
        shared.send(Event::Failed(fault));
        Links::none(shared)
    })
}

/// Asks the destination for the session's outcome, in a thread of its own; the answer goes to the core if there is one.
/// The question repeats commit, since the message may not have arrived, and carries whether this host still has its
/// copy. `gives_up`: the operator ends that.
pub(super) fn query(shared: &Arc<Outgoing>, record: &Record, gives_up: bool) {
    let (asked, peers) = (shared.clone(), peers(shared, record));
    let has_copy = !gives_up && matches!(&record.role, Role::Source { qemu, .. } if qemu.can_run());
    let asking = move || {
        let ask = if has_copy { ask_any } else { commit_any };
        let answer = ask(&peers, &asked.dialler.identity);
        let why = answer.as_ref().err().and_then(|none| none.not_asked.clone());
        *asked.not_asked.lock() = why;
        *asked.answer.lock() = answer.as_ref().ok().copied();
        asked.send(answer.map_or_else(|_| Event::Unanswered, Event::Answered));
    };
    if let Err(error) = std::thread::Builder::new().name("query".into()).spawn(asking) {
        tracing::error!(%error, "cannot start a thread to ask the destination");
        shared.send(Event::Unanswered);
    }
}

/// The guest ran here after commit, or may have: the destination's operator is not to run the copy there. That commits
/// nothing, and the answer decides nothing. If the guest ran here and runs there, that is noted. Nothing is said of a
/// copy that the operator here gives up.
pub(super) fn say_that_it_is_here(
    shared: &Arc<Outgoing>,
    sessions: &Sessions,
    record: &Record,
    gives_up: bool,
) {
    let is_here = matches!(&record.role, Role::Source { qemu, .. } if qemu.can_run());
    if gives_up || !is_here || shared.says_it.swap(true, Ordering::Relaxed) {
        return;
    }
    let (says, peers) = (shared.clone(), peers(shared, record));
    let (journal, audit) = (sessions.journal.clone(), sessions.audit.clone());
    let saying = move || {
        let answer = ask_before_resuming(&peers, &says.dialler.identity);
        if matches!(answer, Ok(Outcome::Committed)) && *says.ran_here.lock() == RanHere::Yes {
            *says.answer.lock() = Some(Outcome::Committed);
            both_hosts::note(&journal, &audit, says.session);
        }
        says.says_it.store(false, Ordering::Relaxed);
    };
    if let Err(error) = std::thread::Builder::new().name("question".into()).spawn(saying) {
        tracing::error!(%error, "cannot start a thread to notify the destination that the guest is here");
        shared.says_it.store(false, Ordering::Relaxed);
    }
}

/// Sends the roll-back notice on a connection of its own. `held`: the destination may have the guest complete.
pub(super) fn send_roll_back_notice(shared: &Outgoing, sessions: &Sessions, record: &Record, held: bool) {
    let (session, identity) = (shared.session, shared.dialler.identity.clone());
    let (journal, audit) = (&sessions.journal, &sessions.audit);
    let step = recovery::notice_steps(journal, session, record);
    let done = both_hosts::notice_done(journal, audit, session);
    roll_back_notice::send_by(peers(shared, record), identity, held, step, done);
}

/// Every address at which the destination may be reached; none for a domain, about which libvirt decides.
pub(super) fn peers(shared: &Outgoing, record: &Record) -> Vec<SocketAddr> {
    let Role::Source { peers, .. } = &record.role else { return Vec::new() };
    and_of_links(shared, peers)
}

/// These addresses and those of the links. They may be in networks of which only one works.
pub(super) fn and_of_links(shared: &Outgoing, peers: &[SocketAddr]) -> Vec<SocketAddr> {
    let mut all = peers.to_vec();
    for remote in shared.losses.remotes() {
        if !all.contains(&remote) {
            all.push(remote);
        }
    }
    all
}

/// The bandwidth limit that all channels share.
pub(super) fn pacer(bytes_per_s: Option<u64>) -> Option<Arc<Pacer>> {
    NonZeroU64::new(bytes_per_s?).map(|rate| Arc::new(Pacer::new(rate)))
}

fn ram_options(shared: &Outgoing, ram: Vec<Arc<Ram>>) -> ChannelThreadOptions {
    let regions = ram.into_iter().enumerate();
    let regions = regions.filter_map(|(id, ram)| Some((u16::try_from(id).ok()?, ram as Arc<dyn Region>)));
    ChannelThreadOptions {
        pacer: shared.pacer.clone(),
        ..ChannelThreadOptions::new(Arc::new(RegionTable::new(regions)))
    }
}

/// As for every lost link, the core rolls back or asks when no other can be opened. A revoked host takes none.
impl SessionPart for Outgoing {
    fn peer_revoked(&self) {
        self.losses.peer_revoked();
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
        self.stream_transport()
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
        ends: ChannelEnds,
    ) -> Result<ChannelHandle, OpenError> {
        self.handle_now(Event::ChannelUp { channel, link });
        match self.channel_source() {
            Some(ChannelSource::Ram(ram)) => {
                Ok(ChannelHandle::start(channel, ends, self.clone(), ram_options(self, ram))?)
            }
            Some(ChannelSource::Streams(streams)) => {
                streams.transport.pump(channel, link, ends, self.pacer.clone())
            }
            None => Err(io::Error::other("the migration is over").into()),
        }
    }

    fn is_ending(&self) -> bool {
        let machine = self.machine();
        machine.is_leaving() || machine.is_rolling_back()
    }

    fn added(&self, link: &Link, rdma: Option<RdmaPort>) {
        self.link_table.add(link.clone(), rdma);
    }

    fn warn(&self, text: String) {
        self.event_log.publish(EventKind::Warning { text });
    }

    fn fell_back(&self, link: &Link, reason: &str) {
        self.link_table.fell_back(link.id, reason);
        self.warn(format!("{}: RDMA failed, TCP is used instead: {reason}", describe(link)));
    }

    fn opened(&self, link: &Link, channels: Vec<ChannelStatus>, rdma: bool) {
        if self.link_table.up(link.id, channels, rdma) {
            tracing::info!(link = describe(link), "a lost link carries again");
            self.event_log.publish(EventKind::LinkRestored { link: link.id });
        }
    }

    fn not_opened(&self, failure: &NotOpened<'_>) {
        if failure.is_forgotten {
            self.send(Event::Forgotten);
        }
        // When all is done the destination takes no connections any more.
        if !self.is_ending() {
            self.link_table.not_opened(failure.link.id, failure.reason);
        }
        // The loss of a link that was up has been reported.
        if failure.is_news && !failure.was_up {
            self.warn(format!("{}: {}", describe(failure.link), failure.reason));
        }
    }

    fn closing(&self, link: LinkId) {
        self.link_table.closes(link);
    }

    /// Part of the link may have been opened and reported.
    fn closed(&self, link: LinkId, _channels: &[ChannelId]) {
        self.link_lost(link);
    }

    fn lost(&self, link: &Link, reason: &str) {
        self.link_table.down(link.id, reason);
        self.event_log.publish(EventKind::LinkLost { link: link.id, reason: reason.to_owned() });
    }
}

impl Outgoing {
    /// All of a link is lost: no more work for its channels, and the destination is asked to fence them.
    fn link_lost(&self, link: LinkId) {
        let transport = self.stream_transport();
        super::lose_link(&self.machine, self.clock.now(), link, |channel| {
            if let Some(transport) = &transport {
                // The core asks for its fence.
                let _ = transport.streams.channel_gone(channel);
            }
        });
        self.work.notify_all();
        let _ = self.inbox.send(Input::LinkLost(link));
    }
}
