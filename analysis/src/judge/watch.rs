//! What is remembered of one rank's device: its sites over steps and epochs, its levels, what was measured.
//!
//! Guarantees: fed with the same tables it stands the same, live or imported; memory is bounded (see [`SITES_MAX`] and
//! [`super::series::POINTS_MAX`]; about 0.4 MB for 500 sites with their stacks); a table costs a few nanoseconds a row.
//! Refuses to judge: [`super::findings`] does, over all ranks.
//!
//! (Over 400 lines: one table touches frames, stacks, sites and their recent figures, which are kept side by side for speed.)

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use memctl_model::{Boundary, Counters, Frame, Peaks, Sample, SiteTable, StackId};

use super::history::{History, Per};
use super::series::{Point, Series};
use super::stacks::{STACKS_MAX, Stacks};
use super::subjects::Subject;

/// Sites that are followed; what comes later is counted with what has no stack.
pub const SITES_MAX: usize = 16_384;
/// Maximum number of paths to a site that are distinguished: nearly always there are a handful; more add nothing new.
const STACKS_OF_SITE: usize = 64;
/// What maps and stacks of a site take beside it.
const OF_SITE: usize = 128;
/// Measurements that stand for windows lie at least so far apart.
const SAMPLED_EVERY_NS: u64 = 1_000_000_000;

/// What is known of a rank before its first event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RankFacts {
    /// The rank.
    pub rank: u32,
    /// The process's name within its job; empty for one that its rank names.
    pub process: Arc<str>,
    /// What the process does, where that is not what its rank's main process does: peers have the same.
    pub role: Arc<str>,
    /// The device's index within the process.
    pub device: u8,
    /// Which device of which machine it is, the same for all processes that use it.
    pub device_id: Option<Arc<str>>,
    /// All bytes of its device.
    pub device_total_bytes: Option<u64>,
    /// Whether the device is simulated, with its memory in the host's.
    pub is_simulated: bool,
}

/// A site: the innermost frame of the user's own code. Phases are no part of it: a tensor that is replaced in training and in
/// evaluation is one.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Site {
    pub frame: Option<Arc<Frame>>,
    /// Live bytes by phase of birth (none, then the five) when the site last changed, and when it was first seen.
    pub phases: [[u64; 6]; 2],
    /// The stacks that allocate there, each with the phases in which it did: bit 0 for none, then the five.
    pub stacks: Vec<(StackId, u8)>,
    /// What it held, by kind of boundary.
    of: [Series; 3],
    /// Whether the recording had begun without it.
    pub since_start: bool,
    pub holds: Holds,
}

/// What a site holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) enum Holds {
    /// Live blocks.
    Blocks,
    /// Segments of private pools that were asked for there.
    Pools,
    /// All that is allocated: only counters are known, no events.
    Counter,
}

impl Site {
    /// What it held at the boundaries of a kind.
    pub fn series(&self, per: Per) -> &Series {
        &self.of[per as usize]
    }
}

/// Bytes and blocks.
type Amount = (u64, u32);

/// What a table changes at a site, apart from the rest of it: most rows of most tables change nothing, and this is all
/// that they touch.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Recent {
    /// Number of the last table that showed the site.
    seen: u32,
    /// What that table has shown so far.
    sum: Amount,
    /// Its bytes by phase of birth.
    phases: [u64; 6],
    /// Its bytes that were born in an earlier epoch.
    older: u64,
    /// The epoch in which it was first seen.
    first_epoch: Option<u32>,
    /// Its bytes, and the older ones among them, at the first boundary after that epoch.
    after_first: Option<(u64, u64)>,
    /// What the last boundary of each kind showed.
    known: [Amount; 3],
}

impl Recent {
    /// Keeps what was older at the first boundary after the site's first epoch; called once its rows of a table are known.
    fn note_older(&mut self, epoch: u32) {
        let first = *self.first_epoch.get_or_insert(epoch);
        if epoch > first {
            self.after_first.get_or_insert((self.sum.0, self.older));
        }
    }
}

/// What is known of a stack.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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
    /// Likewise in blocks.
    first_blocks: u64,
    blocks: u64,
}

