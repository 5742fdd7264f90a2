//! The history of a device as a whole: its boundaries, its levels at them, and outside measurements.
//!
//! Guarantees: memory is bounded. Figures that were not measured are absent. The kept moments of a long history are
//! spread evenly. An epoch that was begun again ends again; its later end replaces the earlier one. The work in one
//! window is random, so windows are not placed by number. Their place is the work done before them, in events. So an
//! idle hour looks neither like growth that has stopped nor like growth that slows down.
//!
//! (Over 400 lines: boundaries, loading and measurements share one clock and are saved together.)

use memctl_model::{Boundary, Counters, Sample, SiteTable};

use super::marks::{Marks, Moment};

/// Maximum number of kept boundaries of a kind.
const LEVELS_MAX: usize = 256;
/// Maximum number of kept samples.
const SAMPLES_MAX: usize = 512;
/// Events that advance a window's place by one; 32 bits of places last for months.
const EVENTS_OF_PLACE: u64 = 64;
/// Boundaries in which a job warms up: falls until then show nothing about later noise.
const WARM_UP: u32 = 3;

/// The kind of a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Per {
    Step,
    Epoch,
    Window,
}

impl Per {
    pub const ALL: [Self; 3] = [Self::Step, Self::Epoch, Self::Window];

    /// The kind of boundary at which a table was taken; the end of a recording has none.
    pub fn of(boundary: Boundary) -> Option<Self> {
        match boundary {
            Boundary::StepEnd => Some(Self::Step),
            Boundary::EpochEnd => Some(Self::Epoch),
            Boundary::WindowEnd => Some(Self::Window),
            Boundary::End => None,
        }
    }

    pub const fn boundary(self) -> Boundary {
        match self {
            Self::Step => Boundary::StepEnd,
            Self::Epoch => Boundary::EpochEnd,
            Self::Window => Boundary::WindowEnd,
        }
    }
}

/// The levels at a boundary.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Level {
    pub at: u32,
    pub epoch: u32,
    pub step: u64,
    pub time_ns: u64,
    /// Number of events before it.
    pub events: u64,
    pub counters: Counters,
    /// Highest values since the previous level.
    pub peak_allocated_bytes: u64,
    pub peak_reserved_bytes: u64,
    /// Lowest and highest level of the boundaries since the previous level.
    pub lowest_allocated_bytes: u64,
    pub highest_allocated_bytes: u64,
}

impl Moment for Level {
    fn absorb(&mut self, left_out: &Self) {
        self.lowest_allocated_bytes = self.lowest_allocated_bytes.min(left_out.lowest_allocated_bytes);
        self.highest_allocated_bytes = self.highest_allocated_bytes.max(left_out.highest_allocated_bytes);
        self.peak_allocated_bytes = self.peak_allocated_bytes.max(left_out.peak_allocated_bytes);
        self.peak_reserved_bytes = self.peak_reserved_bytes.max(left_out.peak_reserved_bytes);
    }
}

/// Measurements of the host and the driver, with the allocator's bytes at that time.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Measured {
    pub time_ns: u64,
    /// Number of steps that had ended.
    pub steps: u32,
    pub device_used_bytes: Option<u64>,
    pub device_total_bytes: Option<u64>,
    pub process_used_bytes: Option<u64>,
    pub foreign_used_bytes: Option<u64>,
    pub reserved_bytes: Option<u64>,
    pub host_bytes: Option<u64>,
    pub children_bytes: Option<u64>,
}

impl Moment for Measured {}

/// The boundaries of one kind.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Boundaries {
    /// Number of boundaries seen.
    pub seen: u32,
    /// The place of the last boundary.
    pub at: u32,
    /// The place up to which the job warmed up.
    pub warm: u32,
    /// Whether at least one of them was found and not given by a mark.
    pub found: bool,
    pub levels: Marks<Level>,
}

impl Default for Boundaries {
    fn default() -> Self {
        Self { seen: 0, at: 0, warm: WARM_UP, found: false, levels: Marks::new(LEVELS_MAX) }
    }
}

