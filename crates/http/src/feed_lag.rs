//! How far the streams of the change feed are behind: the metric is the largest lag of an open one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The lags of all open streams.
#[derive(Debug, Clone, Default)]
pub(crate) struct FeedLag(Arc<Mutex<Streams>>);

#[derive(Debug, Default)]
struct Streams {
    opened: u64,
    lag_seconds: BTreeMap<u64, i64>,
}

impl FeedLag {
    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a stream until it is dropped.
    pub(crate) fn stream(&self) -> StreamLag {
        let mut streams = self.streams();
        streams.opened += 1;
        let number = streams.opened;
        streams.lag_seconds.insert(number, 0);
        StreamLag { all: self.clone(), number }
    }

    /// Of the stream that is furthest behind; 0 without one.
    pub(crate) fn largest_seconds(&self) -> i64 {
        self.streams().lag_seconds.values().copied().max().unwrap_or(0)
    }
}

/// The lag of one stream.
#[derive(Debug)]
pub(crate) struct StreamLag {
    all: FeedLag,
    number: u64,
}

impl StreamLag {
    pub(crate) fn set(&self, seconds: i64) {
        self.all.streams().lag_seconds.insert(self.number, seconds);
    }
}

impl Drop for StreamLag {
    fn drop(&mut self) {
        self.all.streams().lag_seconds.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_lag_is_of_an_open_stream() {
        let lag = FeedLag::default();
        let (slow, fast) = (lag.stream(), lag.stream());
        slow.set(7);
        fast.set(1);
        assert_eq!(lag.largest_seconds(), 7);
        drop(slow);
        assert_eq!(lag.largest_seconds(), 1);
        drop(fast);
        assert_eq!(lag.largest_seconds(), 0);
    }
}
