//! Finds live memory by class over time, from the site tables of a device's boundaries.
//!
//! Guarantees: all epoch ends of the requested range are read, and the steps within it until [`BYTES_MAX`] of stored
//! tables are read. At most [`POINTS_MAX`] boundaries are returned, with the number of omitted ones. One page of items
//! is in memory at a time.
//! Refuses: more than one process at a time.

use std::collections::{BTreeMap, HashMap};

use memctl_analysis::classes::{Class, Classifier};
use memctl_answers::SCHEMA;
use memctl_answers::classes::{Classes, Point};
use memctl_answers::format::time::rfc3339;
use memctl_model::{Boundary, SiteTable, Stack, StackId};
use memctl_proto::StackDictionary;
use memctl_proto::item::Content;
use memctl_proto::v1::{self, ItemKind};

use super::answer;
use super::class_slots::class_slots;
use super::ledger::peak;
use crate::event_analysis::classed::{Classed, Until};
use crate::job_data::error::ReadError;
use crate::job_data::job::find;
use crate::job_data::stacks::{dictionary, open};
use crate::store::{EpochEndRow, Selection, SessionRow, Store};
use crate::streams::Streams;

/// The most boundaries returned; more than a picture has columns.
const POINTS_MAX: usize = 512;
/// The most epoch ends among them.
const ENDS_MAX: usize = 128;
/// Limit of the stored bytes of tables that are read for the steps of a response.
const BYTES_MAX: usize = 32 << 20;
/// Items read at once.
const PAGE: u32 = 64;

/// The data that is read for a response.
struct Reading<'a> {
    session: &'a SessionRow,
    device: u8,
    /// The first and the last time of the request.
    times_ns: (u64, u64),
    stacks: StackDictionary,
    /// The class of a stack's blocks, according to the events around the peak.
    known: HashMap<StackId, Class>,
    /// The points by time, event and kind.
    points: BTreeMap<(u64, u64, u8), Point>,
}

/// Answers the request.
pub(super) async fn classes(
    store: &dyn Store,
    streams: &Streams,
    selection: &v1::Selection,
) -> Result<Classes, ReadError> {
    let found = find(store, selection).await?;
    let [session] = found.sessions.as_slice() else {
        return Err(ReadError::Invalid(
            "classes over time are of one process: give rank=N, and process=NAME if the rank has several".into(),
        ));
    };
    let Some(row) = found.devices_of(session.key).first() else {
        return Err(ReadError::Invalid(format!("nothing is stored of a device of rank {}", session.info.rank)));
    };
    let device = row.info.index.0;
    let times_ns = (selection.since_ns.unwrap_or(0), selection.until_ns.unwrap_or(u64::MAX));
    let stacks = dictionary(store, session.key).await?;
    let chunks = store.chunks(session.key, device, Selection::default()).await?;
    let known = match peak(store, session, row, &chunks, false).await {
        Ok(Some(peak)) => {
            let around = Classed::around(store, session, device, &chunks, (peak.at, Until::Later), &stacks).await?;
            around.by_stack()
        }
        Ok(None) | Err(ReadError::Expired { .. }) => HashMap::new(),
        Err(error) => return Err(error),
    };
    let slots = class_slots(store, (session, device), &chunks, times_ns, &stacks).await?.unwrap_or_default();
    let mut reading = Reading { session, device, times_ns, stacks, known, points: BTreeMap::new() };
    let ends = store.epoch_ends(found.job.key).await?;
    let ends: Vec<&EpochEndRow> =
        ends.iter().filter(|end| end.session == session.key && end.device == device).collect();
    reading.ends(store, &ends).await?;
    let looked_until = reading.steps(store, &ends).await?;
    let (points, points_left_out) = thinned(reading.points.into_values().collect());
    Ok(Classes {
        schema: SCHEMA,
        job: answer::found_job(&found, streams),
        completeness: found.completeness(streams, store).into(),
        rank: session.info.rank,
        process: found.process_name(session),
        device: u32::from(device),
        classes: Class::ALL.iter().map(|class| class.name()).collect(),
        points,
        points_left_out,
        slots,
        looked_until: looked_until.map(rfc3339),
    })
}