impl Boundaries {
    fn push(&mut self, at: u32, table: &SiteTable) -> Level {
        let level = Level {
            at,
            epoch: table.epoch,
            step: table.step,
            time_ns: table.time_ns,
            events: table.at_event,
            counters: table.counters,
            peak_allocated_bytes: table.peaks_within.allocated_bytes,
            peak_reserved_bytes: table.peaks_within.reserved_bytes,
            lowest_allocated_bytes: table.counters.allocated_bytes,
            highest_allocated_bytes: table.counters.allocated_bytes,
        };
        self.seen = self.seen.saturating_add(1);
        self.at = at;
        self.found |= table.found;
        if self.seen <= WARM_UP {
            self.warm = at;
        }
        self.levels.push(level);
        level
    }

    /// The average distance of two boundaries.
    pub fn unit(&self) -> f64 {
        let first = self.levels.first().map_or(0, |level| level.at);
        (f64::from(self.at.saturating_sub(first)) / f64::from(self.seen.saturating_sub(1).max(1))).max(1.0)
    }
}

/// The history of a device; see the module's documentation.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct History {
    of: [Boundaries; 3],
    /// The first boundary.
    pub first: Option<Level>,
    /// The latest boundary of any kind.
    last: Option<Level>,
    /// The latest end of a step; `of_epoch` is the number of earlier step ends of its epoch.
    last_step: Option<Level>,
    of_epoch: u32,
    /// Events before the last window's end.
    window_event: u64,
    /// The place of the last window in which the job was still loading.
    loaded: u32,
    /// Number of windows in which it worked.
    worked: u32,
    /// Whether loading took longer than it usually does.
    loads_on: bool,
    /// Measurements from outside the process: its host memory, and the driver's figures of its device and processes.
    pub samples: Marks<Measured>,
    /// The process's own measurements of its device. They come more often, and are kept apart so that the others stay
    /// evenly spread.
    pub own_samples: Marks<Measured>,
    /// How often the allocator had emptied its cache to find room: at the first and at the last measurement.
    emptied: Option<(u64, u64)>,
    pub exact: bool,
    /// Whether any table had a row. If none had, only counters are known.
    pub has_rows: bool,
    /// Whether nothing was allocated at the moment of any table so far. Then no row was missing.
    pub empty: bool,
}

impl Default for History {
    fn default() -> Self {
        Self {
            of: Default::default(),
            first: None,
            last: None,
            last_step: None,
            of_epoch: 0,
            window_event: 0,
            loaded: 0,
            worked: 0,
            loads_on: false,
            samples: Marks::new(SAMPLES_MAX),
            own_samples: Marks::new(SAMPLES_MAX),
            emptied: None,
            exact: false,
            has_rows: false,
            empty: false,
        }
    }
}

impl History {
    /// Adds a boundary; returns its kind, and its place among those of its kind.
    pub fn boundary(&mut self, table: &SiteTable) -> Option<(Per, u32)> {
        // If the recording ends this early, its memory was not loaded for later work.
        self.loads_on |= table.boundary == Boundary::End && self.worked < WORKED_MIN;
        let per = Per::of(table.boundary)?;
        let of = &mut self.of[per as usize];
        let next = of.at.saturating_add(1);
        let at = match per {
            Per::Step | Per::Epoch => next,
            // A window without any event takes no time.
            Per::Window if table.at_event > 0 && table.at_event == self.window_event => of.at,
            Per::Window => next.max(u32::try_from(table.at_event / EVENTS_OF_PLACE).unwrap_or(u32::MAX)),
        };
        let before = of.levels.last().copied();
        let level = of.push(at, table);
        self.empty = table.counters.allocated_bytes == 0 && (self.empty || self.first.is_none());
        self.exact = table.exact;
        self.has_rows |= !table.rows.is_empty();
        self.first.get_or_insert(level);
        if self.last.is_none_or(|last| last.time_ns <= level.time_ns) {
            self.last = Some(level);
        }
        match per {
            Per::Step => {
                let before = self.last_step.replace(level);
                let same = before.is_some_and(|before| before.epoch == level.epoch);
                self.of_epoch = if same { self.of_epoch.saturating_add(1) } else { 0 };
            }
            Per::Epoch => {}
            Per::Window => self.window(before, level, table.at_event),
        }
        Some((per, at))
    }

