//! Out-of-memory forecasts: runs whose device becomes full, and runs that nearly fill it and continue.
//!
//! Guarantees: a run under a limit is recorded by the allocator's own rules, request by request, up to the request that
//! fails. A forecast is made at the end of each step, from earlier events alone. It counts only if the judge has
//! sufficient evidence of growth. The judge sees the tables of the same run, and the same limit.
//! A failing run counts as forecast if a step before the failing one ended with a forecast. A forecast in a run that
//! never fails is false. The request counts as named if the line of the finding is the line that failed. Whether all
//! frames match is counted separately.
//! A failing run gets the smallest limit that the first part of its steps fits into. A run that does not fail gets a
//! limit that is 0.3 to 5 % above the smallest one that all its steps fit into.
//! Refuses runs that fail before [`STEPS_BEFORE`] steps have ended, because too few steps are known for a replay.
//!
//! (Over 400 lines: running under a limit, forecasting and counting belong to one measurement.)

use memctl_model::{Action, Boundary, Event, Foresight, Frame, MarkKind, StackId};
use memctl_replay::{
    Ahead, Allocator, BlockId, BlockName, Conf, Fails, Follow, Limit, Request, Requested, Shortage, Start, Trial,
    Version, named,
};
use serde_json::{Value, json};
use std::collections::HashMap;

use super::Corpus;
use super::base::{Base, Passing};
use super::detect::Detector;
use super::draw::Draw;
use super::events::pass;
use super::overlay::Overlay;
use super::runs::Run;
use super::tally::{Share, table};

/// Number of steps that a forecast replays. It corresponds to half a minute in the daemon, at two seconds a step.
const STEPS_LOOKED_AT: u32 = 16;
/// Number of steps that must end before the step that fails.
const STEPS_BEFORE: usize = 8;
/// Number of attempts to draw a run that fits.
const TRIES: u64 = 64;
/// The first run number. It is above the numbers of other tables. Causes, rates and sizes alternate with the number, so
/// runs and their first attempts have consecutive numbers.
const FIRST_NUMBER: u64 = 1 << 33;
/// The difference between the numbers of two attempts at one run.
const TURN: u64 = 1 << 20;
/// A first forecast is too early if it is more than this many steps before the failing step.
const EARLY: usize = 16;
/// Maximum number of places that a forecast names, as in the daemon.
const PLACES: usize = 3;
/// The first limit that is tried, as a multiple of the peak.
const FINER: f64 = 1.003;

/// The actions of a program, as its allocator sees them.
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

/// The peak of allocated bytes of each step, without a limit.
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

/// A process under a limit. All its events are recorded in order, as by an agent.
struct Recorder {
    allocator: Allocator,
    live: HashMap<BlockName, (BlockId, u64)>,
    names: HashMap<BlockId, BlockName>,
}

impl Recorder {
    fn new(conf: Conf, limit: Limit) -> Self {
        Self { allocator: Allocator::new(conf, limit), live: HashMap::new(), names: HashMap::new() }
    }

