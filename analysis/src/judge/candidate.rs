//! A candidate: a site that may leak. It describes how the site has grown, and what its stacks and phases show of the
//! cause.
//!
//! Guarantees: a candidate is about one site of one rank. It decides nothing: [`super::group`] joins related sites and
//! [`super::leak`] decides.

use memctl_model::{Frame, Phase, StackId};

use super::frames::is_forward_frame;
use super::growth::{Clock, Growth, deepest_fall, growth};
use super::history::Per;
use super::series::{Point, first_level};
use super::teeth::toothed;
use super::watch::{Holds, RankWatch, Site};

/// How live blocks of a site grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// The number of blocks grows.
    More,
    /// The number of blocks stays the same, and the blocks become larger.
    Larger,
    /// The number of blocks grows within an epoch and falls back with the next.
    Teeth,
}

/// The part of a step that made the blocks, as their stacks show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// A module's forward pass.
    Forward,
    /// Autograd: gradients and the memory needed for them.
    Backward,
    /// Anything else.
    Other,
}

/// A site that may leak; see the module's documentation.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub site: usize,
    pub shape: Shape,
    pub per: Per,
    pub growth: Growth,
    /// The growth over all windows, if the windows of loading are left out of `growth` and contain further rises.
    pub whole: Option<Growth>,
    pub phase: Option<Phase>,
    /// The leaked part of the site's live bytes.
    pub live_bytes: u64,
    pub live_blocks: u64,
    /// The rest of the site's live bytes.
    pub beside_bytes: u64,
    /// The boundary of the first rise, or of the first tooth.
    pub since: Option<Point>,
    /// The site's first level, if it is far above all later rises and therefore no rise itself.
    pub first_level: Option<Point>,
    /// Blocks that all rises together gained.
    pub blocks_gained: u64,
    pub bytes_gained: u64,
    /// The part of a step that made its blocks.
    pub pass: Pass,
    /// Epochs with a full tooth, for [`Shape::Teeth`].
    pub teeth: u32,
    /// How often a block was replaced by a larger one.
    pub replaced: Replaced,
    /// The stacks that made the growth, as far as phases distinguish them from the site's other stacks.
    pub stacks: Vec<StackId>,
    /// The stack to show in a finding.
    pub stack: StackId,
}

impl Candidate {
    /// Whether its teeth are in separate epochs. Without epoch marks, all are in one.
    pub fn is_in_epochs(&self) -> bool {
        self.teeth < 2 || self.since.map(|first| first.epoch) != self.growth.epochs.first().copied()
    }
}

/// Numbers of replacements of a block by a larger one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Replaced {
    pub times: u32,
    /// Replacements with the first step of an epoch.
    pub opening: u32,
    /// Number of epochs with more than one replacement.
    pub epochs_often: u32,
}

/// Minimum number of rises of a candidate: two larger batches make two rises.
const RISES_MIN: u32 = 3;

/// Maximum fall of the low points, as a share of their gain. They must not contain any memory that comes and goes.
const LOW_FALLS: f64 = 0.05;
/// Number of consecutive points of which the lowest is used.
const LOW_OF: usize = 4;

/// Maximum number of candidates of a rank.
const CANDIDATES_MAX: usize = 1_024;

/// The sites of a rank that have grown, those that gained most first.
pub(super) fn candidates(watch: &RankWatch) -> Vec<Candidate> {
    let mut all: Vec<Candidate> = (0..watch.sites.len()).filter_map(|index| candidate(watch, index)).collect();
    // The number is bounded because each candidate is later compared with each other one.
    all.sort_by_key(|candidate| (std::cmp::Reverse(candidate.bytes_gained), candidate.site));
    all.truncate(CANDIDATES_MAX);
    all
}