impl OfStack {
    /// Takes one of its rows in a table.
    fn row(&mut self, table: u32, bytes: u64, blocks: u64) {
        if self.seen != table {
            self.seen = table;
            (self.bytes, self.blocks) = (0, 0);
        }
        if self.since == 0 {
            self.since = table;
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.blocks = self.blocks.saturating_add(blocks);
        if self.since == table {
            (self.first, self.first_blocks) = (self.bytes, self.blocks);
        }
    }
}

/// See the module.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RankWatch {
    pub(super) facts: RankFacts,
    pub(super) sites: Vec<Site>,
    /// As many as `sites`.
    recent: Vec<Recent>,
    #[cfg_attr(feature = "serde", serde(skip))]
    by_frame: HashMap<(Option<Arc<Frame>>, Holds), u32>,
    pool_sites: HashMap<StackId, u32>,
    of_stack: Vec<OfStack>,
    /// The same for all devices of a process.
    #[cfg_attr(feature = "serde", serde(skip))]
    stacks: Arc<Stacks>,
    /// Whether a phase shows that this process trains.
    has_phases: bool,
    /// Points that its sites keep.
    points: usize,
    /// Sites that the last table showed.
    shown: Vec<u32>,
    tables: u32,
    /// Tables that were made of measurements, because nothing else comes, and when the last one was.
    sampled: (u32, u64),
    /// Bytes of each site at the end of the recording, where that followed the last boundary; those beyond hold nothing.
    at_end: Option<Vec<u64>>,
    pub(super) history: History,
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
            pool_sites: HashMap::new(),
            of_stack: Vec::new(),
            stacks: Arc::default(),
            has_phases: false,
            points: 0,
            shown: Vec::new(),
            tables: 0,
            sampled: (0, 0),
            at_end: None,
            history: History::default(),
        }
    }

    /// The rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.facts.rank
    }

    /// What the process may use of its device: all but what was lately used outside its allocator. None where the device's size
    /// is not known.
    #[must_use]
    pub fn limit_bytes(&self) -> Option<u64> {
        let total = self.facts.device_total_bytes.filter(|&total| total > 0)?;
        Some(total.saturating_sub(self.history.outside_bytes().unwrap_or(0)))
    }

    /// The device that is watched.
    #[must_use]
    pub fn who(&self) -> Subject {
        Subject { rank: self.facts.rank, process: self.facts.process.clone(), device: self.facts.device }
    }

    /// Sets the process's name and role: names say more as more of a job's processes start.
    pub fn set_process(&mut self, name: &str, role: &str) {
        if &*self.facts.process != name || &*self.facts.role != role {
            (self.facts.process, self.facts.role) = (name.into(), role.into());
        }
    }

    /// The place that held most at any boundary, and a stack that leads there.
    pub(super) fn largest_site(&self) -> Option<(&Frame, Vec<Frame>)> {
        let highest = |site: &Site| {
            let points = Per::ALL.into_iter().flat_map(|per| site.series(per).points());
            points.map(|point| point.bytes).max().unwrap_or(0)
        };
        let named = self.sites.iter().filter_map(|site| Some((site.frame.as_deref()?, site)));
        let (frame, site) = named.max_by_key(|(_, site)| highest(site)).filter(|(_, site)| highest(site) > 0)?;
        let stack =
            site.stacks.first().map(|(stack, _)| self.frames_of(*stack).map(|frame| (**frame).clone()).collect());
        Some((frame, stack.unwrap_or_default()))
    }

    /// Sets the device's size, if it becomes known later.
    pub fn set_device_total(&mut self, bytes: u64) {
        self.facts.device_total_bytes = Some(bytes);
    }

    /// The frames of a stack, innermost first, before the first table that refers to it.
    pub fn stack(&mut self, id: StackId, frames: &[Frame]) {
        Arc::make_mut(&mut self.stacks).set(id, frames);
    }

    /// The stacks of its process, which are the same for all its devices, before the first table that refers to them.
    pub fn set_stacks(&mut self, stacks: Arc<Stacks>) {
        self.stacks = stacks;
    }

    /// Whether anything shows that this process trains (a backward pass, an optimizer, phases): serving builds no
    /// graph.
    pub(super) fn trains(&self) -> bool {
        self.has_phases || self.stacks.train()
    }

    /// The line of a forward pass through which a stack allocates.
    pub(super) fn forward_line(&self, stack: StackId) -> Option<(u32, u32)> {
        self.stacks.forward_line(stack)
    }

    /// Lines, called by these lines of the user's own, through which forward passes allocate, as far as stacks are
    /// known.
    pub(super) fn forward_lines(&self, callers: &HashSet<u32>) -> usize {
        self.stacks.forward_lines(callers)
    }

    /// The frames of a stack that is known, innermost first.
    pub(super) fn frames_of(&self, stack: StackId) -> impl Iterator<Item = &Arc<Frame>> {
        self.stacks.frames_of(stack)
    }

    /// Whether any stack has a name.
    pub(super) fn has_stacks(&self) -> bool {
        !self.stacks.is_empty()
    }

    /// Continues from a saved state; the arguments supply what is not saved. `false` if the state contradicts itself
    /// and must not be used.
    #[must_use]
    pub fn resume(&mut self, facts: RankFacts, stacks: Arc<Stacks>) -> bool {
        let device_total_bytes = self.facts.device_total_bytes.or(facts.device_total_bytes);
        self.facts = RankFacts { device_total_bytes, ..facts };
        self.stacks = stacks;
        let stacks = &self.stacks;
        for site in &mut self.sites {
            // Stacks share their frames.
            let shared = site.stacks.first().and_then(|(stack, _)| stacks.site(*stack));
            site.frame = shared.filter(|frame| site.frame.as_ref() == Some(frame)).or_else(|| site.frame.take());
        }
        let keys = self.sites.iter().map(|site| (site.frame.clone(), site.holds));
        self.by_frame = keys.zip(0..).collect();
        self.is_sound()
    }

    /// Whether what refers to a site finds one: it was read from a file.
    fn is_sound(&self) -> bool {
        let sites = self.sites.len();
        let site = |&index: &u32| (index as usize) < sites;
        // Room for the two that have no name, blocks and pools, is always left.
        let bounded = sites <= SITES_MAX + 3 && self.of_stack.len() <= STACKS_MAX + 1;
        let row = |known: &OfStack| known.site as usize <= sites && (known.site > 0 || known.phases == 0);
        bounded
            && self.recent.len() == sites
            && self.by_frame.len() == sites
            && self.shown.iter().chain(self.pool_sites.values()).all(site)
            && self.of_stack.iter().all(row)
            && self.sites.iter().all(|site| site.of.iter().all(Series::is_sound))
            && self.history.is_sound()
    }

    /// Bytes that it keeps, without the stacks of its process: what grows with what is sent.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.sites.len() * (size_of::<Site>() + size_of::<Recent>() + OF_SITE)
            + self.points * size_of::<Point>()
            + self.of_stack.len() * size_of::<OfStack>()
            + self.pool_sites.len() * OF_SITE
            + self.at_end.as_ref().map_or(0, |held| size_of_val(held.as_slice()))
            + self.history.bytes()
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

    /// Blocks that a stack has gained since it was first seen.
    pub(super) fn blocks_gained(&self, stack: StackId) -> u64 {
        let known = self.of_stack.get((stack.0 as usize).min(STACKS_MAX));
        known.map_or(0, |known| known.blocks.saturating_sub(known.first_blocks))
    }

    /// Bytes that live at a site and were born in an earlier epoch than the one under way.
    pub(super) fn older_bytes(&self, site: usize) -> u64 {
        self.recent.get(site).filter(|recent| recent.seen == self.tables).map_or(0, |recent| recent.older)
    }

    /// Bytes that a site has gained since the first boundary after its first epoch, and how many more of its bytes were born in
    /// an earlier epoch than the one under way: what its first epoch made once (a library's workspace) is in neither.
    pub(super) fn gained_after_first_epoch(&self, site: usize) -> (u64, u64) {
        let shown = self.recent.get(site).filter(|recent| recent.seen == self.tables);
        let since = shown.and_then(|recent| Some((recent, recent.after_first?)));
        since.map_or((0, 0), |(recent, (bytes, older))| {
            (recent.sum.0.saturating_sub(bytes), recent.older.saturating_sub(older))
        })
    }

    /// Takes a table of this device; tables come in their order.
    pub fn table(&mut self, table: &SiteTable) {
        self.at_end = None;
        let Some((per, at)) = self.history.boundary(table) else { return self.end(table) };
        self.tables += 1;
        let before = std::mem::take(&mut self.shown);
        for row in &table.rows {
            self.has_phases |= row.birth_phase.is_some();
            let phase = row.birth_phase.map_or(0, |phase| phase as usize);
            let index = self.site_of(row.stack, 1 << phase, row.bytes, row.blocks);
            self.add(index, phase, row.bytes, row.blocks);
            if row.birth_epoch < table.epoch {
                let older = &mut self.recent[index as usize].older;
                *older = older.saturating_add(row.bytes);
            }
        }
        for row in &table.private_pools {
            let index = self.pool_site(row.stack);
            self.add(index, 0, row.bytes, row.segments);
        }
        if !self.history.has_rows && table.counters.allocated_bytes > 0 {
            let index = self.open_site(StackId::NONE, Holds::Counter);
            self.add(index, 0, table.counters.allocated_bytes, table.counters.allocated_blocks.max(1));
        }
        let tables = self.tables;
        let gone = before.into_iter().filter(|&index| self.recent[index as usize].seen != tables);
        let gone: Vec<u32> = gone.collect();
        let shown = std::mem::take(&mut self.shown);
        for &index in &shown {
            self.recent[index as usize].note_older(table.epoch);
        }
        shown.iter().chain(&gone).for_each(|&index| self.settle(index, per, at, table));
        self.shown = shown;
        // A site that is gone from this kind of boundary may still have to be updated at another kind's next one.
        let recent = &self.recent;
        self.shown.extend(gone.into_iter().filter(|&index| recent[index as usize].known != [(0, 0); 3]));
    }

    /// Takes the table of the end of the recording.
    fn end(&mut self, table: &SiteTable) {
        let mut held = vec![0_u64; self.sites.len()];
        let blocks = table.rows.iter().map(|row| (self.known_site(row.stack), row.bytes));
        let pools = table.private_pools.iter().map(|row| (self.pool_sites.get(&row.stack).copied(), row.bytes));
        for (site, bytes) in blocks.chain(pools) {
            // What no boundary showed has no part in what grew.
            let Some(held) = site.and_then(|site| held.get_mut(site as usize)) else { continue };
            *held = held.saturating_add(bytes);
        }
        self.at_end = Some(held);
    }

    /// The site of a stack, if a boundary showed it.
    fn known_site(&self, stack: StackId) -> Option<u32> {
        self.of_stack.get((stack.0 as usize).min(STACKS_MAX))?.site.checked_sub(1)
    }

    /// What a site held at the end of the recording; `None` where that is not known, as while it goes on.
    pub(super) fn held_at_end(&self, site: usize) -> Option<u64> {
        let held = self.at_end.as_ref().filter(|_| self.history.has_rows)?;
        Some(held.get(site).copied().unwrap_or(0))
    }

    /// Adds a row to what the table at hand shows of a site.
    fn add(&mut self, index: u32, phase: usize, bytes: u64, blocks: u64) {
        let site = &mut self.recent[index as usize];
        if site.seen != self.tables {
            site.seen = self.tables;
            (site.sum, site.phases, site.older) = ((0, 0), [0; 6], 0);
            self.shown.push(index);
        }
        // Saturating: the figures came over the wire.
        site.sum.0 = site.sum.0.saturating_add(bytes);
        site.sum.1 = site.sum.1.saturating_add(u32::try_from(blocks).unwrap_or(u32::MAX));
        site.phases[phase] = site.phases[phase].saturating_add(bytes);
    }

    /// Notes what the table at hand shows of a site, if that is not what the last boundary of its kind showed.
    fn settle(&mut self, index: u32, per: Per, at: u32, table: &SiteTable) {
        let recent = &mut self.recent[index as usize];
        let shown = recent.seen == self.tables;
        let amount = if shown { recent.sum } else { (0, 0) };
        if std::mem::replace(&mut recent.known[per as usize], amount) == amount {
            return;
        }
        let site = &mut self.sites[index as usize];
        if shown {
            let first = site.of.iter().all(|series| series.last().is_none());
            // What was not there when recording began has grown from nothing.
            let first = if first && !site.since_start { recent.phases } else { site.phases[1] };
            site.phases = [recent.phases, first];
        }
        let (epoch, step, time_ns) = (table.epoch, table.step, table.time_ns);
        let opens = per == Per::Step && self.history.opens_epoch();
        let point = Point { at, epoch, step, time_ns, blocks: amount.1, opens, bytes: amount.0 };
        // What was not there when recording began has grown from nothing; at the first epoch's end (and at the first window,
        // where windows follow steps), from where the last step left it.
        let (bytes, blocks) = recent.known[Per::Step as usize];
        let steps = per != Per::Step && self.history.steps() > 0 && self.history.of(per).seen == 1;
        let nothing = site.since_start.then_some((0, 0));
        let series = &mut site.of[per as usize];
        let before = series.kept();
        series.push(point, steps.then_some((blocks, bytes)).or(nothing));
        self.points = (self.points + series.kept()).saturating_sub(before);
    }

    /// The site of private pools whose segments this stack asked for.
    fn pool_site(&mut self, stack: StackId) -> u32 {
        if let Some(&known) = self.pool_sites.get(&stack) {
            return known;
        }
        let site = self.open_site(stack, Holds::Pools);
        if self.pool_sites.len() < STACKS_MAX {
            self.pool_sites.insert(stack, site);
        }
        let (stacks, stack) = self.stacks_of(site, stack);
        if stacks.len() < STACKS_OF_SITE && !stacks.iter().any(|&(known, _)| known == stack) {
            stacks.push((stack, 1));
        }
        site
    }

    /// Takes a measurement of this device.
    pub fn sample(&mut self, sample: &Sample) {
        if let Some(total) = sample.device_total_bytes {
            self.facts.device_total_bytes = Some(total);
        }
        self.history.sample(sample);
        self.table_of(sample);
    }

    /// Where nothing but measurements comes, they are windows.
    fn table_of(&mut self, sample: &Sample) {
        let (sampled, last_ns) = self.sampled;
        let Some(allocated_bytes) = sample.allocated_bytes.filter(|_| self.tables == sampled) else { return };
        if sampled > 0 && sample.time_ns.saturating_sub(last_ns) < SAMPLED_EVERY_NS {
            return;
        }
        self.sampled = (sampled + 1, sample.time_ns);
        let counters = Counters {
            allocated_bytes,
            active_bytes: sample.active_bytes.unwrap_or(allocated_bytes),
            reserved_bytes: sample.reserved_bytes.unwrap_or(0),
            ..Counters::default()
        };
        let peaks = Peaks { allocated_bytes, reserved_bytes: counters.reserved_bytes };
        self.table(&SiteTable {
            device: sample.device,
            boundary: Boundary::WindowEnd,
            epoch: 0,
            step: 0,
            time_ns: sample.time_ns,
            at_event: 0,
            exact: true,
            counters,
            peaks,
            peaks_within: peaks,
            found: false,
            rows: Vec::new(),
            private_pools: Vec::new(),
        });
    }

    fn site_of(&mut self, stack: StackId, phase: u8, bytes: u64, blocks: u64) -> u32 {
        let index = (stack.0 as usize).min(STACKS_MAX);
        if let Some(known) = self.of_stack.get_mut(index)
            && known.phases & phase != 0
        {
            known.row(self.tables, bytes, blocks);
            return known.site - 1;
        }
        if self.of_stack.len() <= index {
            self.of_stack.resize(index + 1, OfStack::default());
        }
        let site = match self.of_stack[index].site {
            0 => self.open_site(stack, Holds::Blocks),
            known => known - 1,
        };
        let known = &mut self.of_stack[index];
        known.site = site + 1;
        known.phases |= phase;
        known.row(self.tables, bytes, blocks);
        let (stacks, stack) = self.stacks_of(site, stack);
        match stacks.iter().position(|(known, _)| *known == stack) {
            Some(known) => stacks[known].1 |= phase,
            None if stacks.len() < STACKS_OF_SITE => stacks.push((stack, phase)),
            None => {}
        }
        site
    }

    /// The stacks of a site, and which of them this one is: where the site has no name, none of many stacks stands for it.
    fn stacks_of(&mut self, site: u32, stack: StackId) -> (&mut Vec<(StackId, u8)>, StackId) {
        let site = &mut self.sites[site as usize];
        let stack = if site.frame.is_some() { stack } else { StackId::NONE };
        (&mut site.stacks, stack)
    }

    fn open_site(&mut self, stack: StackId, holds: Holds) -> u32 {
        let frame = self.stacks.site(stack);
        let known = |frame: &Option<Arc<Frame>>| self.by_frame.get(&(frame.clone(), holds)).copied();
        // One more than there is room for has no name: a wrong one would be worse.
        let frame = if known(&frame).is_some() || self.sites.len() < SITES_MAX { frame } else { None };
        known(&frame).unwrap_or_else(|| {
            let next = self.sites.len() as u32;
            self.by_frame.insert((frame.clone(), holds), next);
            let since_start = self.tables > 1;
            let (phases, stacks, of) = ([[0; 6]; 2], Vec::new(), Default::default());
            self.sites.push(Site { frame, phases, stacks, of, since_start, holds });
            self.recent.push(Recent::default());
            next
        })
    }
}
