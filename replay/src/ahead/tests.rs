//! Tests of forecasts for small programs under a limit. Their events are recorded while the allocator serves them.

mod differing;

use memctl_model::{Action, Event, PoolId, StackId};

use super::*;
use crate::allocator::Allocator;

const MIB: u64 = 1 << 20;

/// A process whose every event is passed to the forecast.
struct Recorded {
    allocator: Allocator,
    ahead: Ahead,
    /// The bytes and the stack of the last request.
    asked: (u64, StackId),
}

impl Recorded {
    fn new(limit: Limit) -> Self {
        let (allocator, ahead) = (Allocator::new(Conf::default(), limit), Ahead::new(Conf::default(), &[]));
        Self { allocator, ahead, asked: (0, StackId(0)) }
    }

    fn driver(&mut self) {
        for call in self.allocator.calls() {
            self.ahead.event(&Event {
                action: call.call.action(),
                addr: call.addr,
                size: call.size,
                ..Event::default()
            });
        }
        self.allocator.forget_calls();
    }

    /// Allocates a block; `None` if the request fails.
    fn alloc(&mut self, size: u64, stack: u32) -> Option<crate::BlockId> {
        self.asked = (size, StackId(stack));
        let served = self.allocator.malloc(size, 0, PoolId::DEFAULT);
        self.driver();
        let addr = self.allocator.address(served.ok()?);
        self.ahead.event(&Event { action: Action::Alloc, addr, size, stack: StackId(stack), ..Event::default() });
        served.ok()
    }

    fn free(&mut self, block: crate::BlockId) {
        let addr = self.allocator.address(block);
        self.allocator.free_requested(block);
        self.allocator.free_completed(block);
        for action in [Action::FreeRequested, Action::FreeCompleted] {
            self.ahead.event(&Event { action, addr, ..Event::default() });
        }
    }

    /// A step that uses two blocks, carries one over to the next step and keeps `keeps` bytes.
    fn step(&mut self, handed: &mut Option<crate::BlockId>, keeps: u64) -> Option<()> {
        let one = self.alloc(64 * MIB, 1)?;
        let two = self.alloc(32 * MIB, 2)?;
        if let Some(before) = handed.take() {
            self.free(before);
        }
        *handed = Some(self.alloc(24 * MIB, 3)?);
        if keeps > 0 {
            self.alloc(keeps, 4)?;
        }
        self.free(one);
        self.free(two);
        self.ahead.step_ends();
        Some(())
    }
}

#[test]
fn a_leak_is_told_before_the_step_that_fails() {
    let limit = Limit::Device(512 * MIB);
    let (mut recorded, mut handed, mut forecasts) = (Recorded::new(limit), None, Vec::new());
    let mut step = 1;
    while recorded.step(&mut handed, 20 * MIB).is_some() {
        assert!(step < 100, "it never fails");
        forecasts.extend(recorded.ahead.look(limit, STEPS_AHEAD).map(|fails| (step, fails)));
        step += 1;
    }
    let &(last, fails) = forecasts.last().expect("no forecast");
    assert_eq!((last + 1, fails.steps), (step, 1), "{forecasts:?}");
    assert_eq!(fails.shortage, Shortage::Capacity);
    assert!(forecasts.iter().all(|&(at, fails)| at + u64::from(fails.steps) == step), "{forecasts:?}");
}

#[test]
fn a_steady_process_that_nearly_fills_its_device_is_told_nothing() {
    let limit = Limit::Device(160 * MIB);
    let (mut recorded, mut handed) = (Recorded::new(limit), None);
    for _ in 0..50 {
        recorded.step(&mut handed, 0).expect("it fits");
        assert_eq!(recorded.ahead.look(limit, STEPS_AHEAD), None);
    }
    assert!(recorded.ahead.agreement().is_exact(), "{:?}", recorded.ahead.agreement());
}

