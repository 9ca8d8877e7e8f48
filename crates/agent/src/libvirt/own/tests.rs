//! A cancellation in each state of libvirt's own migration, with a libvirt that answers what the test sets.

use std::sync::Arc;

use linerate_api::{GuestState, MigrationOutcome, Side, code};

use super::super::testing::{FakeLibvirt, LONG, MIGRATES, SAVES, job, target, wait, warnings};
use super::*;
use crate::libvirt::target::Target;
use crate::libvirt::virsh::Definition;

/// A migration in progress.
struct Stage {
    here: FakeLibvirt,
    there: FakeLibvirt,
    job: Arc<Job>,
    _dir: tempfile::TempDir,
}

impl Stage {
    fn new(domain: Target) -> Stage {
        let dir = tempfile::tempdir().unwrap();
        let here = FakeLibvirt::new(Some(domain.state()));
        let job = job(&crate::testing::agent(&dir, &[]).libvirt(), domain, &here);
        Stage { here, there: FakeLibvirt::new(None), job, _dir: dir }
    }

    async fn drive(&self) -> Ended {
        let (mut tunnel, there) = (DomainTunnel::ready_now(), self.there.virsh());
        let ended = timeout(LONG, self.job.drive_through(&mut tunnel, &there)).await.expect("it ends");
        ended.map_err(|error| error.message).unwrap()
    }

    async fn begun(&self) {
        wait("virsh migrates", || self.here.asked("migrate") == 1).await;
    }

    fn cancel(&self) {
        self.job.shared.cancel().map_err(|refused| refused.message).unwrap();
    }

    /// virsh ends with an error, or with success, when libvirt has begun. By then it is so `here` and `there`.
    async fn ends(&self, how: &str, here: Option<&str>, there: Option<&str>) -> Ended {
        let ending = async {
            self.begun().await;
            there.iter().for_each(|state| self.there.set("state", state));
            match here {
                Some(state) => self.here.set("state", state),
                None => self.here.remove("state"),
            }
            self.here.set(how, "");
        };
        tokio::join!(self.drive(), ending).0
    }

    async fn left(&self, here: Option<&str>, there: Option<&str>) -> Ended {
        self.ends("aborted", here, there).await
    }

    async fn moved(&self, here: Option<&str>, there: Option<&str>) -> Ended {
        self.ends("moved", here, there).await
    }

    /// The destination's has it, and this one does not know it any more.
    fn moves(&self) {
        self.there.set("state", self.job.domain.state());
        self.here.remove("state");
        self.here.remove("job");
        self.here.set("moved", "");
    }
}

/// Outcome, error code and the guest's state.
fn outcome(ended: &Ended) -> (MigrationOutcome, Option<&str>, Option<GuestState>) {
    let error = ended.error.as_ref();
    (ended.outcome, error.map(|error| error.code.as_str()), error.and_then(|error| error.guest_state))
}

const fn cancelled(guest: GuestState) -> (MigrationOutcome, Option<&'static str>, Option<GuestState>) {
    (MigrationOutcome::Cancelled, Some(code::CANCELLED), Some(guest))
}

#[tokio::test]
async fn a_cancellation_before_the_copy_begins_nothing() {
    let stage = Stage::new(target());
    stage.cancel();
    assert_eq!(outcome(&stage.drive().await), cancelled(GuestState::RunsAtSource));
    assert_eq!((stage.here.asked("migrate"), stage.here.asked("domjobabort")), (0, 0));
}

#[tokio::test]
async fn a_cancellation_that_comes_before_libvirts_job_is_repeated_until_there_is_one() {
    let stage = Stage::new(target());
    let cancelling = async {
        stage.begun().await;
        stage.cancel();
        stage.here.wait_asked("domjobinfo", 4).await;
        assert_eq!(stage.here.asked("domjobabort"), 0, "there is nothing to end");
        stage.here.set("job", MIGRATES);
    };
    let (ended, ()) = tokio::join!(stage.drive(), cancelling);
    assert_eq!(outcome(&ended), cancelled(GuestState::RunsAtSource));
    assert!(stage.here.asked("domjobabort") >= 1);
    assert!(warnings(&stage.job.shared).is_empty());
}

#[tokio::test]
async fn a_cancellation_in_the_middle_ends_the_migration_at_the_source() {
    for paused in [false, true] {
        let stage = Stage::new(Target { paused, ..target() });
        stage.here.set("job", MIGRATES);
        let cancelling = async {
            stage.begun().await;
            stage.cancel();
        };
        let (ended, ()) = tokio::join!(stage.drive(), cancelling);
        // Also a domain that was paused is as it was.
        assert_eq!(outcome(&ended), cancelled(stage.job.domain.guest_state()), "paused: {paused}");
    }
}

