//! The stacks of one process in the form that its judge needs: a tree of frames, and the facts about each branch.
//!
//! Guarantees: a frame of the tree has the same cost regardless of how many stacks and devices share it. A stack costs
//! nothing until a table refers to it. Memory and time are proportional to the received data. Frames beyond the 96th
//! are ignored: they belong to the launcher and the interpreter.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use memctl_model::{Frame, StackId, site_of};

use super::frames::is_forward_frame;

/// Maximum number of stacks with frames; later stacks have none.
pub const STACKS_MAX: usize = 65_536;
/// Maximum number of frames of one stack that are examined, from the innermost on.
const FRAMES_MAX: usize = 96;
/// The caller of an outermost frame.
pub const OUTSIDE: u32 = u32::MAX;

/// A frame called from another frame, with facts about it and its callers.
#[derive(Clone, Copy, Debug)]
struct Node {
    frame: u32,
    caller: u32,
    /// Number of frames including its callers.
    depth: u32,
    /// The nearest frame of the user's code among it and its callers; `forward` is the nearest of a forward pass.
    user: u32,
    forward: u32,
    /// Whether any of these frames occurs only in a training.
    trains: bool,
}

/// The facts about a frame, computed once.
#[derive(Clone, Copy, Debug)]
struct Class {
    user: bool,
    forward: bool,
    trains: bool,
    autograd: bool,
}

/// The stacks of one process; see the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Stacks {
    frames: Vec<Arc<Frame>>,
    classes: Vec<Class>,
    frame_ids: HashMap<Arc<Frame>, u32>,
    nodes: Vec<Node>,
    /// The innermost frame of each stack.
    innermost: Vec<u32>,
    /// The sites of stacks, computed at the first use.
    sites: Vec<OnceLock<Option<Arc<Frame>>>>,
    /// The lines through which forward passes allocate: the innermost frame, and the innermost frame of the user's
    /// code.
    forward_lines: HashSet<(u32, u32)>,
    trains: bool,
}

impl Stacks {
    /// The number of a frame. Equal frames have the same number.
    pub fn frame(&mut self, frame: &Frame) -> u32 {
        if let Some(&known) = self.frame_ids.get(frame) {
            return known;
        }
        let frame = Arc::new(frame.clone());
        let id = self.frames.len() as u32;
        self.classes.push(Class {
            user: frame.is_user_code(),
            forward: is_forward_frame(&frame),
            trains: frame.file.contains("/torch/optim/") || frame.plain_function() == "backward",
            autograd: &*frame.file == "<autograd>",
        });
        self.frames.push(frame.clone());
        self.frame_ids.insert(frame, id);
        id
    }

    /// Adds a frame called from another frame of the tree ([`OUTSIDE`] if it has no caller), and returns its number.
    ///
    /// # Panics If `frame` is not the number of a frame.
    pub fn node(&mut self, frame: u32, caller: u32) -> u32 {
        let class = self.classes[frame as usize];
        let id = self.nodes.len() as u32;
        let outer = self.nodes.get(caller as usize);
        self.nodes.push(Node {
            frame,
            caller,
            depth: outer.map_or(0, |outer| outer.depth).saturating_add(1),
            user: if class.user { id } else { outer.map_or(OUTSIDE, |outer| outer.user) },
            forward: if class.forward { id } else { outer.map_or(OUTSIDE, |outer| outer.forward) },
            trains: class.trains || outer.is_some_and(|outer| outer.trains),
        });
        id
    }

    /// Adds the next stack by its innermost frame in the tree.
    pub fn stack(&mut self, innermost: u32) {
        if self.innermost.len() < STACKS_MAX {
            self.innermost.push(innermost);
            self.sites.push(OnceLock::new());
            self.tell(innermost);
        }
    }

    /// Sets the frames of a stack, innermost first.
    pub fn set(&mut self, id: StackId, frames: &[Frame]) {
        let Some(index) = (id.0 as usize).checked_sub(1).filter(|index| *index < STACKS_MAX) else { return };
        while self.innermost.len() <= index {
            self.stack(OUTSIDE);
        }
        let mut innermost = OUTSIDE;
        for frame in frames.iter().rev() {
            let frame = self.frame(frame);
            innermost = self.node(frame, innermost);
        }
        (self.innermost[index], self.sites[index]) = (innermost, OnceLock::new());
        self.tell(innermost);
    }

    fn tell(&mut self, innermost: u32) {
        let Some(node) = self.nodes.get(innermost as usize) else { return };
        self.trains |= node.trains || self.classes[node.frame as usize].autograd;
        self.forward_lines.extend(self.line_at(innermost));
    }

