//! Permits for responses. They limit how many responses are in memory at a time, in total and per tenant.
//!
//! Guarantees: a response holds its permit from before it is computed until its last byte is taken. One tenant has at
//! most half of the permits, so that others get responses. A caller that gets no permit within the wait is refused and
//! can retry. If a peer takes a response more slowly than [`SLOWEST`], the response and its permit are dropped.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// The most responses in memory at a time. Each has a budget of a few megabytes, so they take a few hundred megabytes
/// together with the data that they are computed from.
pub const ANSWERS_MAX: usize = 8;
/// Bytes passed to a connection at a time.
const PIECE: usize = 64 << 10;
/// A response that is taken more slowly than this many bytes a second is dropped after [`GRACE`].
const SLOWEST: usize = 64 << 10;
/// Every response may take this long, regardless of its size.
const GRACE: Duration = Duration::from_secs(15);

/// Permits; clones share them.
#[derive(Clone)]
pub struct Permits {
    all: Arc<Semaphore>,
    tenants: Arc<Mutex<HashMap<String, Weak<Semaphore>>>>,
    of_a_tenant: usize,
    wait: Duration,
}

/// A permit, held until dropped.
pub struct Permit {
    _in_all: OwnedSemaphorePermit,
    _of_tenant: OwnedSemaphorePermit,
}

impl Permits {
    /// Creates `count` permits. A tenant can have half of them, and a caller waits at most `wait` for one.
    #[must_use]
    pub fn new(count: usize, wait: Duration) -> Self {
        Self { of_a_tenant: count.div_ceil(2), ..Self::shared(count, wait) }
    }

    /// Creates `count` permits without a limit per tenant.
    #[must_use]
    pub fn shared(count: usize, wait: Duration) -> Self {
        Self { all: Arc::new(Semaphore::new(count)), tenants: Arc::default(), of_a_tenant: count, wait }
    }

    /// Takes a permit for a tenant; `None` if none was released in time.
    pub async fn take(&self, tenant: &str) -> Option<Permit> {
        let tenant = self.tenant(tenant);
        let taken = async {
            // The tenant's permit is taken first, so that a caller that waits for its tenant's share holds no shared
            // permit.
            let of_tenant = tenant.acquire_owned().await.ok()?;
            let in_all = self.all.clone().acquire_owned().await.ok()?;
            Some(Permit { _in_all: in_all, _of_tenant: of_tenant })
        };
        tokio::time::timeout(self.wait, taken).await.ok()?
    }

    /// How many permits one tenant may have.
    #[must_use]
    pub fn of_a_tenant(&self) -> usize {
        self.of_a_tenant
    }

    fn tenant(&self, name: &str) -> Arc<Semaphore> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = tenants.get(name).and_then(Weak::upgrade) {
            return known;
        }
        // Unused entries are removed, because the names of tenants change.
        tenants.retain(|_, permits| permits.strong_count() > 0);
        let permits = Arc::new(Semaphore::new(self.of_a_tenant));
        tenants.insert(name.to_owned(), Arc::downgrade(&permits));
        permits
    }
}

/// The time by which a response of this size must have been taken.
#[must_use]
pub fn deadline(bytes: usize) -> Instant {
    Instant::now() + GRACE + Duration::from_secs((bytes / SLOWEST) as u64)
}

/// A response body that keeps its permit until it is dropped.
pub fn body(bytes: impl Into<Bytes>, permit: Option<Permit>) -> Body {
    let rest = bytes.into();
    Body::new(Pieces { deadline: deadline(rest.len()), rest, permit })
}

/// A response that is being sent.
struct Pieces {
    rest: Bytes,
    deadline: Instant,
    permit: Option<Permit>,
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    /// Called when the peer has room for more.
    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        if Instant::now() >= self.deadline {
            self.rest = Bytes::new();
            self.permit = None;
            return Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::TimedOut, "the answer was taken too slowly"))));
        }
        let length = self.rest.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    const NO_WAIT: Duration = Duration::from_millis(1);

    #[tokio::test]
    async fn an_answer_has_its_slot_until_its_last_piece_is_taken() {
        let permits = Permits::shared(3, NO_WAIT);
        let text: Vec<u8> = (0..PIECE * 2 + 7).map(|at| at as u8).collect();
        let mut answers = Vec::new();
        for _ in 0..3 {
            let (rest, permit) = (Bytes::from(text.clone()), permits.take("a").await);
            answers.push(Pieces { deadline: deadline(rest.len()), rest, permit });
        }
        let is_full = || permits.all.available_permits() == 0;
        assert!(is_full(), "there are no more");
        let mut answer = answers.pop().unwrap();
        assert_eq!(answer.size_hint().exact(), Some(text.len() as u64));
        let mut read = Vec::new();
        for length in [PIECE, PIECE, 7] {
            assert!(is_full() && !answer.is_end_stream());
            let piece = answer.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(piece.len(), length);
            read.extend_from_slice(&piece);
        }
        assert!(answer.is_end_stream() && answer.frame().await.is_none() && read == text);
        drop(answer);
        assert!(!is_full());
    }

    #[tokio::test]
    async fn one_tenant_leaves_half_of_the_slots_to_others() {
        let permits = Permits::new(4, NO_WAIT);
        let held = [permits.take("a").await.unwrap(), permits.take("a").await.unwrap()];
        assert!(permits.take("a").await.is_none(), "it has its half");
        let other = permits.take("b").await;
        assert!(other.is_some(), "another tenant does not wait");
        drop(held);
        assert!(permits.take("a").await.is_some(), "they were released");
    }

    #[tokio::test]
    async fn an_answer_that_is_taken_too_slowly_gives_its_slot_back() {
        let permits = Permits::shared(1, NO_WAIT);
        let permit = permits.take("a").await;
        let mut answer = Pieces { rest: vec![0_u8; 10 * PIECE].into(), deadline: deadline(10 * PIECE), permit };
        answer.frame().await.unwrap().unwrap();
        answer.deadline = Instant::now();
        assert!(answer.frame().await.unwrap().is_err());
        assert!(answer.is_end_stream() && permits.take("a").await.is_some());
    }
}
