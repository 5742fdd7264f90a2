//! The store: a catalog of sessions and, per session, numbered items (chunks as blobs, everything else as packed messages).
//!
//! Guarantees, on every implementation (one conformance suite runs on all three):
//! - [`Store::append`] is one transaction: after `Ok` everything in it survives a crash of process and
//!   machine (memory excepted); after `Err` nothing of it is there.
//! - `(session, seq)` is the key: an item that is there already is not stored twice.
//! - All `u64` values survive, also those above `i64::MAX`.
//!
//! Refuses: to interpret payloads. What the store needs to know of an item travels beside it.
//!
//! - [`rows`]: what goes in and comes out; `plan`: what an append amounts to, decided once for all three.
//! - [`address`]: where a store is, and [`open`]; [`memory`], [`sqlite`], [`postgres`]: the three.

pub mod access_rows;
pub mod address;
pub mod alert_records;
mod cells;
pub mod checking;
pub mod copying;
mod damage;
mod expiry;
pub mod holders;
pub mod memory;
mod migrations;
pub mod opening;
mod plan;
pub mod postgres;
pub mod rows;
pub mod runs;
pub mod scoped;
mod secrets;
mod selection;
pub mod sqlite;
pub mod tenant;
mod wire_form;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use memctl_model::{SessionId, SessionInfo};
use memctl_proto::v1::ItemKind;

pub use access_rows::{AuditRow, TokenRow};
pub use address::{AddressError, StoreAddress, open, open_read_only};
pub use alert_records::{AlertKind, AlertPut, AlertRecord, AlertSelection, PutOutcome};
pub use holders::{HOLDERS_KEPT, HoldersIndex, HoldersRow, JOB_HOLDERS_BYTES, JOB_HOLDERS_KEPT, Says};
pub use memory::MemoryStore;
pub use opening::{Held, Opening, SecretHash};
pub use postgres::PostgresStore;
pub use rows::{
    Append, ChunkLevels, ChunkRow, DeviceRow, DeviceUpdate, EpochEndRow, Expired, Gap, ItemIndex, ItemPage, ItemRow,
    JobRow, Latest, NewItem, OpenedSession, PAGE_BYTES, Retention, Selection, SessionKey, SessionRow, StoreInfo,
    Totals, WatchRow,
};
pub use runs::Which;
pub use scoped::Scoped;
pub use sqlite::SqliteStore;
pub use tenant::{DEFAULT_TENANT, Scope, Tenant};

/// Why the store could not do it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database was written by a newer memctl.
    #[error(
        "{place} has schema version {found}, this memctl knows up to {known}: use the newer memctl, or another data folder"
    )]
    Newer {
        /// Which database.
        place: String,
        /// Its version.
        found: i64,
        /// The newest this program knows.
        known: i64,
    },
    /// Somebody else has it open.
    #[error("{place} is in use by {holder}: talk to that daemon (--daemon URL), stop it, or use another data folder")]
    InUse {
        /// Which database.
        place: String,
        /// Who holds it, as far as the lock file says.
        holder: String,
    },
    /// It cannot be written to.
    #[error("{place} cannot be written: {reason}; make it writable or use another data folder")]
    ReadOnly {
        /// Which database.
        place: String,
        /// The system's words.
        reason: String,
    },
    /// No room left. Nothing of the transaction was stored.
    #[error("{place} is full: {reason}; free space, or lower the retention (--retain-bytes)")]
    Full {
        /// Which database.
        place: String,
        /// The system's words.
        reason: String,
    },
    /// It cannot be opened or reached.
    #[error("{place} cannot be opened: {reason}")]
    Unreachable {
        /// Which database.
        place: String,
        /// The database's words.
        reason: String,
    },
    /// The database refused or failed.
    #[error("{place}: {operation} failed: {reason}")]
    Failed {
        /// Which database.
        place: String,
        /// What was tried.
        operation: &'static str,
        /// The database's words.
        reason: String,
    },
    /// The session is not there (any more): its job was deleted or expired. Nothing of the transaction was stored.
    #[error("{place} has no session {session}: its job was deleted")]
    NoSession {
        /// Which database.
        place: String,
        /// The session that was named.
        session: SessionKey,
    },
    /// What was given cannot be stored; [`Append::check`] tells beforehand. Nothing of the transaction was stored.
    #[error("session {session} cannot be stored as sent: {what}")]
    Refused {
        /// The session it concerns; 0 for one that was about to be opened.
        session: SessionKey,
        /// What is wrong with it.
        what: String,
    },
    /// The session is another agent's, or what the hello says of it is not what it said first.
    #[error(
        "this session belongs to another agent: a session is continued only with the secret, job, attempt and rank of its first stream"
    )]
    Foreign,
    /// The store was closed.
    #[error("{place} was closed: nothing is read or written any more")]
    Closed {
        /// Which database.
        place: String,
    },
    /// The database contains something that is not valid there.
    #[error("{place} contains {what}: the database is damaged")]
    Damaged {
        /// Which database.
        place: String,
        /// What was found.
        what: String,
    },
    /// A file that is to be restored is no whole backup. Nothing was written.
    #[error("{place} is no sound backup: {why}")]
    Unsound {
        /// Which file.
        place: String,
        /// What is wrong with it.
        why: String,
    },
}

