//! Site tables in batches. The first table of a device is whole. Each later table has only the changed rows.
//!
//! A batch is self-contained. It is read table by table. It may unfold to a hundred times its own rows, and these are
//! never all in memory.

use std::collections::HashMap;

use memctl_model::{Boundary, DeviceIndex, Phase, PoolRow, SiteRow, SiteTable, StackId};

use super::session::device_index;
use super::{WireError, at_most, even, fill_zeros, leave_out_zeros, phase};
use crate::v1;

/// Maximum number of tables in one batch.
pub const TABLES_MAX: usize = 4_096;
/// Maximum number of rows of one table. A table has a row for each site and each epoch in which its live blocks were
/// allocated.
pub const ROWS_MAX: usize = 1 << 19;
/// Maximum number of rows of private pools in one table. Such rows are for stacks that captured a graph or used their
/// own pool.
pub const POOL_ROWS_MAX: usize = 1 << 12;
/// Maximum number of rows of all tables of a batch after unfolding. This bounds the time that a small batch can take.
pub const BATCH_ROWS_MAX: usize = 1 << 25;
/// Maximum number of rows that are kept in memory at once, of all tables of a batch.
pub const KEPT_ROWS_MAX: usize = 1 << 20;

/// Packs tables, in the order in which they were taken.
#[must_use]
pub fn to_wire<'a>(tables: impl IntoIterator<Item = &'a SiteTable>) -> v1::SiteTableBatch {
    let mut last: HashMap<DeviceIndex, &'a [SiteRow]> = HashMap::new();
    let tables = tables
        .into_iter()
        .map(|table| {
            let rows = match last.insert(table.device, &table.rows) {
                None => table.rows.clone(),
                Some(before) => changed(before, &table.rows),
            };
            table_to_wire(table, &rows)
        })
        .collect();
    v1::SiteTableBatch { tables }
}

/// Packs tables that already hold changes. The first table of each device has all rows. A later table has the rows that
/// differ from the previous table; a removed row has 0 blocks.
#[must_use]
pub fn changes_to_wire<'a>(tables: impl IntoIterator<Item = &'a SiteTable>) -> v1::SiteTableBatch {
    v1::SiteTableBatch { tables: tables.into_iter().map(|table| table_to_wire(table, &table.rows)).collect() }
}

/// Rows of `now` that are not in `before`, and rows of `before` that were removed, with 0 blocks.
fn changed(before: &[SiteRow], now: &[SiteRow]) -> Vec<SiteRow> {
    let (mut old, mut new, mut rows) = (before.iter().peekable(), now.iter().peekable(), Vec::new());
    loop {
        match (old.peek(), new.peek()) {
            (None, None) => return rows,
            (Some(gone), next) if next.is_none_or(|row| key(gone) < key(row)) => {
                rows.push(SiteRow { blocks: 0, bytes: 0, ..**gone });
                old.next();
            }
            (Some(was), Some(is)) if key(was) == key(is) => {
                if was != is {
                    rows.push(**is);
                }
                old.next();
                new.next();
            }
            (_, Some(came)) => {
                rows.push(**came);
                new.next();
            }
            (Some(_), None) => unreachable!("the second arm takes it"),
        }
    }
}

