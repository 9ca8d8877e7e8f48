//! The one thread that deals with the guest: its memory and its QEMU. The core's tasks are done in order, and answer by
//! events. A roll-back does not wait for a task in progress: it raises a flag that every wait checks. How a task is
//! done is the driver's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use linerate_core::Step;
use linerate_core::source::Event;

use super::driver::{Done, Driver};
use super::storage;

/// What the worker is asked to do.
pub(super) struct Task {
    pub name: &'static str,
    rolls_back: bool,
    run: Call,
}

type Call = Box<dyn FnOnce(&mut dyn Driver) -> Done + Send>;

pub(super) struct Worker {
    tasks: Sender<Task>,
    abandon: Arc<AtomicBool>,
    /// Ends with the downtime that QEMU itself counted.
    thread: JoinHandle<Option<u64>>,
}

impl Worker {
    pub fn start(driver: Box<dyn Driver>) -> std::io::Result<Worker> {
        let (tasks, inbox) = channel();
        let abandon = driver.guest().abandon.clone();
        let thread = std::thread::Builder::new().name("guest".into()).spawn(move || work(driver, &inbox))?;
        Ok(Worker { tasks, abandon, thread })
    }

    /// One that does nothing, and its tasks.
    #[cfg(test)]
    pub fn for_test() -> (Worker, Receiver<Task>) {
        let (tasks, inbox) = channel();
        let thread = std::thread::spawn(|| None);
        (Worker { tasks, abandon: Arc::default(), thread }, inbox)
    }

    pub fn submit(&self, name: &'static str, run: impl FnOnce(&mut dyn Driver) -> Done + Send + 'static) {
        let _ = self.tasks.send(Task { name, rolls_back: false, run: Box::new(run) });
    }

    /// Queues the roll-back, which ends the waits of the task in progress. Nothing else is done any more.
    pub fn roll_back(&self) {
        self.abandon.store(true, Ordering::SeqCst);
        let run: Call = Box::new(|guest| guest.roll_back());
        let _ = self.tasks.send(Task { name: "roll back", rolls_back: true, run });
    }

    /// Waits for the thread's end, after the last task. Returns the downtime that QEMU itself counted, if it is known.
    pub fn finish(self) -> Option<u64> {
        drop(self.tasks);
        self.thread.join().unwrap_or_else(|_| {
            tracing::error!("the guest's worker thread panicked");
            None
        })
    }
}

fn work(mut driver: Box<dyn Driver>, tasks: &Receiver<Task>) -> Option<u64> {
    while let Some(Task { name, rolls_back, run }) = driver.next(tasks) {
        if driver.guest().is_abandoned() && !rolls_back {
            continue;
        }
        let began = Instant::now();
        let done = run(&mut *driver);
        tracing::debug!(task = name, took = ?began.elapsed(), ok = done.is_ok(), "guest task");
        if let Err(fault) = done {
            let guest = driver.guest();
            if fault.step == Step::CleanUp {
                guest.shared.note_trouble(Some(fault.detail.clone()));
            }
            guest.send(Event::Failed(storage::unless_gone(fault, &guest.record)));
        }
    }
    driver.qemu_downtime_ms()
}
