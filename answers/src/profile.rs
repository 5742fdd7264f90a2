//! The memory of one run in figures that can be compared with those of another run: `memctl diff`, and what
//! `memctl baseline` writes.
//!
//! Guarantees: no times, no addresses, and a fixed order, so two equal runs have equal profiles. Sites and modules that
//! are left out are counted with their bytes.

mod known_finding;

use std::collections::BTreeMap;

use memctl_model::finding::Growth;
use memctl_model::{FindingKind, JobState};
use serde::{Deserialize, Serialize};

use crate::anatomy::Held;
use crate::finding::Finding;
use crate::ledger::ClassShare;
use crate::report::{Rank, Report};
use crate::{Frame, SCHEMA, state_by_name};

pub(crate) use known_finding::compared_holders;
use known_finding::place;
pub use known_finding::{KnownFinding, KnownHolder};

/// The memory of one run; see the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Profile {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// The run that it is of: `gpt2#3`.
    pub job: String,
    /// `running`, `finished`, `failed` or `lost`.
    #[serde(with = "state_by_name")]
    #[cfg_attr(test, ts(as = "crate::typescript::ByName<JobState>"))]
    pub state: JobState,
    /// Whether nothing is missing of what was recorded.
    pub exact: bool,
    /// Peaks and growth of each device.
    pub ranks: Vec<RankProfile>,
    /// Live memory at the peak of the device with the highest peak; null where no events are stored.
    pub peak: Option<PeakProfile>,
    /// Sites that grew, most first.
    pub growth: Vec<SiteGrowth>,
    /// Findings of severity warning or worse; and growth of live memory and failed requests of any severity.
    pub findings: Vec<KnownFinding>,
    /// Kinds of findings that were looked for, without those that depend on the moments of measurements.
    pub judged: Vec<String>,
    /// What else decides about memory: the allocator's settings, versions, the device, the number of ranks.
    pub settings: BTreeMap<String, String>,
}

/// Peaks and growth of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct RankProfile {
    /// The rank.
    pub rank: u32,
    /// The process, by its name within the job.
    pub process: String,
    /// Device index in the process.
    pub device: u32,
    /// The highest allocated bytes.
    pub peak_allocated_bytes: Option<u64>,
    /// The highest reserved bytes.
    pub peak_reserved_bytes: Option<u64>,
    /// Growth an epoch.
    pub growth_bytes_per_epoch: Option<i64>,
    /// Epochs that ended.
    #[serde(default)]
    pub epochs: u64,
    /// Steps that were recorded.
    pub steps: u64,
    /// Events of the allocator that were recorded.
    pub events: u64,
}

/// Live memory at the peak of one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct PeakProfile {
    /// The rank.
    pub rank: u32,
    /// The process, by its name within the job.
    pub process: String,
    /// Device index in the process.
    pub device: u32,
    /// Epoch of the peak.
    pub epoch: u32,
    /// Step of the peak.
    pub step: u64,
    /// Whether the figures are exact.
    pub exact: bool,
    /// Allocated bytes.
    pub allocated_bytes: u64,
    /// Allocated bytes by class; empty classes are omitted.
    pub classes: Vec<ClassShare>,
    /// By site, most first.
    pub sites: Vec<PeakSite>,
    /// By module, most first.
    pub modules: Vec<Held>,
    /// Bytes of the sites that had no room in the answer.
    pub left_out_bytes: u64,
}

impl PeakProfile {
    /// The most bytes that a site which was left out can have; 0 if none was. The largest sites are kept.
    #[must_use]
    pub fn hidden_site_bytes(&self) -> u64 {
        let smallest = self.sites.iter().map(|site| site.live_bytes).min();
        smallest.map_or(self.left_out_bytes, |smallest| smallest.min(self.left_out_bytes))
    }
}

/// Live memory of one site at the peak.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct PeakSite {
    /// The innermost frame of the user's own code; null when no stack was recorded.
    pub site: Option<Frame>,
    /// The class that has most of its bytes.
    pub class: String,
    /// Live bytes.
    pub live_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
}

/// The growth of one site, on the rank where it grows fastest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct SiteGrowth {
    /// The innermost frame of the user's own code; null when no stack was recorded.
    pub site: Option<Frame>,
    /// Bytes an epoch.
    pub bytes_per_epoch: i64,
}

