//! Replays one device's requests under the usual allocator settings, for the page and for advice in other answers.
//!
//! Guarantees: the same as in the parent module. If a session does not report its version of torch, the version whose
//! rules reproduce the recording is used. Advice on a running job is based on a replay of at least four fifths of its
//! events.
//!
//! If there is no result for a device, the reason is returned.

use std::sync::Arc;

use memctl_answers::advice::Advice;
use memctl_answers::advising::Subject;
use memctl_answers::replaying::{EVENTS_MAX, Limit, Question, Replaying};
use memctl_answers::what_if::{NEVER, Rank, WhatIf};
use memctl_model::{JobState, SessionId};
use memctl_proto::v1;

use super::{Cached, One, Replays, fault, lacks_events, may_be_replayed, passed, too_long};
use crate::job_data::error::ReadError;
use crate::store::Store;
use crate::streams::Streams;

/// For advice on a running job, a new replay is made once its events have grown by one part in this many.
const GROWN_PART: u64 = 4;

/// The most events that a device may have gained since the replay that advice is based on.
fn may_have_grown(state: JobState, events: u64) -> u64 {
    if state == JobState::Running { events / (GROWN_PART + 1) } else { 0 }
}

/// Identifies a replay.
#[derive(Clone, PartialEq)]
pub(super) struct Key {
    session: SessionId,
    part: v1::Selection,
    limits: Vec<Limit>,
    events: u64,
}

impl Key {
    fn of(one: &One, limits: &[Limit]) -> Self {
        Self { session: one.session, part: one.part.clone(), limits: limits.to_vec(), events: one.events }
    }

    /// Whether the result covers the same request, with at most `grown` events since.
    fn covers(&self, now: &Self, grown: u64) -> bool {
        (self.events..=self.events.saturating_add(grown)).contains(&now.events)
            && *self == Self { events: self.events, ..now.clone() }
    }
}

/// The result: the device's figures, and what they do not cover.
#[derive(Clone)]
pub(super) struct SettingsResult {
    ranks: Vec<Rank>,
    not_looked_at: Vec<String>,
}

/// The parameters of a replay for the page.
pub struct Wanted {
    /// One process.
    pub selection: v1::Selection,
    /// Limits on the process's memory. The list is empty for no limit, and has two if the limit is not known exactly.
    pub limits: Vec<Limit>,
}

impl Replays {
    /// The settings of a device, from the cache or from a replay.
    pub(in super::super) async fn what_if(
        self: Arc<Self>,
        store: Arc<dyn Store>,
        streams: &Streams,
        wanted: Wanted,
    ) -> Result<WhatIf, ReadError> {
        let Wanted { selection, limits } = wanted;
        let one = One::find(&*store, streams, &selection).await?;
        may_be_replayed(&one.completeness, one.events)?;
        let done = self.usual(store, &one, &limits, &one.command("what-if", ""), 0).await?;
        let mut answer = WhatIf::new(one.job, one.completeness, done.ranks, one.left_out);
        answer.not_looked_at = done.not_looked_at;
        if limits.is_empty() {
            answer.not_looked_at.push("The size of the device: without a limit no request fails.".to_owned());
        }
        answer.not_looked_at.extend(NEVER.map(str::to_owned));
        Ok(answer)
    }

    /// The effect of settings on a device of this selection, or why it is not known. `flags` are the command-line flags
    /// to reach the store.
    pub(in super::super) async fn advice(
        self: Arc<Self>,
        store: Arc<dyn Store>,
        streams: &Streams,
        (selection, flags): (&v1::Selection, &str),
        subject: Subject,
    ) -> Advice {
        let processes = if subject.process.is_empty() { Vec::new() } else { vec![subject.process.clone()] };
        let (ranks, devices) = (vec![subject.rank], vec![subject.device]);
        let selection = v1::Selection { ranks, devices, processes, ..selection.clone() };
        let replayed = async {
            let one = One::find(&*store, streams, &selection).await?;
            lacks_events(&one.completeness, one.events)?;
            let grown = may_have_grown(one.job.state, one.events);
            let command = one.command("what-if", flags);
            self.usual(store.clone(), &one, &subject.limits, &command, grown).await
        };
        let replayed = replayed.await.map_err(|why: ReadError| why.to_string());
        let first = replayed.and_then(|SettingsResult { ranks, not_looked_at }| {
            let device = ranks.into_iter().next().ok_or_else(|| "nothing of it is stored".to_owned())?;
            Ok((device, not_looked_at))
        });
        subject.advice(first)
    }

