//! How a stream comes to be: opened here and answered there, or the other way round.

use super::{Event, Phase, Stream, Streams};
use crate::StreamNote;
use crate::stream::fair_queue::Class;
use crate::stream::receive::ReceiveHalf;
use crate::stream::send::SendHalf;
use crate::stream::{End, OpenError, StreamId, StreamViolation};

impl Streams {
    /// Opens a stream of the first class to something that the peer knows by this name.
    pub fn open(&mut self, service: &str) -> Result<StreamId, OpenError> {
        self.open_in(0, service)
    }

    /// Opens a stream that shares the links with others by the weight of its class.
    pub fn open_in(&mut self, class: Class, service: &str) -> Result<StreamId, OpenError> {
        if self.over {
            return Err(OpenError::Over);
        }
        let too_many = OpenError::TooMany { max: self.config.streams_max };
        if self.streams.len() >= self.config.streams_max {
            return Err(too_many);
        }
        let stream = self.free_number().ok_or(too_many)?;
        self.insert(stream, class, Phase::Opening);
        let window = self.config.window_bytes;
        self.notes.push_back((stream, StreamNote::Open { service: service.to_owned(), window }));
        Ok(stream)
    }

    /// A number of this end that is free, later ones first, so that a number rests before it is given again.
    fn free_number(&mut self) -> Option<StreamId> {
        for _ in 0..=StreamId::MAX / 2 {
            let number = self.next_number?;
            self.next_number = match self.config.never_reuse_numbers {
                true => number.checked_add(2),
                false => Some(number.wrapping_add(2)),
            };
            if !self.streams.contains_key(&number) {
                return Some(number);
            }
        }
        None
    }

    fn insert(&mut self, stream: StreamId, class: Class, phase: Phase) {
        let window = self.config.window_bytes;
        let made = Stream {
            phase,
            class,
            send: SendHalf::new(window),
            receive: ReceiveHalf::new(window),
            peer_window: 0,
            queued: false,
            sent_closed: false,
            peer_closed: false,
        };
        self.streams.insert(stream, made);
    }

    /// The service of [`Event::OpenRequested`] is there, and rings for the stream.
    pub fn accept(&mut self, stream: StreamId) {
        if let Some(one) = self.streams.get_mut(&stream).filter(|one| one.phase == Phase::OpenRequested) {
            one.phase = Phase::Open;
            self.notes.push_back((stream, StreamNote::Opened { window: self.config.window_bytes }));
            self.look_at(stream);
        }
    }

    /// Refuses [`Event::OpenRequested`]; `reason` is cut to what the protocol allows.
    pub fn refuse(&mut self, stream: StreamId, reason: &str) {
        if self.streams.get(&stream).is_some_and(|one| one.phase == Phase::OpenRequested) {
            self.streams.remove(&stream);
            let mut reason = reason.to_owned();
            let cut =
                (0..=linerate_wire::message::REASON_BYTES_MAX).rev().find(|at| reason.is_char_boundary(*at));
            reason.truncate(cut.unwrap_or(0));
            self.notes.push_back((stream, StreamNote::Refused { reason }));
        }
    }

    /// The peer opens one. What goes back on it is of the first class.
    pub(super) fn open_requested(
        &mut self,
        stream: StreamId,
        service: String,
        window: u64,
    ) -> Result<(), StreamViolation> {
        let theirs = (stream % 2 == 1) == (self.end == End::Source);
        if !theirs || self.streams.contains_key(&stream) {
            return Err(StreamViolation::NumberNotAllowed(stream));
        }
        let full = self.streams.len() >= self.config.streams_max;
        self.insert(stream, 0, Phase::OpenRequested);
        if let Some(one) = self.streams.get_mut(&stream) {
            one.peer_window = window;
            one.send.credit(window);
        }
        if full {
            self.refuse(stream, &OpenError::TooMany { max: self.config.streams_max }.to_string());
        } else {
            self.events.push_back(Event::OpenRequested { stream, service });
        }
        Ok(())
    }
}
