//! The event stream of a measurement.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Incoming;

use super::ClientError;
use super::events::Lines;
use crate::{BenchEvent, KEEP_ALIVE_S};

/// The agent sends at least an empty line every [`KEEP_ALIVE_S`]; this much silence is a dead agent.
const SILENCE_MAX: Duration = Duration::from_secs(6 * KEEP_ALIVE_S);

/// What happens in a measurement. Dropping it stops the measurement.
#[derive(Debug)]
pub struct BenchStream {
    body: Incoming,
    lines: Lines,
}

impl BenchStream {
    pub(super) fn new(answer: Response<Incoming>) -> BenchStream {
        BenchStream { body: answer.into_body(), lines: Lines::default() }
    }

    /// The next event. A stream that breaks before [`BenchEvent::Finished`] is [`ClientError::BenchCut`].
    pub async fn next(&mut self) -> Result<BenchEvent, ClientError> {
        loop {
            if let Some(line) = self.lines.next()? {
                return serde_json::from_slice(&line).map_err(ClientError::Answer);
            }
            match tokio::time::timeout(SILENCE_MAX, self.body.frame()).await {
                Ok(Some(Ok(frame))) => self.lines.push(&frame.into_data().unwrap_or_default()),
                Ok(Some(Err(_)) | None) | Err(_) => return Err(ClientError::BenchCut),
            }
        }
    }
}
