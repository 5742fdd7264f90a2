//! Advice on allocator settings for a job in `diagnose`, `frag` and `oom`. It is based on replays and has their bytes.
//!
//! Guarantees: a setting is named only with the result of its replay; if nothing could be replayed, the reason is given
//! instead. The replay's result includes the recommended setting.

use serde::{Deserialize, Serialize};

use memctl_model::FindingKind;

use crate::naming::name_of;
use crate::report::Report;
use crate::what_if::Rank;

/// Advice about one device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
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

/// Whether a finding of a report depends on how memory is packed, so that a replay of settings is useful.
#[must_use]
pub fn is_called_for(report: &Report) -> bool {
    use FindingKind as Kind;
    let kinds = [Kind::Oom, Kind::Fragmentation, Kind::FragmentationGrowth, Kind::NearOom];
    report.findings.iter().filter_map(|finding| finding.known_kind()).any(|kind| kinds.contains(&kind))
}

impl Advice {
    /// Makes advice from a device's replays, their limitations, and what pins the device's memory.
    #[must_use]
    pub fn replayed(device: Rank, remarks: &[String], pinned: Option<String>) -> Self {
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

    /// Makes advice for a case in which nothing can be replayed.
    #[must_use]
    pub fn none(rank: u32, process: String, why: String, pinned: Option<String>) -> Self {
        let name = name_of(&process, rank);
        let mut says = vec![format!("What an allocator setting would do on {name} is not known: {why}.")];
        says.extend(pinned);
        Self { rank, process, says, not_replayed: Some(why), device: None }
    }

    /// The shell command that applies the recommendation.
    #[must_use]
    pub fn export(&self) -> Option<String> {
        let recommended = self.device.as_ref()?.recommended.as_ref()?;
        Some(match recommended.allocator_conf.as_str() {
            "" => "unset PYTORCH_CUDA_ALLOC_CONF".to_owned(),
            conf => format!("export PYTORCH_CUDA_ALLOC_CONF={conf}"),
        })
    }

    /// Whether a setting was replayed without running out of memory; `None` if it was not replayed.
    #[must_use]
    pub fn serves(&self, conf: &str) -> Option<bool> {
        let settings = &self.device.as_ref()?.settings;
        settings.iter().find(|setting| setting.allocator_conf == conf).map(|setting| setting.out_of_memory.is_none())
    }
}
