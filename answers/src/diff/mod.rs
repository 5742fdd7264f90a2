//! `memctl diff` as data: what differs between the memory of two runs.
//!
//! Guarantees: changes of at most [`Diff::ignored_bytes`] are not reported, except for figures, which are always given.
//! Two equal profiles differ in nothing. A figure that one side lacks is null and not compared.
//!
//! (Over 400 lines: the parts of one answer, each with the function that fills it.)

mod length;
mod lines;

use std::collections::BTreeMap;

use memctl_model::{HumanBytes, JobState};
use serde::Serialize;

use crate::format::csv::Cell;
use crate::naming::place;
use crate::profile::{KnownFinding, Profile};
use crate::{Frame, Listing, SCHEMA};

/// What differs between two runs.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Diff {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// The first run, or the file of its profile.
    pub before: String,
    /// The second run, or the file of its profile.
    pub after: String,
    /// What it comes to.
    pub conclusion: Conclusion,
    /// The same in a sentence.
    pub sentence: String,
    /// Changes up to this size are not reported.
    pub ignored_bytes: u64,
    /// Highest values among all devices.
    pub figures: Vec<FigureChange>,
    /// Sites whose live memory at the peak differs, the largest change first.
    pub sites: Vec<SiteChange>,
    /// Sites whose growth differs, the largest change first.
    pub growth: Vec<GrowthChange>,
    /// Classes whose live memory at the peak differs, the largest change first.
    pub classes: Vec<NameChange>,
    /// Modules whose live memory at the peak differs, the largest change first.
    pub modules: Vec<NameChange>,
    /// Settings and versions that differ.
    pub settings: Vec<SettingChange>,
    /// Findings of the second run that the first one does not have.
    pub new_findings: Vec<KnownFinding>,
    /// Findings of the first run that the second one was judged for and does not have.
    pub gone_findings: Vec<KnownFinding>,
    /// Findings of the first run that the second one does not have, because it was too short to show them.
    pub not_judged_findings: Vec<UnjudgedFinding>,
    /// What limits the comparison, in sentences.
    pub notes: Vec<String>,
}

/// A finding of the first run that the second one was not judged for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct UnjudgedFinding {
    /// It.
    #[serde(flatten)]
    pub finding: KnownFinding,
    /// Why the second run does not show whether it is gone: `not judged in gpt2#4: 24 of 30 steps`.
    pub reason: String,
}

/// What a comparison comes to: the first that applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum Conclusion {
    /// One run lacks what is compared.
    NotComparable,
    /// The second run has a finding that the first one does not have.
    NewFinding,
    /// The highest peak rose.
    Higher,
    /// The highest peak fell.
    Lower,
    /// A site grows faster or more slowly.
    OtherGrowth,
    /// The peaks are alike, and their parts are not.
    OtherParts,
    /// Allocated peak, sites and growth differ by no more than what is ignored. (Reserved memory and settings may differ.)
    Same,
}

/// A figure in both runs: its highest value among all devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct FigureChange {
    /// `peak_allocated_bytes`, `peak_reserved_bytes`, `growth_bytes_per_epoch`, `events_per_step`.
    pub figure: &'static str,
    /// In the first run.
    pub before: Option<i64>,
    /// In the second run.
    pub after: Option<i64>,
}

/// Live memory of one site at the peaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct SiteChange {
    /// Where it is: in the second run if that has it. Null when no stack was recorded.
    pub site: Option<Frame>,
    /// Its line in the first run, where it moved.
    pub line_before: Option<u32>,
    /// Its class, in the second run if that has it.
    pub class: String,
    /// Live bytes in the first run.
    pub before_bytes: u64,
    /// Where the first run left out small sites, and this one with them: the most live bytes that it can have there. Null
    /// where `before_bytes` is exact.
    pub before_bytes_max: Option<u64>,
    /// Live bytes in the second run.
    pub after_bytes: u64,
    /// The same as `before_bytes_max`, of the second run.
    pub after_bytes_max: Option<u64>,
    /// Live blocks in the first run.
    pub before_blocks: u64,
    /// Live blocks in the second run.
    pub after_blocks: u64,
}

