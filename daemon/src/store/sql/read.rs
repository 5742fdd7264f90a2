//! Reads from the store: one statement per query.
//!
//! Guarantees: every result is one consistent state of the database. A bound of 2^63 or more also selects correctly,
//! although the database's integers are smaller.

use bytes::Bytes;
use memctl_model::SessionId;
use memctl_proto::v1::ItemKind;

use super::query::{Query, SqlConnection, bound, query, sql};
use crate::store::damage::Damage;
use crate::store::expiry::Spending;
use crate::store::holders::{HoldersIndex, HoldersRow};
use crate::store::opening::ExistingSession;
use crate::store::row_reader::{self, Cells, Fault};
use crate::store::rows::{
    ChunkRow, DeviceRow, EpochEndRow, Gap, ItemPage, ItemRow, JobRow, PAGE_BYTES, Selection, SessionKey, SessionRow,
    Totals, WatchRow,
};
use crate::store::runs::Which;
use crate::store::selection::bounds;
use crate::store::tenant::Scope;

/// Maximum number of items per statement. In SQLite a statement costs two thread switches, and an item has tens of
/// kilobytes.
const ITEMS_PER_STATEMENT: usize = 128;

/// The first column of every row.
pub(super) async fn numbers<C: SqlConnection>(db: &mut C, query: Query) -> Result<Vec<i64>, Fault> {
    db.all(query).await?.iter().map(|row| row.int(0)).collect()
}

pub(super) async fn jobs<C: SqlConnection>(db: &mut C, scope: &Scope, limit: u32) -> Result<Vec<JobRow>, Fault> {
    let rows = db.all(query(sql!("jobs")).bind(limit).bind(scope.name())).await?;
    rows.iter().map(row_reader::job).collect()
}

/// The jobs that were heard from at or after this time, the latest first.
pub(super) async fn jobs_heard<C: SqlConnection>(db: &mut C, since_ns: u64, limit: u32) -> Result<Vec<JobRow>, Fault> {
    let rows = db.all(query(sql!("jobs_heard")).bind(bound(since_ns)).bind(limit)).await?;
    rows.iter().map(row_reader::job).collect()
}

/// The tenants that have a job of this name.
pub(super) async fn tenants_of<C: SqlConnection>(db: &mut C, job: &str) -> Result<Vec<String>, Fault> {
    // A job's name never contains a zero byte, and Postgres refuses text that contains one.
    if job.contains('\0') {
        return Ok(Vec::new());
    }
    db.all(query(sql!("job_tenants")).bind(job)).await?.iter().map(|row| row.text(0)).collect()
}

/// A session by the id under which it is stored.
pub(super) async fn existing_session<C: SqlConnection>(
    db: &mut C,
    id: SessionId,
) -> Result<Option<ExistingSession>, Fault> {
    let row = db.optional(query(sql!("session_find")).bind(&id.0[..])).await?;
    Ok(row.as_ref().map(row_reader::held).transpose()?.map(|(_, held)| held))
}

pub(super) async fn job<C: SqlConnection>(
    db: &mut C,
    scope: &Scope,
    which: &Which,
    attempt: Option<u32>,
) -> Result<Option<JobRow>, Fault> {
    let tenant = scope.name().map(str::to_owned);
    let found = match which.name() {
        // A job's name never contains a zero byte, and Postgres refuses text that contains one.
        Some(name) if name.contains('\0') => None,
        Some(name) => Some((name.to_owned(), tenant, which.run())),
        None => {
            let latest = db.optional(query(sql!("job_latest")).bind(tenant.as_deref())).await?;
            latest.map(|row| Ok::<_, Fault>((row.text(0)?, Some(row.text(1)?), Some(row.small(2)?)))).transpose()?
        }
    };
    let Some((name, tenant, run)) = found else { return Ok(None) };
    let query = query(sql!("job_by_name")).bind(&name[..]).bind(attempt).bind(tenant.as_deref()).bind(run);
    db.optional(query.bind(which.launcher())).await?.as_ref().map(row_reader::job).transpose()
}