#[test]
fn what_happens_once_is_not_expected_again() {
    let limit = Limit::Device(300 * MIB);
    let (mut recorded, mut handed) = (Recorded::new(limit), None);
    for step in 0..40 {
        let keeps = if step == 20 { 100 * MIB } else { 0 };
        recorded.step(&mut handed, keeps).expect("it fits");
        // If the large step came again, it would not fit. Such a forecast is expected, because only growing processes
        // are passed.
        let forecast = recorded.ahead.look(limit, STEPS_AHEAD).filter(|fails| fails.of == Of::Last);
        assert_eq!(forecast, None, "step {step}");
    }
}

#[test]
fn short_steps_are_looked_at_further_ahead() {
    let limit = Limit::Device(1024 * MIB);
    let (mut recorded, mut handed, mut forecasts) = (Recorded::new(limit), None, Vec::new());
    let mut step = 1;
    while recorded.step(&mut handed, 8 * MIB).is_some() {
        assert!(step < 200, "it never fails");
        forecasts.extend(recorded.ahead.look(limit, 20).map(|fails| (step, fails)));
        step += 1;
    }
    let (first, fails) = forecasts[0];
    // Two step ends must forecast it.
    assert_eq!((first + 19, fails.steps), (step, 19), "{forecasts:?}");
    assert!(forecasts.iter().all(|&(at, fails)| at + u64::from(fails.steps) == step), "{forecasts:?}");
}

/// Runs steps until one fails. Returns the failing step, counted from 1, and the report at the end of each step.
fn run(limit: Limit, step: impl FnMut(&mut Recorded, u64) -> Option<()>) -> (u64, Vec<(u64, Fails)>) {
    let (failed, _, forecasts) = run_named(limit, step);
    (failed, forecasts)
}

/// The same as `run`, and also returns the request that failed.
fn run_named(
    limit: Limit,
    mut step: impl FnMut(&mut Recorded, u64) -> Option<()>,
) -> (u64, (u64, StackId), Vec<(u64, Fails)>) {
    let (mut recorded, mut forecasts) = (Recorded::new(limit), Vec::new());
    for number in 1..500 {
        if step(&mut recorded, number).is_none() {
            return (number, recorded.asked, forecasts);
        }
        recorded.ahead.step_ends();
        forecasts.extend(recorded.ahead.look(limit, 16).map(|fails| (number, fails)));
    }
    panic!("it never fails")
}

/// A step's own work: two blocks that are allocated and freed.
fn work(recorded: &mut Recorded) -> Option<()> {
    let (one, two) = (recorded.alloc(64 * MIB, 1)?, recorded.alloc(32 * MIB, 2)?);
    recorded.free(one);
    recorded.free(two);
    Some(())
}

#[test]
fn a_leak_of_several_blocks_that_comes_now_and_then_is_told_until_it_fails() {
    // Every seventh step keeps three blocks of one place. The forecast does not know which step is next.
    let (failed, forecasts) = run(Limit::Device(512 * MIB), |recorded, number| {
        work(recorded)?;
        (0..if number % 7 == 0 { 3 } else { 0 }).try_for_each(|_| recorded.alloc(12 * MIB, 4).map(drop))
    });
    let before = forecasts.iter().filter(|(at, fails)| *at + 8 > failed && fails.of == Of::Last).count();
    assert_eq!(before, 7, "failed in {failed}: {forecasts:?}");
}

/// Runs steps of which each `every`th one evaluates. An evaluation takes more memory than a step and keeps some of it.
fn run_evaluating(every: u64) -> (u64, Vec<(u64, Fails)>) {
    run(Limit::Device(600 * MIB), |recorded, number| {
        if number.is_multiple_of(every) {
            let large = recorded.alloc(200 * MIB, 7)?;
            recorded.alloc(20 * MIB, 8)?;
            recorded.free(large);
        }
        work(recorded)
    })
}

#[test]
fn an_evaluation_is_played_in_its_turn() {
    let (failed, forecasts) = run_evaluating(10);
    let of_last: Vec<_> = forecasts.iter().filter(|(_, fails)| fails.of == Of::Last).collect();
    assert!(of_last.len() >= 8, "failed in {failed}: {forecasts:?}");
    let named = |(at, fails): &&&(u64, Fails)| fails.stack == StackId(8) && at + u64::from(fails.steps) == failed;
    assert_eq!(of_last.iter().filter(named).count(), of_last.len(), "failed in {failed}: {forecasts:?}");
}

