//! A migration from top to bottom: its ten steps as the source takes them. Each line leads to the file that does the
//! work.
//!
//! [`start`] takes the first two. Then the core (`linerate-core`) decides what is next, and [`SessionLoop::execute`]
//! has it done. Its arms are in the order of the steps. `incoming/steps.rs` is the same for the destination.
//!
//! | | step | source | destination |
//! |---|---|---|---|
//! | 1 | resolve | `start`, `mode`, `storage`: the guest is read, its mode is chosen | |
//! | 2 | authorise | `session/contact`: first contact; `session_loop`: the loop begins | `agent`: the session begins |
//! | 3 | admit | the core offers the guest | `incoming/admit`: checks and reserves |
//! | 4 | prepare | the core waits | `incoming/driver`: the incoming QEMU |
//! | 5 | connect | `links`, `session/links`: paired, proven, carrying | `incoming/channels`: takes the channels |
//! | 6 | track | `driver/tracked_ram`: all RAM is write-protected | |
//! | 7 | copy | `work`: channels ask the core; `driver/tracked_ram`: scans; `streams`: QEMU's streams | `session/fences` |
//! | 8 | blackout | `driver`: QEMU stops the guest, last scan, device state | `incoming/driver`: seals, loads |
//! | 9 | commit | `session_loop`: the journal, then Commit | `incoming/session_loop`: the journal; `incoming/driver/own_qemu`: runs |
//! | 10 | clean up | `driver/own_qemu`, `driver/handover`: nothing of the guest stays here | |

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Instant;

use linerate_api::MigrateRequest;
use linerate_core::journal::SourcePhase;
use linerate_core::source::Action;
use linerate_core::{Code, Fault, Side, Step};

use super::session_loop::SessionLoop;
use super::start::{authorise, check_request, outgoing, record, resolve, run, warn_of};
use super::{Input, News, Observer, Outgoing, Sessions, links};
use crate::faults::fault;
use crate::session::paths::Door;

/// Begins a migration. Returns when the destination's agent has answered; all else happens in threads of its own.
/// On `Err` the guest was not touched.
pub fn start(sessions: &Arc<Sessions>, request: MigrateRequest) -> Result<Arc<Outgoing>, Fault> {
    begin(sessions, request, None)
}

/// The same, for one that is told what happens. The copy waits for [`Outgoing::go`].
pub(crate) fn start_observed(
    sessions: &Arc<Sessions>,
    request: MigrateRequest,
    observer: Observer,
) -> Result<Arc<Outgoing>, Fault> {
    begin(sessions, request, Some(observer))
}

fn begin(
    sessions: &Arc<Sessions>,
    request: MigrateRequest,
    observer: Option<Observer>,
) -> Result<Arc<Outgoing>, Fault> {
    let began = Instant::now();
    check_request(&request)?;
    // 1 resolve
    let mut found = resolve(sessions, &request)?;
    // 2 authorise
    let opened = authorise(sessions, &request, &mut found)?;
    let (inbox, receiver) = channel();
    let sender = inbox.clone();
    let door = Door::open(move |event, held| drop(sender.send(Input::Control(event, held))))
        .map_err(|error| fault(Code::Internal, Step::Authorise, Side::Source, &error))?;
    let record = record(sessions, &request, &found, &opened);
    let ends = (inbox, door);
    let shared = outgoing(sessions, request, &found, &opened, began.elapsed(), ends, observer)?;
    let shared = Arc::new(shared);
    warn_of(&shared, &found.description);
    // 3 to 10: the loop, by the core's actions
    run(sessions, &shared, found, opened.control, record, receiver)?;
    let (session, mode) = (shared.session, shared.mode);
    tracing::info!(%session, guest = shared.request.guest, to = shared.request.to, %mode, "migration begins");
    Ok(shared)
}

impl SessionLoop {
    /// Has an action of the core executed. What the worker does is answered by an event.
    pub(super) fn execute(&mut self, action: Action) {
        match action {
            // All steps: what the core sends to the destination.
            Action::Transmit(path, frame) => self.transmit(path, frame),
            Action::DeliverStreamMessage(message) => self.shared.deliver_stream_message(message),
            // A later agent commits what the journal says is committed: so its disks are compared first.
            Action::Journal(SourcePhase::CommitSent) => {
                self.worker.submit("check source unchanged", |guest| guest.check_source_unchanged());
            }
            Action::Journal(phase) => self.write_journal(phase),
            // 5 connect
            Action::OpenLinks(endpoints) => self.open_links(&endpoints),
            Action::Ready => {
                self.shared.was_ready.store(true, Ordering::Relaxed);
                // That was all that a dry run is to find out.
                if self.shared.request.dry_run {
                    self.shared.cancel();
                }
                self.shared.notify(News::Ready);
            }
            // 6 track
            Action::Attach => self.worker.submit("attach", |guest| guest.attach()),
            Action::Protect => self.worker.submit("protect", |guest| guest.protect()),
            // 7 copy: by Linerate, or by QEMU's own streams
            Action::Scan { last, also } => self.worker.submit("scan", move |guest| guest.scan(last, &also)),
            Action::Count => self.worker.submit("count", |guest| guest.count()),
            Action::Throttle(percent) => self.worker.submit("throttle", move |guest| guest.throttle(percent)),
            Action::BeginStreams(settings) => {
                self.worker.submit("begin streams", move |guest| guest.begin_streams(settings));
            }
            // 8 blackout
            Action::SwitchOver => self.worker.submit("switch over", |guest| guest.switch_over()),
            Action::Digest => self.worker.submit("digest", |guest| guest.digest()),
            Action::WriteDeviceState => {
                self.worker.submit("write device state", |guest| guest.write_device_state())
            }
            Action::ReleaseStream => self.worker.submit("release stream", |guest| guest.release_stream()),
            // 9 commit: its answer may have to be asked for
            Action::Query { gives_up } => self.ask_destination(gives_up),
            // 10 clean up
            Action::CleanUp => {
                self.note_if_it_ran_here();
                self.worker.submit("clean up", |guest| guest.clean_up());
            }
            Action::End(ending) => self.ending = Some(ending),
            // Instead of 9 and 10: the guest stays here.
            Action::RollBack => self.roll_back(),
            Action::NoticeDue(is) => self.notice_due(is),
            Action::NotifyRollBack { may_be_loaded: held } => {
                links::send_roll_back_notice(&self.shared, &self.sessions, &self.record, held);
            }
        }
    }
}
