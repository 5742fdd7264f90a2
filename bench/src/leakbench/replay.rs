//! Passes a stream through the block map, as the agent's batch stage does. The result is the site tables at the
//! stream's boundaries.
//!
//! Guarantees: with marks, the boundaries, the peaks, and the epoch, step and phase of each allocation are those of a
//! live agent. (A test compares them with the batch stage.) Without marks, the boundaries of [`super::cuts`] replace
//! the marks. Added blocks have separate addresses, by the caching allocator's rules, so that the map finds no
//! contradiction. Corrections of the map are counted in [`Replayed::anomalies`].

use memctl_analysis::{Anomalies, Birth, BlockMap};
use memctl_model::{Action, Boundary, DeviceIndex, Event, MarkKind, Peaks, Phases, SiteTable, StackId};

use super::base::{Base, Passing};
use super::cuts::{Cuts, Windows};
use super::events::pass;
use super::overlay::Overlay;

/// A sample of Scalene, after it was settled. It is an allocation at which the footprint reached a new maximum.
#[derive(Clone, Copy, Debug)]
pub struct Settled {
    /// The number of tables before it.
    pub tables_before: usize,
    /// The stack that allocated it.
    pub stack: StackId,
    /// Whether the allocation was freed before the next new maximum.
    pub freed: bool,
}

/// The site tables of a rank's stream.
#[derive(Clone, Debug, Default)]
pub struct Replayed {
    /// The site tables, in order.
    pub tables: Vec<SiteTable>,
    /// The position of each table: the moment after which it was taken.
    pub at: Vec<usize>,
    /// The samples of Scalene, in order.
    pub settled: Vec<Settled>,
    /// The corrections of the block map.
    pub anomalies: Anomalies,
}

/// The change of the footprint between two samples of Scalene. Scalene's default is ten times as much, which is meant
/// for the memory of a whole process. The device memory of small models seldom changes that much.
const SCALENE_BYTES: u64 = 1_048_573;

/// Scalene's way of sampling. Each time the footprint exceeds its previous maximum by a threshold, the previous sample
/// is settled, and the current allocation becomes the next sample.
#[derive(Debug, Default)]
struct Sampler {
    next_at_bytes: u64,
    followed: Option<(u64, StackId, bool)>,
}

impl Sampler {
    fn event(&mut self, event: &Event, footprint: u64, tables: usize, out: &mut Vec<Settled>) {
        match event.action {
            Action::Alloc if footprint >= self.next_at_bytes => {
                if let Some((_, stack, freed)) = self.followed.replace((event.addr, event.stack, false)) {
                    out.push(Settled { tables_before: tables, stack, freed });
                }
                self.next_at_bytes = footprint + SCALENE_BYTES;
            }
            Action::FreeRequested => {
                if let Some((addr, _, freed)) = &mut self.followed {
                    *freed |= *addr == event.addr;
                }
            }
            _ => {}
        }
    }
}

struct Rank<'a> {
    map: BlockMap,
    birth: Birth,
    phases: Phases,
    events: u64,
    epoch_peaks: Peaks,
    sampler: Sampler,
    cuts: &'a Cuts,
    /// The number of found boundaries that were passed so far.
    found: usize,
    windows: Windows,
    /// The current position.
    at: usize,
    out: Replayed,
}

/// Passes a base with its added blocks through the block map.
#[must_use]
pub fn replay(base: &Base, overlay: Overlay, cuts: &Cuts) -> Replayed {
    let mut rank = Rank {
        map: BlockMap::new(&base.settings),
        birth: Birth::default(),
        phases: Phases::default(),
        events: 0,
        epoch_peaks: Peaks::default(),
        sampler: Sampler::default(),
        cuts,
        found: 0,
        windows: Windows::default(),
        at: 0,
        out: Replayed::default(),
    };
    rank.map.restore(&base.start);
    pass(base, overlay, &mut |at, passing| match passing {
        Passing::Event(event) => {
            rank.found(rank.events);
            rank.at = at;
            rank.event(event);
        }
        Passing::Mark(mark) if matches!(cuts, Cuts::Marks) => {
            rank.at = at;
            rank.mark(&mark.kind, mark.time_ns);
        }
        Passing::Mark(_) => {}
    });
    rank.found(u64::MAX);
    rank.out.anomalies = rank.map.anomalies();
    rank.out
}

impl Rank<'_> {
    #[inline]
    fn event(&mut self, event: &Event) {
        if matches!(self.cuts, Cuts::Live) {
            let mut windows = std::mem::take(&mut self.windows);
            windows.until(event.time_ns, &mut |number, time_ns| self.mark(&MarkKind::WindowEnd(number), time_ns));
            self.windows = windows;
        }
        self.map.apply(event, self.birth);
        self.events += 1;
        let footprint = self.map.levels().allocated_bytes;
        self.sampler.event(event, footprint, self.out.tables.len(), &mut self.out.settled);
    }

    /// Passes the found boundaries before an event, which is given by its number.
    fn found(&mut self, event: u64) {
        let Cuts::Found(found) = self.cuts else { return };
        while let Some((_, mark)) = found.get(self.found).filter(|(before, _)| *before <= event) {
            self.mark(&mark.kind, mark.time_ns);
            self.found += 1;
        }
    }

    fn mark(&mut self, kind: &MarkKind, time_ns: u64) {
        match *kind {
            MarkKind::EpochBegin(epoch) => self.birth.epoch = epoch,
            MarkKind::StepBegin(step) => self.birth.step = step,
            MarkKind::StepEnd(step) => {
                self.birth.step = step;
                self.table(Boundary::StepEnd, time_ns);
            }
            MarkKind::EpochEnd(epoch) => {
                self.birth.epoch = epoch;
                self.table(Boundary::EpochEnd, time_ns);
            }
            MarkKind::PhaseBegin(phase) => self.birth.phase = self.phases.begin(phase),
            MarkKind::PhaseEnd(phase) => self.birth.phase = self.phases.end(phase),
            MarkKind::WindowEnd(_) => self.table(Boundary::WindowEnd, time_ns),
            MarkKind::RegionBegin(_) | MarkKind::RegionEnd(_) | MarkKind::Note(_) => {}
        }
    }

    fn table(&mut self, boundary: Boundary, time_ns: u64) {
        let within = self.map.peaks_within();
        self.map.reset_peaks_within();
        self.epoch_peaks.allocated_bytes = self.epoch_peaks.allocated_bytes.max(within.allocated_bytes);
        self.epoch_peaks.reserved_bytes = self.epoch_peaks.reserved_bytes.max(within.reserved_bytes);
        let peaks_within = if boundary == Boundary::EpochEnd { std::mem::take(&mut self.epoch_peaks) } else { within };
        self.out.at.push(self.at);
        self.out.tables.push(SiteTable {
            device: DeviceIndex(0),
            boundary,
            epoch: self.birth.epoch,
            step: self.birth.step,
            time_ns,
            at_event: self.events,
            exact: true,
            counters: self.map.counters_since(),
            peaks: self.map.peaks(),
            peaks_within,
            found: matches!(self.cuts, Cuts::Found(_)),
            rows: self.map.site_rows(),
            private_pools: self.map.private_pools(),
        });
    }
}
