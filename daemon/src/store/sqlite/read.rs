//! Reading: one statement per query, on the readers' connections.
//!
//! Guarantees: every result is one consistent state of the file; bounds beyond 2^63 select correctly.

use bytes::Bytes;
use memctl_model::SessionId;
use memctl_proto::v1::ItemKind;
use sqlx::Row;
use sqlx::sqlite::{SqlitePool, SqliteRow};

use crate::store::damage::Damage;
use crate::store::expiry::Spending;
use crate::store::holders::{HoldersIndex, HoldersRow};
use crate::store::opening::Held;
use crate::store::row_reader::{self, Cells, Fault};
use crate::store::rows::{
    ChunkRow, DeviceRow, EpochEndRow, Gap, ItemPage, ItemRow, JobRow, PAGE_BYTES, Selection, SessionKey, SessionRow,
    Totals, WatchRow,
};
use crate::store::runs::Which;
use crate::store::selection::bounds;
use crate::store::tenant::Scope;

pub(super) async fn jobs(pool: &SqlitePool, scope: &Scope, limit: u32) -> Result<Vec<JobRow>, Fault> {
    let query = sqlx::query(include_str!("sql/jobs.sql")).bind(i64::from(limit)).bind(scope.name().map(str::to_owned));
    let rows = query.fetch_all(pool).await?;
    rows.iter().map(row_reader::job).collect()
}

/// The tenants that have a job of this name.
pub(super) async fn tenants_of(pool: &SqlitePool, job: &str) -> Result<Vec<String>, Fault> {
    Ok(sqlx::query_scalar(include_str!("sql/job_tenants.sql")).bind(job.to_owned()).fetch_all(pool).await?)
}

/// A session by the id under which it is stored.
pub(super) async fn held(pool: &SqlitePool, id: SessionId) -> Result<Option<Held>, Fault> {
    let query = sqlx::query(include_str!("sql/session_find.sql")).bind(id.0.to_vec());
    let row = query.fetch_optional(pool).await?;
    Ok(row.as_ref().map(row_reader::held).transpose()?.map(|(_, held)| held))
}

pub(super) async fn job(
    pool: &SqlitePool,
    scope: &Scope,
    which: &Which,
    attempt: Option<u32>,
) -> Result<Option<JobRow>, Fault> {
    let tenant = scope.name().map(str::to_owned);
    let found = match which.name() {
        Some(name) => Some((name.to_owned(), tenant, which.run())),
        None => {
            let latest = sqlx::query(include_str!("sql/job_latest.sql")).bind(tenant).fetch_optional(pool).await?;
            latest.map(|row| Ok::<_, Fault>((row.text(0)?, Some(row.text(1)?), Some(row.small(2)?)))).transpose()?
        }
    };
    let Some((name, tenant, run)) = found else { return Ok(None) };
    let query = sqlx::query(include_str!("sql/job_by_name.sql"))
        .bind(name)
        .bind(attempt.map(i64::from))
        .bind(tenant)
        .bind(run.map(i64::from))
        .bind(which.launcher().map(u64::cast_signed));
    query.fetch_optional(pool).await?.as_ref().map(row_reader::job).transpose()
}

pub(super) async fn sessions(pool: &SqlitePool, job: i64) -> Result<Vec<SessionRow>, Fault> {
    let rows = sqlx::query(include_str!("sql/sessions.sql")).bind(job).fetch_all(pool).await?;
    rows.iter().map(row_reader::session).collect()
}

pub(super) async fn devices(pool: &SqlitePool, job: i64) -> Result<Vec<DeviceRow>, Fault> {
    let rows = sqlx::query(include_str!("sql/devices.sql")).bind(job).fetch_all(pool).await?;
    rows.iter().map(row_reader::device).collect()
}

pub(super) async fn epoch_ends(pool: &SqlitePool, job: i64) -> Result<Vec<EpochEndRow>, Fault> {
    let rows = sqlx::query(include_str!("sql/epoch_ends.sql")).bind(job).fetch_all(pool).await?;
    rows.iter().map(row_reader::epoch_end).collect()
}

pub(super) async fn chunks(
    pool: &SqlitePool,
    session: SessionKey,
    device: u8,
    selection: Selection,
) -> Result<Vec<ChunkRow>, Fault> {
    let query = sqlx::query(include_str!("sql/chunks.sql")).bind(session).bind(i64::from(device));
    let rows = bounds(&selection).into_iter().fold(query, |query, bound| query.bind(bound)).fetch_all(pool).await?;
    rows.iter().map(row_reader::chunk).collect()
}

