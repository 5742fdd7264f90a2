//! Stores alerts and silences. Each change is a compare and set in one statement, so that only one of two daemons
//! succeeds.
//!
//! Guarantees: all changes of a call are one transaction. Records are changed in the order of their ids, so that two
//! daemons cannot deadlock. In Postgres the number of records can exceed its limit by those that other daemons add at
//! the same moment.

use super::query::{Query, Sql, SqlConnection, query, sql};
use crate::store::alert_records::{AlertPut, AlertRecord, AlertSelection, PutOutcome, ordered};
use crate::store::row_reader::{self, Cells, Fault};

macro_rules! select {
    ($rest:literal) => {
        query(Sql::Both(concat!(
            "SELECT kind, id, version, job, due_ns, body, tenant FROM memctl.alert_record ",
            $rest
        )))
    };
}

const VERSION: Sql = Sql::Both("SELECT version FROM memctl.alert_record WHERE kind = $1 AND id = $2 FOR UPDATE");
const DELETE: Sql = Sql::Both("DELETE FROM memctl.alert_record WHERE kind = $1 AND id = $2");
const COUNT: Sql =
    Sql::Both("SELECT count(*), count(*) FILTER (WHERE tenant = $2) FROM memctl.alert_record WHERE kind = $1");
const UPDATE: Sql = Sql::Both(
    "UPDATE memctl.alert_record SET version = $3, job = $4, due_ns = $5, body = $6, tenant = $7 WHERE kind = $1 AND id = $2",
);
/// A missing row cannot be locked, so another daemon may insert it first.
const INSERT: Sql = Sql::Both(
    "INSERT INTO memctl.alert_record (kind, id, version, job, due_ns, body, tenant) \
     VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING",
);

pub(super) async fn read<C: SqlConnection>(
    db: &mut C,
    selection: AlertSelection<'_>,
) -> Result<Vec<AlertRecord>, Fault> {
    let rows = match selection {
        AlertSelection::All(kind) => db.all(select!("WHERE kind = $1 ORDER BY id").bind(kind.number())).await?,
        // A job's name never contains a zero byte, and Postgres refuses text that contains one.
        AlertSelection::OfJob { job, .. } if job.contains('\0') => Vec::new(),
        AlertSelection::OfJob { tenant, job } => {
            db.all(select!("WHERE kind = 1 AND job = $1 AND tenant = $2 ORDER BY id").bind(job).bind(tenant)).await?
        }
        AlertSelection::Ids(ids) => {
            let asked: Vec<i64> = ids.iter().map(|id| id.cast_signed()).collect();
            let mut rows = db.all(query(sql!(each "alerts_of")).bind(asked)).await?;
            rows.sort_by_cached_key(|row| row.word(1).ok().and_then(|found| ids.iter().position(|&id| id == found)));
            rows
        }
        AlertSelection::Due { before_ns, limit } => {
            let due = select!("WHERE kind = 1 AND due_ns <= $1 ORDER BY due_ns, id LIMIT $2");
            db.all(due.bind(ordered(before_ns)).bind(limit)).await?
        }
    };
    rows.iter().map(row_reader::alert_record).collect()
}

pub(super) async fn put<C: SqlConnection>(tx: &mut C, puts: &[AlertPut]) -> Result<Vec<PutOutcome>, Fault> {
    let mut order: Vec<usize> = (0..puts.len()).collect();
    order.sort_by_key(|&at| (puts[at].record.kind, puts[at].record.id));
    let mut outcomes = vec![PutOutcome::Conflict; puts.len()];
    for at in order {
        outcomes[at] = put_one(tx, &puts[at]).await?;
    }
    Ok(outcomes)
}

async fn put_one<C: SqlConnection>(tx: &mut C, put: &AlertPut) -> Result<PutOutcome, Fault> {
    let AlertPut { record, expected_version, remove } = put;
    let of_record = |sql| -> Query { query(sql).bind(record.kind.number()).bind(record.id) };
    let found = tx.optional(of_record(VERSION)).await?;
    let version = found.map(|row| row.word(0)).transpose()?;
    if version.unwrap_or(0) != *expected_version {
        return Ok(PutOutcome::Conflict);
    }
    if *remove {
        tx.run(of_record(DELETE)).await?;
        return Ok(PutOutcome::Done);
    }
    if version.is_none() {
        let count = tx.one(query(COUNT).bind(record.kind.number()).bind(&record.tenant[..])).await?;
        if !record.kind.has_room(count.word(0)?, count.word(1)?) {
            return Ok(PutOutcome::Full);
        }
    }
    let change = of_record(if version.is_some() { UPDATE } else { INSERT })
        .bind(expected_version.saturating_add(1))
        .bind(&record.job[..])
        .bind(ordered(record.due_ns))
        .bind(&record.body[..])
        .bind(&record.tenant[..]);
    Ok(if tx.run(change).await? > 0 { PutOutcome::Done } else { PutOutcome::Conflict })
}
