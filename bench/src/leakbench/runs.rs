//! The runs: which training, how many ranks, what leaks on which of them, what else grows; all from one number.
//!
//! Guarantees: run N of a part is the same for ever; trainings and seeds of the parts are disjoint. A draw that a training
//! cannot have (no evaluation to leak from, too few epochs for five leaks) is drawn anew, the cause kept, so that causes,
//! rates and sizes are as often as they are meant to be.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::error::Error;

use memctl_model::Frame;

use super::base::Base;
use super::benign::{self, Kind};
use super::causes::{self, Cause, Left, Size};
use super::draw::Draw;
use super::replay::{Overlay, Replayed, replay};
use super::schedule::{Rate, Schedule};
use super::site::{Place, Sites};

/// A part of the corpus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// To look at while detectors are built.
    Tune,
    /// To report on, looked at last.
    Report,
}

impl Part {
    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tune => "tune",
            Self::Report => "report",
        }
    }

    const fn trainings(self) -> &'static [&'static str] {
        match self {
            Self::Tune => &[
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
            Self::Report => &[
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

    const fn seed(self) -> u64 {
        match self {
            Self::Tune => 0x7475_6e65,
            Self::Report => 0x72_6570_6f72_7434,
        }
    }
}

/// A training with the streams of its ranks; where only one was recorded, all ranks do the same.
pub struct Training {
    /// Its name.
    pub name: &'static str,
    bases: Vec<Base>,
    /// What each stream comes to with nothing added.
    plain: Vec<Replayed>,
}

impl Training {
    /// The stream of a rank.
    #[must_use]
    pub fn base(&self, rank: usize) -> &Base {
        &self.bases[rank % self.bases.len()]
    }
}

/// Reads the trainings of a part.
///
/// # Errors
/// When one cannot be read, or its events contradict the block map.
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
    let bases = files.iter().map(|file| Base::load(file)).collect::<Result<Vec<_>, _>>()?;
    let plain: Vec<Replayed> = bases.iter().map(|base| replay(base, Overlay::default())).collect();
    match plain.iter().find(|plain| plain.anomalies.contradictions > 0) {
        Some(plain) => Err(format!("{name} contradicts the block map: {:?}", plain.anomalies).into()),
        None => Ok(Training { name, bases, plain }),
    }
}

/// What leaks in a run.
#[derive(Debug)]
pub struct Truth {
    /// What.
    pub cause: Cause,
    /// How often.
    pub rate: Rate,
    /// How much.
    pub size: Size,
    /// On which ranks.
    pub ranks: Vec<usize>,
    /// Frames of which any is a right answer; none where no frame of the user's own is on the stacks.
    pub frames: BTreeSet<Frame>,
    /// Position and bytes of what the first of these ranks leaks.
    pub blocks: Vec<(usize, u64)>,
}

/// A run, ready to be judged.
pub struct Run<'a> {
    /// The training.
    pub training: &'a Training,
    /// What leaks; `None` in a clean run.
    pub truth: Option<Truth>,
    /// What grows and does not leak.
    pub benign: Vec<Kind>,
    /// What each rank's stream comes to.
    pub streams: Vec<Cow<'a, Replayed>>,
    /// Added stacks.
    pub sites: Sites,
    /// All bytes of each device.
    pub device_total_bytes: u64,
}

struct Drawn {
    plan: causes::Plan,
    schedule: Schedule,
    /// Each rank by its own dice.
    apart: bool,
    ranks: Vec<usize>,
}

/// A run in which nothing grows but a memory that fills slowly and steadily, on all ranks.
#[must_use]
pub fn make_slow(part: Part, trainings: &[Training], number: u64) -> Run<'_> {
    let mut draw = Draw::fork(part.seed() ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15), "slow");
    let training = draw.of(trainings);
    let ranks = *draw.of(&[1, 2, 4, 4]);
    let mut sites = Sites::default();
    let plan = benign::Plan::draw(Kind::SlowMemory, training.base(0), &mut sites, &mut draw);
    let device_total_bytes = *draw.of(&[24, 40, 80, 141]) << 30;
    let benign = vec![Kind::SlowMemory];
    let mut run = Run { training, truth: None, benign, streams: Vec::new(), sites, device_total_bytes };
    run.pass(ranks, None, &[(plan, (0..ranks).collect())]);
    run
}

