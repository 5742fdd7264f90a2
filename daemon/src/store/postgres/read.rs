//! Reading: one statement a question, on any connection of the pool.
//!
//! Guarantees: every answer is one consistent state of the database; a bound beyond 2^63 selects what it must.

use bytes::Bytes;
use memctl_proto::v1::ItemKind;
use sqlx::postgres::PgPool;

use crate::store::cells::{self, Fault};
use crate::store::rows::{
    ChunkRow, DeviceRow, EpochEndRow, Gap, ItemRow, JobRow, Selection, SessionKey, SessionRow, Totals,
};
use crate::store::selection::bounds;

pub(super) async fn jobs(pool: &PgPool, limit: u32) -> Result<Vec<JobRow>, Fault> {
    let rows = sqlx::query(include_str!("sql/jobs.sql")).bind(i64::from(limit)).fetch_all(pool).await?;
    rows.iter().map(cells::job).collect()
}

pub(super) async fn job(pool: &PgPool, name: Option<&str>, attempt: Option<u32>) -> Result<Option<JobRow>, Fault> {
    let name = match name {
        // No job's name holds a zero byte, and Postgres takes no text that does.
        Some(name) if name.contains('\0') => None,
        Some(name) => Some(name.to_owned()),
        None => sqlx::query_scalar(include_str!("sql/job_latest.sql")).fetch_optional(pool).await?,
    };
    let Some(name) = name else { return Ok(None) };
    let query = sqlx::query(include_str!("sql/job_by_name.sql")).bind(name).bind(attempt.map(i64::from));
    query.fetch_optional(pool).await?.as_ref().map(cells::job).transpose()
}

pub(super) async fn sessions(pool: &PgPool, job: i64) -> Result<Vec<SessionRow>, Fault> {
    let rows = sqlx::query(include_str!("sql/sessions.sql")).bind(job).fetch_all(pool).await?;
    rows.iter().map(cells::session).collect()
}

pub(super) async fn devices(pool: &PgPool, job: i64) -> Result<Vec<DeviceRow>, Fault> {
    let rows = sqlx::query(include_str!("sql/devices.sql")).bind(job).fetch_all(pool).await?;
    rows.iter().map(cells::device).collect()
}

pub(super) async fn epoch_ends(pool: &PgPool, job: i64) -> Result<Vec<EpochEndRow>, Fault> {
    let rows = sqlx::query(include_str!("sql/epoch_ends.sql")).bind(job).fetch_all(pool).await?;
    rows.iter().map(cells::epoch_end).collect()
}

pub(super) async fn chunks(
    pool: &PgPool,
    session: SessionKey,
    device: u8,
    selection: Selection,
) -> Result<Vec<ChunkRow>, Fault> {
    let query = sqlx::query(include_str!("sql/chunks.sql")).bind(session).bind(i64::from(device));
    let rows = bounds(&selection).into_iter().fold(query, |query, bound| query.bind(bound)).fetch_all(pool).await?;
    rows.iter().map(cells::chunk).collect()
}

pub(super) async fn payloads(pool: &PgPool, session: SessionKey, seqs: &[u64]) -> Result<Vec<(u64, Bytes)>, Fault> {
    let seqs: Vec<i64> = seqs.iter().filter_map(|&seq| i64::try_from(seq).ok()).collect();
    let rows = sqlx::query(include_str!("sql/payloads.sql")).bind(session).bind(seqs).fetch_all(pool).await?;
    rows.iter().map(cells::payload).collect()
}

pub(super) async fn items_at(pool: &PgPool, session: SessionKey, seqs: &[u64]) -> Result<Vec<ItemRow>, Fault> {
    let seqs: Vec<i64> = seqs.iter().filter_map(|&seq| i64::try_from(seq).ok()).collect();
    let rows = sqlx::query(include_str!("sql/items_at.sql")).bind(session).bind(seqs).fetch_all(pool).await?;
    rows.iter().map(cells::item).collect()
}

pub(super) async fn items_after(
    pool: &PgPool,
    session: SessionKey,
    kind: ItemKind,
    after: u64,
    limit: u32,
) -> Result<Vec<ItemRow>, Fault> {
    let rows = sqlx::query(include_str!("sql/items_after.sql"))
        .bind(session)
        .bind(i64::from(kind as i32))
        .bind(i64::try_from(after).unwrap_or(i64::MAX))
        .bind(i64::from(limit))
        .fetch_all(pool)
        .await?;
    rows.iter().map(cells::item).collect()
}

pub(super) async fn items(
    pool: &PgPool,
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
    rows.iter().map(cells::item).collect()
}

pub(super) async fn keyframe_before(
    pool: &PgPool,
    session: SessionKey,
    device: u8,
    event: u64,
) -> Result<Option<ItemRow>, Fault> {
    let row = sqlx::query(include_str!("sql/keyframe_before.sql"))
        .bind(session)
        .bind(i64::from(ItemKind::Keyframe as i32))
        .bind(i64::from(device))
        .bind(i64::try_from(event).unwrap_or(i64::MAX))
        .fetch_optional(pool)
        .await?;
    row.as_ref().map(cells::item).transpose()
}

pub(super) async fn gaps(pool: &PgPool, job: i64) -> Result<Vec<(SessionKey, Gap)>, Fault> {
    let rows = sqlx::query(include_str!("sql/gaps.sql")).bind(job).fetch_all(pool).await?;
    rows.iter().map(cells::gap).collect()
}

pub(super) async fn totals(pool: &PgPool) -> Result<Totals, Fault> {
    cells::totals(&sqlx::query(include_str!("sql/totals.sql")).fetch_one(pool).await?)
}

pub(super) async fn jobs_unheard(pool: &PgPool, cutoff_ns: u64) -> Result<Vec<i64>, Fault> {
    let cutoff_ns = i64::try_from(cutoff_ns).unwrap_or(i64::MAX);
    Ok(sqlx::query_scalar(include_str!("sql/jobs_unheard.sql")).bind(cutoff_ns).fetch_all(pool).await?)
}
