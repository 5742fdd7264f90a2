//! The thread that empties the rings. It is the consumer of every device's ring and owns the [`Batcher`].
//!
//! Guarantees: a mark takes effect after exactly the events that were pushed before it was made. A hole is announced at
//! its position, and a snapshot is requested from the source. When the outbox is full, only this thread waits, while
//! the rings fill.
//!
//! Refuses: to run in the training thread.
//!
//! (Over 400 lines: reading the rings, applying the marks and ending the session share one state.)

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use memctl_model::{DeviceIndex, Dropped, Keyframe, Mark, MarkKind, SessionEnd};
use memctl_proto::item::Packed;

use super::Batcher;
use super::note::Note;
use super::translate::Translator;
use super::windows::Windows;
use crate::clock::{Ticks, now_ns};
use crate::holders::search::Search;
use crate::ledger::Ledger;
use crate::region::Region;
use crate::ring::Consumer;
use crate::uplink::window::{Pushed, Window};

/// How long an idle worker sleeps. A ring of a million events holds 5 s of the busiest training seen, and a wake-up
/// costs 5 µs. The worker of a live job also sleeps this long after every turn that emptied the rings. A reader that
/// polls all the time would take the cache line of the ring's head away from the core that writes it.
const IDLE: Duration = Duration::from_millis(5);
/// Maximum number of events of one device in one turn.
const TURN_EVENTS: u64 = 16_384;

/// A note that takes effect at a position of a device's stream.
enum Stop {
    /// A mark, with the number of records that had been dropped when it was made.
    Mark(Mark, u64),
    /// Gradients were freed.
    Settled,
    /// A state that was read, with the number of records that had been dropped by then.
    Keyframe(Box<Keyframe>, u64),
}

/// A request to end.
#[derive(Clone, Debug)]
pub struct Ending {
    /// After this the worker waits for nothing.
    pub deadline: Instant,
    /// Time of the end, ns since the Unix epoch.
    pub time_ns: u64,
    /// How the process failed, if it did.
    pub failure: Option<String>,
}

/// Requests a snapshot of a device's blocks from its source.
pub(crate) enum Request {
    /// A source in this process.
    Here(Arc<AtomicBool>),
    /// A trainer that writes into a region.
    Region(Arc<Region>, usize),
}

impl Request {
    fn set(&self, wanted: bool) {
        match self {
            // Release: pairs with the Acquire of the source that takes the snapshot.
            Self::Here(flag) => flag.store(wanted, Ordering::Release),
            Self::Region(region, device) => region.want_snapshot(*device, wanted),
        }
    }
}

struct Lane {
    device: DeviceIndex,
    consumer: Consumer,
    /// Notes that wait for their position, in ascending order.
    stops: VecDeque<(u64, Stop)>,
    snapshot_wanted: Request,
    /// Number of drops announced so far.
    announced: u64,
    /// Number of drops that were announced before the record with their count arrived.
    ahead: u64,
}

/// The worker's state.
pub struct Worker {
    batcher: Batcher,
    lanes: Vec<Lane>,
    notes: Receiver<Note>,
    /// Translates for the batcher when the source is a trainer that writes into a region.
    translator: Option<Translator>,
    /// Requests for holders, when the source is a trainer that writes into a region and supports them.
    search: Option<Search>,
    window: Arc<Window>,
    ledger: Arc<Ledger>,
    flushed: Instant,
    holes: Holes,
    windows: Windows,
    /// Number of notes taken so far.
    noted: u64,
    /// Number of samples with the allocator's counters.
    counted: u64,
    /// Whether the outbox takes no more items, because it was given up or the deadline has passed.
    is_given_up: bool,
}

/// Dropped events that were announced, by reason.
#[derive(Default)]
struct Holes {
    /// Whether the outbox made this thread wait since the last hole was announced.
    held_up: bool,
    dropped: Dropped,
}

