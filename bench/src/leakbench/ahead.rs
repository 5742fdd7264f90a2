//! One step ahead: runs whose device becomes full, and runs that come close and go on.
//!
//! Guarantees: what a run records under its limit is made by the allocator's own rules, request by request, and ends with the
//! request that fails; what is told is asked for at each step's end, from what came before it alone. A run counts as told when
//! the end of a step before the failing one told it. Runs that come close have 0.3 to 5 % more than the least they live with.
//! Refuses runs that fail before [`STEPS_BEFORE`] steps have ended: nobody knows their steps.

use memctl_model::{Action, Boundary, Event, MarkKind, StackId};
use memctl_replay::{
    Ahead, Allocator, BlockId, BlockName, Conf, Follow, Limit, Request, Requested, Shortage, Start, Trial, Version,
    named,
};
use serde_json::{Value, json};
use std::collections::HashMap;

use super::Corpus;
use super::base::{Base, Passing};
use super::detect::{Detector, Level};
use super::draw::Draw;
use super::events::pass;
use super::overlay::Overlay;
use super::runs::Run;

/// Steps that have to have ended before the one that fails.
const STEPS_BEFORE: usize = 8;
/// Runs looked at for one that fits.
const TRIES: u64 = 64;
/// Numbers of runs that no other table looks at.
const FIRST_NUMBER: u64 = 1 << 33;

/// Between the least that a run lives with and the next attempt at it.
const FINER: f64 = 1.003;

/// What a program does, as far as its allocator sees it.
enum Doing {
    Alloc { block: BlockName, requested: Requested, stack: StackId },
    FreeRequested(BlockName),
    FreeCompleted(BlockName),
    EmptyCache,
    StepEnds,
}

fn doings(base: &Base, overlay: Overlay) -> Vec<Doing> {
    let conf = Conf::recorded(&base.settings, Version::NEWEST);
    let mut follow = Follow::new(conf, Limit::None, &base.start.segments);
    let mut doings = Vec::new();
    for (name, segment, block) in named(&base.start.segments) {
        let requested = Requested { bytes: block.requested, stream: segment.stream, pool: segment.pool };
        doings.push(Doing::Alloc { block: name, requested, stack: block.stack });
    }
    pass(base, overlay, &mut |_, passing| match passing {
        Passing::Event(event) => follow.event(event, |_, request| match *request {
            Request::Alloc { block, requested, .. } => {
                doings.push(Doing::Alloc { block, requested, stack: event.stack })
            }
            Request::FreeRequested { block } => doings.push(Doing::FreeRequested(block)),
            Request::FreeCompleted { block } => doings.push(Doing::FreeCompleted(block)),
            Request::EmptyCache => doings.push(Doing::EmptyCache),
            Request::Failed { .. } | Request::PoolReleased(_) => {}
        }),
        Passing::Mark(mark) => {
            if matches!(mark.kind, MarkKind::StepEnd(_)) {
                doings.push(Doing::StepEnds);
            }
        }
    });
    doings
}

/// Bytes handed out at the height of each step, without a limit.
fn peaks(doings: &[Doing], conf: &Conf) -> Vec<u64> {
    let mut trial = Trial::new(conf.clone(), Limit::None, &[], Start::Afresh);
    let (mut peaks, mut peak) = (Vec::new(), 0);
    for doing in doings {
        let request = match *doing {
            Doing::Alloc { block, requested, .. } => Request::Alloc { block, requested, hints: &[] },
            Doing::FreeRequested(block) => Request::FreeRequested { block },
            Doing::FreeCompleted(block) => Request::FreeCompleted { block },
            Doing::EmptyCache => Request::EmptyCache,
            Doing::StepEnds => {
                peaks.push(std::mem::take(&mut peak));
                continue;
            }
        };
        trial.request(0, &request);
        peak = peak.max(trial.outcome().counts.allocated_bytes);
    }
    peaks
}

/// A process under a limit, recorded as an agent would: every event, in order.
struct Recorder {
    allocator: Allocator,
    live: HashMap<BlockName, (BlockId, u64)>,
    names: HashMap<BlockId, BlockName>,
}

