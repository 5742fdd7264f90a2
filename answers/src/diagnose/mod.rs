//! `memctl diagnose` as data: the six questions of a methodical diagnosis, answered with a job's figures.
//!
//! Guarantees: the same words on the page and in JSON, with the figures on which they are based. Works for every kind
//! of finding, and for a job without findings, stacks, epochs or an end. Analyses nothing: the findings are the
//! daemon's.

mod proving;
mod remedy;
mod words;

use memctl_model::{FindingKind, JobState};
use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::advice::Advice;
use super::finding::Finding;
use super::judged::{NotJudged, Scope};
use super::ledger::{ClassShare, Ledger, Rank as RankLedger};
use super::report::{EpochEnd, Rank, Report};
use super::sites::{RankSites, Sites};
use super::verdict::Verdict;
use super::{Answer, Completeness, Frame, Job, SCHEMA};
use crate::format::csv::{self, Cell};
use crate::format::json;

/// Sites that are named; the others are summed up.
const SITES_NAMED: usize = 3;

/// The note.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Diagnosis {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// The job.
    pub job: Job,
    /// What the answer rests on.
    pub completeness: Completeness,
    /// `critical`, `warning`, `info`; where nothing was found `none`, or `inconclusive` where that means nothing.
    #[cfg_attr(test, ts(type = "Severity | 'none' | 'inconclusive'"))]
    pub severity: Cow<'static, str>,
    /// One sentence.
    pub summary: String,
    /// The six questions, in their order.
    pub questions: Vec<Question>,
    /// The figures of the rank that the note is about; null when nothing was recorded.
    pub usage: Option<Usage>,
    /// What is wrong, the worst first; the note is about the first.
    pub findings: Vec<Finding>,
    /// What the findings, or their absence, rest on.
    #[serde(flatten)]
    pub scope: Scope,
    /// What the job's memory did; null from a daemon that does not say.
    pub verdict: Option<Verdict>,
    /// What allocator settings would do, where a finding depends on how memory is packed; null elsewhere.
    pub replay: Option<Advice>,
    /// What the answer was made from; absent from what a daemon answers.
    #[serde(skip)]
    pub report: Report,
}

/// Precedes the code of a [`Question`].
pub const EXAMPLE: &str = "The pattern as an example, which is not your code:";

/// A question and its answer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Question {
    /// The question.
    pub question: Cow<'static, str>,
    /// The answer, by paragraphs.
    pub answer: Vec<String>,
    /// Code as it may be now: an example of the pattern.
    pub before: Vec<String>,
    /// Code as it should be.
    pub after: Vec<String>,
    /// Commands to copy.
    pub commands: Vec<String>,
}

impl Question {
    fn new(question: &'static str, answer: Vec<String>) -> Self {
        Self { question: question.into(), answer, ..Self::default() }
    }
}

/// How much memory a rank uses, and for what.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Usage {
    /// The rank.
    pub rank: u32,
    /// At `moment`.
    pub allocated_bytes: Option<u64>,
    /// At `moment`.
    pub reserved_bytes: Option<u64>,
    /// Highest.
    pub peak_allocated_bytes: Option<u64>,
    /// Highest.
    pub peak_reserved_bytes: Option<u64>,
    /// Share of the reserved bytes that no live block used at the last boundary.
    pub fragmentation_ratio: Option<f64>,
    /// In use on the device by all processes.
    pub device_used_bytes: Option<u64>,
    /// All bytes of the device.
    pub device_total_bytes: Option<u64>,
    /// In use on the device by processes that are not of this rank.
    pub foreign_used_bytes: Option<u64>,
    /// `PYTORCH_CUDA_ALLOC_CONF`.
    pub allocator_conf: String,
    /// When these levels were read.
    pub moment: Cow<'static, str>,
    /// When the sites were read, as the beginning of a sentence.
    #[serde(skip)]
    pub live_when: Cow<'static, str>,
    /// The largest sites, most bytes first.
    pub by: Vec<Share>,
    /// Live in other sites.
    pub other_bytes: u64,
    /// How many other sites.
    pub other_sites: u64,
    /// What was allocated at the peak, by class; empty if that is unknown.
    pub peak_classes: Vec<ClassShare>,
    /// Live without a recorded stack; null when no table of live memory was stored.
    pub without_stack_bytes: Option<u64>,
}

