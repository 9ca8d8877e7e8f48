//! Memory for what sources send before it can be used: device state that waits for its QEMU, and control messages ahead
//! of their turn. One budget for all guests that arrive, and a share of it for each host that sends them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use linerate_lock::Mutex;

use crate::config::Config;
use crate::security::{PeerName, counted_as};

/// More would be held than the configuration allows. On `Err` nothing has changed.
#[derive(Debug, thiserror::Error)]
pub(super) enum OverBudget {
    #[error(
        "this host would hold more than {mib} MiB of device state for guests that arrive from {host} \
         (held_state_of_host_mib in its agent.toml). The guest runs on at the source. Move fewer guests of that host at a \
         time, or raise the limit"
    )]
    OfHost { host: String, mib: u64 },
    #[error(
        "this host would hold more than {mib} MiB of device state for all guests that arrive (held_state_mib in its \
         agent.toml). The guest runs on at the source. Try again when fewer guests arrive, or raise the limit"
    )]
    OfAll { mib: u64 },
}

/// The budget of this agent.
#[derive(Debug)]
pub(super) struct Budget {
    of_host: u64,
    of_all: u64,
    /// Bytes that each host has here now.
    taken: Mutex<BTreeMap<String, u64>>,
}

impl Budget {
    pub fn of(config: &Config) -> Budget {
        Budget::new(config.held_state_of_host_mib << 20, config.held_state_mib << 20)
    }

    fn new(of_host: u64, of_all: u64) -> Budget {
        Budget { of_host, of_all, taken: Mutex::default() }
    }
}

/// What one session has of the budget; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    host: String,
    bytes: u64,
}

impl Share {
    /// Nothing yet, for a session of this host; by its address where it proves no name.
    pub fn new(budget: Arc<Budget>, name: &PeerName, peer: SocketAddr) -> Share {
        Share { budget, host: counted_as(name, peer), bytes: 0 }
    }

    /// The session holds this many bytes now. Fewer than before are always taken.
    pub fn set(&mut self, bytes: u64) -> Result<(), OverBudget> {
        if bytes == self.bytes {
            return Ok(());
        }
        let mut taken = self.budget.taken.lock();
        let own = taken.get(&self.host).copied().unwrap_or_default();
        let more = bytes.saturating_sub(self.bytes);
        if more > 0 && own + more > self.budget.of_host {
            return Err(OverBudget::OfHost { host: self.host.clone(), mib: self.budget.of_host >> 20 });
        }
        if more > 0 && taken.values().sum::<u64>() + more > self.budget.of_all {
            return Err(OverBudget::OfAll { mib: self.budget.of_all >> 20 });
        }
        let left = own.saturating_sub(self.bytes) + bytes;
        if left == 0 {
            taken.remove(&self.host);
        } else {
            taken.insert(self.host.clone(), left);
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Takes so many of its bytes apart: they are given back by themselves.
    pub fn split(&mut self, bytes: u64) -> Share {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Share { budget: self.budget.clone(), host: self.host.clone(), bytes }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // To hold less is never refused.
        let _ = self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use linerate_core::destination::{Action, Event, piece_weight};
    use linerate_core::{Code, Fault, Message, SessionId, Side, Step, Token};

    use super::*;
    use crate::incoming::session_loop::SessionLoop;
    use crate::incoming::{Incoming, Sessions};
    use crate::security::Security;
    use crate::session::identity::Identity;
    use crate::session::paths::Door;
    use crate::testing::agent;

    const MIB: u64 = 1 << 20;
    /// Memory of one message of the tests, about.
    const MESSAGE: usize = 256 << 10;

    /// The loop of a session that a host opened, with a budget of the test's.
    fn session(sessions: &Arc<Sessions>, budget: &Arc<Budget>, number: u8, host: u8) -> SessionLoop {
        let identity = Identity::new(SessionId([number; 16]), Token([2; 32]), &Security::insecure());
        let peer = SocketAddr::from(([192, 0, 2, host], 4711));
        let incoming = Incoming::new(identity, number.into(), peer, channel().0, Door::closed());
        let mut session_loop = SessionLoop::new(sessions.clone(), Arc::new(incoming)).unwrap();
        session_loop.held = Share::new(budget.clone(), &None, peer);
        session_loop
    }

    /// Messages come that are ahead of their turn.
    fn send(session_loop: &mut SessionLoop, numbers: std::ops::Range<u64>) {
        for sequence in numbers {
            let message = Message::DeviceState { bytes: vec![7; MESSAGE] };
            session_loop.handle(Event::Received { path: 0, sequence, message });
        }
    }

    fn step(session_loop: &SessionLoop) -> Step {
        session_loop.shared.machine().step()
    }

    /// Why a session that gives its guest up does so.
    fn fault_of(session_loop: &SessionLoop) -> Fault {
        let now = session_loop.shared.clock.now();
        let mut machine = session_loop.shared.machine();
        machine.handle(now, Event::Discarded);
        let mut actions = std::iter::from_fn(|| machine.poll_action(now));
        let fault = actions.find_map(|action| match action {
            Action::End(fault) => fault,
            _ => None,
        });
        fault.expect("it goes on")
    }

    #[test]
    fn all_sessions_have_one_budget_and_those_of_one_host_a_share_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let budget = Arc::new(Budget::new(4 * MIB, 6 * MIB));
        let sessions = agent(&dir, &[]).incoming.clone();
        let mut first = session(&sessions, &budget, 1, 1);
        let mut second = session(&sessions, &budget, 2, 1);
        let mut other = session(&sessions, &budget, 3, 2);
        send(&mut first, 2..10);
        send(&mut second, 2..8);
        assert_eq!((step(&first), step(&second)), (Step::Admit, Step::Admit), "there is room");
        send(&mut second, 8..10);
        let fault = fault_of(&second);
        assert_eq!((fault.code, fault.side), (Code::MemoryShort, Side::Destination));
        for part in ["192.0.2.1", "4 MiB", "held_state_of_host_mib", "runs on at the source"] {
            assert!(fault.detail.contains(part), "{fault}");
        }
        assert_eq!(step(&first), Step::Admit, "only the session that wants more ends");
        send(&mut other, 2..20);
        let fault = fault_of(&other);
        assert_eq!(fault.code, Code::MemoryShort);
        assert!(fault.detail.contains("6 MiB") && fault.detail.contains("held_state_mib"), "{fault}");
        for ended in [first, second, other] {
            drop(ended.held);
            ended.worker.finish();
        }
        assert!(budget.taken.lock().is_empty(), "{budget:?}");
    }

    #[test]
    fn device_state_counts_until_the_worker_has_dealt_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let budget = Arc::new(Budget::new(4 * MIB, 6 * MIB));
        let mut session_loop = session(&agent(&dir, &[]).incoming, &budget, 1, 1);
        let (go_on, waits) = channel::<()>();
        session_loop.worker.submit("wait", move |_| {
            let _ = waits.recv();
            Ok(())
        });
        let bytes = vec![7; MESSAGE];
        let weight = piece_weight(&bytes);
        session_loop.held.set(weight).unwrap();
        session_loop.execute(Action::LoadDeviceState(bytes));
        session_loop.held.set(0).unwrap();
        assert_eq!(budget.taken.lock().values().sum::<u64>(), weight, "it is in the worker's queue");
        drop(go_on);
        session_loop.worker.finish();
        assert!(budget.taken.lock().is_empty(), "{budget:?}");
    }
}
