//! `memctl holders` as data: the Python objects that hold the tensors of a site, as reported by the running process.
//!
//! Guarantees: the answer always contains the number of covered blocks, the time for which the process was paused, and
//! what was not searched. Nothing is guessed: a block without a known holder is counted.

use std::borrow::Cow;
use std::io::{self, Write};

use memctl_model::{HolderBound, TensorHolder};
use serde::{Deserialize, Serialize};

use super::{Answer, Frame, Job};
use crate::format::csv::{self, Cell};
use crate::format::json;

/// The name of the state of a bounded holder.
const BOUNDED: &str = "bounded";

/// The holders of a site's tensors.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Holders {
    /// See [`super::SCHEMA`].
    pub schema: u32,
    /// The job.
    pub job: Job,
    /// The rank that was asked.
    pub rank: u32,
    /// The process, by its name within the job.
    pub process: String,
    /// The site that was asked about.
    pub site: Frame,
    /// The finding whose site it is; null where the question named the site.
    pub finding: Option<String>,
    /// Live blocks of the site.
    pub live_blocks: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// Those of them whose holders were searched: the oldest ones without what was made once, at most 256.
    pub asked_blocks: u32,
    /// Of these, how many a holder was found for.
    pub found_blocks: u32,
    /// Holders, most blocks first.
    pub holders: Vec<Holder>,
    /// Objects of the interpreter that were looked at.
    pub objects: u64,
    /// How long the process stood still for it.
    pub took_seconds: f64,
    /// How long it might have.
    pub budget_seconds: f64,
    /// Slices of the search.
    pub slices: u32,
    /// The longest of them.
    pub longest_seconds: f64,
    /// Whether all that can be looked at was.
    pub complete: bool,
    /// What was not looked at, in sentences.
    pub not_looked_at: Vec<String>,
    /// The epoch in which the process answered, as far as it has any.
    pub epoch: Option<u32>,
    /// Flags that reach the same daemon; `None` = no advice.
    #[serde(skip)]
    pub hint: Option<String>,
}

/// The holder of some of the tensors.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Holder {
    /// `list`, `dict`, `attribute`, `closure`, `hook`, …
    pub kind: String,
    /// One sentence.
    pub sentence: String,
    /// From the root to the tensor, one step each.
    pub chain: Vec<String>,
    /// Of the blocks that were asked about, how many it holds.
    pub blocks: u32,
    /// Their bytes.
    pub bytes: u64,
    /// How many tensors the innermost container holds; null where there is none.
    pub tensors: Option<u64>,
    /// What it is: container, cache, cycle, frame, thread, module, graph, cpp, variable, object, or unknown.
    pub holder: Cow<'static, str>,
    /// Its type: `list`, `collections.deque`, `functools.lru_cache`, …
    #[serde(rename = "type")]
    pub type_name: String,
    /// The variable or attribute; null where it has none.
    pub name: Option<String>,
    /// The module, class or function whose that is.
    pub owner: Option<String>,
    /// Items of the container; null where there is none.
    pub length: Option<u64>,
    /// unbounded, bounded, or unknown.
    pub bound: Cow<'static, str>,
    /// Items that it may have, where that is known.
    pub limit: Option<u64>,
    /// Of a thread: which, and where it is.
    pub thread: Option<String>,
    /// How many threads hold the same.
    pub threads: u32,
    /// Of a cycle: whether the garbage collector is on, off, or as good as never runs (rare).
    pub collector: Option<Cow<'static, str>>,
    /// What makes C++ hold it: create_graph or autocast_cache; null where that is not known.
    pub pattern: Option<Cow<'static, str>>,
}

impl From<&TensorHolder> for Holder {
    fn from(holder: &TensorHolder) -> Self {
        let TensorHolder {
            kind,
            sentence,
            chain,
            blocks,
            bytes,
            tensors,
            holder,
            type_name,
            name,
            owner,
            length,
            bound,
            thread,
            threads,
            collector,
            pattern,
            subject: _,
            identity: _,
        } = holder.clone();
        let (bound, limit) = match bound {
            HolderBound::Unknown => ("unknown", None),
            HolderBound::Unbounded => ("unbounded", None),
            HolderBound::Bounded { limit } => (BOUNDED, limit),
        };
        Self {
            kind,
            sentence,
            chain,
            blocks,
            bytes,
            tensors,
            holder: holder.name().into(),
            type_name,
            name,
            owner,
            length,
            bound: bound.into(),
            limit,
            thread,
            threads,
            collector: collector.map(|collector| collector.name().into()),
            pattern: pattern.map(|pattern| pattern.name().into()),
        }
    }
}

impl Holder {
    /// Whether it has a bound.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        self.bound == BOUNDED
    }
}

/// A line of NDJSON.
#[derive(Serialize)]
struct Line<'a> {
    rank: u32,
    process: &'a str,
    #[serde(flatten)]
    holder: &'a Holder,
}

impl Answer for Holders {
    fn ndjson(&self, out: &mut dyn Write) -> io::Result<()> {
        let of = |holder| Line { rank: self.rank, process: &self.process, holder };
        self.holders.iter().try_for_each(|holder| json::line(out, &of(holder)))
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        csv::header(out, &["rank", "kind", "sentence", "chain", "blocks", "bytes", "tensors", "process"])?;
        for holder in &self.holders {
            let cells = [
                Cell::plain(self.rank),
                Cell::text(&holder.kind),
                Cell::text(&holder.sentence),
                Cell::text(holder.chain.join(" > ")),
                Cell::plain(holder.blocks),
                Cell::plain(holder.bytes),
                Cell::maybe(holder.tensors),
                Cell::text(&self.process),
            ];
            csv::record(out, &cells)?;
        }
        Ok(())
    }
}
