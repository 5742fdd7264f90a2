//! The stored state of one rank's device: its sites over steps and epochs, its levels, and its measurements.
//!
//! Guarantees: the same tables give the same state, live or imported. Memory is bounded (see [`SITES_MAX`] and
//! [`super::series::POINTS_MAX`]; about 0.4 MB for 500 sites with their stacks). A table costs a few nanoseconds per
//! row. Nothing is judged here: [`super::findings`] does that over all ranks.
//!
//! (Over 400 lines: one table touches frames, stacks, sites and their recent figures, which are kept side by side for speed.)

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use memctl_model::{Boundary, Counters, Frame, Peaks, Sample, SiteTable, StackId};

use super::history::{History, Per};
use super::series::{Point, Series};
use super::stacks::{STACKS_MAX, Stacks};
use super::subjects::Subject;

/// Maximum number of sites that are followed. Later sites are counted in the site without a stack.
pub const SITES_MAX: usize = 16_384;
/// Maximum number of stacks of a site that are distinguished. Nearly all sites have only a handful, and more show
/// nothing new.
const STACKS_OF_SITE: usize = 64;
/// Bytes of maps and stacks per site.
const OF_SITE: usize = 128;
/// Minimum distance of measurements that replace windows.
const SAMPLED_EVERY_NS: u64 = 1_000_000_000;

/// The facts about a rank that are known before its first event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RankFacts {
    /// The rank.
    pub rank: u32,
    /// The process's name within its job; empty if its rank names it.
    pub process: Arc<str>,
    /// The role of the process, if it differs from that of its rank's main process. Peers have the same role.
    pub role: Arc<str>,
    /// The device's index within the process.
    pub device: u8,
    /// The identity of the device across machines; all processes that use it have the same.
    pub device_id: Option<Arc<str>>,
    /// All bytes of its device.
    pub device_total_bytes: Option<u64>,
    /// The limit that the program set on its own allocator.
    pub own_limit_bytes: Option<u64>,
    /// Whether the device is simulated and has its memory in the host's.
    pub is_simulated: bool,
}

/// A site: the innermost frame of the user's own code. Phases do not distinguish sites: a tensor that is replaced in
/// training and in evaluation is one site.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Site {
    pub frame: Option<Arc<Frame>>,
    /// Live bytes by phase of birth (none, then the five): when the site last changed, and when it was first seen.
    pub phases: [[u64; 6]; 2],
    /// The stacks that allocate there, each with its phases: bit 0 for none, then the five.
    pub stacks: Vec<(StackId, u8)>,
    /// Its memory at each kind of boundary.
    of: [Series; 3],
    /// Whether the site appeared after the recording began.
    pub since_start: bool,
    pub holds: Holds,
}

/// The kind of memory that a site holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) enum Holds {
    /// Live blocks.
    Blocks,
    /// Segments of private pools that were requested there.
    Pools,
    /// All allocated memory: only counters are known, no events.
    Counter,
}

impl Site {
    /// Its memory at the boundaries of a kind.
    pub fn series(&self, per: Per) -> &Series {
        &self.of[per as usize]
    }
}

/// Bytes and blocks.
type Amount = (u64, u32);

/// The figures of a site that every table updates. They are stored separately because most rows of most tables change
/// nothing else.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Recent {
    /// Number of the last table that showed the site.
    seen: u32,
    /// Its figures in that table so far.
    sum: Amount,
    /// Its bytes by phase of birth.
    phases: [u64; 6],
    /// Its bytes that were born in an earlier epoch.
    older: u64,
    /// The epoch in which it was first seen.
    first_epoch: Option<u32>,
    /// Its bytes, and the older ones among them, at the first boundary after that epoch.
    after_first: Option<(u64, u64)>,
    /// Its figures at the last boundary of each kind.
    known: [Amount; 3],
}

impl Recent {
    /// Stores the older bytes at the first boundary after the site's first epoch. Must be called after all of its rows
    /// in a table.
    fn note_older(&mut self, epoch: u32) {
        let first = *self.first_epoch.get_or_insert(epoch);
        if epoch > first {
            self.after_first.get_or_insert((self.sum.0, self.older));
        }
    }
}

