//! Tests that for any recording, the search for boundaries ends, gives the same result twice, and gives ranges in
//! order within the recording.

use memctl_analysis::boundaries::{Stacks, find};
use memctl_model::{Action, Event, Frame, FrameId, PoolId, StackId};
use proptest::prelude::*;

fn frames() -> Vec<Frame> {
    let known = [
        ("<module>", "/home/u/train.py"),
        ("train", "/home/u/train.py"),
        ("_call_impl", "/x/site-packages/torch/nn/modules/module.py"),
        ("backward", "/x/site-packages/torch/_tensor.py"),
        ("step", "/x/site-packages/torch/optim/adam.py"),
        ("zero_grad", "/x/site-packages/torch/optim/optimizer.py"),
        ("apply", "/x/site-packages/torch/autograd/function.py"),
        ("", ""),
    ];
    let at = |line: u32| known.map(|(function, file)| Frame { function: function.into(), file: file.into(), line });
    (1..4).flat_map(at).collect()
}

fn event() -> impl Strategy<Value = Event> {
    let size = prop_oneof![Just(512_u64), Just(u64::MAX), 0..1_u64 << 30];
    (0..10_u8, size, 0..20_u32, 0..3_u64).prop_map(|(action, size, stack, gap)| Event {
        time_ns: gap,
        addr: 0,
        size,
        stream: 0,
        pool: PoolId::default(),
        stack: StackId(stack),
        action: Action::from_number(action).unwrap_or_default(),
    })
}

proptest! {
    #[test]
    fn anything_gives_ranges_in_order(
        stacks in prop::collection::vec(prop::collection::vec(0..30_u32, 0..8), 0..16),
        some in prop::collection::vec(event(), 0..60),
        times in 1..20_usize,
    ) {
        let frames = frames();
        let stacks: Vec<Vec<FrameId>> = stacks.into_iter().map(|ids| ids.into_iter().map(FrameId).collect()).collect();
        // The same events repeat: a loop of any kind.
        let mut now = 0;
        let mut events = Vec::new();
        for event in std::iter::repeat_n(&some, times).flatten() {
            now += event.time_ns;
            events.push(Event { time_ns: now, ..*event });
        }
        let look = || find(Stacks { frames: &frames, stacks: &stacks }, || events.iter().copied());
        let found = look();
        prop_assert_eq!(&found, &look());
        for ranges in [&found.steps, &found.epochs] {
            prop_assert!(ranges.iter().all(|range| range.begin_ns <= range.end_ns && range.end_ns <= now));
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end_ns <= pair[1].begin_ns), "{:?}", ranges);
        }
        prop_assert!(found.windows.is_sorted() && found.windows.iter().all(|end| *end <= now));
        prop_assert!(found.phases.iter().all(|(range, _)| range.begin_ns <= range.end_ns));
    }
}
