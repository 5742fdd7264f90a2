//! Thousands of chunks as load: real events, repeated with shifted times.

use memctl_analysis::{Birth, BlockMap};
use memctl_model::limits::CHUNK_EVENTS_MAX;
use memctl_model::{AllocatorSettings, DeviceIndex, Event, Keyframe, KeyframeReason, Levels, Rollup};
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
    /// The state after the last chunk and its time, if keyframes are requested.
    state: Option<(BlockMap, u64)>,
}

/// The levels of the current chunk, for keyframes.
struct Followed {
    start: Levels,
    end: Levels,
    min: Levels,
    max: Levels,
}

impl Followed {
    fn new(levels: Levels) -> Self {
        Self { start: levels, end: levels, min: levels, max: levels }
    }

    fn take(&mut self, levels: Levels, is_first: bool) {
        self.end = levels;
        if is_first {
            (self.min, self.max) = (levels, levels);
        }
        for (kept, now, pick) in [
            (&mut self.min, levels, u64::min as fn(u64, u64) -> u64),
            (&mut self.max, levels, u64::max as fn(u64, u64) -> u64),
        ] {
            kept.allocated_bytes = pick(kept.allocated_bytes, now.allocated_bytes);
            kept.active_bytes = pick(kept.active_bytes, now.active_bytes);
            kept.reserved_bytes = pick(kept.reserved_bytes, now.reserved_bytes);
        }
    }
}

impl Chunks {
    /// Repeats `events` endlessly.
    ///
    /// # Errors
    /// When there are none.
    pub fn new(events: Vec<Event>, resolution_ns: u32) -> Result<Self, Box<dyn std::error::Error>> {
        let (Some(first), Some(last)) = (events.first(), events.last()) else {
            return Err("no events to repeat".into());
        };
        let span_ns = last.time_ns - first.time_ns + 1_000_000;
        let encoder = Encoder::new(resolution_ns)?;
        Ok(Self { events, encoder, device: DeviceIndex(0), at: 0, round: 0, next_event: 0, span_ns, state: None })
    }

    /// Follows the events with a block map, so that keyframes are available.
    #[must_use]
    pub fn followed(mut self, settings: &AllocatorSettings) -> Self {
        self.state = Some((BlockMap::new(settings), 0));
        self
    }

    /// The state after the last chunk.
    #[must_use]
    pub fn keyframe(&self) -> Option<Keyframe> {
        let (map, time_ns) = self.state.as_ref()?;
        Some(map.keyframe(self.device, self.next_event, *time_ns, KeyframeReason::Periodic))
    }

    /// The next full chunk.
    ///
    /// # Errors
    /// When the encoder fails.
    pub fn next_chunk(&mut self) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
        let mut rollup = Rollup { exact: true, ..Rollup::default() };
        let mut followed = self.state.as_ref().map(|(map, _)| Followed::new(map.levels()));
        for index in 0..CHUNK_EVENTS_MAX {
            let mut event = self.events[self.at];
            event.time_ns += self.round * self.span_ns;
            self.encoder.push(&event)?;
            if let Some((map, time_ns)) = &mut self.state {
                map.apply(&event, Birth { epoch: (self.next_event >> 20) as u32, step: 0, phase: None });
                *time_ns = event.time_ns;
                if let Some(followed) = &mut followed {
                    followed.take(map.levels(), index == 0);
                }
            }
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
        match followed {
            Some(Followed { start, end, min, max }) => {
                (rollup.start, rollup.end, rollup.min, rollup.max) = (start, end, min, max);
            }
            None => {
                let level = 1 << 30 | (self.next_event & 0xffff_ffff);
                for levels in [&mut rollup.start, &mut rollup.end, &mut rollup.min, &mut rollup.max] {
                    levels.allocated_bytes = level;
                    levels.active_bytes = level;
                    levels.reserved_bytes = level * 2;
                }
            }
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
