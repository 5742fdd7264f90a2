//! The steps of a stretch of a job: their heights, their requests by site, and their driver calls.
//!
//! The input is each event with the levels after it. Warm-up is left out. Guarantees: O(1) per event; bounded memory
//! (the last [`STEPS_MAX`] steps' heights, [`SITES_MAX`] sites). Only marked steps are seen.

use std::collections::{HashMap, VecDeque};

use memctl_model::allocator::SMALL_BYTES_MAX;
use memctl_model::{Action, Event, Levels, PoolId, StackId};

use crate::rules::PlacementRules;

/// Steps whose heights are kept.
pub const STEPS_MAX: usize = 4096;
/// Maximum number of sites whose requests are followed; all further sites count as one.
pub const SITES_MAX: usize = 65_536;
/// Steps left out at a job's beginning: lazy optimizer state, autotuning, the first buckets.
pub const WARM_UP_STEPS: u64 = 10;
/// Number of steps that "the last steps" means.
pub const RECENT_STEPS: usize = 16;
/// Maximum number of places that release memory and are distinguished.
const RETURNING_MAX: usize = 1024;
/// Maximum number of different sums of one site that are kept.
const SIZES_MAX: usize = 8;
/// Minimum number of steps in which a site was seen before it can be called varying.
const SEEN_MIN: u64 = 4;

/// One request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Bytes after rounding.
    pub rounded_bytes: u64,
    /// The requesting stack.
    pub stack: StackId,
    /// Its stream.
    pub stream: u64,
    /// Its pool.
    pub pool: PoolId,
}

/// The large requests of one site, step by step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteRequests {
    /// Steps in which the site was seen.
    pub steps: u64,
    /// Steps in which the site requested less in total than in the step before.
    pub falls: u64,
    /// The different sums per step, at most `SIZES_MAX`.
    pub sums: Vec<u64>,
    /// Bytes requested in total.
    pub total_bytes: u64,
    /// Smallest single request.
    pub smallest_bytes: u64,
    /// Largest single request.
    pub largest_bytes: u64,
    last_sum: u64,
}

impl SiteRequests {
    /// Whether the site's sizes go up and down from step to step. Sizes that only grow (a curriculum) leave each
    /// outgrown size behind once. Sizes that return keep the cache of every size in use. Two alternating sizes do not
    /// count as variation.
    #[must_use]
    pub fn varies(&self) -> bool {
        self.steps >= SEEN_MIN && self.sums.len() >= 3 && self.falls >= 2 && self.falls * 8 >= self.steps
    }
}

/// The driver calls in one stretch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverCalls {
    /// Number of segments and pages taken.
    pub takes: u64,
    /// Bytes taken.
    pub taken_bytes: u64,
    /// Number of segments and pages released.
    pub returns: u64,
    /// Bytes released.
    pub returned_bytes: u64,
}

/// The moment with the highest level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Highest {
    /// Allocated bytes.
    pub bytes: u64,
    /// Number of the device's event after which the level was reached.
    pub at: Option<u64>,
    /// Step under way at that moment.
    pub step: Option<u64>,
}

/// The memory that one place released to the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Returning {
    /// Number of releases; segments that are released one directly after the other count once.
    pub times: u64,
    /// Bytes.
    pub bytes: u64,
}

/// The steps of a stretch of a job; see the module's documentation.
#[derive(Clone, Debug)]
pub struct Steady {
    rules: PlacementRules,
    warm: bool,
    /// Steps seen, warm-up included.
    pub steps_seen: u64,
    /// Steps counted.
    pub steps: u64,
    /// The highest allocated bytes of each of the last steps.
    heights: VecDeque<u64>,
    height: u64,
    /// The highest moment of the steady part; see [`Steady::highest`].
    steady_highest: Highest,
    /// The highest moment of everything that was seen.
    seen_highest: Highest,
    sites: HashMap<StackId, SiteRequests>,
    current: HashMap<StackId, (u64, u64, u64)>,
    recent: VecDeque<Request>,
    largest: Request,
    /// Driver calls in the steady part.
    pub calls: DriverCalls,
    step_calls: DriverCalls,
    /// Memory released in the steady part, by stack.
    returning: HashMap<StackId, Returning>,
    /// The stack that is releasing segments now, one directly after the other.
    burst: Option<StackId>,
    /// Steps that took memory from the driver.
    pub steps_taking: u64,
    /// Steps that released memory to the driver.
    pub steps_returning: u64,
    /// Allocations of the steady part.
    pub allocations: u64,
    /// Reserved bytes at the begin of the steady part and at the end of its last step.
    pub reserved: Option<(u64, u64)>,
    within: Option<u64>,
}