impl StoreError {
    /// The one session whose part of an append is to blame, if it is a single one's: without it the rest can be tried again.
    #[must_use]
    pub fn session(&self) -> Option<SessionKey> {
        match self {
            Self::NoSession { session, .. } | Self::Refused { session, .. } => Some(*session),
            _ => None,
        }
    }
}

/// Where everything lies. Batch-first and narrow: what can be computed from rows is computed outside.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// What this store is.
    async fn info(&self) -> Result<StoreInfo, StoreError>;

    /// Finds or makes the job `(tenant, name, run, attempt)` and the session. An existing session keeps what it has; its `durable_seq` tells where to go on.
    ///
    /// # Errors
    /// [`StoreError::Foreign`] when the session is there and [`Opening::may_continue`] says no; nothing is changed then.
    async fn open(&self, opening: &Opening<'_>) -> Result<OpenedSession, StoreError>;

    /// Opens a session of the default tenant that has no secret.
    async fn open_session(&self, info: &SessionInfo, now_ns: u64) -> Result<OpenedSession, StoreError> {
        self.open(&Opening { tenant: &Tenant::default(), info, owner: "", secret: None, now_ns }).await
    }

    /// A session by what it calls itself, as far as the next hello is measured by it.
    async fn held(&self, tenant: &Tenant, id: SessionId) -> Result<Option<Held>, StoreError>;

    /// Stores items of any number of sessions in one transaction.
    ///
    /// What is at or below a session's durable seq, or there already, is left out and counted nowhere, so that an
    /// append whose outcome was not learned may simply be sent again. When all items of an [`Append`] are left out,
    /// its figures (devices, epoch ends, duplicates) are, too; when some are, `events` and `ooms` of its devices
    /// are taken from the chunks that were new.
    ///
    /// A caller that drops the future does not know the outcome: all of it was stored or nothing.
    ///
    /// # Errors
    /// [`StoreError::Refused`] and [`StoreError::NoSession`] name the one session that is to blame ([`StoreError::session`]).
    async fn append(&self, appends: Vec<Append>) -> Result<(), StoreError>;

    /// Jobs of a scope, the most recently started or imported first; runs and attempts are rows of their own.
    async fn jobs_in(&self, scope: &Scope, limit: u32) -> Result<Vec<JobRow>, StoreError>;

    /// All jobs that this store shows.
    async fn jobs(&self, limit: u32) -> Result<Vec<JobRow>, StoreError> {
        self.jobs_in(&Scope::All, limit).await
    }

    /// One job of a scope: the run that is meant, of it the given attempt, or the highest.
    async fn job_in(&self, scope: &Scope, which: &Which, attempt: Option<u32>) -> Result<Option<JobRow>, StoreError>;

    /// One of all jobs that this store shows.
    async fn job(&self, which: &Which, attempt: Option<u32>) -> Result<Option<JobRow>, StoreError> {
        self.job_in(&Scope::All, which, attempt).await
    }

    /// The tenants that have a job of this name, the first 16.
    async fn tenants_of(&self, job: &str) -> Result<Vec<String>, StoreError>;

    /// The sessions of a job, by rank, then by start.
    async fn sessions(&self, job: i64) -> Result<Vec<SessionRow>, StoreError>;

    /// The devices of a job's sessions with their latest figures, by session and device.
    async fn devices(&self, job: i64) -> Result<Vec<DeviceRow>, StoreError>;

    /// Epoch ends of a job, by session, device and time.
    async fn epoch_ends(&self, job: i64) -> Result<Vec<EpochEndRow>, StoreError>;

    /// Chunks of one device of a session without their payloads, in order, as far as they overlap the selection.
    async fn chunks(&self, session: SessionKey, device: u8, selection: Selection) -> Result<Vec<ChunkRow>, StoreError>;

    /// The payloads of items of one session (chunks or others), in the order of `seqs`; what is not there (any more) is left out.
    async fn payloads(&self, session: SessionKey, seqs: &[u64]) -> Result<Vec<(u64, Bytes)>, StoreError>;

    /// Items (never chunks) of one session by their numbers, in the order of `seqs`; what is not there (any more) is left out.
    async fn items_at(&self, session: SessionKey, seqs: &[u64]) -> Result<Vec<ItemRow>, StoreError>;

    /// Items of one kind (never chunks) of a session whose numbers are above `after`, in order: `limit` of them at most, and as
    /// many as come to [`PAGE_BYTES`], the last of which may be larger.
    async fn items_after(
        &self,
        session: SessionKey,
        kind: ItemKind,
        after: u64,
        limit: u32,
    ) -> Result<ItemPage, StoreError>;

    /// Items of one kind (never chunks) of a session with payloads, in order, as far as they overlap the selection; `device` narrows to items of one device.
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

    /// Holes in the sequences of a job's sessions.
    async fn gaps(&self, job: i64) -> Result<Vec<(SessionKey, Gap)>, StoreError>;

    /// Removes what the policy no longer keeps: whole jobs by age, by bytes what `expiry` says; what goes is counted in the
    /// sessions' rows. Age counts from what was stored last, and never from later than `now_ns`.
    ///
    /// Items go in several transactions, so that appends get their turn in between; the sums are right after each of
    /// them. A file becomes smaller afterwards.
    async fn expire(&self, policy: Retention, now_ns: u64) -> Result<Expired, StoreError>;

    /// Removes a job and everything stored for it; the freed payload bytes.
    async fn delete_job(&self, job: i64) -> Result<Expired, StoreError>;

    /// Sums over a scope. Events of jobs that expired whole stay in `events` and `expired_events` of all; a deleted job's are gone.
    async fn totals_in(&self, scope: &Scope) -> Result<Totals, StoreError>;

    /// Sums over everything that this store shows.
    async fn totals(&self) -> Result<Totals, StoreError> {
        self.totals_in(&Scope::All).await
    }

    /// What was kept of a session's watch; nothing where its bytes are not what was stored.
    async fn watch(&self, session: SessionKey) -> Result<Option<WatchRow>, StoreError>;

    /// Keeps what is known of a session in the place of what was kept before; of a session that is gone nothing is kept.
    async fn put_watch(&self, session: SessionKey, watch: &WatchRow) -> Result<(), StoreError>;

    /// What is known of the answers about holders of a job without reading them, in the order in which they came.
    async fn holders_kept(&self, job: i64) -> Result<Vec<HoldersIndex>, StoreError>;

    /// One answer about holders of a job; nothing where it is gone, or its bytes are not what was stored.
    async fn holders(&self, job: i64, session: SessionKey, asked_ns: u64) -> Result<Option<HoldersRow>, StoreError>;

    /// Keeps an answer about holders as the latest of its job, in the place of the oldest where there are too many: see
    /// [`holders`]. Of a session that is gone nothing is kept.
    async fn put_holders(&self, row: &HoldersRow) -> Result<(), StoreError>;

    /// What every job keeps, by its key: bytes of everything, payloads and rows.
    async fn kept_bytes(&self) -> Result<Vec<(i64, u64)>, StoreError>;

    /// When any session was heard last, ns since the Unix epoch.
    async fn heard_latest(&self) -> Result<Option<u64>, StoreError>;

    /// Bytes that the store takes on its disk, whatever for.
    async fn size_bytes(&self) -> Result<u64, StoreError>;

    /// Alerts and silences, in the order of what the selection selects by; see [`AlertSelection`].
    async fn alert_records(&self, selection: AlertSelection<'_>) -> Result<Vec<AlertRecord>, StoreError>;

    /// Changes alerts and silences in one transaction, each only if its version is the expected one; what became of each, in order.
    ///
    /// Of two that change one record at once, in one daemon or in two, exactly one hears [`PutOutcome::Done`].
    ///
    /// # Errors
    /// [`StoreError::Refused`] (of session 0) when a record is larger than it may be.
    async fn put_alert_records(&self, puts: &[AlertPut]) -> Result<Vec<PutOutcome>, StoreError>;

    /// All tokens, by name, then by when they were made; those that no longer count included.
    async fn tokens(&self) -> Result<Vec<TokenRow>, StoreError>;

    /// One token.
    async fn token(&self, id: u64) -> Result<Option<TokenRow>, StoreError>;

    /// Adds a token, in the place of the oldest that no longer counts where there are too many; `false` when it did not fit or its id is taken.
    async fn add_token(&self, token: &TokenRow) -> Result<bool, StoreError>;

    /// Revokes a token; `false` when there is none, or it was revoked before.
    async fn revoke_token(&self, id: u64, now_ns: u64) -> Result<bool, StoreError>;

    /// Adds an entry to the audit log; the oldest of its sort goes where there are too many.
    async fn add_audit(&self, entry: &AuditRow) -> Result<(), StoreError>;

    /// The last entries of the audit log of a scope, the newest first.
    async fn audit_in(&self, scope: &Scope, limit: u32) -> Result<Vec<AuditRow>, StoreError>;

    /// Items whose bytes were not what was stored when they were read: by session and number. They are left out of all
    /// that is read; those that nobody has read are not among them.
    fn damaged(&self) -> Vec<(SessionKey, u64)> {
        Vec::new()
    }

    /// Asks whether the store can be used, without waiting behind others.
    async fn probe(&self) -> Result<(), StoreError> {
        // No job has this key: the cheapest question that goes the whole way.
        self.gaps(-1).await.map(|_| ())
    }

    /// A store that has not answered a [`Store::probe`] within this time is away. A local file may be slow for other reasons
    /// (a disk that is full of work); nobody else is asked there.
    fn patience(&self) -> Duration {
        Duration::from_secs(10)
    }

    /// Finishes what is under way and closes; afterwards everything answers [`StoreError::Closed`]. Closing twice is fine.
    async fn close(&self) -> Result<(), StoreError>;
}