/// A site's share of the live memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Share {
    /// The innermost frame of the user's own code.
    pub site: Frame,
    /// Live bytes.
    pub live_bytes: u64,
}

/// The rank that a note is about: among the ranks of the finding, or else among all ranks, the one that reserved most.
#[must_use]
pub fn rank_of(report: &Report) -> Option<&Rank> {
    let main = words::main(report);
    let named = |rank: &&Rank| {
        main.is_some_and(|finding| match finding.processes.is_empty() {
            true => finding.ranks.contains(&rank.rank),
            false => finding.processes.contains(&rank.process),
        })
    };
    let level = |rank: &&Rank| (rank.peak_reserved_bytes, rank.peak_allocated_bytes, std::cmp::Reverse(rank.rank));
    report.ranks.iter().filter(named).max_by_key(level).or_else(|| report.ranks.iter().max_by_key(level))
}

impl Diagnosis {
    /// Makes a diagnosis from a report, from the live memory of its [`rank_of`] at the end of the last epoch, and from
    /// that rank's ledger at the peak. `replay` is the advice on allocator settings; `flags` reach the same store.
    #[must_use]
    pub fn new(
        mut report: Report,
        sites: Option<&Sites>,
        peak: Option<&Ledger>,
        replay: Option<Advice>,
        flags: &str,
    ) -> Self {
        if let Some(has_stacks) = sites.and_then(Sites::has_stacks) {
            report.stacks = Some(has_stacks);
        }
        let main = words::main(&report);
        let usage = rank_of(&report).map(|rank| {
            let is_it = |process: &str, number: u32| number == rank.rank && process == rank.process;
            let live = sites.and_then(|sites| sites.ranks.iter().find(|live| is_it(&live.process, live.rank)));
            // Retained memory is named by the call that retains it, all other memory by the line that allocates it.
            let leak = main.filter(|finding| finding.known_kind().is_some_and(FindingKind::is_leak));
            let kept_by = leak.and_then(|finding| finding.site.as_ref()).map(|site| &site.frame);
            // If there are several devices, the fullest is used.
            let devices = peak.iter().flat_map(|peak| &peak.ranks).map(|listed| &listed.rank);
            let peak = devices
                .filter(|ledger| is_it(&ledger.process, ledger.rank))
                .max_by_key(|ledger| ledger.allocated_bytes);
            Usage::new(rank, live, peak, kept_by)
        });
        Self {
            schema: SCHEMA,
            job: report.job.clone(),
            completeness: report.completeness,
            severity: severity(&report).into(),
            summary: summary(&report),
            questions: words::questions(&report, usage.as_ref(), replay.as_ref(), flags),
            usage,
            findings: report.findings.clone(),
            scope: report.scope.clone(),
            verdict: report.verdict.clone(),
            replay,
            report,
        }
    }
}

impl Diagnosis {
    /// The gap because of which the absence of findings means nothing: no finding is a warning or worse, and growth
    /// could not have been found.
    #[must_use]
    pub fn inconclusive(&self) -> Option<&NotJudged> {
        self.scope.undecided(&self.findings)
    }
}

fn severity(report: &Report) -> &'static str {
    match words::main(report) {
        Some(finding) => finding.severity.name(),
        None if report.scope.inconclusive().is_some() => "inconclusive",
        None => "none",
    }
}

fn summary(report: &Report) -> String {
    if let Some(verdict) = &report.verdict {
        return verdict.sentence.clone();
    }
    match words::main(report) {
        Some(finding) if finding.title.is_empty() => finding.kind.clone(),
        Some(finding) => finding.title.clone(),
        None if report.ranks.is_empty() => "Nothing was recorded in this part of the job".to_owned(),
        None if report.failed() => "A request or a rank failed, and no finding explains why".to_owned(),
        None => match report.scope.inconclusive() {
            Some(not) => format!("Inconclusive: {}", not.reason),
            None if report.job.state == JobState::Running => "Nothing wrong was found so far".to_owned(),
            None => "Nothing wrong was found".to_owned(),
        },
    }
}

