//! Writes many rows at once: the rows are sent as arrays, with one statement per table.
//!
//! Guarantees: the row of a job is locked before the rows of its sessions, and sessions are locked in ascending order.
//! So two transactions cannot deadlock.

use std::collections::BTreeSet;

use sqlx::postgres::PgConnection;

use crate::store::expiry::{Candidate, Part};
use crate::store::plan::{Plan, PlannedItem, checksum};
use crate::store::row_reader::{self, Cells, Fault};
use crate::store::rows::SessionKey;
use crate::store::sql::query::{SqlConnection, query, sql};
use crate::store::sql::{Batches, States};
use crate::store::wire_form;

/// Limit of the payload bytes in one statement, because the server holds them twice while it runs.
const STATEMENT_BYTES: usize = 16 << 20;
/// Limit of the rows in one statement.
const STATEMENT_ROWS: usize = 4096;

impl Batches for PgConnection {
    async fn lock_job(&mut self, job: i64) -> Result<(), Fault> {
        // Deleting a large job takes long, so it has a higher timeout.
        sqlx::query("SET LOCAL statement_timeout = '15min'").execute(&mut *self).await?;
        self.optional(query(sql!("job_lock")).bind(job)).await?;
        let sessions: Vec<SessionKey> =
            sqlx::query_scalar(sql!(postgres "job_sessions")).bind(job).fetch_all(&mut *self).await?;
        self.lock_sessions(sessions).await
    }

    async fn lock_sessions(&mut self, keys: Vec<SessionKey>) -> Result<(), Fault> {
        sqlx::query(sql!(postgres "sessions_lock")).bind(keys).fetch_all(self).await?;
        Ok(())
    }

    async fn states(&mut self, keys: Vec<SessionKey>) -> Result<States, Fault> {
        let locked = sqlx::query(sql!(postgres "sessions_lock")).bind(&keys).fetch_all(&mut *self).await?;
        let states = locked.iter().map(row_reader::session_state).collect::<Result<_, _>>()?;
        let mut present = BTreeSet::new();
        for row in sqlx::query(sql!(postgres "present")).bind(&keys).fetch_all(self).await? {
            present.insert((row.int(0)?, row.word(1)?));
        }
        Ok((states, present))
    }

    async fn write(&mut self, plan: &Plan<'_>) -> Result<(), Fault> {
        insert_payloads(self, &plan.items).await?;
        let (chunks, others): (Vec<_>, Vec<_>) =
            plan.items.iter().copied().partition(|planned| planned.item.is_chunk());
        for rows in chunks.chunks(STATEMENT_ROWS) {
            insert_chunks(self, rows).await?;
        }
        for rows in others.chunks(STATEMENT_ROWS) {
            insert_items(self, rows).await?;
        }
        insert_gaps(self, plan).await?;
        update_devices(self, plan).await?;
        put_epoch_ends(self, plan).await?;
        update_sessions(self, plan).await
    }

    async fn delete(&mut self, items: Vec<Candidate>, part: Part) -> Result<Vec<Candidate>, Fault> {
        let statement = match part {
            Part::Chunks => sql!(postgres "chunks_delete"),
            Part::Rest => sql!(postgres "rest_delete"),
        };
        let part_of_key = |item: Candidate| match part {
            Part::Chunks => i64::from(item.device),
            Part::Rest => i64::from(item.kind),
        };
        let deleted = sqlx::query(statement)
            .bind(column(&items, |item| item.job))
            .bind(column(&items, |item| item.session))
            .bind(column(&items, part_of_key))
            .bind(column(&items, |item| item.seq.cast_signed()))
            .fetch_all(self)
            .await?;
        deleted.iter().map(row_reader::candidate).collect()
    }

    async fn delete_payloads(&mut self, items: &[Candidate]) -> Result<(), Fault> {
        sqlx::query(sql!(postgres "payloads_delete"))
            .bind(column(items, |item| item.job))
            .bind(column(items, |item| item.session))
            .bind(column(items, |item| item.seq.cast_signed()))
            .execute(self)
            .await?;
        Ok(())
    }
}

/// One column of many rows.
fn column<R: Copy, T>(rows: &[R], cell: impl Fn(R) -> T) -> Vec<T> {
    rows.iter().map(|&row| cell(row)).collect()
}

