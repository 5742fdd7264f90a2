//! Alerts and silences in Postgres: compare and set, one statement each, so that only one of two daemons succeeds.
//!
//! Guarantees: all changes of a call are one transaction. Records are changed in the order of their ids, so that two
//! daemons cannot deadlock. Their number may exceed its limit only by what daemons add at the same moment.

use sqlx::postgres::{PgConnection, PgPool};

use crate::store::alert_records::{AlertPut, AlertRecord, AlertSelection, PutOutcome, ordered};
use crate::store::row_reader::{self, Fault};

const COLUMNS: &str = "SELECT kind, id, version, job, due_ns, body, tenant FROM memctl.alert_record";

pub(super) async fn read(pool: &PgPool, selection: AlertSelection<'_>) -> Result<Vec<AlertRecord>, Fault> {
    let sql = |rest: &str| sqlx::AssertSqlSafe(format!("{COLUMNS} {rest}"));
    let rows = match selection {
        AlertSelection::All(kind) => {
            sqlx::query(sql("WHERE kind = $1 ORDER BY id")).bind(kind.number()).fetch_all(pool).await?
        }
        // No job's name contains a zero byte, and Postgres refuses text that does.
        AlertSelection::OfJob { job, .. } if job.contains('\0') => Vec::new(),
        AlertSelection::OfJob { tenant, job } => {
            let query = sqlx::query(sql("WHERE kind = 1 AND job = $1 AND tenant = $2 ORDER BY id"));
            query.bind(job.to_owned()).bind(tenant.to_owned()).fetch_all(pool).await?
        }
        AlertSelection::Ids(ids) => {
            let ids: Vec<i64> = ids.iter().map(|id| id.cast_signed()).collect();
            sqlx::query(sql("WHERE kind = 1 AND id = ANY($1) ORDER BY array_position($1, id)"))
                .bind(ids)
                .fetch_all(pool)
                .await?
        }
        AlertSelection::Due { before_ns, limit } => {
            sqlx::query(sql("WHERE kind = 1 AND due_ns <= $1 ORDER BY due_ns, id LIMIT $2"))
                .bind(ordered(before_ns))
                .bind(i64::from(limit))
                .fetch_all(pool)
                .await?
        }
    };
    rows.iter().map(row_reader::alert_record).collect()
}

pub(super) async fn put(pool: &PgPool, puts: &[AlertPut]) -> Result<Vec<PutOutcome>, Fault> {
    let mut tx = pool.begin().await?;
    let mut order: Vec<usize> = (0..puts.len()).collect();
    order.sort_by_key(|&at| (puts[at].record.kind, puts[at].record.id));
    let mut outcomes = vec![PutOutcome::Conflict; puts.len()];
    for at in order {
        outcomes[at] = put_one(&mut tx, &puts[at]).await?;
    }
    tx.commit().await?;
    Ok(outcomes)
}

async fn put_one(tx: &mut PgConnection, put: &AlertPut) -> Result<PutOutcome, Fault> {
    let AlertPut { record, expected_version, remove } = put;
    let (kind, id) = (record.kind.number(), record.id.cast_signed());
    let version: Option<i64> =
        sqlx::query_scalar("SELECT version FROM memctl.alert_record WHERE kind = $1 AND id = $2 FOR UPDATE")
            .bind(kind)
            .bind(id)
            .fetch_optional(&mut *tx)
            .await?;
    if version.unwrap_or(0) != expected_version.cast_signed() {
        return Ok(PutOutcome::Conflict);
    }
    if *remove {
        let query = sqlx::query("DELETE FROM memctl.alert_record WHERE kind = $1 AND id = $2").bind(kind).bind(id);
        query.execute(tx).await?;
        return Ok(PutOutcome::Done);
    }
    let statement = if version.is_some() {
        "UPDATE memctl.alert_record SET version = $3, job = $4, due_ns = $5, body = $6, tenant = $7 WHERE kind = $1 AND id = $2"
    } else {
        let counting = "SELECT count(*), count(*) FILTER (WHERE tenant = $2) FROM memctl.alert_record WHERE kind = $1";
        let (all, own): (i64, i64) =
            sqlx::query_as(counting).bind(kind).bind(record.tenant.clone()).fetch_one(&mut *tx).await?;
        if !record.kind.has_room(all.cast_unsigned(), own.cast_unsigned()) {
            return Ok(PutOutcome::Full);
        }
        // A missing row cannot be locked: another daemon may have inserted it just now.
        "INSERT INTO memctl.alert_record (kind, id, version, job, due_ns, body, tenant) VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING"
    };
    let done = sqlx::query(statement)
        .bind(kind)
        .bind(id)
        .bind(expected_version.saturating_add(1).cast_signed())
        .bind(record.job.clone())
        .bind(ordered(record.due_ns))
        .bind(record.body.to_vec())
        .bind(record.tenant.clone())
        .execute(tx)
        .await?;
    Ok(if done.rows_affected() > 0 { PutOutcome::Done } else { PutOutcome::Conflict })
}
