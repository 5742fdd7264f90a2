//! Chooses the device that is replayed for advice on allocator settings in `diagnose`, `frag` and `oom`.
//!
//! Guarantees: one device; if a request failed, the limit follows from that request.

use memctl_model::FindingKind;
use memctl_replay::Limit;

use crate::advice::Advice;
use crate::frag::{self, Fragmentation, pinned};
use crate::oom::{Failed, Oom};
use crate::report;
use crate::what_if::Rank;

/// The device that is replayed.
#[derive(Clone, Debug, Default)]
pub struct Subject {
    /// The rank.
    pub rank: u32,
    /// The process, by its name within the job.
    pub process: String,
    /// Device index in the process.
    pub device: u32,
    /// What pins its memory, in one sentence.
    pub pinned: Option<String>,
    /// One if the limit is known, two if only an interval is known.
    pub limits: Vec<Limit>,
    /// Whether live memory grew until a request failed. No setting is advised then.
    pub has_grown: bool,
}

impl Subject {
    /// The rank of a diagnosis, with its failed request if one failed, else with its fragmentation.
    #[must_use]
    pub fn of_rank(rank: &report::Rank, failed: Option<&Failed>, fragmented: Option<&frag::Rank>) -> Self {
        let holders = failed.map(|failed| &failed.held_by).or(fragmented.map(|found| &found.held_by));
        Self {
            rank: rank.rank,
            process: rank.process.clone(),
            device: rank.device,
            pinned: holders.and_then(|holders| pinned(holders)),
            limits: failed.map_or_else(Vec::new, Failed::limits),
            has_grown: failed.is_some_and(Failed::has_grown),
        }
    }

    /// The rank that wastes most, if there is a finding; `failures` are of the same job.
    #[must_use]
    pub fn of_fragmentation(answer: &Fragmentation, failures: Option<&Oom>) -> Option<Self> {
        let found = answer.findings.iter().any(|finding| finding.known_kind() == Some(FindingKind::Fragmentation));
        let worst = answer.worst().filter(|_| found)?;
        let failed = failures.and_then(|oom| oom.failure_of(worst.rank, &worst.process));
        Some(Self {
            rank: worst.rank,
            process: worst.process.clone(),
            device: worst.device,
            pinned: pinned(&worst.held_by),
            limits: failed.map_or_else(Vec::new, Failed::limits),
            has_grown: failed.is_some_and(Failed::has_grown),
        })
    }

    /// The rank whose request failed first.
    #[must_use]
    pub fn of_failure(answer: &Oom) -> Option<Self> {
        let failed = answer.failures.first()?;
        Some(Self {
            rank: failed.rank,
            process: failed.process.clone(),
            device: failed.device,
            pinned: pinned(&failed.held_by),
            limits: failed.limits(),
            has_grown: failed.has_grown(),
        })
    }

    /// The advice, from the device's replays and their limitations, or from the reason why there are none.
    #[must_use]
    pub fn advice(self, replayed: Result<(Rank, Vec<String>), String>) -> Advice {
        let why = match replayed {
            Ok((device, remarks)) if device.recorded.torch.is_some() && self.has_grown => {
                return Advice::no_remedy(device, &remarks, self.pinned);
            }
            Ok((device, remarks)) if device.recorded.torch.is_some() => {
                return Advice::replayed(device, &remarks, self.pinned);
            }
            Ok(_) => "the recording does not name its version of torch".to_owned(),
            Err(why) => why,
        };
        Advice::none(self.rank, self.process, why, self.pinned)
    }
}
