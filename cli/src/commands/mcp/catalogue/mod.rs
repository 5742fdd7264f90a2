//! The tools: their names and their descriptions. `params.rs` has their parameters, `lists.rs` the lists of their
//! answers.
//!
//! Guarantees: each tool is in [`Tool::ALL`] once. Only `search_holders` is not read-only.

mod lists;
mod params;

use std::sync::Arc;

use rmcp::model::{JsonObject, Tool as Listed, ToolAnnotations};
use serde_json::json;

use super::shape::schema;

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

/// The schema of every answer. (Without descriptions, because every tool repeats it in the list of tools; the server's
/// instructions and docs/integrations.md have them.)
fn output() -> JsonObject {
    let parts = [
        ("tool", "string"),
        ("answer", "object"),
        ("units", "string"),
        ("left_out", "array"),
        ("notes", "array"),
        ("next", "array"),
    ];
    let properties: JsonObject = parts.iter().map(|(name, kind)| ((*name).to_owned(), json!({"type": kind}))).collect();
    let required: Vec<&str> = parts.iter().map(|(name, _)| *name).collect();
    JsonObject::from_iter([
        ("type".to_owned(), "object".into()),
        ("properties".to_owned(), properties.into()),
        ("required".to_owned(), required.into()),
    ])
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
