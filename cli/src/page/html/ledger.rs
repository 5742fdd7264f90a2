//! The ledger as a table. Its rows add up to the device's memory.
//!
//! Guarantees: unmeasured memory is a row with a name and is never left out. If the parts exceed the device's memory, a
//! note states this.

use memctl_answers::dossier::Dossier;
use memctl_answers::format::html::escape;
use memctl_answers::ledger::Rank;
use memctl_answers::naming::name_of;
use memctl_model::HumanBytes;

use super::{absent, bytes, percent, table};
use crate::render::text::{capital, count};

/// A part of the device's memory.
#[derive(Debug, PartialEq, Eq)]
pub struct Part {
    /// Its name, in words.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
}

/// The parts in order, and the device's total bytes if they are known.
#[must_use]
pub fn parts(rank: &Rank) -> (Vec<Part>, Option<u64>) {
    let part = |name: &str, bytes: u64| Part { name: name.to_owned(), bytes };
    let mut parts: Vec<Part> =
        rank.classes.iter().map(|share| part(&share.class.replace('_', " "), share.live_bytes)).collect();
    let known = parts.iter().fold(0_u64, |sum, part| sum.saturating_add(part.bytes));
    let others = [
        ("allocated, of no class", rank.allocated_bytes.checked_sub(known)),
        ("cached by the allocator", Some(rank.cached_bytes)),
        ("NCCL", rank.nccl_bytes),
        ("context and libraries", rank.context_bytes),
        ("other processes", rank.others_bytes),
        ("not measured", rank.unmeasured_bytes),
        ("unexplained", rank.unexplained_bytes.and_then(|rest| u64::try_from(rest).ok())),
    ];
    parts.extend(others.into_iter().filter_map(|(name, bytes)| {
        let bytes = bytes.filter(|bytes| *bytes > 0)?;
        Some(part(name, bytes))
    }));
    let used = parts.iter().fold(0_u64, |sum, part| sum.saturating_add(part.bytes));
    let rest = rank.device_total_bytes.and_then(|total| total.checked_sub(used)).filter(|bytes| *bytes > 0);
    if let Some(bytes) = rest {
        let name = if rank.device_used_bytes.is_some() { "free" } else { "free, or used by what was not measured" };
        parts.push(part(name, bytes));
    }
    (parts, rank.device_total_bytes)
}

/// The section of the page.
#[must_use]
pub fn section(dossier: &Dossier) -> String {
    let rank = match dossier.ledger() {
        Ok(rank) => rank,
        Err(reason) => return absent(&reason),
    };
    let (parts, total) = parts(rank);
    let sum = parts.iter().fold(0_u64, |sum, part| sum.saturating_add(part.bytes));
    let inexact = if rank.exact { "" } else { ", NOT EXACT" };
    let title = escape(&format!(
        "{} when most was allocated (epoch {}, step {}{inexact})",
        capital(&name_of(&rank.process, rank.rank)),
        rank.epoch,
        count(rank.step)
    ));
    let mut rows: Vec<String> = parts
        .iter()
        .map(|part| {
            format!(
                "<tr><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td></tr>\n",
                escape(&part.name),
                bytes(part.bytes),
                percent(part.bytes, sum)
            )
        })
        .collect();
    let whole = match total {
        Some(total) if total == sum => "the device",
        Some(_) => "in all",
        None => "sum of the known parts",
    };
    rows.push(format!(
        "<tr class=\"total\"><th scope=\"row\">{whole}</th><td class=\"number\">{}</td><td class=\"number\">{}</td></tr>\n",
        bytes(sum),
        percent(sum, sum)
    ));
    let heads = [("part", false), ("bytes", true), ("share", true)];
    format!(
        "<p><strong>{title}</strong></p>\n{}{}",
        table("Who uses the device's memory", &heads, &rows),
        notes(rank, total, sum)
    )
}

fn notes(rank: &Rank, total: Option<u64>, sum: u64) -> String {
    let mut notes = Vec::new();
    match total {
        None => notes.push("The device's size was not recorded, so the table ends with the known parts.".to_owned()),
        Some(total) if sum > total => notes.push(format!(
            "The parts exceed the device by {}, because they were measured at different moments.",
            HumanBytes::of(sum - total)
        )),
        Some(_) => {}
    }
    match &rank.measured_at {
        None => notes.push(
            "The device was not measured around this moment, so its use outside the allocator is unknown.".to_owned(),
        ),
        Some(at) => notes.push(format!("The device was measured at {at}; the allocator's state is from {}.", rank.at)),
    }
    notes.iter().map(|note| format!("<p class=\"prose faint\">{}</p>\n", escape(note))).collect()
}