impl Holes {
    fn announce(&mut self, batcher: &mut Batcher, index: usize, hole: u64, snapshot_wanted: &Request) {
        if hole == 0 {
            return;
        }
        let reason = match std::mem::take(&mut self.held_up) {
            true => &mut self.dropped.spool_full,
            false => &mut self.dropped.ring_full,
        };
        *reason += hole;
        batcher.hole(index, hole);
        snapshot_wanted.set(true);
    }
}

impl Worker {
    /// A worker over the rings of the batcher's devices, in their order.
    #[must_use]
    pub(crate) fn new(
        batcher: Batcher,
        rings: Vec<(Consumer, Request)>,
        notes: Receiver<Note>,
        translator: Option<Translator>,
        search: Option<Search>,
        window: Arc<Window>,
        ledger: Arc<Ledger>,
    ) -> Self {
        let lanes = rings
            .into_iter()
            .zip(&batcher.config().devices)
            .map(|((consumer, snapshot_wanted), &device)| Lane {
                device,
                consumer,
                stops: VecDeque::new(),
                snapshot_wanted,
                announced: 0,
                ahead: 0,
            })
            .collect();
        let now = Instant::now();
        let (holes, windows) = (Holes::default(), Windows::new(now));
        Self {
            batcher,
            lanes,
            notes,
            translator,
            search,
            window,
            ledger,
            flushed: now,
            holes,
            windows,
            noted: 0,
            counted: 0,
            is_given_up: false,
        }
    }

    /// Works until `ending` returns an end. Then sends everything that was pushed, at most until the deadline.
    pub fn run(mut self, ending: &dyn Fn() -> Option<Ending>) -> SessionEnd {
        let deadline = || ending().map(|end| end.deadline);
        loop {
            // This is read before the rings, so that everything pushed before the stop is still taken.
            let end = ending();
            let now = Instant::now();
            let worked = self.turn(now);
            if end.is_none() {
                self.cut_window(now);
            }
            self.send(&deadline);
            if let Some(search) = &mut self.search {
                search.turn(now, |stacks, most| self.batcher.oldest(stacks, most));
            }
            match end {
                Some(end) if !worked || self.is_given_up || Instant::now() >= end.deadline => {
                    return self.finish(&end, &deadline);
                }
                Some(_) if worked => {}
                None if worked && (self.batcher.config().linger.is_none() || self.is_behind()) => {}
                _ => {
                    self.linger(&deadline);
                    if let Some(translator) = &mut self.translator {
                        translator.refine();
                    }
                    std::thread::park_timeout(IDLE);
                }
            }
        }
    }

    /// Whether a ring holds more than what arrives while this thread sleeps.
    fn is_behind(&self) -> bool {
        self.lanes.iter().any(|lane| lane.consumer.available() > TURN_EVENTS / 4)
    }

    /// Takes the notes and events that are available. Returns whether there were any.
    fn turn(&mut self, now: Instant) -> bool {
        // Positions are read first, then notes, then events up to those positions. A mark that is made meanwhile
        // belongs after events that this turn does not take.
        let limits: Vec<u64> = self
            .lanes
            .iter()
            .map(|lane| lane.consumer.consumed() + lane.consumer.available().min(TURN_EVENTS))
            .collect();
        let mut worked = self.take_notes(now);
        for (index, limit) in limits.into_iter().enumerate() {
            worked |= self.take_events(index, limit);
        }
        self.ledger.set_waiting(self.batcher.waiting_events());
        self.ledger.set_taken(self.taken() + self.noted);
        worked
    }

    fn take_notes(&mut self, now: Instant) -> bool {
        let mut worked = false;
        while let Some(note) = self.next_note() {
            self.note(note, now);
            self.noted += 1;
            worked = true;
        }
        worked
    }

    fn next_note(&mut self) -> Option<Note> {
        self.notes.try_recv().ok().or_else(|| self.translator.as_mut()?.next_note())
    }

