//! `memctl ledger` as data: all memory that each rank's device reports as used, by its users, and every live block if
//! requested.
//!
//! Guarantees: classes sum to allocated; allocated, cached, context and libraries, other processes and the unexplained
//! part sum to the used bytes of the device. Unmeasured values are null, and their bytes are then part of the
//! unexplained.

use std::io::{self, Write};

use memctl_analysis::classes::Shares;
use memctl_analysis::ledger::Ledger as Figures;
use serde::{Deserialize, Serialize};

use super::judged::NotJudged;
use super::{Answer, Completeness, Frame, Job};
use crate::format::csv::{self, Cell};
use crate::format::json;
use crate::format::time::Time;

/// The classes in the order in which they are shown.
pub const CLASSES: [&str; 7] =
    ["parameters", "gradients", "optimizer_state", "activations", "temporaries", "workspace", "unknown"];

/// How an answer is shown.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// In words.
    pub moment: String,
    /// Block by block.
    pub blocks: bool,
    /// Flags that reach the same store; `None` = no advice.
    pub hint: Option<String>,
}

/// The ledgers of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Ledger {
    /// See [`SCHEMA`](super::SCHEMA).
    pub schema: u32,
    /// The job.
    pub job: Job,
    /// What the answer rests on.
    pub completeness: Completeness,
    /// By rank and device.
    pub ranks: Vec<Listed>,
    /// What could not be determined, and why.
    pub not_judged: Vec<NotJudged>,
    /// For the page and the tables.
    #[serde(skip)]
    pub view: View,
}

/// A rank's ledger and its blocks.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Listed {
    /// The figures.
    #[serde(flatten)]
    pub rank: Rank,
    /// Live blocks by address; null when they were not asked for.
    pub blocks: Option<Vec<Block>>,
}

/// The ledger of one rank's device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Rank {
    /// The rank.
    pub rank: u32,
    /// The process, by its name within the job.
    pub process: String,
    /// Device index in the process.
    pub device: u32,
    /// The moment.
    pub at: Time,
    /// Epoch of the moment.
    pub epoch: u32,
    /// Step of the moment.
    pub step: u64,
    /// Whether the allocator's part is exact.
    pub exact: bool,
    /// Handed out by the allocator.
    pub allocated_bytes: u64,
    /// Allocated bytes by class; empty classes are omitted.
    pub classes: Vec<ClassShare>,
    /// Reserved and not handed out.
    pub cached_bytes: u64,
    /// Of NCCL's communicators; null if NCCL did not report it; it is then part of `context_bytes`.
    pub nccl_bytes: Option<u64>,
    /// This process's, except the allocator and what NCCL reports: its context, kernels, libraries.
    pub context_bytes: Option<u64>,
    /// Of other processes.
    pub others_bytes: Option<u64>,
    /// In use on the device by what was not measured, its context or other processes: null where both were.
    pub unmeasured_bytes: Option<u64>,
    /// Left over where everything was measured; below zero when the parts, measured at different moments, exceed the
    /// whole.
    pub unexplained_bytes: Option<i64>,
    /// Of what is used.
    pub unexplained_share: Option<f64>,
    /// In use on the device, by all processes.
    pub device_used_bytes: Option<u64>,
    /// The device's size.
    pub device_total_bytes: Option<u64>,
    /// When the device was measured.
    pub measured_at: Option<Time>,
    /// Live blocks that had no room in the answer, where they were asked for: the smallest.
    pub blocks_left_out: u64,
    /// Allocated memory that the process named, by name, most first; the rest of it has no name.
    pub owners: Vec<Owned>,
    /// Names that had no room: those with least memory.
    pub owners_left_out: u64,
    /// Private pools, most reserved first.
    pub pools: Vec<Pool>,
}

/// Memory of one name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Owned {
    /// The name, as the process gave it.
    pub owner: String,
    /// Live bytes.
    pub live_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// Of what is allocated.
    pub share: f64,
}

