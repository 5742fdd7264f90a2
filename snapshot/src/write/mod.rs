//! Writes a memory snapshot of one process in the format of `torch.cuda.memory._dump_snapshot`.
//!
//! Guarantees: `segments` is the state after the last event, `device_traces` are the events with their stacks, and
//! `external_annotations` are the marks. `torch.cuda._memory_viz`, its viewer in the browser and the tools based on
//! them read this format. Events are streamed: memory holds only the block map, the written frames and stacks, and the
//! end states. Data that memctl does not keep (compile contexts, frames of segments) is absent or empty. An event's
//! `user_metadata` is the name of the memory's owner.
//!
//! Devices out of ascending order, and events or marks outside of a device, are rejected.

mod annotation;
mod pickle;
mod state;

use std::collections::HashMap;
use std::io::{self, Seek, SeekFrom, Write};
use std::sync::Arc;

use memctl_analysis::{Birth, BlockMap, initial_state};
use memctl_model::{
    Action, AllocatorSettings, DeviceIndex, Event, Frame, Keyframe, KeyframeReason, Mark, PoolId, StackId,
};

use crate::read::Recording;
use annotation::{Annotation, note_down};
use pickle::{Memo, OpenList, Pickle};
use state::EndState;

/// Annotations arrive first but are written last. Beyond this size they wait in a file.
const ANNOTATIONS_IN_MEMORY_BYTES: usize = 1 << 20;
/// Viewers need times in microseconds.
const NS_PER_US: u64 = 1_000;

