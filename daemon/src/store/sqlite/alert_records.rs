//! Alerts and silences in SQLite: compare and set, one statement each.
//!
//! Guarantees: all changes of a call are one transaction. There is a single writer, so the compared version still holds
//! when it is set.

use sqlx::sqlite::{SqliteConnection, SqlitePool};

use crate::store::alert_records::{AlertPut, AlertRecord, AlertSelection, PutOutcome, ordered};
use crate::store::row_reader::{self, Fault};

const COLUMNS: &str = "SELECT kind, id, version, job, due_ns, body, tenant FROM alert_record";

pub(super) async fn read(pool: &SqlitePool, selection: AlertSelection<'_>) -> Result<Vec<AlertRecord>, Fault> {
    let sql = |rest: &str| sqlx::AssertSqlSafe(format!("{COLUMNS} {rest}"));
    let rows = match selection {
        AlertSelection::All(kind) => {
            sqlx::query(sql("WHERE kind = ?1 ORDER BY id")).bind(kind.number()).fetch_all(pool).await?
        }
        AlertSelection::OfJob { tenant, job } => {
            let query = sqlx::query(sql("WHERE kind = 1 AND job = ?1 AND tenant = ?2 ORDER BY id"));
            query.bind(job.to_owned()).bind(tenant.to_owned()).fetch_all(pool).await?
        }
        AlertSelection::Ids(ids) => {
            let mut connection = pool.acquire().await?;
            let mut rows = Vec::new();
            for id in ids {
                let query = sqlx::query(sql("WHERE kind = 1 AND id = ?1")).bind(id.cast_signed());
                rows.extend(query.fetch_optional(&mut *connection).await?);
            }
            rows
        }
        AlertSelection::Due { before_ns, limit } => {
            sqlx::query(sql("WHERE kind = 1 AND due_ns <= ?1 ORDER BY due_ns, id LIMIT ?2"))
                .bind(ordered(before_ns))
                .bind(i64::from(limit))
                .fetch_all(pool)
                .await?
        }
    };
    rows.iter().map(row_reader::alert_record).collect()
}

pub(super) async fn put(tx: &mut SqliteConnection, puts: &[AlertPut]) -> Result<Vec<PutOutcome>, Fault> {
    let mut outcomes = Vec::with_capacity(puts.len());
    for put in puts {
        outcomes.push(put_one(tx, put).await?);
    }
    Ok(outcomes)
}

async fn put_one(tx: &mut SqliteConnection, put: &AlertPut) -> Result<PutOutcome, Fault> {
    let AlertPut { record, expected_version, remove } = put;
    let (kind, id) = (record.kind.number(), record.id.cast_signed());
    let version: Option<i64> = sqlx::query_scalar("SELECT version FROM alert_record WHERE kind = ?1 AND id = ?2")
        .bind(kind)
        .bind(id)
        .fetch_optional(&mut *tx)
        .await?;
    if version.unwrap_or(0) != expected_version.cast_signed() {
        return Ok(PutOutcome::Conflict);
    }
    if *remove {
        let query = sqlx::query("DELETE FROM alert_record WHERE kind = ?1 AND id = ?2").bind(kind).bind(id);
        query.execute(tx).await?;
        return Ok(PutOutcome::Done);
    }
    if version.is_none() {
        let (all, own): (i64, i64) =
            sqlx::query_as("SELECT count(*), count(*) FILTER (WHERE tenant = ?2) FROM alert_record WHERE kind = ?1")
                .bind(kind)
                .bind(record.tenant.clone())
                .fetch_one(&mut *tx)
                .await?;
        if !record.kind.has_room(all.cast_unsigned(), own.cast_unsigned()) {
            return Ok(PutOutcome::Full);
        }
    }
    sqlx::query(
        "INSERT OR REPLACE INTO alert_record (kind, id, version, job, due_ns, body, tenant) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )
    .bind(kind)
    .bind(id)
    .bind(expected_version.saturating_add(1).cast_signed())
    .bind(record.job.clone())
    .bind(ordered(record.due_ns))
    .bind(record.body.to_vec())
    .bind(record.tenant.clone())
    .execute(tx)
    .await?;
    Ok(PutOutcome::Done)
}
