//! Delivers what earlier runs left in the spool, and sessions of this run that ended while the daemon could not be
//! reached.
//!
//! Guarantees: sessions are delivered one after the other, each from where the daemon's copy ends. Delivery stops at
//! once when the host closes, and the rest stays in the spool.
//! Refuses: spools that a living process owns.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use memctl_model::Backoff;
use memctl_model::SessionInfo;
use tokio::sync::mpsc;

use super::{Shared, wait};
use crate::agent::SpoolConfig;
use crate::uplink::spool::Spool;
use crate::uplink::window::Window;
use crate::uplink::{self, Daemon, Link};

/// Interval between checks of the folder.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Interval between checks of a delivery's progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(50);
/// A session without an acknowledgement for this long does not delay the next one.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Delivers spools until the host closes.
pub(super) fn run(shared: &Shared) {
    let Some(SpoolConfig { folder, .. }) = &shared.config.spool else { return };
    let closing = || wait::ready([shared.closing.fd()], Some(Duration::ZERO)) == [true];
    loop {
        deliver_spool(folder, &shared.config.daemon, shared.config.backoff, &closing);
        if let [true] = wait::ready([shared.closing.fd()], Some(LOOK_EVERY)) {
            return;
        }
    }
}

/// Delivers the sessions in a spool folder that no living process owns, and returns those that were stored whole. Ends
/// when all is delivered, there is no progress, or `enough` returns true, which is called 20 times a second. Blocks.
pub fn deliver_spool(folder: &Path, daemon: &Daemon, backoff: Backoff, enough: &dyn Fn() -> bool) -> Vec<SessionInfo> {
    deliver_all(Spool::orphans(folder), daemon, backoff, enough)
}

fn deliver_all(spools: Vec<Spool>, daemon: &Daemon, backoff: Backoff, enough: &dyn Fn() -> bool) -> Vec<SessionInfo> {
    let mut stored = Vec::new();
    if spools.is_empty() {
        return stored;
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::warn!(%error, "what earlier runs left in the spool stays there");
            return stored;
        }
    };
    for spool in spools {
        stored.extend(runtime.block_on(deliver(spool, daemon, backoff, enough)));
        if enough() {
            break;
        }
    }
    // A pending name resolution must not delay the end.
    runtime.shutdown_background();
    stored
}

/// Delivers one session, and returns it if the daemon has acknowledged all of it.
async fn deliver(spool: Spool, daemon: &Daemon, backoff: Backoff, enough: &dyn Fn() -> bool) -> Option<SessionInfo> {
    let (session, secret) = (spool.session().clone(), spool.secret());
    let window = Arc::new(Window::recovered(spool));
    tracing::info!(session = %session.id, bytes = window.counts().waiting_bytes, "delivering what an earlier run left in the spool");
    let (_stop, stopped) = mpsc::channel(1);
    tokio::select! {
        ended = uplink::run(daemon.clone(), (session.clone(), secret), Link::of_a_spool(window.clone()), stopped, backoff) => {
            tracing::warn!(session = %session.id, ?ended, "a session in the spool cannot be delivered and stays there");
        }
        () = over(&window, enough) => {}
    }
    window.is_drained().then_some(session)
}

/// Waits for the end of a delivery: the last acknowledgement, no progress, or `enough`.
async fn over(window: &Window, enough: &dyn Fn() -> bool) {
    let (mut last, mut since) = (0, tokio::time::Instant::now());
    while !window.is_drained() && !enough() && since.elapsed() < SILENCE_MAX {
        let now = window.counts().acked_seq;
        if now != last {
            (last, since) = (now, tokio::time::Instant::now());
        }
        tokio::time::sleep(PROGRESS_EVERY).await;
    }
}

/// Bytes of the sessions in a spool folder that no living process owns.
#[must_use]
pub fn spooled_bytes(folder: &Path) -> u64 {
    let Ok(sessions) = std::fs::read_dir(folder) else { return 0 };
    sessions
        .flatten()
        .filter(|session| is_left(&session.path()))
        .filter_map(|session| std::fs::read_dir(session.path()).ok())
        .flat_map(Iterator::flatten)
        .filter(|file| file.path().extension().is_some_and(|extension| extension == "spool"))
        .filter_map(|file| file.metadata().ok())
        .map(|metadata| metadata.len())
        .sum()
}

/// Sessions that living processes write into a spool folder because no daemon takes them. Their data is nowhere else.
#[must_use]
pub fn living_spools(folder: &Path) -> Vec<SessionInfo> {
    Spool::living(folder)
}

/// A session with undelivered data on this disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The session.
    pub session: SessionInfo,
    /// Bytes that wait for delivery.
    pub bytes: u64,
    /// Whether a living process records it.
    pub is_recorded: bool,
    folder: PathBuf,
}

impl Waiting {
    /// Delivers the session. Ends when all is delivered, there is no progress, or `enough` returns true, which is
    /// called 20 times a second. Blocks.
    pub fn deliver(&self, daemon: &Daemon, backoff: Backoff, enough: &dyn Fn() -> bool) {
        drop(deliver_all(Spool::orphan(&self.folder).into_iter().collect(), daemon, backoff, enough));
    }

    /// Removes the session's data.
    ///
    /// # Errors
    /// A living process records it, or the disk refuses.
    pub fn discard(&self) -> io::Result<()> {
        Spool::discard(&self.folder)
    }
}

/// The undelivered sessions in a spool folder, ordered by start.
#[must_use]
pub fn waiting(folder: &Path) -> Vec<Waiting> {
    let known = |(folder, session, bytes, is_recorded)| Waiting { session, bytes, is_recorded, folder };
    let mut waiting: Vec<Waiting> = Spool::sessions(folder).into_iter().map(known).collect();
    waiting.sort_by_key(|waiting| (waiting.session.started_ns, waiting.session.rank));
    waiting
}

/// Whether no process holds the lock of a session's folder. (The lock is taken and released at once. A process that
/// wants it meanwhile retries.)
fn is_left(session: &Path) -> bool {
    std::fs::File::open(session.join("lock")).is_ok_and(|lock| lock.try_lock().is_ok())
}
