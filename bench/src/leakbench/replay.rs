//! A stream through the block map, as the agent's batch stage passes it: the site tables at the ends of steps and epochs.
//!
//! Guarantees: epoch, step and phase of birth, boundaries and peaks are those of a live agent (a test compares with the batch
//! stage itself); injected blocks get addresses of their own by the caching allocator's rules, so that the map finds no
//! contradiction. Refuses nothing; what the map had to put right is counted in [`Replayed::anomalies`].

use memctl_analysis::{Anomalies, Birth, BlockMap};
use memctl_model::{Action, Boundary, DeviceIndex, Event, MarkKind, Peaks, Phases, SiteTable, StackId};

use super::arena::Arena;
use super::base::{Base, Passing};

/// A block that the benchmark adds to a stream, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Added(pub u32);

/// What happens to an added block.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// It is allocated.
    Keep {
        /// Requested bytes.
        size: u64,
        /// By whom.
        stack: StackId,
    },
    /// It is given back.
    Drop,
}

/// What the benchmark adds to one rank's stream.
#[derive(Clone, Debug, Default)]
pub struct Overlay {
    changes: Vec<(usize, Added, Change)>,
    blocks: u32,
}

impl Overlay {
    /// Allocates a block behind the moment at a position.
    pub fn keep(&mut self, at: usize, size: u64, stack: StackId) -> Added {
        let block = Added(self.blocks);
        self.blocks += 1;
        self.changes.push((at, block, Change::Keep { size, stack }));
        block
    }

    /// Gives a block back behind the moment at a position.
    pub fn drop(&mut self, at: usize, block: Added) {
        self.changes.push((at, block, Change::Drop));
    }

    /// Whether nothing is added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The changes in the order of the stream, those at one place in the order in which they were made.
    #[must_use]
    pub fn sorted(mut self) -> Vec<(usize, Added, Change)> {
        self.changes.sort_by_key(|&(at, ..)| at);
        self.changes
    }
}

/// One of Scalene's samples that was settled: an allocation that set a new high of the footprint.
#[derive(Clone, Copy, Debug)]
pub struct Settled {
    /// Tables that came before it.
    pub tables_before: usize,
    /// Who allocated it.
    pub stack: StackId,
    /// Whether it was given back before the next new high.
    pub freed: bool,
}

/// What a rank's stream comes to.
#[derive(Clone, Debug, Default)]
pub struct Replayed {
    /// Site tables in order.
    pub tables: Vec<SiteTable>,
    /// Scalene's samples in order.
    pub settled: Vec<Settled>,
    /// What the block map had to put right.
    pub anomalies: Anomalies,
}

/// Footprint between two of Scalene's samples. Its own default is ten times as much, which suits a process that holds
/// everything; live device memory of small models seldom moves that far.
const SCALENE_BYTES: u64 = 1_048_573;

/// Scalene's sampling: each time the footprint is a threshold above its highest so far, the sample before is settled and the
/// allocation at hand is followed.
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

struct Rank {
    map: BlockMap,
    birth: Birth,
    phases: Phases,
    events: u64,
    epoch_peaks: Peaks,
    sampler: Sampler,
    out: Replayed,
}

/// Passes a base with what is added to it through the block map.
#[must_use]
pub fn replay(base: &Base, overlay: Overlay) -> Replayed {
    let mut rank = Rank {
        map: BlockMap::new(&base.settings),
        birth: Birth::default(),
        phases: Phases::default(),
        events: 0,
        epoch_peaks: Peaks::default(),
        sampler: Sampler::default(),
        out: Replayed::default(),
    };
    rank.map.restore(&base.start);
    let mut arena = Arena::default();
    let changes = overlay.sorted();
    let mut waiting = changes.iter().peekable();
    let mut time_ns = 0;
    for (at, moment) in base.moments.iter().enumerate() {
        match moment {
            Passing::Event(event) => {
                time_ns = event.time_ns;
                rank.event(event);
            }
            Passing::Mark(mark) => {
                time_ns = time_ns.max(mark.time_ns);
                rank.mark(&mark.kind, mark.time_ns);
            }
        }
        while let Some(&(_, block, change)) = waiting.next_if(|&&(place, ..)| place <= at) {
            arena.change(block, change, time_ns, &mut |event| rank.event(&event));
        }
    }
    rank.out.anomalies = rank.map.anomalies();
    rank.out
}

impl Rank {
    #[inline]
    fn event(&mut self, event: &Event) {
        self.map.apply(event, self.birth);
        self.events += 1;
        let footprint = self.map.levels().allocated_bytes;
        self.sampler.event(event, footprint, self.out.tables.len(), &mut self.out.settled);
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
        let peaks_within = if boundary == Boundary::StepEnd { within } else { std::mem::take(&mut self.epoch_peaks) };
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
            found: false,
            rows: self.map.site_rows(),
            private_pools: self.map.private_pools(),
        });
    }
}
