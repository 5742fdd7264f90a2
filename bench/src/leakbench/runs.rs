//! The runs of the benchmark. A run's number determines its training, its ranks, its leak with the ranks that leak, and
//! its other growth.
//!
//! Guarantees: run N of a part never changes. Two parts have no training and no seed in common. If a training cannot
//! have the drawn leak (it has no evaluation, or too few epochs for five leaks), another training is drawn for the same
//! cause. So causes, rates and sizes keep their intended frequencies.

use std::collections::BTreeSet;
use std::sync::Arc;

use memctl_model::Frame;

use super::base::Base;
use super::benign::{self, Kind};
use super::causes::{self, Cause, LeakedBlocks, Size};
use super::cuts::{self, Cuts};
use super::draw::Draw;
use super::overlay::Overlay;
use super::parts::{Part, Training, View};
use super::replay::replay;
use super::schedule::{Rate, Schedule};
use super::site::Sites;
use super::stream::Stream;

/// The leak of a run.
#[derive(Debug)]
pub struct Truth {
    /// Its cause.
    pub cause: Cause,
    /// Its rate.
    pub rate: Rate,
    /// Its size.
    pub size: Size,
    /// The ranks that leak.
    pub ranks: Vec<usize>,
    /// The frames that are right answers; empty if the stacks have no frame of the user's own code.
    pub frames: BTreeSet<Frame>,
    /// Position and bytes of each block that the first of the leaking ranks leaks.
    pub blocks: Vec<(usize, u64)>,
    /// The time of the first of these blocks.
    pub begun_ns: u64,
    /// The positions at which the steps of this rank end, in ascending order.
    pub step_ends: Vec<usize>,
}

/// A run that can be passed to detectors.
pub struct Run {
    /// The name of the training or server.
    pub name: &'static str,
    /// The names of the other processes, if the processes of the run do different things.
    pub others: Vec<&'static str>,
    /// The base of each rank: its stream without a leak.
    pub bases: Vec<Arc<Base>>,
    /// The leak; `None` in a clean run.
    pub truth: Option<Truth>,
    /// Growth that is no leak.
    pub benign: Vec<Kind>,
    /// The blocks that are added to each rank's stream; empty in a long epoch and for servers.
    pub overlays: Vec<Overlay>,
    /// The same blocks without those of the leak.
    pub harmless: Vec<Overlay>,
    /// The site tables of each rank.
    pub streams: Vec<Stream>,
    /// The stacks of added blocks.
    pub sites: Sites,
    /// The memory of each rank's device, in bytes.
    pub device_total_bytes: Vec<u64>,
    /// Whether the ranks are processes that do different things.
    pub apart: bool,
    /// The view in which the run is seen, such as with marks or without.
    pub view: View,
}

impl Run {
    /// A run whose site tables are not computed yet.
    #[must_use]
    pub fn new(name: &'static str, view: View, bases: Vec<Arc<Base>>, sites: Sites, device_total_bytes: u64) -> Self {
        Self {
            name,
            others: Vec::new(),
            view,
            device_total_bytes: vec![device_total_bytes; bases.len()],
            bases,
            truth: None,
            benign: Vec::new(),
            overlays: Vec::new(),
            harmless: Vec::new(),
            streams: Vec::new(),
            sites,
            apart: false,
        }
    }

    /// Which ranks leak, in words.
    #[must_use]
    pub fn ranks_in_words(&self) -> &'static str {
        match (self.truth.as_ref().map_or(0, |truth| truth.ranks.len()), self.bases.len()) {
            (_, 1) => "the only one",
            (1, _) if self.apart => "one process of several",
            (1, _) => "one of several",
            _ => "all of several",
        }
    }
}

struct Drawn {
    plan: causes::Plan,
    schedule: Schedule,
    /// Whether each leaking rank draws its steps independently.
    apart: bool,
    ranks: Vec<usize>,
}

/// Harmless growth, with the ranks that have it.
type Growth = (benign::Plan, Vec<usize>);

/// The memory of a device, in bytes.
pub fn draw_device(draw: &mut Draw) -> u64 {
    *draw.of(&[24, 40, 80, 141]) << 30
}

/// A run without a leak. Its only growth is a memory that fills slowly and steadily, on all ranks.
#[must_use]
pub fn make_slow(part: Part, view: View, trainings: &[Training], number: u64) -> Run {
    let mut draw = Draw::fork(part.seed() ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15), "slow");
    let training = draw.of(trainings);
    let ranks = *draw.of(&[1, 2, 4, 4]);
    let mut sites = Sites::default();
    let plan = benign::Plan::draw(Kind::SlowMemory, training.base(0), &mut sites, &mut draw);
    let bases = (0..ranks).map(|rank| training.base(rank).clone()).collect();
    let mut run = Run::new(training.name, view, bases, sites, draw_device(&mut draw));
    run.benign = vec![Kind::SlowMemory];
    run.pass(Some(training), None, &[(plan, (0..ranks).collect())]);
    run
}