/// The candidate of a site, if the site has grown.
fn candidate(watch: &RankWatch, index: usize) -> Option<Candidate> {
    let site = &watch.sites[index];
    // If events arrived later, blocks show everything that counters show, and more precisely.
    if site.holds == Holds::Counter && watch.history.has_rows {
        return None;
    }
    // Within an epoch a tooth looks like growth. If it fell back once, it will do so again.
    let (steps, of_steps) = (site.series(Per::Step), watch.history.of(Per::Step));
    let tooth = toothed(steps.points(), of_steps).or_else(|| toothed(steps.recent(), of_steps));
    let (per, shape, growth) = match &tooth {
        Some(tooth) => (Per::Step, Shape::Teeth, tooth.growth.clone()),
        None => grown(watch, site)?,
    };
    let points = points(watch, site, per);
    let last = points.last()?;
    let at = |rise: usize| growth.times.get(rise).map_or(0, |&at| points.partition_point(|point| point.at < at));
    let before = points.get(at(0).saturating_sub(1))?;
    // The live bytes and their begin exclude a first level. Groups are made with it, because other sites rose at that
    // boundary as well.
    let first_level = first_level(points, &growth.times);
    let begun = at(usize::from(first_level.is_some()));
    let leaked_from = points.get(begun.saturating_sub(1))?;
    // What was freed since was no part of the memory that grew, even if the number of blocks rose meanwhile.
    let gained_since = |from: &Point| {
        let lowest = points.iter().filter(|point| point.at >= from.at).map(|point| point.bytes).min();
        (last.blocks.saturating_sub(from.blocks), last.bytes.saturating_sub(lowest.unwrap_or(from.bytes)))
    };
    // Memory that fell back is measured at its highest.
    let highest = tooth.as_ref().map(|tooth| (tooth.blocks, tooth.growth.gained));
    let (blocks_gained, bytes_gained) = highest.unwrap_or_else(|| gained_since(before));
    let gained = highest.filter(|_| first_level.is_none()).unwrap_or_else(|| gained_since(leaked_from));
    let live = leaked(watch, site, shape, *leaked_from, *last, gained, growth.rises);
    let stacks = grown_stacks(watch, site);
    Some(Candidate {
        site: index,
        shape,
        per,
        whole: whole(watch, site, per, shape).filter(|whole| whole.times.len() > growth.times.len()),
        phase: grown_phase(watch, site),
        live_bytes: live.0,
        live_blocks: live.1,
        beside_bytes: last.bytes.saturating_sub(live.0),
        since: tooth.as_ref().map(|tooth| tooth.since).or_else(|| points.get(begun).copied()),
        first_level,
        blocks_gained: u64::from(blocks_gained),
        bytes_gained,
        pass: pass(watch, grown_phase(watch, site), &stacks),
        teeth: tooth.map_or(0, |tooth| tooth.in_a_row),
        replaced: replaced(site.series(Per::Step).points()),
        stack: shown_stack(watch, &stacks),
        stacks,
        growth,
    })
}

/// The growth of a site at the kind of boundary that shows most rises.
fn grown(watch: &RankWatch, site: &Site) -> Option<(Per, Shape, Growth)> {
    let windows = watch.history.windows_speak();
    let views = Per::ALL.into_iter().filter(|&per| per != Per::Window || windows);
    let grown = views.filter_map(|per| {
        let clock = Clock::of(watch.history.of(per));
        let points = points(watch, site, per);
        let plain = growth_of(points, clock, site.holds);
        // Memory of requests under way hides memory that stays. The lowest of a few windows shows the latter best.
        // Also, a replaced block is up to a megabyte larger than requested if the allocator does not split the block
        // that it found.
        let lowest = (site.holds == Holds::Blocks)
            .then(|| growth_of(&low_points(points), clock, site.holds))
            .flatten()
            .filter(|(shape, _)| per == Per::Window || *shape == Shape::Larger)
            .filter(|(_, growth)| growth.drawdown as f64 <= LOW_FALLS * growth.gained as f64);
        let (shape, growth) = lowest.into_iter().chain(plain).max_by_key(|(_, growth)| growth.rises)?;
        Some((per, shape, growth.thinned(site.series(per).density())))
    });
    let steps = site.series(Per::Step).points();
    let warm = watch.history.of(Per::Step).warm;
    let grown = grown.filter(|(per, shape, growth)| *per != Per::Epoch || !is_beat(steps, warm, *shape, growth));
    grown.max_by_key(|(per, _, growth)| (growth.rises, *per == Per::Step))
}

