//! Replays recorded events, as an export streams them in, under many settings at once. Used by `memctl what-if`, advice
//! and the page.
//!
//! Guarantees: one pass; memory in proportion to the live blocks and the trials, not to the number of events; the
//! result states what the figures do not cover (`figures`). Refuses recordings of an allocator that packs inside the
//! driver. If only a trial uses such an allocator, the result has bounds for that trial.
//!
//! If a session does not name its torch version, the two likeliest rules for equally large blocks are tried. If
//! the other rule reproduces the recording, [`Replaying::wants_other_rule`] requests another replay by that rule.
//! (Over 400 lines: one pass over an export, from its first part to the result of each device.)

mod figures;

use memctl_analysis::{Birth, BlockMap};
use memctl_model::{
    Action, BlockUse, DeviceIndex, Event, Keyframe, KeyframeReason, Mark, MarkKind, SessionInfo, Sharing,
};
use memctl_proto::chunk::Decoder;
use memctl_proto::convert::{self, StackDictionary};
use memctl_proto::v1;
use memctl_proto::v1::export_part::Body;
use memctl_replay::advice::tried;
use memctl_replay::{Conf, ConfError, Follow, Remark, SideBySide, Start, Trial, Version};

pub use memctl_replay::Limit;
pub use memctl_replay::advice::EVENTS_MAX;

use crate::Frame;
use crate::naming::name_of;
use crate::what_if::{At, Ended, Rank};