/// Makes run number `number` of a part. It is leaky or clean.
#[must_use]
pub fn make(part: Part, view: View, trainings: &[Training], leaky: bool, number: u64) -> Run {
    let seed = part.seed_of(leaky, number);
    let mut draw = Draw::fork(seed, "run");
    let mut apart = Draw::fork(seed, "processes");
    // Causes, rates and sizes follow from the run's number. Everything else is drawn at random.
    let causes = part.causes();
    let cause = causes[number as usize % causes.len()];
    let turn = number as usize / causes.len();
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
        let benign = draw_benign(training.base(0), leaky, ranks, &mut sites, &mut draw);
        let device_total_bytes = draw_device(&mut draw);
        let several = part.processes() && ranks > 1 && apart.chance(0.3);
        let mut others = Vec::new();
        let bases: Vec<Arc<Base>> = (0..ranks)
            .map(|rank| {
                if rank == 0 || !several {
                    return training.base(rank).clone();
                }
                let other = apart.of(trainings);
                others.push(other.name);
                other.base(0).clone()
            })
            .collect();
        let mut run = Run::new(training.name, view, bases, sites, device_total_bytes);
        (run.apart, run.others) = (several, others);
        run.benign = benign.iter().map(|(plan, _)| plan.kind).collect();
        let drawn = drawn.map(|drawn| if several { Drawn { ranks: vec![0], ..drawn } } else { drawn });
        // The other processes run other programs. Only the first process has growth that is no leak.
        let benign: Vec<Growth> =
            if several { benign.into_iter().map(|(plan, _)| (plan, vec![0])).collect() } else { benign };
        if run.pass((!several).then_some(training), drawn.as_ref(), &benign) {
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
    let plan = causes::Plan::draw(cause, size, base, sites, draw);
    let all = draw.chance(0.5);
    let one = draw.int(0, ranks as u64 - 1) as usize;
    let ranks = if all { (0..ranks).collect() } else { vec![one] };
    Some(Drawn { plan, schedule, apart: draw.chance(0.3), ranks })
}

/// The number of growths that are no leaks. In clean runs: 0 (15 %), 1 (45 %), 2 (25 %) or 3. In leaky runs: 0 (50 %),
/// 1 (35 %) or 2.
pub fn draw_count(leaky: bool, draw: &mut Draw) -> usize {
    let shares: &[f64] = if leaky { &[0.5, 0.85, 1.0] } else { &[0.15, 0.6, 0.85, 1.0] };
    let lot = draw.unit();
    shares.iter().take_while(|&&share| share <= lot).count()
}

fn draw_benign(base: &Base, leaky: bool, ranks: usize, sites: &mut Sites, draw: &mut Draw) -> Vec<Growth> {
    let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| kind.fits(base)).collect();
    (0..draw_count(leaky, draw))
        .map(|_| {
            let plan = benign::Plan::draw(*draw.of(&kinds), base, sites, draw);
            let ranks = if draw.chance(0.7) { (0..ranks).collect() } else { vec![0] };
            (plan, ranks)
        })
        .collect()
}

impl Run {
    /// Makes the added blocks of all ranks, and computes their site tables. Returns false if the leak occurs too seldom
    /// to count. `plain` is the training if all ranks have it. Its tables without additions are already known.
    fn pass(&mut self, plain: Option<&Training>, drawn: Option<&Drawn>, benign: &[Growth]) -> bool {
        for rank in 0..self.bases.len() {
            let base = self.bases[rank].clone();
            let mut overlay = Overlay::default();
            for (plan, _) in benign.iter().filter(|(_, on)| on.contains(&rank)) {
                benign::grow(&base, plan, &mut overlay);
            }
            self.harmless.push(overlay.clone());
            if let Some(drawn) = drawn.filter(|drawn| drawn.ranks.contains(&rank)) {
                let Some(left) = drawn.leak(&base, rank, &self.sites, &mut overlay) else { return false };
                let truth = self.truth.get_or_insert_with(|| drawn.truth(&base, &left));
                truth.frames.extend(left.frames);
            }
            self.overlays.push(overlay.clone());
            let known = plain.filter(|_| overlay.is_empty());
            let replayed = known.map_or_else(
                || {
                    let cuts =
                        if self.view == View::Marked { Cuts::Marks } else { cuts::found(&base, &self.sites, &overlay) };
                    Arc::new(replay(&base, overlay, &cuts))
                },
                |training| training.plain(rank, self.view),
            );
            self.streams.push(Stream::Kept(replayed));
        }
        true
    }
}

impl Drawn {
    fn leak(&self, base: &Base, rank: usize, sites: &Sites, overlay: &mut Overlay) -> Option<LeakedBlocks> {
        let seed = self.plan.seed ^ if self.apart { rank as u64 } else { 0 };
        let steps = match self.plan.cause {
            Cause::EvalGraph => self.schedule.evaluations(base),
            _ => self.schedule.steps(base, &mut Draw::fork(seed, "schedule")),
        };
        let left = causes::leak(base, &self.plan, sites, &steps?, overlay);
        (!left.blocks.is_empty()).then_some(left)
    }

    fn truth(&self, base: &Base, left: &LeakedBlocks) -> Truth {
        Truth {
            cause: self.plan.cause,
            rate: self.schedule.rate,
            size: self.plan.size,
            ranks: self.ranks.clone(),
            frames: BTreeSet::new(),
            blocks: left.blocks.clone(),
            begun_ns: left.blocks.first().map_or(0, |&(at, _)| base.time_ns(at)),
            step_ends: base.steps.iter().map(|span| span.end).collect(),
        }
    }
}
