//! One rank's recorded requests, as an export streams them in, kept as a script: behind `memctl fit` and the page.
//!
//! `meaning` determines the class and the module of each request. `sizes` forecasts other sizes, `changes` and `under`
//! forecast changes. `question` combines them into an answer.
//!
//! Guarantees: one device, the first of the export; memory is bounded by the requests that a script keeps. Refuses an
//! allocator that packs inside the driver, and recordings with gaps, because their requests are incomplete.

mod changes;
mod meaning;
mod question;
mod refused;
mod sizes;
mod under;

use std::collections::HashMap;

use meaning::Meaning;
use memctl_model::{Action, Event, Mark, MarkKind, Phase, Phases, SegmentState, SessionInfo, StackId};
use memctl_proto::chunk::Decoder;
use memctl_proto::convert::{self, StackDictionary};
use memctl_proto::v1::export_part::Body;
use memctl_replay::fit::{Script, TooLong, initial_blocks, stack_key};
use memctl_replay::{Conf, ConfError, Follow, Limit, Version};
pub use question::{Change, Question, Run, Sizes, answer};
pub use refused::{Refused, Wanted};
pub use sizes::OUTSIDE;

use crate::fit::{Recording, Replayed};
pub use crate::replaying::ReplayError;

/// See the module.
pub struct Fitting {
    decoder: Decoder,
    events: Vec<Event>,
    dictionary: StackDictionary,
    keys: HashMap<StackId, u64>,
    session: Option<SessionInfo>,
    /// In the order of their times.
    marks: Vec<Mark>,
    following: Option<Following>,
    /// Devices that came after the first.
    pub devices_left_out: u32,
    /// Why it cannot be used.
    pub refused: Option<String>,
    device: u32,
    process: String,
}

struct Following {
    follow: Follow,
    script: Script,
    conf: Conf,
    oldest: Version,
    births: Vec<Birth>,
    /// From which step of the script on which step of the training is under way.
    steps: Vec<(u32, u64)>,
    /// How many marks have been passed.
    passed: usize,
    phases: Phases,
    phase: Option<Phase>,
}

/// The stack and the phase of a request.
#[derive(Clone, Copy, Debug)]
struct Birth {
    stack: StackId,
    phase: Option<Phase>,
}

/// The result of reading an export.
pub struct Recorded {
    /// The process, by its name within the job.
    pub process: String,
    /// Device index in the process.
    pub device: u32,
    /// The requests.
    pub script: Script,
    /// The settings.
    pub conf: Conf,
    /// The oldest version that it may be of.
    pub oldest: Version,
    /// Whether their replay repeats the recording.
    pub exact: bool,
    /// Highest reserved bytes.
    pub peak_reserved_bytes: u64,
    /// Highest allocated bytes.
    pub peak_allocated_bytes: u64,
    /// Bytes that were in use when it began.
    pub began_with_bytes: u64,
    /// By request.
    births: Vec<Birth>,
    steps: Vec<(u32, u64)>,
    dictionary: StackDictionary,
}

impl Fitting {
    /// Creates an empty reader.
    ///
    /// # Errors
    /// There is no memory for the decoder.
    pub fn new() -> Result<Self, ReplayError> {
        Ok(Self {
            decoder: Decoder::new()?,
            events: Vec::new(),
            dictionary: StackDictionary::default(),
            keys: HashMap::new(),
            session: None,
            marks: Vec::new(),
            following: None,
            devices_left_out: 0,
            refused: None,
            device: 0,
            process: String::new(),
        })
    }

    fn begin(&mut self, segments: &[SegmentState]) {
        let Some(session) = &self.session else { return };
        let version = Version::of_framework(session.framework.as_deref());
        if matches!(Conf::parse(&session.settings.conf, version), Err(ConfError::Async)) {
            self.refused = Some(ConfError::Async.to_string());
            return;
        }
        let conf = Conf::recorded(&session.settings, version);
        let follow = Follow::new(conf.clone(), Limit::None, segments);
        let births =
            initial_blocks(segments).map(|block| Birth { stack: block.stack, phase: block.birth_phase }).collect();
        let script = Script::new(segments);
        let oldest = Version::oldest_of_framework(session.framework.as_deref());
        let (steps, phases) = (Vec::new(), Phases::default());
        let following = Following { follow, script, conf, oldest, births, steps, passed: 0, phases, phase: None };
        self.following = Some(following);
    }

