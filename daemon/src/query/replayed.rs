//! What other allocator settings would have held of one device: a replay of what is stored, as `memctl what-if` makes it.
//!
//! Guarantees: one replay at a time in the whole daemon, in a thread of its own, of at most [`EVENTS_MAX`] events; who finds one
//! under way waits a moment and then hears so. What was replayed is kept for [`KEPT`] devices, by session and by how much of it
//! was stored: a second question costs nothing, and one about a job that went on is replayed anew. A replay whose asker has gone
//! comes to its end, or it would be begun again by the next one.
//! Refuses recordings that lack events, larger ones, and more than one process at a time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use memctl_answers::naming::{command, process_flag};
use memctl_answers::replaying::{EVENTS_MAX, Limit, Question, Replaying};
use memctl_answers::what_if::{NEVER, Rank, WhatIf};
use memctl_answers::{Completeness, Job};
use memctl_model::SessionId;
use memctl_proto::v1;
use tokio::sync::Semaphore;

use super::{answer, export};
use crate::read::error::ReadError;
use crate::read::job::find;
use crate::store::Store;
use crate::streams::Streams;

/// Devices whose replays are kept: some kilobytes each.
const KEPT: usize = 64;
/// For the replay that is under way.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Which replay: of which process, behind how many events, on which device, under which limits.
type Key = (SessionId, u64, u8, Vec<Limit>);

/// What came out: the device's figures, and what they do not cover.
#[derive(Clone)]
struct Done {
    ranks: Vec<Rank>,
    not_looked_at: Vec<String>,
}

/// See the module.
pub(super) struct Replays {
    one: Arc<Semaphore>,
    kept: Mutex<VecDeque<(Key, Done)>>,
}

/// What is wanted of a replay.
pub struct Wanted {
    /// Of one process.
    pub selection: v1::Selection,
    /// What the process may have; none when empty.
    pub limits: Vec<Limit>,
    /// The limits are the two ends of what is known of one.
    pub is_interval: bool,
}

impl Replays {
    pub(super) fn new() -> Self {
        Self { one: Arc::new(Semaphore::new(1)), kept: Mutex::new(VecDeque::new()) }
    }

    /// The settings of a device, replayed now or before.
    pub(super) async fn what_if(
        self: Arc<Self>,
        store: Arc<dyn Store>,
        streams: &Streams,
        wanted: Wanted,
    ) -> Result<WhatIf, ReadError> {
        let Wanted { selection, limits, is_interval } = wanted;
        let found = find(&*store, &selection).await?;
        let [session] = found.sessions.as_slice() else {
            return Err(ReadError::Invalid(
                "settings are replayed for one process: rank=N, and process=NAME where it has several".into(),
            ));
        };
        let Some(row) = found.devices_of(session.key).first() else {
            return Err(ReadError::Invalid(format!("nothing is stored of a device of rank {}", session.info.rank)));
        };
        let device = row.info.index.0;
        let completeness: Completeness = answer::completeness(found.completeness(streams)).into();
        let job: Job = answer::found_job(&found, streams).into();
        let process = found.process_name(session);
        may_be_replayed(&completeness, row.events, || {
            command("what-if", &job, &process_flag(&process, session.info.rank), "")
        })?;
        let key = (session.info.id, row.events, device, limits.clone());
        let done = match self.known(&key) {
            Some(done) => done,
            None => {
                let asked = v1::Selection {
                    job: job.id.clone(),
                    attempt: Some(job.attempt),
                    ranks: vec![session.info.rank],
                    processes: vec![process],
                    devices: vec![u32::from(device)],
                    ..v1::Selection::default()
                };
                let question = Question {
                    limits: limits.clone(),
                    is_interval,
                    events_max: Some(EVENTS_MAX),
                    ..Question::default()
                };
                self.replay(store, key, asked, question).await?
            }
        };
        let left_out = found.others.len();
        let mut answer = WhatIf::new(job, completeness, done.ranks, left_out);
        answer.not_looked_at = done.not_looked_at;
        if limits.is_empty() {
            answer.not_looked_at.push("The size of the device: without a limit no request fails.".to_owned());
        }
        answer.not_looked_at.extend(NEVER.map(str::to_owned));
        Ok(answer)
    }

