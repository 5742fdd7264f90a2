//! One device's requests under other allocator settings, as `memctl what-if` replays them.
//!
//! Guarantees: those of the module above. If a session does not name its version of torch, the version whose rules
//! reproduce the recording is used.
//! Refuses: a device without a result, with the reason.

use std::sync::Arc;

use memctl_answers::replaying::{EVENTS_MAX, Limit, Question, Replaying};
use memctl_answers::what_if::{NEVER, Rank, WhatIf};
use memctl_model::SessionId;
use memctl_proto::v1;

use super::{One, Replays, fault, may_be_replayed, passed, too_long};
use crate::job_data::error::ReadError;
use crate::store::Store;
use crate::streams::Streams;

/// Identifies a replay: process, number of events, device, limits.
pub(super) type Key = (SessionId, u64, u8, Vec<Limit>);

/// The result: the device's figures, and what they do not cover.
#[derive(Clone)]
pub(super) struct Done {
    ranks: Vec<Rank>,
    not_looked_at: Vec<String>,
}

/// The parameters of a replay.
pub struct Wanted {
    /// One process.
    pub selection: v1::Selection,
    /// Limits on the process's memory; none when empty.
    pub limits: Vec<Limit>,
    /// Whether the limits are the two bounds of one limit that is not known exactly.
    pub is_interval: bool,
}

impl Replays {
    /// The settings of a device, from the cache or from a replay.
    pub(in super::super) async fn what_if(
        self: Arc<Self>,
        store: Arc<dyn Store>,
        streams: &Streams,
        wanted: Wanted,
    ) -> Result<WhatIf, ReadError> {
        let Wanted { selection, limits, is_interval } = wanted;
        let one = One::find(&*store, streams, &selection).await?;
        may_be_replayed(&one.completeness, one.events)?;
        if one.events > EVENTS_MAX {
            return Err(ReadError::NotNow(too_long(EVENTS_MAX, &one.command("what-if"))));
        }
        let key = (one.session, one.events, one.device, limits.clone());
        let question =
            Question { limits: limits.clone(), is_interval, events_max: Some(EVENTS_MAX), ..Question::default() };
        let replay = replayed(store, one.selection(), question);
        let done = self.done(|replays| &replays.settings, key, replay).await?;
        let mut answer = WhatIf::new(one.job, one.completeness, done.ranks, one.left_out);
        answer.not_looked_at = done.not_looked_at;
        if limits.is_empty() {
            answer.not_looked_at.push("The size of the device: without a limit no request fails.".to_owned());
        }
        answer.not_looked_at.extend(NEVER.map(str::to_owned));
        Ok(answer)
    }
}

async fn replayed(store: Arc<dyn Store>, selection: v1::Selection, question: Question) -> Result<Done, ReadError> {
    let mut replaying = pass(&store, &selection, question.clone()).await?;
    if replaying.wants_other_rule {
        replaying = pass(&store, &selection, Question { by_other_rule: true, ..question }).await?;
    }
    Done::of(replaying)
}

async fn pass(store: &Arc<dyn Store>, selection: &v1::Selection, question: Question) -> Result<Replaying, ReadError> {
    let pass = move |parts: &mut dyn Iterator<Item = Result<_, ReadError>>| {
        let mut replaying = Replaying::new(question).map_err(fault)?;
        for part in parts {
            replaying.part(part?).map_err(fault)?;
            if replaying.is_too_long {
                return Err(ReadError::NotNow(too_long(EVENTS_MAX, "memctl what-if")));
            }
        }
        replaying.finish();
        Ok(replaying)
    };
    passed(store, selection, pass).await
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
