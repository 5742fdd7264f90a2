//! Writes many rows one by one, because a statement needs no round trip to a server.
//!
//! Guarantees: no lock is taken except the writer's own.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::sqlite::SqliteConnection;

use crate::store::expiry::{Candidate, Part};
use crate::store::plan::{Plan, PlannedItem, SessionState, checksum};
use crate::store::row_reader::{self, Cells, Fault};
use crate::store::rows::{DeviceUpdate, EpochEndRow, SessionKey};
use crate::store::sql::query::sql;
use crate::store::sql::{Batches, States};
use crate::store::wire_form;

impl Batches for SqliteConnection {
    async fn lock_job(&mut self, _: i64) -> Result<(), Fault> {
        Ok(())
    }

    async fn lock_sessions(&mut self, _: Vec<SessionKey>) -> Result<(), Fault> {
        Ok(())
    }

    async fn states(&mut self, keys: Vec<SessionKey>) -> Result<States, Fault> {
        let (mut states, mut present) = (BTreeMap::new(), BTreeSet::new());
        for key in keys {
            let found = sqlx::query(sql!(sqlite "session_state")).bind(key).fetch_optional(&mut *self).await?;
            let Some(row) = found else { continue };
            let (_, state) = row_reader::session_state(&row)?;
            let above = sqlx::query(sql!(sqlite "present")).bind(state.job).bind(key);
            for row in &above.bind(state.durable_seq.cast_signed()).fetch_all(&mut *self).await? {
                present.insert((key, row.word(0)?));
            }
            states.insert(key, state);
        }
        Ok((states, present))
    }

    async fn write(&mut self, plan: &Plan<'_>) -> Result<(), Fault> {
        for planned in &plan.items {
            insert_payload(self, *planned).await?;
            if planned.item.is_chunk() {
                insert_chunk(self, *planned).await?;
            } else {
                insert_item(self, *planned).await?;
            }
        }
        let job_of = |session: &SessionKey| plan.sessions.get(session).map_or(0, |state| state.job);
        for (session, gap) in &plan.gaps {
            sqlx::query(sql!(sqlite "gap_insert"))
                .bind(job_of(session))
                .bind(session)
                .bind(gap.first.cast_signed())
                .bind(gap.last.cast_signed())
                .execute(&mut *self)
                .await?;
        }
        for ((session, device), update) in &plan.devices {
            update_device(self, job_of(session), *session, *device, update).await?;
        }
        for ((session, ..), end) in &plan.epoch_ends {
            put_epoch_end(self, job_of(session), *session, end).await?;
        }
        for (session, state) in &plan.sessions {
            update_session(self, *session, state).await?;
        }
        Ok(())
    }

    async fn delete(&mut self, items: Vec<Candidate>, part: Part) -> Result<Vec<Candidate>, Fault> {
        for item in &items {
            let (statement, part_of_key) = match part {
                Part::Chunks => (sql!(sqlite "chunk_delete"), i64::from(item.device)),
                Part::Rest => (sql!(sqlite "item_delete"), i64::from(item.kind)),
            };
            let delete = sqlx::query(statement).bind(item.job).bind(item.session).bind(part_of_key);
            delete.bind(item.seq.cast_signed()).execute(&mut *self).await?;
        }
        Ok(items)
    }

    async fn delete_payloads(&mut self, items: &[Candidate]) -> Result<(), Fault> {
        for item in items {
            let delete = sqlx::query(sql!(sqlite "payload_delete")).bind(item.job).bind(item.session);
            delete.bind(item.seq.cast_signed()).execute(&mut *self).await?;
        }
        Ok(())
    }
}

async fn insert_payload(tx: &mut SqliteConnection, planned: PlannedItem<'_>) -> Result<(), Fault> {
    sqlx::query(sql!(sqlite "payload_insert"))
        .bind(planned.job)
        .bind(planned.session)
        .bind(planned.item.seq.cast_signed())
        .bind(planned.item.payload.to_vec())
        .bind(checksum(&planned.item.payload))
        .execute(tx)
        .await?;
    Ok(())
}

