//! Recorded events, as an export streams them in, replayed under many settings at once.
//!
//! Guarantees: one pass; memory in proportion to the live blocks and the trials, whatever the number of events; what the figures
//! do not cover is said with them. Refuses an allocator that packs inside the driver.

use memctl_analysis::{Birth, BlockMap};
use memctl_answers::Frame;
use memctl_answers::what_if::{At, Ended, Rank, Recommended, Recorded, Replayed, Setting};
use memctl_model::{Action, BlockUse, Event, HumanBytes, Keyframe, Mark, MarkKind, SessionInfo};
use memctl_proto::chunk::Decoder;
use memctl_proto::convert::{self, StackDictionary};
use memctl_proto::v1;
use memctl_proto::v1::export_part::Body;
use memctl_replay::advice::{cautions, recommended, tried};
use memctl_replay::{Conf, ConfError, Follow, Limit, Outcome, Remark, SideBySide, Start, Trial, Version};

use crate::export::{ExportError, Sink};

/// What is asked of the replays.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// Settings; the usual ones when empty.
    pub settings: Vec<String>,
    /// Limits; none when empty.
    pub limits: Vec<u64>,
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
}

/// The device whose parts come in.
struct Device {
    rank: u32,
    device: u32,
    process: String,
    session: SessionInfo,
    dictionary: StackDictionary,
    steps: Vec<(u64, u64)>,
    /// From the keyframe on.
    running: Option<Running>,
}

struct Running {
    map: BlockMap,
    replays: SideBySide,
    trials: Vec<Named>,
    endings: Vec<Option<Ended>>,
    differs_at: Option<At>,
    device_allocs: u64,
    device_frees: u64,
    begins: Begins,
}

struct Named {
    text: String,
    conf: Conf,
    /// What the allocator would accept without effect.
    remarks: Vec<Remark>,
    limit: Option<u64>,
}

/// What was there before the first event.
struct Begins {
    at_event: u64,
    live_bytes: u64,
}

impl Named {
    fn cautions(&self, baseline: &Outcome, outcome: &Outcome) -> Vec<String> {
        // A limit is what collection waits for.
        let is_met = |remark: &&Remark| self.limit.is_none() || remark.key != "garbage_collection_threshold";
        let remarks = self.remarks.iter().filter(is_met).map(|remark| format!("{} {}", remark.key, remark.text));
        remarks.chain(cautions(&self.conf, baseline, outcome)).collect()
    }
}

/// All bytes of a device, where the session knows them.
fn session_total(session: &SessionInfo, device: u32) -> Option<u64> {
    session.devices.iter().find(|it| u32::from(it.index.0) == device)?.total_bytes
}

