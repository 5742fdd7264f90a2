//! Ranks side by side over their epochs: the allocated bytes of each rank at every epoch's end, outliers first, and the
//! epoch in which a rank diverged from the others.
//!
//! Guarantees: every rank of the report is a row, with one figure per epoch or null; of more than `EPOCHS_MAX` epochs,
//! an even selection is shown that includes the last. [`memctl_analysis::outliers`] decides what is an outlier.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use memctl_analysis::outliers::{Measure, Spread};
use serde::Serialize;

use crate::report::{Rank, Report};
use crate::{Completeness, Job, SCHEMA};

/// Columns of the picture.
const EPOCHS_MAX: usize = 256;

/// Ranks side by side over their epochs.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Heat {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// The job.
    pub job: Job,
    /// What the answer rests on.
    pub completeness: Completeness,
    /// The epochs, in their order.
    pub epochs: Vec<u32>,
    /// The ranks' median at each epoch's end; null where too few ranks ended it.
    pub median_bytes: Vec<Option<u64>>,
    /// A rank that is further above the median than this is odd; null where too few ranks ended the epoch.
    pub limit_bytes: Vec<Option<u64>>,
    /// Odd ranks first: those that failed, then those that left the others, the earliest first.
    pub ranks: Vec<Row>,
}

/// A rank's device.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(rename = "HeatRow"))]
pub struct Row {
    /// The rank.
    pub rank: u32,
    /// The process, by its name within the job.
    pub process: String,
    /// Device index in the process.
    pub device: u32,
    /// Where it runs.
    pub host: Option<String>,
    /// How it ended, when it did not end well.
    pub failure: Option<String>,
    /// Figures by which it stands out among the ranks.
    pub stands_out: Vec<String>,
    /// The epoch from whose end on it is further above the median than the others explain, up to its last one; null
    /// where it never was, or came back.
    pub diverges_at: Option<u32>,
    /// Allocated at each epoch's end.
    pub allocated_bytes: Vec<Option<u64>>,
}

impl Heat {
    /// Makes the answer from a report on all ranks.
    #[must_use]
    pub fn new(report: Report) -> Self {
        let all: BTreeSet<u32> = report.ranks.iter().flat_map(|rank| &rank.epoch_ends).map(|end| end.epoch).collect();
        let epochs = chosen(all.into_iter().collect());
        let columns: BTreeMap<u32, usize> = epochs.iter().enumerate().map(|(at, epoch)| (*epoch, at)).collect();
        let total = report.ranks.iter().filter_map(|rank| rank.device_total_bytes).max().unwrap_or(0);
        let mut ranks: Vec<Row> = report.ranks.into_iter().map(|rank| row(rank, &columns)).collect();
        let spread = |at: usize| {
            let values: Vec<f64> =
                ranks.iter().filter_map(|row| row.allocated_bytes[at]).map(|bytes| bytes as f64).collect();
            Some(Spread::of(&values, Measure::Bytes)?.on_device(total))
        };
        let spreads: Vec<Option<Spread>> = (0..epochs.len()).map(spread).collect();
        for (at, (epoch, spread)) in epochs.iter().zip(&spreads).enumerate() {
            let Some(spread) = spread else { continue };
            for row in &mut ranks {
                let Some(bytes) = row.allocated_bytes[at] else { continue };
                row.diverges_at = spread.is_odd(bytes as f64).then_some(row.diverges_at.unwrap_or(*epoch));
            }
        }
        let of = |read: fn(&Spread) -> f64| {
            spreads.iter().map(|spread| spread.as_ref().map(|spread| read(spread) as u64)).collect()
        };
        let (median_bytes, limit_bytes) = (of(|spread| spread.median), of(|spread| spread.limit));
        ranks.sort_by_key(|row| {
            let diverges = row.diverges_at.unwrap_or(u32::MAX);
            (row.failure.is_none(), diverges, Reverse(row.stands_out.len()), row.rank, row.device)
        });
        let (job, completeness) = (report.job, report.completeness);
        Self { schema: SCHEMA, job, completeness, epochs, median_bytes, limit_bytes, ranks }
    }
}

fn row(rank: Rank, columns: &BTreeMap<u32, usize>) -> Row {
    let mut allocated_bytes = vec![None; columns.len()];
    for end in &rank.epoch_ends {
        if let Some(at) = columns.get(&end.epoch) {
            allocated_bytes[*at] = end.allocated_bytes;
        }
    }
    Row {
        rank: rank.rank,
        process: rank.process,
        device: rank.device,
        host: rank.host,
        failure: rank.failure,
        stands_out: rank.stands_out,
        diverges_at: None,
        allocated_bytes,
    }
}

/// An even selection of at most `EPOCHS_MAX` epochs, including the first and the last.
fn chosen(all: Vec<u32>) -> Vec<u32> {
    if all.len() <= EPOCHS_MAX {
        return all;
    }
    (0..EPOCHS_MAX).map(|at| all[at * (all.len() - 1) / (EPOCHS_MAX - 1)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::EpochEnd;

    const MIB: u64 = 1 << 20;

    fn rank(number: u32, allocated: &[u64]) -> Rank {
        let end = |(epoch, &bytes): (usize, &u64)| EpochEnd {
            epoch: epoch as u32,
            allocated_bytes: Some(bytes),
            ..EpochEnd::default()
        };
        Rank { rank: number, epoch_ends: allocated.iter().enumerate().map(end).collect(), ..Rank::default() }
    }

    #[test]
    fn the_rank_that_left_the_others_comes_first_and_one_that_came_back_is_not_odd() {
        let steady = [100 * MIB, 100 * MIB, 100 * MIB];
        let mut ranks: Vec<_> = (0..6).map(|number| rank(number, &steady)).collect();
        ranks.push(rank(6, &[100 * MIB, 100 * MIB, 300 * MIB]));
        ranks.push(rank(7, &[100 * MIB, 200 * MIB, 100 * MIB]));
        let heat = Heat::new(Report { ranks, ..Report::default() });
        let order: Vec<(u32, Option<u32>)> = heat.ranks.iter().map(|row| (row.rank, row.diverges_at)).take(3).collect();
        assert_eq!(order, [(6, Some(2)), (0, None), (1, None)]);
        assert_eq!(heat.median_bytes, [Some(100 * MIB); 3]);
        assert_eq!(heat.ranks[0].allocated_bytes[2], Some(300 * MIB));
    }

    #[test]
    fn of_many_epochs_the_first_and_the_last_are_there() {
        let few = chosen((0..10_000).collect());
        assert_eq!((few.len(), few[0], few[EPOCHS_MAX - 1]), (EPOCHS_MAX, 0, 9_999));
        assert_eq!(chosen(vec![3, 9]), [3, 9]);
    }
}
