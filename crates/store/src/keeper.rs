//! Keeps the lease of a client of etcd.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use etcd_client::{Client, Error, LeaseKeepAliveStream, LeaseKeeper};
use linerate_lock::Mutex;
use tokio::time::{sleep, timeout};

use crate::{ANSWER_MAX, Lease};

/// Between two tries to get a lease.
const TRY_AGAIN: Duration = Duration::from_millis(300);

/// The lease, and until when it certainly lives: etcd counts from a later moment than this side.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    held: Mutex<Option<(Lease, Instant)>>,
}

impl Keeper {
    /// The lease, if it certainly lives.
    pub fn lease(&self) -> Option<Lease> {
        let held = self.held.lock();
        held.filter(|(_, until)| Instant::now() < *until).map(|(lease, _)| lease)
    }

    /// Forgets the lease, and returns it.
    pub fn give_up(&self) -> Option<Lease> {
        self.held.lock().take().map(|(lease, _)| lease)
    }

    fn set(&self, lease: Lease, until: Instant) {
        *self.held.lock() = Some((lease, until));
    }

    /// The lease lives on, unless it was given up meanwhile.
    fn renewed(&self, lease: Lease, until: Instant) {
        let mut held = self.held.lock();
        if let Some((_, before)) = held.as_mut().filter(|(now, _)| *now == lease) {
            *before = until;
        }
    }

    fn holds(&self, lease: Lease) -> bool {
        self.lease() == Some(lease)
    }
}

/// Gets a lease and keeps it; gets another one if it ends. Returns once `ends` is set.
pub(crate) async fn keep(mut client: Client, length: Duration, keeper: Arc<Keeper>, ends: Arc<AtomicBool>) {
    let seconds = i64::try_from(length.as_secs().max(1)).unwrap_or(i64::MAX);
    let length = Duration::from_secs(seconds.cast_unsigned());
    while !ends.load(Ordering::Relaxed) {
        let asked_at = Instant::now();
        match timeout(ANSWER_MAX, client.lease_grant(seconds, None)).await {
            Ok(Ok(granted)) => {
                let lease = Lease(granted.id());
                keeper.set(lease, asked_at + length);
                while keeper.holds(lease) && !ends.load(Ordering::Relaxed) {
                    renew(&mut client, lease, length, &keeper).await;
                }
                keeper.give_up();
                tracing::debug!(lease = lease.0, "the lease of the store has ended");
            }
            Ok(Err(error)) => tracing::debug!(error = %error, "etcd gives no lease"),
            Err(_) => tracing::debug!("etcd does not answer"),
        }
        sleep(TRY_AGAIN).await;
    }
}

/// Renews the lease on one stream, until that fails or the lease has ended.
async fn renew(client: &mut Client, lease: Lease, length: Duration, keeper: &Keeper) {
    let opened = timeout(length / 3, client.lease_keep_alive(lease.0)).await;
    let Ok(Ok((mut asks, mut answers))) = opened else {
        sleep(TRY_AGAIN.min(length / 10)).await;
        return;
    };
    while keeper.holds(lease) {
        let asked_at = Instant::now();
        match timeout(length / 3, ask(&mut asks, &mut answers)).await {
            Ok(Ok(true)) => keeper.renewed(lease, asked_at + length),
            // It has ended.
            Ok(Ok(false)) => drop(keeper.give_up()),
            Ok(Err(_)) | Err(_) => {
                sleep(TRY_AGAIN.min(length / 10)).await;
                return;
            }
        }
        sleep(length / 3).await;
    }
}

/// Whether the lease still lives.
async fn ask(asks: &mut LeaseKeeper, answers: &mut LeaseKeepAliveStream) -> Result<bool, Error> {
    asks.keep_alive().await?;
    match answers.message().await? {
        Some(answer) => Ok(answer.ttl() > 0),
        None => Err(Error::LeaseKeepAliveError("the stream has ended".into())),
    }
}
