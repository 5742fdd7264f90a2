//! Compares the ranks: finds the usual values, the outliers, and the findings that distinguish ranks.

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
    /// Whether a rank can be an outlier by this figure. That holds for its floor, its peaks, its growth, and the use of
    /// its device by other processes.
    matters: bool,
}

impl Figure {
    const fn new(name: &'static str, read: fn(&Rank<'_>) -> Option<f64>) -> Self {
        Self { name, read, measure: Measure::Bytes, matters: true }
    }

    /// The usual value and the spread among these ranks; `None` if there are too few ranks.
    fn spread<'r, 'a: 'r>(&self, ranks: impl Iterator<Item = &'r Rank<'a>> + Clone) -> Option<Spread> {
        let values: Vec<f64> = ranks.clone().filter_map(self.read).filter(|value| value.is_finite()).collect();
        let spread = Spread::of(&values, self.measure)?;
        let device = ranks.filter_map(Rank::device_total_bytes).max();
        Some(device.filter(|_| self.measure == Measure::Bytes).map_or(spread, |total| spread.on_device(total)))
    }
}

fn bytes(value: Option<u64>) -> Option<f64> {
    value.map(|value| value as f64)
}

/// The levels of a rank are those at its last boundary, so `allocated_bytes` is the floor.
const FIGURES: [Figure; 7] = [
    Figure::new("allocated_bytes", |rank| bytes(rank.levels.allocated_bytes)),
    Figure { matters: false, ..Figure::new("reserved_bytes", |rank| bytes(rank.levels.reserved_bytes)) },
    Figure::new("peak_allocated_bytes", |rank| bytes(rank.peaks.allocated_bytes)),
    Figure::new("peak_reserved_bytes", |rank| bytes(rank.peaks.reserved_bytes)),
    Figure { measure: Measure::Growth, ..Figure::new("growth_bytes_per_epoch", |rank| rank.growth_bytes_per_epoch) },
    Figure { matters: false, ..Figure::new("device_free_bytes", |rank| bytes(rank.device_free_bytes())) },
    Figure::new("foreign_used_bytes", |rank| bytes(rank.sample.and_then(|sample| sample.foreign_used_bytes))),
];

/// Marks figures that are outliers among the ranks of the same role, and returns the usual values of all ranks.
pub(super) fn compare(ranks: &mut [Rank<'_>]) -> Vec<report::Spread> {
    let mut all = Vec::new();
    let roles: BTreeSet<Option<String>> = ranks.iter().map(|rank| rank.role.clone()).collect();
    for figure in &FIGURES {
        let Some(Spread { median, mad, limit }) = figure.spread(ranks.iter()) else { continue };
        let bytes = |figure| whole(figure).unwrap_or(0);
        all.push(report::Spread {
            figure: figure.name.to_owned(),
            median_bytes: bytes(median),
            mad_bytes: bytes(mad),
            limit_bytes: bytes(limit),
        });
        for role in roles.iter().filter(|_| figure.matters) {
            let Some(spread) = figure.spread(ranks.iter().filter(|rank| rank.role == *role)) else { continue };
            let is_odd = |rank: &&mut Rank<'_>| {
                rank.role == *role && (figure.read)(rank).is_some_and(|value| spread.is_odd(value))
            };
            ranks.iter_mut().filter(is_odd).for_each(|rank| rank.stands_out.push(figure.name));
        }
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