pub(super) async fn sessions<C: SqlConnection>(db: &mut C, job: i64) -> Result<Vec<SessionRow>, Fault> {
    db.all(query(sql!("sessions")).bind(job)).await?.iter().map(row_reader::session).collect()
}

pub(super) async fn devices<C: SqlConnection>(db: &mut C, job: i64) -> Result<Vec<DeviceRow>, Fault> {
    db.all(query(sql!("devices")).bind(job)).await?.iter().map(row_reader::device).collect()
}

pub(super) async fn epoch_ends<C: SqlConnection>(db: &mut C, job: i64) -> Result<Vec<EpochEndRow>, Fault> {
    db.all(query(sql!("epoch_ends")).bind(job)).await?.iter().map(row_reader::epoch_end).collect()
}

/// A query with the bounds of a selection.
fn selected(query: Query, selection: &Selection) -> Query {
    bounds(selection).into_iter().fold(query, |query, bound| query.bind(bound))
}

pub(super) async fn chunks<C: SqlConnection>(
    db: &mut C,
    session: SessionKey,
    device: u8,
    selection: Selection,
) -> Result<Vec<ChunkRow>, Fault> {
    let query = selected(query(sql!("chunks")).bind(session).bind(device), &selection);
    db.all(query).await?.iter().map(row_reader::chunk).collect()
}

pub(super) async fn payloads<C: SqlConnection>(
    db: &mut C,
    session: SessionKey,
    seqs: &[u64],
) -> Result<Vec<(u64, Bytes)>, Fault> {
    let mut found = Vec::new();
    for some in seqs.chunks(ITEMS_PER_STATEMENT) {
        let rows = db.all(query(sql!(each "payloads")).bind(session).bind(storable(some))).await?;
        found.extend(in_order(&rows, 2, row_reader::payload)?);
    }
    Ok(found)
}

pub(super) async fn items_at<C: SqlConnection>(
    db: &mut C,
    damage: &Damage,
    session: SessionKey,
    seqs: &[u64],
) -> Result<Vec<ItemRow>, Fault> {
    let mut found = Vec::new();
    for some in seqs.chunks(ITEMS_PER_STATEMENT) {
        let rows = db.all(query(sql!(each "items_at")).bind(session).bind(storable(some))).await?;
        found.extend(in_order(&rows, 14, row_reader::item)?);
    }
    damage.without(session, &found, |(item, is_sound)| Ok((item.clone(), *is_sound)))
}

/// The numbers without those that are too large for a stored item.
fn storable(seqs: &[u64]) -> Vec<i64> {
    seqs.iter().filter_map(|&seq| i64::try_from(seq).ok()).collect()
}

/// Sorts rows into the order of the request; this column holds the position of each row in the request.
fn in_order<R: Cells, T>(
    rows: &[R],
    column: usize,
    read: impl Fn(&R) -> Result<T, Fault>,
) -> Result<impl Iterator<Item = T>, Fault> {
    let mut placed = Vec::with_capacity(rows.len());
    for row in rows {
        placed.push((row.int(column)?, read(row)?));
    }
    placed.sort_by_key(|(place, _)| *place);
    Ok(placed.into_iter().map(|(_, one)| one))
}

pub(super) async fn items_after<C: SqlConnection>(
    db: &mut C,
    damage: &Damage,
    session: SessionKey,
    kind: ItemKind,
    after: u64,
    limit: u32,
) -> Result<ItemPage, Fault> {
    let query = query(sql!("items_after")).bind(session).bind(kind_of(kind)).bind(bound(after));
    let rows = db.all(query.bind(limit).bind(PAGE_BYTES)).await?;
    let items = damage.without(session, &rows, row_reader::item)?;
    row_reader::page(items, limit, &rows)
}

