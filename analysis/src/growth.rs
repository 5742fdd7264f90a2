//! Growth from epoch to epoch: live bytes of a rank and of each allocation site at epoch ends, and their slopes.
//!
//! Guarantees: the rate is that of [`statistics::slope`], which findings use as well. It is 0 if a series rose and has
//! stopped rising. It is also 0 if the level rarely changes from epoch to epoch, for example by a copy of the weights,
//! a block that could not be split, or a freed buffer. But a series that never falls and rises at least three times has
//! a rate, because a leak may grow only every third epoch.
//!
//! A rate is not yet a leak: a cache that fills has one, too. Fewer than two epochs have no rate.

use std::collections::{BTreeMap, BTreeSet};

use memctl_model::{Boundary, DeviceIndex, SiteTable, StackId};

use crate::statistics::{self, cautious_median};

/// A first level that is more than this many times the largest later rise consists mainly of memory that is made only
/// once and is not growth.
pub(crate) const FIRST_LEVEL_FACTOR: u64 = 4;

/// Live bytes at the end of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct EpochBytes {
    /// The epoch that ended.
    pub epoch: u32,
    /// Bytes.
    pub bytes: u64,
}

/// The live bytes of one site at every epoch end with a table, 0 where the table has no such site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteSeries<K> {
    /// The caller's name of the site.
    pub site: K,
    /// The bytes in the order of epochs.
    pub points: Vec<EpochBytes>,
}

/// How a series grew.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    /// Bytes per epoch; negative when it shrinks.
    pub bytes_per_epoch: f64,
    /// Bytes at the first epoch's end.
    pub first_bytes: u64,
    /// Bytes at the last epoch's end.
    pub last_bytes: u64,
    /// Number of epochs that ended above the previous one.
    pub rises: usize,
    /// Number of epochs that ended below the previous one.
    pub falls: usize,
}

/// A site and how it grew.
#[derive(Clone, Debug, PartialEq)]
pub struct SiteGrowth<K> {
    /// The site with its series.
    pub series: SiteSeries<K>,
    /// Its growth.
    pub growth: Growth,
}

/// The growth of a series of epoch ends, such as a rank's `allocated_bytes`, in bytes per epoch. The module's
/// documentation has the rules.
#[must_use]
pub fn growth_bytes_per_epoch(series: &[EpochBytes]) -> Option<f64> {
    let changes = series.windows(2).filter(|pair| pair[1].epoch > pair[0].epoch).map(|pair| {
        let epochs = f64::from(pair[1].epoch - pair[0].epoch);
        (pair[1].bytes as f64 - pair[0].bytes as f64) / epochs
    });
    let changes: Vec<f64> = changes.collect();
    let median = cautious_median(changes.clone())?;
    if median >= 0.0 && stands_still(&changes) {
        return Some(0.0);
    }
    let rises = series.windows(2).filter(|pair| pair[1].bytes > pair[0].bytes).count();
    let falls = series.windows(2).any(|pair| pair[1].bytes < pair[0].bytes);
    // Something that grows once (the first epoch, a step up) may by coincidence rise twice; three rises are a pattern.
    if median == 0.0 && (rises < 3 || falls) {
        return Some(0.0);
    }
    let points: Vec<(f64, f64)> = series.iter().map(|point| (f64::from(point.epoch), point.bytes as f64)).collect();
    statistics::slope(&points).map(|rate| rate.value)
}

/// Whether a series has stopped rising: it has not risen over the last third, and for longer than its longest pause
/// between two rises.
fn stands_still(changes: &[f64]) -> bool {
    let last = changes.len().div_ceil(3).max(2);
    let pauses: Vec<usize> = changes.split(|&change| change > 0.0).map(<[f64]>::len).collect();
    let [_, between @ .., end] = pauses.as_slice() else { return false };
    let longest = between.iter().copied().max().unwrap_or(0);
    changes.len() > last && *end >= last && *end > longest
}

/// How a series grew; `None` for fewer than two epochs.
#[must_use]
pub fn growth(series: &[EpochBytes]) -> Option<Growth> {
    let (first, last) = (series.first()?, series.last()?);
    Some(Growth {
        bytes_per_epoch: growth_bytes_per_epoch(series)?,
        first_bytes: first.bytes,
        last_bytes: last.bytes,
        rises: series.windows(2).filter(|pair| pair[1].bytes > pair[0].bytes).count(),
        falls: series.windows(2).filter(|pair| pair[1].bytes < pair[0].bytes).count(),
    })
}

