//! One step ahead: runs whose device becomes full, and runs that come close and go on.
//!
//! Guarantees: what a run records under its limit is made by the allocator's own rules, request by request, and ends with the
//! request that fails; what is told is asked for at each step's end, from what came before it alone. A run counts as told when
//! the end of a step before the failing one told it. Runs that come close have 0.3 to 5 % more than the least they live with.
//! Refuses runs that fail before [`STEPS_BEFORE`] steps have ended: nobody knows their steps.

use memctl_model::{Action, Event, MarkKind, StackId};
use memctl_replay::{
    Allocator, BlockId, BlockName, Conf, Fails, Follow, Limit, Request, Requested, Shortage, Start, Trial, Version,
    named,
};
use serde_json::{Value, json};
use std::collections::HashMap;

use super::Corpus;
use super::base::{Base, Passing};
use super::draw::Draw;
use super::events::pass;
use super::overlay::Overlay;
use super::tally::{Share, table};

/// Steps that have to have ended before the one that fails.
const STEPS_BEFORE: usize = 8;
/// Runs looked at for one that fits.
const TRIES: u64 = 64;
/// Numbers of runs that no other table looks at.
const FIRST_NUMBER: u64 = 1 << 33;
/// How far is looked ahead.
const STEPS_AHEAD: u32 = 6;
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

/// What came out of a run under a limit.
struct Ended {
    /// The step that failed, counted from 1, and the request.
    failed: Option<(usize, Requested, StackId)>,
    /// What was told at the end of each step, counted from 1, that told something.
    told: Vec<(usize, Fails)>,
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

/// A run under a limit; `ahead` is asked at every step's end once more than eight tenths are used.
fn live_with(doings: &[Doing], conf: &Conf, bytes: u64, is_asked: bool) -> Ended {
    let limit = Limit::Device(bytes);
    let mut recorder = Recorder::new(conf.clone(), limit);
    let mut ahead = memctl_replay::Ahead::new(conf.clone(), &[]);
    let (mut step, mut told) = (1, Vec::new());
    for doing in doings {
        if matches!(doing, Doing::StepEnds) {
            if is_asked {
                ahead.step_ends();
                let is_near = ahead.last_peak_bytes().is_some_and(|peak| peak > bytes / 10 * 8);
                told.extend(is_near.then(|| ahead.look(limit, STEPS_AHEAD)).flatten().map(|fails| (step, fails)));
            }
            step += 1;
            continue;
        }
        let goes_on = recorder.does(doing, &mut |event| {
            if is_asked {
                ahead.event(event);
            }
        });
        if let (false, &Doing::Alloc { requested, stack, .. }) = (goes_on, doing) {
            return Ended { failed: Some((step, requested, stack)), told };
        }
    }
    Ended { failed: None, told }
}

/// One run: whether it was to fail, and what came.
struct Outcome {
    training: &'static str,
    number: u64,
    limit: u64,
    ended: Ended,
}

fn make(corpus: &Corpus, fails: bool, number: u64) -> Option<Outcome> {
    (0..TRIES).find_map(|attempt| attempt_one(corpus, fails, FIRST_NUMBER + number * TRIES + attempt))
}

fn attempt_one(corpus: &Corpus, fails: bool, number: u64) -> Option<Outcome> {
    let run = corpus.make(fails, number);
    let mut draw = Draw::fork(corpus.part.seed_of(fails, number), "ahead");
    let rank = run.truth.as_ref().map_or(0, |truth| truth.ranks[0]);
    let (base, overlay) = (run.bases.get(rank)?, run.overlays.get(rank)?.clone());
    let doings = doings(base, overlay);
    let conf = Conf::recorded(&base.settings, Version::NEWEST);
    let peaks = peaks(&doings, &conf);
    let highest = *peaks.iter().max()?;
    let training = run.name;
    if fails {
        // Full somewhere in the last half, by what leaks.
        let at = (draw.real(0.5, 0.97) * peaks.len() as f64) as usize;
        let limit = *peaks[..at].iter().max()?;
        let ended = live_with(&doings, &conf, limit, true);
        let (step, ..) = ended.failed?;
        return (step > STEPS_BEFORE).then_some(Outcome { training, number, limit, ended });
    }
    let mut limit = highest;
    while live_with(&doings, &conf, limit, false).failed.is_some() {
        limit = (limit as f64 * FINER) as u64;
    }
    limit = (limit as f64 * draw.real(1.003, 1.05)) as u64;
    let ended = live_with(&doings, &conf, limit, true);
    ended.failed.is_none().then_some(Outcome { training, number, limit, ended })
}

/// The table, and the same for a file.
pub fn report(corpus: &Corpus, runs: u64, wrong: bool) -> (String, Value) {
    let outcomes: Vec<(bool, Outcome)> = super::in_parallel(runs + runs / 5, |number, _| {
        let fails = number.is_multiple_of(6);
        let number = if fails { number / 6 } else { number };
        Some((fails, make(corpus, fails, number)?))
    })
    .into_iter()
    .flatten()
    .collect();
    let (full, close): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(|(fails, _)| *fails);
    if wrong {
        full.iter()
            .chain(&close)
            .filter_map(|(fails, outcome)| complaint(*fails, outcome))
            .for_each(|line| println!("{line}"));
    }
    let before = |outcome: &Outcome| {
        let (failed, ..) = outcome.ended.failed?;
        outcome.ended.told.iter().rfind(|(step, _)| *step < failed).copied()
    };
    let told = Share::count(full.iter().map(|(_, outcome)| before(outcome).is_some()));
    let named = Share::count(full.iter().filter_map(|(_, outcome)| {
        let ((_, fails), (_, requested, stack)) = (before(outcome)?, outcome.ended.failed?);
        Some(fails.requested.bytes == requested.bytes && fails.stack == stack)
    }));
    let capacity =
        Share::count(full.iter().filter_map(|(_, outcome)| Some(before(outcome)?.1.shortage == Shortage::Capacity)));
    let false_ones = Share::count(close.iter().map(|(_, outcome)| !outcome.ended.told.is_empty()));
    let head = [
        "runs that fail",
        "told a step ahead",
        "the request named",
        "of capacity",
        "runs that come close",
        "told falsely",
    ];
    let row = vec![
        full.len().to_string(),
        told.to_string(),
        named.to_string(),
        capacity.to_string(),
        close.len().to_string(),
        false_ones.to_string(),
    ];
    let text = format!("One step ahead, {STEPS_AHEAD} steps looked at:\n\n{}", table(&head, &[row]));
    (text, json!({ "told": told.json(), "named": named.json(), "false": false_ones.json() }))
}

fn complaint(fails: bool, outcome: &Outcome) -> Option<String> {
    let Outcome { training, number, limit, ended } = outcome;
    let Ended { failed, told } = ended;
    let last = told.last();
    let is_wrong = match failed {
        Some((failed, requested, stack)) => last.is_none_or(|(step, fails)| {
            step >= failed || fails.requested.bytes != requested.bytes || fails.stack != *stack
        }),
        None => last.is_some(),
    };
    is_wrong.then(|| format!("run {number} of {training} (fails: {fails}), {limit} bytes: failed {failed:?}, told {} times, last {last:?}", told.len()))
}
