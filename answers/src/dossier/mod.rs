//! The content of a `memctl report` file about a job: the answers of other queries, combined.
//!
//! Guarantees: the rank, the moments and the timelines that are shown follow from the findings; a part that could not
//! be computed is included with its reason. Sends no requests and analyses nothing: the data comes from elsewhere, and
//! the verdict is `diagnose`'s.

pub mod flame;
pub mod table;
pub mod tree;

use crate::advice::Advice;
use crate::diagnose::{Diagnosis, rank_of};
use crate::ledger::{self, Ledger};
use crate::oom::Oom;
use crate::report::{Rank, Report};
use crate::sites::{RankSites, Sites};
use crate::timeline::Timeline;
use memctl_proto::v1;
use table::SiteClasses;

/// An answer, or why there is none.
pub type Part<T> = Result<T, String>;

/// The answers in addition to the report.
#[derive(Debug)]
pub struct Parts {
    /// The courses of the ranks that are drawn.
    pub course: Part<Timeline>,
    /// Requests that failed.
    pub failures: Part<Oom>,
    /// What lived when most was allocated.
    pub peak: Part<Sites>,
    /// What lived at the end of the early epoch.
    pub early: Part<Sites>,
    /// What lived at the end of the last epoch.
    pub late: Part<Sites>,
    /// The ledger when most was allocated, with its blocks.
    pub ledger: Part<Ledger>,
    /// What allocator settings would do, where a finding depends on it.
    pub replay: Option<Advice>,
}

impl Parts {
    /// No answers, with one reason for all.
    #[must_use]
    pub fn none(reason: &str) -> Self {
        let reason = || reason.to_owned();
        Self {
            course: Err(reason()),
            failures: Err(reason()),
            peak: Err(reason()),
            early: Err(reason()),
            late: Err(reason()),
            ledger: Err(reason()),
            replay: None,
        }
    }
}

/// The content of one file about a job.
#[derive(Debug)]
pub struct Dossier {
    /// The verdict, with the report that it rests on.
    pub note: Diagnosis,
    /// The epochs at whose ends the shown rank is compared.
    pub span: Span,
    /// The answers.
    pub parts: Parts,
    /// What the memory of a site is for.
    pub classes: SiteClasses,
}

/// Two epochs of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The first that the worst finding was seen in, else the first there is; `None` where there are not two.
    pub early: Option<u32>,
    /// The last that has ended.
    pub late: Option<u32>,
}

/// The epochs at whose ends a rank's memory is compared.
#[must_use]
pub fn span(report: &Report, rank: &Rank) -> Span {
    let ends = || rank.epoch_ends.iter().map(|end| end.epoch);
    let late = ends().next_back();
    let before = || ends().filter(|epoch| late.is_some_and(|late| *epoch < late));
    let since = report.findings.first().and_then(|finding| finding.first_seen.epoch).unwrap_or(0);
    Span { early: before().find(|epoch| *epoch >= since).or_else(|| before().next()), late }
}

/// The selection of one process in a report's job. `latest` may be another job by now, and a rank may have several
/// processes.
#[must_use]
pub fn same_job(selection: v1::Selection, report: &Report, rank: &Rank) -> v1::Selection {
    let (job, attempt) = (report.job.id.clone(), Some(report.job.attempt));
    let is_other = |other: &&Rank| other.rank == rank.rank && other.process != rank.process;
    let processes = match report.ranks.iter().find(is_other) {
        Some(_) => vec![rank.process.clone()],
        None => selection.processes,
    };
    v1::Selection { job, attempt, ranks: vec![rank.rank], processes, ..selection }
}

/// At most `most` ranks whose timeline is drawn: the rank of the verdict, ranks that failed or differ from others, then
/// the first ranks.
#[must_use]
pub fn drawn(report: &Report, most: usize) -> Vec<u32> {
    let is_odd = |rank: &&Rank| {
        !rank.stands_out.is_empty() || !rank.findings.is_empty() || rank.failure.is_some() || rank.ooms > 0
    };
    let odd = report.ranks.iter().filter(is_odd);
    let mut ranks = Vec::new();
    for rank in rank_of(report).into_iter().chain(odd).chain(&report.ranks) {
        if ranks.len() < most && !ranks.contains(&rank.rank) {
            ranks.push(rank.rank);
        }
    }
    ranks.sort_unstable();
    ranks
}

