//! The job of the check: read many resources in a closed loop, each with retries.

use crate::schedule::Nanos;
use crate::target::Target;
use crate::wire::Response;
use crate::worker::{Job, Loss, Next};

/// A read without a response, or with status 429 or 5xx, is retried this often.
const REPEATS_MAX: u8 = 20;

/// Reads `count` resources; `path` names each, `take` receives status and body, or `None` after the last retry.
pub(crate) struct ReadBack<'a, P, T> {
    target: &'a Target,
    path: P,
    take: T,
    next: usize,
    count: usize,
}

impl<'a, P, T> ReadBack<'a, P, T>
where
    P: FnMut(usize, &mut Vec<u8>),
    T: FnMut(usize, Option<(u16, &[u8])>),
{
    pub(crate) fn new(target: &'a Target, count: usize, path: P, take: T) -> Self {
        Self { target, path, take, next: 0, count }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Read {
    index: usize,
    repeats: u8,
}

impl<P, T> ReadBack<'_, P, T>
where
    P: FnMut(usize, &mut Vec<u8>),
    T: FnMut(usize, Option<(u16, &[u8])>),
{
    fn again(&mut self, read: Read) -> Option<Read> {
        if read.repeats < REPEATS_MAX {
            return Some(Read { repeats: read.repeats + 1, ..read });
        }
        (self.take)(read.index, None);
        None
    }
}

impl<P, T> Job for ReadBack<'_, P, T>
where
    P: FnMut(usize, &mut Vec<u8>),
    T: FnMut(usize, Option<(u16, &[u8])>),
{
    type Ticket = Read;

    fn next(&mut self, _now: Nanos) -> Next<Read> {
        if self.next == self.count {
            return Next::End;
        }
        self.next += 1;
        Next::Begin(Read { index: self.next - 1, repeats: 0 })
    }

    fn write(&mut self, ticket: &Read, out: &mut Vec<u8>) {
        out.extend_from_slice(b"GET ");
        out.extend_from_slice(self.target.base.as_bytes());
        (self.path)(ticket.index, out);
        out.extend_from_slice(b" HTTP/1.1\r\n");
        out.extend_from_slice(self.target.headers.as_bytes());
        out.extend_from_slice(b"\r\n");
    }

    fn answered(&mut self, ticket: Read, response: &Response<'_>, _now: Nanos) -> Option<Read> {
        if response.status == 429 || response.status >= 500 {
            return self.again(ticket);
        }
        (self.take)(ticket.index, Some((response.status, response.body)));
        None
    }

    fn lost(&mut self, ticket: Read, _loss: Loss, _now: Nanos) -> Option<Read> {
        self.again(ticket)
    }
}
