//! A cancellation in each state of a migration in direct mode, with a libvirt that answers what the test sets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::testing::{FakeLibvirt, LONG, MIGRATES, SAVES, job, target, wait};
use super::*;

struct Stage {
    here: FakeLibvirt,
    job: Arc<Job>,
    over: Notify,
    /// Cancellations of the copy.
    copy: AtomicUsize,
    _dir: tempfile::TempDir,
}

impl Stage {
    fn new() -> Stage {
        let dir = tempfile::tempdir().unwrap();
        let here = FakeLibvirt::new(Some("running"));
        let job = job(&crate::testing::agent(&dir, &[]).libvirt(), target(), &here);
        Stage { here, job, over: Notify::new(), copy: AtomicUsize::new(0), _dir: dir }
    }

    /// Until virsh has ended. Its message, if it failed.
    async fn watch(&self) -> Option<String> {
        let cancel_copy = || {
            self.copy.fetch_add(1, Ordering::SeqCst);
        };
        let child = self.job.here.start(&self.job.plan.arguments()).map_err(|error| error.message).unwrap();
        let mut waiting =
            Waiting { job: &self.job, child, cancel_copy: &cancel_copy, is_over: false, asked: false };
        timeout(LONG, waiting.watch(&mut DomainTunnel::ready_now(), &self.over)).await.expect("it ends")
    }

    async fn begun(&self) {
        wait("virsh migrates", || self.here.asked("migrate") == 1).await;
    }

    fn cancel(&self) {
        self.job.shared.cancel().map_err(|refused| refused.message).unwrap();
    }

    fn copies_cancelled(&self) -> usize {
        self.copy.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn a_cancellation_ends_the_copy_first_and_libvirts_migration_after_it() {
    let stage = Stage::new();
    stage.here.set("job", MIGRATES);
    // Before virsh runs.
    stage.cancel();
    let cancelling = async {
        stage.begun().await;
        wait("the copy is cancelled", || stage.copies_cancelled() == 1).await;
        assert_eq!(stage.here.asked("domjobabort"), 0, "the copy ends first");
        // Once more, in the middle.
        stage.cancel();
        wait("the copy is cancelled", || stage.copies_cancelled() == 2).await;
        assert_eq!(stage.here.asked("domjobabort"), 0, "the copy ends first");
        stage.over.notify_one();
    };
    let (message, ()) = tokio::join!(stage.watch(), cancelling);
    assert!(message.is_some_and(|message| message.contains("canceled by client")));
    assert_eq!(stage.here.asked("domjobabort"), 1);
}

#[tokio::test]
async fn a_cancellation_during_the_switch_over_asks_libvirt_and_ends_virsh_the_second_time() {
    let stage = Stage::new();
    stage.here.set("job", MIGRATES);
    stage.here.set("refuses", "");
    let cancelling = async {
        stage.begun().await;
        stage.over.notify_one();
        wait("libvirt is asked", || stage.here.asked("domjobabort") == 1).await;
        stage.cancel();
        wait("libvirt is asked", || stage.here.asked("domjobabort") == 2).await;
        assert_eq!(stage.copies_cancelled(), 0, "the copy is over");
        stage.cancel();
    };
    let (message, ()) = tokio::join!(stage.watch(), cancelling);
    assert!(message.is_some(), "virsh succeeded");
    assert_eq!(stage.here.asked("domjobabort"), 2);
}

#[tokio::test]
async fn a_cancellation_after_the_switch_over_ends_no_other_job_of_the_domain() {
    let stage = Stage::new();
    stage.here.set("job", SAVES);
    let cancelling = async {
        stage.begun().await;
        stage.over.notify_one();
        wait("libvirt is asked what it does", || stage.here.asked("domjobinfo") == 1).await;
        stage.cancel();
        wait("libvirt is asked what it does", || stage.here.asked("domjobinfo") == 2).await;
        stage.here.set("moved", "");
    };
    let (message, ()) = tokio::join!(stage.watch(), cancelling);
    assert_eq!(message, None, "libvirt has moved it");
    assert_eq!(stage.here.asked("domjobabort"), 0, "it is being saved");
}

/// In a drain a second move would be begun of a domain that may run at the destination too.
#[test]
fn a_released_domain_is_not_moved_again_where_the_destination_cannot_be_asked() {
    for (step, cut_off, again) in
        [(Step::Copy, true, true), (Step::Commit, false, true), (Step::Commit, true, false)]
    {
        let error = ErrorBody {
            step: Some(step),
            retry_can_help: true,
            ..ErrorBody::new("hypervisor_failed", "libvirt runs the guest here again")
        };
        let (outcome, error) = (MigrationOutcome::Failed, Some(Box::new(error)));
        let ended = with_message(Copied { outcome, error, report: None }, "it was cut", cut_off);
        assert_eq!(ended.error.map(|error| error.retry_can_help), Some(again), "{step:?} {cut_off}");
    }
}