/// The figures of a stack.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct OfStack {
    /// Index of its site plus one; 0 before its first row.
    site: u32,
    /// Numbers of the first and of the last table in which it held memory.
    since: u32,
    seen: u32,
    /// The phases that are already entered in the site.
    phases: u8,
    /// Its bytes in the first of these tables and in the last.
    first: u64,
    bytes: u64,
    /// Its blocks in the first of these tables and in the last.
    first_blocks: u64,
    blocks: u64,
}

impl OfStack {
    /// Adds one of its rows in a table.
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

/// The stored state of one rank's device; see the module's documentation.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RankWatch {
    pub(super) facts: RankFacts,
    pub(super) sites: Vec<Site>,
    /// One entry per entry of `sites`.
    recent: Vec<Recent>,
    #[cfg_attr(feature = "serde", serde(skip))]
    by_frame: HashMap<(Option<Arc<Frame>>, Holds), u32>,
    pool_sites: HashMap<StackId, u32>,
    of_stack: Vec<OfStack>,
    /// The stacks of the process, shared by all its devices.
    #[cfg_attr(feature = "serde", serde(skip))]
    stacks: Arc<Stacks>,
    /// Whether a phase shows that this process trains.
    has_phases: bool,
    /// Number of points that its sites keep.
    points: usize,
    /// The sites in the last table.
    shown: Vec<u32>,
    tables: u32,
    /// Number of tables made from measurements, because nothing else arrives, and the time of the last one.
    sampled: (u32, u64),
    /// Bytes and blocks of each site at the end of the recording, if it followed the last boundary. Later sites hold
    /// nothing.
    at_end: Option<Vec<(u64, u64)>>,
    pub(super) history: History,
}

impl RankWatch {
    /// The initial state, without any table.
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

    /// The bytes of its device that the process may use: all except those recently used outside its allocator, and at most
    /// its own limit. `None` if neither the device's size nor a limit is known.
    #[must_use]
    pub fn limit_bytes(&self) -> Option<u64> {
        let total = self.facts.device_total_bytes.filter(|&total| total > 0);
        let rest = total.map(|total| total.saturating_sub(self.history.outside_bytes().unwrap_or(0)));
        [rest, self.facts.own_limit_bytes].into_iter().flatten().min()
    }

    /// The device that is watched.
    #[must_use]
    pub fn who(&self) -> Subject {
        Subject { rank: self.facts.rank, process: self.facts.process.clone(), device: self.facts.device }
    }

    /// Sets the process's name and role. Names become more specific as more processes of a job start.
    pub fn set_process(&mut self, name: &str, role: &str) {
        if &*self.facts.process != name || &*self.facts.role != role {
            (self.facts.process, self.facts.role) = (name.into(), role.into());
        }
    }

    /// The place that held most at any boundary, and a stack that contains it.
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

    /// Sets the device's size when it becomes known.
    pub fn set_device_total(&mut self, bytes: u64) {
        self.facts.device_total_bytes = Some(bytes);
    }

    /// Sets the frames of a stack, innermost first. Must be called before the first table that refers to the stack.
    pub fn stack(&mut self, id: StackId, frames: &[Frame]) {
        Arc::make_mut(&mut self.stacks).set(id, frames);
    }

    /// Sets the stacks of the process, which all its devices share. Must be called before the first table that refers
    /// to them.
    pub fn set_stacks(&mut self, stacks: Arc<Stacks>) {
        self.stacks = stacks;
    }

    /// Whether anything shows that this process trains (a backward pass, an optimizer, phases). A process that only
    /// serves builds no graph.
    pub(super) fn trains(&self) -> bool {
        self.has_phases || self.stacks.train()
    }

    /// The line of a forward pass through which a stack allocates.
    pub(super) fn forward_line(&self, stack: StackId) -> Option<(u32, u32)> {
        self.stacks.forward_line(stack)
    }

    /// Number of lines through which forward passes allocate and which these lines of the user's code call, as far as
    /// stacks are known.
    pub(super) fn forward_lines(&self, callers: &HashSet<u32>) -> usize {
        self.stacks.forward_lines(callers)
    }