    fn note(&mut self, note: Note, now: Instant) {
        match note {
            Note::Stack(frames) => {
                self.batcher.stack(&frames);
            }
            Note::Sample(sample) => {
                // In a session without events, the allocator's counters count as activity.
                self.counted += u64::from(sample.allocated_bytes.is_some());
                self.batcher.sample(*sample);
            }
            Note::Keyframe(keyframe, position) => {
                if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.device == keyframe.device) {
                    lane.stops.push_back((position.pushed, Stop::Keyframe(keyframe, position.dropped)));
                }
            }
            Note::Holders(ask, json) => {
                if let Some(search) = &mut self.search {
                    search.answered(ask, &json, |stacks, most| self.batcher.oldest(stacks, most));
                }
            }
            Note::Settled(positions) => {
                for (lane, position) in self.lanes.iter_mut().zip(&positions) {
                    lane.stops.push_back((position.pushed, Stop::Settled));
                }
            }
            // A mark without positions takes effect at the last boundary of every device.
            Note::Mark(mark, positions) if positions.is_empty() => self.pass_ended(mark),
            Note::Mark(mark, positions) => {
                if let Some(search) = &mut self.search {
                    search.passed(&mark.kind);
                }
                if let MarkKind::StepEnd(_) = mark.kind {
                    self.windows.step_ended(now, self.taken() + self.counted);
                }
                for (lane, position) in self.lanes.iter_mut().zip(&positions) {
                    lane.stops.push_back((position.pushed, Stop::Mark(mark.clone(), position.dropped)));
                }
                self.batcher.mark(mark);
                // A mark that has no unread event before it takes effect at once. Counters that follow it must not
                // belong to it.
                for index in 0..self.lanes.len() {
                    self.pass_stops(index, self.lanes[index].consumer.consumed());
                }
            }
        }
    }

    /// Number of events taken from the rings.
    fn taken(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.consumer.consumed()).sum()
    }

    /// Ends a window when it is due, after the events that were taken from every ring. Recordings have no windows. A
    /// trainer that is ending has none either, because the memory that it frees then would hide what it retained.
    fn cut_window(&mut self, now: Instant) {
        let goes_down = self.translator.as_ref().is_some_and(Translator::goes_down);
        if self.batcher.config().linger.is_none() || goes_down || !self.batcher.is_used() {
            return;
        }
        let Some(number) = self.windows.cut(now, self.taken() + self.counted) else { return };
        let is_behind = self.lanes.iter().any(|lane| lane.consumer.available() > 0);
        // If records are left in a ring, they are older than now. The window then ends at the last event that was
        // taken.
        let time_ns = match &self.translator {
            _ if is_behind => self.batcher.last_ns(),
            Some(translator) => translator.now_ns(),
            None => now_ns(),
        };
        self.batcher.window_end(Mark { time_ns, kind: MarkKind::WindowEnd(number) });
    }

    fn take_events(&mut self, index: usize, limit: u64) -> bool {
        let before = self.lanes[index].consumer.consumed();
        loop {
            let at = self.lanes[index].consumer.consumed();
            self.pass_stops(index, at);
            let next_stop = self.lanes[index].stops.front().map_or(u64::MAX, |(position, _)| *position);
            let until = limit.min(next_stop);
            if until <= at {
                return at > before;
            }
            let lane = &mut self.lanes[index];
            let (batcher, holes) = (&mut self.batcher, &mut self.holes);
            let (announced, ahead, wanted) = (&mut lane.announced, &mut lane.ahead, &lane.snapshot_wanted);
            let translator = &mut self.translator;
            lane.consumer.read(until - at, |record| {
                let carried = u64::from(record.dropped_before());
                if carried > 0 {
                    let hole = carried - carried.min(*ahead);
                    *ahead -= carried - hole;
                    *announced += hole;
                    holes.announce(batcher, index, hole, wanted);
                }
                let event = match translator {
                    Some(translator) => translator.event(record, index, batcher),
                    None => record.event(Ticks::as_ns),
                };
                batcher.event(index, &event);
            });
        }
    }

    fn pass_stops(&mut self, index: usize, at: u64) {
        while let Some((_, stop)) = self.lanes[index].stops.pop_front_if(|(position, _)| *position <= at) {
            match stop {
                Stop::Keyframe(keyframe, dropped) => {
                    self.announce_ahead(index, dropped);
                    self.batcher.restore(index, *keyframe);
                    // The state has arrived, so the request is withdrawn.
                    self.lanes[index].snapshot_wanted.set(false);
                }
                Stop::Settled => self.batcher.device_settled(index),
                Stop::Mark(mark, dropped) => {
                    self.announce_ahead(index, dropped);
                    self.batcher.device_mark(index, &mark);
                }
            }
        }
    }

    /// Applies a mark for an end at the last boundary. All available events are taken first, so that the last boundary
    /// is known.
    fn pass_ended(&mut self, mark: Mark) {
        let mut ended_ns = None;
        for index in 0..self.lanes.len() {
            let available = self.lanes[index].consumer.available();
            let limit = self.lanes[index].consumer.consumed() + available;
            self.take_events(index, limit);
            ended_ns = ended_ns.max(self.batcher.device_ended(index, &mark));
        }
        self.batcher.mark(Mark { time_ns: ended_ns.unwrap_or(mark.time_ns), ..mark });
    }

    /// Announces drops before the record with their count arrives, which is the next record that has room in the ring.
    /// Figures after this point must not count as exact.
    fn announce_ahead(&mut self, index: usize, dropped: u64) {
        let lane = &mut self.lanes[index];
        let hole = dropped.saturating_sub(lane.announced);
        lane.announced += hole;
        lane.ahead += hole;
        self.holes.announce(&mut self.batcher, index, hole, &lane.snapshot_wanted);
    }

    /// Pushes ready items to the outbox. Waits while it is full.
    fn send(&mut self, deadline: &dyn Fn() -> Option<Instant>) {
        for item in self.batcher.take() {
            self.ledger.leave_batch(item.events);
            match self.window.push(item, deadline) {
                Pushed::AtOnce => {}
                Pushed::AfterWaiting => self.holes.held_up = true,
                Pushed::Abandoned => self.is_given_up = true,
            }
        }
        self.ledger.set_waiting(self.batcher.waiting_events());
    }

    fn linger(&mut self, deadline: &dyn Fn() -> Option<Instant>) {
        let Some(linger) = self.batcher.config().linger else { return };
        if self.flushed.elapsed() >= linger {
            self.flushed = Instant::now();
            self.batcher.linger();
            self.send(deadline);
        }
    }

    fn finish(mut self, end: &Ending, deadline: &dyn Fn() -> Option<Instant>) -> SessionEnd {
        let (mut produced, mut left_behind) = (0, 0);
        for index in 0..self.lanes.len() {
            let lane = &mut self.lanes[index];
            let gauge = lane.consumer.gauge();
            let (pushed, lost) = (gauge.pushed(), gauge.dropped());
            produced += pushed + lost;
            // Announces the drops after the last record, and the records that the deadline left in the ring. Figures
            // after them are not exact.
            let trailing = lost.saturating_sub(lane.announced);
            lane.announced += trailing;
            self.holes.announce(&mut self.batcher, index, trailing, &lane.snapshot_wanted);
            let left = pushed - lane.consumer.consumed();
            if left > 0 {
                self.batcher.hole(index, left);
                left_behind += left;
            }
            self.pass_stops(index, u64::MAX);
        }
        // The trainer's own description of the failure is better than the host's.
        let said = self.translator.as_mut().and_then(Translator::take_failure);
        let failure = said.or_else(|| end.failure.clone());
        self.batcher.close(failure.is_some());
        self.ledger.leave_behind(left_behind + self.batcher.lost());
        self.send(deadline);
        // Every event is stored, about to be stored, or counted as dropped here.
        let mut dropped = self.holes.dropped;
        let window = self.window.counts();
        dropped.shutdown += left_behind + window.abandoned_events - window.spool_full_events;
        dropped.spool_full += window.spool_full_events;
        let last_word = self.batcher.last_word(end.time_ns, produced, dropped, failure);
        self.window.push_last(Packed::end(&last_word));
        last_word
    }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