impl Steady {
    /// A stretch of which nothing is seen yet. `warm` means that the job's beginning is before this stretch.
    #[must_use]
    pub fn new(rules: PlacementRules, warm: bool) -> Self {
        Self {
            rules,
            warm,
            steps_seen: 0,
            steps: 0,
            heights: VecDeque::new(),
            height: 0,
            steady_highest: Highest::default(),
            seen_highest: Highest::default(),
            sites: HashMap::new(),
            current: HashMap::new(),
            recent: VecDeque::new(),
            largest: Request::default(),
            calls: DriverCalls::default(),
            step_calls: DriverCalls::default(),
            returning: HashMap::new(),
            burst: None,
            steps_taking: 0,
            steps_returning: 0,
            allocations: 0,
            reserved: None,
            within: None,
        }
    }

    /// Begins a step, or joins a step that is already under way at the first event.
    pub fn step_begins(&mut self, step: u64, levels: Levels) {
        if self.within != Some(step) {
            self.step_ends(levels);
            self.within = Some(step);
            self.height = levels.allocated_bytes;
        }
    }

    /// Ends the step that is under way, if there is one.
    pub fn step_ends(&mut self, levels: Levels) {
        if self.within.take().is_none() {
            return;
        }
        // A step belongs to the steady part if it began in that part.
        let steady = self.is_steady();
        self.steps_seen += 1;
        let calls = std::mem::take(&mut self.step_calls);
        if !steady {
            self.current.clear();
            self.largest = Request::default();
            if self.steps_seen == WARM_UP_STEPS {
                self.warm = true;
                self.reserved = Some((levels.reserved_bytes, levels.reserved_bytes));
            }
            return;
        }
        self.steps += 1;
        push_bounded(&mut self.heights, self.height, STEPS_MAX);
        push_bounded(&mut self.recent, std::mem::take(&mut self.largest), RECENT_STEPS);
        self.steps_taking += u64::from(calls.takes > 0);
        self.steps_returning += u64::from(calls.returns > 0);
        let first = self.reserved.map_or(levels.reserved_bytes, |(first, _)| first);
        self.reserved = Some((first, levels.reserved_bytes));
        for (stack, (sum, smallest, largest)) in self.current.drain() {
            let known = self.sites.len() < SITES_MAX || self.sites.contains_key(&stack);
            let stack = if known { stack } else { StackId::NONE };
            let site = self
                .sites
                .entry(stack)
                .or_insert_with(|| SiteRequests { smallest_bytes: u64::MAX, ..SiteRequests::default() });
            site.falls += u64::from(site.steps > 0 && sum < site.last_sum);
            site.steps += 1;
            site.last_sum = sum;
            site.total_bytes = site.total_bytes.saturating_add(sum);
            site.smallest_bytes = site.smallest_bytes.min(smallest);
            site.largest_bytes = site.largest_bytes.max(largest);
            if site.sums.len() < SIZES_MAX && !site.sums.contains(&sum) {
                site.sums.push(sum);
            }
        }
    }

    /// Applies one event. `levels` are the levels after it; `number` counts the device's events including this one.
    pub fn event(&mut self, number: u64, event: &Event, levels: Levels) {
        let now = Highest { bytes: levels.allocated_bytes, at: Some(number), step: self.within };
        if self.is_steady() && now.bytes > self.steady_highest.bytes {
            self.steady_highest = now;
        }
        if now.bytes > self.seen_highest.bytes {
            self.seen_highest = now;
        }
        self.height = self.height.max(levels.allocated_bytes);
        match event.action {
            Action::SegmentFree | Action::SegmentUnmap => self.gave_back(event),
            // Blocks that waited for another stream complete while the cache is emptied, so they do not interrupt a
            // series of releases.
            Action::FreeCompleted => {}
            _ => self.burst = None,
        }
        match event.action {
            Action::Alloc if self.within.is_some() => self.alloc(event),
            // Driver calls between two steps count as well, because they also happen once a step.
            Action::SegmentAlloc | Action::SegmentMap => self.call(|calls| {
                calls.takes += 1;
                calls.taken_bytes = calls.taken_bytes.saturating_add(event.size);
            }),
            Action::SegmentFree | Action::SegmentUnmap => self.call(|calls| {
                calls.returns += 1;
                calls.returned_bytes = calls.returned_bytes.saturating_add(event.size);
            }),
            _ => {}
        }
    }

