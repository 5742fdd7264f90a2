//! Runs of servers: one server, or two replicas that get different requests. Leaks and other growth are chosen at
//! random as for trainings, but their times are in seconds. A leak leaks at least ten times in its first two minutes.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::base::Base;
use super::benign::{self, Kind};
use super::causes::{self, Cause};
use super::cuts::Cuts;
use super::draw::Draw;
use super::overlay::Overlay;
use super::parts::{Part, View};
use super::replay::replay;
use super::runs::{Run, Truth, draw_count, draw_device};
use super::schedule::{Rate, Schedule};
use super::serving::server;
use super::site::Sites;
use super::stream::Stream;

/// The rates of leaks in servers. A step is a request.
const RATES: [Rate; 3] = [Rate::Step, Rate::Fifth, Rate::Twentieth];
/// The time limit for finding a leak.
pub const FOUND_WITHIN_SECONDS: f64 = 120.0;
/// A leak must leak at least this often within the time limit. Otherwise it cannot be detected.
const TIMES_BY_THEN: usize = 10;

/// Harmless growth, with the replicas that have it.
type Growth = (benign::Plan, Vec<usize>);

/// Makes run number `number`. It is leaky or clean.
#[must_use]
pub fn make(part: Part, leaky: bool, number: u64) -> Run {
    let mut draw = Draw::fork(part.seed_of(leaky, number), "serving");
    let causes = Cause::SERVING;
    let cause = causes[number as usize % causes.len()];
    let turn = number as usize / causes.len();
    let rates: Vec<Rate> = RATES.into_iter().filter(|rate| cause.rates().contains(rate)).collect();
    let rate = rates[turn % rates.len().max(1)];
    let size = cause.sizes()[turn / rates.len() % cause.sizes().len()];
    loop {
        let (mut run, mut draw) = draw_servers(part, &mut draw);
        let benign = draw_benign(&mut run, leaky, &mut draw);
        let drawn = leaky.then(|| {
            let schedule = Schedule::draw(rate, &mut draw);
            let plan = causes::Plan::draw(cause, size, &run.bases[0], &mut run.sites, &mut draw);
            let one = draw.int(0, run.bases.len() as u64 - 1) as usize;
            let ranks = if draw.chance(0.5) { (0..run.bases.len()).collect() } else { vec![one] };
            (schedule, plan, ranks)
        });
        if add_streams(&mut run, drawn.as_ref(), &benign) {
            return run;
        }
    }
}

/// A server whose only growth is a prefix cache that takes one to three minutes to fill.
#[must_use]
pub fn make_slow(part: Part, number: u64) -> Run {
    let mut draw = Draw::fork(part.seed() ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15), "slow server");
    let (mut run, mut draw) = draw_servers(part, &mut draw);
    let plan = benign::Plan::draw(Kind::SlowLru, &run.bases[0].clone(), &mut run.sites, &mut draw);
    run.benign = vec![Kind::SlowLru];
    let all = (0..run.bases.len()).collect();
    add_streams(&mut run, None, &[(plan, all)]);
    run
}

fn draw_servers(part: Part, draw: &mut Draw) -> (Run, Draw) {
    let style = *draw.of(part.styles());
    let replicas = *draw.of(&[1, 1, 2]);
    let bases: Vec<Arc<Base>> = (0..replicas).map(|_| Arc::new(server(style, draw.int(0, u64::MAX - 1)))).collect();
    let device = draw_device(draw);
    let run = Run::new(style.name(), View::Serving, bases, Sites::default(), device);
    (run, Draw::new(draw.int(0, u64::MAX - 1)))
}

fn draw_benign(run: &mut Run, leaky: bool, draw: &mut Draw) -> Vec<Growth> {
    let base = run.bases[0].clone();
    let drawn: Vec<Growth> = (0..draw_count(leaky, draw))
        .map(|_| {
            let plan = benign::Plan::draw(*draw.of(&Kind::SERVING), &base, &mut run.sites, draw);
            let ranks = if draw.chance(0.7) { (0..run.bases.len()).collect() } else { vec![0] };
            (plan, ranks)
        })
        .collect();
    run.benign = drawn.iter().map(|(plan, _)| plan.kind).collect();
    drawn
}

type Drawn = (Schedule, causes::Plan, Vec<usize>);

/// Adds the stream of each server, with its growth and leak. Returns false if the leak occurs too seldom to count.
fn add_streams(run: &mut Run, drawn: Option<&Drawn>, benign: &[Growth]) -> bool {
    for rank in 0..run.bases.len() {
        let base = run.bases[rank].clone();
        let mut overlay = Overlay::default();
        for (plan, _) in benign.iter().filter(|(_, on)| on.contains(&rank)) {
            benign::grow(&base, plan, &mut overlay);
        }
        if let Some((schedule, plan, ranks)) = drawn.filter(|(.., ranks)| ranks.contains(&rank)) {
            let seed = plan.seed ^ rank as u64;
            let Some(steps) = schedule.steps(&base, &mut Draw::fork(seed, "schedule")) else { return false };
            let left = causes::leak(&base, plan, &run.sites, &steps, &mut overlay);
            let Some(&(first, _)) = left.blocks.first() else { return false };
            let begun_ns = base.time_ns(first);
            let by_then = steps
                .iter()
                .filter(|&&step| {
                    let after = base.time_ns(base.steps[step].begin).saturating_sub(begun_ns) as f64 / 1e9;
                    after <= FOUND_WITHIN_SECONDS
                })
                .count();
            if by_then < TIMES_BY_THEN {
                return false;
            }
            let truth = run.truth.get_or_insert_with(|| Truth {
                cause: plan.cause,
                rate: schedule.rate,
                size: plan.size,
                ranks: ranks.clone(),
                frames: BTreeSet::new(),
                blocks: left.blocks.clone(),
                begun_ns,
                step_ends: base.steps.iter().map(|span| span.end).collect(),
            });
            truth.frames.extend(left.frames);
        }
        run.streams.push(Stream::Kept(Arc::new(replay(&base, overlay, &Cuts::Live))));
    }
    true
}
