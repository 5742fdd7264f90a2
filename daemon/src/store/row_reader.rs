//! Reads rows of either database cell by cell, in the order of the statements' columns.
//!
//! Guarantees: bit-cast integers are read back as the original `u64`. A cell with an invalid value is a
//! [`Fault::Damaged`], never a panic. The column order is that of the statements in `sql/`.
//! (Over 400 lines: one reader per record, each in the order of its statement.)

use bytes::Bytes;
use memctl_model::{Dropped, SessionInfo};
use sqlx::Row;

use super::StoreError;
use super::access_rows::{AuditRow, TokenRow};
use super::alert_records::{AlertKind, AlertRecord};
use super::expiry::{Candidate, JobBytes, Spending};
use super::holders::{HoldersIndex, HoldersRow, Says};
use super::opening::ExistingSession;
use super::plan::{SessionState, checksum};
use super::rows::{
    ChunkLevels, ChunkRow, DeviceRow, EpochEndRow, Expired, Gap, ItemIndex, ItemPage, ItemRow, JobRow, OpenedSession,
    SessionKey, SessionRow, Totals, WatchRow,
};
use super::runs::{self, Grouped, Launched};
use super::wire_form;

/// A failure inside a backend, without the place and the operation.
#[derive(Debug)]
pub(super) enum Fault {
    /// The database reported an error.
    Sql(sqlx::Error),
    /// The database holds this invalid value.
    Damaged(String),
    /// An error that already has its place and operation.
    Store(StoreError),
    /// Another writer stored the same row first; the transaction is rolled back and repeated.
    Overtaken,
}

impl From<sqlx::Error> for Fault {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::ColumnDecode { index, source } => {
                Self::Damaged(format!("an invalid column {index} ({source})"))
            }
            error => Self::Sql(error),
        }
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// The types of cells.
pub(super) trait Cells {
    fn int(&self, column: usize) -> Result<i64, Fault>;
    fn int_or_null(&self, column: usize) -> Result<Option<i64>, Fault>;
    fn flag(&self, column: usize) -> Result<bool, Fault>;
    fn text(&self, column: usize) -> Result<String, Fault>;
    fn blob(&self, column: usize) -> Result<Vec<u8>, Fault>;
    fn blob_or_null(&self, column: usize) -> Result<Option<Vec<u8>>, Fault>;

    /// A bit-cast `u64`.
    fn word(&self, column: usize) -> Result<u64, Fault> {
        Ok(self.int(column)?.cast_unsigned())
    }

    /// A bit-cast `u64`, or NULL.
    fn word_or_null(&self, column: usize) -> Result<Option<u64>, Fault> {
        Ok(self.int_or_null(column)?.map(i64::cast_unsigned))
    }

    /// A number that must fit a smaller type.
    fn small<T: TryFrom<i64>>(&self, column: usize) -> Result<T, Fault> {
        narrowed(self.int(column)?)
    }

    /// A number that must fit a smaller type, or NULL.
    fn small_or_null<T: TryFrom<i64>>(&self, column: usize) -> Result<Option<T>, Fault> {
        self.int_or_null(column)?.map(narrowed).transpose()
    }
}

fn narrowed<T: TryFrom<i64>>(value: i64) -> Result<T, Fault> {
    T::try_from(value).map_err(|_| Fault::Damaged(format!("an invalid number ({value}, out of range)")))
}

macro_rules! cells {
    ($row:ty) => {
        impl Cells for $row {
            fn int(&self, column: usize) -> Result<i64, Fault> {
                Ok(self.try_get(column)?)
            }
            fn int_or_null(&self, column: usize) -> Result<Option<i64>, Fault> {
                Ok(self.try_get(column)?)
            }
            fn flag(&self, column: usize) -> Result<bool, Fault> {
                Ok(self.try_get(column)?)
            }
            fn text(&self, column: usize) -> Result<String, Fault> {
                Ok(self.try_get(column)?)
            }
            fn blob(&self, column: usize) -> Result<Vec<u8>, Fault> {
                Ok(self.try_get(column)?)
            }
            fn blob_or_null(&self, column: usize) -> Result<Option<Vec<u8>>, Fault> {
                Ok(self.try_get(column)?)
            }
        }
    };
}
cells!(sqlx::sqlite::SqliteRow);
cells!(sqlx::postgres::PgRow);