#[test]
fn evaluations_at_even_distances_are_played_in_all_their_turns() {
    // Of the sixteen steps that are replayed, three evaluate.
    let (failed, forecasts) = run_evaluating(5);
    let (first, fails) = forecasts[0];
    assert!(fails.steps > 10, "failed in {failed}: {forecasts:?}");
    assert_eq!((first + u64::from(fails.steps), fails.stack), (failed, StackId(8)), "{forecasts:?}");
}

#[test]
fn room_was_seen_only_where_steps_were_played() {
    let limit = Limit::Device(1024 * MIB);
    let (mut recorded, mut handed, mut room) = (Recorded::new(limit), None, Vec::new());
    while recorded.step(&mut handed, 8 * MIB).is_some() {
        let forecast = recorded.ahead.look(limit, 8);
        room.push((recorded.ahead.has_room(), forecast.is_some() || recorded.ahead.is_in_sight()));
    }
    // Far from the limit nothing is replayed. Later steps are replayed, and at first they have room.
    let counts = |what: (bool, bool)| room.iter().filter(|seen| **seen == what).count();
    let (far, near, in_sight) = (counts((false, false)), counts((true, false)), counts((false, true)));
    assert!(far > 10 && near > 0 && in_sight > 4, "{room:?}");
    assert_eq!(room.iter().position(|seen| seen.0), Some(far), "{room:?}");
}

#[test]
fn a_stage_that_did_not_come_is_expected_no_more() {
    // Lengths grow twice, after ten steps each, and then stay. A third growth would not fit.
    let limit = Limit::Device(420 * MIB);
    let mut recorded = Recorded::new(limit);
    for number in 0..60_u64 {
        let of = 1 + (number / 10).min(2);
        let (one, two) = (recorded.alloc(of * 100 * MIB, 1).unwrap(), recorded.alloc(of * 30 * MIB, 2).unwrap());
        recorded.free(one);
        recorded.free(two);
        recorded.ahead.step_ends();
        let forecast = recorded.ahead.look(limit, 4);
        // The first step has number 1, so the fourth stage would begin with step 31.
        let is_told = (27..=29).contains(&number);
        assert_eq!(forecast.is_some(), is_told, "behind step {}: {forecast:?}", number + 1);
    }
}

#[test]
fn a_cache_that_was_returned_for_room_is_not_returned_by_the_program() {
    // A growing tensor is allocated again in each step. Late steps fit only after the cache is released. The forecast
    // is for the step that does not fit even then. Every third step makes one more request.
    let mut kept = None;
    let (failed, asked, forecasts) = run_named(Limit::Device(700 * MIB), |recorded, number| {
        let grown = recorded.alloc((64 + 6 * number) * MIB, 5)?;
        if let Some(before) = kept.replace(grown) {
            recorded.free(before);
        }
        if number % 3 == 0 {
            let more = recorded.alloc(2 * MIB, 6)?;
            recorded.free(more);
        }
        work(recorded)
    });
    assert!(forecasts.len() > 8, "failed in {failed}: {forecasts:?}");
    assert!(
        forecasts.iter().all(|&(at, fails)| at + u64::from(fails.steps) == failed),
        "failed in {failed}: {forecasts:?}"
    );
    assert!(
        forecasts.iter().all(|(_, fails)| (fails.requested.bytes, fails.stack) == asked),
        "{asked:?}: {forecasts:?}"
    );
}

#[test]
fn what_a_step_asks_for_anyway_and_keeps_now_and_then_is_not_asked_for_twice() {
    let limit = Limit::Device(768 * MIB);
    let (failed, forecasts) = run(limit, |recorded, step| {
        let one = recorded.alloc(64 * MIB, 1)?;
        let two = recorded.alloc(100 * MIB, 2)?;
        recorded.free(two);
        if !step.is_multiple_of(5) {
            recorded.free(one);
        }
        Some(())
    });
    // The reports come both after steps that kept the block and after steps that did not.
    assert_eq!((failed, forecasts.len()), (36, 9), "{forecasts:?}");
    assert!(forecasts.iter().all(|(_, fails)| fails.stack == StackId(2) && fails.of == Of::Last), "{forecasts:?}");
    assert!(forecasts.iter().all(|(at, fails)| at + u64::from(fails.steps) == failed), "{forecasts:?}");
}

