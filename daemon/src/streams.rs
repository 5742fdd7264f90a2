//! The sessions that are streaming, and the line for requests to each. A session that reconnects replaces its older
//! stream, which then ends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use memctl_model::SessionId;
use tokio::sync::watch;

use crate::server_requests::{self, AskReceiver, Line, Readiness};
use crate::store::{Scope, SessionKey, Tenant};

#[derive(Default)]
struct Inner {
    next: u64,
    streams: HashMap<SessionId, Stream>,
}

struct Stream {
    number: u64,
    tenant: Tenant,
    key: Option<SessionKey>,
    line: Line,
    end: watch::Sender<bool>,
    /// Closed after the stream has released its place.
    gone: watch::Receiver<()>,
}

/// The streams of a daemon.
#[derive(Clone, Default)]
pub struct Streams {
    inner: Arc<Mutex<Inner>>,
}

/// A stream's place, which is released on drop.
pub struct Claim {
    streams: Streams,
    session: SessionId,
    number: u64,
    ended: watch::Receiver<bool>,
    older: Option<watch::Receiver<()>>,
    _here: watch::Sender<()>,
}

impl Streams {
    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the session's place (by the id under which it is stored) and signals an older stream of the session to end.
    /// The caller must have proved that it owns the session. The second part yields requests to the session.
    #[must_use]
    pub fn claim(&self, session: SessionId, tenant: &Tenant, readiness: impl Into<Readiness>) -> (Claim, AskReceiver) {
        let mut inner = self.lock();
        inner.next += 1;
        let number = inner.next;
        let (end, ended) = watch::channel(false);
        let (here, gone) = watch::channel(());
        // The numbers start higher than those of older streams, so that an answer to an older stream's request is not
        // accepted.
        let (line, asked) = server_requests::line(readiness.into(), number << 32);
        let stream = Stream { number, tenant: tenant.clone(), key: None, line, end, gone };
        let older = inner.streams.insert(session, stream).map(|old| {
            old.end.send_replace(true);
            old.gone
        });
        (Claim { streams: self.clone(), session, number, ended, older, _here: here }, asked)
    }

    /// Whether a stored session is streaming.
    #[must_use]
    pub fn is_streaming(&self, key: SessionKey) -> bool {
        self.lock().streams.values().any(|stream| stream.key == Some(key))
    }

    /// The line to a stored session while it streams.
    #[must_use]
    pub fn line(&self, key: SessionKey) -> Option<Line> {
        self.lock().streams.values().find(|stream| stream.key == Some(key)).map(|stream| stream.line.clone())
    }

    /// The number of sessions of a scope that are streaming.
    #[must_use]
    pub fn count(&self, scope: &Scope) -> u64 {
        self.lock().streams.values().filter(|stream| scope.admits(&stream.tenant)).count() as u64
    }

    /// Signals every stream to end.
    pub fn end_all(&self) {
        for stream in self.lock().streams.values() {
            stream.end.send_replace(true);
        }
    }
}

impl Claim {
    /// Waits until the older stream has committed the items that it took, and has ended. Before that, it is unknown
    /// which items are durable.
    pub async fn alone(&mut self) {
        if let Some(mut older) = self.older.take() {
            // This fails once the older claim is dropped; nothing is ever sent.
            while older.changed().await.is_ok() {}
        }
    }

    /// Records the stored session that this stream belongs to.
    pub fn name(&self, key: SessionKey) {
        if let Some(stream) = self.streams.lock().streams.get_mut(&self.session)
            && stream.number == self.number
        {
            stream.key = Some(key);
        }
    }

    /// Waits until the stream must end.
    pub async fn ended(&mut self) {
        // An error means that the place was released, which is also an end.
        let _ = self.ended.wait_for(|ended| *ended).await;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut inner = self.streams.lock();
        if inner.streams.get(&self.session).is_some_and(|stream| stream.number == self.number) {
            inner.streams.remove(&self.session);
        }
    }
}

#[cfg(test)]
mod tests {
    use memctl_proto::v1::HolderSearch;

    use super::*;

    #[tokio::test]
    async fn a_second_stream_takes_over() {
        let streams = Streams::default();
        let session = SessionId([1; 16]);
        let tenant = Tenant::default();
        let (mut first, _asked) = streams.claim(session, &tenant, HolderSearch::Ready);
        first.name(7);
        assert!(streams.is_streaming(7));
        let (mut second, _asked) = streams.claim(session, &tenant, HolderSearch::Ready);
        first.ended().await;
        second.name(7);
        assert!(
            tokio::time::timeout(std::time::Duration::from_millis(1), second.alone()).await.is_err(),
            "the older stream is not gone yet"
        );
        drop(first);
        assert!(streams.is_streaming(7), "the older stream does not take the newer one's place away");
        assert!(streams.line(7).is_some() && streams.line(8).is_none());
        drop(second);
        assert!(streams.line(7).is_none());
        assert_eq!(streams.count(&Scope::All), 0);
    }
}
