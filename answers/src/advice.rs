//! What allocator settings would do for a job, as `diagnose`, `frag` and `oom` say it: replayed, with bytes, or not at all.
//!
//! Guarantees: a setting is named only with the result of its replay; if nothing could be replayed, the reason is given
//! instead. The replay's result includes which setting is worth a change.

use serde::{Deserialize, Serialize};

use memctl_model::FindingKind;
use memctl_replay::Limit;

use crate::frag::{self, Fragmentation, pinned};
use crate::naming::name_of;
use crate::oom::{Failed, Oom};
use crate::report::{self, Report};
use crate::what_if::Rank;

/// Advice about one device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Advice {
    /// The rank.
    pub rank: u32,
    /// The process, by its name within the job.
    pub process: String,
    /// What to set, what speaks against it, or that nothing helps and what pins the memory.
    pub says: Vec<String>,
    /// Why no setting was replayed; null where some were.
    pub not_replayed: Option<String>,
    /// The replays.
    pub device: Option<Rank>,
}

/// Whose memory is replayed.
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
}

impl Subject {
    /// The rank that a diagnosis is about: with its failed request if one failed, else with how it is fragmented.
    #[must_use]
    pub fn of_rank(rank: &report::Rank, failed: Option<&Failed>, fragmented: Option<&frag::Rank>) -> Self {
        let holders = failed.map(|failed| &failed.held_by).or(fragmented.map(|found| &found.held_by));
        Self {
            rank: rank.rank,
            process: rank.process.clone(),
            device: rank.device,
            pinned: holders.and_then(|holders| pinned(holders)),
            limits: failed.map_or_else(Vec::new, Failed::limits),
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
        })
    }
}

/// Whether a finding of a report depends on how memory is packed, so that settings are worth a replay.
#[must_use]
pub fn is_called_for(report: &Report) -> bool {
    use FindingKind as Kind;
    let kinds = [Kind::Oom, Kind::Fragmentation, Kind::FragmentationGrowth, Kind::NearOom];
    report.findings.iter().filter_map(|finding| finding.known_kind()).any(|kind| kinds.contains(&kind))
}

impl Advice {
    /// From the replays of a subject's device and what they do not cover, or from the reason why there are none.
    #[must_use]
    pub fn new(subject: Subject, replayed: Result<(Rank, Vec<String>), String>) -> Self {
        match replayed {
            Ok((device, _)) if device.recorded.torch.is_none() => {
                Self::none(subject, "the recording does not name its version of torch".to_owned())
            }
            Ok((device, remarks)) => Self::replayed(device, &remarks, subject.pinned),
            Err(why) => Self::none(subject, why),
        }
    }

    fn replayed(device: Rank, remarks: &[String], pinned: Option<String>) -> Self {
        let mut says = device.says.clone();
        let chosen = device.recommended.as_ref().map(|recommended| &recommended.allocator_conf);
        match device.settings.iter().find(|setting| chosen == Some(&setting.allocator_conf)) {
            Some(setting) => {
                says.extend(setting.cautions.iter().map(|caution| format!("Before you use it: {caution}.")));
            }
            None => says.extend(pinned),
        }
        says.extend_from_slice(remarks);
        Self { rank: device.rank, process: device.process.clone(), says, not_replayed: None, device: Some(device) }
    }

    fn none(Subject { rank, process, pinned, .. }: Subject, why: String) -> Self {
        let mut says =
            vec![format!("What an allocator setting would do on {} is not known: {why}.", name_of(&process, rank))];
        says.extend(pinned);
        Self { rank, process, says, not_replayed: Some(why), device: None }
    }

    /// The line for a shell that sets what is recommended.
    #[must_use]
    pub fn export(&self) -> Option<String> {
        let recommended = self.device.as_ref()?.recommended.as_ref()?;
        Some(match recommended.allocator_conf.as_str() {
            "" => "unset PYTORCH_CUDA_ALLOC_CONF".to_owned(),
            conf => format!("export PYTORCH_CUDA_ALLOC_CONF={conf}"),
        })
    }

    /// Whether a setting was replayed without running out of memory; `None` where it was not replayed.
    #[must_use]
    pub fn serves(&self, conf: &str) -> Option<bool> {
        let settings = &self.device.as_ref()?.settings;
        settings.iter().find(|setting| setting.allocator_conf == conf).map(|setting| setting.out_of_memory.is_none())
    }
}