#[tokio::test]
async fn a_cancellation_that_libvirt_refuses_while_it_switches_over_does_not_hide_where_the_domain_went() {
    let stage = Stage::new(target());
    stage.here.set("job", MIGRATES);
    stage.here.set("refuses", "");
    let cancelling = async {
        stage.begun().await;
        stage.cancel();
        stage.here.wait_asked("domjobabort", 3).await;
        stage.moves();
    };
    let (ended, ()) = tokio::join!(stage.drive(), cancelling);
    assert_eq!(outcome(&ended), (MigrationOutcome::Completed, None, None));
    assert_eq!(ended.arrived.map(|found| found.state).as_deref(), Some("running"));
    let warned = warnings(&stage.job.shared);
    assert!(warned.len() == 1 && warned[0].contains("not cancelled yet"), "once: {warned:?}");
}

#[tokio::test]
async fn a_cancellation_is_not_reported_of_a_domain_that_is_not_as_it_was() {
    // libvirt lost the other side at the switch-over and leaves the domain paused, or does not know it.
    for (state, guest) in [(Some("paused"), GuestState::PausedAtSource), (None, GuestState::Unknown)] {
        let stage = Stage::new(target());
        stage.here.set("job", MIGRATES);
        stage.here.set("refuses", "");
        let cancelling = async {
            stage.begun().await;
            stage.cancel();
            stage.here.wait_asked("domjobabort", 1).await;
            match state {
                Some(state) => stage.here.set("state", state),
                None => stage.here.remove("state"),
            }
            stage.here.set("aborted", "");
        };
        let (ended, ()) = tokio::join!(stage.drive(), cancelling);
        assert_eq!((ended.outcome, outcome(&ended).2), (MigrationOutcome::Failed, Some(guest)), "{state:?}");
    }
}

/// Its libvirt ended during the switch-over, and the tunnel is open all the same.
#[tokio::test]
async fn a_domain_that_is_left_paused_is_looked_for_at_the_destination() {
    for (there, guest, again) in [
        // A drain that tried it again would move it paused, as if its user had paused it.
        (None, GuestState::PausedAtSource, false),
        (Some("shut off"), GuestState::PausedAtSource, false),
        (Some("running"), GuestState::RunsAtDestination, false),
        (Some("paused"), GuestState::Unknown, false),
    ] {
        let ended = Stage::new(target()).left(Some("paused"), there).await;
        assert_eq!(outcome(&ended), (MigrationOutcome::Failed, Some(code::LIBVIRT_FAILED), Some(guest)));
        assert_eq!(ended.error.map(|error| error.retry_can_help), Some(again), "{there:?}");
    }
}

#[tokio::test]
async fn libvirts_success_counts_only_if_the_destination_has_the_domain_as_it_was() {
    use GuestState::{PausedAtDestination, Unknown};
    use MigrationOutcome::{Completed, Failed};
    for (state, known) in [
        (Some("running"), (Completed, None, None)),
        (Some("paused"), (Failed, Some(code::LIBVIRT_FAILED), Some(PausedAtDestination))),
        (None, (Failed, Some(code::LIBVIRT_FAILED), Some(Unknown))),
    ] {
        let ended = Stage::new(target()).moved(None, state).await;
        assert_eq!(outcome(&ended), known, "{state:?}");
    }
}

/// libvirt reports success also if it could not end the domain here, or somebody has defined it meanwhile.
#[tokio::test]
async fn libvirts_success_does_not_count_if_something_of_the_domain_is_left_here() {
    use GuestState::{RunsAtDestination, Unknown};
    for (left, guest, advice) in [
        ("paused", RunsAtDestination, "virsh destroy"),
        ("running", Unknown, "virsh destroy"),
        ("shut off", RunsAtDestination, "virsh undefine"),
    ] {
        let ended = Stage::new(target()).moved(Some(left), Some("running")).await;
        let known = (MigrationOutcome::Failed, Some(code::LIBVIRT_FAILED), Some(guest));
        assert_eq!(outcome(&ended), known, "{left}");
        let message = ended.error.map(|error| error.message).unwrap_or_default();
        assert!(message.contains(advice), "{left}: {message}");
        assert!(ended.arrived.is_some(), "{left}: it is at the destination");
    }
}

#[tokio::test]
async fn a_domain_that_starts_when_its_host_boots_does_so_at_its_new_host() {
    let definition = Definition { persistent: true, autostart: true };
    for (starts, refused) in [(true, false), (true, true), (false, false)] {
        let definition = Definition { autostart: starts, ..definition };
        let stage = Stage::new(Target { definition, ..target() });
        if refused {
            stage.there.set("refuses", "");
        }
        let ended = stage.moved(None, Some("running")).await;
        assert_eq!(stage.there.asked("autostart"), usize::from(starts));
        assert_eq!(ended.outcome == MigrationOutcome::Completed, !refused, "{starts} {refused}");
        let message = ended.error.map(|error| error.message).unwrap_or_default();
        assert_eq!(message.contains("virsh autostart"), refused, "{message}");
    }
}