    /// Detects loading: weights are made one after the other with few other events. That is not growth of the later
    /// work.
    fn window(&mut self, before: Option<Level>, now: Level, at_event: u64) {
        let blocks = |level: &Level| level.counters.allocated_blocks;
        let gained = blocks(&now).saturating_sub(before.as_ref().map_or(0, blocks));
        let events = at_event.saturating_sub(std::mem::replace(&mut self.window_event, at_event));
        let loads = before.is_none() || (events > 0 && gained.saturating_mul(LOADS_OF) >= events);
        let since_ns = self.first.map_or(0, |first| now.time_ns.saturating_sub(first.time_ns));
        let early = since_ns < LOADING_NS_MAX;
        // Activity that lasts this long without making weights is not loading.
        self.loads_on |= self.worked < WORKED_MIN && since_ns >= LOADING_NS_USUAL;
        if early && self.worked < WORKED_MIN && (loads || self.loaded == 0) {
            self.loaded = now.at;
            self.worked = 0;
        } else {
            self.worked = self.worked.saturating_add(1);
        }
    }

    pub fn sample(&mut self, sample: &Sample) {
        let measured = Measured {
            time_ns: sample.time_ns,
            steps: self.of(Per::Step).seen,
            device_used_bytes: sample.device_used_bytes,
            device_total_bytes: sample.device_total_bytes,
            process_used_bytes: sample.process_used_bytes,
            foreign_used_bytes: sample.foreign_used_bytes,
            reserved_bytes: sample.reserved_bytes.or_else(|| self.reserved_now()),
            host_bytes: sample.host_rss_bytes,
            children_bytes: sample.children_rss_bytes,
        };
        if let Some(now) = sample.alloc_retries {
            self.emptied = Some((self.emptied.map_or(now, |(first, _)| first), now));
        }
        // The allocator's own counters arrive every step and show nothing new about the device.
        let is_from_outside = sample.process_used_bytes.is_some() || sample.host_rss_bytes.is_some();
        if is_from_outside || sample.foreign_used_bytes.is_some() || sample.children_rss_bytes.is_some() {
            self.samples.push(measured);
        } else if sample.device_used_bytes.is_some() {
            self.own_samples.push(measured);
        }
    }

    /// Whether its parts are consistent.
    pub fn is_sound(&self) -> bool {
        self.of.iter().all(|of| of.levels.is_sound()) && self.samples.is_sound() && self.own_samples.is_sound()
    }

    /// Bytes held in memory.
    pub fn bytes(&self) -> usize {
        let levels: usize = self.of.iter().map(|of| of.levels.all().len()).sum();
        let samples = size_of_val(self.samples.all()) + size_of_val(self.own_samples.all());
        size_of::<Self>() + levels * size_of::<Level>() + samples
    }

    /// Whether the latest step is the first of its epoch. Memory made after a step's end is seen with the next step.
    pub fn opens_epoch(&self) -> bool {
        self.of_epoch < 2
    }

    fn reserved_now(&self) -> Option<u64> {
        self.last_level().map(|level| level.counters.reserved_bytes)
    }

    /// How often the allocator emptied its cache to find room, since the first measurement.
    pub fn retries(&self) -> u64 {
        self.emptied.map_or(0, |(first, last)| last.saturating_sub(first))
    }

    /// Bytes of the device used outside this allocator, according to recent samples.
    pub fn outside_bytes(&self) -> Option<u64> {
        let kinds = [self.samples.all(), self.own_samples.all()];
        let mut newest: Vec<&Measured> =
            kinds.into_iter().flat_map(|samples| samples.iter().rev().take(RECENT_SAMPLES)).collect();
        newest.sort_by_key(|sample| std::cmp::Reverse(sample.time_ns));
        let recent = newest.into_iter().take(RECENT_SAMPLES);
        recent.filter_map(|sample| Some(sample.device_used_bytes?.saturating_sub(sample.reserved_bytes?))).max()
    }