impl SiteGrowth {
    /// Its function and the name of its file.
    #[must_use]
    pub fn place(&self) -> Option<(String, String)> {
        place(self.site.as_ref())
    }
}

impl Profile {
    /// The profile of a run: its report, and live memory at its highest peak.
    #[must_use]
    pub fn new(report: &Report, peak: Option<PeakProfile>) -> Self {
        let findings = report.findings.iter().filter(|finding| is_kept(finding)).map(KnownFinding::from);
        let growth = report.growth.iter().filter_map(|growth| {
            let fastest = growth.ranks.iter().map(|rank| rank.bytes_per_epoch).max()?;
            Some(SiteGrowth { site: growth.site.clone(), bytes_per_epoch: fastest })
        });
        Self {
            schema: SCHEMA,
            job: report.job.id.clone(),
            state: report.job.state,
            exact: report.completeness.exact,
            ranks: report.ranks.iter().map(RankProfile::from).collect(),
            growth: growth.collect(),
            findings: findings.collect(),
            judged: report
                .scope
                .judged
                .kinds
                .iter()
                .map(|kind| kind.kind.clone())
                .filter(|kind| is_repeatable(kind))
                .collect(),
            settings: settings(report, peak.as_ref()),
            peak,
        }
    }

    /// The device with the highest peak; the first of several with the same.
    #[must_use]
    pub fn highest(ranks: &[Rank]) -> Option<&Rank> {
        ranks.iter().rev().max_by_key(|rank| rank.peak_allocated_bytes)
    }

    /// The highest value of a figure among all devices.
    pub fn most<T: Ord>(&self, figure: impl Fn(&RankProfile) -> Option<T>) -> Option<T> {
        self.ranks.iter().filter_map(figure).max()
    }
}

/// Whether a kind is judged in each of two equal runs. What is measured from time to time may be missing in a short run.
fn is_repeatable(kind: &str) -> bool {
    let is_measured = |kind| matches!(kind, FindingKind::ForeignProcess | FindingKind::NearOom);
    !FindingKind::of_name(kind).is_some_and(|kind| is_measured(kind) || kind.growth() == Some(Growth::Beside))
}

/// Whether a later run is compared with a finding. Growth is kept at any severity, because it may become a leak.
fn is_kept(finding: &Finding) -> bool {
    let counts = |kind: FindingKind| kind.fills() || kind == FindingKind::Oom;
    finding.is_warning_or_worse() || finding.filled_device || finding.known_kind().is_some_and(counts)
}

impl From<&Rank> for RankProfile {
    fn from(rank: &Rank) -> Self {
        Self {
            rank: rank.rank,
            process: rank.process.clone(),
            device: rank.device,
            peak_allocated_bytes: rank.peak_allocated_bytes,
            peak_reserved_bytes: rank.peak_reserved_bytes,
            growth_bytes_per_epoch: rank.growth_bytes_per_epoch,
            epochs: rank.epochs,
            steps: rank.steps,
            events: rank.events,
        }
    }
}

fn settings(report: &Report, peak: Option<&PeakProfile>) -> BTreeMap<String, String> {
    let is_of_peak = |rank: &&Rank| peak.is_some_and(|peak| peak.process == rank.process && peak.device == rank.device);
    let Some(rank) = report.ranks.iter().find(is_of_peak).or_else(|| Profile::highest(&report.ranks)) else {
        return BTreeMap::new();
    };
    let known = [
        ("allocator", Some(rank.allocator_conf.clone()).filter(|conf| !conf.is_empty())),
        ("framework", rank.framework.clone()),
        ("gpu", rank.gpu_name.clone()),
        ("ranks", report.job.world_size.map(|ranks| ranks.to_string())),
    ];
    known.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judged::JudgedKind;

    #[test]
    fn what_depends_on_the_moments_of_measurements_is_not_compared() {
        let kinds = ["leak", "foreign_process", "near_oom", "host_growth", "oom"];
        let mut report = Report::default();
        report.scope.judged.kinds = kinds.map(|kind| JudgedKind { kind: kind.into(), boundaries: Vec::new() }).into();
        assert_eq!(Profile::new(&report, None).judged, ["leak", "oom"]);
    }
}
