//! Answers `memctl what-if`: replays chosen ranks of a job, one at a time, under chosen settings, limits and steps.
//!
//! Guarantees: the whole daemon runs one such replay at a time. Its events have no limit, and its results are not
//! cached. A replay ends with its request.
//! Refuses: settings that the allocator of the recording would refuse, and more than [`TRIALS_MAX`] trials.

use std::cmp::Reverse;

use memctl_answers::dossier::same_job;
use memctl_answers::oom::Failed;
use memctl_answers::replaying::{Limit, Question};
use memctl_answers::report::{Rank, Report};
use memctl_answers::what_if::{NEVER, WhatIf};
use memctl_proto::v1;

use super::replays::replayed;
use super::sources::Sources;
use super::{advice, report};
use crate::job_data::error::ReadError;

/// The most ranks that are replayed if none were chosen. The page names the other ranks.
const RANKS_MAX: usize = 4;
/// The most combinations of settings and limits. Each takes memory of its own.
const TRIALS_MAX: usize = 1024;

/// Answers the request; see the module.
pub(super) async fn what_if(from: &Sources, request: v1::WhatIfRequest) -> Result<WhatIf, ReadError> {
    let v1::WhatIfRequest { selection, settings, limits, from: first, until } = request;
    if settings.len().max(1).saturating_mul(limits.len().max(1)) > TRIALS_MAX {
        return Err(ReadError::Invalid(format!("these are more than {TRIALS_MAX} settings and limits together")));
    }
    let selection = selection.unwrap_or_default();
    let limits = limits.into_iter().map(Limit::Share).collect();
    let question = Question { settings, limits, from: first, until, ..Question::default() };
    let request = v1::ReportRequest { selection: Some(selection.clone()) };
    let report = report::report(&from.store, &from.streams, &from.judge, request).await?;
    let chosen = chosen(&report, !selection.ranks.is_empty());
    let (mut ranks, mut not_looked_at, mut is_limited) = (Vec::new(), Vec::new(), true);
    for rank in &chosen {
        let part = same_job(selection.clone(), &report, rank);
        let mut question = question.clone();
        if question.limits.is_empty() && rank.ooms > 0 {
            let failed = advice::failure(from, &part, rank.rank, &rank.process).await;
            question.limits = failed.as_ref().map_or_else(Vec::new, Failed::limits);
            question.is_interval = question.limits.len() > 1;
        }
        is_limited &= !question.limits.is_empty();
        let _place = from.replays.long().await?;
        let replaying = replayed(&from.store, &part, question).await?;
        if let Some(refused) = replaying.refused {
            return Err(ReadError::Invalid(refused));
        }
        ranks.extend(replaying.ranks);
        not_looked_at.extend(replaying.not_looked_at);
    }
    for rank in &mut ranks {
        let is_same = |row: &&Rank| (row.rank, row.device, &row.process) == (rank.rank, rank.device, &rank.process);
        rank.recorded.retries = report.ranks.iter().find(is_same).and_then(|row| row.alloc_retries);
    }
    let left_out = report.ranks.len() - chosen.len();
    let mut answer = WhatIf::new(report.job, report.completeness, ranks, left_out);
    answer.not_looked_at = not_looked_at;
    if left_out > 0 {
        answer.not_looked_at.push(format!("{left_out} other ranks (--rank selects)."));
    }
    if !is_limited {
        answer.not_looked_at.push("The size of the device: without --limit no request fails.".to_owned());
    }
    answer.not_looked_at.extend(NEVER.map(str::to_owned));
    Ok(answer)
}

/// The rank with the highest peak and the outliers, or all ranks that were requested.
fn chosen(report: &Report, all: bool) -> Vec<Rank> {
    if all {
        let mut ranks = report.ranks.clone();
        // A rank with several devices has a row for each of them. One export has all of them.
        ranks.dedup_by(|a, b| a.rank == b.rank && a.process == b.process);
        return ranks;
    }
    let highest = report.ranks.iter().max_by_key(|rank| (rank.peak_reserved_bytes, Reverse(rank.rank)));
    let is_highest = |row: &Rank| highest.is_some_and(|top| (top.rank, &top.process) == (row.rank, &row.process));
    let mut ranks: Vec<Rank> = report.ranks.iter().filter(|row| !row.stands_out.is_empty()).cloned().collect();
    ranks.retain(|row| !is_highest(row));
    ranks.extend(highest.cloned());
    ranks.dedup_by(|a, b| a.rank == b.rank && a.process == b.process);
    // The rank with the highest peak is the last one.
    ranks.split_off(ranks.len().saturating_sub(RANKS_MAX))
}