    /// The boundaries of a kind.
    pub fn of(&self, per: Per) -> &Boundaries {
        &self.of[per as usize]
    }

    /// The kept levels of a kind, oldest first.
    pub fn levels(&self, per: Per) -> &[Level] {
        self.of(per).levels.all()
    }

    /// Number of step ends seen.
    pub fn steps(&self) -> u32 {
        self.of(Per::Step).seen
    }

    /// The highest reserved bytes at a kept boundary.
    pub fn highest_reserved(&self) -> u64 {
        let levels = Per::ALL.into_iter().flat_map(|per| self.levels(per)).chain(self.last_level());
        levels.map(|level| level.counters.reserved_bytes).max().unwrap_or(0)
    }

    /// The latest boundary of any kind.
    pub fn last_level(&self) -> Option<&Level> {
        self.last.as_ref()
    }

    /// The place of the last window of loading, for a site that holds `weights` or for any other site.
    pub fn loaded(&self, weights: bool) -> u32 {
        if self.loads_on && !weights { 0 } else { self.loaded }
    }

    /// Whether only windows of loading were seen so far. They do not show growth of the later work.
    pub fn only_loads(&self) -> bool {
        self.worked < WORKED_MIN && !self.loads_on
    }

    /// Whether windows are judged. They are not as long as steps go on.
    pub fn windows_speak(&self) -> bool {
        let windows = self.of(Per::Window);
        let (Some(window), true) = (windows.levels.last(), windows.seen >= WINDOWS_MIN) else { return false };
        let Some(step) = self.last_step.filter(|_| self.steps() >= STEPS_FEW) else { return true };
        let steps = self.levels(Per::Step);
        let usual =
            steps.first().map_or(0, |first| step.time_ns.saturating_sub(first.time_ns) / u64::from(self.steps()));
        let silent = window.time_ns.saturating_sub(step.time_ns);
        silent >= SILENT_NS.max(usual.saturating_mul(PAUSES))
            && self.windows_since(step.time_ns) >= WINDOWS_MIN as usize
    }

    fn windows_since(&self, time_ns: u64) -> usize {
        let levels = self.levels(Per::Window);
        levels.len() - levels.partition_point(|level| level.time_ns <= time_ns)
    }

    /// Average seconds from one epoch's end to the next; `None` with fewer than two.
    pub fn seconds_of_epoch(&self) -> Option<f64> {
        let epochs = self.of(Per::Epoch);
        let (first, last) = (epochs.levels.first()?, epochs.levels.last()?);
        let ends = f64::from(epochs.seen.checked_sub(1).filter(|&ends| ends > 0)?);
        Some(last.time_ns.saturating_sub(first.time_ns) as f64 / 1e9 / ends)
    }

    /// Seconds from the first boundary to the last.
    pub fn seconds(&self) -> f64 {
        let (Some(first), Some(last)) = (self.first, self.last) else { return 0.0 };
        last.time_ns.saturating_sub(first.time_ns) as f64 / 1e9
    }
}

/// Number of recent samples.
const RECENT_SAMPLES: usize = 8;
/// A window is one of loading if at least one block stays per this many events; an allocation that is freed again
/// makes three events.
const LOADS_OF: u64 = 6;
/// Windows of work after which memory that stays no longer counts as loading.
const WORKED_MIN: u32 = 10;
/// Maximum duration of loading.
const LOADING_NS_MAX: u64 = 300_000_000_000;
/// Maximum duration of loading for memory that is not known to be weights.
const LOADING_NS_USUAL: u64 = 45_000_000_000;
/// Minimum number of windows before they are judged.
const WINDOWS_MIN: u32 = 8;
/// Minimum number of steps of a job that marks its steps.
const STEPS_FEW: u32 = 5;
/// Steps have ended if none came for this long and for this many usual pauses.
const SILENT_NS: u64 = 120_000_000_000;
const PAUSES: u64 = 20;
