//! What differs between the lines of two runs: their live memory at the peak, and their growth.
//!
//! Guarantees: both are compared by one alignment, so a line has the same partner in each. Without the peak of a run,
//! lines are aligned by their growth alone.

use std::collections::BTreeMap;

use super::{GrowthChange, SiteChange};
use crate::Frame;
use crate::alignment::{Hidden, Line, align};
use crate::profile::{PeakSite, Profile, SiteGrowth};

/// A line of one run with what is known of it.
#[derive(Clone, Copy, Default)]
struct Known<'a> {
    site: Option<&'a Frame>,
    peak: Option<&'a PeakSite>,
    growth: Option<&'a SiteGrowth>,
}

impl<'a> Known<'a> {
    fn line(&self) -> Line<'a> {
        Line {
            site: self.site,
            class: self.peak.map_or("", |peak| &peak.class),
            live_bytes: self.peak.map(|peak| peak.live_bytes),
            live_blocks: self.peak.map_or(0, |peak| peak.live_blocks),
            growth_bytes: self.growth.map_or(0, |growth| growth.bytes_per_epoch.unsigned_abs()),
        }
    }

    fn number(&self) -> Option<u32> {
        self.site.and_then(|site| site.line)
    }
}

/// The lines of a run that have live memory at the peak, or grow.
fn lines(profile: &Profile, with_peak: bool) -> Vec<Known<'_>> {
    let of_peak = profile.peak.iter().filter(|_| with_peak).flat_map(|peak| &peak.sites);
    let mut lines: Vec<Known<'_>> =
        of_peak.map(|peak| Known { site: peak.site.as_ref(), peak: Some(peak), growth: None }).collect();
    let key = |site: Option<&Frame>| site.map(|site| (site.file.clone(), site.function.clone(), site.line));
    let places: BTreeMap<_, usize> = lines.iter().enumerate().map(|(at, line)| (key(line.site), at)).collect();
    for growth in &profile.growth {
        let site = growth.site.as_ref();
        match places.get(&key(site)).and_then(|&at| lines.get_mut(at)).filter(|line| line.growth.is_none()) {
            Some(line) => line.growth = Some(growth),
            None => lines.push(Known { site, peak: None, growth: Some(growth) }),
        }
    }
    lines
}

/// The lines of two runs side by side.
pub(super) struct Aligned<'a> {
    pairs: Vec<(Option<Known<'a>>, Option<Known<'a>>)>,
    hidden: Hidden,
    has_peaks: bool,
}

impl<'a> Aligned<'a> {
    /// Aligns the lines of two runs.
    pub(super) fn new(before: &'a Profile, after: &'a Profile) -> Self {
        let peaks = before.peak.as_ref().zip(after.peak.as_ref());
        let hidden = peaks.map_or(Hidden::default(), |(before, after)| Hidden {
            before: before.hidden_site_bytes(),
            after: after.hidden_site_bytes(),
        });
        let has_peaks = peaks.is_some();
        let (before, after) = (lines(before, has_peaks), lines(after, has_peaks));
        let as_lines = |known: &[Known<'a>]| known.iter().map(Known::line).collect::<Vec<_>>();
        let pairs = align(&as_lines(&before), &as_lines(&after), hidden).into_iter();
        let pairs = pairs.map(|(was, is)| (was.map(|at| before[at]), is.map(|at| after[at]))).collect();
        Self { pairs, hidden, has_peaks }
    }

    /// Live memory at the peaks, of all lines that have any; empty if a run has no peak by site.
    pub(super) fn sites(&self) -> Vec<SiteChange> {
        self.pairs.iter().filter(|_| self.has_peaks).filter_map(|(was, is)| self.site(*was, *is)).collect()
    }

    fn site(&self, was: Option<Known<'_>>, is: Option<Known<'_>>) -> Option<SiteChange> {
        let (peak_before, peak_after) = (was.and_then(|line| line.peak), is.and_then(|line| line.peak));
        let shown = peak_after.or(peak_before)?;
        // A site that one side lacks may be among those that were left out there.
        let hidden = if peak_before.is_none() { self.hidden.before } else { self.hidden.after };
        if (peak_before.is_none() || peak_after.is_none()) && shown.live_bytes <= hidden {
            return None;
        }
        let number = |line: Option<Known<'_>>| line.as_ref().and_then(Known::number);
        Some(SiteChange {
            site: is.or(was)?.site.cloned(),
            line_before: number(was).filter(|_| is.is_some() && number(is) != number(was)),
            class: shown.class.clone(),
            before_bytes: peak_before.map_or(0, |site| site.live_bytes),
            after_bytes: peak_after.map_or(0, |site| site.live_bytes),
            before_blocks: peak_before.map_or(0, |site| site.live_blocks),
            after_blocks: peak_after.map_or(0, |site| site.live_blocks),
        })
    }

    /// Growth, of all lines that grow in one of the runs.
    pub(super) fn growth(&self) -> Vec<GrowthChange> {
        let rate = |line: &Option<Known<'_>>| line.and_then(|line| line.growth).map(|growth| growth.bytes_per_epoch);
        let change = |(was, is): &(Option<Known<'_>>, Option<Known<'_>>)| {
            rate(was).or(rate(is))?;
            Some(GrowthChange {
                site: is.or(*was)?.site.cloned(),
                before_bytes_per_epoch: rate(was).unwrap_or(0),
                after_bytes_per_epoch: rate(is).unwrap_or(0),
            })
        };
        self.pairs.iter().filter_map(change).collect()
    }
}
