//! Advice on allocator settings for a job in `diagnose`, `frag` and `oom`. It is based on replays and has their bytes.
//!
//! Guarantees: a setting is named only with the result of its replay; if nothing could be replayed, the reason is given
//! instead. The replay's result includes the recommended setting.

use serde::{Deserialize, Serialize};

use memctl_model::FindingKind;

use crate::format::text::safe;
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

    /// Makes advice for a device on which live memory grew until a request failed. A setting that serves this request does
    /// not stop the growth, so none is recommended.
    #[must_use]
    pub fn no_remedy(mut device: Rank, remarks: &[String], pinned: Option<String>) -> Self {
        let Some(recommended) = device.recommended.take() else { return Self::replayed(device, remarks, pinned) };
        let serves = device.settings.iter().find(|setting| setting.allocator_conf == recommended.allocator_conf);
        let served = match serves {
            Some(setting) if setting.out_of_memory.is_none() && !setting.allocator_conf.is_empty() => format!(
                " {} serves the request that failed; what the job requests after it is not known.",
                safe(&setting.allocator_conf)
            ),
            _ => String::new(),
        };
        let says = format!(
            "No allocator setting is recommended: live memory grew until the device was full, and no setting stops that.{served}"
        );
        device.says = vec![says];
        Self {
            rank: device.rank,
            process: device.process.clone(),
            says: device.says.clone(),
            not_replayed: None,
            device: Some(device),
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advising::Subject;
    use crate::oom::Failed;
    use crate::what_if::{Recommended, Recorded, Setting};

    fn device() -> Rank {
        let conf = "expandable_segments:True".to_owned();
        Rank {
            recorded: Recorded { torch: Some("2.11.0".to_owned()), ..Recorded::default() },
            settings: vec![Setting { allocator_conf: conf.clone(), ..Setting::default() }],
            recommended: Some(Recommended { allocator_conf: conf, ..Recommended::default() }),
            says: vec!["the failed request is served with expandable_segments:True".to_owned()],
            ..Rank::default()
        }
    }

    #[test]
    fn no_setting_is_recommended_where_live_memory_grew() {
        let of = |cause: &str| {
            let failed = Failed { cause: cause.to_owned(), ..Failed::default() };
            let subject = Subject { has_grown: failed.has_grown(), ..Subject::default() };
            subject.advice(Ok((device(), Vec::new())))
        };
        for cause in ["accumulation", "leak"] {
            let advice = of(cause);
            assert_eq!(
                advice.says,
                [
                    "No allocator setting is recommended: live memory grew until the device was full, and no setting stops that. expandable_segments:True serves the request that failed; what the job requests after it is not known."
                ]
            );
            assert_eq!(advice.export(), None);
            assert_eq!(advice.serves("expandable_segments:True"), Some(true), "the replay's result stays");
        }
        let packing = of("fragmentation");
        assert_eq!(packing.says, device().says);
        assert!(packing.export().is_some());
    }
}