fn table_to_wire(table: &SiteTable, rows: &[SiteRow]) -> v1::SiteTable {
    let SiteTable {
        device,
        boundary,
        epoch,
        step,
        time_ns,
        at_event,
        exact,
        counters,
        peaks,
        peaks_within,
        found,
        rows: _,
        private_pools,
    } = table;
    let unit = if rows.iter().all(|row| row.bytes % 512 == 0) { 512 } else { 1 };
    let (mut stack, mut pool_stack) = (0, 0);
    let mut birth_phases = rows.iter().map(|row| row.birth_phase.map_or(0, |phase| phase as u32)).collect();
    leave_out_zeros(&mut birth_phases);
    v1::SiteTable {
        device: u32::from(device.0),
        boundary: *boundary as i32,
        epoch: *epoch,
        step: *step,
        time_ns: *time_ns,
        at_event: *at_event,
        exact: *exact,
        counters: Some(counters.into()),
        peaks: Some((*peaks).into()),
        peaks_within: Some((*peaks_within).into()),
        stacks: rows.iter().map(|row| row.stack.0.wrapping_sub(std::mem::replace(&mut stack, row.stack.0))).collect(),
        birth_epochs: rows.iter().map(|row| row.birth_epoch).collect(),
        blocks: rows.iter().map(|row| row.blocks).collect(),
        bytes: rows.iter().map(|row| row.bytes / u64::from(unit)).collect(),
        bytes_unit: unit,
        birth_phases,
        found: *found,
        pool_stacks: private_pools
            .iter()
            .map(|row| row.stack.0.wrapping_sub(std::mem::replace(&mut pool_stack, row.stack.0)))
            .collect(),
        pool_segments: private_pools.iter().map(|row| row.segments).collect(),
        pool_bytes: private_pools.iter().map(|row| row.bytes).collect(),
    }
}

/// The site tables of a batch as received, not unfolded yet.
#[derive(Clone, Debug)]
pub struct SiteTables(v1::SiteTableBatch);

impl From<v1::SiteTableBatch> for SiteTables {
    fn from(batch: v1::SiteTableBatch) -> Self {
        Self(batch)
    }
}

impl SiteTables {
    /// Passes every table to `take`, unfolded and in order. One table per device is in memory at a time.
    ///
    /// # Errors
    /// Uneven columns, rows out of order, unknown numbers, or more than the limits. Earlier tables have been passed by
    /// then.
    pub fn each(self, mut take: impl FnMut(&SiteTable)) -> Result<(), WireError> {
        at_most("site tables of a batch", self.0.tables.len(), TABLES_MAX)?;
        // The rows of each device's last table.
        let mut last: HashMap<DeviceIndex, Vec<SiteRow>> = HashMap::new();
        let mut unfolded = 0;
        for mut wire in self.0.tables {
            let changes = rows_from_wire(&mut wire)?;
            let table = table_from_wire(&wire)?;
            let rows = last.entry(table.device).or_default();
            at_most("rows of a batch of site tables", unfolded + rows.len() + changes.len(), BATCH_ROWS_MAX)?;
            change(rows, changes);
            unfolded += rows.len();
            let table = SiteTable { rows: std::mem::take(rows), ..table };
            take(&table);
            *rows = table.rows;
        }
        Ok(())
    }

    /// The unfolded tables whose boundary and epoch are wanted. The other tables are read and checked, but not kept.
    ///
    /// # Errors
    /// The errors of [`Self::each`], for any table, and more rows than may be kept at once.
    pub fn kept(self, wanted: impl Fn(Boundary, u32) -> bool) -> Result<Vec<SiteTable>, WireError> {
        let (mut tables, mut rows) = (Vec::new(), 0);
        self.each(|table| {
            if wanted(table.boundary, table.epoch) {
                rows += table.rows.len();
                if rows <= KEPT_ROWS_MAX {
                    tables.push(table.clone());
                }
            }
        })?;
        at_most("rows of the wanted site tables of a batch", rows, KEPT_ROWS_MAX)?;
        Ok(tables)
    }

    /// All tables, unfolded.
    ///
    /// # Errors
    /// As [`Self::kept`].
    pub fn all(self) -> Result<Vec<SiteTable>, WireError> {
        self.kept(|_, _| true)
    }
}

/// A table without rows.
fn table_from_wire(wire: &v1::SiteTable) -> Result<SiteTable, WireError> {
    Ok(SiteTable {
        device: device_index(wire.device)?,
        boundary: boundary(wire.boundary)?,
        epoch: wire.epoch,
        step: wire.step,
        time_ns: wire.time_ns,
        at_event: wire.at_event,
        exact: wire.exact,
        counters: wire.counters.ok_or(WireError::Missing("site_table.counters"))?.into(),
        peaks: wire.peaks.ok_or(WireError::Missing("site_table.peaks"))?.into(),
        peaks_within: wire.peaks_within.ok_or(WireError::Missing("site_table.peaks_within"))?.into(),
        found: wire.found,
        rows: Vec::new(),
        private_pools: pools_from_wire(wire)?,
    })
}

