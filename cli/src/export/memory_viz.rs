//! A PyTorch memory snapshot of one rank, as `torch.cuda.memory._dump_snapshot` would have written it.
//!
//! Guarantees: `segments` is the state after the slice's last event, `device_traces` the slice's
//! events with their stacks, `external_annotations` its marks: the shape that
//! `torch.cuda._memory_viz`, its viewer in the browser and the tools that stand on them read.
//! Events stream through; memory holds the block map, the dictionary of stacks and the end states.
//! What memctl does not keep (per-event metadata, frames of segments) is absent or empty.

use std::collections::HashMap;
use std::io::{self, Seek, SeekFrom, Write};

use memctl_analysis::{Birth, BlockMap};
use memctl_model::{
    Action, AllocatorSettings, BlockState, BlockUse, DeviceIndex, Event, Frame, Keyframe, KeyframeReason, PoolId,
    SegmentKind, SegmentState, StackId,
};
use memctl_proto::chunk::Decoder;
use memctl_proto::convert::{StackDictionary, marks};
use memctl_proto::v1;
use memctl_proto::v1::export_part::Body;

use super::annotation::{Annotation, note_down};
use super::pickle::{Memo, OpenList, Pickle};
use super::window::{Window, Windows};
use super::{ExportError, Sink};

/// Annotations are written last but come first: beyond this they wait in a file.
const ANNOTATIONS_IN_MEMORY_BYTES: usize = 1 << 20;
/// What the viewers need of times.
const NS_PER_US: u64 = 1_000;

/// See the module. Takes the parts of one rank.
pub struct MemoryViz<W: Write> {
    pickle: Pickle<W>,
    windows: Windows,
    decoder: Decoder,
    events: Vec<Event>,
    traces: OpenList,
    traces_begun: u32,
    device: Option<Device>,
    ended: Vec<Keyframe>,
    settings: AllocatorSettings,
    session: Vec<u8>,
    dictionary: StackDictionary,
    frames: HashMap<Frame, Memo>,
    stacks: HashMap<StackId, Memo>,
    annotations: tempfile::SpooledTempFile,
}

/// The device whose parts are coming in.
struct Device {
    index: DeviceIndex,
    window: Window,
    map: BlockMap,
    trace: OpenList,
    last_ns: u64,
    events: u64,
}

impl<W: Write> MemoryViz<W> {
    /// Begins the file.
    ///
    /// # Errors
    /// The writer's; no memory for the decoder.
    pub fn new(out: W, windows: Windows) -> Result<Self, ExportError> {
        let mut pickle = Pickle::new(out)?;
        pickle.begin_dict()?;
        pickle.word("device_traces")?;
        let traces = pickle.begin_list()?;
        Ok(Self {
            pickle,
            windows,
            decoder: Decoder::new()?,
            events: Vec::new(),
            traces,
            traces_begun: 0,
            device: None,
            ended: Vec::new(),
            settings: AllocatorSettings::default(),
            session: Vec::new(),
            dictionary: StackDictionary::default(),
            frames: HashMap::new(),
            stacks: HashMap::new(),
            annotations: tempfile::SpooledTempFile::new(ANNOTATIONS_IN_MEMORY_BYTES),
        })
    }

    fn start(&mut self, start: v1::RankStart) -> Result<(), ExportError> {
        self.end_device()?;
        let device = u8::try_from(start.device).map_err(|_| ExportError::Order("a device number beyond 255"))?;
        if start.device < self.traces_begun {
            return Err(ExportError::Order("devices do not count up"));
        }
        if let Some(session) = start.session {
            if session.id != self.session {
                // Another session numbers its stacks anew.
                self.session.clone_from(&session.id);
                self.dictionary = StackDictionary::default();
                self.stacks.clear();
            }
            if let Some(settings) = session.settings {
                self.settings = AllocatorSettings::try_from(settings)?;
            }
        }
        // One list a device, by its index: those without events are empty.
        while self.traces_begun < start.device {
            self.pickle.item(&mut self.traces)?;
            self.pickle.empty_list()?;
            self.traces_begun += 1;
        }
        self.pickle.item(&mut self.traces)?;
        self.traces_begun += 1;
        self.device = Some(Device {
            index: DeviceIndex(device),
            window: self.windows.of(start.rank),
            map: BlockMap::new(&self.settings),
            trace: self.pickle.begin_list()?,
            last_ns: 0,
            events: 0,
        });
        Ok(())
    }

    fn end_device(&mut self) -> Result<(), ExportError> {
        if let Some(Device { index, map, trace, last_ns, events, .. }) = self.device.take() {
            self.pickle.end_list(trace)?;
            self.ended.push(map.keyframe(index, events, last_ns, KeyframeReason::Periodic));
        }
        Ok(())
    }

    fn stacks(&mut self, batch: &v1::StackBatch) -> Result<(), ExportError> {
        if batch.first_stack <= 1 && !self.dictionary.is_empty() {
            // The session's dictionary from its beginning once more, for its next device.
            self.dictionary = StackDictionary::default();
        }
        Ok(self.dictionary.add(batch)?)
    }