/// A private pool of the allocator: a CUDA graph's, or a `MemPool`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Pool {
    /// PyTorch's id of it, `0.1`.
    pub pool: String,
    /// Taken from the driver.
    pub reserved_bytes: u64,
    /// Of these, handed out.
    pub allocated_bytes: u64,
    /// The name that most of the memory in it has; null when none has one.
    pub owner: Option<String>,
}

/// Bytes of a class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct ClassShare {
    /// Its name.
    pub class: String,
    /// Live bytes.
    pub live_bytes: u64,
    /// Of what is allocated.
    pub share: f64,
}

/// A live block.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Block {
    /// Device address.
    pub address: u64,
    /// Size as handed out.
    pub bytes: u64,
    /// Size as asked for.
    pub requested_bytes: u64,
    /// Its class.
    pub class: String,
    /// Epoch of its birth.
    pub birth_epoch: u32,
    /// Step of its birth.
    pub birth_step: u64,
    /// Phase of its birth; null when none was marked.
    pub birth_phase: Option<String>,
    /// The innermost frame of the user's own code; null when no stack was recorded.
    pub site: Option<Frame>,
    /// Whose memory it is, as the process named it; null when it did not.
    pub owner: Option<String>,
}

/// The classes of a ledger that have bytes, in the order of [`CLASSES`].
#[must_use]
pub fn shares(of: &Shares) -> Vec<ClassShare> {
    let (all, bytes) = (of.total(), of.ranked());
    let share = |name: &str| {
        let (_, bytes) = bytes.iter().find(|(class, bytes)| class.name() == name && *bytes > 0)?;
        Some(ClassShare { class: name.to_owned(), live_bytes: *bytes, share: ratio(*bytes, all) })
    };
    CLASSES.into_iter().filter_map(share).collect()
}

/// A part of a whole, 0..1.
#[must_use]
pub fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

impl Listed {
    fn each(&self) -> impl Iterator<Item = (&Rank, &Block)> {
        self.blocks.iter().flatten().map(|block| (&self.rank, block))
    }
}

impl Rank {
    /// The figures of a device at a moment, without its place.
    #[must_use]
    pub fn new(figures: &Figures, at_ns: u64) -> Self {
        let &Figures {
            classes: _,
            cached_bytes,
            nccl_bytes,
            context_bytes,
            others_bytes,
            unexplained_bytes: rest,
            device_used_bytes,
            device_total_bytes,
            measured_ns,
        } = figures;
        // Unmeasured memory is not unexplained, unless the known parts exceed the total.
        let measured = context_bytes.is_some() && others_bytes.is_some();
        let unmeasured_bytes = rest.filter(|_| !measured).and_then(|rest| u64::try_from(rest).ok());
        let unexplained_bytes = rest.filter(|_| unmeasured_bytes.is_none());
        let unexplained_share =
            unexplained_bytes.zip(device_used_bytes).map(|(rest, used)| rest as f64 / used.max(1) as f64);
        Self {
            at: Time(at_ns),
            allocated_bytes: figures.allocated_bytes(),
            classes: shares(&figures.classes),
            cached_bytes,
            nccl_bytes,
            context_bytes,
            others_bytes,
            unmeasured_bytes,
            unexplained_bytes,
            unexplained_share,
            device_used_bytes,
            device_total_bytes,
            measured_at: measured_ns.map(Time),
            ..Self::default()
        }
    }

    /// Live bytes of a class.
    fn of(&self, class: &str) -> u64 {
        self.classes.iter().find(|share| share.class == class).map_or(0, |share| share.live_bytes)
    }
}

/// One line of NDJSON.
#[derive(Serialize)]
#[serde(tag = "record", rename_all = "snake_case")]
enum Line<'a> {
    Job {
        #[serde(flatten)]
        job: &'a Job,
        not_judged: &'a [NotJudged],
    },
    Rank(&'a Rank),
    Block {
        rank: u32,
        process: &'a str,
        device: u32,
        #[serde(flatten)]
        block: &'a Block,
    },
}

