//! The file of `memctl baseline`: the profile of a run, to be committed beside the program and compared with later runs.
//!
//! Guarantees: equal runs give equal files, except for the run's name. A file is small: sites below a thousandth of the
//! peak are left out, with their bytes. Reading any bytes gives a baseline or a sentence.

use memctl_analysis::display_threshold;
use serde::{Deserialize, Serialize};

use crate::conditions::Per;
use crate::profile::{KnownFinding, Profile, RankProfile};

/// The version of the file.
const VERSION: u32 = 1;
/// The most bytes of a file that are read.
pub const FILE_BYTES_MAX: u64 = 16 << 20;

/// A profile to compare later runs with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// The version of the file.
    pub memctl_baseline: u32,
    /// How many runs it is made of.
    pub runs: u32,
    /// How far the highest peaks of these runs lie apart.
    pub spread: Spread,
    /// The newest run.
    pub profile: Profile,
}

/// How far figures of equal runs lie apart, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spread {
    /// Of the highest allocated bytes.
    pub peak_allocated_bytes: u64,
    /// Of the highest reserved bytes.
    pub peak_reserved_bytes: u64,
    /// Of the rates of growth, for each finding whose rate differs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rates: Vec<RateSpread>,
}

/// How far the rates of one finding lie apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateSpread {
    /// The finding, as the newest run has it.
    pub finding: KnownFinding,
    /// Bytes an epoch.
    pub bytes_per_epoch: u64,
    /// Bytes a step.
    pub bytes_per_step: u64,
    /// Bytes a minute.
    pub bytes_per_minute: u64,
}

impl Spread {
    /// How far the rates of a finding lie apart, in bytes.
    #[must_use]
    pub fn rate(&self, finding: &KnownFinding, per: Per) -> u64 {
        let of = self.rates.iter().find(|spread| spread.finding.is_same(finding));
        of.map_or(0, |spread| match per {
            Per::Epoch => spread.bytes_per_epoch,
            Per::Step => spread.bytes_per_step,
            Per::Minute => spread.bytes_per_minute,
        })
    }
}

/// How far the rates of each place lie apart among the runs that have it.
fn rates(runs: &[Profile]) -> Vec<RateSpread> {
    let Some(newest) = runs.first() else { return Vec::new() };
    let apart = |finding: &KnownFinding, per: Per| {
        let sum = |run: &Profile| {
            let of_it = run.findings.iter().filter(|known| known.is_same(finding));
            of_it.filter_map(|known| known.rate(per)).reduce(i64::saturating_add)
        };
        let sums = || runs.iter().filter_map(sum);
        sums().max().unwrap_or(0).abs_diff(sums().min().unwrap_or(0))
    };
    let mut spreads: Vec<RateSpread> = Vec::new();
    for finding in &newest.findings {
        let spread = RateSpread {
            finding: finding.clone(),
            bytes_per_epoch: apart(finding, Per::Epoch),
            bytes_per_step: apart(finding, Per::Step),
            bytes_per_minute: apart(finding, Per::Minute),
        };
        let differs = spread.bytes_per_epoch + spread.bytes_per_step + spread.bytes_per_minute > 0;
        if differs && !spreads.iter().any(|known| known.finding.is_same(finding)) {
            spreads.push(spread);
        }
    }
    spreads
}

impl Baseline {
    /// The baseline of some runs of one program, the newest first; `None` without any run.
    #[must_use]
    pub fn new(runs: &[Profile]) -> Option<Self> {
        let spread = |figure: fn(&RankProfile) -> Option<u64>| {
            let peaks = || runs.iter().filter_map(|run| run.most(figure));
            peaks().max().unwrap_or(0) - peaks().min().unwrap_or(0)
        };
        let spread = Spread {
            peak_allocated_bytes: spread(|rank| rank.peak_allocated_bytes),
            peak_reserved_bytes: spread(|rank| rank.peak_reserved_bytes),
            rates: rates(runs),
        };
        let profile = runs.first().map(without_small_sites)?;
        Some(Self { memctl_baseline: VERSION, runs: u32::try_from(runs.len()).unwrap_or(u32::MAX), spread, profile })
    }

    /// Reads a file's content.
    ///
    /// # Errors
    /// Why it is no baseline.
    pub fn read(content: &[u8]) -> Result<Self, String> {
        let read: Self = serde_json::from_slice(content)
            .map_err(|error| format!("it is not a file of `memctl baseline save`: {error}"))?;
        match read.memctl_baseline {
            VERSION => Ok(read),
            other => Err(format!("it has version {other}, and this memctl reads version {VERSION}: save it again")),
        }
    }
}

fn without_small_sites(profile: &Profile) -> Profile {
    let mut profile = profile.clone();
    if let Some(peak) = &mut profile.peak {
        let least = display_threshold::baseline_site_bytes(peak.allocated_bytes);
        let small = peak.sites.iter().filter(|site| site.live_bytes < least).map(|site| site.live_bytes);
        peak.left_out_bytes = peak.left_out_bytes.saturating_add(small.sum());
        peak.sites.retain(|site| site.live_bytes >= least);
        peak.modules.retain(|module| module.live_bytes >= least);
    }
    profile
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{PeakProfile, PeakSite};

    fn profile(peak: u64) -> Profile {
        let rank = RankProfile { peak_allocated_bytes: Some(peak), ..RankProfile::default() };
        let site = |live_bytes| PeakSite { live_bytes, ..PeakSite::default() };
        let sites = vec![site(peak - 10), site(10)];
        let peak = PeakProfile { allocated_bytes: peak, sites, ..PeakProfile::default() };
        Profile { job: "gpt2".into(), ranks: vec![rank], peak: Some(peak), ..Profile::default() }
    }

    #[test]
    fn a_baseline_has_the_spread_of_its_runs_and_no_small_sites() {
        let made = Baseline::new(&[profile(1_000_000), profile(1_000_512)]).unwrap();
        assert_eq!((made.runs, made.spread.peak_allocated_bytes, made.spread.peak_reserved_bytes), (2, 512, 0));
        let peak = made.profile.peak.as_ref().unwrap();
        assert_eq!((peak.sites.len(), peak.left_out_bytes), (1, 10));
        assert_eq!(Baseline::read(&serde_json::to_vec(&made).unwrap()), Ok(made));
        assert_eq!(Baseline::new(&[]), None);
    }

    #[test]
    fn other_files_are_refused_with_a_reason() {
        assert!(Baseline::read(b"{}").unwrap_err().contains("memctl baseline save"));
        let later = Baseline { memctl_baseline: 2, ..Baseline::new(&[profile(100)]).unwrap_or_default() };
        assert!(Baseline::read(&serde_json::to_vec(&later).unwrap()).unwrap_err().contains("version 2"));
    }
}