impl Reading<'_> {
    /// Reads the ends of epochs, or an even choice of them if there are too many.
    async fn ends(&mut self, store: &dyn Store, ends: &[&EpochEndRow]) -> Result<(), ReadError> {
        let inside: Vec<&&EpochEndRow> = ends.iter().filter(|end| self.is_asked(end.time_ns)).collect();
        let last = inside.len().saturating_sub(1);
        let chosen = |at: usize| at * last / ENDS_MAX.min(inside.len()).saturating_sub(1).max(1);
        let mut seqs: Vec<u64> = (0..ENDS_MAX.min(inside.len())).map(|at| inside[chosen(at)].table_seq).collect();
        seqs.sort_unstable();
        seqs.dedup();
        for few in seqs.chunks(PAGE as usize / 4) {
            for row in store.items_at(self.session.key, few).await? {
                self.tables(open(self.session.key, &row)?, row.seq, |table| table.boundary == Boundary::EpochEnd)?;
            }
        }
        Ok(())
    }

    /// Reads all other boundaries, beginning at the last epoch end before the requested range. If it stops early, it
    /// returns the time up to which it read.
    async fn steps(&mut self, store: &dyn Store, ends: &[&EpochEndRow]) -> Result<Option<u64>, ReadError> {
        let before = ends.iter().filter(|end| end.time_ns < self.times_ns.0).map(|end| end.table_seq).max();
        // The item with the epoch's end may also contain the first steps of the next epoch.
        let mut next = Some(before.unwrap_or(1).saturating_sub(1));
        let (mut read, mut seen_ns) = (0_usize, 0);
        while let Some(after) = next {
            let page = store.items_after(self.session.key, ItemKind::SiteTables, after, PAGE).await?;
            for row in page.items {
                read = read.saturating_add(row.payload.len());
                let last = self.tables(open(self.session.key, &row)?, row.seq, |_| true)?;
                seen_ns = seen_ns.max(last);
            }
            next = page.looked_to;
            if seen_ns > self.times_ns.1 {
                return Ok(None);
            }
            if read > BYTES_MAX && next.is_some() {
                return Ok(Some(seen_ns));
            }
        }
        Ok(None)
    }

    /// Adds the tables of an item and returns the time of its last table.
    fn tables(&mut self, content: Content, seq: u64, is_it: impl Fn(&SiteTable) -> bool) -> Result<u64, ReadError> {
        let Content::SiteTables(tables) = content else { return Ok(0) };
        let (device, times_ns, mut last) = (self.device, self.times_ns, 0);
        let (points, stacks, known) = (&mut self.points, &self.stacks, &self.known);
        let resolve = |stack: StackId| -> Stack { stacks.stack(stack) };
        let mut classifier = Classifier::new(&resolve);
        let take = |table: &SiteTable| {
            last = last.max(table.time_ns);
            let is_asked = (times_ns.0..=times_ns.1).contains(&table.time_ns);
            if table.device.0 != device || !is_asked || !is_it(table) {
                return;
            }
            let shares = classifier.of_rows(&table.rows, known);
            let point = Point {
                at: rfc3339(table.time_ns),
                boundary: table.boundary.name(),
                epoch: table.epoch,
                step: table.step,
                exact: table.exact,
                bytes: Class::ALL.iter().map(|&class| shares.of(class)).collect(),
            };
            points.insert((table.time_ns, table.at_event, table.boundary as u8), point);
        };
        tables.each(take).map_err(ReadError::wire(self.session.key, seq))?;
        // More points are kept than are returned, so that the choice is even over the whole range.
        halve(points);
        Ok(last)
    }

    fn is_asked(&self, time_ns: u64) -> bool {
        (self.times_ns.0..=self.times_ns.1).contains(&time_ns)
    }
}

/// Whether a boundary takes precedence over others.
fn is_end(point: &Point) -> bool {
    point.boundary != Boundary::StepEnd.name() && point.boundary != Boundary::WindowEnd.name()
}

/// Bounds the memory for a very high number of steps.
fn halve(points: &mut BTreeMap<(u64, u64, u8), Point>) {
    if points.len() > 64 * POINTS_MAX {
        let mut at = 0_usize;
        points.retain(|_, point| {
            at += 1;
            is_end(point) || at.is_multiple_of(2)
        });
    }
}

/// The points to return: the ends of epochs, and an even choice of the other points.
fn thinned(points: Vec<Point>) -> (Vec<Point>, u64) {
    if points.len() <= POINTS_MAX {
        return (points, 0);
    }
    let all = points.len();
    let ends = points.iter().filter(|point| is_end(point)).count().min(POINTS_MAX / 2);
    let others = (all - ends).max(1);
    let room = POINTS_MAX - ends;
    let (mut seen, mut kept_ends) = (0_usize, 0_usize);
    let kept: Vec<Point> = points
        .into_iter()
        .filter(|point| {
            if is_end(point) && kept_ends < ends {
                kept_ends += 1;
                return true;
            }
            seen += 1;
            (seen - 1) * room / others != seen * room / others
        })
        .collect();
    let left_out = all - kept.len();
    (kept, left_out as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(step: u64, boundary: Boundary) -> Point {
        Point { at: String::new(), boundary: boundary.name(), epoch: 0, step, exact: true, bytes: vec![step] }
    }

    #[test]
    fn of_many_steps_an_even_choice_is_told_with_every_end_of_an_epoch() {
        let all: Vec<Point> = (0..10_000)
            .map(|step| point(step, if step % 1_000 == 999 { Boundary::EpochEnd } else { Boundary::StepEnd }))
            .collect();
        let (kept, left_out) = thinned(all.clone());
        assert!(kept.len() <= POINTS_MAX && kept.len() > POINTS_MAX - 3, "{}", kept.len());
        assert_eq!(kept.len() as u64 + left_out, 10_000);
        assert_eq!(kept.iter().filter(|point| is_end(point)).count(), 10);
        assert!(kept.windows(2).all(|pair| pair[1].step - pair[0].step < 40), "no stretch is left out");
        assert_eq!(thinned(all[..POINTS_MAX].to_vec()), (all[..POINTS_MAX].to_vec(), 0));
    }
}
