//! Replays the state of a device at any event, from the preceding keyframe and the chunks between.
//!
//! Guarantees: a bounded number of payloads is read at a time. The replay pauses between them, so that it ends when its
//! client disconnects. Expired data is an error, never a wrong state.

use memctl_analysis::initial_state::initial_state;
use memctl_analysis::{Birth, BlockMap};
use memctl_model::{DeviceIndex, Event, Keyframe, KeyframeReason};
use memctl_proto::chunk::Decoder;
use memctl_proto::item::Content;
use memctl_proto::v1::ItemKind;

use super::error::ReadError;
use super::mark_cursor::MarkCursor;
use super::stacks::open;
use crate::store::{ChunkRow, EpochEndRow, Selection, SessionKey, SessionRow, Store};

/// Payloads read at a time: 16 chunks of about 50 KB.
const PAYLOADS: usize = 16;

/// A replay of one device of a session.
pub(crate) struct Replay<'a> {
    store: &'a dyn Store,
    session: &'a SessionRow,
    device: u8,
    map: BlockMap,
    decoder: Decoder,
    /// Epoch ends of this device: event, epoch and step, by event.
    epochs: Vec<(u64, u32, u64)>,
    /// The marks for the births of blocks, if they are needed.
    cursor: Option<MarkCursor>,
    at_event: u64,
    /// The time of the keyframe at which it started.
    started_ns: Option<u64>,
    /// Whether the replay passed a gap of missing items.
    jumped: bool,
}

/// Whether to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Go {
    On,
    Stop,
}

impl<'a> Replay<'a> {
    /// Starts at the last keyframe at or before `event`.
    pub async fn before(
        store: &'a dyn Store,
        session: &'a SessionRow,
        device: u8,
        epoch_ends: &[EpochEndRow],
        event: u64,
    ) -> Result<Self, ReadError> {
        let mut map = BlockMap::new(&session.info.settings);
        let keyframe = match keyframe_before(store, session.key, device, event).await? {
            Some(keyframe) => Some(keyframe),
            None => state_at_start(store, session, device).await?,
        };
        if let Some(keyframe) = &keyframe {
            map.restore(keyframe);
        }
        let at_event = keyframe.as_ref().map_or(0, |keyframe| keyframe.at_event);
        let started_ns = keyframe.map(|keyframe| keyframe.time_ns);
        let epochs = epoch_ends
            .iter()
            .filter(|end| end.session == session.key && end.device == device)
            .map(|end| (end.at_event, end.epoch, end.step))
            .collect();
        let decoder = Decoder::new().map_err(ReadError::decoder)?;
        Ok(Self { store, session, device, map, decoder, epochs, cursor: None, at_event, started_ns, jumped: false })
    }

    /// Continues from a state that an earlier replay of this device reached after `at_event` events.
    pub fn from(mut self, at_event: u64, map: BlockMap) -> Self {
        (self.at_event, self.map) = (at_event, map);
        self
    }

    /// Sets the marks from which blocks get their step and phase of birth.
    pub fn with_cursor(mut self, cursor: MarkCursor) -> Self {
        self.cursor = Some(cursor);
        self
    }

    /// The number of events that the state includes.
    pub fn at_event(&self) -> u64 {
        self.at_event
    }

    /// The time of the keyframe at which the replay started; `None` if no keyframe was
    /// found, so that it started with an empty state.
    pub fn started_ns(&self) -> Option<u64> {
        self.started_ns
    }

    /// Whether items are missing before the state.
    pub fn jumped(&self) -> bool {
        self.jumped
    }

    /// The state.
    pub fn map(&self) -> &BlockMap {
        &self.map
    }