/// Why nothing can be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A message is invalid.
    #[error(transparent)]
    Wire(#[from] memctl_proto::WireError),
    /// A chunk does not decode.
    #[error(transparent)]
    Chunk(#[from] memctl_proto::chunk::ChunkError),
    /// Parts came in an order that has no meaning.
    #[error("the export came out of order: {0}")]
    Order(&'static str),
}

/// The query for the replays.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// Settings; the usual ones when empty.
    pub settings: Vec<String>,
    /// Limits; none when empty.
    pub limits: Vec<Limit>,
    /// Whether `limits` has the lower and the upper end of an interval that contains the real limit.
    pub is_interval: bool,
    /// Events of a device after which the replay is given up; `None` = all.
    pub events_max: Option<u64>,
    /// The first step.
    pub from: Option<u64>,
    /// The last step.
    pub until: Option<u64>,
    /// Whether to replay by the second likeliest rule for equally large blocks. Used if a session names no version.
    pub by_other_rule: bool,
}

/// See the module. Takes the parts of any number of ranks.
pub struct Replaying {
    question: Question,
    decoder: Decoder,
    events: Vec<Event>,
    device: Option<Device>,
    /// What came out, by rank and device.
    pub ranks: Vec<Rank>,
    /// What no figure covers.
    pub not_looked_at: Vec<String>,
    /// Settings that the allocator of a rank would refuse, in words.
    pub refused: Option<String>,
    /// A device has more events than [`Question::events_max`]. Its replay was given up, and `ranks` does not have it.
    pub is_too_long: bool,
    /// Whether the caller should replay again, with [`Question::by_other_rule`]: only the other rule fits a device.
    pub wants_other_rule: bool,
}

/// The device whose parts are arriving.
struct Device {
    rank: u32,
    device: u32,
    process: String,
    session: SessionInfo,
    sharing: Sharing,
    dictionary: StackDictionary,
    steps: Vec<(u64, u64)>,
    /// The state before the first step that was asked for, until that comes.
    before: Option<Before>,
    /// From then on.
    running: Option<Running>,
}

struct Before {
    map: BlockMap,
    at_event: u64,
}

struct Running {
    map: BlockMap,
    replays: SideBySide,
    /// The torch version whose rules the replay follows.
    version: Version,
    /// The recording by the other rule for equally large blocks, if it is unknown which one applies.
    other: Option<Follow>,
    /// Whether this is the second replay, which [`Question::by_other_rule`] requested.
    is_second: bool,
    trials: Vec<NamedTrial>,
    differs_at: Option<At>,
    device_allocs: u64,
    device_frees: u64,
    begins: Begins,
    is_interval: bool,
    /// The features by which the process shares or registers its memory.
    sharing: Sharing,
}

struct NamedTrial {
    text: String,
    conf: Conf,
    /// What the allocator would accept without effect.
    remarks: Vec<Remark>,
    limit: Limit,
    /// Its allocator packs inside the driver.
    is_bounded: bool,
}

/// The state before the first event.
struct Begins {
    at_event: u64,
    live_bytes: u64,
}

/// A place in the source, for an answer.
fn site(frame: &memctl_model::Frame) -> Frame {
    Frame {
        function: frame.function.to_string(),
        file: frame.file.to_string(),
        line: Some(frame.line).filter(|&line| line > 0),
    }
}

/// The step that contains a time; `steps` are the ends of steps.
fn step_at(steps: &[(u64, u64)], time_ns: u64) -> Option<u64> {
    steps.iter().find(|&&(end, _)| time_ns <= end).map(|&(_, step)| step)
}

/// All bytes of a device, if the session has them.
fn session_total(session: &SessionInfo, device: u32) -> Option<u64> {
    session.devices.iter().find(|it| u32::from(it.index.0) == device)?.total_bytes
}

impl Replaying {
    /// Creates an empty reader.
    ///
    /// # Errors
    /// There is no memory for the decoder.
    pub fn new(question: Question) -> Result<Self, ReplayError> {
        let decoder = Decoder::new()?;
        let (events, ranks, not_looked_at) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self {
            question,
            decoder,
            events,
            device: None,
            ranks,
            not_looked_at,
            refused: None,
            is_too_long: false,
            wants_other_rule: false,
        })
    }

    fn begin(&mut self, keyframe: &Keyframe) {
        let Some(device) = &mut self.device else { return };
        let framework = device.session.framework.as_deref();
        let is_named = Version::is_named(framework);
        let version = Version::of_framework(framework);
        let other = version.by_another_rule();
        let (version, other) =
            if self.question.by_other_rule && !is_named { (other, version) } else { (version, other) };
        let settings = &device.session.settings;
        if matches!(Conf::parse(&settings.conf, version), Err(ConfError::Async)) {
            self.not_looked_at.push(format!("Rank {}: {}.", device.rank, ConfError::Async));
            return;
        }
        let own = Conf::recorded(settings, version);
        let oldest = Version::oldest_of_framework(device.session.framework.as_deref());
        let texts: Vec<String> = match self.question.settings.is_empty() {
            // The default settings are tried as well, because the recorded setting may cause the problem.
            true => std::iter::once("").chain(tried(oldest)).map(str::to_owned).collect(),
            false => self.question.settings.clone(),
        };
        let limits = match self.question.limits.is_empty() {
            true => vec![Limit::None],
            false => self.question.limits.clone(),
        };
        let mut named = Vec::new();
        for &limit in &limits {
            // The recorded settings come first, because the others are compared with them.
            let (text, conf) = (settings.conf.clone(), own.clone());
            named.push(NamedTrial { text, conf, remarks: Vec::new(), limit, is_bounded: false });
            for text in texts.iter().filter(|text| **text != settings.conf) {
                let (conf, remarks, is_bounded) = match Conf::parse(text, version) {
                    Ok((conf, remarks)) => (conf, remarks, false),
                    Err(ConfError::Async) => (Conf::default(), Vec::new(), true),
                    Err(error) => {
                        self.refused = Some(format!("--set {text}: {error}"));
                        return;
                    }
                };
                named.push(NamedTrial { text: text.clone(), conf, remarks, limit, is_bounded });
            }
        }
        let segments = &keyframe.segments;
        let trial = |it: &NamedTrial| match it.is_bounded {
            true => Trial::bounded(it.limit, segments),
            false => Trial::new(it.conf.clone(), it.limit, segments, Start::Afresh),
        };
        let trials: Vec<Trial> = named.iter().map(trial).collect();
        let mut map = BlockMap::new(settings);
        map.restore(keyframe);
        let blocks = keyframe.segments.iter().flat_map(|segment| &segment.blocks);
        let live_bytes = blocks.filter(|block| block.usage != BlockUse::Inactive).map(|block| block.size).sum();
        let total = session_total(&device.session, device.device);
        let share = own.memory_fraction.zip(total).map(|(share, total)| Limit::Share((share * total as f64) as u64));
        let other = (!is_named).then(|| Conf::recorded(settings, other));
        let other = other.map(|conf| Follow::new(conf, share.unwrap_or_default(), &keyframe.segments));
        let follow = Follow::new(own, share.unwrap_or_default(), &keyframe.segments);
        device.running = Some(Running {
            map,
            version,
            other,
            is_second: self.question.by_other_rule,
            differs_at: None,
            replays: SideBySide::new(follow, trials),
            trials: named,
            device_allocs: 0,
            device_frees: 0,
            begins: Begins { at_event: keyframe.at_event, live_bytes },
            is_interval: self.question.is_interval,
            sharing: device.sharing,
        });
    }

    /// Replays the events that were decoded last.
    fn replay(&mut self) -> Result<(), ReplayError> {
        let Some(device) = &self.device else { return Err(ReplayError::Order("events before their rank")) };
        let (begins, ends) = device.span(&self.question);
        let events = std::mem::take(&mut self.events);
        for event in events.iter().filter(|event| event.time_ns <= ends) {
            if let Some(keyframe) = self.device.as_mut().and_then(|device| device.start(event, begins)) {
                self.begin(&keyframe);
            }
            if let Some(device) = &mut self.device {
                device.event(event);
            }
        }
        self.events = events;
        Ok(())
    }

    fn finish_device(&mut self) {
        if let Some(Device { before: Some(_), rank, .. }) = &self.device {
            self.not_looked_at.push(format!("Rank {rank}: it ended before the first step that was asked for."));
        }
        if let Some(Device { running: Some(running), rank, device, process, session, dictionary, steps, .. }) =
            self.device.take()
        {
            self.wants_other_rule |= running.is_repeated_otherwise() && !self.question.by_other_rule;
            let (rank, remarks) = running.figures(&session, (rank, device, process), &|ended, at_event| Ended {
                event: at_event + ended.ending.event,
                step: step_at(&steps, ended.time_ns),
                requested_bytes: ended.ending.requested.bytes,
                site: dictionary.site(ended.stack).map(site),
            });
            let name = name_of(&rank.process, rank.rank);
            self.not_looked_at.extend(remarks.into_iter().map(|remark| format!("Of {name}: {remark}.")));
            self.ranks.push(rank);
        }
    }
}

