//! The parameters of each tool.
//!
//! Guarantees: a parameter that several tools have means the same in all of them.

use memctl_proto::convert::holders::BUDGET_MS_MAX;
use memctl_replay::fit::NUMBER_MAX;

use super::Tool;
use crate::commands::mcp::shape::{Param, Shape};

const JOB: Param = Param::optional(
    "job",
    Shape::Text,
    "The job: NAME (its newest run), NAME#RUN, or latest, the newest of all (the default). The tool jobs lists them.",
);
const ATTEMPT: Param =
    Param::optional("attempt", Shape::Number(0, u32::MAX as u64), "The attempt. Default: the last one.");
const RANK: Param = Param::optional("rank", Shape::Text, "Only these ranks, such as 0-3,7. Default: all.");
const EPOCH: Param = Param::optional(
    "epoch",
    Shape::Text,
    "Only these epochs, such as 2..5 (both ends included), 2.. or 3. Default: all.",
);
const SKIP: Param = Param::optional(
    "skip",
    Shape::Number(0, u32::MAX as u64),
    "Leave out this many rows at the beginning of the list, to read on where an answer ended.",
);
const NARROW: [Param; 5] = [JOB, ATTEMPT, RANK, EPOCH, SKIP];

const JOBS: [Param; 2] =
    [Param::optional("limit", Shape::Number(1, 10_000), "The most jobs to list. Default: 100."), SKIP];
const LEAKS: [Param; 6] = [
    JOB,
    ATTEMPT,
    RANK,
    EPOCH,
    SKIP,
    Param::optional("all", Shape::Flag, "Include suspected growth, of severity info."),
];
const SITES: [Param; 7] = [
    JOB,
    ATTEMPT,
    RANK,
    EPOCH,
    SKIP,
    Param::optional(
        "at",
        Shape::Choice(&["peak", "end", "epoch_end"]),
        "The moment: peak (when most was allocated, on each rank), end (of the recording), or epoch_end. Default: the end of the last epoch.",
    ),
    Param::optional("epoch_end", Shape::Number(0, u32::MAX as u64), "For at = epoch_end: which epoch."),
];
const TIMELINE: [Param; 6] = [
    JOB,
    ATTEMPT,
    RANK,
    EPOCH,
    SKIP,
    Param::optional("points", Shape::Number(2, 200), "Points of each rank's curve. Default: 16."),
];
const LEDGER: [Param; 7] = [
    JOB,
    ATTEMPT,
    RANK,
    EPOCH,
    SKIP,
    Param::optional(
        "at",
        Shape::Choice(&["peak", "end", "epoch_end"]),
        "The moment: peak (the default), end (of the recording), or epoch_end.",
    ),
    Param::optional("epoch_end", Shape::Number(0, u32::MAX as u64), "For at = epoch_end: which epoch."),
];
const WHAT_IF: [Param; 7] = [
    JOB,
    ATTEMPT,
    RANK,
    Param::optional(
        "settings",
        Shape::Texts,
        "Allocator settings to replay, each written as in PYTORCH_CUDA_ALLOC_CONF (expandable_segments:True). Default: a dozen usual settings.",
    ),
    Param::optional(
        "limits",
        Shape::Texts,
        "Memory that the process may reserve, such as 40GiB: shows whether the job fits. Default: no limit.",
    ),
    Param::optional("from", Shape::Number(0, u64::MAX), "The first step to replay. Default: from the beginning."),
    Param::optional("until", Shape::Number(0, u64::MAX), "The last step to replay. Default: to the end."),
];
const FIT: [Param; 7] = [
    Param::needed(
        "recordings",
        Shape::Texts,
        "One job or two of the same training, each with the size (batch, sequence, layers) at which it was recorded: [\"gpt2=4\"] or [\"gpt2=4\", \"gpt2-b8=8\"]. Two recordings make the forecast more certain.",
    ),
    Param::optional("at", Shape::Numbers(1, NUMBER_MAX), "The sizes to forecast, such as [16, 32]."),
    Param::optional("without", Shape::Text, "Forecast without the blocks of this site: FILE:LINE, or a function."),
    Param::optional(
        "checkpoint",
        Shape::Text,
        "Forecast with activation checkpointing of these modules: a class, FILE:LINE of the call, or all.",
    ),
    Param::optional(
        "under",
        Shape::Text,
        "Explain the peak, and show changes that reduce it below this size, such as 24GiB.",
    ),
    Param::optional("rank", Shape::Number(0, u32::MAX as u64), "The rank. Default: the one with the highest peak."),
    Param::optional(
        "device_memory",
        Shape::Text,
        "The memory that the process may reserve, such as 80GiB. With it the answer states which sizes fit.",
    ),
];
const DIFF: [Param; 2] = [
    Param::optional(
        "runs",
        Shape::Texts,
        "The two runs to compare, the earlier one first: NAME#RUN, NAME, or a file of `memctl baseline save` (over stdio only). One name means its newest run and the run before it. Default: the newest job's.",
    ),
    Param::optional("ignore", Shape::Text, "Do not report changes up to this size. Default: 64KiB."),
];
const HOLDERS: [Param; 4] = [JOB, ATTEMPT, RANK, SKIP];
const SEARCH: [Param; 5] = [
    Param::needed(
        "budget_ms",
        Shape::Number(1, BUDGET_MS_MAX as u64),
        "For how many milliseconds the search may pause the training process in all; 100 is usual.",
    ),
    JOB,
    ATTEMPT,
    Param::optional(
        "rank",
        Shape::Number(0, u32::MAX as u64),
        "The rank whose process is searched. Default: the first one on which memory grows.",
    ),
    Param::optional(
        "site",
        Shape::Text,
        "The site that allocated the tensors: FILE:LINE, or a function. Default: the site of the worst growth.",
    ),
];
const EXPLAIN: [Param; 4] = [
    Param::optional(
        "term",
        Shape::Text,
        "A term (reserved), a field of an answer (peak_reserved_bytes) or a kind of finding (eval_graph).",
    ),
    Param::optional("finding", Shape::Text, "The id or the kind of a finding of the job: the finding in full."),
    JOB,
    ATTEMPT,
];

impl Tool {
    /// Its parameters.
    #[must_use]
    pub fn params(self) -> Vec<&'static Param> {
        let params: &'static [Param] = match self {
            Self::Jobs => &JOBS,
            Self::Verdict | Self::Diagnose | Self::Ranks | Self::Frag | Self::Oom => &NARROW,
            Self::Leaks => &LEAKS,
            Self::Sites => &SITES,
            Self::Timeline => &TIMELINE,
            Self::Ledger => &LEDGER,
            Self::WhatIf => &WHAT_IF,
            Self::Fit => &FIT,
            Self::Diff => &DIFF,
            Self::Holders => &HOLDERS,
            Self::SearchHolders => &SEARCH,
            Self::Explain => &EXPLAIN,
        };
        params.iter().collect()
    }
}
