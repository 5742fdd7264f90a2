//! Sites of added blocks: stacks as they would be in user code of this training, and positions within a step.
//!
//! Guarantees: names carry no information, because leaks and harmless growth draw from the same names. Two sites of a
//! run never share a line. The outer frames of a stack, from the training loop outwards, are the training's own. So the
//! training appears to call the added code.

use std::sync::Arc;

use memctl_model::{Frame, MarkKind, Phase, StackId};

use super::base::{Base, Passing, Span};
use super::draw::Draw;

const FUNCTIONS: [&str; 10] =
    ["remember", "collect", "keep", "store", "push", "update", "record", "observe", "track", "on_batch"];
const FILES: [&str; 5] = ["metrics.py", "callbacks.py", "data.py", "engine.py", "helpers.py"];
const LIBRARY: [(&str, &str, u32); 5] = [
    ("/usr/lib/python3.11/site-packages/torch/_tensor.py", "__torch_function__", 1668),
    ("/usr/lib/python3.11/site-packages/torch/functional.py", "einsum", 422),
    ("/usr/lib/python3.11/site-packages/torchmetrics/metric.py", "wrapped_func", 482),
    ("/usr/lib/python3.11/site-packages/torch/utils/_contextlib.py", "decorate_context", 120),
    ("/usr/lib/python3.11/site-packages/numpy/core/fromnumeric.py", "concatenate", 86),
];
/// The numbers of added lines are above those of the training's lines, so the two never collide.
const FIRST_ADDED_LINE: u32 = 400;

/// The place in a step at which something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Among the activations.
    Forward,
    /// After the last activation, before the backward pass ends.
    Middle,
    /// Before the step ends.
    End,
    /// Between the end of this step and the beginning of the next one, or at that beginning.
    After,
}

impl Place {
    /// Every place.
    pub const ALL: [Self; 4] = [Self::Forward, Self::Middle, Self::End, Self::After];
}

/// The stacks that a run adds to those of its base. They are the same for all ranks, but their ids differ.
#[derive(Clone, Debug, Default)]
pub struct Sites {
    /// Added stacks, innermost frame first.
    pub stacks: Vec<Vec<Frame>>,
}

/// An added stack by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site(pub usize);

impl Site {
    /// The stack's id in a rank with this base. The ids follow those of the base's own stacks.
    #[must_use]
    pub fn id(self, base: &Base) -> StackId {
        StackId((base.stacks.len() + self.0 + 1) as u32)
    }
}

fn frame(file: &str, function: &str, line: u32) -> Frame {
    Frame { function: Arc::from(function), file: Arc::from(file), line }
}

/// The frames of the training loop around a span: the outermost frames of the user's own code. The innermost of them
/// comes first.
fn caller(base: &Base, span: Span) -> Vec<Frame> {
    let stacks = base.born_in(span).iter().map(|life| base.frames(life.stack));
    let own = |stack: &[Frame]| stack.iter().rev().take_while(|frame| frame.is_user_code()).count();
    let deepest = stacks.max_by_key(|stack| own(stack).min(4)).unwrap_or_default();
    // The code that calls the model also calls the added code, so only the two outermost frames of user code are kept.
    // If the stack has only two, the inner one may belong to the model itself.
    let outer = own(deepest).min(2).max(usize::from(!deepest.is_empty()).min(own(deepest)));
    deepest[deepest.len() - outer..].to_vec()
}

impl Sites {
    /// A new site in code that the loop calls within a span.
    pub fn add(&mut self, base: &Base, span: Span, draw: &mut Draw) -> Site {
        let mut around = caller(base, span);
        let line = FIRST_ADDED_LINE + 7 * self.stacks.len() as u32 + draw.int(0, 3) as u32;
        let folder =
            around.first().and_then(|frame| frame.file.rsplit_once('/')).map_or("/home/user", |it| it.0).to_owned();
        let file = format!("{folder}/{}", draw.of(&FILES));
        match around.first_mut() {
            Some(caller) => caller.line = line,
            None => around.push(frame(&format!("{folder}/train.py"), "main", line)),
        }
        let function = draw.of(&FUNCTIONS);
        let helper = draw.chance(0.7);
        if helper {
            around.insert(0, frame(&file, function, line));
        }
        if helper && draw.chance(0.3) {
            let (file, function, line) = *draw.of(&LIBRARY);
            around.insert(0, frame(file, function, line));
        }
        self.stacks.push(around);
        Site(self.stacks.len() - 1)
    }

    /// A new site in a forward hook. It is inside the frames that call a module of this training.
    pub fn add_hook(&mut self, base: &Base, draw: &mut Draw) -> Site {
        let middle = base.steps.len() / 2;
        let within: Vec<&[Frame]> = base
            .activations(middle)
            .map(|life| base.frames(life.stack))
            .filter(|stack| stack.iter().any(|frame| frame.plain_function() == "_call_impl"))
            .collect();
        let site = self.add(base, base.steps[middle], draw);
        if !within.is_empty() {
            let stack = *draw.of(&within);
            let calls = stack.iter().position(|frame| frame.plain_function() == "_call_impl").unwrap_or(0);
            let line = FIRST_ADDED_LINE + 7 * site.0 as u32 + 4;
            let folder = self.user_frame(site).and_then(|frame| frame.file.rsplit_once('/')).map(|it| it.0.to_owned());
            let file = format!("{}/{}", folder.unwrap_or_default(), draw.of(&FILES));
            let function: &&str = draw.of(&FUNCTIONS);
            let hook = frame(&file, function, line);
            self.stacks[site.0] = [&[hook], &stack[calls..]].concat();
        }
        site
    }

    /// The innermost frame of the user's own code of an added site.
    #[must_use]
    pub fn user_frame(&self, site: Site) -> Option<&Frame> {
        self.stacks[site.0].iter().find(|frame| frame.is_user_code())
    }
}

/// The position of a place in a step.
#[must_use]
pub fn position(base: &Base, step: usize, place: Place, fraction: f64) -> usize {
    let span = base.steps[step];
    let mut activations = base.activations(step);
    let at = match place {
        Place::Forward => {
            let born: Vec<usize> = activations.map(|life| life.born).collect();
            born.get((fraction * born.len() as f64) as usize).copied().unwrap_or(span.begin)
        }
        Place::Middle => {
            let first = activations.next().map_or(span.begin, |life| life.born);
            activations.last().map_or(first, |life| life.born)
        }
        Place::End => last_event(base, span),
        Place::After => return after(base, span),
    };
    base.settled(at)
}

fn last_event(base: &Base, span: Span) -> usize {
    (span.begin..=span.end).rev().find(|&at| matches!(base.moments[at], Passing::Event(_))).unwrap_or(span.begin)
}

/// A position after the end of a step, but still in its epoch.
fn after(base: &Base, span: Span) -> usize {
    let settled = base.settled(span.end + 1);
    let between = base.moments.get(span.end + 1..=settled).unwrap_or_default();
    let ends = |moment: &Passing| matches!(moment, Passing::Mark(mark) if matches!(mark.kind, MarkKind::EpochEnd(_)));
    if between.iter().any(ends) { span.end } else { settled }
}

/// The position of the last allocation in a step's optimizer phase. If there is none, the end of the step.
#[must_use]
pub fn in_optimizer(base: &Base, step: usize) -> usize {
    let span = base.steps[step];
    let last = base.born_in(span).iter().rfind(|life| life.phase == Some(Phase::Optimizer)).map(|life| life.born);
    base.settled(last.unwrap_or_else(|| last_event(base, span)))
}