/// A rank's allocated bytes at epoch ends, summed over its devices.
#[must_use]
pub fn allocated_series<'a>(tables: impl IntoIterator<Item = &'a SiteTable>) -> Vec<EpochBytes> {
    let mut by_epoch: BTreeMap<u32, u64> = BTreeMap::new();
    for ((epoch, _), table) in epoch_ends(tables) {
        let sum = by_epoch.entry(epoch).or_default();
        *sum = sum.saturating_add(table.counters.allocated_bytes);
    }
    by_epoch.into_iter().map(|(epoch, bytes)| EpochBytes { epoch, bytes }).collect()
}

/// The series of every site of a rank, sorted by site and summed over devices. `site_of` returns the site of a stack,
/// for instance its innermost user frame.
pub fn site_series<'a, K: Ord + Clone>(
    tables: impl IntoIterator<Item = &'a SiteTable>,
    mut site_of: impl FnMut(StackId) -> K,
) -> Vec<SiteSeries<K>> {
    let tables = epoch_ends(tables);
    let epochs: BTreeSet<u32> = tables.keys().map(|&(epoch, _)| epoch).collect();
    let mut site_of_stack: BTreeMap<StackId, K> = BTreeMap::new();
    let mut by_site: BTreeMap<K, BTreeMap<u32, u64>> = BTreeMap::new();
    for ((epoch, _), table) in tables {
        for row in &table.rows {
            let site = site_of_stack.entry(row.stack).or_insert_with(|| site_of(row.stack));
            // The site is cloned only for its first row.
            let bytes = match by_site.get_mut(site) {
                Some(epochs) => epochs.entry(epoch).or_default(),
                None => by_site.entry(site.clone()).or_default().entry(epoch).or_default(),
            };
            *bytes = bytes.saturating_add(row.bytes);
        }
    }
    let whole = |by_epoch: BTreeMap<u32, u64>| {
        epochs.iter().map(|&epoch| EpochBytes { epoch, bytes: by_epoch.get(&epoch).copied().unwrap_or(0) }).collect()
    };
    by_site.into_iter().map(|(site, by_epoch)| SiteSeries { site, points: whole(by_epoch) }).collect()
}

/// The sites with positive growth, the steepest first. Sites with equal growth are in the order of their names.
#[must_use]
pub fn rank_by_growth<K: Ord>(series: Vec<SiteSeries<K>>) -> Vec<SiteGrowth<K>> {
    let with_growth = series.into_iter().filter_map(|series| {
        let growth = growth(&series.points).filter(|growth| growth.bytes_per_epoch > 0.0)?;
        Some(SiteGrowth { series, growth })
    });
    let mut ranked: Vec<SiteGrowth<K>> = with_growth.collect();
    ranked.sort_by(|a, b| {
        let steeper = b.growth.bytes_per_epoch.total_cmp(&a.growth.bytes_per_epoch);
        steeper.then_with(|| a.series.site.cmp(&b.series.site))
    });
    ranked
}

/// The epoch-end tables by epoch and device. An epoch that was begun again ends again; its latest table is used.
fn epoch_ends<'a>(tables: impl IntoIterator<Item = &'a SiteTable>) -> BTreeMap<(u32, DeviceIndex), &'a SiteTable> {
    let mut latest: BTreeMap<(u32, DeviceIndex), &SiteTable> = BTreeMap::new();
    for table in tables.into_iter().filter(|table| table.boundary == Boundary::EpochEnd) {
        latest
            .entry((table.epoch, table.device))
            .and_modify(|kept| {
                if table.at_event >= kept.at_event {
                    *kept = table;
                }
            })
            .or_insert(table);
    }
    latest
}

#[cfg(test)]
mod tests {
    use super::*;
    use memctl_model::{Counters, Peaks, SiteRow};

    fn series(bytes: &[u64]) -> Vec<EpochBytes> {
        (0..).zip(bytes).map(|(epoch, &bytes)| EpochBytes { epoch, bytes }).collect()
    }

    fn table(epoch: u32, at_event: u64, rows: &[(u32, u32, u64)]) -> SiteTable {
        let row = |&(stack, birth_epoch, bytes)| SiteRow {
            stack: StackId(stack),
            birth_epoch,
            birth_phase: None,
            blocks: 1,
            bytes,
        };
        let allocated_bytes = rows.iter().map(|row| row.2).sum();
        SiteTable {
            device: DeviceIndex(0),
            boundary: Boundary::EpochEnd,
            epoch,
            step: 0,
            time_ns: 0,
            at_event,
            exact: true,
            counters: Counters { allocated_bytes, ..Counters::default() },
            peaks: Peaks::default(),
            peaks_within: Peaks::default(),
            found: false,
            rows: rows.iter().map(row).collect(),
            private_pools: Vec::new(),
        }
    }