impl Device {
    /// Waits for the first requested step.
    fn wait(&mut self, keyframe: &Keyframe) {
        let mut map = BlockMap::new(&self.session.settings);
        map.restore(keyframe);
        self.before = Some(Before { map, at_event: keyframe.at_event });
    }

    /// The state at the beginning of the first requested step, if this is its first event.
    fn start(&mut self, event: &Event, begins: u64) -> Option<Keyframe> {
        let before = self.before.as_mut()?;
        if event.time_ns <= begins {
            before.map.apply(event, Birth::default());
            before.at_event += 1;
            return None;
        }
        let Before { map, at_event } = self.before.take()?;
        let index = DeviceIndex(u8::try_from(self.device).unwrap_or_default());
        Some(map.keyframe(index, at_event, event.time_ns, KeyframeReason::Start))
    }

    /// The end of the step before the first requested one, and the end of the last one; everything if no step is
    /// marked.
    fn span(&self, question: &Question) -> (u64, u64) {
        let end = |is: &dyn Fn(u64) -> bool| self.steps.iter().filter(|it| is(it.1)).map(|it| it.0).max();
        let is_known = |from: u64| self.steps.is_empty() || self.steps.iter().any(|it| it.1.saturating_add(1) >= from);
        let begins = match question.from {
            Some(from) if !is_known(from) => Some(u64::MAX),
            from => from.and_then(|from| end(&|step| step < from)),
        };
        let ends = question.until.filter(|_| !self.steps.is_empty());
        (begins.unwrap_or(0), ends.map_or(u64::MAX, |until| end(&|step| step <= until).unwrap_or(0)))
    }