    /// The frames of a known stack, innermost first.
    pub(super) fn frames_of(&self, stack: StackId) -> impl Iterator<Item = &Arc<Frame>> {
        self.stacks.frames_of(stack)
    }

    /// Whether any stack has frames.
    pub(super) fn has_stacks(&self) -> bool {
        !self.stacks.is_empty()
    }

    /// Continues from a saved state; the arguments supply what is not saved. `false` if the state contradicts itself
    /// and must not be used.
    #[must_use]
    pub fn resume(&mut self, facts: RankFacts, stacks: Arc<Stacks>) -> bool {
        let device_total_bytes = self.facts.device_total_bytes.or(facts.device_total_bytes);
        let own_limit_bytes = self.facts.own_limit_bytes;
        self.facts = RankFacts { device_total_bytes, own_limit_bytes, ..facts };
        self.stacks = stacks;
        let stacks = &self.stacks;
        for site in &mut self.sites {
            // Sites share the frames of stacks.
            let shared = site.stacks.first().and_then(|(stack, _)| stacks.site(*stack));
            site.frame = shared.filter(|frame| site.frame.as_ref() == Some(frame)).or_else(|| site.frame.take());
        }
        let keys = self.sites.iter().map(|site| (site.frame.clone(), site.holds));
        self.by_frame = keys.zip(0..).collect();
        self.is_sound()
    }

    /// Whether all references to sites are valid; the state was read from a file.
    fn is_sound(&self) -> bool {
        let sites = self.sites.len();
        let site = |&index: &u32| (index as usize) < sites;
        // There is always room for the sites without a name, one for each kind of memory.
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

    /// Bytes held in memory, without the stacks of its process: they grow with the received data.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.sites.len() * (size_of::<Site>() + size_of::<Recent>() + OF_SITE)
            + self.points * size_of::<Point>()
            + self.of_stack.len() * size_of::<OfStack>()
            + self.pool_sites.len() * OF_SITE
            + self.at_end.as_ref().map_or(0, |held| size_of_val(held.as_slice()))
            + self.history.bytes()
    }

    /// Those of the given stacks that hold grown memory. They hold memory now, and it is not all memory that they held
    /// when their site was first seen.
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

    /// Number of blocks that a stack has gained since it was first seen.
    pub(super) fn blocks_gained(&self, stack: StackId) -> u64 {
        let known = self.of_stack.get((stack.0 as usize).min(STACKS_MAX));
        known.map_or(0, |known| known.blocks.saturating_sub(known.first_blocks))
    }

    /// Live bytes of a site that were born in an epoch before the current one.
    pub(super) fn older_bytes(&self, site: usize) -> u64 {
        self.recent.get(site).filter(|recent| recent.seen == self.tables).map_or(0, |recent| recent.older)
    }

    /// Bytes that a site has gained since the first boundary after its first epoch, and the gain of bytes born before
    /// the current epoch. Neither includes memory that its first epoch made only once (a library's workspace).
    pub(super) fn gained_after_first_epoch(&self, site: usize) -> (u64, u64) {
        let shown = self.recent.get(site).filter(|recent| recent.seen == self.tables);
        let since = shown.and_then(|recent| Some((recent, recent.after_first?)));
        since.map_or((0, 0), |(recent, (bytes, older))| {
            (recent.sum.0.saturating_sub(bytes), recent.older.saturating_sub(older))
        })
    }