impl Answer for Ledger {
    fn ndjson(&self, out: &mut dyn Write) -> io::Result<()> {
        json::line(out, &Line::Job { job: &self.job, not_judged: &self.not_judged })?;
        for Listed { rank, blocks } in &self.ranks {
            json::line(out, &Line::Rank(rank))?;
            let of = |block| Line::Block { rank: rank.rank, process: &rank.process, device: rank.device, block };
            let mut lines = blocks.iter().flatten().map(of);
            lines.try_for_each(|line| json::line(out, &line))?;
        }
        Ok(())
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.view.blocks { self.blocks_csv(out) } else { self.ranks_csv(out) }
    }
}

impl Ledger {
    fn ranks_csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let classes = CLASSES.map(|class| format!("{class}_bytes"));
        let mut names = vec!["rank", "device", "at", "epoch", "step", "exact"];
        names.extend(classes.iter().map(String::as_str));
        names.extend(["allocated_bytes", "cached_bytes", "context_bytes", "others_bytes", "unexplained_bytes"]);
        names.extend(["device_used_bytes", "device_total_bytes", "measured_at", "unmeasured_bytes", "process"]);
        names.push("nccl_bytes");
        csv::header(out, &names)?;
        for Listed { rank, .. } in &self.ranks {
            let mut cells = vec![
                Cell::plain(rank.rank),
                Cell::plain(rank.device),
                Cell::plain(rank.at),
                Cell::plain(rank.epoch),
                Cell::plain(rank.step),
                Cell::plain(rank.exact),
            ];
            cells.extend(CLASSES.map(|class| Cell::plain(rank.of(class))));
            cells.extend([
                Cell::plain(rank.allocated_bytes),
                Cell::plain(rank.cached_bytes),
                Cell::maybe(rank.context_bytes),
                Cell::maybe(rank.others_bytes),
                Cell::maybe(rank.unexplained_bytes),
                Cell::maybe(rank.device_used_bytes),
                Cell::maybe(rank.device_total_bytes),
                Cell::maybe(rank.measured_at),
                Cell::maybe(rank.unmeasured_bytes),
                Cell::text(&rank.process),
                Cell::maybe(rank.nccl_bytes),
            ]);
            csv::record(out, &cells)?;
        }
        Ok(())
    }

    fn blocks_csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let names = [
            "rank",
            "device",
            "address",
            "bytes",
            "requested_bytes",
            "class",
            "birth_epoch",
            "birth_step",
            "birth_phase",
            "function",
            "file",
            "line",
            "process",
            "owner",
        ];
        csv::header(out, &names)?;
        for (rank, block) in self.ranks.iter().flat_map(Listed::each) {
            let cells = [
                Cell::plain(rank.rank),
                Cell::plain(rank.device),
                Cell::plain(format_args!("{:#x}", block.address)),
                Cell::plain(block.bytes),
                Cell::plain(block.requested_bytes),
                Cell::text(&block.class),
                Cell::plain(block.birth_epoch),
                Cell::plain(block.birth_step),
                Cell::maybe_text(block.birth_phase.as_deref()),
                Cell::maybe_text(block.site.as_ref().map(|frame| frame.function.as_str())),
                Cell::maybe_text(block.site.as_ref().map(|frame| frame.file.as_str())),
                Cell::maybe(block.site.as_ref().and_then(|frame| frame.line)),
                Cell::text(&rank.process),
                Cell::maybe_text(block.owner.as_deref()),
            ];
            csv::record(out, &cells)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_not_called_unexplained() {
        let rank = |context: Option<u64>, rest: i64| {
            let used = (Some(7), Some(100), Some(rest));
            let (others_bytes, device_used_bytes, unexplained_bytes) = used;
            let figures = Figures {
                context_bytes: context,
                others_bytes,
                device_used_bytes,
                unexplained_bytes,
                ..Figures::default()
            };
            Rank::new(&figures, 0)
        };
        let figures = |rank: Rank| (rank.unmeasured_bytes, rank.unexplained_bytes, rank.unexplained_share);
        assert_eq!(figures(rank(Some(3), 9)), (None, Some(9), Some(0.09)));
        assert_eq!(figures(rank(None, 9)), (Some(9), None, None));
        assert_eq!(figures(rank(None, -9)), (None, Some(-9), Some(-0.09)), "the known parts exceed the whole");
    }
}
