//! Replays of what is stored of one device: what other allocator settings would have held of it (`settings`), and what it would hold
//! at other sizes (`sizes`), as `memctl what-if` and `memctl fit` make them.
//!
//! Guarantees: one replay at a time in the whole daemon, in a thread of its own, of so many events at most; who finds one
//! under way waits a moment and then hears so. What was replayed is kept (`kept`), by session and by how much of it was stored: a
//! second question costs nothing, and one about a job that went on is replayed anew. A replay whose asker has gone comes to its
//! end, or it would be begun again by the next one.
//! Refuses recordings that lack events, larger ones, and more than one process at a time.

mod kept;
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
use crate::read::error::ReadError;
use crate::read::job::find;
use crate::store::Store;
use crate::streams::Streams;
use kept::Kept;
pub use settings::Wanted;
pub use sizes::Sizes;

/// For the replay that is under way.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// See the module.
pub(super) struct Replays {
    one: Arc<Semaphore>,
    settings: Kept<settings::Key, settings::Done>,
    sizes: Kept<sizes::Key, memctl_answers::fit::Fit>,
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
    /// Ranks of the job that were not asked about.
    left_out: usize,
}

impl Replays {
    pub(super) fn new() -> Self {
        Self { one: Arc::new(Semaphore::new(1)), settings: Kept::new(), sizes: Kept::new() }
    }

    /// What came of this replay before, else what comes of it now.
    async fn done<K, V>(
        self: Arc<Self>,
        kept: fn(&Self) -> &Kept<K, V>,
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
        let busy = || ReadError::Busy("another replay is under way; ask again".to_owned());
        let place = tokio::time::timeout(WAIT_MAX, self.one.clone().acquire_owned()).await;
        let place = place.map_err(|_| busy())?.map_err(|_| busy())?;
        // Whoever had the place may have replayed the same.
        if let Some(done) = kept(&self).known(&key) {
            return Ok(done);
        }
        // In a task of its own: whoever asked may go, and the place is given back when the work is done.
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
    /// The first device of the one process that is meant, where it can be replayed.
    async fn find(store: &dyn Store, streams: &Streams, selection: &v1::Selection) -> Result<Self, ReadError> {
        let found = find(store, selection).await?;
        let [session] = found.sessions.as_slice() else {
            return Err(ReadError::Invalid(
                "a replay is of one process: rank=N, and process=NAME where it has several".into(),
            ));
        };
        let rank = session.info.rank;
        let Some(row) = found.devices_of(session.key).first() else {
            return Err(ReadError::Invalid(format!("nothing is stored of a device of rank {rank}")));
        };
        Ok(Self {
            job: answer::found_job(&found, streams).into(),
            completeness: answer::completeness(found.completeness(streams)).into(),
            session: session.info.id,
            rank,
            process: found.process_name(session),
            device: row.info.index.0,
            events: row.events,
            left_out: found.others.len(),
        })
    }

    /// What an export of it is asked by.
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

    /// The command that asks the same of it.
    fn command(&self, verb: &str) -> String {
        command(verb, &self.job, &process_flag(&self.process, self.rank), "")
    }
}

/// One pass of all parts of an export, in a thread of its own.
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

/// What came out of a store cannot be replayed.
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
