//! A session whose commit was sent by an earlier life of this agent: ask until the destination says how it ended, and do
//! what follows. The guest stays paused meanwhile (rule 1).

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use linerate_api::{Direction, MigrationId, MigrationState, MigrationSummary, Step};
use linerate_core::journal::{SourcePhase, Verdict, verdict};
use linerate_core::{SessionId, Token};
use linerate_guest::process::{self, StopHow};

use crate::agent::Agent;
use crate::clock::unix_ms;
use crate::faults::chain;
use crate::journal::{Record, Role};
use crate::outgoing::ask_any;
use crate::recover::{Before, take_back};

/// Between two questions.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// See the module.
pub struct Undecided {
    /// Names it on both hosts.
    pub session: SessionId,
    /// The guest.
    pub guest: String,
    peers: Vec<SocketAddr>,
    since_unix_ms: u64,
    decision: Mutex<Sender<bool>>,
}

impl Undecided {
    /// Begins to ask.
    pub fn start(agent: &Arc<Agent>, session: SessionId, record: Record) -> std::io::Result<()> {
        let Role::Source { peers, token, ran, settings, .. } = record.role.clone() else { return Ok(()) };
        let (decision, decisions) = channel();
        let undecided = Arc::new(Undecided {
            session,
            guest: record.guest.clone(),
            peers,
            since_unix_ms: record.changed_unix_ms,
            decision: Mutex::new(decision),
        });
        agent.add_undecided(undecided.clone());
        let agent = agent.clone();
        let token = parse_token(&token);
        let before = Before { ran, settings };
        let asking = move || undecided.ask(&agent, record, token, &before, &decisions);
        std::thread::Builder::new().name("undecided".into()).spawn(asking)?;
        Ok(())
    }

    /// The operator decides: `true` runs the guest here.
    pub fn resolve(&self, resume_here: bool) {
        let _ = self.decision.lock().unwrap_or_else(PoisonError::into_inner).send(resume_here);
    }

    /// A line about it.
    pub fn summary(&self) -> MigrationSummary {
        MigrationSummary {
            id: MigrationId(self.session.to_string()),
            guest: self.guest.clone(),
            direction: Direction::Outgoing,
            peer: self.peers.first().map(ToString::to_string).unwrap_or_default(),
            state: MigrationState::Undecided,
            step: Step::Commit,
            started_unix_ms: self.since_unix_ms,
            sent_bytes: 0,
        }
    }

    fn ask(
        &self,
        agent: &Agent,
        mut record: Record,
        token: Token,
        before: &Before,
        decisions: &Receiver<bool>,
    ) {
        tracing::warn!(session = %self.session, guest = self.guest, "commit was sent before the agent was restarted; asking the destination");
        let resume = loop {
            match ask_any(&self.peers, self.session, token).map(verdict) {
                Some(Verdict::GiveUpGuest) => break false,
                Some(Verdict::Resume) => break true,
                Some(Verdict::AskAgain) | None => {}
            }
            match decisions.recv_timeout(ASK_EVERY) {
                Ok(resume_here) => break resume_here,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        };
        let phase = if resume {
            take_back(agent, &self.guest, before);
            SourcePhase::RolledBack
        } else {
            self.give_up(agent);
            SourcePhase::Finished
        };
        if let Role::Source { phase: old, .. } = &mut record.role {
            *old = phase;
        }
        record.changed_unix_ms = unix_ms();
        if let Err(error) = agent.journal.put(self.session, &record) {
            tracing::error!(
                error = chain(&error),
                "the journal was not written; the session will be asked about again"
            );
        }
        tracing::info!(session = %self.session, guest = self.guest, resumed_here = resume, "decided");
        agent.decided(self.session);
    }

    /// The guest is the destination's.
    fn give_up(&self, agent: &Agent) {
        let Ok(record) = agent.registry.get(&self.guest) else { return };
        let deadline = Instant::now() + Duration::from_secs(10);
        if let Err(error) = process::stop(&agent.registry, &record, None, StopHow::Quit, deadline) {
            tracing::error!(
                error = chain(&error),
                guest = self.guest,
                "the source's QEMU could not be ended"
            );
        }
    }
}

/// The session's token as the journal keeps it.
pub(crate) fn parse_token(text: &str) -> Token {
    let mut token = Token([0; 32]);
    for (place, byte) in token.0.iter_mut().enumerate() {
        let digits = text.get(2 * place..2 * place + 2);
        *byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).unwrap_or(0);
    }
    token
}
