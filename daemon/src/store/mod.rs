//! The store: a catalog of sessions and, per session, numbered items. Chunks are stored as blobs, other items as packed
//! messages.
//!
//! Guarantees of every implementation (one conformance suite runs on SQLite in a file and in memory, and on Postgres):
//! - [`Store::append`] is one transaction. After `Ok` everything in it survives a crash of the process or the machine
//!   (except in memory). After `Err` nothing of it is stored.
//! - `(session, seq)` is the key: an item is never stored twice.
//! - All `u64` values survive, also those above `i64::MAX`.
//!
//! The store does not interpret payloads. Callers pass what it needs to know of an item separately.
//!
//! - [`rows`]: the records; `plan`: what an append changes, one rule for all.
//! - [`address`]: the address of a store, and [`open`]; [`sqlite`], [`postgres`]: the two databases; `sql`: what they share.
//! - [`recordings`]: recordings in this process's memory, without a database.
//!
//! (Over 400 lines: one trait with the guarantee of each method, and its errors.)

pub mod access_rows;
#[cfg(not(target_family = "wasm"))]
pub mod address;
pub mod alert_records;
#[cfg(not(target_family = "wasm"))]
pub mod checking;
#[cfg(not(target_family = "wasm"))]
pub mod copying;
#[cfg(not(target_family = "wasm"))]
mod damage;
mod expiry;
pub mod holders;
mod losses;
#[cfg(not(target_family = "wasm"))]
mod migrations;
pub mod opening;
mod plan;
#[cfg(not(target_family = "wasm"))]
pub mod postgres;
pub mod recordings;
#[cfg(not(target_family = "wasm"))]
mod row_reader;
pub mod rows;
pub mod runs;
pub mod scoped;
#[cfg(not(target_family = "wasm"))]
mod secrets;
#[cfg(not(target_family = "wasm"))]
mod selection;
#[cfg(not(target_family = "wasm"))]
mod sql;
#[cfg(not(target_family = "wasm"))]
pub mod sqlite;
pub mod tenant;
mod wire_form;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use memctl_model::{SessionId, SessionInfo};
use memctl_proto::v1::ItemKind;

pub use access_rows::{AuditRow, TokenRow};
#[cfg(not(target_family = "wasm"))]
pub use address::{AddressError, StoreAddress, open, open_read_only};
pub use alert_records::{AlertKind, AlertPut, AlertRecord, AlertSelection, PutOutcome};
pub use holders::{HOLDERS_KEPT, HoldersIndex, HoldersRow, JOB_HOLDERS_BYTES, JOB_HOLDERS_KEPT, Says};
pub use losses::ExpiredJob;
pub use opening::{ExistingSession, Opening, SecretHash};
#[cfg(not(target_family = "wasm"))]
pub use postgres::PostgresStore;
pub use recordings::RecordingStore;
pub use rows::{
    Append, ChunkLevels, ChunkRow, DeviceRow, DeviceUpdate, EpochEndRow, Expired, Gap, ItemIndex, ItemPage, ItemRow,
    JobRow, Latest, NewItem, OpenedSession, PAGE_BYTES, Retention, Selection, SessionKey, SessionRow, StoreInfo,
    Totals, WatchRow,
};
pub use runs::Which;
pub use scoped::Scoped;
#[cfg(not(target_family = "wasm"))]
pub use sqlite::SqliteStore;
pub use tenant::{DEFAULT_TENANT, Scope, Tenant};

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database was written by a newer memctl.
    #[error(
        "{place} has schema version {found}, this memctl knows up to {known}: use the newer memctl, or another data folder"
    )]
    Newer {
        /// The database.
        place: String,
        /// Its version.
        found: i64,
        /// The newest this program knows.
        known: i64,
    },
    /// Another process has it open.
    #[error("{place} is in use by {holder}: talk to that daemon (--daemon URL), stop it, or use another data folder")]
    InUse {
        /// The database.
        place: String,
        /// The holder named in the lock file.
        holder: String,
    },
    /// It cannot be written to.
    #[error("{place} cannot be written: {reason}; {way_out}")]
    ReadOnly {
        /// The database.
        place: String,
        /// The system's message.
        reason: String,
        /// What a user can do about it.
        way_out: &'static str,
    },
    /// The disk is full. Nothing of the transaction was stored.
    #[error(
        "{place} is full: {reason}; free space on its disk by other means: deleting from the store needs some as well"
    )]
    Full {
        /// The database.
        place: String,
        /// The system's message.
        reason: String,
    },
    /// It cannot be opened or reached.
    #[error("{place} cannot be opened: {reason}")]
    Unreachable {
        /// The database.
        place: String,
        /// The database's message.
        reason: String,
    },
    /// The database refused or failed.
    #[error("{place}: {operation} failed: {reason}")]
    Failed {
        /// The database.
        place: String,
        /// The operation.
        operation: &'static str,
        /// The database's message.
        reason: String,
    },
    /// The session does not exist: its job was deleted or expired. Nothing of the transaction was stored.
    #[error("{place} has no session {session}: its job was deleted")]
    NoSession {
        /// The database.
        place: String,
        /// The session that was named.
        session: SessionKey,
    },
    /// The input cannot be stored; [`Append::check`] reports this beforehand. Nothing of the transaction was stored.
    #[error("session {session} cannot be stored as sent: {what}")]
    Refused {
        /// The session; 0 for one that was about to be opened.
        session: SessionKey,
        /// The fault.
        what: String,
    },
    /// The session belongs to another agent, or the hello differs from the session's first one.
    #[error(
        "this session belongs to another agent: a session is continued only with the secret, job, attempt and rank of its first stream"
    )]
    Foreign,
    /// The store is closed.
    #[error("{place} was closed: nothing is read or written any more")]
    Closed {
        /// The database.
        place: String,
    },
    /// The database contains an invalid value.
    #[error("{place} contains {what}: the database is damaged")]
    Damaged {
        /// The database.
        place: String,
        /// The invalid value.
        what: String,
    },
    /// The file to restore is not a complete backup. Nothing was written.
    #[error("{place} is no sound backup: {why}")]
    Unsound {
        /// The file.
        place: String,
        /// The fault.
        why: String,
    },
}