    /// Performs an action. Returns false if the request fails.
    fn does(&mut self, doing: &Doing, tell: &mut dyn FnMut(&Event)) -> bool {
        match *doing {
            Doing::Alloc { block, requested, stack } => {
                let Requested { bytes, stream, pool } = requested;
                let served = self.allocator.malloc(bytes, stream, pool);
                // A retry waits for the pending frees, so they are performed first.
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

/// A function that is called at the end of each step. Steps are counted from 1.
type Tell<'a> = &'a mut dyn FnMut(usize, &mut Ahead);

/// Runs a process under a limit. Calls `tell` at the end of each step. Returns the request that failed and the number
/// of its step, counted from 1.
fn live_with(
    doings: &[Doing],
    conf: &Conf,
    bytes: u64,
    mut tell: Option<Tell<'_>>,
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

/// The smallest limit that these steps fit into, to within 0.3 %. The search begins at their peak and goes upwards.
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

/// The judge's evidence for a forecast on this rank, at the end of each step of the rank.
fn foresights(run: &Run, rank: usize, detectors: &mut [Box<dyn Detector>]) -> Vec<Foresight> {
    let mut foresights = Vec::new();
    let stream = &run.streams[rank];
    super::score::pass(run, &mut detectors[..1], |now, _, verdicts| {
        let of_rank = verdicts.iter().filter(|it| it.ranks.contains(&(rank as u32)));
        if stream.table(now.round).is_some_and(|table| table.boundary == Boundary::StepEnd) {
            foresights.push(of_rank.map(|it| it.foresight).max().unwrap_or_default());
        }
    });
    foresights
}

/// One run and its result.
struct Outcome {
    training: &'static str,
    number: u64,
    limit: u64,
    failed: Option<Failed>,
    /// Whether the same run without its leak fits into the same limit.
    by_leak: bool,
    /// The forecasts, in the order of their steps.
    forecasts: Vec<Forecast>,
}

/// A forecast at the end of a step, counted from 1.
#[derive(Debug)]
struct Forecast {
    step: usize,
    fails: Fails,
    /// The place that will fail. Other places that may fail instead follow.
    places: Vec<Place>,
}

/// The place of a request, as a finding shows it.
#[derive(Clone, Debug, PartialEq)]
enum Place {
    /// The innermost line of the user's own code.
    Line(Frame),
    /// The request has a stack, but its frames are unknown.
    Stack(StackId),
}

/// The request that failed.
#[derive(Debug)]
struct Failed {
    /// The number of the step in which it was made, counted from 1.
    step: usize,
    requested: Requested,
    stack: StackId,
    place: Place,
}

impl Outcome {
    /// The last forecast before the step that failed.
    fn before(&self) -> Option<&Forecast> {
        let failed = self.failed.as_ref()?;
        self.forecasts.iter().rfind(|forecast| forecast.step < failed.step)
    }

    /// Number of steps from the first forecast to the failure.
    fn early(&self) -> Option<usize> {
        let (failed, first) = (self.failed.as_ref()?, self.forecasts.first()?);
        failed.step.checked_sub(first.step)
    }
}

fn make(corpus: &Corpus, fails: bool, number: u64, detectors: &mut [Box<dyn Detector>]) -> Option<Outcome> {
    (0..TRIES).find_map(|attempt| attempt_one(corpus, fails, FIRST_NUMBER + number + attempt * TURN, detectors))
}

fn attempt_one(corpus: &Corpus, fails: bool, number: u64, detectors: &mut [Box<dyn Detector>]) -> Option<Outcome> {
    let mut run = corpus.make(fails, number);
    let mut draw = Draw::fork(corpus.part.seed_of(fails, number), "ahead");
    let rank = run.truth.as_ref().map_or(0, |truth| truth.ranks[0]);
    let (base, overlay) = (run.bases.get(rank)?, run.overlays.get(rank)?.clone());
    let doings = doings(base, overlay);
    let conf = Conf::recorded(&base.settings, Version::NEWEST);
    let peaks = peaks(&doings, &conf);
    // The device becomes full in the last half of the run, or never.
    let at = if fails { (draw.real(0.5, 0.97) * peaks.len() as f64) as usize } else { peaks.len() };
    let most = *peaks.get(..at)?.iter().max()?;
    let mut ends = doings.iter().enumerate().filter(|(_, doing)| matches!(doing, Doing::StepEnds));
    let (upto, _) = ends.nth(at.checked_sub(1)?)?;
    let mut limit = least(&doings[..=upto], &conf, most);
    let mut by_leak = false;
    if fails {
        let (step, ..) = live_with(&doings, &conf, limit, None)?;
        if step <= STEPS_BEFORE {
            return None;
        }
        let without = self::doings(base, run.harmless.get(rank)?.clone());
        by_leak = live_with(&without, &conf, limit, None).is_none();
    } else {
        limit = (limit as f64 * draw.real(1.003, 1.05)) as u64;
    }
    // The judge knows the device's capacity, as in the daemon, because the remaining memory is part of its evidence.
    run.device_total_bytes[rank] = limit;
    let foresights = foresights(&run, rank, detectors);
    let place = |stack: StackId| {
        let added = (stack.0 as usize).checked_sub(base.stacks.len() + 1).and_then(|at| run.sites.stacks.get(at));
        let frames = added.map_or_else(|| base.frames(stack), Vec::as_slice);
        let site = frames.iter().find(|frame| frame.is_user_code()).or(frames.first());
        site.map_or(Place::Stack(stack), |site| Place::Line(site.clone()))
    };
    let mut forecasts = Vec::new();
    let mut look = |step: usize, ahead: &mut Ahead| {
        let vouched = foresights.get(step - 1).copied().unwrap_or_default();
        let fails = ahead.look(Limit::Device(limit), STEPS_LOOKED_AT);
        let Some(seen) = fails.filter(|fails| vouched.vouches_for(fails.sight())) else { return };
        let (fails, instead) = ahead.names(Limit::Device(limit), &seen);
        let mut places = vec![place(fails.stack)];
        for other in instead {
            let other = place(other.stack);
            if places.len() < PLACES && !places.contains(&other) {
                places.push(other);
            }
        }
        forecasts.push(Forecast { step, fails, places });
    };
    let failed = live_with(&doings, &conf, limit, Some(&mut look));
    let failed = failed.map(|(step, requested, stack)| Failed { step, requested, stack, place: place(stack) });
    (failed.is_some() == fails).then_some(Outcome { training: run.name, number, limit, failed, by_leak, forecasts })
}

/// The table as text and as JSON.
pub fn report(corpus: &Corpus, runs: u64, wrong: bool) -> (String, Value) {
    let outcomes: Vec<(bool, Outcome)> = super::in_parallel(runs + runs / 5, |number, detectors| {
        let fails = number.is_multiple_of(6);
        let number = if fails { number / 6 } else { number };
        let outcome = make(corpus, fails, number, detectors)?;
        if wrong {
            println!("{}", line(&outcome));
        }
        Some((fails, outcome))
    })
    .into_iter()
    .flatten()
    .collect();
    let (full, close): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(|(fails, _)| *fails);
    let false_ones = Share::count(close.iter().map(|(_, outcome)| !outcome.forecasts.is_empty()));
    let head = [
        "runs that fail",
        "all",
        "told a step ahead",
        "the stack named",
        "and its bytes",
        "the line named",
        "or as one of three",
        "of capacity",
        "told no earlier",
        "lines named",
    ];
    let by_leak: Vec<&Outcome> = full.iter().map(|(_, it)| it).filter(|it| it.by_leak).collect();
    let all: Vec<&Outcome> = full.iter().map(|(_, it)| it).collect();
    let (rows, figures): (Vec<_>, Vec<_>) =
        [("all", all), ("not without the leak", by_leak)].into_iter().map(|(name, runs)| of(name, &runs)).unzip();
    let text = format!(
        "One step ahead, {STEPS_LOOKED_AT} steps looked at; told falsely in {false_ones} of {} runs that come close.\n\n{}",
        close.len(),
        table(&head, &rows)
    );
    (text, json!({ "fail": figures, "false": false_ones.json(), "close": close.len() }))
}

/// The row of the table for some of the runs that fail.
fn of(name: &str, runs: &[&Outcome]) -> (Vec<String>, Value) {
    let any = Share::count(runs.iter().map(|it| it.before().is_some()));
    let pairs: Vec<(&Forecast, &Failed)> = runs.iter().filter_map(|it| it.before().zip(it.failed.as_ref())).collect();
    let share = |is: &dyn Fn(&Forecast, &Failed) -> bool| {
        Share::count(pairs.iter().map(|(forecast, failed)| is(forecast, failed)))
    };
    let is_stack = |forecast: &Forecast, failed: &Failed| forecast.fails.stack == failed.stack;
    let is_size = |forecast: &Forecast, failed: &Failed| forecast.fails.requested.bytes == failed.requested.bytes;
    let bytes = share(&|forecast, failed| is_stack(forecast, failed) && is_size(forecast, failed));
    let line = share(&|forecast, failed| forecast.places[0] == failed.place);
    let one_of_three = share(&|forecast, failed| forecast.places.contains(&failed.place));
    let capacity = share(&|forecast, _| forecast.fails.shortage == Shortage::Capacity);
    let places = pairs.iter().map(|(forecast, _)| forecast.places.len()).sum::<usize>();
    let places = places as f64 / pairs.len().max(1) as f64;
    let early = Share::count(runs.iter().filter_map(|it| Some(it.early()? <= EARLY)));
    let shares = [any, share(&is_stack), bytes, line, one_of_three, capacity, early];
    let row = [name.to_owned(), runs.len().to_string()].into_iter().chain(shares.iter().map(ToString::to_string));
    let names = ["told", "stack", "bytes", "line", "one_of_three", "capacity", "not_early"];
    let figures: serde_json::Map<String, Value> =
        names.iter().zip(&shares).map(|(&name, share)| (name.to_owned(), share.json())).collect();
    (
        row.chain([format!("{places:.2}")]).collect(),
        json!({ "runs": name, "count": runs.len(), "figures": figures, "places": places }),
    )
}

/// The result of a run.
fn line(outcome: &Outcome) -> String {
    let Outcome { training, number, limit, failed, by_leak, forecasts } = outcome;
    let (first, last) = (forecasts.first(), outcome.before());
    format!(
        "run {number} of {training}, {limit} bytes: failed {failed:?} (by its leak: {by_leak}), told {} times, first {first:?}, last {last:?}",
        forecasts.len()
    )
}
