//! The next questions: which tool to call after an answer, with its arguments and the reason.
//!
//! Guarantees: every question can be asked as it stands. It follows from the kinds in the answer, never from a figure.

use memctl_answers::Job;
use memctl_answers::diagnose::Diagnosis;
use memctl_answers::finding::Finding;
use memctl_answers::jobs::Jobs;
use memctl_answers::ranks::Ranks;
use memctl_answers::report::Report;
use memctl_answers::verdict::Verdict;
use memctl_model::{FindingKind, JobState, VerdictKind};
use serde_json::{Value, json};

use super::catalogue::Tool;
use crate::args::values::SizedJob;

/// The most questions of an answer.
const QUESTIONS_MAX: usize = 4;

/// A question to ask next.
#[derive(Clone, Debug, PartialEq)]
pub struct Next {
    tool: Tool,
    arguments: Value,
    why: &'static str,
}

impl Next {
    /// A question.
    #[must_use]
    pub const fn new(tool: Tool, arguments: Value, why: &'static str) -> Self {
        Self { tool, arguments, why }
    }

    /// A question about a job.
    #[must_use]
    pub fn of(tool: Tool, job: &Job, why: &'static str) -> Self {
        Self::new(tool, json!({"job": job.id}), why)
    }

    /// The question as data.
    #[must_use]
    pub fn shown(&self) -> Value {
        json!({"tool": self.tool.name(), "arguments": self.arguments, "why": self.why})
    }

    /// The question in a line.
    #[must_use]
    pub fn line(&self) -> String {
        format!("{} {}: {}", self.tool.name(), self.arguments, self.why)
    }
}

/// The first questions, without those that are asked twice.
#[must_use]
pub fn first(all: Vec<Next>) -> Vec<Next> {
    let mut kept: Vec<Next> = Vec::new();
    for next in all {
        if kept.len() < QUESTIONS_MAX
            && !kept.iter().any(|known| known.tool == next.tool && known.arguments == next.arguments)
        {
            kept.push(next);
        }
    }
    kept
}

fn grows(verdict: Option<&Verdict>) -> bool {
    let kind = verdict.and_then(Verdict::known_kind);
    matches!(kind, Some(VerdictKind::Growing | VerdictKind::Filling))
}

/// What asks about a kind of finding.
fn about(finding: &Finding, job: &Job) -> Option<Next> {
    let question = |tool, why| Some(Next::of(tool, job, why));
    match finding.known_kind()? {
        FindingKind::Leak | FindingKind::EvalGraph | FindingKind::GraphKept | FindingKind::HiddenChain => {
            question(Tool::Leaks, "what grows, in full: rate, line, holders, remedy")
        }
        FindingKind::Oom => question(Tool::Oom, "why the request did not fit, and what filled the device"),
        FindingKind::NearOom => question(Tool::Ledger, "what uses the device's memory"),
        FindingKind::Fragmentation | FindingKind::FragmentationGrowth | FindingKind::Churn => {
            question(Tool::WhatIf, "which allocator settings would help")
        }
        FindingKind::RankSkew | FindingKind::RankLost | FindingKind::WrongDevice => {
            question(Tool::Ranks, "which ranks differ, and in which figure")
        }
        FindingKind::ForeignProcess | FindingKind::OutsideAllocator | FindingKind::PrivatePools => {
            question(Tool::Ledger, "memory outside the allocator and of other processes")
        }
        FindingKind::HostGrowth | FindingKind::Unjudged => question(Tool::Diagnose, "what is known, and what is not"),
    }
}

/// After a list of jobs: the worst ones, then a comparison of two runs.
#[must_use]
pub fn after_jobs(jobs: &Jobs) -> Vec<Next> {
    let is_grave = |job: &&Job| job.memory().is_some_and(Verdict::is_grave);
    let grave = jobs.jobs.iter().filter(is_grave);
    let mut all: Vec<Next> = grave.take(2).map(|job| Next::of(Tool::Verdict, job, "its verdict is not good")).collect();
    all.extend(jobs.jobs.first().map(|job| Next::of(Tool::Verdict, job, "the newest job")));
    let earlier = |job: &Job| jobs.jobs.iter().find(|other| other.name == job.name && other.run < job.run);
    let pair = jobs.jobs.iter().find_map(|job| Some((earlier(job)?, job)));
    all.extend(pair.map(|(before, after)| {
        Next::new(Tool::Diff, json!({"runs": [before.id, after.id]}), "what changed between its last two runs")
    }));
    first(all)
}

/// After a verdict.
#[must_use]
pub fn after_report(report: &Report) -> Vec<Next> {
    let job = &report.job;
    let mut all = Vec::new();
    if report.failed() {
        all.push(Next::of(Tool::Oom, job, "why a request failed, and what filled the device"));
    }
    if grows(report.verdict.as_ref()) || !report.findings.is_empty() {
        all.push(Next::of(Tool::Diagnose, job, "which line to change, how, and how to prove it"));
    }
    all.extend(report.findings.iter().filter_map(|finding| about(finding, job)));
    if grows(report.verdict.as_ref()) {
        all.push(Next::of(Tool::Leaks, job, "what grows, in full"));
        all.push(Next::of(Tool::Holders, job, "which Python objects hold the growing memory"));
    }
    all.push(Next::new(Tool::Sites, json!({"job": job.id, "at": "peak"}), "which lines held memory at the peak"));
    if report.ranks.len() > 1 {
        all.push(Next::of(Tool::Ranks, job, "whether ranks differ"));
    }
    first(all)
}