impl Replaying {
    /// Ready for the first part.
    ///
    /// # Errors
    /// No memory for the decoder.
    pub fn new(question: Question) -> Result<Self, ExportError> {
        let decoder = Decoder::new()?;
        let (events, ranks, not_looked_at) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { question, decoder, events, device: None, ranks, not_looked_at, refused: None })
    }

    fn begin(&mut self, keyframe: &Keyframe) {
        let Some(device) = &mut self.device else { return };
        let version = Version::of_framework(device.session.framework.as_deref());
        let settings = &device.session.settings;
        if matches!(Conf::parse(&settings.conf, version), Err(ConfError::Async)) {
            self.not_looked_at.push(format!("Rank {}: {}.", device.rank, ConfError::Async));
            return;
        }
        let own = Conf::recorded(settings, version);
        let texts: Vec<String> = match self.question.settings.is_empty() {
            true => tried(version).into_iter().map(str::to_owned).collect(),
            false => self.question.settings.clone(),
        };
        let limits = match self.question.limits.is_empty() {
            true => vec![None],
            false => self.question.limits.iter().copied().map(Some).collect(),
        };
        let mut named = Vec::new();
        for &limit in &limits {
            // The recorded settings come first: what the others are compared with.
            named.push(Named { text: settings.conf.clone(), conf: own.clone(), remarks: Vec::new(), limit });
            for text in texts.iter().filter(|text| **text != settings.conf) {
                match Conf::parse(text, version) {
                    Ok((conf, remarks)) => named.push(Named { text: text.clone(), conf, remarks, limit }),
                    Err(error) => {
                        self.refused = Some(format!("--set {text}: {error}"));
                        return;
                    }
                }
            }
        }
        let trials: Vec<Trial> = named
            .iter()
            .map(|it| {
                let limit = it.limit.map_or(Limit::None, Limit::Share);
                Trial::new(it.conf.clone(), limit, &keyframe.segments, Start::Afresh)
            })
            .collect();
        let mut map = BlockMap::new(settings);
        map.restore(keyframe);
        let blocks = keyframe.segments.iter().flat_map(|segment| &segment.blocks);
        let live_bytes = blocks.filter(|block| block.usage != BlockUse::Inactive).map(|block| block.size).sum();
        let total = session_total(&device.session, device.device);
        let share = own.memory_fraction.zip(total).map(|(share, total)| Limit::Share((share * total as f64) as u64));
        let follow = Follow::new(own, share.unwrap_or_default(), &keyframe.segments);
        device.running = Some(Running {
            map,
            endings: vec![None; named.len()],
            differs_at: None,
            replays: SideBySide::new(follow, trials),
            trials: named,
            device_allocs: 0,
            device_frees: 0,
            begins: Begins { at_event: keyframe.at_event, live_bytes },
        });
    }

    fn finish_device(&mut self) {
        let Some(Device { rank, device, process, session, running: Some(running), .. }) = self.device.take() else {
            return;
        };
        let Running { map, replays, trials, endings, differs_at, device_allocs, device_frees, begins } = running;
        let (follow, done) = replays.finish();
        let agreement = *follow.agreement();
        let outcomes: Vec<Outcome> = done.iter().map(Trial::outcome).collect();
        let name = if process.is_empty() { format!("rank {rank}") } else { process.clone() };
        let mut say = |text: String| self.not_looked_at.push(format!("Of {name}: {text}."));
        if begins.at_event > 0 {
            say(format!("the {} events before are no longer stored", begins.at_event));
        }
        if begins.live_bytes > 0 {
            let live = HumanBytes::of(begins.live_bytes);
            say(format!("the recording began with {live} in use: asked for anew, without what was cached beside it"));
        }
        if agreement.flushes > 0 {
            let times = agreement.flushes;
            say(format!(
                "{times} times cached segments went back: taken as torch.cuda.empty_cache(), which a retry under a limit that was not recorded looks like"
            ));
        }
        if agreement.unknown_frees > 0 {
            say(format!("{} frees of blocks that were never seen", agreement.unknown_frees));
        }
        // Of several limits the first is advised about.
        let first_limit = trials.first().and_then(|it| it.limit);
        let group = trials.iter().take_while(|it| it.limit == first_limit).count();
        let recommended = outcomes.split_first().filter(|_| agreement.is_exact()).and_then(|(baseline, others)| {
            let (index, saves_bytes) = recommended(baseline, &others[..group.saturating_sub(1)])?;
            let allocator_conf = trials[index + 1].text.clone();
            let held = HumanBytes::of(outcomes[index + 1].counts.peak_reserved_bytes);
            let instead = HumanBytes::of(baseline.counts.peak_reserved_bytes);
            let fails = if baseline.out_of_memory.is_some() { ", which runs out of memory" } else { "" };
            let why = format!("{allocator_conf} holds {held} at most, the recorded setting {instead}{fails}.");
            Some(Recommended { allocator_conf, saves_bytes, why })
        });
        let baseline_of = |limit: Option<u64>| {
            let at = trials.iter().position(|it| it.limit == limit).unwrap_or_default();
            outcomes[at]
        };
        let settings: Vec<Setting> = trials
            .iter()
            .zip(&outcomes)
            .zip(endings)
            .map(|((it, outcome), out_of_memory)| Setting {
                allocator_conf: it.text.clone(),
                limit_bytes: it.limit,
                peak_reserved_bytes: outcome.counts.peak_reserved_bytes,
                peak_allocated_bytes: outcome.counts.peak_allocated_bytes,
                device_allocs: outcome.counts.device_allocs,
                device_frees: outcome.counts.device_frees,
                retries: outcome.counts.retries,
                out_of_memory,
                cautions: it.cautions(&baseline_of(it.limit), outcome),
                bounds: None,
            })
            .collect();
        let counts = follow.counts();
        let peaks = map.peaks();
        let (allocator_conf, torch) = (session.settings.conf.clone(), session.framework.clone());
        let last = agreement.differs_at.map(|event| At { event, step: None });
        let differs_at = differs_at.or(last);
        self.ranks.push(Rank {
            rank,
            process,
            device,
            exact: agreement.is_exact(),
            recorded: Recorded {
                allocator_conf: allocator_conf.clone(),
                torch: torch.clone(),
                peak_reserved_bytes: peaks.reserved_bytes,
                peak_allocated_bytes: peaks.allocated_bytes,
                peak_requested_bytes: counts.peak_requested_bytes,
                device_allocs,
                device_frees,
                retries: None,
            },
            replayed: Replayed {
                allocator_conf,
                torch,
                peak_reserved_bytes: counts.peak_reserved_bytes,
                peak_allocated_bytes: counts.peak_allocated_bytes,
                peak_requested_bytes: counts.peak_requested_bytes,
                device_allocs: counts.device_allocs,
                device_frees: counts.device_frees,
                retries: counts.retries,
                differs_at,
            },
            settings,
            recommended,
        });
    }
}

