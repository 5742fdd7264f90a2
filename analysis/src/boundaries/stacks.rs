//! Finds the work that each stack of a recording shows: forward, backward, optimizer, or none.
//!
//! Guarantees: every stack is read once. A stack's path is a node of one tree that starts at the outermost frame, so
//! two stacks are compared by walking up. Memory is bounded by [`NODES_MAX`] and [`DEPTH_MAX`]. Only files, functions
//! and lines are used.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use memctl_model::{Frame, FrameId, StackId};

/// Frames of a stack that are read, starting at the outermost one. Frameworks use about forty.
pub(super) const DEPTH_MAX: usize = 96;
/// Maximum nodes of the tree of all paths.
const NODES_MAX: usize = 4 << 20;

/// A recording's stacks.
#[derive(Clone, Copy, Debug)]
pub struct Stacks<'a> {
    /// Frames by [`FrameId`].
    pub frames: &'a [Frame],
    /// Stacks, innermost frame first; the first one is `StackId(1)`.
    pub stacks: &'a [Vec<FrameId>],
}

/// The work during which an event happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Work {
    /// A module is called.
    Forward,
    /// Autograd runs.
    Backward,
    /// An optimizer's step.
    Optimizer,
    /// Gradients are freed.
    ZeroGrad,
    /// Python frames that show no kind of work.
    Other,
    /// No stack.
    Unseen,
}

/// A path from the outermost frame to another frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Node(pub u32);

/// The facts that one stack shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub work: Work,
    /// The whole path; `None` for an empty stack.
    pub leaf: Option<Node>,
    /// The part of the path that may repeat in a loop: the path to the user's own line, plus the first call of a model
    /// if the stack is within one. Repetition within such a call is a layer or a token. Repetition in a library that
    /// calls no model is part of the user's call. Calls from a backward pass belong to that pass.
    pub turn: Option<Node>,
    /// The path to the caller of the optimizer, autograd, or `zero_grad`.
    pub caller: Option<Node>,
}

const UNSEEN: Reading = Reading { work: Work::Unseen, leaf: None, turn: None, caller: None };

/// Represents all frames of a model's call.
const CALL: FrameId = FrameId(u32::MAX);

struct PathNode {
    parent: Option<Node>,
    frame: FrameId,
    depth: usize,
}

/// All stacks of a recording after they were read.
pub(super) struct Paths<'a> {
    frames: &'a [Frame],
    /// Whether each frame is in a compiled language. A recording with `stacks="all"` has such frames between and
    /// around those of Python.
    native: Vec<bool>,
    readings: Vec<Reading>,
    places: Vec<PathNode>,
    /// The number of each frame's function.
    functions: Vec<u32>,
}

impl<'a> Paths<'a> {
    pub(super) fn new(stacks: Stacks<'a>) -> Self {
        let works: Vec<Option<Work>> = stacks.frames.iter().map(work_of).collect();
        let mut numbers: HashMap<(&Arc<str>, &Arc<str>), u32> = HashMap::new();
        let mut functions = Vec::with_capacity(stacks.frames.len());
        for frame in stacks.frames {
            let next = numbers.len() as u32;
            functions.push(*numbers.entry((&frame.file, &frame.function)).or_insert(next));
        }
        let native = stacks.frames.iter().map(Frame::is_native).collect();
        let mut paths = Self { frames: stacks.frames, native, readings: Vec::new(), places: Vec::new(), functions };
        let mut children: HashMap<(Option<Node>, FrameId), Node> = HashMap::new();
        for stack in stacks.stacks {
            let reading = paths.read(stack, &works, &mut children);
            paths.readings.push(reading);
        }
        paths
    }

    fn read(
        &mut self,
        stack: &[FrameId],
        works: &[Option<Work>],
        children: &mut HashMap<(Option<Node>, FrameId), Node>,
    ) -> Reading {
        let is_python = |id: &&FrameId| !self.native.get(id.0 as usize).copied().unwrap_or(true);
        let stack: Vec<FrameId> = stack.iter().filter(is_python).copied().collect();
        let work_at = |id: FrameId| works.get(id.0 as usize).copied().flatten();
        let innermost = stack.iter().find_map(|&id| work_at(id));
        let in_autograd_thread = stack.last().is_some_and(|&id| {
            work_at(id) == Some(Work::Backward) || self.frame(id).is_some_and(Frame::begins_autograd_thread)
        });
        // Code that a backward pass calls (a checkpoint's second forward pass, a hook) is part of the backward pass.
        let in_backward = || in_autograd_thread || stack.iter().any(|&id| work_at(id) == Some(Work::Backward));
        let work = match innermost {
            Some(Work::Forward | Work::Other) | None if in_backward() => Work::Backward,
            Some(work) => work,
            None => Work::Other,
        };
        let (mut leaf, mut caller) = (None, None);
        // `user` is the path to the user's innermost line outside any call of a model; `called` is whether such a call
        // follows.
        let (mut user, mut called) = (None, false);
        for &frame in stack.iter().rev().take(DEPTH_MAX) {
            if caller.is_none() && leaf.is_some() && !in_autograd_thread && work_at(frame) == Some(work) {
                caller = leaf;
            }
            called |= self.frame(frame).is_some_and(is_call);
            let Some(node) = self.child(leaf, frame, children) else { break };
            leaf = Some(node);
            if !called && self.frame(frame).is_some_and(Frame::is_user_code) {
                user = leaf;
            }
        }
        if leaf.is_none() {
            return UNSEEN;
        }
        let turn = if called { self.child(user, CALL, children) } else { user };
        let turn = turn.filter(|_| work != Work::Backward);
        Reading { work, leaf, turn, caller: caller.filter(|_| work != Work::Forward && work != Work::Other) }
    }

