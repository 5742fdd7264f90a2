//! Finds the position of a time among the stored events of a device.

use crate::job_data::error::ReadError;
use crate::job_data::replay::{Go, Replay};
use crate::store::{ChunkRow, Selection, SessionRow, Store};

/// The stored events of a device up to a time.
pub(super) struct EventsUntil {
    /// The chunk of the last of these events.
    pub chunk: ChunkRow,
    /// Their number.
    pub at: u64,
    /// The time of the last of them.
    pub time_ns: u64,
}

/// The stored events at or before a time. They end with the last event at or before it in the last chunk that begins
/// before it. `None` if there are no such events.
pub(super) async fn events_until(
    store: &dyn Store,
    session: &SessionRow,
    device: u8,
    time_ns: u64,
) -> Result<Option<EventsUntil>, ReadError> {
    if time_ns < session.info.started_ns {
        let rank = session.info.rank;
        return Err(ReadError::Invalid(format!("the recording of rank {rank} had not begun at that time")));
    }
    let before = Selection { times_ns: Some((0, time_ns)), ..Selection::default() };
    let Some(chunk) = store.chunks(session.key, device, before).await?.pop() else { return Ok(None) };
    let mut replay = Replay::before(store, session, device, &[], chunk.index.first_event).await?;
    let mut last = (replay.at_event(), chunk.index.first_ns);
    replay
        .run(chunk.index.first_event + chunk.index.count, |number, event, _| {
            if event.time_ns > time_ns {
                return Go::Stop;
            }
            last = (number, event.time_ns);
            Go::On
        })
        .await?;
    let (at, time_ns) = last;
    Ok(Some(EventsUntil { chunk, at, time_ns }))
}
