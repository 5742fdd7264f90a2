//! Ends a daemon that a command started, once it had no connection for long enough.
//!
//! Guarantees: a streaming agent, an open page and a running request are connections and keep the daemon running, even
//! if they begin and end between two checks.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::listen::Connections;
use crate::store::Scope;
use crate::streams::Streams;

/// The longest time between two checks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The conditions under which the daemon ends by itself.
#[derive(Clone, Debug)]
pub struct Idle {
    /// It ends after this time without a connection.
    pub after: Duration,
    /// Set when a newer version must replace the daemon, which then ends once no session streams.
    pub retiring: watch::Receiver<bool>,
}

/// Waits until the daemon must end.
pub async fn wait(mut idle: Idle, connections: [Arc<Connections>; 2], streams: Streams) {
    let step = LOOK_EVERY.min(idle.after / 4).max(Duration::from_millis(20));
    let (mut quiet_since, mut known) = (Instant::now(), 0);
    loop {
        let wished = async {
            // An error means that the sender was dropped, so only the time decides.
            if *idle.retiring.borrow() || idle.retiring.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        // It does not matter why the wait ended.
        let _ = tokio::time::timeout(step, wished).await;
        if *idle.retiring.borrow() && streams.count(&Scope::All) == 0 {
            tracing::info!("a newer version takes over, and no session streams");
            return;
        }
        let taken = connections.iter().map(|connections| connections.taken()).sum();
        if taken != known || connections.iter().any(|connections| connections.count() > 0) {
            (quiet_since, known) = (Instant::now(), taken);
        }
        if quiet_since.elapsed() >= idle.after {
            tracing::info!(seconds = idle.after.as_secs_f64(), "no connection was open for this long");
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use memctl_proto::v1::HolderSearch;

    use super::*;
    use crate::listen::ConnectionLimits;
    use crate::store::Tenant;

    fn none() -> [Arc<Connections>; 2] {
        [(); 2].map(|()| Connections::new(ConnectionLimits { total: 4, per_peer: 4 }))
    }

    #[tokio::test]
    async fn it_ends_when_no_one_came_for_long_enough() {
        let (_retire, retiring) = watch::channel(false);
        let (began, after) = (Instant::now(), Duration::from_millis(100));
        wait(Idle { after, retiring }, none(), Streams::default()).await;
        assert!(began.elapsed() >= after);
    }

    #[tokio::test]
    async fn one_that_retires_ends_with_its_last_session() {
        let (retire, retiring) = watch::channel(true);
        let streams = Streams::default();
        let session = memctl_model::SessionId(*b"0123456789abcdef");
        let (claim, _asked) = streams.claim(session, &Tenant::default(), HolderSearch::NotPython);
        let waiting = wait(Idle { after: Duration::from_secs(600), retiring }, none(), streams);
        let mut waiting = std::pin::pin!(waiting);
        let looked = tokio::time::timeout(LOOK_EVERY * 3, &mut waiting).await;
        assert!(looked.is_err(), "a session streams");
        drop(claim);
        waiting.await;
        drop(retire);
    }
}
