//! Tiles of a timeline: the lowest, highest and last levels of one device over equal slots of time, for a page that
//! zooms and pans.
//!
//! Guarantees: memory and work per tile are bounded regardless of the job. The level of detail depends on the number of
//! events ([`Bounds`]). With few events a tile is exact, slot by slot. With more it is made of runs of 256 events. With
//! many it is made of the bounds stored with each chunk. A tile's range of levels is never too narrow, and the tile
//! names its level of detail.
//!
//! A tile of runs replays at most one stretch before it is returned. Chunks that are not replayed yet appear with their
//! bounds, and the next request replays more of them. A complete tile of the past never changes.
//!
//! Refuses: more than one process at a time.
//!
//! - `grid`: positions of tiles; `rows`: the chunks' rows; `profiles`: the results of replaying a chunk; `recent`: the
//!   cache of both.

mod grid;
mod profiles;
mod recent;
mod rows;
#[cfg(test)]
pub(crate) mod tests;

use memctl_analysis::timeline::{Bucket, Timeline};
use memctl_answers::SCHEMA;
use memctl_answers::format::time::rfc3339;
use memctl_answers::tile::{COLUMNS, Head, Tile};
use memctl_answers::timeline::Mark;
use memctl_model::{Levels, MarkKind};
use memctl_proto::v1;

pub use grid::Place;
use grid::SLOTS;
use profiles::{Device, Profiles};
use rows::{KeptRows, Rows};

use super::timeline;
use crate::job_data::ReadError;
use crate::job_data::job::find;
use crate::store::{Selection, SessionRow, Store};

/// The limits of a tile's events for each level of detail.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Limit for single events: up to three chunks, because a tile as long as two chunks may touch a third.
    fine: u64,
    /// Limit for runs. Beyond this, a chunk is hardly wider than a slot.
    outlined: u64,
    /// Limit for marks: some hundred steps.
    marked: u64,
    /// Events that are replayed for runs before a tile is returned, not counting the events between the keyframe and
    /// the first of them. At least one chunk is replayed.
    stretch: u64,
}

const BOUNDS: Bounds = Bounds { fine: 3 << 16, outlined: 128 << 16, marked: 8 << 16, stretch: 4 << 16 };
/// The most marks of a tile.
const MARKS_MAX: usize = 1_000;

/// The time of levels before the window; it precedes every window.
const BEFORE_NS: u64 = 0;

/// The data that tiles are made of, cached between requests.
pub(super) struct Tiles {
    rows: KeptRows,
    profiles: Profiles,
    bounds: Bounds,
}

/// The level of detail of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Detail {
    Events,
    Runs,
    Chunks,
}

impl Detail {
    fn of(events: u64, bounds: Bounds) -> Self {
        if events <= bounds.fine {
            Self::Events
        } else if events <= bounds.outlined {
            Self::Runs
        } else {
            Self::Chunks
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Runs => "runs",
            Self::Chunks => "chunks",
        }
    }
}

impl Tiles {
    pub fn new() -> Self {
        Self::bounded(BOUNDS)
    }

    fn bounded(bounds: Bounds) -> Self {
        Self { rows: KeptRows::new(), profiles: Profiles::new(bounds.stretch), bounds }
    }

    /// Answers the request. `session` is the session whose earlier tiles the client has, if any.
    pub async fn tile(
        &self,
        store: &dyn Store,
        selection: &v1::Selection,
        place: Place,
        session: Option<&str>,
    ) -> Result<Tile, ReadError> {
        let times_ns = place.times_ns()?;
        let found = find(store, selection).await?;
        let [one] = found.sessions.as_slice() else {
            return Err(ReadError::Invalid(
                "tiles are of one process: rank=N, and process=NAME where it has several".into(),
            ));
        };
        let id = one.info.id.to_string();
        if session.is_some_and(|asked| asked != id) {
            return Err(ReadError::Invalid(format!(
                "rank {} has another session by now; ask without session=",
                one.info.rank
            )));
        }
        let Some(row) = found.devices_of(one.key).first() else {
            return Err(ReadError::Invalid(format!("nothing is stored of a device of rank {}", one.info.rank)));
        };
        let device = Device { store, session: one, device: row.info.index.0 };
        let rows = self.rows.of(store, one, device.device).await?;
        let (_, within) = rows.within(times_ns);
        let events = within.iter().fold(0, |sum: u64, row| sum.saturating_add(row.count));
        let filled = self.filled(device, &rows, times_ns, Detail::of(events, self.bounds)).await?;
        let (marks, marks_left_out) =
            if events <= self.bounds.marked { marks(store, one, times_ns).await? } else { (Vec::new(), 0) };
        // After the last event, either data is still missing or nothing happened.
        let buckets: Vec<&Bucket> =
            filled.buckets.iter().take_while(|bucket| Some(bucket.start_ns) <= rows.reach_ns()).collect();
        let first_slot = buckets.first().map_or(0, |first| (first.start_ns - times_ns.0) >> place.level);
        let is_over = one.end.is_some() || rows.is_past(times_ns.1);
        Ok(Tile {
            head: Head {
                schema: SCHEMA,
                session: id,
                rank: one.info.rank,
                process: found.process_name(one),
                device: u32::from(device.device),
                level: place.level,
                index: place.index,
                first_at: rfc3339(times_ns.0),
                slots: SLOTS,
                first_slot,
                count: buckets.len() as u64,
                detail: filled.detail.name(),
                coarse_chunks: filled.coarse,
                is_final: is_over && filled.coarse == 0,
                exact: within.iter().all(|row| row.exact),
                columns: COLUMNS,
                marks,
                marks_left_out,
            },
            slots: buckets.into_iter().map(slot).collect(),
        })
    }

