//! What is remembered of one rank's device: its sites over steps and epochs, its levels, what was measured.
//!
//! Guarantees: fed with the same tables it stands the same, live or imported; memory is bounded (see [`SITES_MAX`] and
//! [`super::series::POINTS_MAX`]; about 0.4 MB for 500 sites with their stacks); a table costs a few nanoseconds a row.
//! Refuses to judge: [`super::findings`] does, over all ranks.

use std::collections::HashMap;
use std::sync::Arc;

use memctl_model::{Boundary, Frame, Sample, SiteTable, StackId};

use super::course::Course;
use super::series::{Point, Series};

/// Sites that are followed; what comes later is counted with what has no stack.
pub const SITES_MAX: usize = 16_384;
/// Stacks that are known by name; later ones have no frames.
const STACKS_MAX: usize = 65_536;
/// Frames of one stack that are looked at, from the inside; below lie the launcher and the interpreter.
const FRAMES_MAX: usize = 96;

/// What is known of a rank before its first event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankFacts {
    /// The rank.
    pub rank: u32,
    /// All bytes of its device.
    pub device_total_bytes: Option<u64>,
}

/// A site: the innermost frame of the user's own code. Phases are no part of it: a tensor that is replaced in training and in
/// evaluation is one.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub frame: Option<Arc<Frame>>,
    /// Live bytes by phase of birth (none, then the five) when the site last changed, and when it was first seen.
    pub phases: [[u64; 6]; 2],
    /// The stacks that allocate there, each with the phases in which it did: bit 0 for none, then the five.
    pub stacks: Vec<(StackId, u8)>,
    pub steps: Series,
    pub epochs: Series,
    /// Whether the recording had begun without it.
    pub since_start: bool,
}

/// Bytes and blocks.
type Amount = (u64, u32);

/// What a table changes at a site, apart from the rest of it: most rows of most tables change nothing, and this is all
/// that they touch.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    /// Number of the last table that showed the site.
    seen: u32,
    /// What that table has shown so far.
    sum: Amount,
    /// Its bytes by phase of birth.
    phases: [u64; 6],
    /// What the last step's end and the last epoch's end showed.
    known: [Amount; 2],
}

/// What is known of a stack.
#[derive(Clone, Copy, Debug, Default)]
struct OfStack {
    /// Index of its site plus one; 0 before its first row.
    site: u32,
    /// Numbers of the first and of the last table in which it held something.
    since: u32,
    seen: u32,
    /// The phases that the site knows of it.
    phases: u8,
    /// What it held in the first one, and what it holds in the last one.
    first: u64,
    bytes: u64,
}

