//! Domains of libvirt that leave this host. The agent has libvirt move them, and a tunnel over all links connects each
//! of libvirt's sockets to the other host. `docs/libvirt.md` has the reasons.
//!
//! | module | contents |
//! |---|---|
//! | here | from the request to the end of a migration |
//! | `moves` | what is known of each migration; one at a time for a domain |
//! | `own` | libvirt's own migration |
//! | `direct` | the agents copy RAM, while libvirt's own migration waits |
//! | `ending` | the domain's state by both libvirts afterwards |
//! | `recover` | migrations during which the agent ended |
//! | `alone` | for a command that watches and has lost the agent |
//! | `virsh` | libvirt's client as a child process |
//! | `plan` | what is asked of libvirt and of the tunnel |
//! | `xml` | the domain as it shall be at the destination, where that is different |
//! | `processor` | a domain that has all that its host's processor can |
//! | `target` | which domain is meant, and what it must be like |
//! | `domains` | those that run here, for a drain |
//! | `domain_tunnel` | the tunnel of a migration |

mod alone;
mod direct;
mod domain_tunnel;
pub(crate) mod domains;
mod ending;
mod moves;
mod own;
mod plan;
mod processor;
mod recover;
mod target;
mod virsh;
mod xml;

use std::sync::Arc;

use linerate_api::{
    DomainEvent, ErrorBody, EventKind, LibvirtRequest, MigrateRequest, MigrationId, MigrationOutcome, Mode,
    code,
};
use linerate_core::{Fault, SessionId};

use self::direct::Choice;
use self::ending::{Ended, Outcome};
use self::moves::{Claim, Kept};
use self::plan::Plan;
use self::target::Target;
use self::virsh::{HERE, Virsh};
use self::xml::Changes;
use crate::audit::Audit;
use crate::config::Config;
use crate::faults::chain;
use crate::journal::{Journal, MovedDomain};
use crate::outgoing::Outgoing;
use crate::security::Security;
use crate::session::address::resolve;
use crate::session::contact::may_arrive;
use crate::session::identity::random;
use crate::{bench, convert, tunnel};

pub use alone::left_alone;
pub(crate) use moves::{Move, Moves};
pub(crate) use recover::recover;

/// What the moves of domains need of this host.
pub(crate) struct Needs {
    pub config: Arc<Config>,
    pub journal: Arc<Journal>,
    pub bench: Arc<bench::Host>,
    pub tunnels: Arc<tunnel::Sessions>,
    pub moves: Arc<Moves>,
    pub audit: Arc<Audit>,
    pub security: Arc<Security>,
    /// Begins the copy of a domain's RAM.
    pub begin_copy: BeginCopy,
}

pub(crate) type BeginCopy = Box<dyn Fn(MigrateRequest) -> Result<Arc<Outgoing>, Fault> + Send + Sync>;

/// All that a migration in progress has.
struct Job {
    needs: Arc<Needs>,
    shared: Arc<Move>,
    here: Virsh,
    domain: Target,
    plan: Plan,
    changes: Changes,
    max_blackout_ms: Option<u32>,
    kept: Kept,
    claim: Claim,
}

/// Begins a migration. On an error the domain was not touched. It continues if the client does not wait for the answer.
pub(crate) async fn begin(
    needs: Arc<Needs>,
    request: MigrateRequest,
    libvirt: LibvirtRequest,
) -> Result<MigrationId, ErrorBody> {
    let begun = tokio::spawn(prepare(needs, request, libvirt, Virsh::new(HERE))).await;
    begun.map_err(|error| internal(format!("a defect in the agent: {error}")))?
}

fn internal(text: String) -> ErrorBody {
    ErrorBody::new("internal", text)
}

