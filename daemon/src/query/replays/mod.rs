//! Replays recordings under other allocator settings (`settings`, for the page and advice) and at other sizes
//! (`sizes`). `query/what_if.rs` and `query/fit.rs` replay for `memctl what-if` and `memctl fit`.
//!
//! Guarantees: the whole daemon runs at most two replays at a time. One has a limit on its events; it is for the page
//! and advice. The other has no limit; it is for the two commands. It may take minutes, and the page does not wait for
//! it. Each replay has a thread of its own.
//!
//! If another replay with a limit is running, a request waits briefly and then gets an error. If the same replay is
//! running, the request waits for its result. Results of replays with a limit are cached by session and by the number
//! of stored events. So a repeated request costs nothing, and a job that has grown is replayed again. Such a replay
//! continues after its client disconnects, because the next request would start it again. A replay for a command ends
//! with its request.
//!
//! Refuses: recordings that lack events or are too large, and more than one process at a time.

mod cache;
mod settings;
mod sizes;

use std::sync::Arc;
use std::time::Duration;

use memctl_answers::naming::{command, process_flag};
use memctl_answers::{Completeness, Job};
use memctl_model::SessionId;
use memctl_proto::v1;
use memctl_proto::v1::export_part::Body;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{answer, export};
use crate::job_data::error::ReadError;
use crate::job_data::job::find;
use crate::store::Store;
use crate::streams::Streams;
use cache::Cache;
pub use settings::Wanted;
pub(super) use settings::replayed;
pub use sizes::SizesQuery;
pub(super) use sizes::{fitted, recorded};

/// How long to wait for another replay to end.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// How long to wait for the result of the same replay.
const SAME_WAIT_MAX: Duration = Duration::from_secs(60);

/// The replays of the daemon; see the module.
pub(super) struct Replays {
    /// The permit for a replay with a limit on its events, and how long to wait for it.
    short: Arc<Semaphore>,
    wait: Duration,
    /// The permit for a replay without a limit.
    long: Arc<Semaphore>,
    settings: Cache<settings::Key, settings::SettingsResult>,
    sizes: Cache<sizes::Key, memctl_answers::fit::Fit>,
}

/// A replay with a limit on its events, whose result is cached.
struct Cached<K, V, S, R> {
    /// The cache for results of its kind.
    cache: fn(&Replays) -> &Cache<K, V>,
    key: K,
    /// Whether the result of another replay can be used.
    is_same: S,
    replay: R,
}

/// The device whose events are replayed.
struct One {
    job: Job,
    completeness: Completeness,
    session: SessionId,
    rank: u32,
    process: String,
    device: u8,
    events: u64,
    /// The selection to export for the replay.
    part: v1::Selection,
    /// Ranks of the job that the request does not cover.
    left_out: usize,
}

impl Replays {
    pub(super) fn new() -> Self {
        Self::waiting(WAIT_MAX)
    }

    fn waiting(wait: Duration) -> Self {
        let place = || Arc::new(Semaphore::new(1));
        Self { short: place(), wait, long: place(), settings: Cache::new(), sizes: Cache::new() }
    }

    /// The permit for a replay without a limit on its events. The wait for it has no limit either.
    pub(super) async fn long(&self) -> Result<OwnedSemaphorePermit, ReadError> {
        self.long.clone().acquire_owned().await.map_err(|_| busy())
    }

    /// A cached result if one can be used, otherwise the result of a new replay.
    async fn done<K, V>(
        self: Arc<Self>,
        wanted: Cached<K, V, impl Fn(&K) -> bool, impl Future<Output = Result<V, ReadError>> + Send + 'static>,
    ) -> Result<V, ReadError>
    where
        K: Clone + PartialEq + Send + Sync + 'static,
        V: Clone + Send + 'static,
    {
        let Cached { cache, key, is_same, replay } = wanted;
        if let Some(done) = cache(&self).known(&is_same) {
            return Ok(done);
        }
        let wait = if cache(&self).is_running(&is_same) { SAME_WAIT_MAX } else { self.wait };
        let place = tokio::time::timeout(wait, self.short.clone().acquire_owned()).await;
        let place = place.map_err(|_| busy())?.map_err(|_| busy())?;
        // The previous holder of the permit may have computed the same result.
        if let Some(done) = cache(&self).known(&is_same) {
            return Ok(done);
        }
        cache(&self).runs(Some(key.clone()));
        // The replay runs in a task of its own, because the client may disconnect. The permit is released when the work
        // has ended.
        let replayed = tokio::spawn(async move {
            let done = replay.await;
            if let Ok(done) = &done {
                cache(&self).keep(key, done.clone());
            }
            cache(&self).runs(None);
            drop(place);
            done
        });
        replayed.await.map_err(|error| ReadError::Fault(crate::supervise::words(error)))?
    }
}