/// Why a snapshot could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The file cannot be written.
    #[error(transparent)]
    Output(#[from] io::Error),
    /// The calls were made in an invalid order.
    #[error("{0}")]
    Order(&'static str),
}

/// Writes a whole recording: its events, its marks, and its final state.
///
/// # Errors Those of the writer.
pub fn write(recording: &Recording, out: impl Write) -> Result<(), WriteError> {
    let frames = |id: StackId| {
        let stack = id.0.checked_sub(1).and_then(|at| recording.stacks.get(at as usize));
        stack.into_iter().flatten().filter_map(|id| recording.frames.get(id.0 as usize))
    };
    let mut writer = SnapshotWriter::new(out)?;
    for (at, device) in recording.devices.iter().enumerate() {
        writer.begin_device(device.device, &recording.settings)?;
        let initial = initial_state(&recording.settings, device.device, &device.final_segments, device.events.iter());
        writer.restore(&initial.keyframe)?;
        // A mark applies to all devices and is written once.
        for mark in recording.marks.iter().filter(|_| at == 0) {
            writer.mark(mark)?;
        }
        for event in device.events.iter() {
            writer.event(&event, frames)?;
        }
        writer.end_device(frames)?;
    }
    writer.finish()
}

/// A writer of a snapshot; see the module's documentation. For every device, in the order of their indices:
/// [`begin_device`](Self::begin_device), its state and events, [`end_device`](Self::end_device). Finally:
/// [`finish`](Self::finish).
pub struct SnapshotWriter<W: Write> {
    pickle: Pickle<W>,
    traces: OpenList,
    traces_begun: u32,
    device: Option<Device>,
    ended: Vec<EndState>,
    settings: AllocatorSettings,
    written: WrittenStacks,
    annotations: tempfile::SpooledTempFile,
}

/// The device whose events are being written.
struct Device {
    index: DeviceIndex,
    map: BlockMap,
    trace: OpenList,
    last_ns: u64,
    events: u64,
}

/// Frames and stacks that are in the file and can be referred to.
#[derive(Default)]
struct WrittenStacks {
    frames: HashMap<Frame, Memo>,
    stacks: HashMap<StackId, Memo>,
    /// Names of the memory's owners, which are not written as frames.
    owners: HashMap<StackId, Arc<str>>,
}

impl<W: Write> SnapshotWriter<W> {
    /// Begins the file.
    ///
    /// # Errors Those of the writer.
    pub fn new(out: W) -> Result<Self, WriteError> {
        let mut pickle = Pickle::new(out)?;
        pickle.begin_dict()?;
        pickle.word("device_traces")?;
        let traces = pickle.begin_list()?;
        Ok(Self {
            pickle,
            traces,
            traces_begun: 0,
            device: None,
            ended: Vec::new(),
            settings: AllocatorSettings::default(),
            written: WrittenStacks::default(),
            annotations: tempfile::SpooledTempFile::new(ANNOTATIONS_IN_MEMORY_BYTES),
        })
    }

    /// Forgets the numbers of stacks, because the following ones belong to another session.
    pub fn forget_stacks(&mut self) {
        self.written.stacks.clear();
        self.written.owners.clear();
    }

    /// Begins a device with an empty allocator; [`restore`](Self::restore) sets another state.
    ///
    /// # Errors Those of the writer; the device is not above the last one, or that one was not ended.
    pub fn begin_device(&mut self, index: DeviceIndex, settings: &AllocatorSettings) -> Result<(), WriteError> {
        if self.device.is_some() {
            return Err(WriteError::Order("a device begins before the last one ended"));
        }
        let traces_before = u32::from(index.0);
        if traces_before < self.traces_begun {
            return Err(WriteError::Order("devices do not count up"));
        }
        self.settings.clone_from(settings);
        // The format has one list per device index. Devices without events get empty lists.
        while self.traces_begun < traces_before {
            self.pickle.item(&mut self.traces)?;
            self.pickle.empty_list()?;
            self.traces_begun += 1;
        }
        self.pickle.item(&mut self.traces)?;
        self.traces_begun += 1;
        let trace = self.pickle.begin_list()?;
        self.device = Some(Device { index, map: BlockMap::new(settings), trace, last_ns: 0, events: 0 });
        Ok(())
    }

    /// Sets the state of the device.
    ///
    /// # Errors No device was begun.
    pub fn restore(&mut self, keyframe: &Keyframe) -> Result<(), WriteError> {
        self.device()?.map.restore(keyframe);
        Ok(())
    }

    /// Applies an event that changes the state and is not written, because it is before the slice.
    ///
    /// # Errors No device was begun.
    pub fn pass(&mut self, event: &Event) -> Result<(), WriteError> {
        let device = self.device()?;
        device.map.apply(event, Birth::default());
        device.last_ns = event.time_ns;
        device.events += 1;
        Ok(())
    }

    /// Writes an event. `frames` returns the frames of its stack, innermost first. It is called once per stack.
    ///
    /// # Errors Those of the writer; no device was begun.
    pub fn event<'a, I>(&mut self, event: &Event, frames: impl FnOnce(StackId) -> I) -> Result<(), WriteError>
    where
        I: IntoIterator<Item = &'a Frame>,
    {
        self.pass(event)?;
        let Some(device) = &mut self.device else { return Ok(()) };
        self.pickle.item(&mut device.trace)?;
        let Event { time_ns, addr, size, stream, pool, stack, action } = *event;
        let pickle = &mut self.pickle;
        pickle.begin_dict()?;
        pickle.word("action")?;
        pickle.word(action.name())?;
        pickle.number(if action == Action::Oom { "device_free" } else { "addr" }, addr)?;
        pickle.number("size", size)?;
        pickle.number("stream", stream)?;
        pickle.number("time_us", time_ns / NS_PER_US)?;
        if pool != PoolId::DEFAULT {
            pickle.word("pool_id")?;
            pickle.pair(pool.first.into(), pool.second.into())?;
        }
        pickle.word("frames")?;
        self.written.stack(pickle, stack, frames)?;
        self.written.owner(pickle, stack)?;
        Ok(pickle.end_dict()?)
    }

    /// Stores a mark for the device that was begun. Marks are written at the end of the file.
    ///
    /// # Errors Those of the temporary file; no device was begun.
    pub fn mark(&mut self, mark: &Mark) -> Result<(), WriteError> {
        let index = self.device()?.index;
        Ok(note_down(&mut self.annotations, index, mark)?)
    }

    /// Ends the device. `frames` returns the frames of the stacks of live blocks.
    ///
    /// # Errors Those of the writer; no device was begun.
    pub fn end_device<'a, I>(&mut self, frames: impl FnMut(StackId) -> I) -> Result<(), WriteError>
    where
        I: IntoIterator<Item = &'a Frame>,
    {
        self.device()?;
        let Some(Device { index, map, trace, last_ns, events }) = self.device.take() else { return Ok(()) };
        self.pickle.end_list(trace)?;
        let keyframe = map.keyframe(index, events, last_ns, KeyframeReason::Periodic);
        self.ended.push(EndState::new(keyframe, &self.written, frames));
        Ok(())
    }

    /// Writes the end states, the settings and the marks, and ends the file.
    ///
    /// # Errors Those of the writer; a device was not ended.
    pub fn finish(&mut self) -> Result<(), WriteError> {
        if self.device.is_some() {
            return Err(WriteError::Order("the file ends before its last device"));
        }
        let traces = std::mem::take(&mut self.traces);
        self.pickle.end_list(traces)?;
        self.pickle.word("segments")?;
        let mut list = self.pickle.begin_list()?;
        for state in std::mem::take(&mut self.ended) {
            state.write(&mut self.pickle, &mut list, &mut self.written)?;
        }
        self.pickle.end_list(list)?;
        self.allocator_settings()?;
        self.external_annotations()?;
        self.pickle.end_dict()?;
        Ok(self.pickle.stop()?)
    }

    fn device(&mut self) -> Result<&mut Device, WriteError> {
        self.device.as_mut().ok_or(WriteError::Order("events, marks or a state outside a device"))
    }

    fn allocator_settings(&mut self) -> io::Result<()> {
        let AllocatorSettings {
            conf,
            max_split_size,
            roundup_power2_divisions,
            expandable_segments,
            // The segment size is part of the configuration string; PyTorch has no key for it.
            large_segment_size: _,
            garbage_collection_permille,
        } = &self.settings;
        let pickle = &mut self.pickle;
        pickle.word("allocator_settings")?;
        pickle.begin_dict()?;
        pickle.word("PYTORCH_CUDA_ALLOC_CONF")?;
        pickle.text(conf)?;
        pickle.word("max_split_size")?;
        match *max_split_size {
            Some(bytes) => pickle.int(bytes)?,
            None => pickle.minus_one()?,
        }
        pickle.word("garbage_collection_threshold")?;
        pickle.float(f64::from(*garbage_collection_permille) / 1000.0)?;
        pickle.word("expandable_segments")?;
        pickle.boolean(*expandable_segments)?;
        pickle.word("roundup_power2_divisions")?;
        pickle.begin_dict()?;
        for (power, &divisions) in roundup_power2_divisions.iter().enumerate() {
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
            self.pickle.number("device", device.into())?;
            self.pickle.number("time_us", time_ns / NS_PER_US)?;
            self.pickle.end_dict()?;
        }
        self.pickle.end_list(list)
    }
}

impl WrittenStacks {
    /// Writes the frames of a stack once; later uses refer to them.
    fn stack<'a, I>(
        &mut self,
        pickle: &mut Pickle<impl Write>,
        stack: StackId,
        frames: impl FnOnce(StackId) -> I,
    ) -> io::Result<()>
    where
        I: IntoIterator<Item = &'a Frame>,
    {
        if !stack.is_some() {
            return pickle.empty_list();
        }
        if let Some(&memo) = self.stacks.get(&stack) {
            return pickle.again(memo);
        }
        let mut frames = frames(stack).into_iter().peekable();
        if let Some(name) = frames.peek().and_then(|frame| frame.owner()) {
            self.owners.insert(stack, name.into());
            frames.next();
        }
        let memo = self.list(pickle, frames)?;
        self.stacks.insert(stack, memo);
        Ok(())
    }

    /// Writes the name of the memory's owner for a stack that was written.
    fn owner(&self, pickle: &mut Pickle<impl Write>, stack: StackId) -> io::Result<()> {
        let Some(name) = self.owners.get(&stack) else { return Ok(()) };
        pickle.word("user_metadata")?;
        pickle.text(name)
    }

    fn list<'a>(
        &mut self,
        pickle: &mut Pickle<impl Write>,
        frames: impl IntoIterator<Item = &'a Frame>,
    ) -> io::Result<Memo> {
        let mut list = pickle.begin_list()?;
        for frame in frames {
            pickle.item(&mut list)?;
            if let Some(&memo) = self.frames.get(frame) {
                pickle.again(memo)?;
                continue;
            }
            pickle.begin_dict()?;
            pickle.word("name")?;
            pickle.text(&frame.function)?;
            pickle.word("filename")?;
            pickle.text(&frame.file)?;
            pickle.number("line", frame.line.into())?;
            pickle.end_dict()?;
            self.frames.insert(frame.clone(), pickle.remember()?);
        }
        pickle.end_list(list)?;
        pickle.remember()
    }
}