impl Usage {
    fn new(rank: &Rank, live: Option<&RankSites>, peak: Option<&RankLedger>, kept_by: Option<&Frame>) -> Self {
        let sample = rank.sample.as_ref();
        // Levels are those of an epoch's end, because the sites are known there. At the end of the recording the memory
        // of the last epoch may be freed.
        let end = rank.epoch_ends.last();
        let level = |of_end: fn(&EpochEnd) -> Option<u64>, of_rank| end.map_or(of_rank, of_end);
        let mut usage = Self {
            rank: rank.rank,
            allocated_bytes: level(|end| end.allocated_bytes, rank.allocated_bytes),
            reserved_bytes: level(|end| end.reserved_bytes, rank.reserved_bytes),
            peak_allocated_bytes: rank.peak_allocated_bytes,
            peak_reserved_bytes: rank.peak_reserved_bytes,
            fragmentation_ratio: rank.fragmentation_ratio,
            device_used_bytes: sample.and_then(|sample| sample.device_used_bytes).or(rank.device_used_bytes),
            device_total_bytes: sample.and_then(|sample| sample.device_total_bytes).or(rank.device_total_bytes),
            foreign_used_bytes: sample.and_then(|sample| sample.foreign_used_bytes),
            allocator_conf: rank.allocator_conf.clone(),
            moment: match (rank.epoch_ends.is_empty(), rank.levels_at.as_str()) {
                (false, _) => "at the last epoch's end",
                (true, "step_end") => "at the last step's end",
                (true, "window_end") => "at the end of the last span of time",
                (true, _) => "at the end of the recording",
            }
            .into(),
            live_when: match rank.epoch_ends.is_empty() {
                true => "Live at the end of the recording".into(),
                false => "Live then".into(),
            },
            by: Vec::new(),
            other_bytes: 0,
            other_sites: 0,
            peak_classes: peak.map_or_else(Vec::new, |ledger| ledger.classes.clone()),
            without_stack_bytes: None,
        };
        if let Some(live) = live.filter(|live| !live.sites.is_empty()) {
            usage.add(live, kept_by);
        }
        usage
    }

    /// Adds live memory by site. Memory that was allocated under the finding's frame counts as that frame's, so that
    /// the note uses one name for it.
    fn add(&mut self, live: &RankSites, kept_by: Option<&Frame>) {
        let mut sites: HashMap<&Frame, u64> = HashMap::new();
        let mut unknown = 0_u64;
        for site in &live.sites {
            let under = kept_by.filter(|frame| site.stack.contains(frame));
            match under.or(site.site.as_ref()) {
                Some(frame) => {
                    let bytes = sites.entry(frame).or_default();
                    *bytes = bytes.saturating_add(site.live_bytes);
                }
                None => unknown = unknown.saturating_add(site.live_bytes),
            }
        }
        let mut shares: Vec<Share> =
            sites.into_iter().map(|(site, live_bytes)| Share { site: site.clone(), live_bytes }).collect();
        shares.sort_by(|a, b| {
            let name = |share: &Share| (share.site.file.clone(), share.site.function.clone(), share.site.line);
            b.live_bytes.cmp(&a.live_bytes).then_with(|| name(a).cmp(&name(b)))
        });
        let others = shares.split_off(shares.len().min(SITES_NAMED));
        self.by = shares;
        self.other_bytes = others.iter().fold(0, |sum, share| sum.saturating_add(share.live_bytes));
        self.other_sites = others.len() as u64;
        self.without_stack_bytes = Some(unknown);
    }
}

impl Answer for Diagnosis {
    fn ndjson(&self, out: &mut dyn Write) -> io::Result<()> {
        json::line(out, self)
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        csv::header(out, &["question", "answer", "before", "after", "commands"])?;
        self.questions.iter().try_for_each(|question| {
            let cells = [
                Cell::plain(&question.question),
                Cell::text(question.answer.join(" ")),
                Cell::text(question.before.join("; ")),
                Cell::text(question.after.join("; ")),
                Cell::text(question.commands.join("; ")),
            ];
            csv::record(out, &cells)
        })
    }
}
