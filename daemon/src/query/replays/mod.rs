//! Replays of one device's recording: its memory under other allocator settings (`settings`) and at other sizes
//! (`sizes`), as `memctl what-if` and `memctl fit` compute them.
//!
//! Guarantees: one replay at a time in the whole daemon, on a thread of its own, with a limit on its events. A request
//! that finds another replay running waits briefly and then gets an error. Results are cached (`kept`) by session and by
//! the number of stored events: a repeated request is free, and one about a job that has grown is replayed again. A
//! replay continues after its client disconnects, since the next request would start it again.
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
use tokio::sync::Semaphore;

use super::{answer, export};
use crate::job_data::error::ReadError;
use crate::job_data::job::find;
use crate::store::Store;
use crate::streams::Streams;
use cache::Cache;
pub use settings::Wanted;
pub use sizes::Sizes;

/// How long to wait for a running replay.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// See the module.
pub(super) struct Replays {
    one: Arc<Semaphore>,
    settings: Cache<settings::Key, settings::Done>,
    sizes: Cache<sizes::Key, memctl_answers::fit::Fit>,
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
    /// Ranks of the job that the request does not cover.
    left_out: usize,
}

impl Replays {
    pub(super) fn new() -> Self {
        Self { one: Arc::new(Semaphore::new(1)), settings: Cache::new(), sizes: Cache::new() }
    }

    /// The cached result of this replay, or else a new one.
    async fn done<K, V>(
        self: Arc<Self>,
        kept: fn(&Self) -> &Cache<K, V>,
        key: K,
        replay: impl Future<Output = Result<V, ReadError>> + Send + 'static,
    ) -> Result<V, ReadError>
    where
        K: PartialEq + Send + 'static,
        V: Clone + Send + 'static,
    {
        if let Some(done) = kept(&self).known(&key) {
            return Ok(done);
        }
        let busy = || ReadError::Busy("another replay is running; try again later".to_owned());
        let place = tokio::time::timeout(WAIT_MAX, self.one.clone().acquire_owned()).await;
        let place = place.map_err(|_| busy())?.map_err(|_| busy())?;
        // The previous holder of the permit may have replayed the same.
        if let Some(done) = kept(&self).known(&key) {
            return Ok(done);
        }
        // In a task of its own: the client may disconnect, and the permit is released when the work is done.
        let replayed = tokio::spawn(async move {
            let done = replay.await?;
            kept(&self).keep(key, done.clone());
            drop(place);
            Ok(done)
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
        Ok(Self {
            job: answer::found_job(&found, streams),
            completeness: found.completeness(streams).into(),
            session: session.info.id,
            rank,
            process: found.process_name(session),
            device: row.info.index.0,
            events: row.events,
            left_out: found.others.len(),
        })
    }

    /// The selection that exports it.
    fn selection(&self) -> v1::Selection {
        v1::Selection {
            job: self.job.id.clone(),
            attempt: Some(self.job.attempt),
            ranks: vec![self.rank],
            processes: vec![self.process.clone()],
            devices: vec![u32::from(self.device)],
            ..v1::Selection::default()
        }
    }

    /// The command that computes the same.
    fn command(&self, verb: &str) -> String {
        command(verb, &self.job, &process_flag(&self.process, self.rank), "")
    }
}

/// Passes all parts of an export through a replay, on a thread of its own.
async fn passed<T: Send + 'static>(
    store: &Arc<dyn Store>,
    selection: &v1::Selection,
    pass: impl FnOnce(&mut dyn Iterator<Item = Result<Body, ReadError>>) -> Result<T, ReadError> + Send + 'static,
) -> Result<T, ReadError> {
    let request = v1::ExportRequest { selection: Some(selection.clone()), without_events: false };
    let mut parts = export::export(store.clone(), request).await?;
    let passing = tokio::task::spawn_blocking(move || {
        let parts = std::iter::from_fn(move || parts.blocking_recv());
        let mut bodies = parts.filter_map(|part| match part {
            Ok(part) => part.body.map(Ok),
            Err(status) => Some(Err(ReadError::Fault(status.message().to_owned()))),
        });
        pass(&mut bodies)
    });
    passing.await.map_err(|error| ReadError::Fault(crate::supervise::words(error)))?
}

/// The data of the store cannot be replayed.
fn fault(error: impl std::error::Error) -> ReadError {
    ReadError::Fault(error.to_string())
}

fn too_long(most: u64, command: &str) -> String {
    format!("it has more than {most} events; `{command}` replays them")
}

/// Whether the events of a device can be replayed.
fn may_be_replayed(of: &Completeness, events: u64) -> Result<(), ReadError> {
    let why = match of {
        _ if events == 0 => "no allocator events are stored, only counters".to_owned(),
        Completeness { events_expired, .. } if *events_expired > 0 => {
            "retention removed its first events, so its requests cannot be replayed".to_owned()
        }
        Completeness { events_dropped, gaps, .. } if *events_dropped > 0 || *gaps > 0 => {
            "events are missing in the recording, so its requests cannot be replayed".to_owned()
        }
        _ => return Ok(()),
    };
    Err(ReadError::NotNow(why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_replayed_is_refused_before_anything_is_read() {
        let whole = Completeness { exact: true, events_stored: 7, events_dropped: 0, events_expired: 0, gaps: 0 };
        let said = |of, events| may_be_replayed(&of, events).map_err(|error| error.to_string());
        assert_eq!(said(whole, u64::MAX), Ok(()));
        assert!(too_long(4, "memctl what-if --job j").contains("`memctl what-if --job j` replays them"));
        assert!(said(whole, 0).unwrap_err().contains("only counters"));
        assert!(said(Completeness { gaps: 1, ..whole }, 7).unwrap_err().contains("missing"));
        assert!(said(Completeness { events_expired: 1, ..whole }, 7).unwrap_err().contains("retention"));
    }
}