fn kind_of(kind: ItemKind) -> i64 {
    i64::from(kind as i32)
}

pub(super) async fn items<C: SqlConnection>(
    db: &mut C,
    damage: &Damage,
    session: SessionKey,
    kind: ItemKind,
    device: Option<u8>,
    selection: Selection,
) -> Result<Vec<ItemRow>, Fault> {
    let query = query(sql!("items")).bind(session).bind(kind_of(kind)).bind(device);
    let rows = db.all(selected(query, &selection)).await?;
    damage.without(session, &rows, row_reader::item)
}

pub(super) async fn keyframe_before<C: SqlConnection>(
    db: &mut C,
    damage: &Damage,
    session: SessionKey,
    device: u8,
    event: u64,
) -> Result<Option<ItemRow>, Fault> {
    let mut event = Some(event);
    while let Some(before) = event {
        let query = query(sql!("keyframe_before")).bind(session).bind(kind_of(ItemKind::Keyframe));
        let Some(row) = db.optional(query.bind(device).bind(bound(before))).await? else { break };
        let mut sound = damage.without(session, [&row], row_reader::item)?;
        if let Some(keyframe) = sound.pop() {
            return Ok(Some(keyframe));
        }
        // An earlier keyframe also works; only more events must be replayed from it.
        event = row.word(4)?.checked_sub(1);
    }
    Ok(None)
}

pub(super) async fn gaps<C: SqlConnection>(db: &mut C, job: i64) -> Result<Vec<(SessionKey, Gap)>, Fault> {
    db.all(query(sql!("gaps")).bind(job)).await?.iter().map(row_reader::gap).collect()
}

pub(super) async fn totals<C: SqlConnection>(db: &mut C, scope: &Scope) -> Result<Totals, Fault> {
    row_reader::totals(&db.one(query(sql!("totals")).bind(scope.name())).await?)
}

pub(super) async fn jobs_unheard<C: SqlConnection>(db: &mut C, cutoff_ns: u64) -> Result<Vec<i64>, Fault> {
    numbers(db, query(sql!("jobs_unheard")).bind(bound(cutoff_ns))).await
}

pub(super) async fn spending<C: SqlConnection>(db: &mut C) -> Result<Vec<Spending>, Fault> {
    db.all(query(sql!("spending"))).await?.iter().map(row_reader::spending).collect()
}

/// The latest time at which any session was heard from, not after `before_ns`.
pub(super) async fn heard_latest<C: SqlConnection>(db: &mut C, before_ns: u64) -> Result<Option<u64>, Fault> {
    db.one(query(sql!("heard_latest")).bind(bound(before_ns))).await?.word_or_null(0)
}

/// The indexes of a job's answers about holders.
pub(super) async fn holders_kept<C: SqlConnection>(db: &mut C, job: i64) -> Result<Vec<HoldersIndex>, Fault> {
    db.all(query(sql!("holders_kept")).bind(job)).await?.iter().map(row_reader::holders_index).collect()
}

/// An answer about holders, unless it is damaged.
pub(super) async fn holders<C: SqlConnection>(
    db: &mut C,
    damage: &Damage,
    job: i64,
    session: SessionKey,
    asked_ns: u64,
) -> Result<Option<HoldersRow>, Fault> {
    let row = db.optional(query(sql!("holders")).bind(job).bind(session).bind(asked_ns)).await?;
    Ok(row.as_ref().map(row_reader::holders).transpose()?.and_then(|row| damage.sound(row)))
}

/// The stored watch of a session (the judge's state), unless it is damaged.
pub(super) async fn watch<C: SqlConnection>(db: &mut C, session: SessionKey) -> Result<Option<WatchRow>, Fault> {
    let row = db.optional(query(sql!("watch")).bind(session)).await?;
    Ok(row.as_ref().map(row_reader::watch).transpose()?.flatten())
}