fn boundary(wire: i32) -> Result<Boundary, WireError> {
    match v1::Boundary::try_from(wire) {
        Ok(v1::Boundary::StepEnd) => Ok(Boundary::StepEnd),
        Ok(v1::Boundary::EpochEnd) => Ok(Boundary::EpochEnd),
        Ok(v1::Boundary::End) => Ok(Boundary::End),
        Ok(v1::Boundary::WindowEnd) => Ok(Boundary::WindowEnd),
        _ => Err(WireError::invalid("site_table.boundary", wire, "1 to 4")),
    }
}

fn rows_from_wire(wire: &mut v1::SiteTable) -> Result<Vec<SiteRow>, WireError> {
    let count = wire.stacks.len();
    at_most("rows of a site table", count, ROWS_MAX)?;
    fill_zeros(&mut wire.birth_phases, count);
    even(
        "site_table",
        count,
        &[wire.birth_epochs.len(), wire.blocks.len(), wire.bytes.len(), wire.birth_phases.len()],
    )?;
    let mut stack = 0_u32;
    let mut rows: Vec<SiteRow> = Vec::with_capacity(count);
    for row in 0..count {
        stack = stack.wrapping_add(wire.stacks[row]);
        let bytes = wire.bytes[row]
            .checked_mul(u64::from(wire.bytes_unit))
            .ok_or_else(|| WireError::invalid("site_table.bytes", wire.bytes[row], "bytes below 2^64"))?;
        let next = SiteRow {
            stack: StackId(stack),
            birth_epoch: wire.birth_epochs[row],
            birth_phase: phase("site_table.birth_phase", wire.birth_phases[row])?,
            blocks: wire.blocks[row],
            bytes,
        };
        if rows.last().is_some_and(|last| key(last) >= key(&next)) {
            return Err(WireError::invalid("site_table.rows", row, "sorted by stack, birth epoch and birth phase"));
        }
        rows.push(next);
    }
    Ok(rows)
}

fn pools_from_wire(wire: &v1::SiteTable) -> Result<Vec<PoolRow>, WireError> {
    let count = wire.pool_stacks.len();
    at_most("private pools of a site table", count, POOL_ROWS_MAX)?;
    even("site_table.pools", count, &[wire.pool_segments.len(), wire.pool_bytes.len()])?;
    let mut stack = 0_u32;
    let mut rows: Vec<PoolRow> = Vec::with_capacity(count);
    for row in 0..count {
        stack = stack.wrapping_add(wire.pool_stacks[row]);
        if rows.last().is_some_and(|last| last.stack.0 >= stack) {
            return Err(WireError::invalid("site_table.pools", row, "sorted by stack"));
        }
        rows.push(PoolRow { stack: StackId(stack), segments: wire.pool_segments[row], bytes: wire.pool_bytes[row] });
    }
    Ok(rows)
}

fn key(row: &SiteRow) -> (StackId, u32, Option<Phase>) {
    (row.stack, row.birth_epoch, row.birth_phase)
}

/// Applies changes to rows. Most tables change a few rows of the previous table, without adding or removing any. In
/// that case the cost depends only on the number of changes.
fn change(rows: &mut Vec<SiteRow>, changes: Vec<SiteRow>) {
    let place = |change: &SiteRow| rows.binary_search_by_key(&key(change), key).ok().filter(|_| change.blocks > 0);
    match changes.iter().map(place).collect::<Option<Vec<usize>>>() {
        Some(places) => places.into_iter().zip(changes).for_each(|(place, change)| rows[place] = change),
        None => *rows = merged(rows, changes),
    }
}