impl OfStack {
    /// Takes one of its rows in a table.
    fn row(&mut self, table: u32, bytes: u64) {
        if self.seen != table {
            self.seen = table;
            self.bytes = 0;
        }
        if self.since == 0 {
            self.since = table;
        }
        self.bytes = self.bytes.saturating_add(bytes);
        if self.since == table {
            self.first = self.bytes;
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct RankWatch {
    pub(super) facts: RankFacts,
    pub(super) sites: Vec<Site>,
    /// As many as `sites`.
    recent: Vec<Recent>,
    by_frame: HashMap<Option<Arc<Frame>>, u32>,
    of_stack: Vec<OfStack>,
    frames: Vec<Arc<Frame>>,
    frame_ids: HashMap<Arc<Frame>, u32>,
    stacks: Vec<Box<[u32]>>,
    /// Sites that the last table showed.
    shown: Vec<u32>,
    tables: u32,
    pub(super) course: Course,
}

impl RankWatch {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(facts: RankFacts) -> Self {
        Self {
            facts,
            sites: Vec::new(),
            recent: Vec::new(),
            by_frame: HashMap::new(),
            of_stack: Vec::new(),
            frames: Vec::new(),
            frame_ids: HashMap::new(),
            stacks: Vec::new(),
            shown: Vec::new(),
            tables: 0,
            course: Course::default(),
        }
    }

    /// The rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.facts.rank
    }

    /// Tells the device's size, when it becomes known later.
    pub fn set_device_total(&mut self, bytes: u64) {
        self.facts.device_total_bytes = Some(bytes);
    }

    /// The frames of a stack, innermost first, before the first table that refers to it.
    pub fn stack(&mut self, id: StackId, frames: &[Frame]) {
        let index = id.0 as usize;
        if index == 0 || index > STACKS_MAX {
            return;
        }
        if self.stacks.len() < index {
            self.stacks.resize(index, Box::default());
        }
        self.stacks[index - 1] = frames.iter().take(FRAMES_MAX).map(|frame| self.frame(frame)).collect();
    }

    fn frame(&mut self, frame: &Frame) -> u32 {
        if let Some(&known) = self.frame_ids.get(frame) {
            return known;
        }
        let frame = Arc::new(frame.clone());
        let id = self.frames.len() as u32;
        self.frames.push(frame.clone());
        self.frame_ids.insert(frame, id);
        id
    }

    /// The frames of a stack that is known, innermost first.
    pub(super) fn frames_of(&self, stack: StackId) -> impl DoubleEndedIterator<Item = &Arc<Frame>> {
        let ids = (stack.0 as usize).checked_sub(1).and_then(|index| self.stacks.get(index));
        ids.into_iter().flat_map(|ids| ids.iter()).map(|&id| &self.frames[id as usize])
    }

    /// Of these stacks those that hold what has grown: what they hold is there now, and is not all that they held when
    /// their site was first seen.
    pub(super) fn grown(&self, stacks: &[StackId]) -> Vec<StackId> {
        let known = |stack: StackId| self.of_stack.get((stack.0 as usize).min(STACKS_MAX)).copied().unwrap_or_default();
        let last = stacks.iter().map(|&stack| known(stack).seen).max().unwrap_or(0);
        let first = stacks.iter().map(|&stack| known(stack).since).min().unwrap_or(0);
        let now = |stack: &StackId| known(*stack).seen == last;
        let more = |stack: &StackId| known(*stack).since > first || known(*stack).bytes > known(*stack).first;
        let of = |kept: &dyn Fn(&StackId) -> bool| stacks.iter().filter(|&stack| kept(stack)).copied().collect();
        let grown: Vec<StackId> = of(&|stack| now(stack) && more(stack));
        if grown.is_empty() { of(&now) } else { grown }
    }

    /// Takes a table of this device; tables come in their order.
    pub fn table(&mut self, table: &SiteTable) {
        let Some((at, epochs)) = self.course.boundary(table) else { return };
        self.tables += 1;
        let tables = self.tables;
        let before = std::mem::take(&mut self.shown);
        for row in &table.rows {
            let phase = row.birth_phase.map_or(0, |phase| phase as usize);
            let index = self.site_of(row.stack, 1 << phase, row.bytes);
            let site = &mut self.recent[index as usize];
            if site.seen != tables {
                site.seen = tables;
                (site.sum, site.phases) = ((0, 0), [0; 6]);
                self.shown.push(index);
            }
            // Saturating: the figures came over the wire.
            let (bytes, blocks) = &mut site.sum;
            *bytes = bytes.saturating_add(row.bytes);
            *blocks = blocks.saturating_add(u32::try_from(row.blocks).unwrap_or(u32::MAX));
            site.phases[phase] = site.phases[phase].saturating_add(row.bytes);
        }
        let gone = before.into_iter().filter(|&index| self.recent[index as usize].seen != tables);
        let gone: Vec<u32> = gone.collect();
        for &index in self.shown.iter().chain(&gone) {
            let recent = &mut self.recent[index as usize];
            let amount = if recent.seen == tables { recent.sum } else { (0, 0) };
            if std::mem::replace(&mut recent.known[usize::from(epochs)], amount) != amount {
                let site = &mut self.sites[index as usize];
                if recent.seen == tables {
                    let first = site.steps.last().is_none() && site.epochs.last().is_none();
                    // What was not there when recording began has grown from nothing.
                    let first = if first && !site.since_start { recent.phases } else { site.phases[1] };
                    site.phases = [recent.phases, first];
                }
                let point = Point { at, epoch: table.epoch, blocks: amount.1, bytes: amount.0 };
                // What was not there when recording began has grown from nothing; at the first epoch's end, from where the
                // last step left it.
                let step = recent.known[0];
                let nothing = site.since_start.then_some((0, 0));
                if epochs {
                    let before = (self.course.steps > 0).then_some((step.1, step.0)).filter(|_| at == 1);
                    site.epochs.push(point, before.or(nothing));
                } else {
                    site.steps.push(point, nothing);
                }
            }
        }
        // A site that is gone from this kind of boundary may still have to be told so at the other kind's next one.
        let recent = &self.recent;
        self.shown.extend(gone.into_iter().filter(|&index| recent[index as usize].known != [(0, 0); 2]));
    }

    /// Takes a measurement of this device.
    pub fn sample(&mut self, sample: &Sample) {
        if let Some(total) = sample.device_total_bytes {
            self.facts.device_total_bytes = Some(total);
        }
        self.course.sample(sample);
    }

    fn site_of(&mut self, stack: StackId, phase: u8, bytes: u64) -> u32 {
        let index = (stack.0 as usize).min(STACKS_MAX);
        if let Some(known) = self.of_stack.get_mut(index)
            && known.phases & phase != 0
        {
            known.row(self.tables, bytes);
            return known.site - 1;
        }
        if self.of_stack.len() <= index {
            self.of_stack.resize(index + 1, OfStack::default());
        }
        let site = match self.of_stack[index].site {
            0 => self.open_site(stack),
            known => known - 1,
        };
        let known = &mut self.of_stack[index];
        known.site = site + 1;
        known.phases |= phase;
        known.row(self.tables, bytes);
        let stacks = &mut self.sites[site as usize].stacks;
        // What shares a site is nearly always a handful of ways to it; more say nothing new.
        match stacks.iter().position(|(known, _)| *known == stack) {
            Some(known) => stacks[known].1 |= phase,
            None if stacks.len() < 64 => stacks.push((stack, phase)),
            None => {}
        }
        site
    }

    fn open_site(&mut self, stack: StackId) -> u32 {
        let frame = {
            let mut frames = self.frames_of(stack);
            let innermost = frames.next();
            let user =
                innermost.filter(|frame| frame.is_user_code()).or_else(|| frames.find(|frame| frame.is_user_code()));
            user.or(innermost).cloned()
        };
        let next = self.sites.len() as u32;
        match self.by_frame.get(&frame) {
            Some(&known) => known,
            None if self.sites.len() >= SITES_MAX => self.by_frame.get(&None).copied().unwrap_or(0),
            None => {
                self.by_frame.insert(frame.clone(), next);
                let (stacks, steps, epochs) = (Vec::new(), Series::default(), Series::default());
                let since_start = self.tables > 1;
                self.sites.push(Site { frame, phases: [[0; 6]; 2], stacks, steps, epochs, since_start });
                self.recent.push(Recent::default());
                next
            }
        }
    }
}

/// Whether a table belongs to the course of steps or of epochs; the end of a recording belongs to neither.
pub(super) fn is_epoch_end(boundary: Boundary) -> Option<bool> {
    match boundary {
        Boundary::StepEnd => Some(false),
        Boundary::EpochEnd => Some(true),
        Boundary::End | Boundary::WindowEnd => None,
    }
}
