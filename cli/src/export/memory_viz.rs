//! Writes a PyTorch memory snapshot of one rank from an export's parts.
//!
//! Guarantees: the snapshot's state is the one after the slice's last event, independent of what was sent before or
//! after the slice. The format is [`SnapshotWriter`]'s.

use std::io::Write;

use memctl_model::{AllocatorSettings, DeviceIndex, Event, Keyframe};
use memctl_proto::chunk::Decoder;
use memctl_proto::convert::{StackDictionary, marks};
use memctl_proto::v1;
use memctl_proto::v1::export_part::Body;
use memctl_snapshot::SnapshotWriter;

use super::window::{Window, Windows};
use super::{ExportError, Sink};

/// See the module. Takes the parts of one rank.
pub struct MemoryViz<W: Write> {
    snapshot: SnapshotWriter<W>,
    windows: Windows,
    decoder: Decoder,
    events: Vec<Event>,
    device: Option<Device>,
    settings: AllocatorSettings,
    session: Vec<u8>,
    dictionary: StackDictionary,
}

/// The device whose parts are arriving.
struct Device {
    window: Window,
    /// Whether an event of it has arrived.
    begun: bool,
}

impl<W: Write> MemoryViz<W> {
    /// Begins the file.
    ///
    /// # Errors
    /// The writer's; no memory for the decoder.
    pub fn new(out: W, windows: Windows) -> Result<Self, ExportError> {
        Ok(Self {
            snapshot: SnapshotWriter::new(out)?,
            windows,
            decoder: Decoder::new()?,
            events: Vec::new(),
            device: None,
            settings: AllocatorSettings::default(),
            session: Vec::new(),
            dictionary: StackDictionary::default(),
        })
    }

    fn start(&mut self, start: v1::RankStart) -> Result<(), ExportError> {
        self.end_device()?;
        let device = u8::try_from(start.device).map_err(|_| ExportError::Order("a device number beyond 255"))?;
        if let Some(session) = start.session {
            if session.id != self.session {
                // Each session numbers its own stacks.
                self.session.clone_from(&session.id);
                self.dictionary = StackDictionary::default();
                self.snapshot.forget_stacks();
            }
            if let Some(settings) = session.settings {
                self.settings = AllocatorSettings::try_from(settings)?;
            }
        }
        self.snapshot.begin_device(DeviceIndex(device), &self.settings)?;
        self.device = Some(Device { window: self.windows.of(start.rank), begun: false });
        Ok(())
    }

    fn end_device(&mut self) -> Result<(), ExportError> {
        if self.device.take().is_some() {
            self.snapshot.end_device(|stack| self.dictionary.frames(stack))?;
        }
        Ok(())
    }

    fn stacks(&mut self, batch: &v1::StackBatch) -> Result<(), ExportError> {
        if batch.first_stack <= 1 && !self.dictionary.is_empty() {
            // The session's dictionary starts from its beginning again for the next device.
            self.dictionary = StackDictionary::default();
        }
        Ok(self.dictionary.add(batch)?)
    }

    fn keyframe(&mut self, keyframe: &Keyframe) -> Result<(), ExportError> {
        let Some(device) = &self.device else { return Err(ExportError::Order("a keyframe before its rank")) };
        // A keyframe after the slice would replace the slice's end state.
        if keyframe.time_ns <= device.window.last_ns || !device.begun {
            self.snapshot.restore(keyframe)?;
        }
        Ok(())
    }

    fn chunk(&mut self, chunk: &[u8]) -> Result<(), ExportError> {
        self.decoder.decode(chunk, &mut self.events)?;
        let Some(Device { window, begun }) = &mut self.device else {
            return Err(ExportError::Order("events before their rank"));
        };
        // Later events do not belong to the slice's end state.
        for event in self.events.iter().filter(|event| event.time_ns <= window.last_ns) {
            *begun = true;
            if event.time_ns < window.first_ns {
                self.snapshot.pass(event)?;
            } else {
                self.snapshot.event(event, |stack| self.dictionary.frames(stack))?;
            }
        }
        Ok(())
    }

    fn marks(&mut self, batch: &v1::MarkBatch) -> Result<(), ExportError> {
        let Some(Device { window, .. }) = &self.device else {
            return Err(ExportError::Order("marks before their rank"));
        };
        for mark in marks::from_wire(batch)? {
            if (window.first_ns..=window.last_ns).contains(&mark.time_ns) {
                self.snapshot.mark(&mark)?;
            }
        }
        Ok(())
    }
}

impl<W: Write> Sink for MemoryViz<W> {
    fn part(&mut self, part: Body) -> Result<(), ExportError> {
        match part {
            Body::Start(start) => self.start(start),
            Body::Stacks(batch) => self.stacks(&batch),
            Body::Keyframe(keyframe) => self.keyframe(&keyframe.try_into()?),
            Body::Chunk(chunk) => self.chunk(&chunk),
            Body::Marks(batch) => self.marks(&batch),
            Body::Samples(_) => Ok(()),
        }
    }

    fn finish(&mut self) -> Result<(), ExportError> {
        self.end_device()?;
        Ok(self.snapshot.finish()?)
    }
}
