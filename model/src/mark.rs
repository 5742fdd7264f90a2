//! Marks: the process's position in the training loop.

/// A part of a training step or of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// Training, as opposed to evaluation.
    Train = 1,
    /// Evaluation or validation.
    Eval = 2,
    /// The forward pass.
    Forward = 3,
    /// The backward pass.
    Backward = 4,
    /// The optimizer's step.
    Optimizer = 5,
}

impl Phase {
    /// Every phase.
    pub const ALL: [Self; 5] = [Self::Train, Self::Eval, Self::Forward, Self::Backward, Self::Optimizer];

    /// The phase of a number, `None` for numbers other than 1 to 5.
    #[must_use]
    pub const fn of_number(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Train),
            2 => Some(Self::Eval),
            3 => Some(Self::Forward),
            4 => Some(Self::Backward),
            5 => Some(Self::Optimizer),
            _ => None,
        }
    }

    /// The name users type: `train`, `eval`, `forward`, `backward`, `optimizer`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Eval => "eval",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Optimizer => "optimizer",
        }
    }
}

/// The open phases. A new block gets the most significant of them: everything in an evaluation counts as evaluation,
/// including its forward passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    train: bool,
    eval: bool,
    /// Forward, backward or optimizer.
    part: Option<Phase>,
}

impl Phases {
    /// Begins a phase; returns the phase that new blocks get from here on.
    pub fn begin(&mut self, phase: Phase) -> Option<Phase> {
        match phase {
            Phase::Train => (self.train, self.eval) = (true, false),
            Phase::Eval => self.eval = true,
            Phase::Forward | Phase::Backward | Phase::Optimizer => self.part = Some(phase),
        }
        self.now()
    }

    /// Ends a phase; returns the phase that new blocks get from here on.
    pub fn end(&mut self, phase: Phase) -> Option<Phase> {
        match phase {
            Phase::Train => self.train = false,
            Phase::Eval => self.eval = false,
            // A part has already ended if another part followed it.
            Phase::Forward | Phase::Backward | Phase::Optimizer if self.part == Some(phase) => self.part = None,
            Phase::Forward | Phase::Backward | Phase::Optimizer => {}
        }
        self.now()
    }

    fn now(self) -> Option<Phase> {
        match self {
            Self { eval: true, .. } => Some(Phase::Eval),
            Self { part: Some(part), .. } => Some(part),
            Self { train: true, .. } => Some(Phase::Train),
            _ => None,
        }
    }
}

/// The content of a mark.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MarkKind {
    /// Epoch `n` begins.
    EpochBegin(u32),
    /// Epoch `n` has ended.
    EpochEnd(u32),
    /// Step `n` begins. Steps count through the job, not within an epoch.
    StepBegin(u64),
    /// Step `n` has ended.
    StepEnd(u64),
    /// A phase begins.
    PhaseBegin(Phase),
    /// A phase has ended.
    PhaseEnd(Phase),
    /// A region that the user or a library named begins.
    RegionBegin(String),
    /// A named region has ended.
    RegionEnd(String),
    /// Window `n` has ended: see [`crate::Boundary::WindowEnd`]. Windows count from 0 and follow each other without
    /// gaps.
    WindowEnd(u64),
    /// A one-time event: `empty_cache`, a changed setting, a changed recording level.
    Note(String),
}

/// A mark in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Its content.
    pub kind: MarkKind,
}
