//! Compares the ranks: the usual values, the figures of ranks that stand out, and the findings that distinguish ranks.

use std::collections::BTreeSet;

use memctl_analysis::outliers::{Measure, Spread, tells_ranks_apart};
use memctl_answers::{report, whole};
use memctl_model::Finding;

use super::rank::Rank;

/// A figure by which ranks are compared.
struct Figure {
    name: &'static str,
    read: fn(&Rank<'_>) -> Option<f64>,
    measure: Measure,
}

fn bytes(value: Option<u64>) -> Option<f64> {
    value.map(|value| value as f64)
}

const FIGURES: [Figure; 7] = [
    Figure { name: "allocated_bytes", read: |rank| bytes(rank.levels.allocated_bytes), measure: Measure::Bytes },
    Figure { name: "reserved_bytes", read: |rank| bytes(rank.levels.reserved_bytes), measure: Measure::Bytes },
    Figure { name: "peak_allocated_bytes", read: |rank| bytes(rank.peaks.allocated_bytes), measure: Measure::Bytes },
    Figure { name: "peak_reserved_bytes", read: |rank| bytes(rank.peaks.reserved_bytes), measure: Measure::Bytes },
    Figure { name: "growth_bytes_per_epoch", read: |rank| rank.growth_bytes_per_epoch, measure: Measure::Growth },
    Figure { name: "device_free_bytes", read: |rank| bytes(rank.device_free_bytes()), measure: Measure::Bytes },
    Figure {
        name: "foreign_used_bytes",
        read: |rank| bytes(rank.sample.and_then(|sample| sample.foreign_used_bytes)),
        measure: Measure::Bytes,
    },
];

/// Marks figures that stand out, and returns the usual values.
pub(super) fn compare(ranks: &mut [Rank<'_>]) -> Vec<report::Spread> {
    let mut all = Vec::new();
    for Figure { name, read, measure } in FIGURES {
        let values: Vec<f64> = ranks.iter().filter_map(read).filter(|value| value.is_finite()).collect();
        let Some(spread) = Spread::of(&values, measure) else { continue };
        for rank in ranks.iter_mut().filter(|rank| read(rank).is_some_and(|value| spread.is_odd(value))) {
            rank.stands_out.push(name);
        }
        let Spread { median, mad, limit } = spread;
        let bytes = |figure| whole(figure).unwrap_or(0);
        all.push(report::Spread {
            figure: name.to_owned(),
            median_bytes: bytes(median),
            mad_bytes: bytes(mad),
            limit_bytes: bytes(limit),
        });
    }
    all
}

/// Records for each rank the findings that distinguish it from the others.
pub(super) fn tell_apart(ranks: &mut [Rank<'_>], findings: &[Finding], job: &str) {
    let known: BTreeSet<u32> = ranks.iter().map(|rank| rank.number()).collect();
    for finding in findings.iter().filter(|finding| tells_ranks_apart(finding, known.len())) {
        let id = finding.fingerprint(job).to_string();
        for rank in ranks.iter_mut().filter(|rank| finding.ranks.contains(&rank.number())) {
            rank.findings.push(id.clone());
        }
    }
}
