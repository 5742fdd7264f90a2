//! The trainer's side of an agent: records a device's allocations into its ring.
//!
//! Guarantees: recording an event takes no lock, makes no system call except reading the clock, and never waits. When
//! the ring is full, the event is dropped and counted. A device has one recorder. It can be sent to another thread, but
//! not shared.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::Duration;

use memctl_model::{Action, DeviceIndex, Event, Keyframe, StackId};

use crate::batch::note::Note;
use crate::clock::now_ns;
use crate::ring::{Position, Producer, Record};

/// How long a source that can wait sleeps while the ring is full. This is much shorter than the time in which a reader
/// empties a ring.
const WAIT_FOR_ROOM: Duration = Duration::from_micros(100);

/// The agent behind a recorder has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the agent has stopped")]
pub struct Stopped;

/// Records the events of one device.
pub struct Recorder {
    device: DeviceIndex,
    producer: Producer,
    notes: SyncSender<Note>,
    snapshot_wanted: Arc<AtomicBool>,
}

impl Recorder {
    pub(crate) fn new(
        device: DeviceIndex,
        producer: Producer,
        notes: SyncSender<Note>,
        snapshot_wanted: Arc<AtomicBool>,
    ) -> Self {
        Self { device, producer, notes, snapshot_wanted }
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> DeviceIndex {
        self.device
    }

    /// A block of `size` requested bytes was allocated.
    pub fn alloc(&mut self, addr: u64, size: u64, stream: u64, stack: StackId) -> bool {
        self.record(Action::Alloc, addr, size, stream, stack)
    }

    /// A block was freed and is reusable at once.
    pub fn free(&mut self, addr: u64, size: u64, stream: u64) -> bool {
        // Both events are recorded, as PyTorch does. If there is only room for one, the block map handles that.
        let requested = self.record(Action::FreeRequested, addr, size, stream, StackId::NONE);
        self.record(Action::FreeCompleted, addr, size, stream, StackId::NONE) && requested
    }

    /// The driver allocated a segment of `size` bytes.
    pub fn segment_alloc(&mut self, addr: u64, size: u64, stream: u64) -> bool {
        self.record(Action::SegmentAlloc, addr, size, stream, StackId::NONE)
    }

    /// A segment was released to the driver.
    pub fn segment_free(&mut self, addr: u64, size: u64, stream: u64) -> bool {
        self.record(Action::SegmentFree, addr, size, stream, StackId::NONE)
    }

    /// A request of `size` bytes failed while the device had `device_free` bytes.
    pub fn out_of_memory(&mut self, size: u64, device_free: u64, stack: StackId) -> bool {
        self.record(Action::Oom, device_free, size, 0, stack)
    }

    fn record(&mut self, action: Action, addr: u64, size: u64, stream: u64, stack: StackId) -> bool {
        self.event(&Event { time_ns: now_ns(), addr, size, stream, stack, action, ..Event::default() })
    }

    /// Records an event unchanged. Returns `false` when it was dropped.
    #[inline]
    pub fn event(&mut self, event: &Event) -> bool {
        self.producer.push(Record::new(event))
    }

    /// Records an event, and waits while the ring is full. For sources that can wait, such as a file. A trainer must
    /// not call this.
    ///
    /// # Errors
    /// When the agent has stopped.
    #[inline]
    pub fn event_waiting(&mut self, event: &Event) -> Result<(), Stopped> {
        while !self.producer.has_room() {
            if self.producer.is_closed() {
                return Err(Stopped);
            }
            std::thread::sleep(WAIT_FOR_ROOM);
        }
        self.producer.push(Record::new(event));
        Ok(())
    }

    /// Whether events were dropped and the agent requests the state of the device. The caller should answer with
    /// [`Self::snapshot`] between two events.
    #[must_use]
    pub fn snapshot_wanted(&self) -> bool {
        // Acquire: pairs with the worker's Release.
        self.snapshot_wanted.load(Ordering::Acquire)
    }

    /// Sends the state of the device after the last recorded event. Returns `false` when the agent could not take it
    /// now. The agent will request it again.
    pub fn snapshot(&mut self, mut keyframe: Keyframe) -> bool {
        keyframe.device = self.device;
        let position = Position { pushed: self.producer.pushed(), dropped: self.producer.dropped() };
        let note = Note::Keyframe(Box::new(keyframe), position);
        match self.notes.try_send(note) {
            Ok(()) => {
                // Relaxed: a request that is made meanwhile is repeated when events are dropped again.
                self.snapshot_wanted.store(false, Ordering::Relaxed);
                true
            }
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }
}