impl SiteChange {
    /// Whether the change may be smaller, because one run left out the site.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.before_bytes_max.or(self.after_bytes_max).is_some()
    }
}

/// Growth of one site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct GrowthChange {
    /// Where it is: in the second run if that has it.
    pub site: Option<Frame>,
    /// In the first run.
    pub before_bytes_per_epoch: i64,
    /// In the second run.
    pub after_bytes_per_epoch: i64,
}

/// Live memory of one class or module at the peaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct NameChange {
    /// Its name; null for memory of no module.
    pub name: Option<String>,
    /// Live bytes in the first run.
    pub before_bytes: u64,
    /// Live bytes in the second run.
    pub after_bytes: u64,
}

/// A setting, a version, or the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct SettingChange {
    /// Its name.
    pub name: String,
    /// In the first run; null where it has none.
    pub before: Option<String>,
    /// In the second run; null where it has none.
    pub after: Option<String>,
}

/// Something with a size in both runs.
trait Change {
    fn bytes(&self) -> i64;
}

/// The change from one size to another.
#[must_use]
pub fn change(before: u64, after: u64) -> i64 {
    let by = i64::try_from(before.abs_diff(after)).unwrap_or(i64::MAX);
    if after < before { -by } else { by }
}

impl Change for SiteChange {
    fn bytes(&self) -> i64 {
        change(self.before_bytes, self.after_bytes)
    }
}

impl Change for NameChange {
    fn bytes(&self) -> i64 {
        change(self.before_bytes, self.after_bytes)
    }
}

impl Change for GrowthChange {
    fn bytes(&self) -> i64 {
        self.after_bytes_per_epoch.saturating_sub(self.before_bytes_per_epoch)
    }
}

/// Those that changed by more than what is ignored, the largest change first.
fn reported<T: Change>(changes: impl IntoIterator<Item = T>, ignored_bytes: u64) -> Vec<T> {
    let mut changes: Vec<T> =
        changes.into_iter().filter(|change| change.bytes().unsigned_abs() > ignored_bytes).collect();
    changes.sort_by_key(|change| std::cmp::Reverse(change.bytes().unsigned_abs()));
    changes
}

impl Diff {
    /// What differs between two runs, given by their profiles and by what they are called.
    #[must_use]
    pub fn new(before: (&str, &Profile), after: (&str, &Profile), ignored_bytes: u64) -> Self {
        let ((name_before, before), (name_after, after)) = (before, after);
        let lacks = |one: &Profile, other: &Profile| -> Vec<KnownFinding> {
            let is_new = |finding: &&KnownFinding| finding.partners(&one.findings, &other.findings).is_empty();
            one.findings.iter().filter(is_new).cloned().collect()
        };
        let (gone_findings, not_judged_findings) = length::gone(lacks(before, after), name_after, after);
        let lines = lines::Aligned::new(before, after);
        let mut diff = Self {
            schema: SCHEMA,
            before: name_before.to_owned(),
            after: name_after.to_owned(),
            conclusion: Conclusion::Same,
            sentence: String::new(),
            ignored_bytes,
            figures: figures(before, after),
            sites: reported(lines.sites(), ignored_bytes),
            growth: reported(lines.growth(), ignored_bytes),
            classes: reported(names(before, after, of_class), ignored_bytes),
            modules: reported(names(before, after, of_module), ignored_bytes),
            settings: settings(&before.settings, &after.settings),
            new_findings: lacks(after, before),
            gone_findings,
            not_judged_findings,
            notes: notes((name_before, before), (name_after, after)),
        };
        diff.conclusion = diff.concluded();
        diff.sentence = match length::apart((name_before, before), (name_after, after)) {
            Some(lengths) => format!("{lengths} {}", diff.in_words()),
            None => diff.in_words(),
        };
        diff
    }