async fn prepare(
    needs: Arc<Needs>,
    request: MigrateRequest,
    libvirt: LibvirtRequest,
    here: Virsh,
) -> Result<MigrationId, ErrorBody> {
    plan::check(&request, &libvirt)?;
    let found = Target::look_up(&request.guest, &here).await?;
    // Before it is asked whether libvirt moves it already: of two requests the second finds the first.
    let claim = needs.moves.claim(&found.0, &found.1)?;
    let domain = Target::check(found, &here).await?;
    check_arrival(&needs, &request.to).await?;
    let persistent = domain.definition.persistent;
    let key = SessionId(random().map_err(|fault| convert::error(&fault, None))?);
    let changes = Changes::write(&libvirt, &needs.config.state_dir, &key.to_string())
        .map_err(|error| internal(format!("the domain's XML cannot be written: {}", chain(&error))))?;
    let plan = Plan::new(&domain, (&request, &libvirt), &changes, persistent, &key.to_string())?;
    let choice = direct::choose(&needs, &domain, &plan, (&request, &libvirt)).await?;
    let (copy, reason, unknown) = match choice {
        // The two QEMUs are asked for each feature.
        Choice::Direct(copy) => (Some(copy), None, None),
        Choice::Own(reason) => {
            plan::check_own(&request, reason.as_deref())?;
            let unknown = processor::check(&needs.security, &domain, &here, &request.to).await?;
            (None, reason, unknown)
        }
    };
    let id = copy.as_ref().map_or_else(|| MigrationId(key.to_string()), |copy| copy.id());
    let moved = MovedDomain {
        id: id.0.clone(),
        uuid: domain.uuid.clone(),
        paused: domain.paused,
        autostart: domain.definition.autostart,
        to: request.to.clone(),
        remote_socket: libvirt.remote_socket.clone(),
        links: request.links.clone(),
    };
    let kept = match Kept::new(&needs, key, &domain.name, moved.clone()) {
        Ok(kept) => kept,
        Err(error) => {
            copy.iter().for_each(|copy| copy.cancel());
            return Err(ErrorBody::new("journal_failed", chain(&error)));
        }
    };
    let plan = if copy.is_some() { plan.waiting() } else { plan };
    let shared = Arc::new(Move::new(&domain.name, &moved, copy));
    needs.moves.add(shared.clone());
    // Only now: a measurement that begins later knows of it.
    needs.bench.yield_to_migration();
    let mode = if shared.copy().is_some() { Mode::Direct } else { Mode::Stream };
    shared.publish(DomainEvent::Mode { mode, reason, uuid: domain.uuid.clone() });
    unknown.iter().for_each(|text| shared.warn(text));
    if persistent && changes.only_live() {
        shared.warn(
            "the definition that stays at the destination is as it is here: --persistent-xml changes that, too",
        );
    }
    tracing::info!(%id, domain = domain.name, uuid = domain.uuid, to = request.to, ?mode, "libvirt is asked to move a domain");
    let max_blackout_ms = request.max_blackout_ms;
    tokio::spawn(Job { needs, shared, here, domain, plan, changes, max_blackout_ms, kept, claim }.run());
    Ok(id)
}

/// libvirt's own migration goes through a tunnel, and the other agent cannot know that a guest comes.
async fn check_arrival(needs: &Arc<Needs>, to: &str) -> Result<(), ErrorBody> {
    let (security, to) = (needs.security.clone(), to.to_owned());
    let asked = move || may_arrive(&resolve(&to)?, &security);
    let answer = tokio::task::spawn_blocking(asked).await;
    let answer = answer.map_err(|error| internal(format!("a defect in the agent: {error}")))?;
    answer.map_err(|fault| convert::error(&fault, None))
}

impl Job {
    async fn run(self) {
        let ended = match self.shared.copy() {
            Some(copy) => self.copy_and_drive(copy).await,
            None => self.drive().await,
        };
        // Nothing was touched yet.
        let ended = ended.unwrap_or_else(|error| Ended::failed(error, MigrationOutcome::Failed));
        let Job { needs, shared, kept, claim, domain, changes, .. } = self;
        tracing::info!(id = %shared.id(), domain = domain.name, outcome = ?ended.outcome, "libvirt's migration has ended");
        kept.close();
        // A client that gets the end may ask for the next migration.
        drop((claim, changes));
        shared.finish(ended, &needs.audit);
    }
}

/// An error of a migration that was cancelled before libvirt was asked for anything.
fn not_begun(domain: &Target) -> Ended {
    let error = ErrorBody {
        guest_state: Some(domain.guest_state()),
        ..ErrorBody::new(code::CANCELLED, "cancelled before libvirt was asked to move the domain")
    };
    Ended::failed(error, MigrationOutcome::Cancelled)
}

impl Move {
    fn publish(&self, event: DomainEvent) {
        self.event_log.publish(EventKind::Domain(event));
    }

    fn warn(&self, text: &str) {
        self.publish(DomainEvent::Warning { text: text.to_owned() });
    }

    /// The last event, after what was found out of a domain that arrived.
    fn finish(&self, ended: Ended, audit: &Audit) {
        let Ended { outcome, error, arrived } = ended;
        if let Some(Outcome { state, job }) = arrived {
            let (domain, to) = (self.guest().to_owned(), self.to().to_owned());
            self.publish(DomainEvent::Completed { domain, to, state, job });
        }
        let report = self.copied().and_then(|copied| copied.report);
        let last = EventKind::Finished { outcome, error: error.map(Box::new), report };
        audit.migration_end(&self.id().0, self.guest(), self.to(), self.cipher(), &last);
        self.event_log.publish(last);
    }
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
