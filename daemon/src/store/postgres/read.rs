//! Reading: one statement per query, on any connection of the pool.
//!
//! Guarantees: every result is one consistent state of the database; bounds beyond 2^63 select correctly.

use bytes::Bytes;
use memctl_model::SessionId;
use memctl_proto::v1::ItemKind;
use sqlx::postgres::PgPool;

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

pub(super) async fn jobs(pool: &PgPool, scope: &Scope, limit: u32) -> Result<Vec<JobRow>, Fault> {
    let query = sqlx::query(include_str!("sql/jobs.sql")).bind(i64::from(limit)).bind(scope.name());
    let rows = query.fetch_all(pool).await?;
    rows.iter().map(row_reader::job).collect()
}

/// The tenants that have a job of this name.
pub(super) async fn tenants_of(pool: &PgPool, job: &str) -> Result<Vec<String>, Fault> {
    // No job's name contains a zero byte, and Postgres refuses text that does.
    if job.contains('\0') {
        return Ok(Vec::new());
    }
    Ok(sqlx::query_scalar(include_str!("sql/job_tenants.sql")).bind(job).fetch_all(pool).await?)
}

/// A session by the id under which it is stored.
pub(super) async fn held(pool: &PgPool, id: SessionId) -> Result<Option<Held>, Fault> {
    let query = sqlx::query(include_str!("sql/session_find.sql")).bind(id.0.to_vec());
    let row = query.fetch_optional(pool).await?;
    Ok(row.as_ref().map(row_reader::held).transpose()?.map(|(_, held)| held))
}

pub(super) async fn job(
    pool: &PgPool,
    scope: &Scope,
    which: &Which,
    attempt: Option<u32>,
) -> Result<Option<JobRow>, Fault> {
    let tenant = scope.name().map(str::to_owned);
    let found = match which.name() {
        // No job's name contains a zero byte, and Postgres refuses text that does.
        Some(name) if name.contains('\0') => None,
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

pub(super) async fn sessions(pool: &PgPool, job: i64) -> Result<Vec<SessionRow>, Fault> {
    let rows = sqlx::query(include_str!("sql/sessions.sql")).bind(job).fetch_all(pool).await?;
    rows.iter().map(row_reader::session).collect()
}

pub(super) async fn devices(pool: &PgPool, job: i64) -> Result<Vec<DeviceRow>, Fault> {
    let rows = sqlx::query(include_str!("sql/devices.sql")).bind(job).fetch_all(pool).await?;
    rows.iter().map(row_reader::device).collect()
}

pub(super) async fn epoch_ends(pool: &PgPool, job: i64) -> Result<Vec<EpochEndRow>, Fault> {
    let rows = sqlx::query(include_str!("sql/epoch_ends.sql")).bind(job).fetch_all(pool).await?;
    rows.iter().map(row_reader::epoch_end).collect()
}

pub(super) async fn chunks(
    pool: &PgPool,
    session: SessionKey,
    device: u8,
    selection: Selection,
) -> Result<Vec<ChunkRow>, Fault> {
    let query = sqlx::query(include_str!("sql/chunks.sql")).bind(session).bind(i64::from(device));
    let rows = bounds(&selection).into_iter().fold(query, |query, bound| query.bind(bound)).fetch_all(pool).await?;
    rows.iter().map(row_reader::chunk).collect()
}

pub(super) async fn payloads(pool: &PgPool, session: SessionKey, seqs: &[u64]) -> Result<Vec<(u64, Bytes)>, Fault> {
    let seqs: Vec<i64> = seqs.iter().filter_map(|&seq| i64::try_from(seq).ok()).collect();
    let rows = sqlx::query(include_str!("sql/payloads.sql")).bind(session).bind(seqs).fetch_all(pool).await?;
    rows.iter().map(row_reader::payload).collect()
}

pub(super) async fn items_at(
    pool: &PgPool,
    damage: &Damage,
    session: SessionKey,
    seqs: &[u64],
) -> Result<Vec<ItemRow>, Fault> {
    let seqs: Vec<i64> = seqs.iter().filter_map(|&seq| i64::try_from(seq).ok()).collect();
    let rows = sqlx::query(include_str!("sql/items_at.sql")).bind(session).bind(seqs).fetch_all(pool).await?;
    damage.without(session, &rows, row_reader::item)
}

pub(super) async fn items_after(
    pool: &PgPool,
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
    pool: &PgPool,
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
    pool: &PgPool,
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

pub(super) async fn gaps(pool: &PgPool, job: i64) -> Result<Vec<(SessionKey, Gap)>, Fault> {
    let rows = sqlx::query(include_str!("sql/gaps.sql")).bind(job).fetch_all(pool).await?;
    rows.iter().map(row_reader::gap).collect()
}

pub(super) async fn totals(pool: &PgPool, scope: &Scope) -> Result<Totals, Fault> {
    let query = sqlx::query(include_str!("sql/totals.sql")).bind(scope.name());
    row_reader::totals(&query.fetch_one(pool).await?)
}

pub(super) async fn jobs_unheard(pool: &PgPool, cutoff_ns: u64) -> Result<Vec<i64>, Fault> {
    let cutoff_ns = i64::try_from(cutoff_ns).unwrap_or(i64::MAX);
    Ok(sqlx::query_scalar(include_str!("sql/jobs_unheard.sql")).bind(cutoff_ns).fetch_all(pool).await?)
}

pub(super) async fn spending(pool: &PgPool) -> Result<Vec<Spending>, Fault> {
    sqlx::query(include_str!("sql/spending.sql")).fetch_all(pool).await?.iter().map(row_reader::spending).collect()
}

/// The latest time that anything was heard, not after `before_ns`.
pub(super) async fn heard_latest(pool: &PgPool, before_ns: u64) -> Result<Option<u64>, Fault> {
    let before_ns = i64::try_from(before_ns).unwrap_or(i64::MAX);
    let latest: Option<i64> =
        sqlx::query_scalar(include_str!("sql/heard_latest.sql")).bind(before_ns).fetch_one(pool).await?;
    Ok(latest.map(i64::cast_unsigned))
}

/// Tables, indexes and out-of-line data.
pub(super) async fn size_bytes(pool: &PgPool) -> Result<u64, Fault> {
    let bytes: i64 = sqlx::query_scalar(include_str!("sql/size.sql")).fetch_one(pool).await?;
    Ok(bytes.max(0).cast_unsigned())
}

/// The indexes of a job's answers about holders.
pub(super) async fn holders_kept(pool: &PgPool, job: i64) -> Result<Vec<HoldersIndex>, Fault> {
    let rows = sqlx::query(include_str!("sql/holders_kept.sql")).bind(job).fetch_all(pool).await?;
    rows.iter().map(row_reader::holders_index).collect()
}

/// An answer about holders, and whether it is undamaged.
pub(super) async fn holders(
    pool: &PgPool,
    job: i64,
    session: SessionKey,
    asked_ns: u64,
) -> Result<Option<(HoldersRow, bool)>, Fault> {
    let query = sqlx::query(include_str!("sql/holders.sql")).bind(job).bind(session).bind(asked_ns.cast_signed());
    query.fetch_optional(pool).await?.as_ref().map(row_reader::holders).transpose()
}

/// The analyser's stored state of a session, unless it is damaged.
pub(super) async fn watch(pool: &PgPool, session: SessionKey) -> Result<Option<WatchRow>, Fault> {
    let row = sqlx::query(include_str!("sql/watch.sql")).bind(session).fetch_optional(pool).await?;
    Ok(row.as_ref().map(row_reader::watch).transpose()?.flatten())
}
