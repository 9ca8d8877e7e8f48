//! A line on the terminal while an answer takes its time.

use std::future::Future;
use std::io::Write;
use std::pin::pin;
use std::time::{Duration, Instant};

use linerate_api::ClientError;

use crate::context::{Context, Screen};
use crate::failure::Failure;

const EVERY: Duration = Duration::from_millis(500);

/// Waits for the answer. A terminal shows what it waits for and for how many seconds, and nothing afterwards.
pub async fn with_progress<T>(what: String, screen: Screen, answer: impl Future<Output = T>) -> T {
    if !screen.live {
        return answer.await;
    }
    let mut answer = pin!(answer);
    let began = Instant::now();
    loop {
        if let Ok(answer) = tokio::time::timeout(EVERY, &mut answer).await {
            write("");
            return answer;
        }
        write(&line(&what, began.elapsed(), screen.width));
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
    what.chars().take(space).chain(seconds.chars()).collect()
}

/// Replaces the line. A closed standard error is ignored.
fn write(text: &str) {
    let mut err = std::io::stderr().lock();
    let _ = write!(err, "\r\x1b[K{text}").and_then(|()| err.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_terminal_gets_one_line() {
        let text = line("looking at 2 hosts and the links between them", Duration::from_secs(12), 30);
        assert_eq!((text.chars().count(), text.ends_with(" … 12 s")), (29, true), "{text}");
    }
}
