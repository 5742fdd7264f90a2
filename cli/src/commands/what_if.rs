//! `memctl what-if`: the recorded requests replayed under other allocator settings and limits.
//!
//! Guarantees: says what it did not look at. Refuses settings that the allocator of the recording would refuse.

use std::io::Write;

use memctl_answers::replaying::{Limit, Question, ReplayError, Replaying};
use memctl_answers::report::{Rank, Report};
use memctl_answers::what_if::{NEVER, WhatIf};
use memctl_proto::v1;

use crate::advising;
use crate::args::{self, Global};
use crate::client::{asking, report, same_job};
use crate::connect::Connection;
use crate::exit::Failure;
use crate::output::show;
use crate::render::screen::Screen;

/// The most ranks that are replayed if none was chosen; the page names the others.
const RANKS_MAX: usize = 4;

/// See the module.
///
/// # Errors
/// See [`Failure`].
pub async fn run(
    args: &args::WhatIf,
    global: &Global,
    screen: &Screen,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let limits = args.limits.iter().copied().map(Limit::Share).collect();
    if args.from.zip(args.until).is_some_and(|(from, until)| from > until) {
        return Err(Failure::usage("--from is a later step than --until"));
    }
    let (from, until) = (args.from, args.until);
    let question = Question { settings: args.settings.clone(), limits, from, until, ..Question::default() };
    let answer = asking(global, async |connection| {
        let selection = args.selection();
        let report = report(connection, selection.clone(), global).await?;
        let chosen = chosen(&report, !selection.ranks.is_empty());
        let (mut ranks, mut not_looked_at, mut is_limited) = (Vec::new(), Vec::new(), true);
        for rank in &chosen {
            let selection = same_job(selection.clone(), &report, rank);
            let question = match args.limits.is_empty() && rank.ooms > 0 {
                true => recorded_limit(connection, &selection, rank, &question).await,
                false => question.clone(),
            };
            is_limited &= !question.limits.is_empty();
            let mut replaying = replayed(connection, &selection, &question).await?;
            if replaying.wants_other_rule {
                let question = Question { by_other_rule: true, ..question.clone() };
                replaying = replayed(connection, &selection, &question).await?;
            }
            if let Some(refused) = replaying.refused {
                return Err(Failure::usage(refused));
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
        answer.hint = report.hint;
        answer.not_looked_at = not_looked_at;
        if left_out > 0 {
            answer.not_looked_at.push(format!("{left_out} other ranks (--rank selects)."));
        }
        if !is_limited {
            answer.not_looked_at.push("The size of the device: without --limit no request fails.".to_owned());
        }
        answer.not_looked_at.extend(NEVER.map(str::to_owned));
        Ok(answer)
    });
    show(&answer.await?, global, screen, out)
}

/// The question with the limit at which a request of this rank failed: one where it is known, two where an interval is.
async fn recorded_limit(
    connection: &mut Connection,
    selection: &v1::Selection,
    rank: &Rank,
    question: &Question,
) -> Question {
    let failed = advising::failure(connection, selection, rank.rank, &rank.process).await;
    let mut limits = failed.map_or_else(Vec::new, |failed| failed.limits());
    limits.dedup();
    Question { is_interval: limits.len() > 1, limits, ..question.clone() }
}

/// The rank with the highest peak and the odd ones, or all that were asked for.
fn chosen(report: &Report, all: bool) -> Vec<Rank> {
    if all {
        let mut ranks = report.ranks.clone();
        // A rank with several devices has a row for each; its export has all of them.
        ranks.dedup_by(|a, b| a.rank == b.rank && a.process == b.process);
        return ranks;
    }
    let highest = report.ranks.iter().max_by_key(|rank| (rank.peak_reserved_bytes, std::cmp::Reverse(rank.rank)));
    let is_highest = |row: &Rank| highest.is_some_and(|top| (top.rank, &top.process) == (row.rank, &row.process));
    let mut ranks: Vec<Rank> = report.ranks.iter().filter(|row| !row.stands_out.is_empty()).cloned().collect();
    ranks.retain(|row| !is_highest(row));
    ranks.extend(highest.cloned());
    ranks.dedup_by(|a, b| a.rank == b.rank && a.process == b.process);
    // The highest is the last of them.
    ranks.split_off(ranks.len().saturating_sub(RANKS_MAX))
}

/// One rank, replayed.
async fn replayed(
    connection: &mut Connection,
    selection: &v1::Selection,
    question: &Question,
) -> Result<Replaying, Failure> {
    let mut replaying = Replaying::new(question.clone()).map_err(|error| failed(&error, connection))?;
    let request = v1::ExportRequest { selection: Some(selection.clone()), without_events: false };
    let parts = connection.query.export(request).await;
    let mut parts = parts.map_err(|status| connection.failure(&status))?.into_inner();
    while let Some(part) = parts.message().await.map_err(|status| connection.failure(&status))? {
        if let Some(body) = part.body {
            replaying.part(body).map_err(|error| failed(&error, connection))?;
        }
    }
    replaying.finish();
    Ok(replaying)
}

fn failed(error: &ReplayError, connection: &Connection) -> Failure {
    Failure::unreachable(format!("what {} sent cannot be replayed: {error}", connection.place))
}