impl One {
    /// The first device of the selected process, if it can be replayed.
    async fn find(store: &dyn Store, streams: &Streams, selection: &v1::Selection) -> Result<Self, ReadError> {
        let found = find(store, selection).await?;
        let [session] = found.sessions.as_slice() else {
            return Err(ReadError::Invalid(
                "a replay is of one process: give rank=N, and process=NAME if the rank has several".into(),
            ));
        };
        let rank = session.info.rank;
        let Some(row) = found.devices_of(session.key).first() else {
            return Err(ReadError::Invalid(format!("nothing is stored of a device of rank {rank}")));
        };
        let (job, process, device) =
            (answer::found_job(&found, streams), found.process_name(session), row.info.index.0);
        let part = v1::Selection {
            job: job.id.clone(),
            attempt: Some(job.attempt),
            ranks: vec![rank],
            processes: vec![process.clone()],
            devices: vec![u32::from(device)],
            launcher: None,
            ..selection.clone()
        };
        Ok(Self {
            job,
            completeness: found.completeness(streams, store).into(),
            session: session.info.id,
            rank,
            process,
            device,
            part,
            events: row.events,
            left_out: found.others.len(),
        })
    }

    /// Whether the whole recording is selected, rather than a time range or some epochs.
    fn is_whole(&self) -> bool {
        let v1::Selection { first_epoch, last_epoch, since_ns, until_ns, .. } = self.part;
        first_epoch.or(last_epoch).is_none() && since_ns.or(until_ns).is_none()
    }

    /// The command that computes the same result.
    fn command(&self, verb: &str, flags: &str) -> String {
        command(verb, &self.job, &process_flag(&self.process, self.rank), flags)
    }
}

/// Passes all parts of an export through a replay, on a thread of its own.
async fn passed<T: Send + 'static>(
    store: &Arc<dyn Store>,
    selection: &v1::Selection,
    pass: impl FnOnce(&mut dyn Iterator<Item = Result<Body, ReadError>>) -> Result<T, ReadError> + Send + 'static,
) -> Result<T, ReadError> {
    let request = v1::ExportRequest { selection: Some(selection.clone()), ..Default::default() };
    let mut parts = export::export(store.clone(), request).await?;
    // Without threads, the parts are complete before the replay begins. They share their bytes with the store.
    #[cfg(target_family = "wasm")]
    let mut parts = {
        let mut all = std::collections::VecDeque::new();
        while let Some(part) = parts.recv().await {
            all.push_back(part);
        }
        all
    };
    working(move |wanted| {
        #[cfg(not(target_family = "wasm"))]
        let parts = std::iter::from_fn(move || parts.blocking_recv());
        #[cfg(target_family = "wasm")]
        let parts = std::iter::from_fn(move || parts.pop_front());
        let mut bodies = parts.filter_map(|part| match part {
            _ if !wanted() => Some(Err(ReadError::Fault("the client disconnected".to_owned()))),
            Ok(part) => part.body.map(Ok),
            Err(status) => Some(Err(ReadError::Export(status))),
        });
        pass(&mut bodies)
    })
    .await
}

/// Runs work on a thread of its own. The work gets a function that returns whether the request still waits for the
/// result. WebAssembly has no threads, so the request itself does the work there.
pub(super) async fn working<T: Send + 'static>(
    work: impl FnOnce(&dyn Fn() -> bool) -> Result<T, ReadError> + Send + 'static,
) -> Result<T, ReadError> {
    // This is dropped together with the request.
    let asker = Arc::new(());
    let waits = Arc::downgrade(&asker);
    #[cfg(target_family = "wasm")]
    return work(&|| waits.strong_count() > 0);
    #[cfg(not(target_family = "wasm"))]
    {
        let working = tokio::task::spawn_blocking(move || work(&|| waits.strong_count() > 0));
        working.await.map_err(|error| ReadError::Fault(crate::supervise::words(error)))?
    }
}

fn busy() -> ReadError {
    ReadError::Busy("another replay is running; ask again".to_owned())
}

