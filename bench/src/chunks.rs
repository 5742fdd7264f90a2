//! Chunks by the thousand for load: real events, repeated with shifted times.

use memctl_model::limits::CHUNK_EVENTS_MAX;
use memctl_model::{DeviceIndex, Event, Rollup};
use memctl_proto::chunk::{ChunkMeta, Encoder};

/// Endless chunks of one device made of real events.
pub struct Chunks {
    events: Vec<Event>,
    encoder: Encoder,
    device: DeviceIndex,
    at: usize,
    round: u64,
    next_event: u64,
    span_ns: u64,
}

impl Chunks {
    /// Repeats `events` for ever.
    ///
    /// # Errors
    /// When there are none.
    pub fn new(events: Vec<Event>, resolution_ns: u32) -> Result<Self, Box<dyn std::error::Error>> {
        let (Some(first), Some(last)) = (events.first(), events.last()) else {
            return Err("no events to repeat".into());
        };
        let span_ns = last.time_ns - first.time_ns + 1_000_000;
        let encoder = Encoder::new(resolution_ns)?;
        Ok(Self { events, encoder, device: DeviceIndex(0), at: 0, round: 0, next_event: 0, span_ns })
    }

    /// The next full chunk.
    ///
    /// # Errors
    /// When the encoder fails.
    pub fn next_chunk(&mut self) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
        let mut rollup = Rollup { exact: true, ..Rollup::default() };
        for index in 0..CHUNK_EVENTS_MAX {
            let mut event = self.events[self.at];
            event.time_ns += self.round * self.span_ns;
            self.encoder.push(&event)?;
            rollup.counts[event.action as usize] += 1;
            if index == 0 {
                rollup.first_ns = event.time_ns;
            }
            rollup.last_ns = event.time_ns;
            self.at += 1;
            if self.at == self.events.len() {
                self.at = 0;
                self.round += 1;
            }
        }
        let level = 1 << 30 | (self.next_event & 0xffff_ffff);
        for levels in [&mut rollup.start, &mut rollup.end, &mut rollup.min, &mut rollup.max] {
            levels.allocated_bytes = level;
            levels.active_bytes = level;
            levels.reserved_bytes = level * 2;
        }
        (rollup.first_epoch, rollup.last_epoch) = (self.epoch(), self.epoch());
        let meta = ChunkMeta { device: self.device, first_event: self.next_event, rollup };
        let bytes = self.encoder.finish(&meta)?;
        self.next_event += CHUNK_EVENTS_MAX as u64;
        Ok(bytes)
    }

    /// Events in the chunks so far.
    #[must_use]
    pub fn next_event(&self) -> u64 {
        self.next_event
    }

    /// An epoch every million events.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        (self.next_event >> 20) as u32
    }
}