/// Makes run number `number` of a part, leaky or clean.
#[must_use]
pub fn make(part: Part, trainings: &[Training], leaky: bool, number: u64) -> Run<'_> {
    let seed = part.seed() ^ (number << 1 | u64::from(leaky)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut draw = Draw::fork(seed, "run");
    // Causes and their rates and sizes take turns; everything else is drawn.
    let cause = Cause::ALL[number as usize % Cause::ALL.len()];
    let turn = number as usize / Cause::ALL.len();
    let rate = cause.rates()[turn % cause.rates().len()];
    let size = cause.sizes()[turn / cause.rates().len() % cause.sizes().len()];
    loop {
        let training = draw.of(trainings);
        let ranks = *draw.of(&[1, 2, 4, 4]);
        let mut sites = Sites::default();
        let drawn = if leaky {
            let Some(drawn) = draw_leak(training, (cause, rate, size), ranks, &mut sites, &mut draw) else { continue };
            Some(drawn)
        } else {
            None
        };
        let benign = draw_benign(training, leaky, ranks, &mut sites, &mut draw);
        let device_total_bytes = *draw.of(&[24, 40, 80, 141]) << 30;
        let mut run = Run {
            training,
            truth: None,
            benign: benign.iter().map(|(plan, _)| plan.kind).collect(),
            streams: Vec::new(),
            sites,
            device_total_bytes,
        };
        if run.pass(ranks, drawn.as_ref(), &benign) {
            return run;
        }
    }
}

fn draw_leak(
    training: &Training,
    (cause, rate, size): (Cause, Rate, Size),
    ranks: usize,
    sites: &mut Sites,
    draw: &mut Draw,
) -> Option<Drawn> {
    let base = training.base(0);
    if !cause.fits(base) {
        return None;
    }
    let schedule = Schedule::draw(rate, draw);
    let new_sites = match cause {
        Cause::TensorList | Cause::UnboundedCache | Cause::Concatenated | Cause::StatesKept => 1,
        Cause::MetricLists => draw.int(2, 5),
        _ => 0,
    };
    let span = base.steps[base.steps.len() / 2];
    let plan = causes::Plan {
        cause,
        size,
        place: *draw.of(&Place::ALL),
        seed: draw.int(0, u64::MAX - 1),
        sites: (0..new_sites).map(|_| sites.add(base, span, draw)).collect(),
    };
    let all = draw.chance(0.5);
    let one = draw.int(0, ranks as u64 - 1) as usize;
    let ranks = if all { (0..ranks).collect() } else { vec![one] };
    Some(Drawn { plan, schedule, apart: draw.chance(0.3), ranks })
}

/// How many things grow besides: in clean runs 0 (15 %), 1 (45 %), 2 (25 %) or 3; in leaky ones 0 (50 %), 1 (35 %) or 2.
fn draw_benign(
    training: &Training,
    leaky: bool,
    ranks: usize,
    sites: &mut Sites,
    draw: &mut Draw,
) -> Vec<(benign::Plan, Vec<usize>)> {
    let shares: &[f64] = if leaky { &[0.5, 0.85, 1.0] } else { &[0.15, 0.6, 0.85, 1.0] };
    let lot = draw.unit();
    let count = shares.iter().take_while(|&&share| share <= lot).count();
    let base = training.base(0);
    let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| kind.fits(base)).collect();
    (0..count)
        .map(|_| {
            let plan = benign::Plan::draw(*draw.of(&kinds), base, sites, draw);
            let ranks = if draw.chance(0.7) { (0..ranks).collect() } else { vec![0] };
            (plan, ranks)
        })
        .collect()
}

impl Run<'_> {
    /// Passes all ranks through the block map; false when the leak happens too seldom to count.
    fn pass(&mut self, ranks: usize, drawn: Option<&Drawn>, benign: &[(benign::Plan, Vec<usize>)]) -> bool {
        for rank in 0..ranks {
            let training = self.training;
            let base = training.base(rank);
            let mut overlay = Overlay::default();
            for (plan, _) in benign.iter().filter(|(_, on)| on.contains(&rank)) {
                benign::grow(base, plan, &mut overlay);
            }
            if let Some(drawn) = drawn.filter(|drawn| drawn.ranks.contains(&rank)) {
                let Some(left) = drawn.leak(base, rank, &self.sites, &mut overlay) else { return false };
                let truth = self.truth.get_or_insert_with(|| drawn.truth(&left));
                truth.frames.extend(left.frames);
            }
            self.streams.push(if overlay.is_empty() {
                Cow::Borrowed(&training.plain[rank % training.plain.len()])
            } else {
                Cow::Owned(replay(base, overlay))
            });
        }
        true
    }
}

impl Drawn {
    fn leak(&self, base: &Base, rank: usize, sites: &Sites, overlay: &mut Overlay) -> Option<Left> {
        let seed = self.plan.seed ^ if self.apart { rank as u64 } else { 0 };
        let steps = match self.plan.cause {
            Cause::EvalGraph => self.schedule.evaluations(base),
            _ => self.schedule.steps(base, &mut Draw::fork(seed, "schedule")),
        };
        let left = causes::leak(base, &self.plan, sites, &steps?, overlay);
        (!left.blocks.is_empty()).then_some(left)
    }

    fn truth(&self, left: &Left) -> Truth {
        Truth {
            cause: self.plan.cause,
            rate: self.schedule.rate,
            size: self.plan.size,
            ranks: self.ranks.clone(),
            frames: BTreeSet::new(),
            blocks: left.blocks.clone(),
        }
    }
}