    /// The result for the usual settings, from the cache or from a replay. A cached result may lack the last `grown`
    /// events.
    async fn usual(
        self: Arc<Self>,
        store: Arc<dyn Store>,
        one: &One,
        limits: &[Limit],
        command: &str,
        grown: u64,
    ) -> Result<SettingsResult, ReadError> {
        let refusal = too_long(EVENTS_MAX, command);
        if one.events > EVENTS_MAX && one.is_whole() {
            return Err(ReadError::NotNow(refusal));
        }
        let question = Question {
            is_interval: limits.len() > 1,
            limits: limits.to_vec(),
            events_max: Some(EVENTS_MAX),
            ..Question::default()
        };
        let (key, part) = (Key::of(one, limits), one.part.clone());
        let is_same = |known: &Key| known.covers(&key, grown);
        let replay = async move {
            match replayed(&store, &part, question).await? {
                replaying if replaying.is_too_long => Err(ReadError::NotNow(refusal)),
                replaying => SettingsResult::of(replaying),
            }
        };
        self.done(Cached { cache: |replays| &replays.settings, key: key.clone(), is_same, replay }).await
    }
}

/// Replays a part of a job under settings and limits. If the version of torch is unknown, the version whose rules
/// reproduce the recording is used.
pub(in super::super) async fn replayed(
    store: &Arc<dyn Store>,
    part: &v1::Selection,
    question: Question,
) -> Result<Replaying, ReadError> {
    let replaying = pass(store, part, question.clone()).await?;
    match replaying.wants_other_rule && !replaying.is_too_long {
        true => pass(store, part, Question { by_other_rule: true, ..question }).await,
        false => Ok(replaying),
    }
}

async fn pass(store: &Arc<dyn Store>, part: &v1::Selection, question: Question) -> Result<Replaying, ReadError> {
    let pass = move |parts: &mut dyn Iterator<Item = Result<_, ReadError>>| {
        let mut replaying = Replaying::new(question).map_err(fault)?;
        for part in parts {
            replaying.part(part?).map_err(fault)?;
            if replaying.is_too_long {
                return Ok(replaying);
            }
        }
        replaying.finish();
        Ok(replaying)
    };
    passed(store, part, pass).await
}

impl SettingsResult {
    fn of(Replaying { ranks, not_looked_at, .. }: Replaying) -> Result<Self, ReadError> {
        if ranks.is_empty() {
            let why = not_looked_at.first().map_or("nothing of it is stored", |text| text.trim_end_matches('.'));
            return Err(ReadError::NotNow(why.to_owned()));
        }
        Ok(Self { ranks, not_looked_at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::replays::cache::Cache;

    #[test]
    fn an_answer_about_a_running_job_is_kept_until_its_events_have_grown_by_a_quarter() {
        let key = |events: u64, limits: &[Limit]| Key {
            session: SessionId([0; 16]),
            part: v1::Selection::default(),
            limits: limits.to_vec(),
            events,
        };
        let kept = Cache::new();
        kept.keep(key(1000, &[]), ());
        let serves = |state: JobState, now: Key| {
            let grown = may_have_grown(state, now.events);
            kept.known(|known| known.covers(&now, grown)).is_some()
        };
        for (state, events, is_served) in [
            (JobState::Running, 1000, true),
            (JobState::Running, 1250, true),
            (JobState::Running, 1251, false),
            (JobState::Running, 999, false),
            (JobState::Finished, 1000, true),
            (JobState::Finished, 1001, false),
        ] {
            assert_eq!(serves(state, key(events, &[])), is_served, "{state:?} {events}");
        }
        assert!(!serves(JobState::Running, key(1000, &[Limit::Share(1)])), "it is of other limits");
        let other = v1::Selection { ranks: vec![1], ..v1::Selection::default() };
        assert!(!serves(JobState::Running, Key { part: other, ..key(1000, &[]) }), "it is of another part");
    }
}
