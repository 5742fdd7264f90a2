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
struct SiteLine<'a> {
    site: Option<&'a Frame>,
    peak: Option<&'a PeakSite>,
    growth: Option<&'a SiteGrowth>,
}

impl<'a> SiteLine<'a> {
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
fn lines(profile: &Profile, with_peak: bool) -> Vec<SiteLine<'_>> {
    let of_peak = profile.peak.iter().filter(|_| with_peak).flat_map(|peak| &peak.sites);
    let mut lines: Vec<SiteLine<'_>> =
        of_peak.map(|peak| SiteLine { site: peak.site.as_ref(), peak: Some(peak), growth: None }).collect();
    let key = |site: Option<&Frame>| site.map(|site| (site.file.clone(), site.function.clone(), site.line));
    let places: BTreeMap<_, usize> = lines.iter().enumerate().map(|(at, line)| (key(line.site), at)).collect();
    for growth in &profile.growth {
        let site = growth.site.as_ref();
        match places.get(&key(site)).and_then(|&at| lines.get_mut(at)).filter(|line| line.growth.is_none()) {
            Some(line) => line.growth = Some(growth),
            None => lines.push(SiteLine { site, peak: None, growth: Some(growth) }),
        }
    }
    lines
}

/// The lines of two runs side by side.
pub(super) struct Aligned<'a> {
    pairs: Vec<(Option<SiteLine<'a>>, Option<SiteLine<'a>>)>,
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
        let as_lines = |known: &[SiteLine<'a>]| known.iter().map(SiteLine::line).collect::<Vec<_>>();
        let pairs = align(&as_lines(&before), &as_lines(&after), hidden).into_iter();
        let pairs = pairs.map(|(was, is)| (was.map(|at| before[at]), is.map(|at| after[at]))).collect();
        Self { pairs, hidden, has_peaks }
    }

    /// Live memory at the peaks, of all lines that have any; empty if a run has no peak by site.
    pub(super) fn sites(&self) -> Vec<SiteChange> {
        self.pairs.iter().filter(|_| self.has_peaks).filter_map(|(was, is)| self.site(*was, *is)).collect()
    }

    fn site(&self, was: Option<SiteLine<'_>>, is: Option<SiteLine<'_>>) -> Option<SiteChange> {
        let (peak_before, peak_after) = (was.and_then(|line| line.peak), is.and_then(|line| line.peak));
        let shown = peak_after.or(peak_before)?;
        // A site that one side lacks may be among those that were left out there.
        let hidden = if peak_before.is_none() { self.hidden.before } else { self.hidden.after };
        if (peak_before.is_none() || peak_after.is_none()) && shown.live_bytes <= hidden {
            return None;
        }
        let bound = |peak: Option<&PeakSite>, hidden: u64| (peak.is_none() && hidden > 0).then_some(hidden);
        let number = |line: Option<SiteLine<'_>>| line.as_ref().and_then(SiteLine::number);
        Some(SiteChange {
            site: is.or(was)?.site.cloned(),
            line_before: number(was).filter(|_| is.is_some() && number(is) != number(was)),
            class: shown.class.clone(),
            before_bytes: peak_before.map_or(0, |site| site.live_bytes),
            before_bytes_max: bound(peak_before, self.hidden.before),
            after_bytes: peak_after.map_or(0, |site| site.live_bytes),
            after_bytes_max: bound(peak_after, self.hidden.after),
            before_blocks: peak_before.map_or(0, |site| site.live_blocks),
            after_blocks: peak_after.map_or(0, |site| site.live_blocks),
        })
    }

    /// Growth, of all lines that grow in one of the runs.
    pub(super) fn growth(&self) -> Vec<GrowthChange> {
        let rate = |line: &Option<SiteLine<'_>>| line.and_then(|line| line.growth).map(|growth| growth.bytes_per_epoch);
        let change = |(was, is): &(Option<SiteLine<'_>>, Option<SiteLine<'_>>)| {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::{Conclusion, Diff};
    use crate::profile::{PeakProfile, RankProfile};

    const IGNORED: u64 = 64 << 10;
    /// What the baseline of the runs below left out.
    const LEFT_OUT: u64 = 77_824;

    /// Function, line, class, live bytes, live blocks.
    type Row = (&'static str, u32, &'static str, u64, u64);

    /// The run whose baseline is committed; its loss, at line 25, is too small for the file.
    const BASELINE: [Row; 4] = [
        ("Net.forward", 13, "workspace", 34_735_104, 4),
        ("train_step", 28, "optimizer_state", 1_218_048, 18),
        ("main", 51, "parameters", 406_016, 6),
        ("Net.forward", 14, "gradients", 263_168, 2),
    ];

    fn profile(rows: &[Row], left_out_bytes: u64) -> Profile {
        let site = |&(function, line, class, live_bytes, live_blocks): &Row| {
            let file = if function == "Net.forward" { "/ci/model.py" } else { "/ci/train.py" };
            let site = Frame { function: function.into(), file: file.into(), line: Some(line) };
            PeakSite { site: Some(site), class: class.into(), live_bytes, live_blocks }
        };
        let peak = Some(PeakProfile { sites: rows.iter().map(site).collect(), left_out_bytes, ..Default::default() });
        let rank = RankProfile { peak_allocated_bytes: Some(35 << 20), ..RankProfile::default() };
        Profile { ranks: vec![rank], peak, ..Profile::default() }
    }

    fn since_baseline(rows: &[Row]) -> Diff {
        Diff::new(("memory.json", &profile(&BASELINE, LEFT_OUT)), ("check", &profile(rows, 0)), IGNORED)
    }

    /// The line before, the line, the bytes before and after.
    fn rows(diff: &Diff) -> Vec<(Option<u32>, Option<u32>, u64, u64)> {
        let line = |change: &SiteChange| change.site.as_ref().and_then(|site| site.line);
        diff.sites.iter().map(|one| (one.line_before, line(one), one.before_bytes, one.after_bytes)).collect()
    }

    #[test]
    fn lines_of_comment_change_nothing() {
        // The step moved from 28 to 31, the loss from 25 to 28.
        let comment = since_baseline(&[
            BASELINE[0],
            ("train_step", 31, "optimizer_state", 1_218_048, 18),
            ("main", 54, "parameters", 406_016, 6),
            BASELINE[3],
            ("train_step", 28, "activations", 1024, 2),
        ]);
        assert_eq!((comment.conclusion, rows(&comment)), (Conclusion::Same, Vec::new()));
    }

    #[test]
    fn a_buffer_beside_moved_lines_is_the_only_change() {
        let buffer = since_baseline(&[
            BASELINE[0],
            ("train_step", 31, "temporaries", 2 << 20, 1),
            ("train_step", 32, "optimizer_state", 1_218_048, 18),
            ("main", 56, "parameters", 406_016, 6),
            BASELINE[3],
            ("train_step", 28, "activations", 1024, 2),
        ]);
        assert_eq!(rows(&buffer), [(None, Some(31), 0, 2 << 20)]);
        assert_eq!((buffer.sites[0].before_bytes_max, buffer.sites[0].after_bytes_max), (Some(LEFT_OUT), None));
        assert!(
            buffer.sentence.ends_with("train_step (train.py:31) has up to 2.00 MiB more at the peak."),
            "{}",
            buffer.sentence
        );
    }

    #[test]
    fn a_larger_model_grows_each_line_in_its_new_place() {
        let larger = since_baseline(&[
            BASELINE[0],
            ("train_step", 31, "optimizer_state", 26_449_920, 18),
            ("Net.forward", 15, "activations", 18_907_136, 7),
            ("main", 56, "parameters", 8_816_640, 6),
            BASELINE[3],
            ("main", 62, "activations", 32_768, 1),
            ("train_step", 28, "activations", 1024, 2),
        ]);
        let wanted = [
            (Some(28), Some(31), 1_218_048, 26_449_920),
            (None, Some(15), 0, 18_907_136),
            (Some(51), Some(56), 406_016, 8_816_640),
        ];
        assert_eq!(rows(&larger), wanted);
    }

    #[test]
    fn a_graph_that_an_evaluation_keeps_is_not_seen_in_the_step() {
        let kept = since_baseline(&[
            ("Net.forward", 13, "workspace", 36_307_968, 28),
            ("Net.forward", 14, "activations", 1_901_568, 27),
            ("train_step", 31, "optimizer_state", 812_032, 12),
            ("validate", 39, "activations", 798_720, 48),
            ("main", 53, "parameters", 406_016, 6),
            ("validate", 40, "activations", 73_728, 52),
            ("train_step", 28, "activations", 512, 1),
        ]);
        let wanted = [
            (None, Some(14), 263_168, 1_901_568),
            (None, Some(13), 34_735_104, 36_307_968),
            (None, Some(39), 0, 798_720),
            (Some(28), Some(31), 1_218_048, 812_032),
        ];
        assert_eq!(rows(&kept), wanted);
    }

    #[test]
    fn growth_has_the_partners_of_the_peak() {
        let grows = |rows: &[Row], line: u32| {
            let mut profile = profile(rows, 0);
            let site = Frame { function: "main".into(), file: "/ci/train.py".into(), line: Some(line) };
            profile.growth = vec![SiteGrowth { site: Some(site), bytes_per_epoch: 1 << 20 }];
            profile
        };
        let lines = [("main", 51, "parameters", 406_016, 6), ("main", 60, "activations", 3 << 20, 3)];
        let moved = [("main", 55, "parameters", 406_016, 6), ("main", 64, "activations", 3 << 20, 3)];
        let growth = |before: &Profile, after: &Profile| Diff::new(("a", before), ("b", after), IGNORED).growth.len();
        assert_eq!(growth(&grows(&lines, 60), &grows(&moved, 64)), 0);
        assert_eq!(growth(&grows(&lines, 60), &grows(&moved, 55)), 2, "another line grows");
    }
}