/// After the findings of growth.
#[must_use]
pub fn after_leaks(job: &Job, findings: &[Finding]) -> Vec<Next> {
    let mut all = Vec::new();
    if let Some(worst) = findings.first() {
        all.push(Next::new(
            Tool::Explain,
            json!({"job": job.id, "finding": worst.id}),
            "the worst finding, with the meaning of its kind and pattern",
        ));
        all.push(Next::of(Tool::Holders, job, "which Python objects hold the growing memory"));
    }
    all.push(Next::of(Tool::Diagnose, job, "which line to change, how, and how to prove it"));
    all.push(Next::of(Tool::Sites, job, "what else is live at the last epoch's end"));
    first(all)
}

/// After stored holders: a search only where the process runs.
#[must_use]
pub fn after_holders(job: &Job, known: bool) -> Vec<Next> {
    let mut all = Vec::new();
    if !known && job.state == JobState::Running {
        all.push(Next::new(
            Tool::SearchHolders,
            json!({"job": job.id, "budget_ms": 100}),
            "searches the running process, which pauses it for up to 100 ms; ask the user first",
        ));
    }
    all.push(Next::of(Tool::Leaks, job, "what grows, in full"));
    all.push(Next::of(Tool::Diagnose, job, "which line to change, how, and how to prove it"));
    first(all)
}

/// After the ranks: the ones that differ.
#[must_use]
pub fn after_ranks(ranks: &Ranks) -> Vec<Next> {
    let job = &ranks.job;
    let mut all = Vec::new();
    if let Some(odd) = ranks.ranks.iter().find(|rank| rank.is_odd()) {
        let rank = odd.rank.to_string();
        all.push(Next::new(Tool::Sites, json!({"job": job.id, "rank": rank}), "what is live on a rank that differs"));
        all.push(Next::new(Tool::Verdict, json!({"job": job.id, "rank": rank}), "the verdict of that rank alone"));
    }
    all.extend(ranks.findings.iter().filter_map(|finding| about(finding, job)).filter(|next| next.tool != Tool::Ranks));
    all.push(Next::of(Tool::Diagnose, job, "which line to change, how, and how to prove it"));
    first(all)
}

/// After a diagnosis.
#[must_use]
pub fn after_diagnosis(note: &Diagnosis) -> Vec<Next> {
    let job = &note.job;
    let mut all: Vec<Next> = note.findings.iter().filter_map(|finding| about(finding, job)).collect();
    if let Some(worst) = note.findings.first() {
        let arguments = json!({"job": job.id, "finding": worst.id});
        all.push(Next::new(Tool::Explain, arguments, "the worst finding, with the meaning of its kind and pattern"));
    }
    all.push(Next::new(Tool::Sites, json!({"job": job.id, "at": "peak"}), "which lines held memory at the peak"));
    all.push(Next::of(Tool::Ledger, job, "how much is parameters, activations and cache"));
    first(all)
}

/// After a view of a job's memory: the other views.
#[must_use]
pub fn other_views(job: &Job, shown: Tool) -> Vec<Next> {
    let views = [
        Next::of(Tool::Diagnose, job, "which line to change, how, and how to prove it"),
        Next::new(Tool::Sites, json!({"job": job.id, "at": "peak"}), "which lines held memory at the peak"),
        Next::of(Tool::Ledger, job, "how much is parameters, activations and cache"),
        Next::of(Tool::Timeline, job, "when memory rose or fell"),
    ];
    views.into_iter().filter(|next| next.tool != shown).collect()
}

/// After an answer about fragmentation, failed requests or settings.
#[must_use]
pub fn after_settings(job: &Job, shown: Tool) -> Vec<Next> {
    let views = [
        Next::of(Tool::WhatIf, job, "which allocator settings would help"),
        Next::of(Tool::Frag, job, "how reserved memory is fragmented"),
        Next::of(Tool::Diagnose, job, "which line to change, how, and how to prove it"),
        Next::new(Tool::Sites, json!({"job": job.id, "at": "peak"}), "which lines held memory at the peak"),
    ];
    views.into_iter().filter(|next| next.tool != shown).collect()
}

/// After a forecast.
#[must_use]
pub fn after_fit(jobs: &[SizedJob], recordings: &[String]) -> Vec<Next> {
    let checkpoint = json!({"recordings": recordings, "checkpoint": "all"});
    let mut all = vec![Next::new(Tool::Fit, checkpoint, "what activation checkpointing would save")];
    all.extend(jobs.first().map(|SizedJob(job, _)| {
        Next::new(Tool::Sites, json!({"job": job, "at": "peak"}), "which lines held memory at the recorded peak")
    }));
    all
}

/// After a comparison: the later run.
#[must_use]
pub fn after_diff(after: Option<&str>) -> Vec<Next> {
    let Some(after) = after else { return from_the_list() };
    let job = json!({"job": after});
    vec![
        Next::new(Tool::Verdict, job.clone(), "the verdict of the later run"),
        Next::new(Tool::Diagnose, job, "which line to change, how, and how to prove it"),
        Next::new(Tool::Sites, json!({"job": after, "at": "peak"}), "which lines held memory at its peak"),
    ]
}

/// After a call that failed, or an answer about no job.
#[must_use]
pub fn from_the_list() -> Vec<Next> {
    vec![Next::new(Tool::Jobs, json!({}), "which jobs there are, with their verdicts")]
}
