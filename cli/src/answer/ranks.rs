//! `memctl ranks` as data: the ranks side by side, and what stands out among them.
//!
//! A figure stands out when it is further from the ranks' median than 3.5 times their median absolute deviation (scaled
//! to a normal distribution's standard deviation), with a floor below which nobody cares. That is a measurement: ranks of
//! different roles (pipeline stages) differ by rule, and whether it is wrong the findings say.

use std::io::{self, Write};

use memctl_model::FindingKind;
use serde::Serialize;

use super::finding::Finding;
use super::report::{self, Report};
use super::{Answer, Completeness, Job, SCHEMA};
use crate::page;
use crate::render::csv::{self, Cell};
use crate::render::json;
use crate::render::screen::Screen;

/// Fewer ranks have no majority to stand out against.
const RANKS_MIN: usize = 3;
/// Deviations: the customary cut of the modified z-score (Iglewicz and Hoaglin).
const DEVIATIONS_MAX: f64 = 3.5;
/// Scales the median absolute deviation to a normal distribution's standard deviation.
const MAD_SCALE: f64 = 1.4826;
/// One deviation is at least this share of the median: equal ranks differ by rounding.
const SHARE_MIN: f64 = 0.01;
/// One deviation is at least this much: half a small segment of the allocator.
const BYTES_MIN: f64 = (1 << 20) as f64;
/// The same for growth an epoch, which adds up.
const GROWTH_MIN: f64 = (1 << 16) as f64;

/// The ranks side by side.
#[derive(Clone, Debug, Serialize)]
pub struct Ranks {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// The job.
    pub job: Job,
    /// What the answer rests on.
    pub completeness: Completeness,
    /// The ranks, in their order.
    pub ranks: Vec<Rank>,
    /// Median and deviation of each figure that enough ranks have.
    pub spread: Vec<Spread>,
    /// What is wrong with single ranks, the worst first.
    pub findings: Vec<Finding>,
    /// Flags that reach the same store; `None` = no advice.
    #[serde(skip)]
    pub hint: Option<String>,
}

/// One rank.
#[derive(Clone, Debug, Serialize)]
pub struct Rank {
    /// Its number.
    pub rank: u32,
    /// The process, by its name within the job.
    pub process: String,
    /// Host name.
    pub host: Option<String>,
    /// Process id.
    pub pid: Option<u32>,
    /// Device index in the process.
    pub device: u32,
    /// The device's name.
    pub gpu_name: Option<String>,
    /// State of the rank's session.
    pub state: &'static str,
    /// How it ended, when it did not end well.
    pub failure: Option<String>,
    /// Epochs that ended.
    pub epochs: u64,
    /// Steps that ended.
    pub steps: u64,
    /// At the last boundary.
    pub allocated_bytes: Option<u64>,
    /// At the last boundary.
    pub reserved_bytes: Option<u64>,
    /// Highest.
    pub peak_allocated_bytes: Option<u64>,
    /// Highest.
    pub peak_reserved_bytes: Option<u64>,
    /// Growth from epoch end to epoch end.
    pub growth_bytes_per_epoch: Option<i64>,
    /// What nobody uses on the device.
    pub device_free_bytes: Option<u64>,
    /// In use on the device by processes that are not of this job's rank.
    pub foreign_used_bytes: Option<u64>,
    /// The newest figure there is of it.
    pub last_heard_at: Option<String>,
    /// Figures of it that stand out, by name.
    pub stands_out: Vec<&'static str>,
    /// For the page.
    #[serde(skip)]
    pub last_heard_ns: Option<u64>,
}

/// What is usual among the ranks.
#[derive(Clone, Debug, Serialize)]
pub struct Spread {
    /// Which figure.
    pub figure: &'static str,
    /// Its median.
    pub median_bytes: i64,
    /// Its median absolute deviation.
    pub mad_bytes: i64,
}

/// A figure that ranks are compared by.
struct Figure {
    name: &'static str,
    read: fn(&Rank) -> Option<i64>,
    least: f64,
}

fn signed(bytes: Option<u64>) -> Option<i64> {
    bytes.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX))
}

const FIGURES: [Figure; 7] = [
    Figure { name: "allocated_bytes", read: |rank| signed(rank.allocated_bytes), least: BYTES_MIN },
    Figure { name: "reserved_bytes", read: |rank| signed(rank.reserved_bytes), least: BYTES_MIN },
    Figure { name: "peak_allocated_bytes", read: |rank| signed(rank.peak_allocated_bytes), least: BYTES_MIN },
    Figure { name: "peak_reserved_bytes", read: |rank| signed(rank.peak_reserved_bytes), least: BYTES_MIN },
    Figure { name: "growth_bytes_per_epoch", read: |rank| rank.growth_bytes_per_epoch, least: GROWTH_MIN },
    Figure { name: "device_free_bytes", read: |rank| signed(rank.device_free_bytes), least: BYTES_MIN },
    Figure { name: "foreign_used_bytes", read: |rank| signed(rank.foreign_used_bytes), least: BYTES_MIN },
];

