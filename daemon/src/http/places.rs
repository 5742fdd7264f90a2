//! Places for large answers of the HTTP port.
//!
//! Guarantees: at most so many answers are in memory at a time, whoever reads them how slowly: an answer is given to its
//! connection piece by piece, and has its place until the last one is taken. Who finds no place within [`WAIT_MAX`] hears so
//! and comes again.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// For a place.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Bytes that a connection is given at a time.
const PIECE: usize = 64 << 10;

/// Places; clones share them.
#[derive(Clone)]
pub struct Places(Arc<Semaphore>);

/// One of them, held until it is dropped.
pub struct Place {
    _permit: OwnedSemaphorePermit,
}

impl Places {
    /// So many.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self(Arc::new(Semaphore::new(count)))
    }

    /// One of them; `None` when none was given back in time.
    pub async fn take(&self) -> Option<Place> {
        let taken = tokio::time::timeout(WAIT_MAX, self.0.clone().acquire_owned()).await;
        taken.ok()?.ok().map(|permit| Place { _permit: permit })
    }
}

/// An answer that keeps its place until it is gone.
pub fn body(bytes: impl Into<Bytes>, place: Place) -> Body {
    Body::new(Pieces { rest: bytes.into(), _place: place })
}

/// An answer on its way.
struct Pieces {
    rest: Bytes,
    _place: Place,
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let length = self.rest.len().min(PIECE);
        let piece = (length > 0).then(|| Ok(Frame::data(self.rest.split_to(length))));
        Poll::Ready(piece)
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

    #[tokio::test]
    async fn an_answer_has_its_place_until_its_last_piece_is_taken() {
        let places = Places::new(3);
        let text: Vec<u8> = (0..PIECE * 2 + 7).map(|at| at as u8).collect();
        let mut answers = Vec::new();
        for _ in 0..3 {
            answers.push(Pieces { rest: text.clone().into(), _place: places.take().await.unwrap() });
        }
        let is_full = || places.0.available_permits() == 0;
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
}