    #[test]
    fn a_line_has_its_slope_and_an_outlier_does_not_move_it() {
        assert_eq!(growth_bytes_per_epoch(&series(&[10, 13, 16, 19])), Some(3.0));
        assert_eq!(growth_bytes_per_epoch(&series(&[10, 13, 900, 19, 22, 25, 28])), Some(3.0));
        assert_eq!(growth_bytes_per_epoch(&series(&[28, 25, 22])), Some(-3.0));
    }

    #[test]
    fn too_few_epochs_have_no_slope() {
        assert_eq!(growth(&series(&[])), None);
        assert_eq!(growth(&series(&[5])), None);
        let twice = [EpochBytes { epoch: 3, bytes: 1 }, EpochBytes { epoch: 3, bytes: 9 }];
        assert_eq!(growth(&twice), None);
    }

    #[test]
    fn one_time_steps_do_not_count_and_rare_leaks_do() {
        assert_eq!(growth_bytes_per_epoch(&series(&[5, 5, 5, 90, 90, 90])), Some(0.0));
        // The series has two batches of 3 per epoch and, once, a block that could not be split.
        assert_eq!(growth_bytes_per_epoch(&series(&[0, 30, 69, 99, 129, 159])), Some(30.0));
        let every_third = growth_bytes_per_epoch(&series(&[0, 0, 0, 9, 9, 9, 18, 18, 18, 27])).unwrap();
        assert!((2.0..4.0).contains(&every_third), "{every_third}");
        let gap = [EpochBytes { epoch: 0, bytes: 0 }, EpochBytes { epoch: 4, bytes: 8 }];
        assert_eq!(growth_bytes_per_epoch(&gap), Some(2.0));
    }

    #[test]
    fn what_stands_still_does_not_grow() {
        const MIB: u64 = 1 << 20;
        // A buffer that was freed after the first epoch, and a cache that filled.
        assert_eq!(growth_bytes_per_epoch(&series(&[300 * MIB, 172 * MIB, 172 * MIB])), Some(0.0));
        assert_eq!(growth_bytes_per_epoch(&series(&[0, 768, 1_536, 2_304, 2_304, 2_304])), Some(0.0));
        let queue = [0, 5, 10, 15, 20, 20, 20, 20, 20, 20].map(|mib| mib * MIB);
        assert_eq!(growth_bytes_per_epoch(&series(&queue)), Some(0.0));
        let every_fourth = [0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12].map(|mib| mib * MIB);
        assert!(growth_bytes_per_epoch(&series(&every_fourth)).is_some_and(|rate| rate > 0.0));
        // A leak does not stop.
        assert_eq!(growth_bytes_per_epoch(&series(&[0, 768, 1_536, 2_304, 3_072, 3_840])), Some(768.0));
    }

    #[test]
    fn sites_are_grouped_filled_with_zeros_and_ranked() {
        let tables = [
            table(0, 10, &[(1, 0, 100), (2, 0, 50)]),
            table(1, 20, &[(1, 0, 100), (2, 0, 50), (2, 1, 50), (3, 1, 7)]),
            table(2, 30, &[(1, 0, 100), (2, 0, 50), (2, 1, 50), (2, 2, 50)]),
        ];
        let name = |stack: StackId| if stack == StackId(3) { 1 } else { stack.0 };
        let all = site_series(&tables, name);
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].points, series(&[100, 107, 100]));
        assert_eq!(all[1].points, series(&[50, 100, 150]));
        let ranked = rank_by_growth(all);
        assert_eq!(ranked.len(), 1);
        assert_eq!(ranked[0].series.site, 2);
        assert_eq!(ranked[0].growth.bytes_per_epoch, 50.0);
        assert_eq!((ranked[0].growth.rises, ranked[0].growth.falls), (2, 0));
        assert_eq!(allocated_series(&tables), series(&[150, 207, 250]));
    }

    #[test]
    fn an_epoch_that_ended_twice_counts_once_and_other_boundaries_not_at_all() {
        let mut step = table(1, 25, &[(1, 0, 999)]);
        step.boundary = Boundary::StepEnd;
        let tables = [table(0, 10, &[(1, 0, 1)]), table(0, 20, &[(1, 0, 5)]), step];
        assert_eq!(allocated_series(&tables), series(&[5]));
    }
}
