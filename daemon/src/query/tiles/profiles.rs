//! Caches the steps and outlines of chunks between requests, and replays chunks that are not in the cache.
//!
//! Guarantees: a stored chunk never changes, so the cache is never stale. Memory is bounded ([`STEPS_BYTES`],
//! [`OUTLINES_BYTES`]), and the least recently used entry is evicted first. Only one stretch of a device is replayed at
//! a time; a concurrent request for the same stretch waits for its result.
//!
//! For outlines, at most one stretch of events is replayed at a time, not counting the events between the keyframe and
//! the stretch.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use memctl_analysis::outline::{Outline, Sketch, Steps};
use memctl_model::{Levels, SessionId};
use tokio::sync::{Mutex, MutexGuard};

use super::recent::Recent;
use super::rows::Row;
use crate::job_data::ReadError;
use crate::job_data::replay::{Go, Replay};
use crate::store::{SessionRow, Store};

/// Limit of the bytes of steps: about forty chunks of 65,536 events.
const STEPS_BYTES: usize = 64 << 20;
/// Limit of the bytes of outlines: those of some two hundred million events.
const OUTLINES_BYTES: usize = 48 << 20;
/// Overhead of one entry in bytes.
const EACH: usize = 192;
/// The most devices that are replayed at a time. Each device has one of these locks; two with the same lock wait for
/// each other.
const PLACES: usize = 16;

type Key = (SessionId, u8, u64);

/// The caches of steps and outlines; see the module.
pub(super) struct Profiles {
    steps: Recent<Key, Steps>,
    outlines: Recent<Key, Outline>,
    places: [Mutex<()>; PLACES],
    /// Events of a stretch, not counting those between the keyframe and the stretch.
    stretch: u64,
}

/// A device whose chunks are requested.
#[derive(Clone, Copy)]
pub(super) struct Device<'a> {
    pub store: &'a dyn Store,
    pub session: &'a SessionRow,
    pub device: u8,
}

impl Device<'_> {
    fn key(&self, row: &Row) -> Key {
        (self.session.info.id, self.device, row.seq)
    }
}

impl Profiles {
    pub fn new(stretch: u64) -> Self {
        Self {
            stretch,
            steps: Recent::new(STEPS_BYTES),
            outlines: Recent::new(OUTLINES_BYTES),
            places: std::array::from_fn(|_| Mutex::new(())),
        }
    }

    /// The steps of all these chunks, which must be consecutive.
    pub async fn steps(&self, device: Device<'_>, rows: &[Row]) -> Result<Vec<Arc<Steps>>, ReadError> {
        let known = |kept: &Self| -> Option<Vec<Arc<Steps>>> {
            rows.iter().map(|row| kept.steps.get(&device.key(row))).collect()
        };
        if let Some(all) = known(self) {
            return Ok(all);
        }
        let _place = self.place(&device).await;
        if let Some(all) = known(self) {
            return Ok(all);
        }
        self.replay(device, rows).await
    }

    /// The outlines of these chunks that are known. If some are not, one more stretch is replayed first.
    pub async fn outlines(&self, device: Device<'_>, rows: &[Row]) -> Result<Vec<Option<Arc<Outline>>>, ReadError> {
        let known =
            || -> Vec<Option<Arc<Outline>>> { rows.iter().map(|row| self.outlines.get(&device.key(row))).collect() };
        let all = known();
        if all.iter().all(Option::is_some) {
            return Ok(all);
        }
        let _place = self.place(&device).await;
        let all = known();
        let stretch = stretch(rows, &all, self.stretch);
        if stretch.is_empty() {
            return Ok(all);
        }
        self.replay(device, stretch).await?;
        Ok(known())
    }

    async fn place(&self, device: &Device<'_>) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        (device.session.key, device.device).hash(&mut hasher);
        self.places[hasher.finish() as usize % PLACES].lock().await
    }