fn merged(before: &[SiteRow], changes: Vec<SiteRow>) -> Vec<SiteRow> {
    let mut whole = Vec::with_capacity(before.len() + changes.len());
    let mut old = before.iter().copied().peekable();
    for change in changes {
        while let Some(row) = old.next_if(|row| key(row) < key(&change)) {
            whole.push(row);
        }
        old.next_if(|row| key(row) == key(&change));
        if change.blocks > 0 {
            whole.push(change);
        }
    }
    whole.extend(old);
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use memctl_model::{Counters, Peaks};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn table(device: u8, step: u64, rows: BTreeMap<(u32, u32, u32), (u64, u64)>) -> SiteTable {
        SiteTable {
            device: DeviceIndex(device),
            boundary: Boundary::StepEnd,
            epoch: (step % 2) as u32,
            step,
            time_ns: step,
            at_event: step * 10,
            exact: true,
            counters: Counters { allocated_bytes: step, ..Default::default() },
            peaks: Peaks::default(),
            peaks_within: Peaks::default(),
            found: step.is_multiple_of(3),
            private_pools: (1..=step as u32 % 4)
                .map(|stack| PoolRow { stack: StackId(stack * 7), segments: step, bytes: step << 21 })
                .collect(),
            rows: rows
                .into_iter()
                .map(|((stack, birth_epoch, phase), (blocks, bytes))| SiteRow {
                    stack: StackId(stack),
                    birth_epoch,
                    birth_phase: Phase::of_number(phase),
                    blocks,
                    bytes,
                })
                .collect(),
        }
    }

    proptest! {
        #[test]
        fn tables_arrive_whole(
            rows in proptest::collection::vec(
                (0_u8..2, proptest::collection::btree_map((0_u32..6, 0_u32..3, 0_u32..6), (1_u64..4, 0_u64..2000), 0..8)),
                0..12,
            ),
        ) {
            let tables: Vec<SiteTable> =
                rows.into_iter().enumerate().map(|(step, (device, rows))| table(device, step as u64, rows)).collect();
            let even = |table: &SiteTable| table.step.is_multiple_of(2);
            let some = SiteTables(to_wire(&tables)).kept(|_, epoch| epoch == 0).unwrap();
            prop_assert_eq!(some, tables.iter().filter(|table| even(table)).cloned().collect::<Vec<_>>());
            prop_assert_eq!(SiteTables(to_wire(&tables)).all().unwrap(), tables);
        }
    }

    #[test]
    fn unsorted_and_uneven_rows_are_refused() {
        let good = to_wire([&table(0, 1, BTreeMap::from([((1, 0, 0), (1, 512)), ((2, 0, 0), (1, 512))]))]);
        let mut bad = good.clone();
        bad.tables[0].stacks[1] = 0;
        assert!(matches!(SiteTables(bad).all(), Err(WireError::Invalid { field: "site_table.rows", .. })));
        let mut bad = good;
        bad.tables[0].bytes.pop();
        assert!(matches!(SiteTables(bad).all(), Err(WireError::Uneven { .. })));
    }

    /// A batch that is read table by table may have more rows than may be kept.
    #[test]
    fn a_batch_may_stand_for_more_rows_than_anybody_keeps() {
        let rows = (1..=1 << 12).map(|stack| ((stack, 0, 0), (1, 512))).collect();
        let first = table(0, 1, rows);
        let tables = (1..=300).map(|step| SiteTable { step, rows: first.rows.clone(), ..first.clone() });
        let tables: Vec<SiteTable> = tables.collect();
        let (batch, mut seen) = (to_wire(&tables), 0);
        SiteTables(batch.clone()).each(|table| seen += usize::from(table.rows == first.rows)).unwrap();
        assert_eq!(seen, 300);
        assert!(matches!(SiteTables(batch.clone()).all(), Err(WireError::TooMany { .. })));
        let far = std::iter::repeat_n(batch.tables[1].clone(), TABLES_MAX - 1);
        let far = v1::SiteTableBatch { tables: std::iter::once(batch.tables[0].clone()).chain(far).collect() };
        let mut many = far.clone();
        SiteTables(far).each(|_| ()).unwrap();
        many.tables[0] =
            to_wire([&table(0, 1, (1..=1 << 14).map(|stack| ((stack, 0, 0), (1, 512))).collect())]).tables.remove(0);
        assert!(matches!(SiteTables(many).each(|_| ()), Err(WireError::TooMany { .. })));
    }
}