    fn chunk(&mut self, chunk: &[u8]) -> Result<(), ExportError> {
        let mut events = std::mem::take(&mut self.events);
        let decoded = self.decoder.decode(chunk, &mut events);
        let written =
            decoded.map_err(ExportError::from).and_then(|_| events.iter().try_for_each(|event| self.event(event)));
        self.events = events;
        written
    }

    fn event(&mut self, event: &Event) -> Result<(), ExportError> {
        let Some(device) = &mut self.device else { return Err(ExportError::Order("events before their rank")) };
        if event.time_ns > device.window.last_ns {
            // The end state is the one at the slice's end.
            return Ok(());
        }
        device.map.apply(event, Birth::default());
        device.last_ns = event.time_ns;
        device.events += 1;
        if event.time_ns < device.window.first_ns {
            return Ok(());
        }
        self.pickle.item(&mut device.trace)?;
        Ok(self.trace_entry(event)?)
    }

    fn trace_entry(&mut self, event: &Event) -> io::Result<()> {
        let Event { time_ns, addr, size, stream, pool, stack, action } = *event;
        self.pickle.begin_dict()?;
        self.pickle.word("action")?;
        self.pickle.word(action.name())?;
        self.pickle.word(if action == Action::Oom { "device_free" } else { "addr" })?;
        self.pickle.int(addr)?;
        self.number("size", size)?;
        self.number("stream", stream)?;
        self.number("time_us", time_ns / NS_PER_US)?;
        if pool != PoolId::DEFAULT {
            self.pickle.word("pool_id")?;
            self.pickle.pair(pool.first.into(), pool.second.into())?;
        }
        self.pickle.word("frames")?;
        self.frames(stack)?;
        self.pickle.end_dict()
    }

    fn number(&mut self, key: &'static str, value: u64) -> io::Result<()> {
        self.pickle.word(key)?;
        self.pickle.int(value)
    }

    /// The frames of a stack: written once, referred to afterwards.
    fn frames(&mut self, stack: StackId) -> io::Result<()> {
        if !stack.is_some() {
            return self.pickle.empty_list();
        }
        if let Some(&memo) = self.stacks.get(&stack) {
            return self.pickle.again(memo);
        }
        let Self { pickle, dictionary, frames, .. } = self;
        let mut list = pickle.begin_list()?;
        for frame in dictionary.frames(stack) {
            pickle.item(&mut list)?;
            if let Some(&memo) = frames.get(frame) {
                pickle.again(memo)?;
                continue;
            }
            pickle.begin_dict()?;
            pickle.word("name")?;
            pickle.text(&frame.function)?;
            pickle.word("filename")?;
            pickle.text(&frame.file)?;
            pickle.word("line")?;
            pickle.int(frame.line.into())?;
            pickle.end_dict()?;
            frames.insert(frame.clone(), pickle.remember()?);
        }
        pickle.end_list(list)?;
        let memo = pickle.remember()?;
        self.stacks.insert(stack, memo);
        Ok(())
    }

    fn marks(&mut self, batch: &v1::MarkBatch) -> Result<(), ExportError> {
        let Some(Device { index, window, .. }) = &self.device else {
            return Err(ExportError::Order("marks before their rank"));
        };
        for mark in marks::from_wire(batch)? {
            if (window.first_ns..=window.last_ns).contains(&mark.time_ns) {
                note_down(&mut self.annotations, *index, &mark)?;
            }
        }
        Ok(())
    }

    fn segments(&mut self) -> io::Result<()> {
        self.pickle.word("segments")?;
        let mut list = self.pickle.begin_list()?;
        for keyframe in std::mem::take(&mut self.ended) {
            let Keyframe { device, segments, loose, .. } = keyframe;
            // A viewer looks every block up in a segment: one that lies in none gets its own.
            let own = loose.into_iter().map(|block| SegmentState {
                addr: block.addr,
                size: block.size,
                blocks: vec![block],
                ..Default::default()
            });
            let mut all: Vec<SegmentState> = segments.into_iter().chain(own).collect();
            all.sort_by_key(|segment| segment.addr);
            for segment in &all {
                self.pickle.item(&mut list)?;
                self.segment(device, segment)?;
            }
        }
        self.pickle.end_list(list)
    }

