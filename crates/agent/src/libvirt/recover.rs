//! Migrations during which the agent ended. libvirt has given them up or completed them. Both libvirts are asked where
//! the domain is; `linerate-core` judges their answers (`recovery::DomainRecovery`), and nothing is changed. Only that
//! the destination starts the domain when it boots is set, as after any migration.

use std::cmp::Reverse;
use std::sync::Arc;

use linerate_api::{
    ErrorBody, GuestState, MigrationOutcome, Side, Step, TunnelAddress, TunnelPair, TunnelRequest, code,
    domain_socket,
};
use linerate_core::SessionId;
use linerate_core::recovery::{
    DomainAction, DomainDoubt, DomainEnd, DomainEvent, DomainRecovery, DomainState, SourceAnswer,
};

use super::Needs;
use super::domain_tunnel::DomainTunnel;
use super::ending::{Ended, SEE_THERE, both, keep_autostart, left_here, not_started, start_later};
use super::moves::{Claim, Kept, Move};
use super::virsh::{HERE, Virsh, moves_away};
use super::{plan, xml};
use crate::clock::Clock;
use crate::convert;
use crate::journal::{JournalError, MovedDomain, Record, Role};
use crate::session::identity::random;

/// Lists what is in the journal, and recovers it in the background.
pub(crate) fn recover(needs: &Arc<Needs>) -> Result<(), JournalError> {
    xml::clear(&needs.config.state_dir);
    let mut found = needs.journal.all()?;
    found.sort_by_key(|(_, record)| Reverse(record.order));
    let mut recovering = Vec::new();
    for (key, record) in found {
        let Role::Libvirt { domain, over: false } = record.role.clone() else { continue };
        let Ok(claim) = needs.moves.claim(&domain.uuid, &record.guest) else {
            // A newer migration of the domain began, so the end of this one was known. The disk had not taken it.
            Kept::again(needs, key, record).close();
            continue;
        };
        tracing::warn!(
            id = domain.id,
            guest = record.guest,
            "the agent ended while libvirt moved this domain: asking both libvirts where it is"
        );
        let shared = Arc::new(Move::recovering(&record.guest, &domain, &record));
        recovering.push((key, record, DomainSearch { needs: needs.clone(), shared, domain, claim }));
    }
    for (key, record, seeing) in recovering.into_iter().rev() {
        needs.moves.add(seeing.shared.clone());
        tokio::spawn(seeing.run(key, record));
    }
    Ok(())
}

struct DomainSearch {
    needs: Arc<Needs>,
    shared: Arc<Move>,
    domain: MovedDomain,
    claim: Claim,
}

/// The last answers, for people.
#[derive(Default)]
struct Answers {
    here: Answer,
    there: Answer,
}

/// The domain's state as libvirt names it, or why it cannot be asked.
#[derive(Default)]
struct Answer {
    state: Option<String>,
    trouble: String,
}

impl DomainSearch {
    async fn run(self, key: SessionId, record: Record) {
        let ended = self.see(&Virsh::new(HERE)).await;
        self.conclude(key, record, ended);
    }

    /// Closes the record before the domain is free for another migration, and before a client gets the end.
    fn conclude(self, key: SessionId, record: Record, ended: Ended) {
        let DomainSearch { needs, shared, claim, domain } = self;
        tracing::info!(id = domain.id, outcome = ?ended.outcome, "it is known where this domain is");
        Kept::again(&needs, key, record).close();
        drop(claim);
        shared.finish(ended, &needs.audit);
    }

    async fn see(&self, here: &Virsh) -> Ended {
        let (clock, mut answers) = (Clock::start(), Answers::default());
        let mut machine = DomainRecovery::new(clock.now(), self.domain.paused);
        loop {
            if let Some(end) = machine.end() {
                let ended = ended(end, &answers.here);
                return match end {
                    DomainEnd::Arrived => Ended { error: self.undone(&answers.here).await, ..ended },
                    DomainEnd::Stayed { .. } | DomainEnd::Gone => ended,
                };
            }
            let wait = machine.timeout().map(|due| due.since(clock.now()));
            tokio::time::sleep(wait.unwrap_or_default()).await;
            let Some(action) = machine.poll_action(clock.now()) else { continue };
            let event = match action {
                DomainAction::AskSource => DomainEvent::Source(self.ask_here(here, &mut answers.here).await),
                DomainAction::AskDestination => {
                    let found = self.ask_there().await;
                    DomainEvent::Destination(note_answer(found, &mut answers.there))
                }
            };
            machine.handle(clock.now(), event);
            if let Some(doubt) = machine.doubt() {
                self.shared.set_note(describe(doubt, &answers));
            }
        }
    }

    async fn ask_here(&self, here: &Virsh, answers: &mut Answer) -> SourceAnswer {
        let uuid = &self.domain.uuid;
        let waits = |text: &str| self.shared.set_note(text.to_owned());
        if let Err(dead) = here.find(uuid, waits).await {
            answers.trouble = dead.message;
            return SourceAnswer::Silent;
        }
        if here.job(uuid, false).await.is_some_and(|job| moves_away(&job)) {
            return SourceAnswer::Migrating;
        }
        // Only now: a migration that ended since the first question may have moved it.
        note_answer(here.look_up(uuid).await, answers).map_or(SourceAnswer::Silent, SourceAnswer::At)
    }