#[test]
fn a_step_like_the_largest_is_tried_with_what_will_have_grown_until_then() {
    let limit = Limit::Device(900 * MIB);
    let (failed, forecasts) = run(limit, |recorded, step| {
        let needs = if step.is_multiple_of(30) { 200 } else { 100 };
        let one = recorded.alloc(needs * MIB, 1)?;
        recorded.alloc(12 * MIB, 2)?;
        recorded.free(one);
        Some(())
    });
    assert_eq!(failed, 60);
    // The forecast is first for the largest step some steps later, then for the largest step as the next one.
    let of =
        |steps| forecasts.iter().find(|(_, fails)| fails.of == Of::Most && fails.steps == steps).map(|&(at, _)| at);
    let (later_on, now) = (of(STEPS_AHEAD + 1), of(1));
    assert!(later_on.is_some() && now.is_some() && later_on < now, "{forecasts:?}");
}

#[test]
fn what_a_step_hands_on_and_every_second_one_keeps_is_told_exactly() {
    // Each step's last block is live until the next step has another, unless it is kept. The output that a loop
    // variable names is such a block.
    for every in [1, 2, 3, 5] {
        let mut handed = None;
        let (failed, forecasts) = run(Limit::Device(640 * MIB), |recorded, number| {
            let output = recorded.alloc(24 * MIB, 3)?;
            if let Some(before) = handed.take() {
                recorded.free(before);
            }
            work(recorded)?;
            handed = (!number.is_multiple_of(every)).then_some(output);
            Some(())
        });
        assert!(forecasts.len() >= 4, "every {every}, failed in {failed}: {forecasts:?}");
        let exact = forecasts
            .iter()
            .filter(|(at, fails)| at + u64::from(fails.steps) == failed && fails.of == Of::Last)
            .count();
        assert_eq!(exact, forecasts.len(), "every {every}, failed in {failed}: {forecasts:?}");
    }
}

#[test]
fn what_an_evaluating_step_keeps_like_others_is_told_exactly() {
    // Every tenth step keeps its last block. Every thirtieth step evaluates first and keeps it as well.
    let mut handed = None;
    let (failed, forecasts) = run(Limit::Device(700 * MIB), |recorded, number| {
        if number.is_multiple_of(30) {
            let some = (0..40).map(|_| recorded.alloc(2 * MIB, 3)).collect::<Option<Vec<_>>>()?;
            some.into_iter().for_each(|block| recorded.free(block));
        }
        work(recorded)?;
        let output = recorded.alloc(24 * MIB, 3)?;
        if let Some(before) = handed.take() {
            recorded.free(before);
        }
        handed = (!number.is_multiple_of(10)).then_some(output);
        Some(())
    });
    assert!(forecasts.len() >= 14, "failed in {failed}: {forecasts:?}");
    let inexact: Vec<_> = forecasts.iter().filter(|(at, fails)| at + u64::from(fails.steps) != failed).collect();
    assert!(inexact.is_empty(), "failed in {failed}: {inexact:?}");
}

#[test]
fn an_emptied_cache_is_not_taken_for_room() {
    let limit = Limit::Device(512 * MIB);
    let (mut recorded, mut handed, mut played) = (Recorded::new(limit), None, Vec::new());
    for number in 1..=40 {
        if number == 20 {
            let large = recorded.alloc(300 * MIB, 9).expect("it fits");
            recorded.free(large);
            recorded.allocator.empty_cache();
            recorded.driver();
        }
        recorded.step(&mut handed, 0).expect("it fits");
        recorded.ahead.look(limit, 4);
        if recorded.ahead.has_room() || recorded.ahead.is_in_sight() {
            played.push(number);
        }
    }
    assert!(played.iter().copied().eq(20..20 + STEPS_KEPT), "{played:?}");
}