/// kind, id, version, job, due_ns, body, tenant.
pub(super) fn alert_record(row: &impl Cells) -> Result<AlertRecord, Fault> {
    let kind = row.int(0)?;
    let kind = AlertKind::of_number(kind)
        .ok_or_else(|| Fault::Damaged(format!("an alert record of an invalid kind ({kind})")))?;
    Ok(AlertRecord {
        kind,
        id: row.word(1)?,
        version: row.word(2)?,
        job: row.text(3)?,
        due_ns: row.word(4)?,
        body: row.blob(5)?.into(),
        tenant: row.text(6)?,
    })
}

/// `session_find.sql`: the opened session, and what the next hello is compared with.
pub(super) fn held(row: &impl Cells) -> Result<(OpenedSession, ExistingSession), Fault> {
    let opened = OpenedSession {
        key: row.int(0)?,
        job: row.int(1)?,
        durable_seq: row.word(2)?,
        ended: row.flag(3)?,
        run: row.small(7)?,
    };
    let info = wire_form::read_session_info(&row.blob(4)?).map_err(Fault::Damaged)?;
    let memctl_model::SessionInfo { job, attempt, rank, .. } = info;
    let held =
        ExistingSession { job, attempt, rank, owner: row.text(5)?, secret: row.blob_or_null(6)?, ended: opened.ended };
    Ok((opened, held))
}

/// `token.sql`: id, name, role, tenant, jobs, secret, created_ns, expires_ns, revoked_ns.
pub(super) fn token(row: &impl Cells) -> Result<TokenRow, Fault> {
    let secret = row.blob(5)?;
    let secret = secret.try_into().map_err(|_| Fault::Damaged("a token without a hash of 32 bytes".into()))?;
    Ok(TokenRow {
        id: row.word(0)?,
        name: row.text(1)?,
        role: row.text(2)?,
        tenant: row.text(3)?,
        jobs: row.text(4)?,
        secret,
        created_ns: row.word(6)?,
        expires_ns: row.word_or_null(7)?,
        revoked_ns: row.word_or_null(8)?,
    })
}

/// audit_id, time_ns, tenant, caller, peer, action, subject, refused, outcome.
pub(super) fn audit(row: &impl Cells) -> Result<AuditRow, Fault> {
    Ok(AuditRow {
        id: row.int(0)?,
        time_ns: row.word(1)?,
        tenant: row.text(2)?,
        caller: row.text(3)?,
        peer: row.text(4)?,
        action: row.text(5)?,
        subject: row.text(6)?,
        refused: row.flag(7)?,
        outcome: row.text(8)?,
    })
}

/// `session_state.sql`: session, then the state's columns.
pub(super) fn session_state(row: &impl Cells) -> Result<(SessionKey, SessionState), Fault> {
    let state = SessionState {
        job: row.int(1)?,
        durable_seq: row.word(2)?,
        heard_ns: row.word(3)?,
        end: row
            .blob_or_null(4)?
            .map(|bytes| wire_form::read_session_end(&bytes))
            .transpose()
            .map_err(Fault::Damaged)?,
        events: row.word(5)?,
        stored_bytes: row.word(6)?,
        dropped: Dropped { ring_full: row.word(7)?, spool_full: row.word(8)?, shutdown: row.word(9)? },
        expired_events: row.word(10)?,
        duplicates: row.word(11)?,
        missing_items: row.word(12)?,
        stored_items: row.word(13)?,
        expandable: row.int_or_null(14)?.map(|expandable| expandable != 0),
    };
    Ok((row.int(0)?, state))
}

/// `sessions.sql`: the state's columns, then the description.
pub(super) fn session(row: &impl Cells) -> Result<SessionRow, Fault> {
    let (key, state) = session_state(row)?;
    let info = wire_form::read_session_info(&row.blob(15)?).map_err(Fault::Damaged)?;
    Ok(state.into_row(key, info))
}

/// `jobs.sql`, `job_latest.sql`, `job_by_name.sql`.
pub(super) fn job(row: &impl Cells) -> Result<JobRow, Fault> {
    Ok(JobRow {
        key: row.int(0)?,
        name: row.text(1)?,
        attempt: row.small(2)?,
        started_ns: row.word(3)?,
        world_size: row.small_or_null(4)?,
        labels: wire_form::read_labels(&row.blob(5)?).map_err(Fault::Damaged)?,
        attempts: row.small(6)?,
        tenant: row.text(7)?,
        run: row.small(8)?,
        has_other_runs: row.flag(9)?,
        arrived_ns: row.word(10)?,
    })
}