    /// The slots of a tile, at its level of detail.
    async fn filled(
        &self,
        device: Device<'_>,
        rows: &Rows,
        times_ns: (u64, u64),
        detail: Detail,
    ) -> Result<Filled, ReadError> {
        let (before, within) = rows.within(times_ns);
        let mut timeline = Timeline::new(times_ns.0, times_ns.1, SLOTS as usize);
        if let Some(before) = before {
            timeline.push(BEFORE_NS, before.end());
        }
        let coarse = match detail {
            Detail::Events => match unless_expired(self.profiles.steps(device, within).await)? {
                Some(all) => {
                    enter(&mut timeline, before.and(all.first()).map(|first| first.before()));
                    all.iter().for_each(|steps| steps.tell(&mut timeline));
                    Some(0)
                }
                None => None,
            },
            Detail::Runs => match unless_expired(self.profiles.outlines(device, within).await)? {
                Some(all) => {
                    let first = all.first().and_then(Option::as_ref);
                    enter(&mut timeline, before.and(first).map(|first| first.before()));
                    for (row, outline) in within.iter().zip(&all) {
                        match outline {
                            Some(outline) => outline.tell(&mut timeline),
                            None => timeline.push_rollup(&row.rollup()),
                        }
                    }
                    Some(all.iter().filter(|outline| outline.is_none()).count() as u64)
                }
                None => None,
            },
            Detail::Chunks => None,
        };
        if coarse.is_none() {
            within.iter().for_each(|row| timeline.push_rollup(&row.rollup()));
        }
        let detail = coarse.map_or(Detail::Chunks, |_| detail);
        Ok(Filled { buckets: timeline.finish(), detail, coarse: coarse.unwrap_or(0) })
    }
}

/// The slots of a tile, and how they were filled.
struct Filled {
    buckets: Vec<Bucket>,
    detail: Detail,
    /// Chunks that only their bounds represent so far.
    coarse: u64,
}

/// Returns `None` if single events have expired; the bounds of their chunks remain.
fn unless_expired<T>(found: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(ReadError::Expired { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Adds the levels before a chunk, according to its replay.
fn enter(timeline: &mut Timeline, before: Option<Levels>) {
    if let Some(before) = before {
        timeline.push(BEFORE_NS, before);
    }
}

fn slot(bucket: &Bucket) -> [u64; COLUMNS.len()] {
    let Bucket { min, max, last, .. } = bucket;
    [min.allocated_bytes, max.allocated_bytes, last.allocated_bytes, max.reserved_bytes, last.reserved_bytes]
}

/// The marks between two times (the end excluded). If there are too many, steps are left out first.
async fn marks(
    store: &dyn Store,
    session: &SessionRow,
    (start_ns, end_ns): (u64, u64),
) -> Result<(Vec<Mark>, u64), ReadError> {
    let chosen = Selection { times_ns: Some((start_ns, end_ns - 1)), ..Selection::default() };
    let mut all = timeline::stored_marks(store, session, chosen).await?;
    all.retain(|mark| (start_ns..end_ns).contains(&mark.time_ns));
    all.sort_by_key(|mark| mark.time_ns);
    let count = all.len();
    if count > MARKS_MAX {
        all.retain(|mark| matches!(mark.kind, MarkKind::EpochBegin(_) | MarkKind::EpochEnd(_)));
        all.truncate(MARKS_MAX);
    }
    let left_out = (count - all.len()) as u64;
    Ok((all.iter().map(timeline::mark).collect(), left_out))
}