    /// The change of the highest peak.
    #[must_use]
    pub fn peak(&self) -> Option<(i64, i64)> {
        self.figures.first().and_then(|peak| peak.before.zip(peak.after))
    }

    /// The first new finding of severity warning or worse. (Suspected and small growth may be harmless.)
    fn worst_new(&self) -> Option<&KnownFinding> {
        self.new_findings.iter().find(|finding| finding.is_warning_or_worse())
    }

    fn concluded(&self) -> Conclusion {
        let Some((before, after)) = self.peak() else { return Conclusion::NotComparable };
        let by = after.saturating_sub(before);
        match by.unsigned_abs() > self.ignored_bytes {
            _ if self.worst_new().is_some() => Conclusion::NewFinding,
            true if by > 0 => Conclusion::Higher,
            true => Conclusion::Lower,
            false if !self.growth.is_empty() => Conclusion::OtherGrowth,
            false if !self.sites.is_empty() => Conclusion::OtherParts,
            false => Conclusion::Same,
        }
    }

    fn in_words(&self) -> String {
        let Some((before, after)) = self.peak() else {
            return "The runs cannot be compared: at least one of them has no recorded peak.".into();
        };
        let peaks = format!("from {} to {}", human(before), human(after));
        let by = human(after.saturating_sub(before));
        let most = self.sites.first().map_or_else(String::new, |site| {
            let more = if site.bytes() > 0 { "more" } else { "less" };
            let bound = if site.is_bound() { "up to " } else { "" };
            format!(
                " The largest change: {} has {bound}{} {more} at the peak.",
                named(site.site.as_ref()),
                human(site.bytes())
            )
        });
        match self.conclusion {
            Conclusion::NotComparable => String::new(),
            Conclusion::NewFinding => {
                let finding = self.worst_new().map_or("", |finding| &finding.title);
                format!("{} has a finding that {} does not have: {finding}.", self.after, self.before)
            }
            Conclusion::Higher => format!("The peak rises by {by}, {peaks}.{most}"),
            Conclusion::Lower => format!("The peak falls by {by}, {peaks}.{most}"),
            Conclusion::OtherGrowth => {
                let GrowthChange { site, before_bytes_per_epoch: was, after_bytes_per_epoch: is } = &self.growth[0];
                let how = if is > was { "faster" } else { "more slowly" };
                let place = named(site.as_ref());
                format!("{place} grows {how}: {} an epoch before, {} after.", human(*was), human(*is))
            }
            Conclusion::OtherParts => {
                format!("The peaks are alike, {} before and {} after.{most}", human(before), human(after))
            }
            Conclusion::Same => format!(
                "The allocated peak, its sites and growth differ by no more than {}. The peak is {}.",
                HumanBytes::of(self.ignored_bytes),
                human(after)
            ),
        }
    }
}

/// The size of a number of bytes, without its sign.
fn human(bytes: i64) -> String {
    HumanBytes::of(bytes.unsigned_abs()).to_string()
}

fn named(site: Option<&Frame>) -> String {
    site.map_or_else(|| "memory without a stack".to_owned(), place)
}

fn figures(before: &Profile, after: &Profile) -> Vec<FigureChange> {
    let bytes = |bytes: Option<u64>| bytes.and_then(|bytes| i64::try_from(bytes).ok());
    let of = |profile: &Profile| {
        [
            ("peak_allocated_bytes", bytes(profile.most(|rank| rank.peak_allocated_bytes))),
            ("peak_reserved_bytes", bytes(profile.most(|rank| rank.peak_reserved_bytes))),
            ("growth_bytes_per_epoch", profile.most(|rank| rank.growth_bytes_per_epoch)),
            ("events_per_step", bytes(profile.most(|rank| rank.events.checked_div(rank.steps)))),
        ]
    };
    let both = of(before).into_iter().zip(of(after));
    both.map(|((figure, before), (_, after))| FigureChange { figure, before, after }).collect()
}