impl Device {
    fn event(&mut self, event: &Event) {
        let Some(running) = &mut self.running else { return };
        running.map.apply(event, Birth::default());
        match event.action {
            Action::SegmentAlloc | Action::SegmentMap => running.device_allocs += 1,
            Action::SegmentFree | Action::SegmentUnmap => running.device_frees += 1,
            _ => {}
        }
        running.replays.event(event);
        let step = || self.steps.iter().find(|&&(end, _)| event.time_ns <= end).map(|&(_, step)| step);
        if let (None, Some(differs)) = (running.differs_at, running.replays.follow().agreement().differs_at) {
            running.differs_at = Some(At { event: differs, step: step() });
        }
        for (trial, ending) in running.replays.trials().iter().zip(&mut running.endings) {
            let Some(failed) = trial.out_of_memory().filter(|_| ending.is_none()) else { continue };
            let site = self.dictionary.site(event.stack).map(|frame| Frame {
                function: frame.function.to_string(),
                file: frame.file.to_string(),
                line: Some(frame.line).filter(|&line| line > 0),
            });
            *ending = Some(Ended { event: failed.event, step: step(), requested_bytes: failed.requested.bytes, site });
        }
    }

    fn marks(&mut self, batch: &v1::MarkBatch) -> Result<(), ExportError> {
        for Mark { time_ns, kind } in convert::marks::from_wire(batch)? {
            if let MarkKind::StepEnd(step) = kind {
                self.steps.push((time_ns, step));
            }
        }
        Ok(())
    }
}

impl Sink for Replaying {
    fn part(&mut self, part: Body) -> Result<(), ExportError> {
        match part {
            Body::Start(start) => {
                self.finish_device();
                let session = start.session.ok_or(ExportError::Order("a rank without its session"))?;
                self.device = Some(Device {
                    rank: start.rank,
                    device: start.device,
                    process: start.process,
                    session: session.try_into()?,
                    dictionary: StackDictionary::default(),
                    steps: Vec::new(),
                    running: None,
                });
            }
            Body::Keyframe(keyframe) => self.begin(&keyframe.try_into()?),
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
            Body::Chunk(chunk) => {
                self.decoder.decode(&chunk, &mut self.events)?;
                let device = self.device.as_mut().ok_or(ExportError::Order("events before their rank"))?;
                self.events.iter().for_each(|event| device.event(event));
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), ExportError> {
        self.finish_device();
        Ok(())
    }
}