async fn insert_chunk(
    tx: &mut SqliteConnection,
    PlannedItem { job, session, item }: PlannedItem<'_>,
) -> Result<(), Fault> {
    let index = item.index;
    let levels = item.levels.unwrap_or_default();
    sqlx::query(sql!(sqlite "chunk_insert"))
        .bind(job)
        .bind(session)
        .bind(index.device.map(i64::from))
        .bind(item.seq.cast_signed())
        .bind(index.first_ns.cast_signed())
        .bind(index.last_ns.cast_signed())
        .bind(index.first_event.cast_signed())
        .bind(index.count.cast_signed())
        .bind(i64::from(index.first_epoch))
        .bind(i64::from(index.last_epoch))
        .bind(index.first_step.cast_signed())
        .bind(index.last_step.cast_signed())
        .bind(levels.allocated_end.cast_signed())
        .bind(levels.reserved_end.cast_signed())
        .bind(levels.allocated_min.cast_signed())
        .bind(levels.allocated_max.cast_signed())
        .bind(levels.reserved_max.cast_signed())
        .bind(levels.ooms.cast_signed())
        .bind(levels.dropped_before.cast_signed())
        .bind(levels.exact)
        .bind(item.payload.len() as i64)
        .execute(tx)
        .await?;
    Ok(())
}

async fn insert_item(
    tx: &mut SqliteConnection,
    PlannedItem { job, session, item }: PlannedItem<'_>,
) -> Result<(), Fault> {
    let index = item.index;
    sqlx::query(sql!(sqlite "item_insert"))
        .bind(job)
        .bind(session)
        .bind(i64::from(item.kind as i32))
        .bind(item.seq.cast_signed())
        .bind(index.device.map(i64::from))
        .bind(index.first_ns.cast_signed())
        .bind(index.last_ns.cast_signed())
        .bind(index.first_event.cast_signed())
        .bind(index.count.cast_signed())
        .bind(i64::from(index.first_epoch))
        .bind(i64::from(index.last_epoch))
        .bind(index.first_step.cast_signed())
        .bind(index.last_step.cast_signed())
        .bind(i64::from(item.unpacked_bytes))
        .bind(item.payload.len() as i64)
        .execute(tx)
        .await?;
    Ok(())
}

async fn update_device(
    tx: &mut SqliteConnection,
    job: i64,
    session: SessionKey,
    device: u8,
    update: &DeviceUpdate,
) -> Result<(), Fault> {
    sqlx::query(sql!(sqlite "device_update"))
        .bind(job)
        .bind(session)
        .bind(i64::from(device))
        .bind(wire_form::device_info(&wire_form::unannounced(device)))
        .bind(update.events.cast_signed())
        .bind(update.ooms.cast_signed())
        .bind(update.epochs.cast_signed())
        .bind(update.steps.cast_signed())
        .bind(update.latest.as_ref().map(wire_form::latest))
        .bind(update.device_used_bytes.map(u64::cast_signed))
        .bind(update.alloc_retries.map(u64::cast_signed))
        .execute(tx)
        .await?;
    Ok(())
}

async fn put_epoch_end(
    tx: &mut SqliteConnection,
    job: i64,
    session: SessionKey,
    end: &EpochEndRow,
) -> Result<(), Fault> {
    sqlx::query(sql!(sqlite "epoch_end_put"))
        .bind(job)
        .bind(session)
        .bind(i64::from(end.device))
        .bind(i64::from(end.epoch))
        .bind(end.time_ns.cast_signed())
        .bind(end.table_seq.cast_signed())
        .bind(wire_form::epoch_end(end))
        .execute(tx)
        .await?;
    Ok(())
}

async fn update_session(tx: &mut SqliteConnection, session: SessionKey, state: &SessionState) -> Result<(), Fault> {
    sqlx::query(sql!(sqlite "session_update"))
        .bind(session)
        .bind(state.durable_seq.cast_signed())
        .bind(state.heard_ns.cast_signed())
        .bind(state.end.as_ref().map(wire_form::session_end))
        .bind(state.events.cast_signed())
        .bind(state.stored_bytes.cast_signed())
        .bind(state.dropped.ring_full.cast_signed())
        .bind(state.dropped.spool_full.cast_signed())
        .bind(state.dropped.shutdown.cast_signed())
        .bind(state.duplicates.cast_signed())
        .bind(state.missing_items.cast_signed())
        .bind(state.stored_items.cast_signed())
        .bind(state.expandable.map(i64::from))
        .execute(tx)
        .await?;
    Ok(())
}