async fn insert_payloads(tx: &mut PgConnection, mut items: &[PlannedItem<'_>]) -> Result<(), Fault> {
    while !items.is_empty() {
        let mut bytes = 0;
        let fitting = items
            .iter()
            .take(STATEMENT_ROWS)
            .take_while(|planned| {
                let fits = bytes < STATEMENT_BYTES;
                bytes += planned.item.payload.len();
                fits
            })
            .count();
        let (now, later) = items.split_at(fitting);
        sqlx::query(sql!(postgres "payloads_insert"))
            .bind(column(now, |row| row.job))
            .bind(column(now, |row| row.session))
            .bind(column(now, |row| row.item.seq.cast_signed()))
            .bind(now.iter().map(|row| &row.item.payload[..]).collect::<Vec<&[u8]>>())
            .bind(now.iter().map(|row| checksum(&row.item.payload)).collect::<Vec<i64>>())
            .execute(&mut *tx)
            .await?;
        items = later;
    }
    Ok(())
}

async fn insert_chunks(tx: &mut PgConnection, rows: &[PlannedItem<'_>]) -> Result<(), Fault> {
    let levels = |row: PlannedItem<'_>| row.item.levels.unwrap_or_default();
    sqlx::query(sql!(postgres "chunks_insert"))
        .bind(column(rows, |row| row.job))
        .bind(column(rows, |row| row.session))
        .bind(column(rows, |row| row.item.index.device.map(i64::from)))
        .bind(column(rows, |row| row.item.seq.cast_signed()))
        .bind(column(rows, |row| row.item.index.first_ns.cast_signed()))
        .bind(column(rows, |row| row.item.index.last_ns.cast_signed()))
        .bind(column(rows, |row| row.item.index.first_event.cast_signed()))
        .bind(column(rows, |row| row.item.index.count.cast_signed()))
        .bind(column(rows, |row| i64::from(row.item.index.first_epoch)))
        .bind(column(rows, |row| i64::from(row.item.index.last_epoch)))
        .bind(column(rows, |row| row.item.index.first_step.cast_signed()))
        .bind(column(rows, |row| row.item.index.last_step.cast_signed()))
        .bind(column(rows, |row| levels(row).allocated_end.cast_signed()))
        .bind(column(rows, |row| levels(row).reserved_end.cast_signed()))
        .bind(column(rows, |row| levels(row).allocated_min.cast_signed()))
        .bind(column(rows, |row| levels(row).allocated_max.cast_signed()))
        .bind(column(rows, |row| levels(row).reserved_max.cast_signed()))
        .bind(column(rows, |row| levels(row).ooms.cast_signed()))
        .bind(column(rows, |row| levels(row).dropped_before.cast_signed()))
        .bind(column(rows, |row| levels(row).exact))
        .bind(column(rows, |row| row.item.payload.len() as i64))
        .execute(tx)
        .await?;
    Ok(())
}

async fn insert_items(tx: &mut PgConnection, rows: &[PlannedItem<'_>]) -> Result<(), Fault> {
    sqlx::query(sql!(postgres "items_insert"))
        .bind(column(rows, |row| row.job))
        .bind(column(rows, |row| row.session))
        .bind(column(rows, |row| i64::from(row.item.kind as i32)))
        .bind(column(rows, |row| row.item.seq.cast_signed()))
        .bind(column(rows, |row| row.item.index.device.map(i64::from)))
        .bind(column(rows, |row| row.item.index.first_ns.cast_signed()))
        .bind(column(rows, |row| row.item.index.last_ns.cast_signed()))
        .bind(column(rows, |row| row.item.index.first_event.cast_signed()))
        .bind(column(rows, |row| row.item.index.count.cast_signed()))
        .bind(column(rows, |row| i64::from(row.item.index.first_epoch)))
        .bind(column(rows, |row| i64::from(row.item.index.last_epoch)))
        .bind(column(rows, |row| row.item.index.first_step.cast_signed()))
        .bind(column(rows, |row| row.item.index.last_step.cast_signed()))
        .bind(column(rows, |row| i64::from(row.item.unpacked_bytes)))
        .bind(column(rows, |row| row.item.payload.len() as i64))
        .execute(tx)
        .await?;
    Ok(())
}

fn job_of(plan: &Plan<'_>, session: SessionKey) -> i64 {
    plan.sessions.get(&session).map_or(0, |state| state.job)
}

async fn insert_gaps(tx: &mut PgConnection, plan: &Plan<'_>) -> Result<(), Fault> {
    if plan.gaps.is_empty() {
        return Ok(());
    }
    sqlx::query(sql!(postgres "gaps_insert"))
        .bind(column(&plan.gaps, |(session, _)| job_of(plan, session)))
        .bind(column(&plan.gaps, |(session, _)| session))
        .bind(column(&plan.gaps, |(_, gap)| gap.first.cast_signed()))
        .bind(column(&plan.gaps, |(_, gap)| gap.last.cast_signed()))
        .execute(tx)
        .await?;
    Ok(())
}

async fn update_devices(tx: &mut PgConnection, plan: &Plan<'_>) -> Result<(), Fault> {
    if plan.devices.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> = plan.devices.iter().collect();
    sqlx::query(sql!(postgres "devices_update"))
        .bind(column(&rows, |((session, _), _)| job_of(plan, *session)))
        .bind(column(&rows, |((session, _), _)| *session))
        .bind(column(&rows, |((_, device), _)| i64::from(*device)))
        .bind(column(&rows, |((_, device), _)| wire_form::device_info(&wire_form::unannounced(*device))))
        .bind(column(&rows, |(_, update)| update.events.cast_signed()))
        .bind(column(&rows, |(_, update)| update.ooms.cast_signed()))
        .bind(column(&rows, |(_, update)| update.epochs.cast_signed()))
        .bind(column(&rows, |(_, update)| update.steps.cast_signed()))
        .bind(column(&rows, |(_, update)| update.latest.as_ref().map(wire_form::latest)))
        .bind(column(&rows, |(_, update)| update.device_used_bytes.map(u64::cast_signed)))
        .bind(column(&rows, |(_, update)| update.alloc_retries.map(u64::cast_signed)))
        .execute(tx)
        .await?;
    Ok(())
}

async fn put_epoch_ends(tx: &mut PgConnection, plan: &Plan<'_>) -> Result<(), Fault> {
    if plan.epoch_ends.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> = plan.epoch_ends.iter().map(|((session, ..), end)| (*session, *end)).collect();
    sqlx::query(sql!(postgres "epoch_ends_put"))
        .bind(column(&rows, |(session, _)| job_of(plan, session)))
        .bind(column(&rows, |(session, _)| session))
        .bind(column(&rows, |(_, end)| i64::from(end.device)))
        .bind(column(&rows, |(_, end)| i64::from(end.epoch)))
        .bind(column(&rows, |(_, end)| end.time_ns.cast_signed()))
        .bind(column(&rows, |(_, end)| end.table_seq.cast_signed()))
        .bind(column(&rows, |(_, end)| wire_form::epoch_end(end)))
        .execute(tx)
        .await?;
    Ok(())
}

async fn update_sessions(tx: &mut PgConnection, plan: &Plan<'_>) -> Result<(), Fault> {
    let rows: Vec<_> = plan.sessions.iter().collect();
    sqlx::query(sql!(postgres "sessions_update"))
        .bind(column(&rows, |(session, _)| *session))
        .bind(column(&rows, |(_, state)| state.durable_seq.cast_signed()))
        .bind(column(&rows, |(_, state)| state.heard_ns.cast_signed()))
        .bind(column(&rows, |(_, state)| state.end.as_ref().map(wire_form::session_end)))
        .bind(column(&rows, |(_, state)| state.events.cast_signed()))
        .bind(column(&rows, |(_, state)| state.stored_bytes.cast_signed()))
        .bind(column(&rows, |(_, state)| state.dropped.ring_full.cast_signed()))
        .bind(column(&rows, |(_, state)| state.dropped.spool_full.cast_signed()))
        .bind(column(&rows, |(_, state)| state.dropped.shutdown.cast_signed()))
        .bind(column(&rows, |(_, state)| state.duplicates.cast_signed()))
        .bind(column(&rows, |(_, state)| state.missing_items.cast_signed()))
        .bind(column(&rows, |(_, state)| state.stored_items.cast_signed()))
        .bind(column(&rows, |(_, state)| state.expandable.map(i64::from)))
        .execute(tx)
        .await?;
    Ok(())
}
