//! A base: one rank of a training without a leak, with the data that is needed to add blocks to it.
//!
//! Guarantees: the stream is that of the recording. Its marks and events are in the order of an import. The lifetimes
//! of blocks are computed once.
//! Refuses recordings whose events contradict the block map.

use std::collections::HashMap;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use memctl_analysis::initial_state;
use memctl_model::{
    Action, AllocatorSettings, DeviceIndex, Event, Frame, Keyframe, KeyframeReason, Mark, MarkKind, Phase, StackId,
};
use memctl_snapshot::{Moment, load, merge};

/// A range of positions in a stream: from the first to the last moment of something, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First moment.
    pub begin: usize,
    /// Last moment.
    pub end: usize,
}

impl Span {
    /// Whether a position is in the span.
    #[must_use]
    pub fn holds(self, at: usize) -> bool {
        (self.begin..=self.end).contains(&at)
    }
}

/// One moment of a stream.
#[derive(Clone, Debug)]
pub enum Passing {
    /// An event.
    Event(Event),
    /// A mark.
    Mark(Mark),
}

/// A block of the base, with its lifetime.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    /// Position of its allocation.
    pub born: usize,
    /// The position at which its free is requested; `None` if it lives until the end.
    pub died: Option<usize>,
    /// The requested bytes.
    pub size: u64,
    /// The stack that allocated it.
    pub stack: StackId,
    /// The phase in which it was allocated.
    pub phase: Option<Phase>,
}

/// A base; see the module's documentation.
pub struct Base {
    /// The allocator's settings.
    pub settings: AllocatorSettings,
    /// The state before the first moment.
    pub start: Keyframe,
    /// The stream.
    pub moments: Vec<Passing>,
    /// The stacks in the order of their ids, from id 1. The innermost frame of a stack comes first.
    pub stacks: Arc<Vec<Vec<Frame>>>,
    /// Steps in order.
    pub steps: Vec<Span>,
    /// The position at which each request begins to free its memory. Only for servers, whose steps are requests.
    pub releases: Vec<usize>,
    /// Epochs in order.
    pub epochs: Vec<Span>,
    /// Evaluations in order.
    pub evals: Vec<Span>,
    /// The blocks, in the order of their allocation.
    pub lives: Vec<Life>,
}

impl Base {
    /// Reads a recording. If it has several devices, the device with most events is used.
    ///
    /// # Errors
    /// The recording cannot be read or has no events.
    pub fn load(path: &Path) -> Result<Self, Box<dyn Error>> {
        let recording = load(path, &mut |_| {})?;
        let device = recording.devices.iter().max_by_key(|device| device.events.len());
        let device = device.ok_or_else(|| format!("{}: no events", path.display()))?;
        let start =
            initial_state(&recording.settings, device.device, &device.final_segments, device.events.iter()).keyframe;
        let moments: Vec<Passing> = merge(recording.marks.iter().cloned(), vec![(device.device, device.events.iter())])
            .map(|moment| match moment {
                Moment::Event(_, event) => Passing::Event(event),
                Moment::Mark(mark) => Passing::Mark(mark),
            })
            .collect();
        let frame = |id: &memctl_model::FrameId| recording.frames.get(id.0 as usize).cloned();
        let stacks = recording.stacks.iter().map(|stack| stack.iter().filter_map(frame).collect()).collect::<Vec<_>>();
        let mut base = Self::bare(recording.settings.clone(), start, moments, Arc::new(stacks));
        base.find_spans();
        Ok(base)
    }

    /// A base of a generated stream without marks. The caller passes the spans of steps and epochs.
    #[must_use]
    pub fn made(events: Vec<Event>, stacks: Arc<Vec<Vec<Frame>>>, steps: Vec<Span>) -> Self {
        let start = Keyframe {
            device: DeviceIndex(0),
            at_event: 0,
            time_ns: events.first().map_or(0, |event| event.time_ns),
            reason: KeyframeReason::Start,
            segments: Vec::new(),
            loose: Vec::new(),
        };
        let moments = events.into_iter().map(Passing::Event).collect();
        Self { steps, ..Self::bare(AllocatorSettings::default(), start, moments, stacks) }
    }

    fn bare(settings: AllocatorSettings, start: Keyframe, moments: Vec<Passing>, stacks: Arc<Vec<Vec<Frame>>>) -> Self {
        let (steps, epochs, evals, lives) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut base = Self { settings, start, moments, stacks, steps, releases: Vec::new(), epochs, evals, lives };
        base.find_lives();
        base
    }