/// What is left here starts with this host. Both would run after a power failure.
#[tokio::test]
async fn a_domain_of_which_something_is_left_here_does_not_start_at_both_hosts_when_they_boot() {
    let definition = Definition { persistent: true, autostart: true };
    for (succeeds, left) in [(true, "shut off"), (true, "paused"), (true, "running"), (false, "paused")] {
        let stage = Stage::new(Target { definition, ..target() });
        let how = if succeeds { "moved" } else { "aborted" };
        let ended = stage.ends(how, Some(left), Some("running")).await;
        assert_eq!(stage.there.asked("autostart"), 0, "{how}, {left}");
        let message = ended.error.map(|error| error.message).unwrap_or_default();
        assert!(message.contains("virsh autostart"), "an operator sets it later: {message}");
    }
}

/// It is asked first. Afterwards nobody could say that the domain does not run there, and a retry would be no help.
#[tokio::test]
async fn nothing_is_begun_where_the_destinations_libvirt_does_not_answer() {
    let stage = Stage::new(target());
    stage.there.set("dead", "");
    let (mut tunnel, there) = (DomainTunnel::ready_now(), stage.there.virsh());
    let refused = stage.job.drive_through(&mut tunnel, &there).await.map(drop).unwrap_err();
    assert_eq!(
        (refused.side, refused.retry_can_help),
        (Some(Side::Destination), true),
        "{}",
        refused.message
    );
    assert_eq!(stage.here.asked("migrate"), 0);
}

/// The other libvirt has ended during the switch-over: this one lets the domain run again, and does not know.
#[tokio::test]
async fn a_domain_that_runs_here_again_is_looked_for_at_the_destination() {
    use GuestState::{RunsAtSource, Unknown};
    for (there, guest, again) in [
        (None, RunsAtSource, true),
        (Some("shut off"), RunsAtSource, true),
        // It has what was sent, and waits for its end.
        (Some("paused"), RunsAtSource, true),
        (Some("running"), Unknown, false),
    ] {
        let ended = Stage::new(target()).left(Some("running"), there).await;
        assert_eq!(outcome(&ended), (MigrationOutcome::Failed, Some(code::LIBVIRT_FAILED), Some(guest)));
        let error = ended.error.unwrap();
        assert_eq!(error.retry_can_help, again, "{there:?}");
        assert_eq!(error.hint.contains("runs on both hosts"), guest == Unknown, "{}", error.hint);
    }
}

/// The tunnel stays open until then: libvirt would let the domain run here too if it lost the answer from there.
#[tokio::test]
async fn a_migration_whose_virsh_was_killed_is_ended_before_it_is_judged() {
    let stage = Stage::new(target());
    stage.here.set("job", MIGRATES);
    let killing = async {
        stage.begun().await;
        stage.here.set("killed", "");
    };
    let (ended, ()) = tokio::join!(stage.drive(), killing);
    assert_eq!(stage.here.asked("domjobabort"), 1, "libvirt's migration goes on");
    let known = (MigrationOutcome::Failed, Some(code::LIBVIRT_FAILED), Some(GuestState::RunsAtSource));
    assert_eq!(outcome(&ended), known);
}

#[tokio::test]
async fn a_migration_that_goes_on_without_its_virsh_is_waited_for_before_it_is_judged() {
    let stage = Stage::new(target());
    stage.here.set("job", MIGRATES);
    stage.here.set("refuses", "");
    let switching = async {
        stage.begun().await;
        stage.here.set("killed", "");
        stage.here.wait_asked("domjobabort", 1).await;
        // It cannot be ended any more.
        stage.here.wait_asked("domjobinfo", 3).await;
        assert_eq!(stage.here.asked("domstate"), 0, "it is not judged yet");
        stage.moves();
    };
    let (ended, ()) = tokio::join!(stage.drive(), switching);
    assert_eq!(outcome(&ended).2, Some(GuestState::Unknown), "it is not here");
}

#[tokio::test]
async fn a_cancellation_ends_no_other_job_of_the_domain() {
    let stage = Stage::new(target());
    stage.here.set("job", SAVES);
    let cancelling = async {
        stage.begun().await;
        stage.cancel();
        stage.here.wait_asked("domjobinfo", 4).await;
        assert_eq!(stage.here.asked("domjobabort"), 0, "it is being saved");
        stage.moves();
    };
    let (ended, ()) = tokio::join!(stage.drive(), cancelling);
    assert_eq!(ended.outcome, MigrationOutcome::Completed);
}
