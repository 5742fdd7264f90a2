//! Records of alerting: alerts and silences, as numbered bodies that change only if the caller knows their version.
//!
//! Guarantees: all stores use one table and one rule (compare and set) for both kinds. The rule also keeps two daemons
//! on one database from sending the same notification twice: only the daemon whose change succeeds sends it.
//! Refuses: records over their limits.

use bytes::Bytes;
use memctl_model::limits::LABEL_BYTES_MAX;

use super::StoreError;
use super::plan::SUM_MAX;

/// Limit of the bytes of one record's body. The texts in a record are cut long before this limit.
const BODY_BYTES_MAX: usize = 256 << 10;

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AlertKind {
    /// An alert.
    Alert,
    /// A silence.
    Silence,
}

impl AlertKind {
    /// The number in the databases; it never changes.
    pub(super) const fn number(self) -> i64 {
        match self {
            Self::Alert => 1,
            Self::Silence => 2,
        }
    }

    pub(super) const fn of_number(number: i64) -> Option<Self> {
        match number {
            1 => Some(Self::Alert),
            2 => Some(Self::Silence),
            _ => None,
        }
    }

    /// The most records of this kind that are stored; a further one gets [`PutOutcome::Full`].
    #[must_use]
    pub const fn most(self) -> u64 {
        match self {
            Self::Alert => 10_000,
            Self::Silence => 1_000,
        }
    }

    /// Whether a tenant that has `own` of `all` records may add one. It may only while it has fewer records than are
    /// free. So a single tenant can use half of the room and never takes the room of others.
    #[must_use]
    pub const fn has_room(self, all: u64, own: u64) -> bool {
        own < self.most().saturating_sub(all)
    }
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertRecord {
    /// Its kind.
    pub kind: AlertKind,
    /// Its number, unique within its kind.
    pub id: u64,
    /// How often it was changed; 1 for a new one. Assigned by the store.
    pub version: u64,
    /// The tenant that owns it; `*` for a silence of all tenants' alerts.
    pub tenant: String,
    /// Its job; empty for silences.
    pub job: String,
    /// When an alert is due, or when a silence ends; nanoseconds since the Unix epoch.
    pub due_ns: u64,
    /// The encoded alert or silence.
    pub body: Bytes,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertPut {
    /// The new record; its version is ignored.
    pub record: AlertRecord,
    /// The version that the stored record must have; 0 if it must not exist.
    pub expected_version: u64,
    /// Whether to remove it.
    pub remove: bool,
}

/// The result of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// It was made; the version is now one higher.
    Done,
    /// The record was changed since it was read.
    Conflict,
    /// There are too many of its kind.
    Full,
}

/// Selects records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlertSelection<'s> {
    /// All of a kind, by id.
    All(AlertKind),
    /// Alerts of a job (all its attempts), by id.
    OfJob {
        /// The tenant's name.
        tenant: &'s str,
        /// The job's name.
        job: &'s str,
    },
    /// These alerts; missing ones are left out.
    Ids(&'s [u64]),
    /// Alerts that are due, the longest overdue first.
    Due {
        /// The time by which they are due.
        before_ns: u64,
        /// How many at most.
        limit: u32,
    },
}

/// Checks that the records can be stored.
pub(super) fn check(puts: &[AlertPut]) -> Result<(), StoreError> {
    for AlertPut { record, .. } in puts {
        let what = if record.body.len() > BODY_BYTES_MAX {
            format!("an alert's record of {} bytes; {BODY_BYTES_MAX} at most", record.body.len())
        } else if record.job.len() > LABEL_BYTES_MAX || record.job.contains('\0') {
            format!("an alert of a job whose name has a zero byte or more than {LABEL_BYTES_MAX} bytes")
        } else {
            continue;
        };
        return Err(StoreError::Refused { session: 0, what });
    }
    Ok(())
}

/// A time that fits SQL's signed integers.
pub(super) fn ordered(time_ns: u64) -> i64 {
    time_ns.min(SUM_MAX).cast_signed()
}
