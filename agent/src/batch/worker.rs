//! The thread that empties the rings: consumer of every device's ring, owner of the [`Batcher`].
//!
//! Guarantees: a mark takes effect behind exactly the events that were pushed before it was made; a
//! hole is announced where it lies, and the source is asked for a snapshot; when the outbox is full
//! this thread waits and the rings fill, nobody else notices.
//!
//! Refuses: to run in the training thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use memctl_model::{DeviceIndex, Dropped, Frame, Keyframe, Mark, Sample, SessionEnd};

use super::Batcher;
use crate::ledger::Ledger;
use crate::ring::Consumer;
use crate::uplink::window::{Pushed, Window};

/// How long an idle worker sleeps: a ring of 64k events holds 0.3 s of the busiest training seen, and a wake-up costs 5 µs.
const IDLE: Duration = Duration::from_millis(2);
/// Events of one device taken before the next device has its turn.
const TURN_EVENTS: u64 = 16_384;

/// What reaches the worker beside the rings.
#[derive(Debug)]
pub enum Note {
    /// A mark, with the number of records pushed to each ring when it was made.
    Mark(Mark, Box<[u64]>),
    /// The next stack of the dictionary.
    Stack(Box<[Frame]>),
    /// A measurement.
    Sample(Sample),
    /// The state of a device, with the number of records pushed to its ring when it was read.
    Keyframe(Box<Keyframe>, u64),
}

/// What a device's stream meets at a position.
enum Stop {
    Mark(Mark),
    Keyframe(Box<Keyframe>),
}

/// A request to end.
#[derive(Clone, Debug)]
pub struct Ending {
    /// After this nothing is waited for.
    pub deadline: Instant,
    /// Time of the end, ns since the Unix epoch.
    pub time_ns: u64,
    /// How the process ended, when it did not end well.
    pub failure: Option<String>,
}

struct Lane {
    device: DeviceIndex,
    consumer: Consumer,
    /// Marks and keyframes that wait for their position, ascending.
    stops: VecDeque<(u64, Stop)>,
    snapshot_wanted: Arc<AtomicBool>,
    /// Drops announced so far.
    announced: u64,
}

/// The worker's state.
pub struct Worker {
    batcher: Batcher,
    lanes: Vec<Lane>,
    notes: Receiver<Note>,
    window: Arc<Window>,
    ledger: Arc<Ledger>,
    flushed: Instant,
    /// The outbox made this thread wait since the last hole was announced.
    held_up: bool,
    dropped: Dropped,
}

impl Worker {
    /// A worker over the rings of the batcher's devices, in their order.
    #[must_use]
    pub fn new(
        batcher: Batcher,
        rings: Vec<(Consumer, Arc<AtomicBool>)>,
        notes: Receiver<Note>,
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
            })
            .collect();
        Self {
            batcher,
            lanes,
            notes,
            window,
            ledger,
            flushed: Instant::now(),
            held_up: false,
            dropped: Dropped::default(),
        }
    }

    /// Works until `ending` says stop and everything that was pushed is out, or the deadline has passed.
    pub fn run(mut self, ending: &dyn Fn() -> Option<Ending>) -> SessionEnd {
        loop {
            // Asked for before the rings are looked at: what was pushed before the stop is still taken.
            let end = ending();
            let worked = self.turn();
            self.send(end.as_ref().map(|end| end.deadline));
            match end {
                Some(end) if !worked || Instant::now() >= end.deadline => return self.finish(&end),
                _ if worked => {}
                _ => {
                    self.linger();
                    std::thread::park_timeout(IDLE);
                }
            }
        }
    }

    /// Takes what is there; says whether there was anything.
    fn turn(&mut self) -> bool {
        // Positions first, then the notes, then events up to those positions: a mark that is made
        // meanwhile belongs behind events that this turn does not touch.
        let limits: Vec<u64> = self
            .lanes
            .iter()
            .map(|lane| lane.consumer.consumed() + lane.consumer.available().min(TURN_EVENTS))
            .collect();
        let mut worked = self.take_notes();
        for (index, limit) in limits.into_iter().enumerate() {
            worked |= self.take_events(index, limit);
        }
        self.ledger.set_waiting(self.batcher.waiting_events());
        worked
    }

    fn take_notes(&mut self) -> bool {
        let mut worked = false;
        loop {
            match self.notes.try_recv() {
                Ok(note) => self.note(note),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return worked,
            }
            worked = true;
        }
    }

    fn note(&mut self, note: Note) {
        match note {
            Note::Stack(frames) => {
                self.batcher.stack(&frames);
            }
            Note::Sample(sample) => self.batcher.sample(sample),
            Note::Keyframe(keyframe, position) => {
                if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.device == keyframe.device) {
                    lane.stops.push_back((position, Stop::Keyframe(keyframe)));
                }
            }
            Note::Mark(mark, positions) => {
                for (lane, &position) in self.lanes.iter_mut().zip(&positions) {
                    lane.stops.push_back((position, Stop::Mark(mark.clone())));
                }
                self.batcher.mark(mark);
            }
        }
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
            let (batcher, held_up, dropped) = (&mut self.batcher, &mut self.held_up, &mut self.dropped);
            let (announced, wanted) = (&mut lane.announced, &lane.snapshot_wanted);
            lane.consumer.read(until - at, |record| {
                let hole = u64::from(record.dropped_before());
                if hole > 0 {
                    *announced += hole;
                    let reason = if std::mem::take(held_up) { &mut dropped.spool_full } else { &mut dropped.ring_full };
                    *reason += hole;
                    batcher.hole(index, hole);
                    // Release: pairs with the Acquire of the source that takes the snapshot.
                    wanted.store(true, Ordering::Release);
                }
                batcher.event(index, &record.event());
            });
        }
    }

    fn pass_stops(&mut self, index: usize, at: u64) {
        while let Some((_, stop)) = self.lanes[index].stops.pop_front_if(|(position, _)| *position <= at) {
            match stop {
                Stop::Mark(mark) => self.batcher.device_mark(index, &mark),
                Stop::Keyframe(keyframe) => self.batcher.restore(index, *keyframe),
            }
        }
    }

    /// Hands ready items to the outbox; waits while it is full.
    fn send(&mut self, deadline: Option<Instant>) {
        for item in self.batcher.take() {
            self.ledger.leave_batch(item.events);
            if self.window.push(item, deadline) == Pushed::AfterWaiting {
                self.held_up = true;
            }
        }
        self.ledger.set_waiting(self.batcher.waiting_events());
    }

    fn linger(&mut self) {
        let Some(linger) = self.batcher.config().linger else { return };
        if self.flushed.elapsed() >= linger {
            self.flushed = Instant::now();
            self.batcher.flush();
            self.send(None);
        }
    }

    fn finish(mut self, end: &Ending) -> SessionEnd {
        let (mut produced, mut dropped) = (0, self.dropped);
        for index in 0..self.lanes.len() {
            self.pass_stops(index, u64::MAX);
            let lane = &self.lanes[index];
            let gauge = lane.consumer.gauge();
            let (pushed, lost) = (gauge.pushed(), gauge.dropped());
            produced += pushed + lost;
            // What the deadline left in the ring, and holes behind the last record.
            let left = pushed - lane.consumer.consumed();
            dropped.shutdown += left;
            self.ledger.leave_behind(left);
            dropped.ring_full += lost.saturating_sub(lane.announced);
        }
        self.ledger.leave_behind(self.batcher.lost());
        let last_word = self.batcher.finish(end.time_ns, produced, dropped, end.failure.clone());
        self.send(Some(end.deadline));
        last_word
    }
}
