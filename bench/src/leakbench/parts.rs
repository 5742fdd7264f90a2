//! The parts of the corpus, the views of a run, and the trainings of each part.
//!
//! Guarantees: a part for development has no training and no seed in common with a part for reported figures. The first
//! two parts are those of earlier tables and do not change. The other two have more causes, and runs whose processes do
//! different things.

use std::error::Error;
use std::sync::{Arc, OnceLock};

use memctl_model::{FindingKind, SiteTable};

use super::base::Base;
use super::causes::Cause;
use super::cuts::{self, Cuts};
use super::long_stream::settled_steps;
use super::overlay::Overlay;
use super::replay::{Replayed, replay};
use super::serving::Style;
use super::site::Sites;

/// A part of the corpus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// For the development of detectors.
    Tune,
    /// For reported figures. It is evaluated last.
    Report,
    /// For the development of detectors, with all causes.
    Tune2,
    /// For reported figures, with all causes.
    Report2,
}

/// The view in which a run is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum View {
    /// A training with its marks of steps, epochs and phases.
    Marked,
    /// A training without marks, with the boundaries that an import finds.
    Unmarked,
    /// A server. It has no steps and no epochs, but windows as a live agent cuts them.
    Serving,
    /// One epoch of 20,000 steps.
    Long,
}

impl View {
    /// Every view.
    pub const ALL: [Self; 4] = [Self::Marked, Self::Unmarked, Self::Serving, Self::Long];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Marked => "marked",
            Self::Unmarked => "unmarked",
            Self::Serving => "serving",
            Self::Long => "long",
        }
    }
}

impl Part {
    /// Every part.
    pub const ALL: [Self; 4] = [Self::Tune, Self::Report, Self::Tune2, Self::Report2];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tune => "tune",
            Self::Report => "report",
            Self::Tune2 => "tune-2",
            Self::Report2 => "report-2",
        }
    }

    const fn trainings(self) -> &'static [&'static str] {
        match self {
            Self::Tune | Self::Tune2 => &[
                "encoder",
                "recurrent",
                "varying_length",
                "accumulation",
                "unfreezing",
                "adversarial",
                "graphs",
                "mixer",
                "rate_finder",
                "recordings/gpt_clean",
                "recordings/gpt_curriculum",
            ],
            Self::Report | Self::Report2 => &[
                "decoder_ema",
                "experts",
                "checkpointed",
                "curriculum",
                "residual",
                "many_tasks",
                "distillation",
                "replay_agent",
                "autoencoder",
                "recordings/gpt_ema_step_up",
                "recordings/gpt_varlen_fragmentation",
                "recordings/cnn_cache_saturates",
            ],
        }
    }

    /// The seed of every draw of the part.
    #[must_use]
    pub const fn seed(self) -> u64 {
        match self {
            Self::Tune => 0x7475_6e65,
            Self::Report => 0x72_6570_6f72_7435,
            Self::Tune2 => 0x7475_6e65_3032,
            Self::Report2 => 0x7265_706f_7274_326a,
        }
    }

    /// The seed of a run.
    #[must_use]
    pub const fn seed_of(self, leaky: bool, number: u64) -> u64 {
        self.seed() ^ (number << 1 | leaky as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// The causes of the part's trainings. The run's number selects one.
    #[must_use]
    pub const fn causes(self) -> &'static [Cause] {
        match self {
            Self::Tune | Self::Report => &Cause::FIRST,
            Self::Tune2 | Self::Report2 => &Cause::TRAINING,
        }
    }

    /// The styles of the part's servers.
    #[must_use]
    pub const fn styles(self) -> &'static [Style] {
        match self {
            Self::Tune | Self::Tune2 => &[Style::GrowingCache, Style::PaddedBatch, Style::Diffusion],
            Self::Report | Self::Report2 => &[Style::FixedCache, Style::Paged, Style::Rollout],
        }
    }

    /// Whether some runs have processes that do different things.
    #[must_use]
    pub const fn processes(self) -> bool {
        matches!(self, Self::Tune2 | Self::Report2)
    }
}

/// A training with the streams of its ranks. If only one rank was recorded, all ranks have its stream.
pub struct Training {
    /// Its name.
    pub name: &'static str,
    bases: Vec<Arc<Base>>,
    /// The site tables of each stream without additions, with marks and without.
    marked: Vec<Arc<Replayed>>,
    unmarked: Vec<OnceLock<Arc<Replayed>>>,
    settled: OnceLock<Option<Arc<Vec<SiteTable>>>>,
}

impl Training {
    /// The stream of a rank.
    #[must_use]
    pub fn base(&self, rank: usize) -> &Arc<Base> {
        &self.bases[rank % self.bases.len()]
    }

    /// The first rank's steps after the training's memory has settled; `None` if it does not settle.
    #[must_use]
    pub fn settled(&self) -> Option<Arc<Vec<SiteTable>>> {
        let settled = || settled_steps(&self.marked.first()?.tables).map(Arc::new);
        self.settled.get_or_init(settled).clone()
    }

    /// The site tables of a rank's stream without additions.
    #[must_use]
    pub fn plain(&self, rank: usize, view: View) -> Arc<Replayed> {
        let index = rank % self.bases.len();
        if view == View::Marked {
            return self.marked[index].clone();
        }
        let found = || {
            let base = &self.bases[index];
            Arc::new(replay(base, Overlay::default(), &cuts::found(base, &Sites::default(), &Overlay::default())))
        };
        self.unmarked[index].get_or_init(found).clone()
    }
}

/// Reads the trainings of a part.
///
/// # Errors
/// A training cannot be read, or its events contradict the block map.
pub fn trainings(part: Part) -> Result<Vec<Training>, Box<dyn Error>> {
    part.trainings().iter().map(|&name| training(name)).collect()
}

fn training(name: &'static str) -> Result<Training, Box<dyn Error>> {
    let files = match name.strip_prefix("recordings/") {
        Some(recorded) => (0..4)
            .map(|rank| crate::recordings::folder().join(recorded).join(format!("rank{rank}.pickle.zst")))
            .collect(),
        None => vec![super::folder().join(format!("{name}.pickle.zst"))],
    };
    let bases = files.iter().map(|file| Base::load(file).map(Arc::new)).collect::<Result<Vec<_>, _>>()?;
    let marked: Vec<Arc<Replayed>> =
        bases.iter().map(|base| Arc::new(replay(base, Overlay::default(), &Cuts::Marks))).collect();
    let unmarked = bases.iter().map(|_| OnceLock::new()).collect();
    match marked.iter().find(|plain| plain.anomalies.contradictions > 0) {
        Some(plain) => Err(format!("{name} contradicts the block map: {:?}", plain.anomalies).into()),
        None => Ok(Training { name, bases, marked, unmarked, settled: OnceLock::new() }),
    }
}
/// The findings that a recorded training has without additions. They are no false alarms. In three trainings, varying
/// lengths leave reserved memory that no request fits into: 850 MiB and 1,010 MiB over the epochs of the curricula.
#[must_use]
pub fn own_findings(training: &str) -> &'static [FindingKind] {
    match training {
        "recordings/gpt_varlen_fragmentation" => &[FindingKind::Fragmentation, FindingKind::FragmentationGrowth],
        "curriculum" | "recordings/gpt_curriculum" => &[FindingKind::FragmentationGrowth],
        _ => &[],
    }
}