/// `run_launched.sql`: the sessions of a launcher in a run.
pub(super) fn launched(run: u32, rows: &[impl Cells], info: &SessionInfo) -> Result<Launched, Fault> {
    let mut has_process = false;
    for row in rows {
        let known = wire_form::read_session_info(&row.blob(0)?).map_err(Fault::Damaged)?;
        has_process = has_process || runs::is_process(&known, info);
    }
    Ok(Launched { run, has_process })
}

/// `run_group.sql`.
pub(super) fn grouped(run: u32, row: &impl Cells) -> Result<Grouped, Fault> {
    Ok(Grouped {
        run,
        highest_attempt: row.small(0)?,
        started_ns: row.word_or_null(1)?,
        world_size: row.small_or_null(2)?,
        is_taken: row.flag(3)?,
        goes_on: row.flag(4)?,
    })
}

/// `devices.sql`.
pub(super) fn device(row: &impl Cells) -> Result<DeviceRow, Fault> {
    Ok(DeviceRow {
        session: row.int(0)?,
        info: wire_form::read_device_info(&row.blob(1)?).map_err(Fault::Damaged)?,
        events: row.word(2)?,
        ooms: row.word(3)?,
        epochs: row.word(4)?,
        steps: row.word(5)?,
        latest: row.blob_or_null(6)?.map(|bytes| wire_form::read_latest(&bytes)).transpose().map_err(Fault::Damaged)?,
        device_used_bytes: row.word_or_null(7)?,
        alloc_retries: row.word_or_null(8)?,
    })
}

/// `epoch_ends.sql`.
pub(super) fn epoch_end(row: &impl Cells) -> Result<EpochEndRow, Fault> {
    wire_form::read_epoch_end(row.int(0)?, row.word(1)?, &row.blob(2)?).map_err(Fault::Damaged)
}

/// The nine columns of an index, from `column` on.
fn index(row: &impl Cells, column: usize) -> Result<ItemIndex, Fault> {
    Ok(ItemIndex {
        device: row.small_or_null(column)?,
        first_ns: row.word(column + 1)?,
        last_ns: row.word(column + 2)?,
        first_event: row.word(column + 3)?,
        count: row.word(column + 4)?,
        first_epoch: row.small(column + 5)?,
        last_epoch: row.small(column + 6)?,
        first_step: row.word(column + 7)?,
        last_step: row.word(column + 8)?,
    })
}

/// `chunks.sql`.
pub(super) fn chunk(row: &impl Cells) -> Result<ChunkRow, Fault> {
    Ok(ChunkRow {
        seq: row.word(0)?,
        index: index(row, 1)?,
        levels: ChunkLevels {
            allocated_end: row.word(10)?,
            reserved_end: row.word(11)?,
            allocated_min: row.word(12)?,
            allocated_max: row.word(13)?,
            reserved_max: row.word(14)?,
            ooms: row.word(15)?,
            dropped_before: row.word(16)?,
            exact: row.flag(17)?,
        },
        payload_bytes: row.word(18)?,
    })
}

/// `items.sql`, `items_at.sql`, `items_after.sql`, `keyframe_before.sql`: the item, and whether it is undamaged.
pub(super) fn item(row: &impl Cells) -> Result<(ItemRow, bool), Fault> {
    let payload = Bytes::from(row.blob(12)?);
    let is_sound = row.int_or_null(13)?.is_none_or(|sum| sum == checksum(&payload));
    let item = ItemRow {
        seq: row.word(0)?,
        index: index(row, 1)?,
        kind: row.small(10)?,
        unpacked_bytes: row.small(11)?,
        payload,
    };
    Ok((item, is_sound))
}

/// `items_after.sql`: the undamaged items, and where the page ends.
pub(super) fn page(items: Vec<ItemRow>, limit: u32, rows: &[impl Cells]) -> Result<ItemPage, Fault> {
    let Some(last) = rows.last() else { return Ok(ItemPage::default()) };
    Ok(ItemPage::new(items, limit, rows.len(), last.word(14)?, last.word(0)?))
}

/// `payloads.sql`.
pub(super) fn payload(row: &impl Cells) -> Result<(u64, Bytes), Fault> {
    Ok((row.word(0)?, Bytes::from(row.blob(1)?)))
}

/// `gaps.sql`.
pub(super) fn gap(row: &impl Cells) -> Result<(SessionKey, Gap), Fault> {
    Ok((row.int(0)?, Gap { first: row.word(1)?, last: row.word(2)? }))
}

/// `chunks_oldest.sql`, `rest_oldest.sql`.
pub(super) fn candidate(row: &impl Cells) -> Result<Candidate, Fault> {
    Ok(Candidate {
        job: row.int(0)?,
        session: row.int(1)?,
        device: row.small(2)?,
        kind: row.small(3)?,
        seq: row.word(4)?,
        events: row.word(5)?,
        bytes: row.word(6)?,
    })
}