/// The lowest point of each group of a few points.
fn low_points(points: &[Point]) -> Vec<Point> {
    points.chunks_exact(LOW_OF).filter_map(|few| few.iter().min_by_key(|point| point.bytes)).copied().collect()
}

/// The growth over all windows, including those of loading.
fn whole(watch: &RankWatch, site: &Site, per: Per, shape: Shape) -> Option<Growth> {
    let (series, clock) = (site.series(per), Clock::of(watch.history.of(per)));
    let (of, growth) = growth_of(series.points(), clock, site.holds).filter(|_| per == Per::Window)?;
    (of == shape).then(|| growth.thinned(series.density()))
}

/// The points of a site at one kind of boundary. Windows count only from the end of loading on, except for private
/// pools: nothing is loaded into them.
pub(super) fn points<'a>(watch: &RankWatch, site: &'a Site, per: Per) -> &'a [Point] {
    let points = site.series(per).points();
    if per != Per::Window || site.holds == Holds::Pools {
        return points;
    }
    let loaded = watch.history.loaded(are_weights(watch, site));
    let loaded = points.partition_point(|point| point.at <= loaded);
    &points[loaded.saturating_sub(1)..]
}

/// Whether functions that load a model made the site's blocks.
fn are_weights(watch: &RankWatch, site: &Site) -> bool {
    const LOADERS: [&str; 8] = [
        "_apply",
        "from_pretrained",
        "load_file",
        "load_model",
        "load_state_dict",
        "load_weights",
        "to_empty",
        "weight_loader",
    ];
    let is_loader = |frame: &Frame| {
        let function = frame.plain_function();
        LOADERS.contains(&function) || (function == "to" && frame.file.ends_with("torch/nn/modules/module.py"))
    };
    site.stacks.first().is_some_and(|&(stack, _)| watch.frames_of(stack).any(|frame| is_loader(frame)))
}

fn growth_of(points: &[Point], clock: Clock, holds: Holds) -> Option<(Shape, Growth)> {
    if points.len() < RISES_MIN as usize {
        return None;
    }
    let more = growth(points, |point| u64::from(point.blocks), clock);
    if more.rises >= RISES_MIN {
        return Some((Shape::More, more));
    }
    // While a block is replaced, both blocks are live for a moment. A boundary at that moment is left out, because it
    // would hide the growth or show a fall.
    let mut blocks: Vec<u32> = points.iter().map(|point| point.blocks).collect();
    blocks.sort_unstable();
    let usual = blocks[blocks.len() / 2];
    let settled: Vec<Point> = points.iter().filter(|point| point.blocks <= usual).copied().collect();
    let larger = growth(&settled, |point| point.bytes, clock);
    // A sum alone does not show whether one block became larger or the number of blocks grew.
    let shape = if holds == Holds::Blocks { Shape::Larger } else { Shape::More };
    (larger.rises >= RISES_MIN).then_some((shape, larger))
}

/// The leaked bytes and blocks of a site. Bytes from before the growth are included if they are as few as two rises or
/// consist of the same blocks; those of a workspace are not. If a line also made memory that stays for good, only
/// memory born in the growing phase is included.
fn leaked(
    watch: &RankWatch,
    site: &Site,
    shape: Shape,
    before: Point,
    last: Point,
    gained: (u32, u64),
    rises: u32,
) -> (u64, u64) {
    let unit = gained.1 / u64::from(rises.max(1));
    let each = |blocks: u32, bytes: u64| bytes / u64::from(blocks.max(1));
    let (one, other) = (each(before.blocks, before.bytes), each(gained.0, gained.1));
    let alike = before.blocks > 1 && one.abs_diff(other) <= other / 4;
    let all = shape != Shape::More || alike || before.bytes <= unit.saturating_mul(2);
    let of_phase = grown_phase(watch, site).map_or(last.bytes, |phase| site.phases[0][phase as usize]).max(gained.1);
    let bytes = of_phase.min(if all { last.bytes } else { gained.1 });
    if bytes < last.bytes { (bytes, u64::from(gained.0.max(1))) } else { (last.bytes, u64::from(last.blocks)) }
}

