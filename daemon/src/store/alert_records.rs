//! Records of alerting: alerts and silences, as numbered bodies that only whoever knows their version may change.
//!
//! Guarantees: one table and one rule for both, the same on all stores. The rule (compare and set) is also what keeps two
//! daemons on one database from telling the same thing twice: whoever wins the change tells.
//! Refuses: to read bodies; records beyond their bounds.

use bytes::Bytes;
use memctl_model::limits::LABEL_BYTES_MAX;

use super::StoreError;
use super::plan::SUM_MAX;

/// Bytes of one record's body: its texts are cut long before.
const BODY_BYTES_MAX: usize = 256 << 10;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AlertKind {
    /// An alert.
    Alert,
    /// A silence.
    Silence,
}

impl AlertKind {
    /// The number in the databases; never changes.
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

    /// So many are kept at most; further ones are [`PutOutcome::Full`].
    #[must_use]
    pub const fn most(self) -> u64 {
        match self {
            Self::Alert => 10_000,
            Self::Silence => 1_000,
        }
    }

    /// Whether a tenant that has `own` of `all` records may have one more: as many as stay free for others. So no tenant
    /// takes the room of another one, however many tenants there are, and one that is alone has half of it.
    #[must_use]
    pub const fn has_room(self, all: u64, own: u64) -> bool {
        own < self.most().saturating_sub(all)
    }
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertRecord {
    /// What it is.
    pub kind: AlertKind,
    /// Its number, unique within its kind.
    pub id: u64,
    /// How often it was changed; 1 when it is new. Given by the store.
    pub version: u64,
    /// The tenant whose it is; `*` for a silence of all tenants' alerts.
    pub tenant: String,
    /// The job it is about; empty for silences.
    pub job: String,
    /// When something has to be done about it, nanoseconds since the Unix epoch; for a silence its end.
    pub due_ns: u64,
    /// The message.
    pub body: Bytes,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertPut {
    /// The record as it shall be; its version is not looked at.
    pub record: AlertRecord,
    /// The version that it must have; 0: it must not be there.
    pub expected_version: u64,
    /// It shall go.
    pub remove: bool,
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// It was made; the version is one higher now.
    Done,
    /// Somebody else changed the record since it was read.
    Conflict,
    /// There are too many of its kind.
    Full,
}

/// Which records.
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
    /// These alerts; what is not there is left out.
    Ids(&'s [u64]),
    /// Alerts that are due, the longest overdue first.
    Due {
        /// The time until which they are.
        before_ns: u64,
        /// So many at most.
        limit: u32,
    },
}

/// Refuses what cannot be stored.
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

/// A time as SQL orders it.
pub(super) fn ordered(time_ns: u64) -> i64 {
    time_ns.min(SUM_MAX).cast_signed()
}
