//! Rounds found by the requests alone, for recordings whose stacks show no loop: a request that is made once a round
//! recurs at even distances.
//!
//! Guarantees: three passes; memory is bounded by [`REQUESTS_MAX`]. Requests are rejected if they do not recur evenly
//! over at least half of the recording. Recordings are rejected if their stacks show a model or a user's line, because
//! what repeats evenly there may be layers of one call. Rounds are rejected if they keep most of what they
//! allocate.

use std::collections::HashMap;

use memctl_model::{Action, Event, StackId};

use super::Span;
use super::rounds::{Live, STEPS_MAX};
use super::stacks::Paths;
use super::turnover::{may_be_steps, say_nothing};

/// Different requests that are counted. Further requests are ignored.
const REQUESTS_MAX: usize = 1 << 18;
/// Minimum number of rounds, and of events in one.
const ROUNDS_MIN: u64 = 8;
const EVENTS_MIN: f64 = 4.0;
/// Maximum unevenness of distances: their standard deviation divided by their mean.
const UNEVEN_MAX: f64 = 0.35;

/// A request's key.
type Request = (u64, StackId);

#[derive(Clone, Copy, Default)]
struct RequestSeries {
    count: u64,
    first: u64,
    last: u64,
    /// Sum of squared distances.
    squares: f64,
    live: f64,
}

impl RequestSeries {
    /// The mean distance, if the request recurs evenly over most of `events`.
    fn period(&self, events: u64) -> Option<f64> {
        let covered = self.last - self.first;
        if self.count < ROUNDS_MIN || covered * 2 < events {
            return None;
        }
        let gaps = (self.count - 1) as f64;
        let mean = covered as f64 / gaps;
        let deviation = (self.squares / gaps - mean * mean).max(0.0).sqrt();
        (mean >= EVENTS_MIN && deviation <= mean * UNEVEN_MAX).then_some(mean)
    }
}

/// The rounds of the request that marks them best.
pub(super) fn find<I: Iterator<Item = Event>>(
    paths: &Paths<'_>,
    events: &impl Fn() -> I,
) -> Option<(String, Vec<Span>)> {
    if !say_nothing(paths, events()) {
        return None;
    }
    let mut seen: HashMap<Request, RequestSeries> = HashMap::new();
    let (mut live, mut count) = (Live::default(), 0);
    for (at, event) in (0_u64..).zip(events()) {
        count = at + 1;
        if event.action == Action::Alloc {
            let known = seen.len() < REQUESTS_MAX || seen.contains_key(&(event.size, event.stack));
            if known {
                let it = seen.entry((event.size, event.stack)).or_default();
                if it.count == 0 {
                    it.first = at;
                } else {
                    it.squares += ((at - it.last) as f64).powi(2);
                }
                (it.count, it.last) = (it.count + 1, at);
                it.live += live.0 as f64;
            }
        }
        live.note(&event);
    }
    let mut even: Vec<(Request, RequestSeries)> =
        seen.into_iter().filter(|(_, it)| it.period(count).is_some()).collect();
    even.sort_unstable_by_key(|&(request, it)| (it.count, request));
    let usual = usual(&even)?;
    let peers = even.iter().filter(|(_, it)| alike(it.count, usual));
    let level = |it: &RequestSeries| it.live / it.count.max(1) as f64;
    let &(request, it) = peers.min_by(|a, b| level(&a.1).total_cmp(&level(&b.1)).then(a.0.cmp(&b.0)))?;
    let events_of_one = it.period(count)?.round() as u64;
    let rounds = cut(events(), request);
    may_be_steps(paths, events(), &rounds).then(|| (format!("a period of {events_of_one} events"), rounds))
}

fn alike(a: u64, b: u64) -> bool {
    a.abs_diff(b) * 20 <= a.max(b)
}

/// The count that most requests share; the lower one if two are equally common. `even` is sorted by count.
fn usual(even: &[(Request, RequestSeries)]) -> Option<u64> {
    let mut best: Option<(usize, u64)> = None;
    let mut from = 0;
    for (at, (_, it)) in even.iter().enumerate() {
        while !alike(even[from].1.count, it.count) {
            from += 1;
        }
        let votes = at + 1 - from;
        if best.is_none_or(|(most, _)| votes > most) {
            best = Some((votes, it.count));
        }
    }
    best.map(|(_, count)| count)
}

fn cut(events: impl Iterator<Item = Event>, request: Request) -> Vec<Span> {
    let (mut rounds, mut begin_ns, mut last_ns) = (Vec::new(), None, 0);
    for event in events {
        let begins = event.action == Action::Alloc && (event.size, event.stack) == request;
        if begins
            && rounds.len() < STEPS_MAX
            && let Some(begin_ns) = begin_ns.replace(event.time_ns)
        {
            rounds.push(Span { begin_ns, end_ns: last_ns });
        }
        last_ns = event.time_ns;
    }
    // What follows the last such request may be a round or a teardown. This cannot be known, so it is not a round.
    rounds
}
