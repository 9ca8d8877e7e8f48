//! A guest that its source resumes, as the destination has given it up.

use linerate_net::tcp::listen::Accepted;

use super::*;
use crate::security::Security;
use crate::testing::listen;

/// The agent may end when QEMU has the command and the guest runs. The next one would take that for another program's
/// doing, and leave the session to an operator.
#[test]
fn a_guest_that_the_destination_gave_up_is_taken_back_on_disk_before_its_qemu_answers() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let destination = listen(&Security::insecure(), |accepted: Accepted| {
        let _ = accepted.outcome(Outcome::Aborted);
    });
    // It has no monitor that answers.
    let ending = Ending::start(&dir);
    let mut role = leaves(&arrived(&agent, ending.pid()), SourcePhase::CommitSent);
    let Role::Source { peers, .. } = &mut role else { panic!("{role:?}") };
    *peers = destination.addresses().to_vec();
    let (order, session) = (agent.journal.next_order(), SessionId([7; 16]));
    agent.journal.put(session, &Record::new("g", order, role)).unwrap();
    recover(&agent.recovery).unwrap();
    wait_written(&agent, session, (SourcePhase::ResumingHere, true));
    assert!(!agent.unfinished()[0].is_in_doubt());
}
