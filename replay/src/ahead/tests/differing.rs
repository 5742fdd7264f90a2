//! Tests of programs whose steps differ: the forecast of the failing step, and the requests that are named.

use super::*;

/// A pseudo-random number for a step.
fn drawn(step: u64) -> u64 {
    let mut drawn = (step + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    drawn ^= drawn >> 32;
    drawn.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 40
}

#[test]
fn of_steps_that_differ_the_next_one_may_be_as_large_as_any() {
    let forecasts_of = |limit, needs: [u64; 3]| {
        run(Limit::Device(limit * MIB), |recorded, step| {
            let one = recorded.alloc(needs[step as usize % 3] * MIB, 1)?;
            recorded.alloc(12 * MIB, 2)?;
            recorded.free(one);
            Some(())
        })
    };
    for limit in (600..900).step_by(10) {
        let (failed, forecasts) = forecasts_of(limit, [180, 150, 160]);
        let last = forecasts.last().map(|(at, fails)| (*at, fails.steps));
        assert_eq!(last, Some((failed - 1, 1)), "{limit}: {forecasts:?}");
        // Steps that are alike recur unchanged.
        let (failed, forecasts) = forecasts_of(limit, [160, 160, 160]);
        assert!(
            forecasts.iter().all(|(at, fails)| fails.of == Of::Last && at + u64::from(fails.steps) == failed),
            "{forecasts:?}"
        );
    }
}

/// Runs kinds of steps in an unknown order. Each kind makes its largest request in a place of its own; the sizes are
/// `apart` MiB apart. Passes each report to `report` and returns the place that fails.
fn run_of_kinds(kinds: u64, apart: u64, mut report: impl FnMut(&mut Ahead, Limit, Fails)) -> StackId {
    let limit = Limit::Device(600 * MIB);
    let mut recorded = Recorded::new(limit);
    for number in 0..500_u64 {
        let kind = (number * number / 3 + number / 5) % kinds;
        recorded.alloc(12 * MIB, 2).expect("the largest one fails first");
        let Some(largest) = recorded.alloc((150 + apart * kind) * MIB, 10 + kind as u32) else {
            return recorded.asked.1;
        };
        recorded.free(largest);
        recorded.ahead.step_ends();
        if let Some(seen) = recorded.ahead.look(limit, 4) {
            report(&mut recorded.ahead, limit, seen);
        }
    }
    panic!("it never fails")
}

/// The requesting stacks.
fn places(all: &[Fails]) -> Vec<StackId> {
    all.iter().map(|it| it.stack).collect()
}

#[test]
fn where_steps_differ_each_request_that_may_fail_is_named() {
    let mut named = Vec::new();
    let failed = run_of_kinds(3, 3, |ahead, limit, seen| {
        named = [vec![seen.stack], places(&ahead.other_failures(limit, &seen))].concat();
    });
    named.sort_unstable();
    assert_eq!(named, [10, 11, 12].map(StackId));
    assert!(named.contains(&failed));
    // If steps are alike, there is no other request to name.
    let mut looks = 0;
    let failed = run_of_kinds(1, 3, |ahead, limit, seen| {
        assert_eq!(ahead.names(limit, &seen), (seen, Vec::new()));
        looks += 1;
    });
    assert_eq!((failed, looks > 2), (StackId(10), true));
}

#[test]
fn of_a_step_like_the_largest_what_was_named_stays_named() {
    let mut looks = 0;
    run_of_kinds(5, 12, |ahead, limit, seen| {
        let Some(&other) = ahead.other_failures(limit, &seen).first() else { return };
        // First a look that named the other request, then one that forecasts this request for the last or for the
        // largest step.
        let after = |of: Of| {
            let mut ahead = ahead.clone();
            assert_eq!(ahead.names(limit, &Fails { of: Of::Last, ..other }).0.stack, other.stack);
            ahead.names(limit, &Fails { of, ..seen })
        };
        assert_eq!(after(Of::Last).0.stack, seen.stack);
        let (first, instead) = after(Of::Most);
        assert_eq!(first.stack, other.stack);
        assert!(places(&instead).contains(&seen.stack), "what was seen is named, too");
        looks += 1;
    });
    assert!(looks > 2);
}

#[test]
fn where_steps_differ_what_was_named_of_late_is_named_besides() {
    for kinds in [5, 1] {
        let mut looks = 0;
        run_of_kinds(kinds, 12, |ahead, limit, seen| {
            // A request that was named once and no longer fails in any step.
            let (mut ahead, gone) = (ahead.clone(), Fails { stack: StackId(99), of: Of::Last, ..seen });
            ahead.names(limit, &gone);
            let (_, instead) = ahead.names(limit, &Fails { of: Of::Last, ..seen });
            assert_eq!(places(&instead).contains(&gone.stack), kinds > 1);
            looks += 1;
        });
        assert!(looks > 2);
    }
}

#[test]
fn of_steps_that_differ_the_largest_is_looked_for_behind_others() {
    // The last step would need many more steps to fail; the largest one fails sooner.
    let (limit, mut recorded) = (Limit::Device(600 * MIB), Recorded::new(Limit::Device(600 * MIB)));
    let (mut forecasts, mut number) = (Vec::new(), 0_u64);
    loop {
        let kind = drawn(number) % 4;
        recorded.alloc(4 * MIB, 2).expect("the largest one fails first");
        let Some(largest) = recorded.alloc((150 + 40 * kind) * MIB, 10 + kind as u32) else { break };
        recorded.free(largest);
        recorded.ahead.step_ends();
        forecasts.extend(recorded.ahead.look(limit, 64).filter(|seen| seen.steps > 1).map(|seen| (number, seen)));
        number += 1;
    }
    assert!(forecasts.len() > 20, "{forecasts:?}");
    let others: Vec<_> = forecasts.iter().filter(|(_, seen)| seen.stack != StackId(13)).collect();
    assert!(others.is_empty(), "failed in {number}: {others:?}");
}

#[test]
fn of_a_step_like_the_largest_what_fails_should_it_come_later_is_named() {
    // The largest step makes two requests. By the time when the second one fails, the first one is about to fail as
    // well.
    let limit = Limit::Device(600 * MIB);
    let (mut recorded, mut both) = (Recorded::new(limit), 0);
    for number in 0..500_u64 {
        recorded.alloc(3 * MIB, 2).expect("the largest one fails first");
        let is_large = number < 16 && drawn(number).is_multiple_of(4);
        let (one, two) = if is_large { (150, 100) } else { (30 + 10 * (drawn(number) % 4), 8) };
        let one = recorded.alloc(one * MIB, 10).expect("the large ones come early");
        let two = recorded.alloc(two * MIB, 11).expect("the large ones come early");
        recorded.free(one);
        recorded.free(two);
        recorded.ahead.step_ends();
        let Some(seen) = recorded.ahead.look(limit, 4).filter(|seen| seen.of == Of::Most) else { continue };
        let named = [vec![seen.stack], places(&recorded.ahead.other_failures(limit, &seen))].concat();
        if seen.stack == StackId(10) {
            assert!(both > 1, "the first one failed, and was named in {both} looks");
            return;
        }
        both += u32::from(named == [11, 10].map(StackId));
    }
    panic!("the first one never failed");
}