    fn gave_back(&mut self, event: &Event) {
        let goes_on = self.burst == Some(event.stack);
        self.burst = Some(event.stack);
        if !self.is_steady() {
            return;
        }
        let known = self.returning.len() < RETURNING_MAX || self.returning.contains_key(&event.stack);
        let returning = self.returning.entry(if known { event.stack } else { StackId::NONE }).or_default();
        returning.times += u64::from(!goes_on);
        returning.bytes = returning.bytes.saturating_add(event.size);
    }

    fn call(&mut self, add: impl Fn(&mut DriverCalls)) {
        add(&mut self.step_calls);
        if self.is_steady() {
            add(&mut self.calls);
        }
    }

    fn alloc(&mut self, event: &Event) {
        self.allocations += u64::from(self.is_steady());
        let rounded_bytes = self.rules.round_size(event.size);
        if rounded_bytes > self.largest.rounded_bytes {
            let &Event { stack, stream, pool, .. } = event;
            self.largest = Request { rounded_bytes, stack, stream, pool };
        }
        if rounded_bytes > SMALL_BYTES_MAX {
            let known = self.current.len() < SITES_MAX || self.current.contains_key(&event.stack);
            let stack = if known { event.stack } else { StackId::NONE };
            let (sum, smallest, largest) = self.current.entry(stack).or_insert((0, u64::MAX, 0));
            *sum = sum.saturating_add(rounded_bytes);
            (*smallest, *largest) = ((*smallest).min(rounded_bytes), (*largest).max(rounded_bytes));
        }
    }

    fn is_steady(&self) -> bool {
        self.warm || self.steps_seen >= WARM_UP_STEPS
    }

    /// The highest moment of the steady part. Without a steady part, it is the highest moment of everything that was
    /// seen.
    #[must_use]
    pub fn highest(&self) -> Highest {
        if self.steady_highest.at.is_some() { self.steady_highest } else { self.seen_highest }
    }

    /// The stacks that released memory to the driver in the steady part, most bytes first; ties by stack.
    #[must_use]
    pub fn returning(&self) -> Vec<(StackId, Returning)> {
        let mut all: Vec<_> = self.returning.iter().map(|(&stack, &returning)| (stack, returning)).collect();
        all.sort_by_key(|&(stack, returning)| (std::cmp::Reverse(returning.bytes), stack));
        all
    }

    /// The median of the steps' heights: the memory that a typical step needs.
    #[must_use]
    pub fn typical_height_bytes(&self) -> Option<u64> {
        let mut heights: Vec<u64> = self.heights.iter().copied().collect();
        let middle = heights.len().checked_sub(1)? / 2;
        Some(*heights.select_nth_unstable(middle).1)
    }

    /// The largest request of the last steps.
    #[must_use]
    pub fn largest_recent(&self) -> Option<Request> {
        self.recent
            .iter()
            .copied()
            .chain([self.largest])
            .filter(|request| request.rounded_bytes > 0)
            .max_by_key(|request| request.rounded_bytes)
    }

    /// The share of the large requests' bytes that comes from sites with varying sizes; `None` without such requests.
    #[must_use]
    pub fn varying_share(&self) -> Option<f64> {
        let total = |sites: &mut dyn Iterator<Item = &SiteRequests>| {
            sites.fold(0_u64, |sum, site| sum.saturating_add(site.total_bytes))
        };
        let all = total(&mut self.sites.values());
        (all > 0).then(|| total(&mut self.sites.values().filter(|site| site.varies())) as f64 / all as f64)
    }

    /// The sites whose sizes vary, most requested bytes first. Ties are ordered by stack, so that the result is
    /// deterministic.
    #[must_use]
    pub fn varying_sites(&self) -> Vec<(StackId, &SiteRequests)> {
        let mut sites: Vec<_> =
            self.sites.iter().filter(|(_, site)| site.varies()).map(|(&stack, site)| (stack, site)).collect();
        sites.sort_by_key(|&(stack, site)| (std::cmp::Reverse(site.total_bytes), stack));
        sites
    }
}

fn push_bounded<T>(queue: &mut VecDeque<T>, value: T, most: usize) {
    if queue.len() == most {
        queue.pop_front();
    }
    queue.push_back(value);
}