impl Recorder {
    fn new(conf: Conf, limit: Limit) -> Self {
        Self { allocator: Allocator::new(conf, limit), live: HashMap::new(), names: HashMap::new() }
    }

    /// Does it; false when the request fails.
    fn does(&mut self, doing: &Doing, tell: &mut dyn FnMut(&Event)) -> bool {
        match *doing {
            Doing::Alloc { block, requested, stack } => {
                let Requested { bytes, stream, pool } = requested;
                let served = self.allocator.malloc(bytes, stream, pool);
                // A retry waits for what was given back: that comes first.
                for id in self.allocator.take_completed() {
                    let known = self.names.remove(&id).and_then(|name| self.live.remove(&name));
                    known.iter().for_each(|&(_, addr)| {
                        tell(&Event { action: Action::FreeCompleted, addr, ..Event::default() })
                    });
                }
                self.driver(requested, tell);
                let Ok(id) = served else { return false };
                let addr = self.allocator.address(id);
                self.live.insert(block, (id, addr));
                self.names.insert(id, block);
                tell(&Event { action: Action::Alloc, addr, size: bytes, stream, pool, stack, ..Event::default() });
            }
            Doing::FreeRequested(block) => {
                if let Some(&(id, addr)) = self.live.get(&block) {
                    self.allocator.free_requested(id);
                    tell(&Event { action: Action::FreeRequested, addr, ..Event::default() });
                }
            }
            Doing::FreeCompleted(block) => {
                if let Some((id, addr)) = self.live.remove(&block) {
                    self.names.remove(&id);
                    self.allocator.free_completed(id);
                    tell(&Event { action: Action::FreeCompleted, addr, ..Event::default() });
                }
            }
            Doing::EmptyCache => {
                self.allocator.empty_cache();
                self.driver(Requested { bytes: 0, stream: 0, pool: memctl_model::PoolId::DEFAULT }, tell);
            }
            Doing::StepEnds => {}
        }
        true
    }

    fn driver(&mut self, requested: Requested, tell: &mut dyn FnMut(&Event)) {
        for call in self.allocator.calls() {
            let (stream, pool) = (requested.stream, requested.pool);
            tell(&Event {
                action: call.call.action(),
                addr: call.addr,
                size: call.size,
                stream,
                pool,
                ..Event::default()
            });
        }
        self.allocator.forget_calls();
    }
}

/// A run under a limit: the step that failed, counted from 1, and the request. `tell` hears of every step's end.
fn live_with(
    doings: &[Doing],
    conf: &Conf,
    bytes: u64,
    mut tell: Option<&mut dyn FnMut(usize, &mut Ahead)>,
) -> Option<(usize, Requested, StackId)> {
    let mut recorder = Recorder::new(conf.clone(), Limit::Device(bytes));
    let mut ahead = Ahead::new(conf.clone(), &[]);
    let mut step = 1;
    for doing in doings {
        if matches!(doing, Doing::StepEnds) {
            if let Some(tell) = &mut tell {
                ahead.step_ends();
                tell(step, &mut ahead);
            }
            step += 1;
            continue;
        }
        let is_told = tell.is_some();
        let goes_on = recorder.does(doing, &mut |event| {
            if is_told {
                ahead.event(event);
            }
        });
        if let (false, &Doing::Alloc { requested, stack, .. }) = (goes_on, doing) {
            return Some((step, requested, stack));
        }
    }
    None
}

/// The least limit, to a third of a percent, that so many steps live with; from the most that they had handed out on.
fn least(doings: &[Doing], conf: &Conf, most: u64) -> u64 {
    let lives = |limit| live_with(doings, conf, limit, None).is_none();
    let (mut low, mut high) = (most, (most as f64 * FINER) as u64);
    while !lives(high) {
        (low, high) = (high, high + 2 * (high - low).max(1 << 20));
    }
    while (high - low) as f64 > 0.003 * low as f64 {
        let middle = low.midpoint(high);
        if lives(middle) { high = middle } else { low = middle }
    }
    high
}

