//! Event streams, line by line.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Incoming;
use tokio::time::Instant;

use super::ClientError;
use crate::{EVENT_BYTES_MAX, Event, EventKind, KEEP_ALIVE_S, MigrationId, TunnelEvent};

/// The agent sends at least an empty line every [`KEEP_ALIVE_S`]; this much silence is a dead agent.
const SILENCE_MAX: Duration = Duration::from_secs(6 * KEEP_ALIVE_S);

/// Lines of an answer that never ends by itself.
#[derive(Debug)]
struct LineStream {
    body: Incoming,
    lines: Lines,
    /// When the agent is given up; moves on with every byte, and not when the next line is asked for anew.
    deadline: Instant,
}

impl LineStream {
    fn new(answer: Response<Incoming>) -> LineStream {
        LineStream {
            body: answer.into_body(),
            lines: Lines::default(),
            deadline: Instant::now() + SILENCE_MAX,
        }
    }

    /// The next line; none if the stream broke. May be dropped while it waits without losing a line.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        loop {
            if let Some(line) = self.lines.next()? {
                return Ok(Some(line));
            }
            match tokio::time::timeout_at(self.deadline, self.body.frame()).await {
                Ok(Some(Ok(frame))) => {
                    self.deadline = Instant::now() + SILENCE_MAX;
                    self.lines.push(&frame.into_data().unwrap_or_default());
                }
                Ok(Some(Err(_)) | None) | Err(_) => return Ok(None),
            }
        }
    }
}

/// Events of one migration.
#[derive(Debug)]
pub struct EventStream {
    lines: LineStream,
    id: MigrationId,
    finished: bool,
}

impl EventStream {
    pub(super) fn new(answer: Response<Incoming>, id: MigrationId) -> EventStream {
        EventStream { lines: LineStream::new(answer), id, finished: false }
    }

    /// The next event; none after [`EventKind::Finished`]. A stream that ends or breaks before it is
    /// [`ClientError::Cut`]. May be dropped while it waits without losing an event.
    pub async fn next(&mut self) -> Result<Option<Event>, ClientError> {
        if self.finished {
            return Ok(None);
        }
        let line = self.lines.next().await?;
        let line = line.ok_or_else(|| ClientError::Cut { id: self.id.clone() })?;
        let event: Event = serde_json::from_slice(&line).map_err(ClientError::Answer)?;
        self.finished = matches!(event.kind, EventKind::Finished { .. });
        Ok(Some(event))
    }
}

/// Events of a tunnel. Dropping it ends the tunnel.
#[derive(Debug)]
pub struct TunnelStream(LineStream);

impl TunnelStream {
    pub(super) fn new(answer: Response<Incoming>) -> TunnelStream {
        TunnelStream(LineStream::new(answer))
    }

    /// The next event; none if the agent, and the tunnel with it, has ended.
    pub async fn next(&mut self) -> Result<Option<TunnelEvent>, ClientError> {
        match self.0.next().await? {
            Some(line) => serde_json::from_slice(&line).map(Some).map_err(ClientError::Answer),
            None => Ok(None),
        }
    }
}

/// Bytes in, lines out; empty lines are passed over.
#[derive(Debug, Default)]
pub(super) struct Lines {
    bytes: Vec<u8>,
    /// Everything before this is known to hold no line end.
    searched: usize,
}

impl Lines {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        loop {
            let end = self.bytes.iter().skip(self.searched).position(|byte| *byte == b'\n');
            let Some(end) = end else {
                self.searched = self.bytes.len();
                return if self.searched > EVENT_BYTES_MAX { Err(too_long()) } else { Ok(None) };
            };
            let line: Vec<u8> = self.bytes.drain(..=self.searched + end).collect();
            self.searched = 0;
            if line.len() > EVENT_BYTES_MAX {
                return Err(too_long());
            }
            if !line.trim_ascii().is_empty() {
                return Ok(Some(line));
            }
        }
    }
}

fn too_long() -> ClientError {
    ClientError::AnswerTooLong { bytes_max: EVENT_BYTES_MAX }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(lines: &mut Lines) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| lines.next().unwrap()).collect()
    }

    #[test]
    fn lines_come_whole_however_the_bytes_are_cut() {
        let text = b"{\"a\":1}\n\n \n{\"b\":2}\n{\"c\"";
        for size in 1..text.len() {
            let mut lines = Lines::default();
            let mut seen = Vec::new();
            for piece in text.chunks(size) {
                lines.push(piece);
                seen.extend(all(&mut lines));
            }
            assert_eq!(seen, [b"{\"a\":1}\n".to_vec(), b"{\"b\":2}\n".to_vec()], "pieces of {size}");
        }
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut lines = Lines::default();
        lines.push(&vec![b'x'; EVENT_BYTES_MAX + 1]);
        assert!(matches!(lines.next(), Err(ClientError::AnswerTooLong { .. })));
    }
}