    /// Number of known stacks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.innermost.len()
    }

    /// Whether no stack has a frame.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Number of frames in the tree.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Bytes held in memory, without names.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.nodes.len() * size_of::<Node>()
            + self.innermost.len() * 32
            + self.frames.len() * 2 * (size_of::<Frame>() + 32)
            + self.forward_lines.len() * 16
    }

    /// Whether any stack shows that the process trains: a backward pass, an optimizer.
    pub(super) fn train(&self) -> bool {
        self.trains
    }

    fn innermost(&self, stack: StackId) -> u32 {
        let index = (stack.0 as usize).checked_sub(1);
        index.and_then(|index| self.innermost.get(index)).copied().unwrap_or(OUTSIDE)
    }

    /// The frames of a known stack, innermost first.
    pub(super) fn frames_of(&self, stack: StackId) -> impl Iterator<Item = &Arc<Frame>> {
        let mut next = self.innermost(stack);
        let chain = std::iter::from_fn(move || {
            let node = self.nodes.get(next as usize)?;
            next = node.caller;
            Some(&self.frames[node.frame as usize])
        });
        chain.take(FRAMES_MAX)
    }

    /// The site of a stack.
    pub(super) fn site(&self, stack: StackId) -> Option<Arc<Frame>> {
        let known = (stack.0 as usize).checked_sub(1).and_then(|index| self.sites.get(index))?;
        let look = || {
            let site = site_of(self.frames_of(stack).map(|frame| &**frame));
            // The stack's own copy of the frame is shared; a substitute frame is not part of the stack.
            let shared = self.frames_of(stack).find(|frame| Some(&***frame) == site).cloned();
            shared.or_else(|| site.cloned().map(Arc::new))
        };
        known.get_or_init(look).clone()
    }

    /// The line of a forward pass through which a stack allocates: its innermost frame, and the innermost frame of the
    /// user's code. A function of the user's code that runs beside the pass (a hook) has none.
    pub(super) fn forward_line(&self, stack: StackId) -> Option<(u32, u32)> {
        self.line_at(self.innermost(stack))
    }

    fn line_at(&self, innermost: u32) -> Option<(u32, u32)> {
        let node = self.nodes.get(innermost as usize)?;
        let near = |id: u32| {
            let found = self.nodes.get(id as usize)?;
            ((node.depth - found.depth) < FRAMES_MAX as u32).then_some(found)
        };
        let (pass, user) = (near(node.forward)?, near(node.user));
        let beside = user.is_some_and(|user| user.depth > pass.depth);
        (!beside).then_some((node.frame, user.unwrap_or(node).frame))
    }

    /// Number of lines through which forward passes allocate and which these lines of the user's code call, as far as
    /// stacks are known.
    pub(super) fn forward_lines(&self, callers: &HashSet<u32>) -> usize {
        self.forward_lines.iter().filter(|(_, user)| callers.contains(user)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: &str, file: &str) -> Frame {
        Frame { function: function.into(), file: file.into(), line: 1 }
    }

    /// A branch shows the same facts as a walk through its frames.
    #[test]
    fn what_a_branch_tells_is_what_its_frames_tell() {
        let kinds = [
            frame("f", "/home/u/train.py"),
            frame("forward", "/home/u/model.py"),
            frame("_call_impl", "/usr/lib/python3.12/site-packages/torch/nn/modules/module.py"),
            frame("linear", "/usr/lib/python3.12/site-packages/torch/nn/functional.py"),
            frame("step", "/usr/lib/python3.12/site-packages/torch/optim/adam.py"),
            frame("AddmmBackward0", "<autograd>"),
        ];
        let mut seed = 1_u64;
        let mut next = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        for _ in 0..300 {
            let length = [1, 5, 40, 200][next(4)];
            let stack: Vec<Frame> =
                (0..length).map(|_| kinds[3 + next(3) - 3 * usize::from(next(30) == 0)].clone()).collect();
            let mut stacks = Stacks::default();
            stacks.set(StackId(2), &stack);
            let near = &stack[..stack.len().min(FRAMES_MAX)];
            let line = near.iter().position(is_forward_frame).and_then(|pass| {
                let user = near.iter().find(|frame| frame.is_user_code()).or(near.first())?;
                (!near[..pass].iter().any(Frame::is_user_code)).then_some((&near[0], user))
            });
            let found = stacks.forward_line(StackId(2));
            let found = found.map(|(one, other)| (&*stacks.frames[one as usize], &*stacks.frames[other as usize]));
            assert_eq!(found, line);
            let trains = stack[0].file.starts_with("<auto") || stack.iter().any(|frame| &*frame.function == "step");
            assert_eq!((stacks.train(), stacks.len()), (trains, 2));
            assert_eq!(stacks.site(StackId(2)).as_deref(), site_of(near.iter()));
            assert!(stacks.frames_of(StackId(2)).map(|frame| &**frame).eq(near.iter()));
            assert!(stacks.site(StackId(1)).is_none() && stacks.forward_line(StackId(9)).is_none());
        }
    }

    #[test]
    fn a_million_stacks_of_the_same_frames_take_no_more_than_their_numbers() {
        let mut stacks = Stacks::default();
        let mut innermost = OUTSIDE;
        for line in 0..512 {
            let frame = stacks.frame(&Frame { line, ..frame("f", "a.py") });
            innermost = stacks.node(frame, innermost);
        }
        (0..1_000_000).for_each(|_| stacks.stack(innermost));
        assert_eq!((stacks.len(), stacks.nodes()), (STACKS_MAX, 512));
        assert!(stacks.bytes() < 4 << 20, "{}", stacks.bytes());
        assert_eq!(stacks.frames_of(StackId(STACKS_MAX as u32)).count(), FRAMES_MAX);
    }
}