pub(super) async fn payloads(pool: &SqlitePool, session: SessionKey, seqs: &[u64]) -> Result<Vec<(u64, Bytes)>, Fault> {
    let mut found = Vec::new();
    for some in seqs.chunks(ASKED) {
        let query = sqlx::query(include_str!("sql/payloads.sql")).bind(session).bind(numbers(some));
        found.extend(in_order(query.fetch_all(pool).await?, row_reader::payload)?);
    }
    Ok(found)
}

pub(super) async fn items_at(
    pool: &SqlitePool,
    damage: &Damage,
    session: SessionKey,
    seqs: &[u64],
) -> Result<Vec<ItemRow>, Fault> {
    let mut found = Vec::new();
    for some in seqs.chunks(ASKED) {
        let query = sqlx::query(include_str!("sql/items_at.sql")).bind(session).bind(numbers(some));
        found.extend(in_order(query.fetch_all(pool).await?, row_reader::item)?);
    }
    damage.without(session, &found, |(item, is_sound)| Ok((item.clone(), *is_sound)))
}

/// Rows in the order in which they were requested.
fn in_order<T>(rows: Vec<SqliteRow>, read: impl Fn(&SqliteRow) -> Result<T, Fault>) -> Result<Vec<T>, Fault> {
    let mut placed = Vec::with_capacity(rows.len());
    for row in &rows {
        placed.push((row.try_get::<i64, _>("place")?, read(row)?));
    }
    placed.sort_by_key(|(place, _)| *place);
    Ok(placed.into_iter().map(|(_, one)| one).collect())
}

/// Items per query: a query costs two thread switches, an item tens of kilobytes.
const ASKED: usize = 128;

/// Numbers as a JSON array; a number beyond SQLite's range is no item's.
fn numbers(seqs: &[u64]) -> String {
    let known: Vec<String> =
        seqs.iter().filter_map(|&seq| i64::try_from(seq).ok()).map(|seq| seq.to_string()).collect();
    format!("[{}]", known.join(","))
}

pub(super) async fn items_after(
    pool: &SqlitePool,
    damage: &Damage,
    session: SessionKey,
    kind: ItemKind,
    after: u64,
    limit: u32,
) -> Result<ItemPage, Fault> {
    let rows = sqlx::query(include_str!("sql/items_after.sql"))
        .bind(session)
        .bind(i64::from(kind as i32))
        .bind(i64::try_from(after).unwrap_or(i64::MAX))
        .bind(i64::from(limit))
        .bind(PAGE_BYTES.cast_signed())
        .fetch_all(pool)
        .await?;
    let items = damage.without(session, &rows, row_reader::item)?;
    row_reader::page(items, limit, &rows)
}

pub(super) async fn items(
    pool: &SqlitePool,
    damage: &Damage,
    session: SessionKey,
    kind: ItemKind,
    device: Option<u8>,
    selection: Selection,
) -> Result<Vec<ItemRow>, Fault> {
    let query = sqlx::query(include_str!("sql/items.sql"))
        .bind(session)
        .bind(i64::from(kind as i32))
        .bind(device.map(i64::from));
    let rows = bounds(&selection).into_iter().fold(query, |query, bound| query.bind(bound)).fetch_all(pool).await?;
    damage.without(session, &rows, row_reader::item)
}

pub(super) async fn keyframe_before(
    pool: &SqlitePool,
    damage: &Damage,
    session: SessionKey,
    device: u8,
    event: u64,
) -> Result<Option<ItemRow>, Fault> {
    let mut event = Some(event);
    while let Some(before) = event {
        let row = sqlx::query(include_str!("sql/keyframe_before.sql"))
            .bind(session)
            .bind(i64::from(ItemKind::Keyframe as i32))
            .bind(i64::from(device))
            .bind(i64::try_from(before).unwrap_or(i64::MAX))
            .fetch_optional(pool)
            .await?;
        let Some(row) = row else { break };
        let mut sound = damage.without(session, [&row], row_reader::item)?;
        if let Some(keyframe) = sound.pop() {
            return Ok(Some(keyframe));
        }
        // An earlier keyframe works as well: it is only further away.
        event = row.word(4)?.checked_sub(1);
    }
    Ok(None)
}