    fn segment(&mut self, device: DeviceIndex, segment: &SegmentState) -> io::Result<()> {
        let SegmentState { addr, size, stream, pool, kind, expandable, blocks } = segment;
        let sum = |wanted: fn(&BlockState) -> bool, bytes: fn(&BlockState) -> u64| {
            blocks.iter().filter(|block| wanted(block)).map(bytes).fold(0_u64, u64::saturating_add)
        };
        let active = |block: &BlockState| block.usage != BlockUse::Inactive;
        self.pickle.begin_dict()?;
        self.number("device", device.0.into())?;
        self.number("address", *addr)?;
        self.number("total_size", *size)?;
        self.number("allocated_size", sum(|block| block.usage == BlockUse::Allocated, |block| block.size))?;
        self.number("active_size", sum(active, |block| block.size))?;
        self.number("requested_size", sum(active, |block| block.requested))?;
        self.number("stream", *stream)?;
        self.pickle.word("segment_type")?;
        self.pickle.word(if *kind == SegmentKind::Small { "small" } else { "large" })?;
        self.pickle.word("segment_pool_id")?;
        self.pickle.pair(pool.first.into(), pool.second.into())?;
        self.pickle.word("is_expandable")?;
        self.pickle.boolean(*expandable)?;
        self.pickle.word("frames")?;
        self.pickle.empty_list()?;
        self.pickle.word("blocks")?;
        let mut list = self.pickle.begin_list()?;
        for block in blocks {
            self.pickle.item(&mut list)?;
            self.block(block)?;
        }
        self.pickle.end_list(list)?;
        self.pickle.end_dict()
    }

    fn block(&mut self, block: &BlockState) -> io::Result<()> {
        self.pickle.begin_dict()?;
        self.number("address", block.addr)?;
        self.number("size", block.size)?;
        self.number("requested_size", block.requested)?;
        self.pickle.word("state")?;
        self.pickle.word(match block.usage {
            BlockUse::Inactive => "inactive",
            BlockUse::Allocated => "active_allocated",
            BlockUse::PendingFree => "active_pending_free",
        })?;
        self.pickle.word("frames")?;
        self.frames(if block.usage == BlockUse::Inactive { StackId::NONE } else { block.stack })?;
        self.pickle.end_dict()
    }

    fn allocator_settings(&mut self) -> io::Result<()> {
        let AllocatorSettings {
            conf,
            max_split_size,
            roundup_power2_divisions,
            expandable_segments,
            large_segment_size: _,
            garbage_collection_permille,
        } = self.settings.clone();
        let pickle = &mut self.pickle;
        pickle.word("allocator_settings")?;
        pickle.begin_dict()?;
        pickle.word("PYTORCH_CUDA_ALLOC_CONF")?;
        pickle.text(&conf)?;
        pickle.word("max_split_size")?;
        match max_split_size {
            Some(bytes) => pickle.int(bytes)?,
            None => pickle.minus_one()?,
        }
        pickle.word("garbage_collection_threshold")?;
        pickle.float(f64::from(garbage_collection_permille) / 1000.0)?;
        pickle.word("expandable_segments")?;
        pickle.boolean(expandable_segments)?;
        pickle.word("roundup_power2_divisions")?;
        pickle.begin_dict()?;
        for (power, divisions) in roundup_power2_divisions.into_iter().enumerate() {
            // PyTorch's keys: "1", "2", … "32768".
            pickle.text(&(1_u32 << power).to_string())?;
            pickle.int(divisions.into())?;
        }
        pickle.end_dict()?;
        pickle.end_dict()
    }

    fn external_annotations(&mut self) -> io::Result<()> {
        self.pickle.word("external_annotations")?;
        let mut list = self.pickle.begin_list()?;
        self.annotations.seek(SeekFrom::Start(0))?;
        let mut waiting =
            io::BufReader::new(std::mem::replace(&mut self.annotations, tempfile::SpooledTempFile::new(0)));
        while let Some(Annotation { device, start, time_ns, name }) = Annotation::read(&mut waiting)? {
            self.pickle.item(&mut list)?;
            self.pickle.begin_dict()?;
            self.pickle.word("stage")?;
            self.pickle.word(if start { "START" } else { "END" })?;
            self.pickle.word("name")?;
            self.pickle.text(&name)?;
            self.number("device", device.into())?;
            self.number("time_us", time_ns / NS_PER_US)?;
            self.pickle.end_dict()?;
        }
        self.pickle.end_list(list)
    }
}

impl<W: Write> Sink for MemoryViz<W> {
    fn part(&mut self, part: Body) -> Result<(), ExportError> {
        match part {
            Body::Start(start) => self.start(start),
            Body::Stacks(batch) => self.stacks(&batch),
            Body::Keyframe(keyframe) => {
                let keyframe = Keyframe::try_from(keyframe)?;
                let Some(device) = &mut self.device else {
                    return Err(ExportError::Order("a keyframe before its rank"));
                };
                // One beyond the slice would replace the state that the slice ends in.
                if keyframe.time_ns <= device.window.last_ns || device.events == 0 {
                    device.map.restore(&keyframe);
                }
                Ok(())
            }
            Body::Chunk(chunk) => self.chunk(&chunk),
            Body::Marks(batch) => self.marks(&batch),
        }
    }

    fn finish(&mut self) -> Result<(), ExportError> {
        self.end_device()?;
        let traces = std::mem::take(&mut self.traces);
        self.pickle.end_list(traces)?;
        self.segments()?;
        self.allocator_settings()?;
        self.external_annotations()?;
        self.pickle.end_dict()?;
        Ok(self.pickle.stop()?)
    }
}
