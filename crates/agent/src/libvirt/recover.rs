//! Migrations during which the agent ended. libvirt gave them up or brought them to their end; both libvirts are asked
//! where the domain is, and nothing is decided here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_api::{
    ErrorBody, GuestState, MigrationOutcome, Side, Step, TunnelAddress, TunnelPair, TunnelRequest, code,
    domain_socket,
};
use linerate_core::SessionId;

use super::Needs;
use super::ending::{Ended, SEE_THERE, guest_state};
use super::moves::{Claim, Kept, Move};
use super::virsh::{HERE, Virsh, moves_away};
use super::way::Way;
use super::{plan, xml};
use crate::convert;
use crate::journal::{JournalError, MovedDomain, Record, Role};
use crate::session::identity::random;

/// Between two looks.
const AGAIN_AFTER: Duration = Duration::from_secs(2);
/// A domain that is here need not wait longer for the word of a destination that does not answer.
const THERE_WAIT: Duration = Duration::from_secs(60);

/// Lists what is in the journal, and looks after it in the background.
pub(crate) fn recover(needs: &Arc<Needs>) -> Result<(), JournalError> {
    xml::clear(&needs.config.state_dir);
    for (key, record) in needs.journal.all()? {
        let Role::Libvirt { domain, over: false } = record.role.clone() else { continue };
        tracing::warn!(
            id = domain.id,
            guest = record.guest,
            "the agent ended while libvirt moved this domain: asking both libvirts where it is"
        );
        let shared = Arc::new(Move::recovering(&record.guest, &domain, &record));
        needs.moves.add(shared.clone());
        // No two records are of one domain: the second was refused.
        let Ok(claim) = needs.moves.claim(&domain.uuid, &record.guest) else { continue };
        tokio::spawn(Seeing { needs: needs.clone(), shared, domain, claim }.run(key, record));
    }
    Ok(())
}

struct Seeing {
    needs: Arc<Needs>,
    shared: Arc<Move>,
    domain: MovedDomain,
    claim: Claim,
}

/// What a libvirt says of the domain: its state, none if it does not know it, or why it cannot be asked.
type Said = Result<Option<String>, String>;

impl Seeing {
    async fn run(self, key: SessionId, record: Record) {
        let ended = self.see().await;
        let Seeing { needs, shared, claim, domain } = self;
        tracing::info!(id = domain.id, outcome = ?ended.outcome, "it is known where this domain is");
        Kept::again(&needs, key, record).close();
        drop(claim);
        shared.finish(ended);
    }

