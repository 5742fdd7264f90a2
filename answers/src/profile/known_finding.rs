//! A finding as the other run of a comparison, or the file of a baseline, knows it.
//!
//! Guarantees: neither lines nor folders identify a finding, because files are edited and runs are of other checkouts. A
//! function that was moved to another file, or renamed in its file, keeps its findings.

use memctl_analysis::display_threshold::{COMPARED_HOLDERS_SHARE, SAVED_HOLDERS_SHARE};
use memctl_model::{FindingKind, Severity};
use serde::{Deserialize, Serialize};

use crate::Frame;
use crate::conditions::Per;
use crate::finding::{Finding, severity_by_name};
use crate::format::text::file_name;

/// What identifies a finding in another run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct KnownFinding {
    /// Its kind, by name.
    pub kind: String,
    /// The innermost frame of the user's own code.
    pub site: Option<Frame>,
    /// Distinguishes two findings of one kind without a site.
    pub subject: Option<String>,
    /// Its sentence.
    pub title: String,
    /// Whether it is suspected: it may be a cache that is still filling.
    #[serde(default)]
    pub suspected: bool,
    /// How serious it is; `warning` in the file of an older memctl.
    #[serde(default, with = "severity_by_name")]
    #[cfg_attr(test, ts(as = "crate::typescript::ByName<Severity>"))]
    pub severity: Severity,
    /// Growth an epoch, of one rank.
    #[serde(default)]
    pub bytes_per_epoch: Option<i64>,
    /// Growth a step, of one rank.
    #[serde(default)]
    pub bytes_per_step: Option<i64>,
    /// Growth a minute; null where it grows by epochs or steps, because minutes depend on the machine.
    #[serde(default)]
    pub bytes_per_minute: Option<i64>,
    /// The named objects that hold most of its blocks, as far as they are known.
    #[serde(default)]
    pub holders: Vec<KnownHolder>,
}

/// An object that holds the blocks of a finding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct KnownHolder {
    /// Its type: `list`, `collections.deque`.
    #[serde(rename = "type")]
    pub type_name: String,
    /// The variable or attribute.
    pub name: String,
    /// The module, class or function whose that is.
    pub owner: Option<String>,
}

impl KnownHolder {
    /// Whether both are the same variable. An owner that one side does not know does not count.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let same_owner = self.owner.is_none() || other.owner.is_none() || self.owner == other.owner;
        self.name == other.name && same_owner
    }

    /// `list history`.
    #[must_use]
    pub fn words(&self) -> String {
        let short = self.type_name.rsplit('.').next().unwrap_or_default();
        format!("{short} {}", self.name).trim_start().to_owned()
    }
}

impl KnownFinding {
    /// Whether its severity is warning or worse.
    #[must_use]
    pub fn is_warning_or_worse(&self) -> bool {
        self.severity >= Severity::Warning
    }

    /// Whether live memory or a private pool grows.
    #[must_use]
    pub fn fills(&self) -> bool {
        FindingKind::of_name(&self.kind).is_some_and(FindingKind::fills)
    }

    /// Whether both are about the same problem. Lines move when a file is edited, and another run may be of another
    /// checkout, so neither lines nor folders count.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.kind == other.kind && self.subject == other.subject && self.place() == other.place()
    }

    /// Whether this may be a finding of another run whose function was moved to another file or renamed in its file. If
    /// the holders of both are known, they share one; otherwise the function has the same name.
    fn may_be_moved(&self, other: &Self) -> bool {
        let (Some((function, file)), Some((before, file_before))) = (self.place(), other.place()) else { return false };
        let is_alike =
            self.kind == other.kind && self.subject == other.subject && (function != before) != (file != file_before);
        let both_known = !self.holders.is_empty() && !other.holders.is_empty();
        let shares = || self.holders.iter().any(|one| other.holders.iter().any(|known| known.is_same(one)));
        is_alike && if both_known { shares() } else { function == before }
    }

    /// The findings of another run that are this one: those of its place, or else those of the one place that this run
    /// lacks and whose function may have become this one. `here` are the findings of this run.
    #[must_use]
    pub fn partners<'a>(&self, here: &[Self], there: &'a [Self]) -> Vec<&'a Self> {
        let same: Vec<&Self> = there.iter().filter(|known| known.is_same(self)).collect();
        if !same.is_empty() {
            return same;
        }
        let is_gone = |known: &&Self| !here.iter().any(|finding| finding.is_same(known));
        let moved: Vec<&Self> = there.iter().filter(|known| self.may_be_moved(known)).filter(is_gone).collect();
        let of_one_place = moved.first().is_some_and(|first| moved.iter().all(|known| known.is_same(first)));
        if of_one_place { moved } else { Vec::new() }
    }

    /// Its sentence, marked if it is suspected.
    #[must_use]
    pub fn words(&self) -> String {
        format!("{}{}", if self.suspected { "suspected: " } else { "" }, self.title)
    }

    /// Its function and the name of its file.
    #[must_use]
    pub fn place(&self) -> Option<(String, String)> {
        place(self.site.as_ref())
    }

    /// Its growth in a unit, of one rank.
    #[must_use]
    pub const fn rate(&self, per: Per) -> Option<i64> {
        match per {
            Per::Epoch => self.bytes_per_epoch,
            Per::Step => self.bytes_per_step,
            Per::Minute => self.bytes_per_minute,
        }
    }
}

