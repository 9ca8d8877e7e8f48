//! Ctrl-C in commands that begin something which goes on without them.
//!
//! A command listens before it sends its request. Otherwise a Ctrl-C between the request and its answer ends the
//! process, and nobody is told that the agent has begun.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context as Task, Poll, Waker};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

/// Every Ctrl-C since this was made. None is lost between two calls.
pub struct Interrupts {
    signal: Signal,
    /// SIGTERM, where it counts as a Ctrl-C.
    terminate: Option<Signal>,
    terminated: bool,
    /// One that came while an answer was waited for, and was not acted on yet.
    noted: bool,
}

impl Interrupts {
    /// From now on a Ctrl-C does not end the process.
    pub fn listen() -> Result<Interrupts, Failure> {
        let signal = receive(SignalKind::interrupt())?;
        Ok(Interrupts { signal, terminate: None, terminated: false, noted: false })
    }

    /// From now on SIGTERM is one, too: for a command that does not end while nobody knows how far it came.
    pub fn listen_to_terminate() -> Result<Interrupts, Failure> {
        let terminate = Some(receive(SignalKind::terminate())?);
        Ok(Interrupts { terminate, ..Interrupts::listen()? })
    }

    /// Whether there was a SIGTERM. A terminal sends it to no child.
    pub fn was_terminated(&self) -> bool {
        self.terminated
    }

    fn poll(&mut self, task: &mut Task<'_>) -> Poll<()> {
        let terminated = self.terminate.as_mut().is_some_and(|signal| signal.poll_recv(task).is_ready());
        self.terminated |= terminated;
        if self.signal.poll_recv(task).is_ready() || terminated { Poll::Ready(()) } else { Poll::Pending }
    }

    async fn receive(&mut self) {
        poll_fn(|task| self.poll(task)).await;
    }

    /// Whether there was one that nothing has acted on. It stays for [`Interrupts::next`].
    pub fn is_noted(&mut self) -> bool {
        self.noted = self.noted || self.poll(&mut Task::from_waker(Waker::noop())).is_ready();
        self.noted
    }

    /// The same, and something acts on it now.
    pub fn take_noted(&mut self) -> bool {
        let noted = self.is_noted();
        self.noted = false;
        noted
    }

    /// The next. It can be dropped while it waits without losing one.
    pub async fn next(&mut self) {
        if !self.noted {
            self.receive().await;
        }
        self.noted = false;
    }

    /// What the work gives, or none if a Ctrl-C came first.
    pub async fn unless<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            () = self.next() => None,
        }
    }

    /// The answer to a request. The first Ctrl-C is noted for [`Interrupts::next`]: what was begun is known only with
    /// the answer. The second ends the wait, with `advice`.
    pub async fn answer<T, E: Into<Failure>>(
        &mut self,
        request: impl Future<Output = Result<T, E>>,
        advice: &str,
        context: &Context,
    ) -> Result<T, Failure> {
        let mut request = pin!(request);
        if !self.noted {
            tokio::select! {
                biased;
                () = self.receive() => self.noted = true,
                answer = &mut request => return answer.map_err(E::into),
            }
            context.print_line("the agent has not answered yet; Ctrl-C again ends this command");
        }
        tokio::select! {
            answer = request => answer.map_err(E::into),
            () = self.receive() => {
                Err(Failure::new(Exit::NotWatched, "ended by Ctrl-C before the agent has answered", advice))
            }
        }
    }
}

fn receive(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| {
        let text = format!("signals cannot be received: {error}; nothing was begun");
        Failure::new(Exit::Failed, text, "begin again")
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOTHING: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(60);

    /// Raises one. All that listen in this process have it when the witness has it.
    async fn interrupt(witness: &mut Interrupts) {
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::INT).unwrap();
        tokio::time::timeout(LONG, witness.next()).await.unwrap();
    }

    /// In one test, since a signal reaches the whole process.
    #[tokio::test]
    async fn an_interrupt_is_kept_until_something_acts_on_it() {
        let context = Context::from_environment(None, true);
        let mut interrupts = Interrupts::listen().unwrap();
        let mut witness = Interrupts::listen().unwrap();

        // Between two calls.
        interrupt(&mut witness).await;
        tokio::time::timeout(LONG, interrupts.next()).await.unwrap();
        assert!(tokio::time::timeout(NOTHING, interrupts.next()).await.is_err(), "one counts once");

        // While an answer is waited for: the answer comes, and the wish is still there.
        let answers = async {
            interrupt(&mut witness).await;
            Ok::<_, Failure>(7)
        };
        assert_eq!(interrupts.answer(answers, "", &context).await.unwrap(), 7);
        assert!(interrupts.is_noted());
        assert!(interrupts.unless(std::future::pending::<()>()).await.is_none());
        assert!(!interrupts.is_noted());

        // Twice: no answer is waited for any more.
        let never = async {
            interrupt(&mut witness).await;
            // Two that come before anybody looks are one: the command looks at the first one now.
            tokio::task::yield_now().await;
            interrupt(&mut witness).await;
            std::future::pending::<Result<(), Failure>>().await
        };
        let failure = interrupts.answer(never, "look", &context).await.unwrap_err();
        assert_eq!(failure.exit, Exit::NotWatched);
    }

    #[tokio::test]
    async fn sigterm_counts_where_a_command_asks_for_it() {
        let mut interrupts = Interrupts::listen_to_terminate().unwrap();
        assert!(!interrupts.is_noted());
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM).unwrap();
        tokio::time::timeout(LONG, interrupts.next()).await.unwrap();
        assert!(interrupts.was_terminated());
    }
}
