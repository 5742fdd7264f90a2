//! `memctl sites` as data: live memory by allocation site at one moment, and its folded stacks.

use std::collections::HashMap;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::{Answer, Completeness, Frame, Job};
use crate::format::csv::{self, Cell};
use crate::format::time::Time;
use crate::format::{folded, json};
use crate::naming::{name_of, place};

/// Live memory by allocation site.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Sites {
    /// See [`super::SCHEMA`].
    pub schema: u32,
    /// The job.
    pub job: Job,
    /// What the answer rests on.
    pub completeness: Completeness,
    /// By rank.
    pub ranks: Vec<RankSites>,
    /// How the page is drawn.
    #[serde(skip)]
    pub view: View,
}

/// How the page is drawn.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Whether library frames are drawn too.
    pub all_frames: bool,
    /// Branches below this share (0..1) are summed up.
    pub min_share: f64,
    /// The ranks were chosen, so each of them is drawn.
    pub chosen: bool,
    /// The moment in words.
    pub moment: String,
    /// Flags that select the same store, for the commands that the page suggests; `None` to suggest none.
    pub hint: Option<String>,
}

/// The live memory of one rank.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct RankSites {
    /// The rank.
    pub rank: u32,
    /// The process, by its name within the job.
    pub process: String,
    /// Device index in the process.
    pub device: u32,
    /// The moment.
    pub at: Time,
    /// The epoch under way or just ended.
    pub epoch: u32,
    /// The step under way or just ended.
    pub step: u64,
    /// Whether the figures are exact.
    pub exact: bool,
    /// At that moment.
    pub allocated_bytes: Option<u64>,
    /// At that moment.
    pub reserved_bytes: Option<u64>,
    /// Most bytes first.
    pub sites: Vec<Site>,
    /// Smaller ones that the answer leaves out; null where it has all.
    pub further: Option<Further>,
    /// Whether there were more sites than can be counted separately. The excess counts as one site without a stack.
    pub merged: bool,
}

/// Sites that an answer omits because it would become too large.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Further {
    /// How many.
    pub sites: u64,
    /// Live bytes of all.
    pub live_bytes: u64,
    /// Live blocks of all.
    pub live_blocks: u64,
}

/// Live memory of one stack.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Site {
    /// Live bytes.
    pub live_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// The class, as in the ledger, of at least nine tenths of its bytes; null if no class has so many, or if the query
    /// selected more than 8 devices.
    pub class: Option<String>,
    /// The innermost frame of the user's own code; null when no stack was recorded.
    pub site: Option<Frame>,
    /// Whose memory it is, as the process named it; null when it did not.
    pub owner: Option<String>,
    /// Innermost first; empty when no stack was recorded.
    pub stack: Vec<Frame>,
    /// By the epoch in which it was allocated.
    pub births: Vec<Birth>,
}

/// Live memory that was allocated in one epoch.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Birth {
    /// The epoch.
    pub epoch: u32,
    /// Live bytes.
    pub live_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
}

impl Sites {
    /// Whether stacks were recorded, judged by live memory; `None` if nothing is live.
    #[must_use]
    pub fn has_stacks(&self) -> Option<bool> {
        let mut sites = self.ranks.iter().flat_map(|rank| &rank.sites).peekable();
        sites.peek()?;
        Some(sites.any(|site| !site.stack.is_empty()))
    }

    /// Writes folded stacks whose frames have their lines. With several ranks, the rank is the root. Equal stacks are
    /// joined into one line, because some readers of the format add up equal lines and others use only the last one.
    ///
    /// # Errors
    /// The writer's.
    pub fn folded(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut lines: Vec<(String, u64)> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        for rank in &self.ranks {
            let root = (self.ranks.len() > 1).then(|| name_of(&rank.process, rank.rank));
            for site in &rank.sites {
                let owner = site.owner.as_ref().map(|owner| format!("[{owner}]"));
                let frames: Vec<String> = site.stack.iter().rev().map(place).chain(owner).collect();
                let stack = folded::stack(root.as_deref(), frames.iter().map(String::as_str));
                let place = *places.entry(stack.clone()).or_insert_with(|| {
                    lines.push((stack, 0));
                    lines.len() - 1
                });
                let line = &mut lines[place].1;
                *line = line.saturating_add(site.live_bytes);
            }
        }
        lines.iter().try_for_each(|(stack, bytes)| writeln!(out, "{stack} {bytes}"))
    }
}

impl Site {
    /// Makes the site of a stack, innermost frame first. A frame of the file `<owner>` names the owner of its memory.
    #[must_use]
    pub fn new(stack: Vec<Frame>) -> Self {
        let (owner, stack) = super::owned(stack);
        Self { site: super::site_of(&stack), owner, stack, ..Self::default() }
    }
}

/// One line of NDJSON.
#[derive(Serialize)]
struct Line<'a> {
    rank: u32,
    process: &'a str,
    device: u32,
    at: Time,
    epoch: u32,
    step: u64,
    exact: bool,
    #[serde(flatten)]
    site: &'a Site,
}

impl Answer for Sites {
    fn ndjson(&self, out: &mut dyn Write) -> io::Result<()> {
        for of in &self.ranks {
            // Levels are left out, because they belong to the rank and a line belongs to one site.
            let RankSites {
                rank,
                process,
                device,
                at,
                epoch,
                step,
                exact,
                allocated_bytes: _,
                reserved_bytes: _,
                sites,
                further: _,
                merged: _,
            } = of;
            let (rank, device, epoch, step, exact) = (*rank, *device, *epoch, *step, *exact);
            let line = |site| Line { rank, process, device, at: *at, epoch, step, exact, site };
            sites.iter().try_for_each(|site| json::line(out, &line(site)))?;
        }
        Ok(())
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let names = [
            "rank",
            "device",
            "at",
            "epoch",
            "step",
            "live_bytes",
            "live_blocks",
            "function",
            "file",
            "line",
            "stack",
            "process",
            "owner",
        ];
        csv::header(out, &names)?;
        for rank in &self.ranks {
            for site in &rank.sites {
                let stack: Vec<&str> = site.stack.iter().rev().map(|frame| frame.function.as_str()).collect();
                let cells = [
                    Cell::plain(rank.rank),
                    Cell::plain(rank.device),
                    Cell::plain(rank.at),
                    Cell::plain(rank.epoch),
                    Cell::plain(rank.step),
                    Cell::plain(site.live_bytes),
                    Cell::plain(site.live_blocks),
                    Cell::maybe_text(site.site.as_ref().map(|frame| frame.function.as_str())),
                    Cell::maybe_text(site.site.as_ref().map(|frame| frame.file.as_str())),
                    Cell::maybe(site.site.as_ref().and_then(|frame| frame.line)),
                    Cell::text(stack.join(";")),
                    Cell::text(&rank.process),
                    Cell::maybe_text(site.owner.as_deref()),
                ];
                csv::record(out, &cells)?;
            }
        }
        Ok(())
    }
}
