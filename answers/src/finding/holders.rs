//! What holds the blocks of a finding as data: who was asked, when, what came of it, and how holders grew since.
//!
//! Guarantees: without a response, the reason is given and no figure. Says nothing about a finding for which no process
//! was searched.

use memctl_model::holders::is_main;
use memctl_model::{HolderBound, HolderPace, TensorHolder};
use memctl_proto::convert::holders::holder_from_wire;
use memctl_proto::v1;
use memctl_proto::v1::finding_holders::Outcome;
use serde::Serialize;

use crate::format::time;
use crate::holders::Holder;

/// What is known of the holders of a finding's blocks.
#[derive(Clone, Debug, Serialize)]
pub struct FindingHolders {
    /// All of it in words.
    pub sentence: String,
    /// The rank that was asked.
    pub rank: u32,
    /// The process, by its name within the job.
    pub process: String,
    /// When it answered.
    pub asked_at: String,
    /// The epoch in which it answered.
    pub epoch: Option<u32>,
    /// Whether the daemon asked by itself.
    pub unasked: bool,
    /// Why there is no answer; null where there is one.
    pub failure: Option<String>,
    /// Live blocks of the site.
    pub live_blocks: Option<u64>,
    /// Their bytes.
    pub live_bytes: Option<u64>,
    /// The oldest of them, which were asked about.
    pub asked_blocks: Option<u32>,
    /// Of these, how many a holder was found for.
    pub found_blocks: Option<u32>,
    /// Holders, most blocks first.
    pub holders: Vec<GrowingHolder>,
    /// Objects of the interpreter that were looked at.
    pub objects: Option<u64>,
    /// How long the process stood still for it.
    pub took_seconds: Option<f64>,
    /// How long it might have.
    pub budget_seconds: f64,
    /// Slices of the search.
    pub slices: Option<u32>,
    /// The longest of them.
    pub longest_seconds: Option<f64>,
    /// Whether all that can be looked at was.
    pub complete: Option<bool>,
    /// What was not looked at, in sentences.
    pub not_looked_at: Vec<String>,
    /// Whether one of the holders represents the blocks that the process was asked about.
    #[serde(skip)]
    pub has_main: bool,
}

/// A holder, and how it grew since the process was asked for the first time.
#[derive(Clone, Debug, Serialize)]
pub struct GrowingHolder {
    /// It.
    #[serde(flatten)]
    pub holder: Holder,
    /// Its tensors at an earlier answer; null where they were not counted in two epochs.
    pub tensors_before: Option<u64>,
    /// The epoch of that answer.
    pub since_epoch: Option<u32>,
    /// How long it has become since an earlier answer; null where none measured it.
    pub pace: Option<Pace>,
}

/// How a holder's length changed beside the bytes of the site.
#[derive(Clone, Debug, Serialize)]
pub struct Pace {
    /// When the earlier answer came.
    pub since: String,
    /// Items then,
    pub length_before: u64,
    /// and now.
    pub length_now: u64,
    /// Live bytes of the site then,
    pub bytes_before: u64,
    /// and now.
    pub bytes_now: u64,
    /// Whether it became longer while these became more.
    pub grew_with_bytes: bool,
}

impl From<v1::HolderPace> for Pace {
    fn from(wire: v1::HolderPace) -> Self {
        let v1::HolderPace { known: _, since_ns, length_before, length_now, bytes_before, bytes_now } = wire;
        let pace = HolderPace { since_ns, length_before, length_now, bytes_before, bytes_now };
        let since = time::rfc3339(since_ns);
        let grew_with_bytes = pace.grew_with_bytes();
        Self { since, length_before, length_now, bytes_before, bytes_now, grew_with_bytes }
    }
}

impl From<v1::FindingHolders> for FindingHolders {
    fn from(wire: v1::FindingHolders) -> Self {
        let v1::FindingHolders { rank, process, asked_ns, unasked, budget_ms, outcome, sentence, growth, pace } = wire;
        let (found, failure) = match outcome {
            Some(Outcome::Found(found)) => (Some(found), None),
            Some(Outcome::Failure(why)) => (None, Some(why)),
            None => (None, Some("the answer is of a form that this memctl does not know".to_owned())),
        };
        let of = |read: fn(&v1::HoldersFound) -> u64| found.as_ref().map(read);
        let mut growth = growth.into_iter().map(|growth| growth.counted.then_some(growth));
        let mut pace = pace.into_iter().map(|pace| pace.known.then(|| Pace::from(pace)));
        let mut growing = |holder: &v1::TensorHolder| {
            let growth = growth.next().flatten();
            GrowingHolder {
                holder: Holder::from(holder.clone()),
                tensors_before: growth.as_ref().map(|growth| growth.tensors_before),
                since_epoch: growth.map(|growth| growth.since_epoch),
                pace: pace.next().flatten(),
            }
        };
        let has_main = found.as_ref().is_some_and(|found| {
            let is_main = |holder: &v1::TensorHolder| {
                let TensorHolder { blocks, bound, .. } = holder_from_wire(holder.clone());
                is_main(blocks, found.asked_blocks, found.found_blocks, matches!(bound, HolderBound::Bounded { .. }))
            };
            found.holders.iter().any(is_main)
        });
        Self {
            has_main,
            sentence,
            rank,
            process,
            asked_at: time::rfc3339(asked_ns),
            epoch: found.as_ref().and_then(|found| found.epoch),
            unasked,
            failure,
            live_blocks: of(|found| found.live_blocks),
            live_bytes: of(|found| found.live_bytes),
            asked_blocks: found.as_ref().map(|found| found.asked_blocks),
            found_blocks: found.as_ref().map(|found| found.found_blocks),
            holders: found.iter().flat_map(|found| &found.holders).map(&mut growing).collect(),
            objects: of(|found| found.objects),
            took_seconds: found.as_ref().map(|found| found.took_us as f64 / 1e6),
            budget_seconds: f64::from(budget_ms) / 1e3,
            slices: found.as_ref().map(|found| found.slices),
            longest_seconds: found.as_ref().map(|found| found.longest_us as f64 / 1e6),
            complete: found.as_ref().map(|found| found.complete),
            not_looked_at: found.map_or_else(Vec::new, |found| found.not_looked_at),
        }
    }
}

impl FindingHolders {
    /// Each holder's chain in a line, with an arrow between two steps.
    #[must_use]
    pub fn chains(&self, arrow: &str) -> Vec<String> {
        let chains = self.holders.iter().map(|growing| growing.holder.chain.join(arrow));
        chains.filter(|chain| !chain.is_empty()).collect()
    }
}
