//! A hand-made recording: a stack of frames that calls, returns and moves from line to line, and the events at each
//! point.

use memctl_analysis::boundaries::{Boundaries, Stacks, find};
use memctl_model::{Action, Event, Frame, FrameId, PoolId, StackId};

const SITE: &str = "/usr/lib/python3.11/site-packages/";

/// The recording so far.
#[derive(Default)]
pub struct Tape {
    frames: Vec<Frame>,
    stacks: Vec<Vec<FrameId>>,
    pub events: Vec<Event>,
    path: Vec<Frame>,
}

impl Tape {
    /// Calls a function, which begins at a line.
    pub fn call(&mut self, function: &str, file: &str, line: u32, body: impl FnOnce(&mut Self)) {
        self.path.push(Frame { function: function.into(), file: file.into(), line });
        body(self);
        self.path.pop();
    }

    /// Calls a function of an installed package.
    pub fn package(&mut self, function: &str, file: &str, line: u32, body: impl FnOnce(&mut Self)) {
        self.call(function, &format!("{SITE}{file}"), line, body);
    }

    /// Moves the innermost function to a line.
    pub fn line(&mut self, line: u32) -> &mut Self {
        if let Some(frame) = self.path.last_mut() {
            frame.line = line;
        }
        self
    }

    pub fn alloc(&mut self, size: u64) -> &mut Self {
        let stack = self.stack();
        self.event(Action::Alloc, size, stack)
    }

    pub fn free(&mut self, size: u64) -> &mut Self {
        let stack = self.stack();
        self.event(Action::FreeRequested, size, stack).event(Action::FreeCompleted, size, stack)
    }

    /// Calls modules whose activations stay.
    pub fn forward(&mut self, size: u64) -> &mut Self {
        self.package("_wrapped_call_impl", "torch/nn/modules/module.py", 1779, |tape| {
            for (at, part) in (0..4).zip([size / 2, size / 4, size / 8, size - size / 2 - size / 4 - size / 8]) {
                tape.call("forward", "/home/u/model.py", 10 + at, |tape| {
                    tape.alloc(part);
                });
            }
        });
        self
    }

    /// An evaluation's pass, which frees what it makes.
    pub fn predict(&mut self, size: u64) -> &mut Self {
        self.forward(size);
        self.package("_wrapped_call_impl", "torch/nn/modules/module.py", 1779, |tape| {
            tape.free(size);
        });
        self
    }

    /// Frees activations and makes gradients, from a thread without Python frames.
    pub fn backward(&mut self, activations: u64, gradients: u64) -> &mut Self {
        self.package("backward", "torch/_tensor.py", 631, |tape| {
            tape.package("_make_grads", "torch/autograd/__init__.py", 231, |tape| {
                tape.alloc(4);
            });
        });
        self.event(Action::Alloc, gradients, StackId::NONE);
        self.event(Action::FreeRequested, activations, StackId::NONE);
        self.event(Action::FreeCompleted, activations, StackId::NONE);
        self.package("backward", "torch/_tensor.py", 631, |tape| {
            tape.free(4);
        });
        self
    }

    /// An optimizer that allocates during its step.
    pub fn optimizer(&mut self) -> &mut Self {
        self.package("wrapper", "torch/optim/optimizer.py", 533, |tape| {
            tape.package("step", "torch/optim/adam.py", 248, |tape| {
                tape.alloc(2048).free(2048);
            });
        });
        self
    }

    pub fn zero_grad(&mut self, gradients: u64) -> &mut Self {
        self.package("zero_grad", "torch/optim/optimizer.py", 1066, |tape| {
            tape.free(gradients);
        });
        self
    }

    /// Allocates in another thread.
    pub fn elsewhere(&mut self) -> &mut Self {
        let mine = std::mem::take(&mut self.path);
        self.package("_bootstrap", "threading.py", 1002, |tape| {
            tape.alloc(64).free(64);
        });
        self.path = mine;
        self
    }

    pub fn event(&mut self, action: Action, size: u64, stack: StackId) -> &mut Self {
        let time_ns = self.events.len() as u64 * 1_000_000;
        self.events.push(Event { time_ns, addr: 0, size, stream: 0, pool: PoolId::default(), stack, action });
        self
    }

    fn stack(&mut self) -> StackId {
        let mut ids = Vec::new();
        for frame in self.path.iter().rev() {
            let known = self.frames.iter().position(|other| other == frame);
            let id = known.unwrap_or_else(|| {
                self.frames.push(frame.clone());
                self.frames.len() - 1
            });
            ids.push(FrameId(id as u32));
        }
        let known = self.stacks.iter().position(|other| *other == ids);
        StackId(
            known.unwrap_or_else(|| {
                self.stacks.push(ids);
                self.stacks.len() - 1
            }) as u32
                + 1,
        )
    }

    pub fn find(&self) -> Boundaries {
        find(Stacks { frames: &self.frames, stacks: &self.stacks }, || self.events.iter().copied())
    }

    /// Live bytes after the last event up to a time.
    pub fn live_at(&self, ns: u64) -> i64 {
        let change = |event: &Event| match event.action {
            Action::Alloc => event.size as i64,
            Action::FreeRequested => -(event.size as i64),
            _ => 0,
        };
        self.events.iter().take_while(|event| event.time_ns <= ns).map(change).sum()
    }
}