    /// Adds a table of this device. Tables must come in order.
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
        // A site that no longer exists at this kind of boundary may still need an update at the next boundary of
        // another kind.
        let recent = &self.recent;
        self.shown.extend(gone.into_iter().filter(|&index| recent[index as usize].known != [(0, 0); 3]));
    }

    /// Stores the table of the end of the recording.
    fn end(&mut self, table: &SiteTable) {
        let mut held = vec![(0_u64, 0_u64); self.sites.len()];
        let blocks = table.rows.iter().map(|row| (self.known_site(row.stack), row.bytes, row.blocks));
        let pools = table.private_pools.iter();
        let pools = pools.map(|row| (self.pool_sites.get(&row.stack).copied(), row.bytes, row.segments));
        for (site, bytes, count) in blocks.chain(pools) {
            // Sites that no boundary showed have no part in growth.
            let Some(held) = site.and_then(|site| held.get_mut(site as usize)) else { continue };
            *held = (held.0.saturating_add(bytes), held.1.saturating_add(count));
        }
        self.at_end = Some(held);
    }

    /// The site of a stack, if a boundary showed it.
    fn known_site(&self, stack: StackId) -> Option<u32> {
        self.of_stack.get((stack.0 as usize).min(STACKS_MAX))?.site.checked_sub(1)
    }

    /// Bytes and blocks of a site at the end of the recording; `None` if unknown, for example while the job goes on.
    pub(super) fn held_at_end(&self, site: usize) -> Option<(u64, u64)> {
        let held = self.at_end.as_ref().filter(|_| self.history.has_rows)?;
        Some(held.get(site).copied().unwrap_or_default())
    }

    /// Adds a row of the current table to a site.
    fn add(&mut self, index: u32, phase: usize, bytes: u64, blocks: u64) {
        let site = &mut self.recent[index as usize];
        if site.seen != self.tables {
            site.seen = self.tables;
            (site.sum, site.phases, site.older) = ((0, 0), [0; 6], 0);
            self.shown.push(index);
        }
        // The sums saturate because the figures came over the wire.
        site.sum.0 = site.sum.0.saturating_add(bytes);
        site.sum.1 = site.sum.1.saturating_add(u32::try_from(blocks).unwrap_or(u32::MAX));
        site.phases[phase] = site.phases[phase].saturating_add(bytes);
    }

    /// Adds the site's figures in the current table to its series, if they differ from those at the last boundary of
    /// the kind.
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
            // A site that appeared after the recording began has grown from nothing.
            let first = if first && !site.since_start { recent.phases } else { site.phases[1] };
            site.phases = [recent.phases, first];
        }
        let (epoch, step, time_ns) = (table.epoch, table.step, table.time_ns);
        let opens = per == Per::Step && self.history.opens_epoch();
        let point = Point { at, epoch, step, time_ns, blocks: amount.1, opens, bytes: amount.0 };
        // A site that appeared after the recording began has grown from nothing. At the first epoch end, and at the
        // first window after steps, it has grown from its value at the last step.
        let (bytes, blocks) = recent.known[Per::Step as usize];
        let steps = per != Per::Step && self.history.steps() > 0 && self.history.of(per).seen == 1;
        let nothing = site.since_start.then_some((0, 0));
        let series = &mut site.of[per as usize];
        let before = series.kept();
        series.push(point, steps.then_some((blocks, bytes)).or(nothing));
        self.points = (self.points + series.kept()).saturating_sub(before);
    }

    /// The site of private pools whose segments this stack requested.
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

    /// Adds a measurement of this device.
    pub fn sample(&mut self, sample: &Sample) {
        if let Some(total) = sample.device_total_bytes {
            self.facts.device_total_bytes = Some(total);
        }
        self.facts.own_limit_bytes = sample.limit_bytes.or(self.facts.own_limit_bytes);
        self.history.sample(sample);
        self.table_of(sample);
    }

    /// Uses measurements as windows if nothing else arrives.
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

    /// The stacks of a site, and the entry for this stack. For a site without a name, no single stack is
    /// representative, so it is the empty stack.
    fn stacks_of(&mut self, site: u32, stack: StackId) -> (&mut Vec<(StackId, u8)>, StackId) {
        let site = &mut self.sites[site as usize];
        let stack = if site.frame.is_some() { stack } else { StackId::NONE };
        (&mut site.stacks, stack)
    }

    fn open_site(&mut self, stack: StackId, holds: Holds) -> u32 {
        let frame = self.stacks.site(stack);
        let known = |frame: &Option<Arc<Frame>>| self.by_frame.get(&(frame.clone(), holds)).copied();
        // Beyond the limit, a site has no name, because a wrong name would be worse.
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
