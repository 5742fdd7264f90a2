//! Finds live memory by class within short stretches of time, from events.
//!
//! Guarantees: each slot has the classes at its highest moment, and they sum to the bytes allocated at that moment. A
//! gap between two slots with events becomes one slot with the memory that stayed. There are at most two slots for each
//! of the [`SLOTS`] parts of the range.
//!
//! Refuses: ranges of more than [`EVENTS_MAX`] events; for these, boundaries are shown instead.

use memctl_answers::classes::Slot;
use memctl_answers::format::time::Time;
use memctl_proto::StackDictionary;

use crate::event_analysis::classed::{BEFORE, Classed, Until};
use crate::job_data::error::ReadError;
use crate::job_data::replay::{Go, Replay};
use crate::store::{ChunkRow, SessionRow, Store};

/// Parts of the range; more than a picture has columns.
const SLOTS: u64 = 1_024;
/// The most events that are replayed. The classes of blocks are known for as many events.
const EVENTS_MAX: u64 = BEFORE;

/// A stretch of time and the moment whose classes it shows.
struct ClassStretch {
    from_ns: u64,
    until_ns: u64,
    /// The number of events before the moment.
    at: u64,
}

/// Collects the moments to show while the events pass.
struct Watch {
    from_ns: u64,
    until_ns: u64,
    width_ns: u64,
    /// The current part.
    part: Option<u64>,
    /// Its highest moment: allocated bytes, and events before it.
    highest: (u64, u64),
    /// The level after the last event, in the same form.
    last: (u64, u64),
    shown: Vec<ClassStretch>,
}

impl Watch {
    fn start(&self, part: u64) -> u64 {
        (self.from_ns + part * self.width_ns).min(self.until_ns)
    }

    fn event(&mut self, time_ns: u64, level: (u64, u64)) {
        if time_ns < self.from_ns {
            self.last = level;
            return;
        }
        let part = (time_ns - self.from_ns) / self.width_ns;
        if self.part.is_none_or(|now| part > now) {
            self.close(Some(part));
            self.part = Some(part);
            self.highest = self.last;
        }
        self.highest = self.highest.max(level);
        self.last = level;
    }

    /// Adds the current part, and a slot for the memory that stays until the next part.
    fn close(&mut self, next: Option<u64>) {
        let end_ns = next.map_or(self.until_ns, |next| self.start(next));
        let begun = self.part.map(|part| (self.start(part), self.start(part + 1), self.highest.1));
        let mut from_ns = self.from_ns;
        if let Some((start_ns, until_ns, at)) = begun {
            self.shown.push(ClassStretch { from_ns: start_ns, until_ns, at });
            from_ns = until_ns;
        }
        if from_ns < end_ns {
            self.shown.push(ClassStretch { from_ns, until_ns: end_ns, at: self.last.1 });
        }
    }
}

/// The slots of a device; `None` if there are too many events, see the module.
pub(super) async fn class_slots(
    store: &dyn Store,
    (session, device): (&SessionRow, u8),
    chunks: &[ChunkRow],
    times_ns: (u64, u64),
    stacks: &StackDictionary,
) -> Result<Option<Vec<Slot>>, ReadError> {
    let touches = |chunk: &&ChunkRow| chunk.index.first_ns <= times_ns.1 && chunk.index.last_ns >= times_ns.0;
    let near: Vec<&ChunkRow> = chunks.iter().filter(touches).collect();
    let events = near.iter().fold(0_u64, |sum, chunk| sum.saturating_add(chunk.index.count));
    let (Some(first), Some(last)) = (near.first(), near.last()) else { return Ok(None) };
    if events > EVENTS_MAX {
        return Ok(None);
    }
    let (from_ns, until_ns) = (times_ns.0.max(first.index.first_ns), times_ns.1.min(last.index.last_ns));
    let width_ns = until_ns.saturating_sub(from_ns) / SLOTS + 1;
    let end = last.index.first_event + last.index.count;
    let found = async {
        let mut replay = Replay::before(store, session, device, &[], first.index.first_event).await?;
        let before = (replay.map().levels().allocated_bytes, replay.at_event());
        let mut watch =
            Watch { from_ns, until_ns, width_ns, part: None, highest: before, last: before, shown: Vec::new() };
        replay
            .run(end, |number, event, map| {
                if event.time_ns > until_ns {
                    return Go::Stop;
                }
                watch.event(event.time_ns, (map.levels().allocated_bytes, number));
                Go::On
            })
            .await?;
        watch.close(None);
        let known = Classed::around(store, session, device, chunks, (end, Until::Later), stacks).await?;
        Ok((watch.shown, known))
    };
    let (shown, known) = match found.await {
        Err(ReadError::Expired { .. }) => return Ok(None),
        other => other?,
    };
    let moments: Vec<u64> = shown.iter().map(|slot| slot.at).collect();
    let slots = shown.iter().zip(known.at_each(&moments));
    Ok(Some(slots.map(|(of, bytes)| Slot { from: Time(of.from_ns), until: Time(of.until_ns), bytes }).collect()))
}
