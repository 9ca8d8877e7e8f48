//! The one thread that deals with the incoming QEMU. The core's tasks are done in order, and answer by events.
//! Discarding the guest does not wait for the task in progress: a flag is set that every wait checks. How a task is
//! done is the driver's.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use linerate_core::Mode;
use linerate_core::destination::Event;
use linerate_guest::vcpu_time::VcpuTime;

use super::context::Context;
use super::driver::{self, Done, Driver, NotAdmitted};
use super::{Incoming, Sessions};
use crate::journal::IncomingRecord;
use crate::session::offer::offered;

/// What the worker is asked to do.
pub(super) struct Task {
    name: &'static str,
    discards: bool,
    run: Call,
}

type Call = Box<dyn FnOnce(&mut Box<dyn Driver>) -> Done + Send>;

pub(super) struct Worker {
    tasks: Sender<Task>,
    context: Context,
    thread: JoinHandle<()>,
}

impl Worker {
    pub fn start(sessions: Arc<Sessions>, shared: Arc<Incoming>) -> std::io::Result<Worker> {
        let (tasks, inbox) = channel();
        let context = Context::new(sessions, shared);
        let driver = Box::new(NotAdmitted(context.clone()));
        let thread = std::thread::Builder::new().name("guest".into()).spawn(move || work(driver, &inbox))?;
        Ok(Worker { tasks, context, thread })
    }

    /// Queues a task for the driver of the guest that was admitted.
    pub fn submit(&self, name: &'static str, run: impl FnOnce(&mut dyn Driver) -> Done + Send + 'static) {
        self.send(name, false, Box::new(move |driver| run(&mut **driver)));
    }

    /// Queues the admission, which chooses the driver.
    pub fn admit(&self, guest: String, description: String, mode: Mode) {
        let admit: Call = Box::new(move |driver| {
            *driver = driver::admit(driver.context(), &guest, &description, mode)?;
            let Context { sessions, shared, .. } = driver.context();
            let endpoints = offered(&sessions.config.listen, &sessions.bench.rdma)?;
            shared.send(Event::Admitted(endpoints));
            Ok(())
        });
        self.send("admit", false, admit);
    }

    /// Queues the end of the guest here, which ends the waits of the task in progress. Nothing else is done any more.
    pub fn discard(&self) {
        self.context.abandon();
        let discard: Call = Box::new(|driver| {
            let context = driver.context().clone();
            context.shared.fences.close_all();
            std::mem::replace(driver, Box::new(NotAdmitted(context.clone()))).discard();
            context.shared.send(Event::Discarded);
            Ok(())
        });
        self.send("discard", true, discard);
    }

    fn send(&self, name: &'static str, discards: bool, run: Call) {
        let _ = self.tasks.send(Task { name, discards, run });
    }

    /// The incoming QEMU, for the journal.
    pub fn record(&self) -> IncomingRecord {
        self.context.record().clone()
    }

    /// For how long the guest's virtual CPUs have run when it is committed.
    pub fn note_vcpu_time(&self, vcpu_time: VcpuTime) {
        self.context.record().vcpu_time = vcpu_time;
    }

    #[cfg(test)]
    pub fn set_record(&self, record: IncomingRecord) {
        *self.context.record() = record;
    }

    /// Waits for the thread's end, after the last task.
    pub fn finish(self) {
        drop(self.tasks);
        if self.thread.join().is_err() {
            tracing::error!("the guest's worker thread panicked");
        }
    }
}

fn work(mut driver: Box<dyn Driver>, tasks: &Receiver<Task>) {
    while let Some(Task { name, discards, run }) = driver.next(tasks) {
        if driver.context().is_abandoned() && !discards {
            continue;
        }
        let began = Instant::now();
        let done = run(&mut driver);
        tracing::debug!(task = name, took = ?began.elapsed(), ok = done.is_ok(), "guest task");
        if let Err(fault) = done {
            let shared = &driver.context().shared;
            shared.send(Event::Failed(shared.ram_folder.explain(fault)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use linerate_core::{Code, SessionId, Token};

    use super::*;
    use crate::incoming::Input;
    use crate::session::identity::Identity;
    use crate::session::paths::Door;
    use crate::testing::agent;

    #[test]
    fn only_discard_is_possible_before_a_guest_is_admitted() {
        let dir = tempfile::tempdir().unwrap();
        let identity =
            Identity::new(SessionId([1; 16]), Token([2; 32]), &crate::security::Security::insecure());
        let (inbox, inputs) = channel();
        let shared = Incoming::new(identity, 1, ([127, 0, 0, 1], 1).into(), inbox, Door::closed());
        let worker = Worker::start(agent(&dir, &[]).incoming.clone(), Arc::new(shared)).unwrap();
        let answer = || match inputs.recv_timeout(Duration::from_secs(60)).unwrap() {
            Input::Event(event) => event,
            _ => panic!("no answer of the worker"),
        };
        worker.submit("prepare", |guest| guest.prepare());
        let Event::Failed(fault) = answer() else { panic!("it was prepared") };
        assert_eq!(fault.code, Code::Internal);
        worker.discard();
        assert!(matches!(answer(), Event::Discarded));
        worker.submit("run", |guest| guest.run(true));
        worker.finish();
        assert!(inputs.try_recv().is_err(), "it was run after it was discarded");
    }
}
