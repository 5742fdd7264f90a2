//! The page of `memctl ledger`: for each rank, the parts of the device's memory. They add up to the memory in use that
//! the device reports.
//!
//! Guarantees: everything that is known has a row. Unmeasured parts are named below the table and not shown as 0.

use memctl_answers::ledger::{Ledger, Rank, ratio};
use memctl_answers::naming::{command, name_of, process_flag};
use memctl_model::{HumanBytes, JobState};

use super::{Page, completeness, heading, next};
use crate::render::screen::{Screen, Tone};
use crate::render::table::{Table, left, right};
use crate::render::text::{plural, safe};

/// Maximum number of names, and of pools, that are shown per rank.
const OWNERS_SHOWN: usize = 10;
/// Maximum number of ranks that are shown. Each rank takes a dozen lines.
const RANKS_SHOWN: usize = 8;

impl Page for Ledger {
    fn page(&self, screen: &Screen) -> String {
        page(self, screen)
    }
}

/// The page's text.
#[must_use]
pub fn page(answer: &Ledger, screen: &Screen) -> String {
    let mut out = heading(&answer.job, screen);
    out.push('\n');
    if answer.ranks.is_empty() {
        let nothing = "No allocator event of this part of the job is stored, so there is no ledger.";
        out.push_str(&format!("{}\n", screen.wrapped(nothing, 0)));
        return out;
    }
    out.push_str(&format!("{}\n", screen.wrapped(&answer.view.moment, 0)));
    for listed in answer.ranks.iter().take(RANKS_SHOWN) {
        out.push('\n');
        out.push_str(&of_rank(&listed.rank, answer.job.world_size, screen));
    }
    if let Some(more) = answer.ranks.len().checked_sub(RANKS_SHOWN).filter(|&more| more > 0) {
        let line = format!("and {} (select them with --rank)", plural(more as u64, "more rank"));
        out.push_str(&format!("\n{}\n", screen.wrapped(&line, 0)));
    }
    out.push('\n');
    out.push_str(&completeness(&answer.completeness, answer.job.state == JobState::Running, screen));
    if let (Some(hint), Some(first)) = (&answer.view.hint, answer.ranks.first()) {
        let chosen = process_flag(&first.rank.process, first.rank.rank);
        let commands = [
            (command("sites", &answer.job, &format!("{chosen} --peak"), hint), "the lines that allocated it"),
            (command("ledger", &answer.job, &format!("{chosen} --blocks -o csv"), hint), "every block"),
        ];
        out.push_str(&next(&commands, screen));
    }
    out
}

fn of_rank(rank: &Rank, world_size: Option<u32>, screen: &Screen) -> String {
    let inexact = if rank.exact { "" } else { ", NOT EXACT" };
    let title = format!(
        "{}  device {}  epoch {}, step {}{inexact}",
        name_of(&rank.process, rank.rank),
        rank.device,
        rank.epoch,
        rank.step
    );
    let mut out = format!("{}\n", screen.paint(Tone::Strong, &screen.wrapped(&title, 0)));
    out.push_str(&table(rank).show(screen));
    for line in unmeasured(rank, world_size) {
        out.push_str(&format!("{}\n", screen.paint(Tone::Faint, &screen.wrapped(&line, 0))));
    }
    out.push_str(&named(rank, screen));
    out
}

fn table(rank: &Rank) -> Table {
    let mut table = Table::new(&[left("", 0), right("BYTES", 0), right("OF ALLOCATED", 2), right("OF USED", 1)]);
    let used = |bytes: u64| rank.device_used_bytes.map_or_else(|| "-".to_owned(), |used| percent(ratio(bytes, used)));
    let mut row = |name: String, bytes: u64, share: Option<f64>| {
        let share = share.map_or_else(|| "-".to_owned(), percent);
        table.row(vec![name, HumanBytes::of(bytes).to_string(), share, used(bytes)]);
    };
    for class in &rank.classes {
        row(safe(&class.class.replace('_', " ")).into_owned(), class.live_bytes, Some(class.share));
    }
    row("allocated".to_owned(), rank.allocated_bytes, Some(1.0));
    row("+ cached".to_owned(), rank.cached_bytes, None);
    let parts = [
        ("+ NCCL", rank.nccl_bytes),
        ("+ context and libraries", rank.context_bytes),
        ("+ other processes", rank.others_bytes),
    ];
    for (name, bytes) in parts {
        if let Some(bytes) = bytes {
            row(name.to_owned(), bytes, None);
        }
    }
    if let Some(bytes) = rank.unmeasured_bytes {
        row("+ not measured".to_owned(), bytes, None);
    }
    if let (Some(rest), Some(share)) = (rank.unexplained_bytes, rank.unexplained_share) {
        let (sign, minus) = if rest < 0 { ("-", "-") } else { ("+", "") };
        let bytes = HumanBytes::of(rest.unsigned_abs()).to_string();
        let share = format!("{minus}{}", percent(share.abs()));
        table.row(vec![format!("{sign} unexplained"), bytes, "-".to_owned(), share]);
    }
    if let Some(bytes) = rank.device_used_bytes {
        let total = rank.device_total_bytes.map_or(String::new(), |total| format!(" of {}", HumanBytes::of(total)));
        table.row(vec![
            format!("= used{total}"),
            HumanBytes::of(bytes).to_string(),
            "-".to_owned(),
            percent(ratio(bytes, bytes)),
        ]);
    }
    table
}