    /// The path extended inwards by one frame; `None` if there are too many paths.
    fn child(
        &mut self,
        parent: Option<Node>,
        frame: FrameId,
        children: &mut HashMap<(Option<Node>, FrameId), Node>,
    ) -> Option<Node> {
        match children.entry((parent, frame)) {
            Entry::Occupied(entry) => Some(*entry.get()),
            Entry::Vacant(_) if self.places.len() >= NODES_MAX => None,
            Entry::Vacant(entry) => {
                let depth = parent.and_then(|Node(at)| self.places.get(at as usize)).map_or(0, |outer| outer.depth + 1);
                self.places.push(PathNode { parent, frame, depth });
                Some(*entry.insert(Node((self.places.len() - 1) as u32)))
            }
        }
    }

    pub(super) fn stacks(&self) -> usize {
        self.readings.len()
    }

    pub(super) fn nodes(&self) -> usize {
        self.places.len()
    }

    pub(super) fn reading(&self, stack: StackId) -> Reading {
        let at = (stack.0 as usize).checked_sub(1);
        at.and_then(|at| self.readings.get(at)).copied().unwrap_or(UNSEEN)
    }

    pub(super) fn frame(&self, id: FrameId) -> Option<&'a Frame> {
        self.frames.get(id.0 as usize)
    }

    /// The number of a frame's function.
    pub(super) fn function(&self, id: FrameId) -> u32 {
        self.functions.get(id.0 as usize).copied().unwrap_or(u32::MAX)
    }

    pub(super) fn parent(&self, node: Node) -> Option<Node> {
        self.places.get(node.0 as usize).and_then(|place| place.parent)
    }

    pub(super) fn frame_at(&self, node: Node) -> Option<FrameId> {
        self.places.get(node.0 as usize).map(|place| place.frame)
    }

    pub(super) fn depth(&self, node: Node) -> usize {
        self.places.get(node.0 as usize).map_or(0, |place| place.depth)
    }

    /// Whether a path ends in a model's call.
    pub(super) fn is_call(&self, node: Node) -> bool {
        self.frame_at(node) == Some(CALL)
    }

    /// The frames of a path, outermost first.
    pub(super) fn path(&self, node: Node) -> Vec<FrameId> {
        let mut path = Vec::new();
        let mut at = Some(node);
        while let Some(node) = at {
            path.extend(self.frame_at(node));
            at = self.parent(node);
        }
        path.reverse();
        path
    }
}

/// `train.py:31`.
pub(super) fn place(file: &str, line: u32) -> String {
    format!("{}:{line}", file.rsplit(['/', '\\']).next().unwrap_or_default())
}

/// Whether a file is this file of an installed torch.
fn is_torch(file: &str, part: &str) -> bool {
    file.find("torch").is_some_and(|_| file.replace('\\', "/").ends_with(part))
}

/// The work that a frame shows by itself.
fn work_of(frame: &Frame) -> Option<Work> {
    let function = frame.plain_function();
    let file = &*frame.file;
    match function {
        "zero_grad" => Some(Work::ZeroGrad),
        // An optimizer may call a closure that computes the loss. This is the step's work, not the optimizer's.
        "closure" | "_wrap_closure" => Some(Work::Other),
        "_call_impl" | "_wrapped_call_impl" if is_torch(file, "torch/nn/modules/module.py") => Some(Work::Forward),
        "backward" | "grad" | "_make_grads" | "_engine_run_backward"
            if ["torch/_tensor.py", "torch/autograd/__init__.py", "torch/autograd/graph.py"]
                .iter()
                .any(|part| is_torch(file, part)) =>
        {
            Some(Work::Backward)
        }
        "backward" | "unpack_hook" | "recompute_fn" if is_torch(file, "torch/utils/checkpoint.py") => {
            Some(Work::Backward)
        }
        "wrapper" | "_use_grad" if is_torch(file, "torch/optim/optimizer.py") => Some(Work::Optimizer),
        "step" if is_optimizer(frame) => Some(Work::Optimizer),
        _ => None,
    }
}

/// Whether a frame is a model's call. Nothing within such a call is a step. The calls are those of modules, regardless
/// of their caller (`torch.compile`, a checkpoint), and the generation of a text token by token.
fn is_call(frame: &Frame) -> bool {
    let file = &*frame.file;
    match frame.plain_function() {
        "forward" | "generate" => true,
        "__call__" | "_call_impl" | "_wrapped_call_impl" => is_torch(file, "torch/nn/modules/module.py"),
        _ => is_torch(file, "torch/_dynamo/eval_frame.py") || is_torch(file, "torch/utils/checkpoint.py"),
    }
}

/// Whether a file contains optimizers. For a library's file the whole path counts, for the user's file only its name.
fn is_optimizer(frame: &Frame) -> bool {
    let name = frame.file.rsplit(['/', '\\']).next().unwrap_or_default();
    name.contains("optim") || (frame.file.contains("optim") && !frame.is_user_code())
}
