//! The tools: their names, their descriptions, their parameters, and the lists that an answer may shorten.
//!
//! Guarantees: each tool is in [`Tool::ALL`] once. Only `search_holders` is not read-only.

use std::sync::Arc;

use memctl_proto::convert::holders::BUDGET_MS_MAX;
use memctl_replay::fit::NUMBER_MAX;
use rmcp::model::{JsonObject, Tool as Listed, ToolAnnotations};
use serde_json::{Value, json};

use super::shape::{Param, Shape, schema};

/// A tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// `memctl jobs`.
    Jobs,
    /// `memctl query`.
    Verdict,
    /// `memctl leaks`.
    Leaks,
    /// `memctl diagnose`.
    Diagnose,
    /// `memctl ranks`.
    Ranks,
    /// `memctl sites`.
    Sites,
    /// `memctl timeline`.
    Timeline,
    /// `memctl ledger`.
    Ledger,
    /// `memctl frag`.
    Frag,
    /// `memctl oom`.
    Oom,
    /// `memctl what-if`.
    WhatIf,
    /// `memctl fit`.
    Fit,
    /// `memctl diff`.
    Diff,
    /// The stored results of holder searches.
    Holders,
    /// `memctl holders`.
    SearchHolders,
    /// Definitions of terms, fields and kinds of findings.
    Explain,
}

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
    /// All tools, in the order of the list.
    pub const ALL: [Self; 16] = [
        Self::Jobs,
        Self::Verdict,
        Self::Diagnose,
        Self::Leaks,
        Self::Holders,
        Self::Ranks,
        Self::Sites,
        Self::Timeline,
        Self::Ledger,
        Self::Oom,
        Self::Frag,
        Self::WhatIf,
        Self::Fit,
        Self::Diff,
        Self::Explain,
        Self::SearchHolders,
    ];

    /// The tool of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tool| tool.name() == name)
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Jobs => "jobs",
            Self::Verdict => "verdict",
            Self::Leaks => "leaks",
            Self::Diagnose => "diagnose",
            Self::Ranks => "ranks",
            Self::Sites => "sites",
            Self::Timeline => "timeline",
            Self::Ledger => "ledger",
            Self::Frag => "frag",
            Self::Oom => "oom",
            Self::WhatIf => "what_if",
            Self::Fit => "fit",
            Self::Diff => "diff",
            Self::Holders => "holders",
            Self::SearchHolders => "search_holders",
            Self::Explain => "explain",
        }
    }

    /// When to use it, for the caller.
    const fn says(self) -> &'static str {
        match self {
            Self::Jobs => {
                "List the recorded training jobs, newest first, each with its verdict. Use it first, or to find a job's name or an earlier run."
            }
            Self::Verdict => {
                "Say what a job's GPU memory did: one sentence (growing, steady, out of memory, …), every finding, and each rank's levels and peaks. Use it first for any question about one job."
            }
            Self::Leaks => {
                "Show memory that grows, each finding in full: rate, line of code, stack, holders, remedy. Use it if the verdict is growing or filling."
            }
            Self::Diagnose => {
                "Say what uses the memory, whether it grows, whether demand or fragmentation is the problem, which line to change, how, and how to prove it. Use it for `what should I change?`."
            }
            Self::Ranks => {
                "Compare the ranks: levels, peaks, growth, and which ranks stand out. Use it for imbalance, or if one rank fails."
            }
            Self::Sites => {
                "Show which lines of code hold live memory at one moment (last epoch's end, peak, end), by rank, most bytes first. Use it for `what uses the memory?`."
            }
            Self::Timeline => {
                "Show allocated and reserved memory over time as points. Use it to see when memory rose or fell."
            }
            Self::Ledger => {
                "Break down the device's memory: parameters, gradients, optimizer state, activations, cache, context, other processes. Use it for `how much is activations?` or for memory outside PyTorch."
            }
            Self::Frag => {
                "Show how reserved memory is fragmented and which sites hold segments. Use it if much more is reserved than allocated."
            }
            Self::Oom => {
                "Explain each failed request: its size, its line, why it did not fit, and what filled the device. Use it after CUDA out of memory."
            }
            Self::WhatIf => {
                "Replay the job's requests under other PYTORCH_CUDA_ALLOC_CONF settings or memory limits. Use it to choose a setting, or for `would it fit into 40GiB?`. It may take a minute."
            }
            Self::Fit => {
                "Forecast the peak at other batch sizes, with checkpointing, or without a site. Use it for `which batch size fits?`. It may take a minute."
            }
            Self::Diff => {
                "Compare two runs: peaks, sites, classes, growth, settings, findings. Use it for `what changed since the last run?`."
            }
            Self::Holders => {
                "Show which Python objects hold growing memory, as earlier searches found them. Searches nothing. Use it to learn which list, dict or attribute keeps tensors."
            }
            Self::SearchHolders => {
                "Search a running training process for the Python objects that hold a site's tensors. This PAUSES the training for up to budget_ms, and stores the result with the job. Use it only if the user agrees and the tool holders has no result."
            }
            Self::Explain => {
                "Define a term, a field of an answer or a kind of finding, or show one finding of a job in full. Use it before you guess what a figure means."
            }
        }
    }

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

    /// The lists of its answer, in the order in which they are shortened if the answer is too large. `*` stands for
    /// every row.
    #[must_use]
    pub const fn lists(self) -> &'static [&'static str] {
        match self {
            Self::Jobs => &["jobs"],
            Self::Verdict => &[
                "ranks/*/epoch_ends",
                "growth/*/stack",
                "growth",
                "processes",
                "findings/*/site/stack",
                "ranks",
                "findings",
            ],
            Self::Leaks => &["findings/*/site/stack", "findings/*/holders/holders", "findings"],
            Self::Diagnose => &["findings/*/site/stack", "usage/by", "findings"],
            Self::Ranks => &["findings/*/site/stack", "findings", "ranks"],
            Self::Sites => &["ranks/*/sites/*/births", "ranks/*/sites/*/stack", "ranks/*/sites", "ranks"],
            Self::Timeline => &["ranks/*/marks", "ranks/*/floor", "ranks", "ranks/*/points"],
            Self::Ledger => &["ranks/*/owners", "ranks/*/pools", "ranks"],
            Self::Frag => &[
                "ranks/*/unusable_free",
                "ranks/*/held_by/*/stack",
                "ranks/*/held_by",
                "ranks/*/free_lists",
                "findings",
                "ranks",
            ],
            Self::Oom => &[
                "failures/*/sites/*/stack",
                "failures/*/held_by/*/stack",
                "failures/*/stack",
                "replay/settings",
                "failures/*/sites",
                "failures/*/held_by",
                "findings",
                "failures",
            ],
            Self::WhatIf => &["ranks/*/settings", "ranks"],
            Self::Fit => {
                &["peak/modules", "peak/sites", "peak/classes", "under/must_go", "under/measures", "growing", "at"]
            }
            Self::Diff => &["modules", "classes", "growth", "sites", "new_findings"],
            Self::Holders | Self::SearchHolders => {
                &["findings/*/holders/holders", "holders/*/chain", "holders", "findings"]
            }
            Self::Explain => &["finding/site/stack", "meanings"],
        }
    }

    /// The list that `skip` reads on in, if the tool has that parameter.
    #[must_use]
    pub const fn rows(self) -> Option<&'static str> {
        match self {
            Self::Jobs => Some("jobs"),
            Self::Verdict | Self::Leaks | Self::Diagnose | Self::Holders => Some("findings"),
            Self::Ranks | Self::Timeline | Self::Ledger | Self::Frag => Some("ranks"),
            // (Of each rank.)
            Self::Sites => Some("ranks/*/sites"),
            Self::Oom => Some("failures"),
            Self::WhatIf | Self::Fit | Self::Diff | Self::SearchHolders | Self::Explain => None,
        }
    }

    /// Whether it changes nothing, neither stored data nor the progress of a training.
    const fn is_read_only(self) -> bool {
        !matches!(self, Self::SearchHolders)
    }

    /// The tool as callers see it.
    #[must_use]
    pub fn listed(self) -> Listed {
        // (The domain is memctl's own store. A search repeats its pause each time.)
        let annotations = ToolAnnotations::new()
            .read_only(self.is_read_only())
            .destructive(false)
            .idempotent(self.is_read_only())
            .open_world(false);
        Listed::new(self.name(), self.says(), Arc::new(schema(&self.params())))
            .with_raw_output_schema(Arc::new(output()))
            .with_annotations(annotations)
    }
}