pub(super) async fn gaps(pool: &SqlitePool, job: i64) -> Result<Vec<(SessionKey, Gap)>, Fault> {
    let rows = sqlx::query(include_str!("sql/gaps.sql")).bind(job).fetch_all(pool).await?;
    rows.iter().map(row_reader::gap).collect()
}

pub(super) async fn totals(pool: &SqlitePool, scope: &Scope) -> Result<Totals, Fault> {
    let query = sqlx::query(include_str!("sql/totals.sql")).bind(scope.name().map(str::to_owned));
    row_reader::totals(&query.fetch_one(pool).await?)
}

pub(super) async fn jobs_unheard(pool: &SqlitePool, cutoff_ns: u64) -> Result<Vec<i64>, Fault> {
    let cutoff_ns = i64::try_from(cutoff_ns).unwrap_or(i64::MAX);
    Ok(sqlx::query_scalar(include_str!("sql/jobs_unheard.sql")).bind(cutoff_ns).fetch_all(pool).await?)
}

pub(super) async fn spending(pool: &SqlitePool) -> Result<Vec<Spending>, Fault> {
    sqlx::query(include_str!("sql/spending.sql")).fetch_all(pool).await?.iter().map(row_reader::spending).collect()
}

/// The latest time that anything was heard, not after `before_ns`.
pub(super) async fn heard_latest(pool: &SqlitePool, before_ns: u64) -> Result<Option<u64>, Fault> {
    let before_ns = i64::try_from(before_ns).unwrap_or(i64::MAX);
    let latest: Option<i64> =
        sqlx::query_scalar(include_str!("sql/heard_latest.sql")).bind(before_ns).fetch_one(pool).await?;
    Ok(latest.map(i64::cast_unsigned))
}

/// The indexes of a job's answers about holders.
pub(super) async fn holders_kept(pool: &SqlitePool, job: i64) -> Result<Vec<HoldersIndex>, Fault> {
    let rows = sqlx::query(include_str!("sql/holders_kept.sql")).bind(job).fetch_all(pool).await?;
    rows.iter().map(row_reader::holders_index).collect()
}

/// An answer about holders, and whether it is undamaged.
pub(super) async fn holders(
    pool: &SqlitePool,
    job: i64,
    session: SessionKey,
    asked_ns: u64,
) -> Result<Option<(HoldersRow, bool)>, Fault> {
    let query = sqlx::query(include_str!("sql/holders.sql")).bind(job).bind(session).bind(asked_ns.cast_signed());
    query.fetch_optional(pool).await?.as_ref().map(row_reader::holders).transpose()
}

/// The analyser's stored state of a session, unless it is damaged.
pub(super) async fn watch(pool: &SqlitePool, session: SessionKey) -> Result<Option<WatchRow>, Fault> {
    let row = sqlx::query(include_str!("sql/watch.sql")).bind(session).fetch_optional(pool).await?;
    Ok(row.as_ref().map(row_reader::watch).transpose()?.flatten())
}

#[cfg(test)]
mod tests {
    use super::super::SqliteOptions;
    use super::super::connection::open;
    use super::*;

    /// A page found by only a part of the key would read all items of a session for each of its own.
    #[tokio::test]
    async fn pages_of_items_are_found_by_the_whole_key() {
        let folder = tempfile::tempdir().unwrap();
        let opened = open(&folder.path().join("memctl.db"), "here", &SqliteOptions::default()).await.unwrap();
        for sql in [include_str!("sql/items_after.sql"), include_str!("sql/items_at.sql")] {
            let explained = format!("EXPLAIN QUERY PLAN {sql}");
            let query = sqlx::query(sqlx::AssertSqlSafe(explained));
            let plan = (0..5).fold(query, |query, _| query.bind(1_i64)).fetch_all(&opened.readers).await.unwrap();
            let lines: Vec<String> = plan.iter().map(|row| row.get::<String, _>("detail")).collect();
            let of_items: Vec<&String> = lines.iter().filter(|line| line.starts_with("SEARCH i ")).collect();
            assert!(!of_items.is_empty(), "{lines:?}");
            let is_whole = |line: &&String| line.contains("kind=? AND seq=?") || line.contains("kind=? AND seq>?");
            assert!(of_items.iter().all(is_whole), "{lines:?}");
        }
    }
}
