//! Ctrl-C in commands that begin something which goes on without them.
//!
//! A command listens before it sends its request. Otherwise a Ctrl-C between the request and its answer ends the
//! process, and nobody is told that the agent has begun.

use std::pin::pin;
use std::task::{Context as Task, Waker};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

/// Every Ctrl-C since this was made. None is lost between two calls.
pub struct Interrupts {
    signal: Signal,
    /// One that came while an answer was waited for, and was not acted on yet.
    noted: bool,
}

impl Interrupts {
    /// From now on a Ctrl-C does not end the process.
    pub fn listen() -> Result<Interrupts, Failure> {
        let signal = signal(SignalKind::interrupt()).map_err(|error| {
            Failure::new(
                Exit::Failed,
                format!("signals cannot be received: {error}; nothing was begun"),
                "begin again",
            )
        })?;
        Ok(Interrupts { signal, noted: false })
    }

    /// Whether there was one that nothing has acted on. It stays for [`Interrupts::next`].
    pub fn is_noted(&mut self) -> bool {
        self.noted = self.noted || self.signal.poll_recv(&mut Task::from_waker(Waker::noop())).is_ready();
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
            self.signal.recv().await;
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
                _ = self.signal.recv() => self.noted = true,
                answer = &mut request => return answer.map_err(E::into),
            }
            context.print_line("the agent has not answered yet; Ctrl-C again ends this command");
        }
        tokio::select! {
            answer = request => answer.map_err(E::into),
            _ = self.signal.recv() => {
                Err(Failure::new(Exit::NotWatched, "ended by Ctrl-C before the agent has answered", advice))
            }
        }
    }
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

    /// One at a time, since a signal reaches the whole process.
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
}
