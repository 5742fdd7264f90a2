//! Replay: the state of a device at any event, from the preceding keyframe and the chunks between.
//!
//! Guarantees: reads a bounded number of payloads at a time, and pauses between them, so that it ends when its client
//! disconnects. Expired data is an error, never a wrong state.

use memctl_analysis::{Birth, BlockMap};
use memctl_model::{Event, Keyframe};
use memctl_proto::chunk::Decoder;
use memctl_proto::item::Content;

use super::error::ReadError;
use super::mark_cursor::MarkCursor;
use super::stacks::open;
use crate::store::{ChunkRow, EpochEndRow, Selection, SessionKey, SessionRow, Store};

/// Payloads read at a time: 16 chunks of about 50 KB.
const PAYLOADS: usize = 16;

/// A device of a session, to be replayed.
pub(crate) struct Replay<'a> {
    store: &'a dyn Store,
    session: &'a SessionRow,
    device: u8,
    map: BlockMap,
    decoder: Decoder,
    /// Epoch ends of this device, by event.
    epochs: Vec<(u64, u32, u64)>,
    /// The marks for the births of blocks, if they are needed.
    cursor: Option<MarkCursor>,
    at_event: u64,
    /// The time of the keyframe at which it started.
    started_ns: Option<u64>,
    /// A gap of missing items was passed.
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
        let keyframe = keyframe_before(store, session.key, device, event).await?;
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
        let decoder = Decoder::new().map_err(ReadError::chunk(session.key, 0))?;
        Ok(Self { store, session, device, map, decoder, epochs, cursor: None, at_event, started_ns, jumped: false })
    }

    /// Continues from a state that an earlier replay of this device reached after `at_event` events.
    pub fn from(mut self, at_event: u64, map: BlockMap) -> Self {
        (self.at_event, self.map) = (at_event, map);
        self
    }

    /// Blocks are born in the steps and phases of these marks.
    pub fn with_cursor(mut self, cursor: MarkCursor) -> Self {
        self.cursor = Some(cursor);
        self
    }

    /// The number of events that the state includes.
    pub fn at_event(&self) -> u64 {
        self.at_event
    }

    /// The time of the keyframe at which the replay started; `None` if it started at the session's first event.
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

    /// Applies events up to (not including) `until`; `visit` gets each one with the state after it.
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
                self.decoder.decode(&payload, &mut events).map_err(ReadError::chunk(self.session.key, seq))?;
                if self.apply(chunk, &events, until, &mut visit) == Go::Stop {
                    return Ok(());
                }
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// A chunk must begin at the current state, unless the events between were dropped or lost.
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
        ReadError::Expired { what: format!("rank {} behind event {}", self.session.info.rank, self.at_event) }
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
            // Events belong to the epoch that ends next, or after the last end to the epoch after it.
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
