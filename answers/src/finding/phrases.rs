//! The figures of a finding in words: rate, start, ranks, and time to out of memory.
//!
//! Guarantees: an unknown figure has no text.

use memctl_model::{FindingKind, Growth, HumanBytes};

use super::{Finding, Site};
use crate::Frame;
use crate::format::text::{plural, rank_list};
use crate::format::time;
use crate::naming::place;

/// `on all 4 ranks`, `on rank 0`, `on ranks 0-1`; empty if no rank is named.
#[must_use]
pub fn on_ranks(finding: &Finding) -> String {
    match finding.ranks.as_slice() {
        [] => String::new(),
        ranks if finding.all_ranks => format!("on all {} ranks", ranks.len()),
        [rank] => format!("on rank {rank}"),
        ranks => format!("on ranks {}", rank_list(ranks)),
    }
}

/// `49.1 MiB per epoch (48.9 to 49.3 MiB), 6.1 MiB per step`.
#[must_use]
pub fn rates(finding: &Finding) -> String {
    let rate = |value: Option<i64>, low: Option<i64>, high: Option<i64>, unit: &str| {
        let value = value?;
        let interval = match (low, high) {
            (Some(low), Some(high)) if low != high => format!(" ({} to {})", HumanBytes(low), HumanBytes(high)),
            _ => String::new(),
        };
        Some(format!("{} {unit}{interval}", HumanBytes(value)))
    };
    let epoch = (finding.bytes_per_epoch, finding.bytes_per_epoch_low, finding.bytes_per_epoch_high);
    let step = (finding.bytes_per_step, finding.bytes_per_step_low, finding.bytes_per_step_high);
    // Rates per epoch or step are more useful than rates per minute.
    let by_clock = finding.bytes_per_minute.filter(|_| epoch.0.is_none() && step.0.is_none());
    let rates = [
        rate(epoch.0, epoch.1, epoch.2, "per epoch"),
        rate(step.0, step.1, step.2, "per step"),
        rate(by_clock, finding.bytes_per_minute_low, finding.bytes_per_minute_high, "per minute"),
    ];
    rates.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// `epoch 0, step 7`, and the time if there is room.
#[must_use]
pub fn since(finding: &Finding, with_time: bool) -> Option<String> {
    let seen = &finding.first_seen;
    let epoch = seen.epoch.map(|epoch| format!("epoch {epoch}"));
    let step = seen.step.map(|step| format!("step {step}"));
    let at = seen.at.filter(|_| with_time || (seen.epoch.is_none() && seen.step.is_none())).map(|at| time::date(at.0));
    let parts: Vec<String> = [epoch, step, at].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// `441 MiB live in 9 blocks`, or `441 MiB now` where not live tensors grow.
#[must_use]
pub fn live(finding: &Finding) -> Option<String> {
    let bytes = HumanBytes::of(finding.live_bytes?);
    Some(match finding.live_blocks {
        _ if finding.known_kind().and_then(FindingKind::growth) == Some(Growth::Beside) => format!("{bytes} now"),
        Some(blocks) => format!("{bytes} live in {}", plural(blocks, "block")),
        None => format!("{bytes} live"),
    })
}

/// `the device is full in about 17 epochs, 1 h 20 min`.
#[must_use]
pub fn until(finding: &Finding) -> Option<String> {
    let epochs = finding.epochs_to_oom.filter(|epochs| *epochs >= 0.0).map(|epochs| {
        // Rounded as in the verdict's sentence.
        if epochs < 1.0 {
            "less than one epoch".to_owned()
        } else {
            format!("about {}", plural(epochs.round() as u64, "epoch"))
        }
    });
    let seconds = finding.time_to_oom_seconds.filter(|seconds| *seconds >= 0.0);
    let time = seconds.map(|seconds| time::duration((seconds * 1e9) as u64));
    let parts: Vec<String> = [epochs, time].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| format!("the device is full in {}", parts.join(", ")))
}

/// The site and, after arrows, at most `most` callers of the user's own code.
#[must_use]
pub fn stack(site: &Site, most: usize) -> String {
    let outside = site.stack.iter().position(|frame| *frame == site.frame).map_or(0, |at| at + 1);
    let callers: Vec<&Frame> = site.stack[outside..].iter().filter(|frame| frame.is_user_code()).collect();
    let mut text = place(&site.frame);
    for caller in callers.iter().take(most) {
        text.push_str(" <- ");
        text.push_str(&place(caller));
    }
    if callers.len() > most {
        text.push_str(" <- ...");
    }
    text
}
