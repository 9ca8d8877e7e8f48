//! Who pulls the cable: follows the migration by the agent's event stream, and acts on it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use linerate_api::{Client, Direction, Event, EventKind, EventStream, MigrationId, MigrationState};
use linerate_lab::Lab;

use super::stage::GUEST;

/// Number of the link whose cable is pulled.
pub const LINK: usize = 1;
/// How much of the first pass is done when the cable is pulled, and when it is put back, in percent.
const PULL_AT: u64 = 33;
const PUT_BACK_AT: u64 = 62;
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What became of the cable and of the link on it.
#[derive(Debug, Default)]
pub struct Cable {
    pulled: Option<Instant>,
    put_back: Option<Instant>,
    lost: Option<Instant>,
    used_again: Option<Instant>,
    /// Why the agent took the link for lost.
    pub reason: String,
}

impl Cable {
    /// The cable was pulled while memory was being copied, and the agent saw it.
    pub fn was_missed(&self) -> bool {
        self.lost.is_some()
    }

    pub fn was_pulled(&self) -> bool {
        self.pulled.is_some()
    }

    /// From the pull to the agent's message that the link is lost.
    pub fn noticed_after(&self) -> Option<Duration> {
        between(self.pulled, self.lost)
    }

    /// How long it was out.
    pub fn out_for(&self) -> Option<Duration> {
        between(self.pulled, self.put_back)
    }

    /// From putting it back to the agent's message that the link carries again.
    pub fn used_again_after(&self) -> Option<Duration> {
        between(self.put_back, self.used_again)
    }

    /// What there is to do now that so much of the first pass is done.
    fn act(&mut self, lab: &Lab, done_percent: u64, print: &dyn Fn(&str)) -> Result<()> {
        if self.pulled.is_none() && (PULL_AT..100).contains(&done_percent) {
            self.pulled = Some(Instant::now());
            lab.cut(LINK)?;
            print("The cable of link l1 is pulled.");
        } else if self.pulled.is_some() && done_percent >= PUT_BACK_AT {
            self.put_back(lab, print)?;
        }
        Ok(())
    }

    fn put_back(&mut self, lab: &Lab, print: &dyn Fn(&str)) -> Result<()> {
        if self.put_back.is_none() {
            self.put_back = Some(Instant::now());
            lab.restore(LINK)?;
            print("The cable of link l1 is back.");
        }
        Ok(())
    }

    fn watch(&mut self, lab: &Lab, event: &Event, print: &dyn Fn(&str)) -> Result<()> {
        match &event.kind {
            EventKind::Progress(progress) if progress.round == 0 && progress.round_bytes_total > 0 => {
                self.act(lab, progress.round_bytes_done * 100 / progress.round_bytes_total, print)?;
            }
            EventKind::Progress(progress) if progress.round > 0 => self.act(lab, 100, print)?,
            EventKind::LinkLost { reason, .. } if self.pulled.is_some() => {
                self.lost = self.lost.or(Some(Instant::now()));
                self.reason.clone_from(reason);
            }
            EventKind::LinkRestored { .. } => self.used_again = self.used_again.or(Some(Instant::now())),
            _ => {}
        }
        Ok(())
    }
}

fn between(from: Option<Instant>, to: Option<Instant>) -> Option<Duration> {
    from.zip(to).map(|(from, to)| to.saturating_duration_since(from))
}

/// Follows the guest's migration until it is over or not waited for any more. It pulls the cable on the way if it is to
/// be pulled. Gives the migration's name.
pub async fn follow(
    client: &Client,
    lab: &Lab,
    mut cable: Option<&mut Cable>,
    over: &AtomicBool,
    print: &(dyn Fn(&str) + Sync),
) -> Result<Option<MigrationId>> {
    let Some(id) = find(client, over).await else { return Ok(None) };
    let mut events = client.events(&id).await?;
    while let Some(event) = next(&mut events, over).await? {
        if let Some(cable) = &mut cable {
            cable.watch(lab, &event, print)?;
        }
    }
    match cable {
        Some(cable) if cable.was_pulled() => cable.put_back(lab, print)?,
        _ => {}
    }
    Ok(Some(id))
}

async fn find(client: &Client, over: &AtomicBool) -> Option<MigrationId> {
    loop {
        let ours = |state, direction| state == MigrationState::Running && direction == Direction::Outgoing;
        if let Ok(all) = client.migrations().await
            && let Some(one) =
                all.into_iter().find(|one| one.guest == GUEST && ours(one.state, one.direction))
        {
            return Some(one.id);
        }
        if over.load(Ordering::Relaxed) {
            return None;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn next(events: &mut EventStream, over: &AtomicBool) -> Result<Option<Event>> {
    loop {
        match tokio::time::timeout(LOOK_EVERY, events.next()).await {
            Ok(event) => return Ok(event?),
            Err(_) if over.load(Ordering::Relaxed) => return Ok(None),
            Err(_) => {}
        }
    }
}
