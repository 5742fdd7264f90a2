//! `/metrics`: the page of figures, as the caller's scope shows them.
//!
//! Guarantees: at most [`SCRAPES_MAX`] pages are in memory at a time, whoever reads them how slowly: a page is given to its
//! connection piece by piece, and has its place until the last one is taken. Who finds no place within [`WAIT_MAX`] hears
//! so (503) and comes again.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Room, plain};
use crate::access::Caller;
use crate::metrics::text;

/// Pages that are read at a time. One of all jobs that are shown has some 6 MB.
const SCRAPES_MAX: usize = 16;
/// For a place among them.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Bytes that a connection is given at a time.
const PIECE: usize = 64 << 10;

/// The places of pages; clones share them.
#[derive(Clone)]
pub struct Places(Arc<Semaphore>);

impl Default for Places {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(SCRAPES_MAX)))
    }
}

/// The page.
pub async fn metrics(State(room): State<Room>, Extension(caller): Extension<Caller>) -> Response {
    let Ok(Ok(place)) = tokio::time::timeout(WAIT_MAX, room.places.0.clone().acquire_owned()).await else {
        return plain(StatusCode::SERVICE_UNAVAILABLE, format!("{SCRAPES_MAX} scrapes are under way; come again\n"));
    };
    let families = room.sources.gather(&caller.scope).await;
    let page = Page { rest: text::render(&families).into(), _place: place };
    ([(CONTENT_TYPE, text::CONTENT_TYPE), (CACHE_CONTROL, "no-store")], Body::new(page)).into_response()
}

/// A page on its way.
struct Page {
    rest: Bytes,
    _place: OwnedSemaphorePermit,
}

impl HttpBody for Page {
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
    async fn a_page_has_its_place_until_its_last_piece_is_taken() {
        let places = Places::default();
        let take = || places.0.clone().try_acquire_owned();
        let text: Vec<u8> = (0..PIECE * 2 + 7).map(|at| at as u8).collect();
        let mut pages: Vec<Page> =
            (0..SCRAPES_MAX).map(|_| Page { rest: text.clone().into(), _place: take().unwrap() }).collect();
        assert!(take().is_err(), "there are no more");
        let mut page = pages.pop().unwrap();
        assert_eq!(page.size_hint().exact(), Some(text.len() as u64));
        let mut read = Vec::new();
        for length in [PIECE, PIECE, 7] {
            assert!(take().is_err() && !page.is_end_stream());
            let piece = page.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(piece.len(), length);
            read.extend_from_slice(&piece);
        }
        assert!(page.is_end_stream() && page.frame().await.is_none() && read == text);
        drop(page);
        assert!(take().is_ok());
    }
}