/// `spending.sql`.
pub(super) fn spending(row: &impl Cells) -> Result<Spending, Fault> {
    let kept = JobBytes {
        payload_bytes: row.word(4)?,
        items: row.word(5)?,
        sessions: row.word(6)?,
        description_bytes: row.word(7)?,
        watch_bytes: row.word(11)?,
        holders_bytes: row.word(12)?,
        epoch_ends: row.word(8)?,
        epoch_end_bytes: row.word(9)?,
        small_rows: row.word(10)?,
    };
    Ok(Spending {
        job: row.int(0)?,
        tenant: row.text(1)?,
        heard_ns: row.word(2)?,
        open_heard_ns: row.word(3)?,
        bytes: kept.bytes(),
        name: row.text(13)?,
        run: row.small(14)?,
        attempt: row.small(15)?,
        started_ns: row.word(16)?,
    })
}

/// `watch.sql`: the stored state, unless it is damaged.
pub(super) fn watch(row: &impl Cells) -> Result<Option<WatchRow>, Fault> {
    let (seq, form, state) = (row.word(0)?, row.text(1)?, row.blob(2)?);
    let sound = checksum(&state) == row.int(3)?;
    Ok(sound.then(|| WatchRow { seq, form, state: state.into() }))
}

/// `holders_kept.sql`: an answer's index. If a value is invalid, only that value is lost.
pub(super) fn holders_index(row: &impl Cells) -> Result<HoldersIndex, Fault> {
    Ok(HoldersIndex {
        session: row.int(0)?,
        asked_ns: row.word(1)?,
        finding: row.word_or_null(2)?,
        site: row.word(3)?,
        unasked: row.flag(4)?,
        says: Says::of_number(row.int(5)?),
        counted_epoch: row.int_or_null(6)?.and_then(|epoch| u32::try_from(epoch).ok()),
        bytes: row.word(7)?,
    })
}

/// `holders.sql`: the answer, and whether it is undamaged.
pub(super) fn holders(row: &impl Cells) -> Result<(HoldersRow, bool), Fault> {
    let (index, answer) = (holders_index(row)?, row.blob(8)?);
    let is_sound = checksum(&answer) == row.int(9)?;
    Ok((HoldersRow { index, answer: answer.into() }, is_sound))
}

/// A sum that a statement returns in two halves, of `x >> 32` and of `x & 0xffffffff`, because a large sum may not fit 63 bits.
fn halves(row: &impl Cells, column: usize) -> Result<u64, Fault> {
    let (high, low) = (i128::from(row.int(column)?), i128::from(row.int(column + 1)?));
    Ok(u64::try_from((high << 32) + low).unwrap_or(u64::MAX))
}

/// `totals.sql`.
pub(super) fn totals(row: &impl Cells) -> Result<Totals, Fault> {
    let expired_whole = row.word(12)?;
    Ok(Totals {
        jobs: row.word(0)?,
        sessions: row.word(1)?,
        events: halves(row, 2)?.saturating_add(expired_whole),
        stored_bytes: halves(row, 4)?,
        duplicates: halves(row, 6)?,
        missing_items: halves(row, 8)?,
        expired_events: halves(row, 10)?.saturating_add(expired_whole),
    })
}

/// `job_sums.sql`: what a job holds, and its event counts for a removal by age or by request.
pub(super) fn job_sums(row: &impl Cells) -> Result<(Expired, ExpiredWhole), Fault> {
    let (stored, expired) = (halves(row, 3)?, halves(row, 5)?);
    let gone = Expired {
        jobs: 1,
        sessions: row.word(0)?,
        chunks: row.word(7)?,
        events: stored.saturating_sub(expired),
        items: row.word(8)?,
        bytes: halves(row, 1)?,
    };
    Ok((gone, ExpiredWhole { stored_events: stored, expired_events: expired }))
}

/// The event counts of a job that is removed whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpiredWhole {
    stored_events: u64,
    expired_events: u64,
}

impl ExpiredWhole {
    /// Removal by age: all events of the job count as expired.
    pub(super) fn by_age(self) -> i64 {
        i64::try_from(self.stored_events).unwrap_or(i64::MAX)
    }

    /// Removal by request: only the events that had expired before count as expired.
    pub(super) fn by_hand(self) -> i64 {
        i64::try_from(self.expired_events).unwrap_or(i64::MAX)
    }
}