    /// The time of a position.
    #[must_use]
    pub fn time_ns(&self, at: usize) -> u64 {
        match self.moments.get(at) {
            Some(Passing::Event(event)) => event.time_ns,
            Some(Passing::Mark(mark)) => mark.time_ns,
            None => 0,
        }
    }

    fn find_spans(&mut self) {
        let (mut step, mut epoch, mut eval) = (None, None, None);
        for (at, moment) in self.moments.iter().enumerate() {
            let Passing::Mark(mark) = moment else { continue };
            let (list, begun, begins) = match mark.kind {
                MarkKind::StepBegin(_) => (&mut self.steps, &mut step, true),
                MarkKind::StepEnd(_) => (&mut self.steps, &mut step, false),
                MarkKind::EpochBegin(_) => (&mut self.epochs, &mut epoch, true),
                MarkKind::EpochEnd(_) => (&mut self.epochs, &mut epoch, false),
                MarkKind::PhaseBegin(Phase::Eval) => (&mut self.evals, &mut eval, true),
                MarkKind::PhaseEnd(Phase::Eval) => (&mut self.evals, &mut eval, false),
                _ => continue,
            };
            if begins {
                *begun = Some(at);
            } else if let Some(begin) = begun.take() {
                list.push(Span { begin, end: at });
            }
        }
    }

    fn find_lives(&mut self) {
        let mut live: HashMap<u64, usize> = HashMap::new();
        let mut phases = memctl_model::Phases::default();
        let mut phase = None;
        for (at, moment) in self.moments.iter().enumerate() {
            match moment {
                Passing::Mark(mark) => match mark.kind {
                    MarkKind::PhaseBegin(begun) => phase = phases.begin(begun),
                    MarkKind::PhaseEnd(ended) => phase = phases.end(ended),
                    _ => {}
                },
                Passing::Event(event) if event.action == Action::Alloc => {
                    live.insert(event.addr, self.lives.len());
                    self.lives.push(Life { born: at, died: None, size: event.size, stack: event.stack, phase });
                }
                Passing::Event(event) if event.action == Action::FreeRequested => {
                    if let Some(life) = live.remove(&event.addr) {
                        self.lives[life].died = Some(at);
                    }
                }
                Passing::Event(_) => {}
            }
        }
    }

    /// Whether a block is still live when the last step ends. Such a block belongs to the training's permanent memory.
    #[must_use]
    pub fn stays(&self, life: &Life) -> bool {
        let last = self.steps.last().map_or(0, |span| span.end);
        life.died.is_none_or(|died| died > last)
    }

    /// The frames of a stack, innermost first; empty if there is no stack.
    #[must_use]
    pub fn frames(&self, stack: StackId) -> &[Frame] {
        (stack.0 as usize).checked_sub(1).and_then(|place| self.stacks.get(place)).map_or(&[], Vec::as_slice)
    }

    /// The blocks that are allocated in a span.
    pub fn born_in(&self, span: Span) -> &[Life] {
        let begin = self.lives.partition_point(|life| life.born < span.begin);
        let end = self.lives.partition_point(|life| life.born <= span.end);
        &self.lives[begin..end]
    }

    /// The blocks that a step's forward pass leaves for its backward pass. They are not allocated in an evaluation, in
    /// the backward pass or in the optimizer. They are freed within the step, and they live for at least a tenth of it.
    pub fn activations(&self, step: usize) -> impl Iterator<Item = &Life> {
        let span = self.steps[step];
        let long = (span.end - span.begin) / 10;
        self.born_in(span).iter().filter(move |life| {
            let forward = matches!(life.phase, None | Some(Phase::Train | Phase::Forward)) && life.stack.is_some();
            forward && life.died.is_some_and(|died| died >= life.born + long && died <= span.end)
        })
    }

    /// The blocks that a request holds until its end. They are a key-value cache in its state after the last token.
    pub fn held_to_the_end(&self, step: usize) -> impl Iterator<Item = &Life> {
        let span = self.steps[step];
        let release = self.releases.get(step).copied().unwrap_or(usize::MAX);
        self.born_in(span)
            .iter()
            .filter(move |life| life.died.is_some_and(|died| died >= release && died <= span.end) && life.size >= 512)
    }

    /// The first position from `at` on where a block may be inserted. This is after a complete event, and never between
    /// the request of a free and its completion.
    #[must_use]
    pub fn settled(&self, at: usize) -> usize {
        let whole = |moment: &Passing| matches!(moment, Passing::Event(event) if matches!(event.action, Action::Alloc | Action::FreeCompleted));
        (at..self.moments.len()).find(|&at| whole(&self.moments[at])).unwrap_or(self.moments.len() - 1)
    }
}