impl From<&Finding> for KnownFinding {
    fn from(finding: &Finding) -> Self {
        let by_boundaries = finding.bytes_per_epoch.or(finding.bytes_per_step).is_some();
        Self {
            kind: finding.kind.clone(),
            site: finding.site.as_ref().map(|site| site.frame.clone()),
            subject: finding.subject.clone(),
            title: finding.title.clone(),
            suspected: finding.suspected,
            severity: finding.severity,
            bytes_per_epoch: finding.bytes_per_epoch,
            bytes_per_step: finding.bytes_per_step,
            bytes_per_minute: finding.bytes_per_minute.filter(|_| !by_boundaries),
            holders: named_holders(finding, SAVED_HOLDERS_SHARE),
        }
    }
}

/// The named holders of a finding that must be known to the other job.
#[must_use]
pub(crate) fn compared_holders(finding: &Finding) -> Vec<KnownHolder> {
    named_holders(finding, COMPARED_HOLDERS_SHARE)
}

/// The named holders with at least one part in `share` of the first one's blocks. (A loop's variable has one block.)
fn named_holders(finding: &Finding, share: u32) -> Vec<KnownHolder> {
    let holders = finding.holders.as_ref().map_or(&[][..], |known| &known.holders);
    let least = holders.first().map_or(0, |most| most.holder.blocks.div_ceil(share).max(most.holder.blocks.min(2)));
    let named = holders.iter().map(|growing| &growing.holder).filter(|holder| holder.blocks >= least);
    let known = named.filter_map(|holder| {
        Some(KnownHolder {
            type_name: holder.type_name.clone(),
            name: holder.name.clone().filter(|name| !name.is_empty())?,
            owner: holder.owner.clone(),
        })
    });
    known.collect()
}

/// A function and the name of its file. Another run may be of another checkout, so folders and lines do not count.
pub(super) fn place(site: Option<&Frame>) -> Option<(String, String)> {
    site.map(|site| (site.function.clone(), file_name(&site.file).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leak(function: &str, file: &str, list: Option<&str>) -> KnownFinding {
        let holder = |name: &str| KnownHolder { type_name: "list".into(), name: name.into(), owner: None };
        KnownFinding {
            kind: "leak".into(),
            site: Some(Frame { function: function.into(), file: format!("/repo/{file}"), line: Some(7) }),
            holders: list.into_iter().map(holder).collect(),
            ..KnownFinding::default()
        }
    }

    /// How many findings of the other run are this one.
    fn partners(here: &[KnownFinding], there: &[KnownFinding]) -> usize {
        here[0].partners(here, there).len()
    }

    #[test]
    fn a_function_that_was_moved_or_renamed_keeps_its_finding() {
        let before = || [leak("Samples.add", "samples.py", Some("rows"))];
        let moved = leak("Samples.add", "store.py", Some("rows"));
        let renamed = leak("Samples.append", "samples.py", Some("rows"));
        assert_eq!(partners(std::slice::from_ref(&moved), &before()), 1);
        assert_eq!(partners(std::slice::from_ref(&renamed), &before()), 1);
        // The old function still leaks, so the other one is new.
        assert_eq!(partners(&[moved, before()[0].clone()], &before()), 0);
        assert_eq!(partners(&[leak("Samples.append", "samples.py", Some("others"))], &before()), 0);
        assert_eq!(partners(&[leak("Samples.append", "store.py", Some("rows"))], &before()), 0, "both changed");
        // Without holders, only the name of the function shows it.
        assert_eq!(partners(&[leak("Samples.add", "store.py", None)], &before()), 1);
        assert_eq!(partners(&[leak("Samples.append", "samples.py", None)], &before()), 0);
        let two = [leak("Samples.add", "samples.py", None), leak("Samples.add", "more.py", None)];
        assert_eq!(partners(&[leak("Samples.add", "store.py", None)], &two), 0, "it is unknown which");
    }
}
