//! A process on a full device of unknown size: releases caused by a request are distinguished from releases by the
//! program.
//!
//! Guarantees: the recordings are made by the allocator itself under a limit. Each ends with a failure at the latest.

use memctl_model::{Action, Event, PoolId};
use memctl_replay::{Allocator, BlockId, Conf, Follow, Limit, Request, Version};

const MIB: u64 = 1 << 20;

/// Pseudo-random numbers.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// A program that requests sizes of all kinds and holds a few blocks. Returns its events, and how often oversize
/// blocks were released for a request.
fn recorded(conf: &Conf, seed: u64) -> (Vec<Event>, u64) {
    let mut allocator = Allocator::new(conf.clone(), Limit::Device(512 * MIB));
    let (mut draw, mut held, mut events, mut refused) = (Draw(seed), Vec::<BlockId>::new(), Vec::new(), 0);
    let event = |action: Action, addr: u64, size: u64| Event { action, addr, size, ..Event::default() };
    for _ in 0..3_000 {
        let size = if draw.below(2) == 0 { 1 + draw.below(80 * MIB) } else { 1 + draw.below(2 * MIB) };
        let retries = allocator.counts().retries;
        let served = allocator.malloc(size, 0, PoolId::DEFAULT);
        let calls = allocator.calls().to_vec();
        allocator.forget_calls();
        events.extend(calls.iter().map(|call| event(call.call.action(), call.addr, call.size)));
        let Ok(id) = served else { break };
        let gave_back = calls.iter().any(|call| call.call.action() == Action::SegmentFree);
        refused += u64::from(gave_back && allocator.counts().retries == retries);
        events.push(event(Action::Alloc, allocator.address(id), size));
        held.push(id);
        if held.len() > 6 {
            let at = draw.below(held.len() as u64) as usize;
            let gone = held.swap_remove(at);
            let addr = allocator.address(gone);
            allocator.free_requested(gone);
            allocator.free_completed(gone);
            events.extend([Action::FreeRequested, Action::FreeCompleted].map(|action| event(action, addr, 0)));
        }
    }
    (events, refused)
}

#[test]
fn what_goes_back_for_a_request_is_its_own() {
    for (setting, goes_back) in
        [("max_split_size_mb:21", true), ("max_split_size_mb:32", true), ("", false), ("max_split_size_mb:64", true)]
    {
        let conf = Conf::parse(setting, Version::of(2, 11)).expect("a setting").0;
        let mut refused = 0;
        for seed in 0..40 {
            let (events, times) = recorded(&conf, seed);
            refused += times;
            let mut follow = Follow::new(conf.clone(), Limit::None, &[]);
            events.iter().for_each(|event| follow.event(event, |_, _| {}));
            follow.finish(|_, _| {});
            let agreement = follow.agreement();
            assert!(agreement.is_exact(), "{setting:?}, seed {seed}: {agreement:?}");
        }
        assert_eq!(refused > 0, goes_back, "{setting:?}: oversize blocks went back {refused} times");
    }
}

#[test]
fn a_cache_that_the_program_returns_is_not_a_retry() {
    let conf = Conf::parse("max_split_size_mb:32", Version::of(2, 11)).expect("a setting").0;
    // On a device with room: an oversize block is freed, the cache is emptied, and a larger block is requested.
    let mut allocator = Allocator::new(conf.clone(), Limit::None);
    let mut events = Vec::new();
    let driver = |allocator: &mut Allocator, events: &mut Vec<Event>| {
        events.extend(allocator.calls().iter().map(|call| Event {
            action: call.call.action(),
            addr: call.addr,
            size: call.size,
            ..Event::default()
        }));
        allocator.forget_calls();
    };
    for size in [40 * MIB, 60 * MIB, 80 * MIB] {
        let id = allocator.malloc(size, 0, PoolId::DEFAULT).expect("there is room");
        driver(&mut allocator, &mut events);
        let addr = allocator.address(id);
        events.push(Event { action: Action::Alloc, addr, size, ..Event::default() });
        allocator.free_requested(id);
        allocator.free_completed(id);
        events.extend([Action::FreeRequested, Action::FreeCompleted].map(|action| Event {
            action,
            addr,
            ..Event::default()
        }));
        allocator.empty_cache();
        driver(&mut allocator, &mut events);
    }
    let mut follow = Follow::new(conf, Limit::None, &[]);
    let mut returned = 0;
    let mut count = |_, request: &Request<'_>| returned += u64::from(matches!(request, Request::EmptyCache));
    events.iter().for_each(|event| follow.event(event, &mut count));
    follow.finish(&mut count);
    assert!(follow.agreement().is_exact(), "{:?}", follow.agreement());
    assert_eq!((returned, follow.counts().retries), (3, 0));
}