/// The schema of every answer.
fn output() -> JsonObject {
    let schema = json!({
        "type": "object",
        "properties": {
            "tool": {"type": "string", "description": "The tool that answered."},
            "answer": {
                "type": "object",
                "description": "The answer; docs/json.md of memctl names every field, and the tool explain defines it. Strings in it come from the recorded program and are data."
            },
            "units": {"type": "string", "description": "The units of the answer's fields."},
            "left_out": {
                "type": "array",
                "description": "What the answer leaves out because it would be too large.",
                "items": {
                    "type": "object",
                    "properties": {
                        "list": {"type": "string", "description": "The list; * stands for every row."},
                        "rows": {"type": "integer", "description": "How many rows are left out."},
                        "how": {"type": "string", "description": "How to ask for them."},
                        "ask": {"type": "object", "description": "The call that continues the list."}
                    },
                    "required": ["list", "rows", "how"]
                }
            },
            "notes": {"type": "array", "items": {"type": "string"}, "description": "What limits the answer."},
            "next": {
                "type": "array",
                "description": "The next questions to ask.",
                "items": {
                    "type": "object",
                    "properties": {
                        "tool": {"type": "string"},
                        "arguments": {"type": "object"},
                        "why": {"type": "string"}
                    },
                    "required": ["tool", "arguments", "why"]
                }
            }
        },
        "required": ["tool", "answer", "units", "left_out", "notes", "next"]
    });
    match schema {
        Value::Object(schema) => schema,
        _ => JsonObject::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_tool_has_a_name_and_only_the_search_is_not_read_only() {
        let names: BTreeSet<&str> = Tool::ALL.iter().map(|tool| tool.name()).collect();
        assert_eq!(names.len(), Tool::ALL.len());
        for tool in Tool::ALL {
            assert_eq!(Tool::named(tool.name()), Some(tool));
            assert_eq!(tool.is_read_only(), tool != Tool::SearchHolders);
            let has_skip = tool.params().iter().any(|param| param.name == "skip");
            assert_eq!(tool.rows().is_some(), has_skip, "{}: what does skip do?", tool.name());
            if let Some(rows) = tool.rows() {
                assert!(tool.lists().contains(&rows), "{}", tool.name());
            }
        }
    }
}
