//! The basis of every figure of `memctl fit`: a recording's memory, the memory of its replay without a change, and
//! whether memory grew.
//!
//! Guarantees: if the replay differs from the recording, the known causes are named. A figure is valid for the number
//! of recorded steps; longer runs are not forecast.

use memctl_model::{HumanBytes, VerdictKind};
use serde::{Deserialize, Serialize};

use crate::report::{Rank, Report};

/// A recording and its size.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Recording {
    /// The job's name.
    pub job: String,
    /// The attempt.
    pub attempt: u32,
    /// The number that it was recorded at, where it was named.
    pub size: Option<u64>,
    /// The rank.
    pub rank: u32,
    /// The process, by its name within the job.
    pub process: String,
    /// Device index in the process.
    pub device: u32,
    /// Highest reserved bytes.
    pub peak_reserved_bytes: u64,
    /// Highest allocated bytes.
    pub peak_allocated_bytes: u64,
    /// Whether the replay of its own settings repeats it.
    pub exact: bool,
    /// The same requests, replayed without a change and without a limit: what other figures are compared with.
    pub replayed: Replayed,
}

/// A recording's replay without a change.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(rename = "FitReplayed"))]
pub struct Replayed {
    /// Highest reserved bytes.
    pub peak_reserved_bytes: u64,
    /// Highest allocated bytes.
    pub peak_allocated_bytes: u64,
    /// Requests that failed when they were recorded. The replay counts them as if they had been served.
    pub failed_requests: u64,
    /// Bytes of the largest of these.
    pub failed_bytes: u64,
    /// Bytes in use when the recording began, which the replay asks for first.
    pub began_with_bytes: u64,
}

/// Memory that grows in a recording.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Growing {
    /// The job's name.
    pub job: String,
    /// The job's verdict, or of a job that ran out of memory what grew before.
    pub sentence: String,
    /// Steps that were recorded: what the figures are for. 0 where none is marked.
    pub steps: u64,
    /// Whether its cause is known to be a leak.
    pub is_leak: bool,
    /// Whether memory fills something that is bounded.
    pub is_bounded: bool,
    /// What to change, where a finding says it.
    pub advice: Option<String>,
}

impl Recording {
    /// Why the replay differs from the recording, as a sentence; `None` if both peaks are the same.
    #[must_use]
    pub fn difference(&self) -> Option<String> {
        let Replayed { failed_requests, failed_bytes, began_with_bytes, .. } = self.replayed;
        let recorded = (self.peak_allocated_bytes, self.peak_reserved_bytes);
        if recorded == (self.replayed.peak_allocated_bytes, self.replayed.peak_reserved_bytes) {
            return None;
        }
        let failed = HumanBytes::of(failed_bytes);
        let mut reasons = Vec::new();
        match failed_requests {
            0 => {}
            1 => reasons.push(format!("it counts the request for {failed} that failed, as if it had been served")),
            many => reasons.push(format!(
                "it counts {many} requests that failed, the largest for {failed}, as if they had been served"
            )),
        }
        if began_with_bytes > 0 {
            let began = HumanBytes::of(began_with_bytes);
            reasons.push(format!(
                "the {began} that were in use when the recording began are asked for first, without what was cached beside them"
            ));
        }
        if !self.exact {
            reasons.push("it does not repeat the recording".to_owned());
        }
        Some(match reasons.is_empty() {
            true => "The replay has no limit on memory and gives nothing back for want of it.".to_owned(),
            false => format!("The replay differs from the recording: {}.", reasons.join("; ")),
        })
    }
}

impl Growing {
    /// The growth of a rank's device memory by its report; `None` if it does not grow.
    #[must_use]
    pub fn of(report: &Report, rank: &Rank) -> Option<Self> {
        let concerns = |ranks: &[u32]| ranks.is_empty() || ranks.contains(&rank.rank);
        let leak = report.findings.iter().find(|finding| {
            finding.known_kind().is_some_and(|kind| kind.fills())
                && finding.is_warning_or_worse()
                && concerns(&finding.ranks)
        });
        let verdict = report.verdict.as_ref().filter(|verdict| concerns(&verdict.ranks))?;
        let of_device = verdict.memory.as_deref().is_none_or(|memory| memory == "device");
        let sentence = match (verdict.known_kind()?, leak) {
            (VerdictKind::Growing | VerdictKind::Filling, _) if of_device => verdict.sentence.clone(),
            (VerdictKind::OutOfMemory, Some(leak)) => format!("{}.", leak.title.trim_end_matches('.')),
            _ => return None,
        };
        Some(Self {
            job: report.job.id.clone(),
            sentence,
            steps: rank.steps,
            is_leak: verdict.is_leak() || (leak.is_some() && verdict.known_kind() == Some(VerdictKind::OutOfMemory)),
            is_bounded: verdict.known_kind() == Some(VerdictKind::Filling),
            advice: leak.map(|leak| leak.advice.clone()).filter(|advice| !advice.is_empty()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn recording(replayed: Replayed) -> Recording {
        Recording {
            job: "a".to_owned(),
            attempt: 1,
            size: None,
            rank: 0,
            process: String::new(),
            device: 0,
            peak_reserved_bytes: 964 * MIB,
            peak_allocated_bytes: 861 * MIB,
            exact: true,
            replayed,
        }
    }

    #[test]
    fn a_difference_between_recording_and_replay_is_explained() {
        let same = Replayed {
            peak_reserved_bytes: 964 * MIB,
            peak_allocated_bytes: 861 * MIB,
            failed_requests: 1,
            failed_bytes: 188 * MIB,
            began_with_bytes: 0,
        };
        assert_eq!(recording(same).difference(), None);
        let said = |it: Replayed| {
            recording(Replayed { peak_reserved_bytes: 1040 * MIB, ..it }).difference().unwrap_or_default()
        };
        assert!(said(same).contains("the request for 188 MiB that failed, as if it had been served"), "{}", said(same));
        let said = said(Replayed { failed_requests: 2, began_with_bytes: MIB, ..same });
        assert!(said.contains("2 requests that failed, the largest for 188 MiB"), "{said}");
        assert!(said.contains("the 1.00 MiB that were in use when the recording began"), "{said}");
    }
}