    fn known(&self, key: &Key) -> Option<Done> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(known, _)| known == key)?;
        let one = kept.remove(at)?;
        let done = one.1.clone();
        kept.push_back(one);
        Some(done)
    }

    fn keep(&self, key: Key, done: Done) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(known, _)| *known != key);
        kept.push_back((key, done));
        while kept.len() > KEPT {
            kept.pop_front();
        }
    }

    async fn replay(
        self: Arc<Self>,
        store: Arc<dyn Store>,
        key: Key,
        selection: v1::Selection,
        question: Question,
    ) -> Result<Done, ReadError> {
        let busy = || ReadError::Busy("settings of another device are being replayed; ask again".to_owned());
        let place = tokio::time::timeout(WAIT_MAX, self.one.clone().acquire_owned()).await;
        let place = place.map_err(|_| busy())?.map_err(|_| busy())?;
        // Whoever had the place may have replayed the same.
        if let Some(done) = self.known(&key) {
            return Ok(done);
        }
        // In a task of its own: whoever asked may go, and the place is given back when the work is done.
        let replayed = tokio::spawn(async move {
            let mut replaying = passed(&store, &selection, question.clone()).await?;
            if replaying.wants_other_rule {
                replaying = passed(&store, &selection, Question { by_other_rule: true, ..question }).await?;
            }
            let done = Done::of(replaying)?;
            self.keep(key, done.clone());
            drop(place);
            Ok(done)
        });
        replayed.await.map_err(|error| ReadError::Fault(crate::supervise::words(error)))?
    }
}

/// One pass of all parts of an export through the replays.
async fn passed(store: &Arc<dyn Store>, selection: &v1::Selection, question: Question) -> Result<Replaying, ReadError> {
    let request = v1::ExportRequest { selection: Some(selection.clone()), without_events: false };
    let mut parts = export::export(store.clone(), request).await?;
    let pass = tokio::task::spawn_blocking(move || {
        let mut replaying = Replaying::new(question).map_err(|error| ReadError::Fault(error.to_string()))?;
        while let Some(part) = parts.blocking_recv() {
            let part = part.map_err(|status| ReadError::Fault(status.message().to_owned()))?;
            if let Some(body) = part.body {
                replaying.part(body).map_err(|error| ReadError::Fault(error.to_string()))?;
            }
            if replaying.is_too_long {
                return Err(ReadError::NotNow(too_long("memctl what-if")));
            }
        }
        replaying.finish();
        Ok(replaying)
    });
    pass.await.map_err(|error| ReadError::Fault(crate::supervise::words(error)))?
}

impl Done {
    fn of(Replaying { ranks, not_looked_at, .. }: Replaying) -> Result<Self, ReadError> {
        if ranks.is_empty() {
            let why = not_looked_at.first().map_or("nothing of it is stored", |text| text.trim_end_matches('.'));
            return Err(ReadError::NotNow(why.to_owned()));
        }
        Ok(Self { ranks, not_looked_at })
    }
}

fn too_long(command: &str) -> String {
    format!("it has more than {EVENTS_MAX} events; `{command}` replays them")
}

/// Whether the events of a device can be replayed, and are few enough for it.
fn may_be_replayed(of: &Completeness, events: u64, command: impl Fn() -> String) -> Result<(), ReadError> {
    let why = match of {
        _ if events == 0 => "no allocator events are stored, only counters".to_owned(),
        Completeness { events_expired, .. } if *events_expired > 0 => {
            "retention removed its first events, so its requests cannot be replayed".to_owned()
        }
        Completeness { events_dropped, gaps, .. } if *events_dropped > 0 || *gaps > 0 => {
            "events are missing in the recording, so its requests cannot be replayed".to_owned()
        }
        _ if events > EVENTS_MAX => too_long(&command()),
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
        let said = |of: Completeness, events: u64| {
            may_be_replayed(&of, events, || "memctl what-if --job j".to_owned()).map_err(|error| error.to_string())
        };
        assert_eq!(said(whole, EVENTS_MAX), Ok(()));
        assert!(said(whole, EVENTS_MAX + 1).unwrap_err().contains("`memctl what-if --job j` replays them"));
        assert!(said(whole, 0).unwrap_err().contains("only counters"));
        assert!(said(Completeness { gaps: 1, ..whole }, 7).unwrap_err().contains("missing"));
        assert!(said(Completeness { events_expired: 1, ..whole }, 7).unwrap_err().contains("retention"));
    }

    #[test]
    fn what_was_asked_for_longest_ago_goes_first() {
        let replays = Replays::new();
        let key = |number: u8| (SessionId([number; 16]), 1, 0, Vec::new());
        let done = || Done { ranks: Vec::new(), not_looked_at: Vec::new() };
        (0..KEPT as u8).for_each(|number| replays.keep(key(number), done()));
        assert!(replays.known(&key(0)).is_some(), "and is the last to go now");
        replays.keep(key(200), done());
        let is_kept = |number: u8| replays.known(&key(number)).is_some();
        assert!(is_kept(0) && !is_kept(1) && is_kept(2) && is_kept(200));
    }
}
