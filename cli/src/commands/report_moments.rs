//! The device and the moments at which a report shows a finding, as the page does (`words/devices.ts`,
//! `words/grown.ts`).
//!
//! Guarantees: both moments are of the same phase: two ends of epochs, or the ends of two steps of one epoch for memory
//! that is freed with its epoch. The first epoch counts as warm-up if at least two later ones ended.

use memctl_answers::finding::{Evidence, Finding};
use memctl_answers::report::{Rank, Report};
use memctl_model::FindingKind;

/// The device of a finding: the one whose figures it has, else the first one of the finding.
pub(super) fn row_of<'r>(finding: &Finding, report: &'r Report) -> Option<&'r Rank> {
    let named = match finding.evidence.get("rank") {
        Some(Evidence::Count(rank)) => u32::try_from(*rank).ok(),
        _ => finding.ranks.first().copied(),
    };
    let of_process = |row: &&Rank| finding.processes.is_empty() || finding.processes.contains(&row.process);
    let own = || report.ranks.iter().filter(|row| finding.ranks.contains(&row.rank)).filter(of_process);
    own().find(|row| Some(row.rank) == named).or(own().next())
}

/// The moments between which growth is shown, as the page compares them (`words/grown.ts`).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Compared {
    /// The earlier one.
    pub from: String,
    /// The later one.
    pub at: String,
}

impl Compared {
    /// The moments for a finding, on its device.
    pub fn of(finding: &Finding, row: &Rank) -> Option<Self> {
        if finding.kind == FindingKind::HiddenChain.name() {
            let epoch = row.epoch_ends.last()?.epoch;
            return Some(Self { from: format!("epoch:{epoch}:first-step"), at: format!("epoch:{epoch}:last-step") });
        }
        Self::ends(compared(row, finding.first_seen.epoch))
    }

    /// Two ends of epochs.
    pub fn ends(epochs: Option<(u32, u32)>) -> Option<Self> {
        epochs.map(|(early, late)| Self { from: format!("epoch:{early}"), at: format!("epoch:{late}") })
    }
}

/// The epoch in which the worst finding was first seen.
pub(super) fn since(report: &Report) -> Option<u32> {
    report.findings.first()?.first_seen.epoch
}

/// The epochs at whose ends a rank is compared: the first one after warm-up with the growth, and the last one.
pub(super) fn compared(row: &Rank, since: Option<u32>) -> Option<(u32, u32)> {
    let ends: Vec<u32> = row.epoch_ends.iter().map(|end| end.epoch).collect();
    let late = *ends.last()?;
    let before = || ends.iter().skip(usize::from(ends.len() > 2)).copied().filter(|epoch| *epoch < late);
    let early = before().find(|epoch| *epoch >= since.unwrap_or(0)).or(before().next())?;
    Some((early, late))
}

#[cfg(test)]
mod tests {
    use memctl_answers::report::EpochEnd;

    use super::*;

    #[test]
    fn a_finding_is_shown_on_the_device_whose_figures_it_has() {
        let row = |rank, process: &str| Rank { rank, process: process.to_owned(), ..Rank::default() };
        let report = Report { ranks: vec![row(0, "a"), row(1, "b"), row(1, "c"), row(2, "d")], ..Report::default() };
        let finding = |evidence: &[(&str, Evidence)], processes: &[&str]| Finding {
            ranks: vec![1, 2],
            evidence: evidence.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
            processes: processes.iter().map(|&name| name.to_owned()).collect(),
            ..Finding::default()
        };
        let process = |finding: &Finding| row_of(finding, &report).map(|row| row.process.as_str());
        assert_eq!(process(&finding(&[("rank", Evidence::Count(2))], &[])), Some("d"));
        assert_eq!(process(&finding(&[], &["c"])), Some("c"));
        assert_eq!(process(&finding(&[], &[])), Some("b"));
    }

    #[test]
    fn growth_is_compared_from_after_warm_up_and_a_chain_within_an_epoch() {
        let ends = |epochs: &[u32]| Rank {
            epoch_ends: epochs.iter().map(|&epoch| EpochEnd { epoch, ..EpochEnd::default() }).collect(),
            ..Rank::default()
        };
        assert_eq!(compared(&ends(&[0, 1, 2, 7]), Some(0)), Some((1, 7)));
        assert_eq!(compared(&ends(&[0, 1, 2, 7]), Some(7)), Some((1, 7)));
        assert_eq!(compared(&ends(&[0, 1]), None), Some((0, 1)));
        assert_eq!(compared(&ends(&[3]), None), None);
        let chain = Finding { kind: "hidden_chain".to_owned(), ..Finding::default() };
        let within = Compared { from: "epoch:2:first-step".to_owned(), at: "epoch:2:last-step".to_owned() };
        assert_eq!(Compared::of(&chain, &ends(&[0, 1, 2])), Some(within));
    }
}