    fn replay(&mut self) {
        let Some(following) = &mut self.following else { return };
        for event in &self.events {
            let dictionary = &self.dictionary;
            let key = *self.keys.entry(event.stack).or_insert_with(|| stack_key(dictionary.frames(event.stack)));
            following.pass(&self.marks, event.time_ns);
            if let Err(error) = following.event(event, key) {
                self.refused = Some(error.to_string());
                self.following = None;
                return;
            }
        }
    }

    /// The result; `None` if nothing of the device is stored.
    #[must_use]
    pub fn recorded(mut self) -> Option<Recorded> {
        let Following { mut follow, mut script, conf, oldest, births, steps, .. } = self.following.take()?;
        // Events that wait at the end belong to no request if the script is full.
        follow.finish(|_, request| script.push(request, 0).unwrap_or_default());
        let counts = *follow.counts();
        Some(Recorded {
            process: self.process,
            device: self.device,
            exact: follow.agreement().is_exact(),
            peak_reserved_bytes: counts.peak_reserved_bytes,
            peak_allocated_bytes: counts.peak_allocated_bytes,
            began_with_bytes: script.began_with_bytes(),
            script,
            conf,
            oldest,
            births,
            steps,
            dictionary: self.dictionary,
        })
    }

    /// Takes the next part.
    ///
    /// # Errors
    /// See [`ReplayError`].
    pub fn part(&mut self, part: Body) -> Result<(), ReplayError> {
        match part {
            Body::Start(_) if self.session.is_some() => self.devices_left_out += 1,
            Body::Start(start) => {
                let session = start.session.ok_or(ReplayError::Order("a rank without its session"))?;
                self.session = Some(session.try_into()?);
                (self.device, self.process) = (start.device, start.process);
            }
            _ if self.devices_left_out > 0 || self.refused.is_some() => {}
            Body::Keyframe(keyframe) => {
                let keyframe: memctl_model::Keyframe = keyframe.try_into()?;
                self.begin(&keyframe.segments);
            }
            Body::Stacks(batch) => self.dictionary.add(&batch)?,
            // Marks precede the events and are in the order of their times.
            Body::Marks(batch) => self.marks.extend(convert::marks::from_wire(&batch)?),
            Body::Samples(_) => {}
            Body::Chunk(chunk) => {
                self.decoder.decode(&chunk, &mut self.events)?;
                self.replay();
            }
        }
        Ok(())
    }
}

impl Recorded {
    /// The recording as answers show it.
    #[must_use]
    pub fn named(&self, job: String, attempt: u32, rank: u32, size: Option<u64>) -> Recording {
        Recording {
            job,
            attempt,
            size,
            rank,
            process: self.process.clone(),
            device: self.device,
            peak_reserved_bytes: self.peak_reserved_bytes,
            peak_allocated_bytes: self.peak_allocated_bytes,
            exact: self.exact,
            replayed: self.replayed(),
        }
    }

    /// The replay without a change.
    fn replayed(&self) -> Replayed {
        let counts = self.script.outcome(&self.conf, Limit::None).counts;
        let failed = self.script.failed();
        Replayed {
            peak_reserved_bytes: counts.peak_reserved_bytes,
            peak_allocated_bytes: counts.peak_allocated_bytes,
            failed_requests: failed.len() as u64,
            failed_bytes: failed.iter().map(|failed| failed.bytes).max().unwrap_or(0),
            began_with_bytes: self.began_with_bytes,
        }
    }
}

impl Following {
    /// Takes the marks up to a time.
    fn pass(&mut self, marks: &[Mark], time_ns: u64) {
        while let Some(mark) = marks.get(self.passed).filter(|mark| mark.time_ns <= time_ns) {
            self.passed += 1;
            match mark.kind {
                MarkKind::StepBegin(step) => self.steps.push((self.script.length(), step)),
                MarkKind::StepEnd(step) => self.steps.push((self.script.length(), step.saturating_add(1))),
                MarkKind::PhaseBegin(phase) => self.phase = self.phases.begin(phase),
                MarkKind::PhaseEnd(phase) => self.phase = self.phases.end(phase),
                _ => {}
            }
        }
    }

    fn event(&mut self, event: &Event, key: u64) -> Result<(), TooLong> {
        let Self { follow, script, births, phase, .. } = self;
        let mut pushed = Ok(());
        follow.event(event, |_, request| pushed = pushed.and(script.push(request, key)));
        if matches!(event.action, Action::Alloc | Action::Oom) {
            births.resize(script.requests(), Birth { stack: event.stack, phase: *phase });
        }
        pushed
    }
}