    /// What was not done of a domain that is at the destination, although libvirt has moved it.
    async fn undone(&self, here: &Answer) -> Option<ErrorBody> {
        let uuid = &self.domain.uuid;
        let left = left_here(&Ok(here.state.clone()), uuid);
        let not_started = match self.domain.autostart {
            true if left.is_some() => Some(start_later(uuid)),
            true => match self.open_there().await {
                // The tunnel is open until the answer.
                Ok((_tunnel, there)) => keep_autostart(&there, uuid).await,
                Err(dead) => Some(not_started(&dead, uuid)),
            },
            false => None,
        };
        let why = both(left, not_started)?;
        let text = format!(
            "the agent ended during this migration; the domain is at the destination as it was here, but {why}"
        );
        let (step, side) = (Some(Step::CleanUp), Some(Side::Destination));
        Some(ErrorBody { step, side, ..ErrorBody::new(code::LIBVIRT_FAILED, text) })
    }

    async fn ask_there(&self) -> Result<Option<String>, ErrorBody> {
        let (tunnel, there) = self.open_there().await?;
        let found = there.look_up(&self.domain.uuid).await;
        found.map_err(|error| ErrorBody { message: error.message + &tunnel.trouble(), ..error })
    }

    /// The destination's libvirt, behind a tunnel.
    async fn open_there(&self) -> Result<(DomainTunnel, Virsh), ErrorBody> {
        let key = random::<16>().map_err(|fault| convert::error(&fault, None))?;
        let listen = format!("{}/{}", plan::FOLDER, domain_socket(&SessionId(key).to_string(), "rpc"));
        let request = TunnelRequest {
            to: self.domain.to.clone(),
            pairs: vec![TunnelPair {
                listen: TunnelAddress::Unix(listen.clone().into()),
                connect: TunnelAddress::Unix(self.domain.remote_socket.clone().into()),
                waits: false,
                drives: false,
            }],
            links: self.domain.links.clone(),
            link_timeout_s: LINK_TIMEOUT_S,
        };
        let mut tunnel = DomainTunnel::open(&self.needs, request).await?;
        tunnel.ready(|_| ()).await?;
        Ok((tunnel, Virsh::new(plan::uri(&listen))))
    }
}

/// How long all links may be gone while the destination's libvirt is asked.
const LINK_TIMEOUT_S: u32 = 10;

/// The domain's state by a libvirt; none without an answer.
fn note_answer(found: Result<Option<String>, ErrorBody>, answers: &mut Answer) -> Option<DomainState> {
    match found {
        Ok(state) => {
            answers.state = state;
            Some(domain_state(answers.state.as_deref()))
        }
        Err(dead) => {
            answers.trouble = dead.message;
            None
        }
    }
}

fn domain_state(state: Option<&str>) -> DomainState {
    match state {
        // What is shut off is a definition.
        None | Some("shut off") => DomainState::Absent,
        Some("running") => DomainState::Running,
        Some("paused") => DomainState::Paused,
        Some(_) => DomainState::Other,
    }
}

/// Why it is not known yet where the domain is, and what an operator can do.
fn describe(doubt: DomainDoubt, answers: &Answers) -> String {
    let state = |of: &Answer| of.state.clone().unwrap_or_else(|| "not".into());
    let (here, there) = (state(&answers.here), state(&answers.there));
    match doubt {
        DomainDoubt::SourceSilent => format!("this host's libvirt cannot be asked: {}", answers.here.trouble),
        DomainDoubt::SourceMigrating => {
            "this host's libvirt still has a migration of the domain; `virsh domjobinfo` shows it".into()
        }
        DomainDoubt::DestinationSilent => {
            let trouble = &answers.there.trouble;
            format!("the domain is {here} here; the destination's libvirt cannot be asked: {trouble}")
        }
        DomainDoubt::OtherStateThere => {
            format!("the domain is {there} at the destination and not here: see whether it is to run there")
        }
        DomainDoubt::AtBoth => format!(
            "the domain is {here} here and {there} at the destination. Only one may run: end the other (`virsh \
             destroy`, then `virsh undefine` if it is still defined there), and never resume one that is paused"
        ),
    }
}

fn ended(end: DomainEnd, here: &Answer) -> Ended {
    match end {
        DomainEnd::Arrived => Ended { outcome: MigrationOutcome::Completed, error: None, arrived: None },
        DomainEnd::Stayed { guest, destination_silent } => {
            let state = here.state.as_deref().unwrap_or_default();
            let text = format!("the agent ended during this migration; the domain is {state} here");
            let error = error(text, convert::guest_state(guest));
            let error = if destination_silent {
                error.with_hint(SEE_THERE)
            } else {
                ErrorBody { retry_can_help: true, ..error }
            };
            Ended::failed(error, MigrationOutcome::Failed)
        }
        DomainEnd::Gone => {
            let text =
                "the agent ended during this migration; neither libvirt has the domain running or paused";
            Ended::failed(error(text.to_owned(), GuestState::Gone), MigrationOutcome::Failed)
        }
    }
}

fn error(text: String, guest: GuestState) -> ErrorBody {
    ErrorBody {
        step: Some(Step::Copy),
        side: Some(Side::Source),
        guest_state: Some(guest),
        ..ErrorBody::new(code::LIBVIRT_FAILED, text)
    }
}

#[cfg(test)]
mod tests;