    /// Replays these chunks and caches their steps and outlines.
    async fn replay(&self, device: Device<'_>, rows: &[Row]) -> Result<Vec<Arc<Steps>>, ReadError> {
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(Vec::new()) };
        let Device { store, session, device: index } = device;
        let mut replay = Replay::before(store, session, index, &[], first.first_event).await?;
        replay.run(first.first_event, |_, _, _| Go::On).await?;
        let mut drawing = Drawing { rows, levels: replay.map().levels(), sketch: None, found: Vec::new() };
        replay
            .run(last.end_event(), |number, event, map| {
                drawing.event(number - 1, event.time_ns, map.levels());
                Go::On
            })
            .await?;
        let found = drawing.finish();
        if found.len() < rows.len() {
            let rank = session.info.rank;
            return Err(ReadError::Expired { what: format!("rank {rank} after event {}", first.first_event) });
        }
        let kept = found.into_iter().zip(rows).map(|((steps, outline), row)| {
            let (steps, bytes) = (Arc::new(steps), outline.bytes() + EACH);
            self.outlines.put(device.key(row), Arc::new(outline), bytes);
            self.steps.put(device.key(row), steps.clone(), steps.bytes() + EACH);
            steps
        });
        Ok(kept.collect())
    }
}

/// The first consecutive chunks without an outline: at least one chunk, and at most `events_max` events.
fn stretch<'a>(rows: &'a [Row], known: &[Option<Arc<Outline>>], events_max: u64) -> &'a [Row] {
    let Some(first) = known.iter().position(Option::is_none) else { return &[] };
    let mut events: u64 = 0;
    let fits = |(at, row): &(usize, &Row)| {
        events = events.saturating_add(row.count);
        *at == first || (known[*at].is_none() && events <= events_max)
    };
    let count = rows.iter().enumerate().skip(first).take_while(fits).count();
    &rows[first..first + count]
}

/// The state of a replay of chunks.
struct Drawing<'a> {
    /// The remaining chunks, the current one first.
    rows: &'a [Row],
    /// The levels after the previous event.
    levels: Levels,
    sketch: Option<Sketch>,
    found: Vec<(Steps, Outline)>,
}

impl Drawing<'_> {
    fn event(&mut self, event: u64, time_ns: u64, levels: Levels) {
        while self.rows.first().is_some_and(|row| event >= row.end_event()) {
            self.next();
        }
        self.sketch.get_or_insert_with(|| Sketch::new(self.levels)).push(time_ns, levels);
        self.levels = levels;
    }

    fn next(&mut self) {
        self.found.extend(self.sketch.take().map(Sketch::finish));
        self.rows = self.rows.get(1..).unwrap_or_default();
    }

    fn finish(mut self) -> Vec<(Steps, Outline)> {
        self.next();
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{ChunkLevels, ChunkRow, ItemIndex};

    fn rows(counts: &[u64]) -> Vec<Row> {
        let mut first_event = 0;
        let row = |&count: &u64| {
            let index = ItemIndex { device: Some(0), first_event, count, ..ItemIndex::default() };
            first_event += count;
            Row::new(&ChunkRow { seq: 1, index, levels: ChunkLevels::default(), payload_bytes: 1 }, 0)
        };
        counts.iter().map(row).collect()
    }

    #[test]
    fn a_stretch_is_what_is_missing_next_and_bounded() {
        let rows = rows(&[1 << 16; 9]);
        let some = || Some(Arc::new(Sketch::new(Levels::default()).finish().1));
        let stretched = |known: &[Option<Arc<Outline>>]| {
            let found = stretch(&rows, known, 4 << 16);
            (found.first().map(|row| row.first_event >> 16), found.len())
        };
        let mut known = vec![None; 9];
        assert_eq!(stretched(&known), (Some(0), 4));
        known[0] = some();
        known[3] = some();
        assert_eq!(stretched(&known), (Some(1), 2));
        known.fill(some());
        assert_eq!(stretched(&known), (None, 0));
        let one = super::tests::rows(&[9 << 16, 1]);
        assert_eq!(stretch(&one, &[None, None], 4 << 16).len(), 1, "one at least");
    }

    #[test]
    fn events_go_to_their_chunks() {
        let rows = rows(&[2, 3]);
        let at = |bytes| Levels { allocated_bytes: bytes, active_bytes: bytes, reserved_bytes: 9 };
        let mut drawing = Drawing { rows: &rows, levels: at(7), sketch: None, found: Vec::new() };
        for event in 0..5 {
            drawing.event(event, 100 + event, at(event));
        }
        let befores: Vec<u64> = drawing.finish().iter().map(|(steps, _)| steps.before().allocated_bytes).collect();
        assert_eq!(befores, [7, 1]);
    }
}