impl Ranks {
    /// From a report.
    #[must_use]
    pub fn new(report: Report) -> Self {
        let Report { job, completeness, ranks, findings, hint, .. } = report;
        let mut ranks: Vec<Rank> = ranks.into_iter().map(Rank::from).collect();
        let mut spread = Vec::new();
        for Figure { name, read, least } in FIGURES {
            let values: Vec<f64> = ranks.iter().filter_map(read).map(|value| value as f64).collect();
            if values.len() < RANKS_MIN {
                continue;
            }
            let middle = median(values.clone());
            let mad = median(values.iter().map(|value| (value - middle).abs()).collect());
            let deviation = (mad * MAD_SCALE).max(middle.abs() * SHARE_MIN).max(least);
            for rank in &mut ranks {
                if read(rank).is_some_and(|value| (value as f64 - middle).abs() > DEVIATIONS_MAX * deviation) {
                    rank.stands_out.push(name);
                }
            }
            spread.push(Spread { figure: name, median_bytes: middle.round() as i64, mad_bytes: mad.round() as i64 });
        }
        let about_ranks = |kind: FindingKind| {
            matches!(kind, FindingKind::RankSkew | FindingKind::RankLost | FindingKind::ForeignProcess)
        };
        let findings = findings.into_iter().filter(|finding| finding.known_kind().is_some_and(about_ranks)).collect();
        Self { schema: SCHEMA, job, completeness, ranks, spread, findings, hint }
    }
}

/// The median; 0 of nothing.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.as_slice() {
        [] => 0.0,
        values if values.len() % 2 == 1 => values[values.len() / 2],
        values => f64::midpoint(values[values.len() / 2 - 1], values[values.len() / 2]),
    }
}

impl From<report::Rank> for Rank {
    fn from(rank: report::Rank) -> Self {
        let last_heard_ns = rank.last_heard_ns();
        let sample = rank.sample.as_ref();
        let total = sample.and_then(|sample| sample.device_total_bytes).or(rank.device_total_bytes);
        let used = sample.and_then(|sample| sample.device_used_bytes).or(rank.device_used_bytes);
        Self {
            device_free_bytes: total.zip(used).map(|(total, used)| total.saturating_sub(used)),
            foreign_used_bytes: sample.and_then(|sample| sample.foreign_used_bytes),
            last_heard_at: last_heard_ns.map(crate::render::time::rfc3339),
            last_heard_ns,
            rank: rank.rank,
            process: rank.process,
            host: rank.host,
            pid: rank.pid,
            device: rank.device,
            gpu_name: rank.gpu_name,
            state: rank.state,
            failure: rank.failure,
            epochs: rank.epochs,
            steps: rank.steps,
            allocated_bytes: rank.allocated_bytes,
            reserved_bytes: rank.reserved_bytes,
            peak_allocated_bytes: rank.peak_allocated_bytes,
            peak_reserved_bytes: rank.peak_reserved_bytes,
            growth_bytes_per_epoch: rank.growth_bytes_per_epoch,
            stands_out: Vec::new(),
        }
    }
}

/// One line of NDJSON.
#[derive(Serialize)]
#[serde(tag = "record", rename_all = "snake_case")]
enum Record<'a> {
    Rank(&'a Rank),
    Spread(&'a Spread),
    Finding(&'a Finding),
}

impl Answer for Ranks {
    fn page(&self, screen: &Screen) -> String {
        page::ranks::page(self, screen)
    }

    fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        json::pretty(out, self)
    }

    fn ndjson(&self, out: &mut dyn Write) -> io::Result<()> {
        self.ranks.iter().try_for_each(|rank| json::line(out, &Record::Rank(rank)))?;
        self.spread.iter().try_for_each(|spread| json::line(out, &Record::Spread(spread)))?;
        self.findings.iter().try_for_each(|finding| json::line(out, &Record::Finding(finding)))
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let names = [
            "rank",
            "host",
            "pid",
            "device",
            "gpu_name",
            "state",
            "epochs",
            "steps",
            "allocated_bytes",
            "reserved_bytes",
            "peak_allocated_bytes",
            "peak_reserved_bytes",
            "growth_bytes_per_epoch",
            "device_free_bytes",
            "foreign_used_bytes",
            "last_heard_at",
            "stands_out",
        ];
        csv::header(out, &names)?;
        self.ranks.iter().try_for_each(|rank| csv::record(out, &cells(rank)))
    }
}

fn cells(rank: &Rank) -> [Cell; 17] {
    [
        Cell::plain(rank.rank),
        Cell::maybe_text(rank.host.as_deref()),
        Cell::maybe(rank.pid),
        Cell::plain(rank.device),
        Cell::maybe_text(rank.gpu_name.as_deref()),
        Cell::plain(rank.state),
        Cell::plain(rank.epochs),
        Cell::plain(rank.steps),
        Cell::maybe(rank.allocated_bytes),
        Cell::maybe(rank.reserved_bytes),
        Cell::maybe(rank.peak_allocated_bytes),
        Cell::maybe(rank.peak_reserved_bytes),
        Cell::maybe(rank.growth_bytes_per_epoch),
        Cell::maybe(rank.device_free_bytes),
        Cell::maybe(rank.foreign_used_bytes),
        Cell::maybe(rank.last_heard_at.as_ref()),
        Cell::plain(rank.stands_out.join(" ")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn one_rank_that_differs_stands_out_and_equal_ones_do_not() {
        let ranks = Ranks::new(Report::new(fixture::report(), None).unwrap());
        assert_eq!(ranks.ranks[0].stands_out, ["allocated_bytes", "growth_bytes_per_epoch"]);
        assert!(ranks.ranks[1..].iter().all(|rank| rank.stands_out.is_empty()));
        let allocated = &ranks.spread[0];
        assert_eq!((allocated.figure, allocated.median_bytes, allocated.mad_bytes), ("allocated_bytes", 80 << 20, 0));
    }

    #[test]
    fn two_ranks_have_no_majority() {
        let mut report = fixture::report();
        report.ranks.truncate(2);
        let ranks = Ranks::new(Report::new(report, None).unwrap());
        assert!(ranks.spread.is_empty() && ranks.ranks.iter().all(|rank| rank.stands_out.is_empty()));
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(Vec::new()), 0.0);
    }
}