impl Dossier {
    /// Combines the parts. Proposed commands name no store, because the file's readers use another one.
    #[must_use]
    pub fn new(report: Report, mut parts: Parts) -> Self {
        let span = rank_of(&report).map_or(Span::default(), |rank| span(&report, rank));
        let replay = parts.replay.take();
        let note = Diagnosis::new(report, parts.late.as_ref().ok(), parts.ledger.as_ref().ok(), replay, "");
        let mut dossier = Self { note, span, parts, classes: SiteClasses::default() };
        if let Ok(blocks) = dossier.listed().map(|listed| listed.blocks.as_deref().unwrap_or_default()) {
            dossier.classes = SiteClasses::new(blocks);
        }
        dossier
    }

    /// The rank whose memory is shown by stack, which is the rank of the verdict.
    #[must_use]
    pub fn shown(&self) -> Option<&Rank> {
        rank_of(&self.note.report)
    }

    /// The live memory of that rank.
    ///
    /// # Errors
    /// Why it is not known.
    pub fn live<'s>(&self, sites: &'s Part<Sites>) -> Result<&'s RankSites, String> {
        let sites = sites.as_ref().map_err(Clone::clone)?;
        let is_it = |live: &&RankSites| {
            self.shown()
                .is_some_and(|rank| (live.rank, live.device, &live.process) == (rank.rank, rank.device, &rank.process))
        };
        sites.ranks.iter().find(is_it).ok_or_else(|| "no table of live memory is stored of it".to_owned())
    }

    fn listed(&self) -> Result<&ledger::Listed, String> {
        let ledger = self.parts.ledger.as_ref().map_err(Clone::clone)?;
        let is_it = |listed: &&ledger::Listed| {
            self.shown().is_some_and(|rank| {
                let of = &listed.rank;
                (of.rank, of.device, &of.process) == (rank.rank, rank.device, &rank.process)
            })
        };
        ledger.ranks.iter().find(is_it).ok_or_else(|| "no event of it is stored".to_owned())
    }

    /// The ledger of that rank's device.
    ///
    /// # Errors
    /// Why there is none.
    pub fn ledger(&self) -> Result<&ledger::Rank, String> {
        self.listed().map(|listed| &listed.rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{Finding, FirstSeen};
    use crate::report::EpochEnd;

    fn report(ranks: Vec<Rank>, since: Option<u32>) -> Report {
        let first_seen = FirstSeen { epoch: since, ..FirstSeen::default() };
        let finding = Finding { id: "1".into(), ranks: vec![2], first_seen, ..Finding::default() };
        Report { findings: vec![finding], ranks, ..Report::default() }
    }

    fn rank(rank: u32, epochs: u32, ooms: u64) -> Rank {
        let epoch_ends = (0..epochs).map(|epoch| EpochEnd { epoch, ..EpochEnd::default() }).collect();
        Rank { rank, epoch_ends, ooms, ..Rank::default() }
    }

    #[test]
    fn what_is_compared_begins_with_the_finding() {
        let of = |since, epochs| {
            let report = report(vec![rank(2, epochs, 0)], since);
            let Span { early, late } = span(&report, &report.ranks[0]);
            (early, late)
        };
        assert_eq!(of(Some(3), 9), (Some(3), Some(8)));
        assert_eq!(of(Some(8), 9), (Some(0), Some(8)));
        assert_eq!(of(None, 9), (Some(0), Some(8)));
        assert_eq!(of(None, 1), (None, Some(0)));
        assert_eq!(of(None, 0), (None, None));
    }

    #[test]
    fn the_ranks_that_matter_are_drawn() {
        let report = report((0..9).map(|of| rank(of, 1, u64::from(of == 7))).collect(), None);
        assert_eq!(drawn(&report, 4), [0, 1, 2, 7]);
        assert_eq!(drawn(&report, 1), [2]);
    }

    #[test]
    fn what_is_missing_has_its_reason() {
        let dossier = Dossier::new(report(vec![rank(2, 3, 0)], None), Parts::none("it expired"));
        assert_eq!(dossier.live(&dossier.parts.peak).unwrap_err(), "it expired");
        assert_eq!(dossier.ledger().unwrap_err(), "it expired");
        assert_eq!(dossier.shown().map(|rank| rank.rank), Some(2));
    }
}