    /// Applies events up to (not including) `until`. `visit` gets the number of applied events, the last one of them,
    /// and the state after it.
    pub async fn run(
        &mut self,
        until: u64,
        mut visit: impl FnMut(u64, &Event, &BlockMap) -> Go,
    ) -> Result<(), ReadError> {
        if until <= self.at_event {
            return Ok(());
        }
        let selection = Selection { events: Some((self.at_event, until - 1)), ..Selection::default() };
        let chunks = self.store.chunks(self.session.key, self.device, selection).await?;
        let mut events = Vec::new();
        for group in chunks.chunks(PAYLOADS) {
            let seqs: Vec<u64> = group.iter().map(|chunk| chunk.seq).collect();
            let payloads = self.store.payloads(self.session.key, &seqs).await?;
            if payloads.len() < group.len() {
                return Err(self.expired());
            }
            for (chunk, (seq, payload)) in group.iter().zip(payloads) {
                self.expect(chunk)?;
                events.clear();
                let damaged = ReadError::chunk(self.store, self.session.key, seq);
                self.decoder.decode(&payload, &mut events).map_err(damaged)?;
                if self.apply(chunk, &events, until, &mut visit) == Go::Stop {
                    return Ok(());
                }
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// Checks that a chunk begins at the current state or before it. A gap is accepted only if items are missing in the
    /// session and none of its events has expired.
    fn expect(&mut self, chunk: &ChunkRow) -> Result<(), ReadError> {
        if chunk.index.first_event <= self.at_event {
            return Ok(());
        }
        if self.session.missing_items == 0 || self.session.expired_events > 0 {
            return Err(self.expired());
        }
        self.jumped = true;
        Ok(())
    }

    fn expired(&self) -> ReadError {
        ReadError::Expired { what: format!("rank {} after event {}", self.session.info.rank, self.at_event) }
    }

    fn apply(
        &mut self,
        chunk: &ChunkRow,
        events: &[Event],
        until: u64,
        visit: &mut impl FnMut(u64, &Event, &BlockMap) -> Go,
    ) -> Go {
        let first = chunk.index.first_event;
        let skip = self.at_event.saturating_sub(first).min(events.len() as u64);
        let mut number = first + skip;
        let mut births = self.epochs.partition_point(|&(at, ..)| at <= number);
        for event in &events[skip as usize..] {
            if number >= until {
                return Go::Stop;
            }
            while self.epochs.get(births).is_some_and(|&(at, ..)| at <= number) {
                births += 1;
            }
            // An event belongs to the epoch that ends next; after the last end, it belongs to the epoch after it.
            let mut birth = match self.epochs.get(births) {
                Some(&(_, epoch, step)) => Birth { epoch, step, phase: None },
                None => Birth { epoch: chunk.index.last_epoch, step: chunk.index.last_step, phase: None },
            };
            if let Some(cursor) = &mut self.cursor {
                cursor.refine(event, &mut birth);
            }
            self.map.apply(event, birth);
            number += 1;
            self.at_event = number;
            if visit(number, event, &self.map) == Go::Stop {
                return Go::Stop;
            }
        }
        Go::On
    }
}

/// The most events before an agent's first keyframe. There are a few if the agent attached to a process that had
/// allocated before.
const EVENTS_BEFORE_START: u64 = 4_096;

/// The state before a session's first event, if the first keyframe follows some events. It is computed from the
/// keyframe and these events. `None` if no keyframe follows that soon, or if it does not fit the events.
async fn state_at_start(store: &dyn Store, session: &SessionRow, device: u8) -> Result<Option<Keyframe>, ReadError> {
    let selection = Selection { events: Some((0, EVENTS_BEFORE_START)), ..Selection::default() };
    let rows = store.items(session.key, ItemKind::Keyframe, Some(device), selection).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let Content::Keyframe(keyframe) = open(session.key, row)? else { return Ok(None) };
    let is_start = keyframe.reason == KeyframeReason::Start && keyframe.at_event <= EVENTS_BEFORE_START;
    if !is_start || keyframe.at_event == 0 || !keyframe.loose.is_empty() {
        return Ok(None);
    }
    let selection = Selection { events: Some((0, keyframe.at_event - 1)), ..Selection::default() };
    let chunks = store.chunks(session.key, device, selection).await?;
    let seqs: Vec<u64> = chunks.iter().map(|chunk| chunk.seq).collect();
    let mut decoder = Decoder::new().map_err(ReadError::decoder)?;
    let mut events = Vec::new();
    for (seq, payload) in store.payloads(session.key, &seqs).await? {
        decoder.decode(&payload, &mut events).map_err(ReadError::chunk(store, session.key, seq))?;
    }
    let is_whole = chunks.first().is_some_and(|chunk| chunk.index.first_event == 0);
    if !is_whole || events.len() as u64 != keyframe.at_event {
        return Ok(None);
    }
    let start = initial_state(&session.info.settings, DeviceIndex(device), &keyframe.segments, events.into_iter());
    Ok((start.contradictions == 0).then_some(start.keyframe))
}

/// The last keyframe of a device at or before an event.
pub(crate) async fn keyframe_before(
    store: &dyn Store,
    session: SessionKey,
    device: u8,
    event: u64,
) -> Result<Option<Keyframe>, ReadError> {
    let Some(row) = store.keyframe_before(session, device, event).await? else { return Ok(None) };
    match open(session, &row)? {
        Content::Keyframe(keyframe) => Ok(Some(keyframe)),
        _ => Err(ReadError::damaged(session, row.seq, "it is no keyframe")),
    }
}

#[cfg(test)]
mod tests {
    use memctl_model::{Action, Levels, Rollup};
    use memctl_proto::chunk::{ChunkMeta, Encoder};
    use memctl_proto::item::Packed;

    use super::*;
    use crate::query::tiles::tests::append;
    use crate::store::SqliteStore;

    const MIB: u64 = 1 << 20;
    const SEGMENT: u64 = 1 << 32;

    fn event(number: u64, action: Action, at_mib: u64, mib: u64) -> Event {
        Event { time_ns: 1_000 + number, action, addr: SEGMENT + at_mib * MIB, size: mib * MIB, ..Event::default() }
    }

    fn chunk(events: &[Event], first_event: u64, end: Levels) -> Packed {
        let mut encoder = Encoder::new(1).unwrap();
        events.iter().for_each(|event| encoder.push(event).unwrap());
        let rollup = Rollup { start: end, min: end, max: end, end, exact: true, ..Rollup::default() };
        Packed::chunk(encoder.finish(&ChunkMeta { device: DeviceIndex(0), first_event, rollup }).unwrap().into())
    }

    /// An agent that attaches to a process that has allocated sends an event, and then the state after it.
    #[tokio::test]
    async fn what_lived_before_an_agent_attached_is_part_of_every_state() {
        let before = [
            event(0, Action::SegmentAlloc, 0, 64),
            event(1, Action::Alloc, 0, 10),
            event(2, Action::Alloc, 10, 20),
            event(3, Action::Alloc, 30, 4),
        ];
        let since = [
            event(4, Action::Alloc, 34, 6),
            event(5, Action::FreeRequested, 10, 20),
            event(6, Action::FreeCompleted, 10, 20),
            event(7, Action::Alloc, 40, 8),
        ];
        let mut map = BlockMap::new(&memctl_model::AllocatorSettings::default());
        before.iter().for_each(|event| map.apply(event, Birth::default()));
        let mut expected = Vec::new();
        let mut items = Vec::new();
        for (number, event) in (1..).zip(&since) {
            map.apply(event, Birth::default());
            expected.push((number, map.levels()));
            if number == 1 {
                items.push(chunk(&since[..1], 0, map.levels()));
                items.push(Packed::keyframe(&map.keyframe(DeviceIndex(0), 1, event.time_ns, KeyframeReason::Start)));
            }
        }
        items.push(chunk(&since[1..], 1, map.levels()));
        let store = SqliteStore::in_memory().await.unwrap();
        append(&store, 1, &items).await;
        let store: &dyn Store = &store;
        let job = store.jobs(1).await.unwrap().remove(0);
        let session = store.sessions(job.key).await.unwrap().remove(0);
        let mut replay = Replay::before(store, &session, 0, &[], 0).await.unwrap();
        assert_eq!(replay.map().levels().allocated_bytes, 34 * MIB, "what lived before the first event");
        let mut seen = Vec::new();
        let visit = |number, _: &Event, map: &BlockMap| {
            seen.push((number, map.levels()));
            Go::On
        };
        replay.run(since.len() as u64, visit).await.unwrap();
        assert_eq!(seen, expected);
        assert_eq!(seen[3].1.allocated_bytes, 28 * MIB);
    }
}
