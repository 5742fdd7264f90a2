//! What holds the blocks of a finding as data: the searched process, the time, the result, and the growth of holders
//! since then.
//!
//! Guarantees: without a response, the reason is given and no figure. Says nothing about a finding for which no process
//! was searched.

use memctl_model::holders::{TRACEBACK, is_main};
use memctl_model::{self as model, HolderPace, HoldersAsked, TensorHolder};
use serde::{Deserialize, Serialize};

use crate::format::time::Time;
use crate::holders::Holder;

/// The known holders of a finding's blocks.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct FindingHolders {
    /// All of it in words.
    pub sentence: String,
    /// The rank that was asked.
    pub rank: u32,
    /// The process, by its name within the job.
    pub process: String,
    /// When it answered.
    pub asked_at: Time,
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
    /// Those of them whose holders were searched: the oldest ones without what was made once, at most 256.
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
}

/// A holder, and its growth since the first search of the process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
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

/// The change of a holder's length, compared with the bytes of the site.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Pace {
    /// When the earlier answer came.
    pub since: Time,
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

impl From<HolderPace> for Pace {
    fn from(pace: HolderPace) -> Self {
        let HolderPace { since_ns, length_before, length_now, bytes_before, bytes_now } = pace;
        let grew_with_bytes = pace.grew_with_bytes();
        Self { since: Time(since_ns), length_before, length_now, bytes_before, bytes_now, grew_with_bytes }
    }
}

impl From<&model::FindingHolders> for FindingHolders {
    fn from(known: &model::FindingHolders) -> Self {
        let model::FindingHolders { asked, growth, pace, sentence } = known;
        let HoldersAsked { rank, process, asked_ns, unasked, budget_ms, site: _, lines: _, finding: _, outcome } =
            asked;
        let found = outcome.as_ref().ok();
        let growing = |(at, holder): (usize, &TensorHolder)| {
            let growth = growth.get(at).copied().flatten();
            GrowingHolder {
                holder: holder.into(),
                tensors_before: growth.map(|growth| growth.tensors_before),
                since_epoch: growth.map(|growth| growth.since_epoch),
                pace: pace.get(at).copied().flatten().map(Pace::from),
            }
        };
        Self {
            sentence: sentence.clone(),
            rank: *rank,
            process: process.clone(),
            asked_at: Time(*asked_ns),
            epoch: found.and_then(|found| found.epoch),
            unasked: *unasked,
            failure: outcome.as_ref().err().cloned(),
            live_blocks: found.map(|found| found.live_blocks),
            live_bytes: found.map(|found| found.live_bytes),
            asked_blocks: found.map(|found| found.asked_blocks),
            found_blocks: found.map(|found| found.found_blocks),
            holders: found.iter().flat_map(|found| &found.holders).enumerate().map(growing).collect(),
            objects: found.map(|found| found.objects),
            took_seconds: found.map(|found| found.took_us as f64 / 1e6),
            budget_seconds: f64::from(*budget_ms) / 1e3,
            slices: found.map(|found| found.slices),
            longest_seconds: found.map(|found| found.longest_us as f64 / 1e6),
            complete: found.map(|found| found.complete),
            not_looked_at: found.map_or_else(Vec::new, |found| found.not_looked_at.clone()),
        }
    }
}

impl FindingHolders {
    /// Whether one of the holders represents the blocks of the search.
    #[must_use]
    pub fn has_main(&self) -> bool {
        let (Some(asked), Some(found)) = (self.asked_blocks, self.found_blocks) else { return false };
        self.holders
            .iter()
            .any(|GrowingHolder { holder, .. }| is_main(holder.blocks, asked, found, holder.is_bounded()))
    }

    /// Whether the first of the main holders is the traceback of a kept exception.
    #[must_use]
    pub fn is_kept_by_traceback(&self) -> bool {
        let (Some(asked), Some(found)) = (self.asked_blocks, self.found_blocks) else { return false };
        let main = self
            .holders
            .iter()
            .find(|GrowingHolder { holder, .. }| is_main(holder.blocks, asked, found, holder.is_bounded()));
        main.is_some_and(|main| main.holder.chain.iter().any(|step| step == TRACEBACK))
    }

    /// Each holder's chain in a line, with an arrow between two steps.
    #[must_use]
    pub fn chains(&self, arrow: &str) -> Vec<String> {
        let chains = self.holders.iter().map(|growing| growing.holder.chain.join(arrow));
        chains.filter(|chain| !chain.is_empty()).collect()
    }
}