    fn event(&mut self, event: &Event) {
        let Some(running) = &mut self.running else { return };
        running.map.apply(event, Birth::default());
        match event.action {
            Action::SegmentAlloc | Action::SegmentMap => running.device_allocs += 1,
            Action::SegmentFree | Action::SegmentUnmap => running.device_frees += 1,
            _ => {}
        }
        if let Some(other) = &mut running.other {
            other.event(event, |_, _| {});
        }
        running.replays.event(event);
        if let (None, Some(differs)) = (running.differs_at, running.replays.follow().agreement().differs_at) {
            let step = step_at(&self.steps, event.time_ns);
            running.differs_at = Some(At { event: running.begins.at_event + differs, step });
        }
    }

    fn marks(&mut self, batch: &v1::MarkBatch) -> Result<(), ReplayError> {
        for Mark { time_ns, kind } in convert::marks::from_wire(batch)? {
            if let MarkKind::StepEnd(step) = kind {
                self.steps.push((time_ns, step));
            }
        }
        Ok(())
    }
}

impl Running {
    /// Whether the replay does not reproduce the recording, and the other rule for equally large blocks would.
    fn is_repeated_otherwise(&self) -> bool {
        let is_exact = |follow: &Follow| follow.agreement().is_exact();
        !is_exact(self.replays.follow()) && self.other.as_ref().is_some_and(is_exact)
    }
}

impl Replaying {
    /// Takes the next part.
    ///
    /// # Errors
    /// See [`ReplayError`].
    pub fn part(&mut self, part: Body) -> Result<(), ReplayError> {
        match part {
            Body::Start(start) => {
                self.finish_device();
                let session = start.session.ok_or(ReplayError::Order("a rank without its session"))?;
                self.device = Some(Device {
                    rank: start.rank,
                    device: start.device,
                    process: start.process,
                    session: session.try_into()?,
                    sharing: convert::samples::sharing_from_wire(&start.sharing),
                    dictionary: StackDictionary::default(),
                    steps: Vec::new(),
                    before: None,
                    running: None,
                });
            }
            Body::Keyframe(keyframe) => {
                let keyframe = keyframe.try_into()?;
                match &mut self.device {
                    Some(device) if self.question.from.is_some() => device.wait(&keyframe),
                    _ => self.begin(&keyframe),
                }
            }
            Body::Stacks(batch) => {
                if let Some(device) = &mut self.device {
                    device.dictionary.add(&batch)?;
                }
            }
            Body::Marks(batch) => {
                if let Some(device) = &mut self.device {
                    device.marks(&batch)?;
                }
            }
            Body::Samples(_) => {}
            Body::Chunk(_) if self.is_too_long => {}
            Body::Chunk(chunk) => {
                self.decoder.decode(&chunk, &mut self.events)?;
                self.replay()?;
                let device = self.device.as_ref();
                let running = device.and_then(|device| device.running.as_ref());
                let seen = running.map(|running| running.replays.follow().agreement().events);
                if seen > self.question.events_max.or(seen) {
                    self.is_too_long = true;
                    self.device = None;
                }
            }
        }
        Ok(())
    }

    /// Ends the last device.
    pub fn finish(&mut self) {
        self.finish_device();
    }
}
