//! A line while an answer takes its time.

use std::future::Future;
use std::io::Write;
use std::pin::pin;
use std::time::{Duration, Instant};

use linerate_api::ClientError;

use crate::context::{Context, Screen};
use crate::failure::Failure;
use crate::render::format::clean;

const EVERY: Duration = Duration::from_millis(500);
/// Without a terminal. A log shall show that something goes on, and have no line of what is soon done.
const EVERY_PLAIN: Duration = Duration::from_secs(60);

/// Waits for the answer. A terminal shows what it waits for and for how many seconds, and nothing afterwards. Elsewhere
/// that is a line for each minute.
pub async fn with_progress<T>(what: String, screen: Screen, answer: impl Future<Output = T>) -> T {
    if !screen.live {
        let plain = |waited| write(&(line(&what, waited, usize::MAX) + "\n"));
        return while_it_takes(EVERY_PLAIN, answer, plain).await;
    }
    let redraw = |text: &str| write(&format!("\r\x1b[K{text}"));
    let answer = while_it_takes(EVERY, answer, |waited| redraw(&line(&what, waited, screen.width))).await;
    redraw("");
    answer
}

/// The answer; `show` gets after each pause how long it has been waited for.
async fn while_it_takes<T>(
    pause: Duration,
    answer: impl Future<Output = T>,
    mut show: impl FnMut(Duration),
) -> T {
    let mut answer = pin!(answer);
    let began = Instant::now();
    loop {
        if let Ok(answer) = tokio::time::timeout(pause, &mut answer).await {
            return answer;
        }
        show(began.elapsed());
    }
}

/// Asks a question that an agent answers at once, unless it hangs or waits for its store.
pub async fn look<T>(context: &Context, answer: impl Future<Output = T>) -> T {
    with_progress("waiting for the agent".to_owned(), context.err, answer).await
}

/// Asks for something that changes a host. Without an answer it may have been done: `unknown` says where that is seen.
pub async fn change<T>(
    what: &str,
    unknown: String,
    context: &Context,
    answer: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, Failure> {
    let answer = with_progress(what.to_owned(), context.err, answer).await;
    answer.map_err(|error| Failure::of_request(error, unknown))
}

/// One line, cut to the width of the terminal.
fn line(what: &str, elapsed: Duration, width: usize) -> String {
    let seconds = format!(" … {} s", elapsed.as_secs());
    let space = width.saturating_sub(seconds.chars().count() + 1);
    clean(what).chars().take(space).chain(seconds.chars()).collect()
}

/// A closed standard error is ignored.
fn write(text: &str) {
    let mut err = std::io::stderr().lock();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_terminal_gets_one_line() {
        let text = line("looking at 2 hosts and the links between them", Duration::from_secs(12), 30);
        assert_eq!((text.chars().count(), text.ends_with(" … 12 s")), (29, true), "{text}");
        assert_eq!(line("looking", Duration::from_secs(60), usize::MAX), "looking … 60 s");
    }

    #[tokio::test]
    async fn what_takes_longer_than_the_pause_is_shown_again_and_again() {
        let pause = Duration::from_millis(10);
        let shown = std::cell::RefCell::new(Vec::new());
        let answer = async {
            while shown.borrow().len() < 3 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            7
        };
        let given = while_it_takes(pause, answer, |waited| shown.borrow_mut().push(waited)).await;
        assert_eq!(given, 7);
        assert!(shown.borrow().is_sorted() && shown.borrow()[0] >= pause, "{shown:?}");
        let at_once = while_it_takes(pause, async { 7 }, |_| unreachable!());
        assert_eq!(at_once.await, 7);
    }
}