/// At which of its steps' ends the judge has confirmed growth of this rank.
fn confirmed(run: &Run, rank: usize, detectors: &mut [Box<dyn Detector>]) -> Vec<bool> {
    let mut confirmed = Vec::new();
    let stream = &run.streams[rank];
    super::score::pass(run, &mut detectors[..1], |now, _, verdicts| {
        let grows = verdicts.iter().any(|it| it.level == Level::Alarm && it.ranks.contains(&(rank as u32)));
        if stream.table(now.round).is_some_and(|table| table.boundary == Boundary::StepEnd) {
            confirmed.push(grows);
        }
    });
    confirmed
}

fn make(corpus: &Corpus, fails: bool, number: u64, detectors: &mut [Box<dyn Detector>]) -> Option<Value> {
    (0..TRIES).find_map(|attempt| attempt_one(corpus, fails, FIRST_NUMBER + number * TRIES + attempt, detectors))
}

fn attempt_one(corpus: &Corpus, fails: bool, number: u64, detectors: &mut [Box<dyn Detector>]) -> Option<Value> {
    let run = corpus.make(fails, number);
    let mut draw = Draw::fork(corpus.part.seed_of(fails, number), "ahead");
    let rank = run.truth.as_ref().map_or(0, |truth| truth.ranks[0]);
    let (base, overlay) = (run.bases.get(rank)?, run.overlays.get(rank)?.clone());
    let doings = doings(base, overlay);
    let conf = Conf::recorded(&base.settings, Version::NEWEST);
    let peaks = peaks(&doings, &conf);
    let at = if fails { (draw.real(0.5, 0.97) * peaks.len() as f64) as usize } else { peaks.len() };
    let most = *peaks[..at].iter().max()?;
    let upto = doings.iter().enumerate().filter(|(_, doing)| matches!(doing, Doing::StepEnds)).nth(at - 1)?.0;
    let mut limit = least(&doings[..=upto], &conf, most);
    let mut twin = None;
    if fails {
        let (step, ..) = live_with(&doings, &conf, limit, None)?;
        if step <= STEPS_BEFORE {
            return None;
        }
        let without = self::doings(base, run.harmless.get(rank)?.clone());
        twin = live_with(&without, &conf, limit, None).map(|(step, ..)| step);
    } else {
        limit = (limit as f64 * draw.real(1.003, 1.05)) as u64;
    }
    let confirmed = confirmed(&run, rank, detectors);
    let mut told = Vec::new();
    let failed = live_with(&doings, &conf, limit, Some(&mut |step, ahead: &mut Ahead| {
        let grows = confirmed.get(step - 1).is_some_and(|&it| it);
        if let Some(it) = ahead.look(Limit::Device(limit)).filter(|_| grows) {
            told.push(json!([step, it.steps, it.requested.bytes, it.stack.0, it.shortage == Shortage::Capacity, it.allocated_bytes, it.of == memctl_replay::Of::Most]));
        }
    }));
    if failed.is_some() != fails {
        return None;
    }
    let leak = run.truth.as_ref().map(|truth| format!("{} {} {}", truth.cause.name(), truth.rate.name(), truth.size.name()));
    let last_peaks: Vec<u64> = failed.map_or_else(Vec::new, |(step, ..)| peaks[step.saturating_sub(12)..step].to_vec());
    let benign: Vec<&str> = run.benign.iter().map(|it| it.name()).collect();
    let line = json!({"fails": fails, "training": run.name, "number": number, "limit": limit, "most": most, "at": at, "steps": peaks.len(), "leak": leak, "benign": benign, "failed": failed.map(|(step, it, stack)| json!([step, it.bytes, stack.0])), "twin": twin, "epochs": base.epochs.len(), "confirmed": confirmed.iter().position(|&it| it), "peaks": last_peaks, "told": told});
    println!("{line}");
    Some(line)
}

/// The table, and the same for a file.
pub fn report(corpus: &Corpus, runs: u64, _wrong: bool) -> (String, Value) {
    let _ = super::in_parallel(runs + runs / 3, |number, detectors| {
        let fails = number.is_multiple_of(4);
        let number = if fails { number / 4 } else { number };
        Some((fails, make(corpus, fails, number, detectors)?))
    });
    (String::new(), Value::Null)
}