    async fn see(&self) -> Ended {
        let (here, began) = (Virsh::new(HERE), Instant::now());
        loop {
            let known = match self.ask_here(&here).await {
                Err(note) => Err(note),
                Ok(here) => {
                    judge(&here, &self.ask_there().await, self.domain.paused, began.elapsed() > THERE_WAIT)
                }
            };
            match known {
                Ok(ended) => return ended,
                Err(note) => self.shared.set_note(note),
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }

    /// The state here, once libvirt has no migration of it any more; before that, why it is not known.
    async fn ask_here(&self, here: &Virsh) -> Result<Option<String>, String> {
        let note = |text: &str| self.shared.set_note(text.to_owned());
        let found = here.find(&self.domain.uuid, note).await;
        let state = found.map_err(|dead| format!("this host's libvirt cannot be asked: {}", dead.message))?;
        match here.job(&self.domain.uuid, false).await {
            Some(job) if moves_away(&job) => {
                Err("this host's libvirt still has a migration of the domain; `virsh domjobinfo` shows it"
                    .into())
            }
            _ => Ok(state),
        }
    }

    async fn ask_there(&self) -> Said {
        let key = random::<16>().map_err(|fault| convert::error(&fault, None).message)?;
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
        let mut way = Way::open(&self.needs, request).await.map_err(|error| error.message)?;
        way.ready(|_| ()).await.map_err(|error| error.message)?;
        let there = Virsh::new(plan::uri(&listen));
        let found = there.look_up(&self.domain.uuid).await;
        found.map_err(|error| format!("{}{}", error.message, way.trouble()))
    }
}

/// How long all links may be gone while the destination's libvirt is asked.
const LINK_TIMEOUT_S: u32 = 10;

/// What follows from what both say; an error is why nothing does yet.
fn judge(here: &Option<String>, there: &Said, was_paused: bool, waited: bool) -> Result<Ended, String> {
    // What is shut off is a definition.
    let is = |state: &Option<String>| state.as_deref().is_some_and(|state| state != "shut off");
    match (is(here), there) {
        (true, Ok(state)) if !is(state) => Ok(stayed(here, false)),
        (false, Ok(state)) if state.as_deref() == Some(if was_paused { "paused" } else { "running" }) => {
            Ok(Ended { outcome: MigrationOutcome::Completed, error: None, arrived: None })
        }
        (false, Ok(state)) if is(state) => Err(format!(
            "the domain is {} at the destination and not here: see whether it is to run there",
            state.as_deref().unwrap_or_default()
        )),
        (false, Ok(_)) => Ok(gone()),
        // What waits there for its stream goes with its tunnel. What runs there was not heard of here.
        (true, Ok(state)) => Err(format!(
            "the domain is {} here and {} at the destination. Only one may run: end the other (`virsh destroy`), and never resume one that \
             is paused",
            here.as_deref().unwrap_or_default(),
            state.as_deref().unwrap_or_default()
        )),
        (true, Err(_)) if waited => Ok(stayed(here, true)),
        (is_here, Err(why)) => Err(format!(
            "the domain is {}; the destination's libvirt cannot be asked: {why}",
            if is_here {
                here.as_deref().unwrap_or_default().to_owned() + " here"
            } else {
                "not here".into()
            }
        )),
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

/// `unheard`: the destination's libvirt could not be asked.
fn stayed(here: &Option<String>, unheard: bool) -> Ended {
    let state = here.as_deref();
    let text =
        format!("the agent ended during this migration; the domain is {} here", state.unwrap_or_default());
    let error = error(text, guest_state(state, unheard));
    let error =
        if unheard { error.with_hint(SEE_THERE) } else { ErrorBody { retry_can_help: true, ..error } };
    Ended::failed(error, MigrationOutcome::Failed)
}

fn gone() -> Ended {
    let text = "the agent ended during this migration; neither libvirt has the domain running or paused";
    Ended::failed(error(text.to_owned(), GuestState::Gone), MigrationOutcome::Failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(state: &str) -> Option<String> {
        (state != "-").then(|| state.to_owned())
    }

    /// Outcome, and what the guest does then; none as long as both have to be asked again.
    fn verdict(
        here: &str,
        there: Result<&str, &str>,
        waited: bool,
    ) -> Option<(MigrationOutcome, Option<GuestState>)> {
        let there = there.map(said).map_err(str::to_owned);
        let ended = judge(&said(here), &there, false, waited).ok()?;
        Some((ended.outcome, ended.error.and_then(|error| error.guest_state)))
    }

    #[test]
    fn the_end_is_told_only_of_a_domain_that_one_of_both_has() {
        use GuestState::{Gone, PausedAtSource, RunsAtSource, Unknown};
        use MigrationOutcome::{Completed, Failed};
        for (here, there, end) in [
            ("running", Ok("-"), Some((Failed, Some(RunsAtSource)))),
            ("running", Ok("shut off"), Some((Failed, Some(RunsAtSource)))),
            ("paused", Ok("-"), Some((Failed, Some(PausedAtSource)))),
            ("-", Ok("running"), Some((Completed, None))),
            ("shut off", Ok("running"), Some((Completed, None))),
            ("-", Ok("-"), Some((Failed, Some(Gone)))),
            // A copy that waits there, or a success that was not heard of here.
            ("running", Ok("paused"), None),
            ("paused", Ok("running"), None),
            ("running", Ok("running"), None),
            ("-", Ok("paused"), None),
            ("-", Err("no link"), None),
        ] {
            assert_eq!(verdict(here, there, false), end, "{here} {there:?}");
            assert_eq!(verdict(here, there, true), end, "{here} {there:?}, later");
        }
        assert_eq!(verdict("running", Err("no link"), false), None);
        assert_eq!(verdict("running", Err("no link"), true), Some((Failed, Some(RunsAtSource))));
        let suspended = judge(&said("-"), &Ok(said("paused")), true, false);
        assert_eq!(suspended.ok().map(|ended| ended.outcome), Some(Completed));
        // It may run there: this host's libvirt leaves such a domain paused.
        assert_eq!(verdict("paused", Err("no link"), true), Some((Failed, Some(Unknown))));
    }
}