/// A class or module with its live bytes.
type NamedBytes = (Option<String>, u64);

fn of_class(profile: &Profile) -> Vec<NamedBytes> {
    let shares = profile.peak.iter().flat_map(|peak| &peak.classes);
    shares.map(|share| (Some(share.class.clone()), share.live_bytes)).collect()
}

fn of_module(profile: &Profile) -> Vec<NamedBytes> {
    let modules = profile.peak.iter().flat_map(|peak| &peak.modules);
    modules.map(|held| (held.module.clone(), held.live_bytes)).collect()
}

fn names(before: &Profile, after: &Profile, of: fn(&Profile) -> Vec<NamedBytes>) -> Vec<NameChange> {
    if before.peak.is_none() || after.peak.is_none() {
        return Vec::new();
    }
    let mut both: BTreeMap<Option<String>, (u64, u64)> = BTreeMap::new();
    for (name, bytes) in of(before) {
        both.entry(name).or_default().0 += bytes;
    }
    for (name, bytes) in of(after) {
        both.entry(name).or_default().1 += bytes;
    }
    let change = |(name, (before_bytes, after_bytes))| NameChange { name, before_bytes, after_bytes };
    both.into_iter().map(change).collect()
}

fn settings(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> Vec<SettingChange> {
    let names: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let change = |name: &String| SettingChange {
        name: name.clone(),
        before: before.get(name).cloned(),
        after: after.get(name).cloned(),
    };
    names.into_iter().map(change).filter(|setting| setting.before != setting.after).collect()
}

fn notes(before: (&str, &Profile), after: (&str, &Profile)) -> Vec<String> {
    let mut notes = Vec::new();
    for (name, profile) in [before, after] {
        match profile.state {
            JobState::Running => notes.push(format!("{name} is still running: its figures are those so far.")),
            JobState::Failed | JobState::Lost => notes.push(format!("{name} did not end normally.")),
            JobState::Finished => {}
        }
        if !profile.exact {
            notes.push(format!("The recording of {name} is not complete."));
        }
        match &profile.peak {
            None => notes
                .push(format!("No events of {name} are stored, so its peak is not divided by site, class and module.")),
            Some(peak) if peak.left_out_bytes > 0 => notes.push(format!(
                "Small sites of {name} with {} in all are not compared.",
                HumanBytes::of(peak.left_out_bytes)
            )),
            Some(_) => {}
        }
    }
    if before.1.ranks.len() != after.1.ranks.len() {
        let devices = |profile: &Profile| profile.ranks.len();
        notes.push(format!("{} has {} devices and {} has {}.", before.0, devices(before.1), after.0, devices(after.1)));
    }
    notes
}

impl Listing for Diff {
    type Row = SiteChange;
    const COLUMNS: &'static [&'static str] = &[
        "function",
        "file",
        "line",
        "line_before",
        "class",
        "before_bytes",
        "before_bytes_max",
        "after_bytes",
        "after_bytes_max",
        "before_blocks",
        "after_blocks",
    ];

    fn rows(&self) -> &[SiteChange] {
        &self.sites
    }

    fn cells(row: &SiteChange) -> Vec<Cell> {
        let site = row.site.as_ref();
        vec![
            Cell::maybe_text(site.map(|site| &*site.function)),
            Cell::maybe_text(site.map(|site| &*site.file)),
            Cell::maybe(site.and_then(|site| site.line)),
            Cell::maybe(row.line_before),
            Cell::plain(&row.class),
            Cell::plain(row.before_bytes),
            Cell::maybe(row.before_bytes_max),
            Cell::plain(row.after_bytes),
            Cell::maybe(row.after_bytes_max),
            Cell::plain(row.before_blocks),
            Cell::plain(row.after_blocks),
        ]
    }
}