impl StoreError {
    /// The one session that caused the failure, if only one did. A caller can retry the rest without that session.
    #[must_use]
    pub fn session(&self) -> Option<SessionKey> {
        match self {
            Self::NoSession { session, .. } | Self::Refused { session, .. } => Some(*session),
            _ => None,
        }
    }

    /// Whether the store was opened read-only. This is a final response to a request: trying again does not help.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::ReadOnly { .. })
    }
}

/// A store. Its methods are few and work on batches. What can be computed from rows is computed by callers.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The kind, version and place of this store.
    async fn info(&self) -> Result<StoreInfo, StoreError>;

    /// Finds or creates the job `(tenant, name, run, attempt)` and the session. An existing session keeps its data, and
    /// the returned `durable_seq` is where the agent continues.
    ///
    /// # Errors
    /// [`StoreError::Foreign`] if the session exists and [`Opening::may_continue`] is false; nothing is changed then.
    async fn open(&self, opening: &Opening<'_>) -> Result<OpenedSession, StoreError>;

    /// Opens a session of the default tenant that has no secret.
    async fn open_session(&self, info: &SessionInfo, now_ns: u64) -> Result<OpenedSession, StoreError> {
        self.open(&Opening { tenant: &Tenant::default(), info, owner: "", secret: None, now_ns }).await
    }

    /// A session by its id, with the values that the next hello is compared with.
    async fn held(&self, tenant: &Tenant, id: SessionId) -> Result<Option<ExistingSession>, StoreError>;

    /// Stores items of any number of sessions in one transaction.
    ///
    /// Items at or below a session's durable seq, or already stored, are ignored and not counted. So a caller can
    /// repeat an append whose outcome is unknown. If all items of an [`Append`] are ignored, its figures (devices,
    /// epoch ends, duplicates) are ignored too. If only some are, `events` and `ooms` of its devices are counted from
    /// the new chunks.
    ///
    /// If a caller drops the future, either everything or nothing was stored, and the caller does not know which.
    ///
    /// # Errors
    /// [`StoreError::Refused`] and [`StoreError::NoSession`] name the one session that caused them
    /// ([`StoreError::session`]).
    async fn append(&self, appends: Vec<Append>) -> Result<(), StoreError>;

    /// Jobs of a scope, the most recently started or imported first; runs and attempts are rows of their own.
    async fn jobs_in(&self, scope: &Scope, limit: u32) -> Result<Vec<JobRow>, StoreError>;

    /// The jobs of all tenants that were heard from at or after this time (ns since the Unix epoch), the latest first.
    async fn jobs_heard(&self, since_ns: u64, limit: u32) -> Result<Vec<JobRow>, StoreError>;

    /// All jobs of this store.
    async fn jobs(&self, limit: u32) -> Result<Vec<JobRow>, StoreError> {
        self.jobs_in(&Scope::All, limit).await
    }

    /// One job of a scope: the attempt of the given run, or its highest attempt if none is given.
    async fn job_in(&self, scope: &Scope, which: &Which, attempt: Option<u32>) -> Result<Option<JobRow>, StoreError>;

    /// The same over all jobs of this store.
    async fn job(&self, which: &Which, attempt: Option<u32>) -> Result<Option<JobRow>, StoreError> {
        self.job_in(&Scope::All, which, attempt).await
    }

    /// The first 16 tenants that have a job of this name.
    async fn tenants_of(&self, job: &str) -> Result<Vec<String>, StoreError>;

    /// The sessions of a job, by rank, then by start.
    async fn sessions(&self, job: i64) -> Result<Vec<SessionRow>, StoreError>;

    /// The devices of a job's sessions with their latest figures, by session and device.
    async fn devices(&self, job: i64) -> Result<Vec<DeviceRow>, StoreError>;

    /// Epoch ends of a job, by session, device and time.
    async fn epoch_ends(&self, job: i64) -> Result<Vec<EpochEndRow>, StoreError>;

    /// Chunks of one device of a session without their payloads, in order; only those that overlap the selection.
    async fn chunks(&self, session: SessionKey, device: u8, selection: Selection) -> Result<Vec<ChunkRow>, StoreError>;

    /// The payloads of items of one session (chunks or others), in the order of `seqs`; missing ones are left out.
    async fn payloads(&self, session: SessionKey, seqs: &[u64]) -> Result<Vec<(u64, Bytes)>, StoreError>;

    /// Items (never chunks) of one session by their numbers, in the order of `seqs`; missing ones are left out.
    async fn items_at(&self, session: SessionKey, seqs: &[u64]) -> Result<Vec<ItemRow>, StoreError>;

    /// Items of one kind (never chunks) of a session with numbers above `after`, in order. A page has at most `limit`
    /// items and at most [`PAGE_BYTES`], which only its last item may exceed.
    async fn items_after(
        &self,
        session: SessionKey,
        kind: ItemKind,
        after: u64,
        limit: u32,
    ) -> Result<ItemPage, StoreError>;

    /// Items of one kind (never chunks) of a session that overlap the selection, with payloads, in order. `device`
    /// restricts them to one device.
    async fn items(
        &self,
        session: SessionKey,
        kind: ItemKind,
        device: Option<u8>,
        selection: Selection,
    ) -> Result<Vec<ItemRow>, StoreError>;

    /// The last keyframe of a device at or before an event.
    async fn keyframe_before(&self, session: SessionKey, device: u8, event: u64)
    -> Result<Option<ItemRow>, StoreError>;

    /// Gaps in the sequences of a job's sessions.
    async fn gaps(&self, job: i64) -> Result<Vec<(SessionKey, Gap)>, StoreError>;

    /// Removes what the policy no longer keeps: whole jobs by age, and what `expiry` selects by bytes. Removals are
    /// counted in the sessions' rows. Age counts from the latest stored data that is not later than `now_ns`.
    ///
    /// Items are removed in several transactions, so that appends can run between them. The sums are correct after each
    /// transaction. A file shrinks afterwards.
    ///
    /// Returns the jobs that lost data, also if the removal failed before its end, and the outcome.
    async fn expire_jobs(&self, policy: Retention, now_ns: u64) -> (Vec<ExpiredJob>, Result<(), StoreError>);

    /// The same; returns the sum over the jobs.
    async fn expire(&self, policy: Retention, now_ns: u64) -> Result<Expired, StoreError> {
        let (jobs, outcome) = self.expire_jobs(policy, now_ns).await;
        outcome?;
        let mut gone = Expired::default();
        jobs.into_iter().for_each(|job| gone += job.gone);
        Ok(gone)
    }

    /// Removes a job and everything stored for it; returns what was freed.
    async fn delete_job(&self, job: i64) -> Result<Expired, StoreError>;

    /// Sums over a scope. For [`Scope::All`], `events` and `expired_events` include jobs that were removed by age. Of
    /// deleted jobs they include only events that had expired before.
    async fn totals_in(&self, scope: &Scope) -> Result<Totals, StoreError>;

    /// Sums over everything in this store.
    async fn totals(&self) -> Result<Totals, StoreError> {
        self.totals_in(&Scope::All).await
    }

    /// The analyser's stored state of a session; `None` if there is none or it is damaged.
    async fn watch(&self, session: SessionKey) -> Result<Option<WatchRow>, StoreError>;

    /// Replaces the analyser's stored state of a session; does nothing if the session is gone.
    async fn put_watch(&self, session: SessionKey, watch: &WatchRow) -> Result<(), StoreError>;

    /// The indexes of a job's answers about holders, in the order of arrival.
    async fn holders_kept(&self, job: i64) -> Result<Vec<HoldersIndex>, StoreError>;

    /// One answer about holders of a job; `None` if it is gone or damaged.
    async fn holders(&self, job: i64, session: SessionKey, asked_ns: u64) -> Result<Option<HoldersRow>, StoreError>;

    /// Stores an answer about holders as the latest of its job and removes the oldest beyond the limits of [`holders`].
    /// Does nothing if the session is gone.
    async fn put_holders(&self, row: &HoldersRow) -> Result<(), StoreError>;

    /// Bytes used by every job (payloads and rows), by the job's key.
    async fn kept_bytes(&self) -> Result<Vec<(i64, u64)>, StoreError>;

    /// When any session was last heard from, ns since the Unix epoch.
    async fn heard_latest(&self) -> Result<Option<u64>, StoreError>;

    /// Total disk usage of the store, in bytes.
    async fn size_bytes(&self) -> Result<u64, StoreError>;

    /// Alerts and silences, in the order of the selection; see [`AlertSelection`].
    async fn alert_records(&self, selection: AlertSelection<'_>) -> Result<Vec<AlertRecord>, StoreError>;

    /// Changes alerts and silences in one transaction, each only if its version is the expected one; returns the
    /// results in order.
    ///
    /// If two callers, in one daemon or in two, change one record at once, exactly one gets [`PutOutcome::Done`].
    ///
    /// # Errors
    /// [`StoreError::Refused`] (with session 0) when a record is larger than allowed.
    async fn put_alert_records(&self, puts: &[AlertPut]) -> Result<Vec<PutOutcome>, StoreError>;

    /// All tokens, by name, then by time of creation; including those no longer valid.
    async fn tokens(&self) -> Result<Vec<TokenRow>, StoreError>;

    /// One token.
    async fn token(&self, id: u64) -> Result<Option<TokenRow>, StoreError>;

    /// Adds a token, replacing the oldest invalid one if there are too many; `false` if it did not fit or its id is
    /// taken.
    async fn add_token(&self, token: &TokenRow) -> Result<bool, StoreError>;

    /// Revokes a token; `false` if it does not exist or was revoked before.
    async fn revoke_token(&self, id: u64, now_ns: u64) -> Result<bool, StoreError>;

    /// Adds an entry to the audit log; the oldest of its kind is removed if there are too many.
    async fn add_audit(&self, entry: &AuditRow) -> Result<(), StoreError>;

    /// The latest entries of a scope's audit log, newest first.
    async fn audit_in(&self, scope: &Scope, limit: u32) -> Result<Vec<AuditRow>, StoreError>;

    /// Items that were found damaged when read, by session and number. They are left out of every read. Items that were
    /// never read are not checked.
    fn damaged(&self) -> Vec<(SessionKey, u64)> {
        Vec::new()
    }

    /// Remembers that the content of an item is damaged, which only its reader could see.
    fn note_damaged(&self, _session: SessionKey, _seq: u64) {}

    /// Whether a damaged item of this session was found.
    fn has_damage(&self, session: SessionKey) -> bool {
        self.damaged().iter().any(|(of, _)| *of == session)
    }

    /// Checks that the store can be used, without waiting behind other requests.
    async fn probe(&self) -> Result<(), StoreError> {
        // No job has this key, so this is the cheapest query that uses every layer.
        self.gaps(-1).await.map(|_| ())
    }

    /// A store that does not respond to [`Store::probe`] within this time counts as unavailable. The default suits a
    /// local file, which may be slow only because its disk is busy.
    fn patience(&self) -> Duration {
        Duration::from_secs(10)
    }

    /// Finishes the operations in progress and closes the store. Afterwards every call fails with
    /// [`StoreError::Closed`]. Closing twice is allowed.
    async fn close(&self) -> Result<(), StoreError>;
}