/// The stored data cannot be replayed.
fn fault(error: impl std::error::Error) -> ReadError {
    ReadError::Fault(error.to_string())
}

fn too_long(most: u64, command: &str) -> String {
    format!("it has more than {most} events; `{command}` replays them")
}

/// Whether all events of a device can be replayed.
pub(super) fn may_be_replayed(of: &Completeness, events: u64) -> Result<(), ReadError> {
    if events > 0 && of.events_expired > 0 {
        let why = "retention removed its first events, so its requests cannot be replayed";
        return Err(ReadError::NotNow(why.to_owned()));
    }
    lacks_events(of, events)
}

/// Checks that the stored events of a device can be replayed, because none are missing between them.
fn lacks_events(of: &Completeness, events: u64) -> Result<(), ReadError> {
    let why = match of {
        _ if events == 0 => "no allocator events are stored, only counters",
        Completeness { events_dropped, gaps, .. } if *events_dropped > 0 || *gaps > 0 => {
            "events are missing in the recording, so its requests cannot be replayed"
        }
        _ => return Ok(()),
    };
    Err(ReadError::NotNow(why.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_replayed_is_refused_before_anything_is_read() {
        let whole = Completeness {
            exact: true,
            events_stored: 7,
            events_dropped: 0,
            events_expired: 0,
            gaps: 0,
            items_damaged: 0,
        };
        let said = |of, events| may_be_replayed(&of, events).map_err(|error| error.to_string());
        assert_eq!(said(whole, u64::MAX), Ok(()));
        assert!(too_long(4, "memctl what-if --job j").contains("`memctl what-if --job j` replays them"));
        assert!(said(whole, 0).unwrap_err().contains("only counters"));
        assert!(said(Completeness { gaps: 1, ..whole }, 7).unwrap_err().contains("missing"));
        assert!(said(Completeness { events_expired: 1, ..whole }, 7).unwrap_err().contains("retention"));
    }

    const NO_WAIT: Duration = Duration::from_millis(1);

    fn key(size: u64) -> sizes::Key {
        (SessionId([0; 16]), 7, 0, size, None)
    }

    /// A replay whose answer is for this size.
    async fn replayed(
        replays: &Arc<Replays>,
        size: u64,
        first: impl Future<Output = ()> + Send + 'static,
    ) -> Result<Option<u64>, ReadError> {
        let replay = async move {
            first.await;
            Ok(memctl_answers::fit::Fit::new(Vec::new(), Some(size)))
        };
        let is_same = move |known: &sizes::Key| *known == key(size);
        let wanted = Cached { cache: |replays| &replays.sizes, key: key(size), is_same, replay };
        replays.clone().done(wanted).await.map(|answer| answer.device_memory_bytes)
    }

    #[tokio::test]
    async fn a_replay_that_finds_another_one_running_is_refused_but_a_long_one_does_not_matter() {
        let replays = Arc::new(Replays::waiting(NO_WAIT));
        let _long = replays.long().await.unwrap();
        let done = async || replayed(&replays, 4, async {}).await;
        let other = replays.short.clone().acquire_owned().await.unwrap();
        let refused = done().await.unwrap_err();
        assert!(matches!(refused, ReadError::Busy(_)), "{refused}");
        assert!(refused.to_string().contains("another replay is running"), "{refused}");
        drop(other);
        assert_eq!(done().await.unwrap(), Some(4));
        let _other = replays.short.clone().acquire_owned().await.unwrap();
        assert_eq!(done().await.unwrap(), Some(4), "it is kept");
        assert!(replayed(&replays, 5, async {}).await.is_err(), "this one is not");
    }

    #[tokio::test]
    async fn a_replay_that_finds_the_same_one_running_waits_for_its_result() {
        let replays = Arc::new(Replays::waiting(NO_WAIT));
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let (begin, begun) = tokio::sync::oneshot::channel::<()>();
        let first = tokio::spawn({
            let replays = replays.clone();
            async move {
                let until = async {
                    begin.send(()).unwrap();
                    ended.await.unwrap();
                };
                replayed(&replays, 4, until).await
            }
        });
        begun.await.unwrap();
        assert!(replayed(&replays, 5, async {}).await.is_err(), "another one does not wait for it");
        let second = replayed(&replays, 4, async { unreachable!("it is replayed once") });
        let (second, ()) = tokio::join!(second, async { end.send(()).unwrap() });
        assert_eq!((first.await.unwrap().unwrap(), second.unwrap()), (Some(4), Some(4)));
    }
}