/// The memory by the names that the process gave it, and the private pools; empty if there are neither.
fn named(rank: &Rank, screen: &Screen) -> String {
    let mut out = String::new();
    if !rank.owners.is_empty() {
        out.push('\n');
        let mut table =
            Table::new(&[left("OWNER", 0), right("BYTES", 0), right("OF ALLOCATED", 2), right("BLOCKS", 1)]);
        let mut row = |name: String, bytes: u64, share: f64, blocks: String| {
            table.row(vec![name, HumanBytes::of(bytes).to_string(), percent(share), blocks]);
        };
        for owned in rank.owners.iter().take(OWNERS_SHOWN) {
            row(safe(&owned.owner).into_owned(), owned.live_bytes, owned.share, owned.live_blocks.to_string());
        }
        let all = rank.owners.iter().fold(0_u64, |sum, owned| sum.saturating_add(owned.live_bytes));
        let rest = rank.allocated_bytes.saturating_sub(all);
        if rank.owners_left_out == 0 && rest > 0 {
            row("without a name".to_owned(), rest, ratio(rest, rank.allocated_bytes), "-".to_owned());
        }
        out.push_str(&table.show(screen));
        let more = rank.owners.len().saturating_sub(OWNERS_SHOWN) as u64 + rank.owners_left_out;
        if more > 0 {
            let line = format!("and {} with less memory (-o json has more)", plural(more, "more name"));
            out.push_str(&format!("{}\n", screen.wrapped(&line, 0)));
        }
    }
    if !rank.pools.is_empty() {
        out.push('\n');
        let mut table =
            Table::new(&[left("PRIVATE POOL", 0), right("RESERVED", 0), right("ALLOCATED", 1), left("OWNER", 0)]);
        for pool in rank.pools.iter().take(OWNERS_SHOWN) {
            table.row(vec![
                safe(&pool.pool).into_owned(),
                HumanBytes::of(pool.reserved_bytes).to_string(),
                HumanBytes::of(pool.allocated_bytes).to_string(),
                pool.owner.as_deref().map_or_else(|| "-".to_owned(), |owner| safe(owner).into_owned()),
            ]);
        }
        out.push_str(&table.show(screen));
        if let Some(more) = rank.pools.len().checked_sub(OWNERS_SHOWN).filter(|&more| more > 0) {
            let line = format!("and {} (-o json has more)", plural(more as u64, "more pool"));
            out.push_str(&format!("{}\n", screen.wrapped(&line, 0)));
        }
    }
    out
}

/// `12.3 %`. A share that is not 0 but rounds to 0 is shown as `< 0.1 %`.
fn percent(share: f64) -> String {
    let percent = format!("{:.1} %", 100.0 * share);
    if share > 0.0 && percent == "0.0 %" { "< 0.1 %".to_owned() } else { percent }
}

fn unmeasured(rank: &Rank, world_size: Option<u32>) -> Vec<String> {
    let Some(measured) = &rank.measured_at else {
        return vec![
            "The device was not measured around this moment, so its use outside the allocator is unknown.".to_owned(),
        ];
    };
    let mut lines = vec![format!("The device was measured at {measured}; the allocator's state is from {}.", rank.at)];
    let missing: Vec<&str> = [("context and libraries", rank.context_bytes), ("other processes", rank.others_bytes)]
        .into_iter()
        .filter_map(|(name, bytes)| bytes.is_none().then_some(name))
        .collect();
    if !missing.is_empty() {
        lines.push(format!("Not measured: {}.", missing.join("; ")));
    }
    if rank.nccl_bytes.is_none() && rank.context_bytes.is_some() && world_size != Some(1) {
        lines.push("NCCL's memory was not measured separately; it is part of context and libraries.".to_owned());
    } else if rank.nccl_bytes.is_some() {
        lines.push(
            "The row NCCL has the communicators of PyTorch's process groups; others are in context and libraries."
                .to_owned(),
        );
    }
    lines
}
