//! Whose turn it is: classes of streams share by weight, the streams of a class take turns.
//!
//! Each class has a clock that goes on by the bytes it was given over its weight. The class whose clock is furthest
//! behind is next (start-time fair queueing: Goyal, Vin and Cheng, SIGCOMM 1996). The clock of one that had nothing to
//! send is set to the present: idle time is not saved up, and what one class leaves others get.

use std::collections::VecDeque;

use super::StreamId;

/// A class of streams: an index of [`super::Config::weights`].
pub type Class = usize;

/// A clock's units for a byte at weight 1; also the heaviest weight at which every byte counts.
const UNITS: u64 = 1 << 10;

#[derive(Debug)]
struct ClassQueue {
    weight: u64,
    streams: VecDeque<StreamId>,
    clock: u64,
}

#[derive(Debug)]
pub(super) struct FairQueue {
    classes: Vec<ClassQueue>,
    /// The clock of the class that was next.
    now: u64,
}

impl FairQueue {
    /// A class for each weight; one if there is none.
    pub fn new(weights: &[u16]) -> FairQueue {
        let queue =
            |weight| ClassQueue { weight: u64::from(weight).max(1), streams: VecDeque::new(), clock: 0 };
        let weights = if weights.is_empty() { &[1] } else { weights };
        FairQueue { classes: weights.iter().map(|weight| queue(*weight)).collect(), now: 0 }
    }

    /// Weight of a class.
    pub fn weight(&self, class: Class) -> u64 {
        self.classes.get(class).map_or(1, |queue| queue.weight)
    }

    /// A stream has something to send.
    pub fn push(&mut self, class: Class, stream: StreamId) {
        let now = self.now;
        let Some(queue) = self.classes.get_mut(class) else { return };
        if queue.streams.is_empty() {
            queue.clock = queue.clock.max(now);
        }
        queue.streams.push_back(stream);
    }

    /// The stream whose turn it is.
    pub fn pop(&mut self) -> Option<StreamId> {
        let waiting = self.classes.iter_mut().filter(|queue| !queue.streams.is_empty());
        let queue = waiting.min_by_key(|queue| queue.clock)?;
        self.now = queue.clock;
        queue.streams.pop_front()
    }

    /// A class was given `bytes`.
    pub fn charge(&mut self, class: Class, bytes: u64) {
        if let Some(queue) = self.classes.get_mut(class) {
            queue.clock = queue.clock.saturating_add(bytes.saturating_mul(UNITS) / queue.weight);
        }
    }
}