/// How often the site's bytes rose.
fn replaced(points: &[Point]) -> Replaced {
    let rises = |points: &[Point]| points.windows(2).filter(|pair| pair[1].bytes > pair[0].bytes).count() as u32;
    let opening = points.windows(2).filter(|pair| pair[1].bytes > pair[0].bytes && pair[1].opens).count() as u32;
    let epochs = points.chunk_by(|a, b| a.epoch == b.epoch);
    Replaced { times: rises(points), opening, epochs_often: epochs.filter(|epoch| rises(epoch) > 1).count() as u32 }
}

/// Whether growth at epoch ends is only an effect of a buffer with another period, which has another level at each of
/// them. Within the epochs such a buffer falls by more than half of its gain.
fn is_beat(steps: &[Point], warm: u32, shape: Shape, growth: &Growth) -> bool {
    let fall = match shape {
        Shape::More => deepest_fall(steps, warm, |point| u64::from(point.blocks)),
        Shape::Larger | Shape::Teeth => deepest_fall(steps, warm, |point| point.bytes),
    };
    fall > growth.gained / 2
}

/// The phase in which most of a site's gain was born. If no stack of that phase has gained a block (only a workspace
/// was made there), it is the phase of the stack that has gained most.
fn grown_phase(watch: &RankWatch, site: &Site) -> Option<Phase> {
    let [now, first] = &site.phases;
    let gained = |phase: &usize| now[*phase].saturating_sub(first[*phase]);
    let most = (0..now.len()).max_by_key(gained).filter(|phase| gained(phase) > 0)?;
    let blocks = |&(stack, _): &(StackId, u8)| watch.blocks_gained(stack);
    let has_grown = site.stacks.iter().filter(|(_, phases)| phases & (1 << most) != 0).any(|stack| blocks(stack) > 0);
    let other = site.stacks.iter().filter(|stack| !has_grown && blocks(stack) > 0).max_by_key(|stack| blocks(stack));
    let phase =
        other.filter(|(_, phases)| phases.count_ones() == 1).map_or(most as u32, |(_, phases)| phases.trailing_zeros());
    Phase::of_number(phase)
}

/// The stacks that allocated in that phase (all, if none did) and that hold grown memory. A stack that freed its
/// memory long ago, or that holds only what it always held, has no part in the growth.
fn grown_stacks(watch: &RankWatch, site: &Site) -> Vec<StackId> {
    let bit = 1_u8 << grown_phase(watch, site).map_or(0, |phase| phase as u8);
    let all = || site.stacks.iter().map(|&(stack, phases)| (stack, phases));
    let mut stacks: Vec<StackId> = all().filter(|(_, phases)| phases & bit != 0).map(|(stack, _)| stack).collect();
    if stacks.is_empty() {
        stacks = all().map(|(stack, _)| stack).collect();
    }
    watch.grown(&stacks)
}

/// A frame of autograd is followed by the forward call that made its node. The node is what allocates.
fn pass(watch: &RankWatch, phase: Option<Phase>, stacks: &[StackId]) -> Pass {
    let is_node = |stack: &StackId| watch.frames_of(*stack).next().is_some_and(|frame| &*frame.file == "<autograd>");
    let is_forward = |stack: &StackId| watch.frames_of(*stack).any(|frame| is_forward_frame(frame));
    if phase == Some(Phase::Backward) || (!stacks.is_empty() && stacks.iter().all(is_node)) {
        Pass::Backward
    } else if stacks.iter().any(is_forward) {
        Pass::Forward
    } else {
        Pass::Other
    }
}

/// The longest known stack of a site, because it shows most.
fn shown_stack(watch: &RankWatch, stacks: &[StackId]) -> StackId {
    let longest =
        stacks.iter().copied().max_by_key(|&stack| (watch.frames_of(stack).count(), std::cmp::Reverse(stack)));
    longest.unwrap_or(StackId::NONE)
}
