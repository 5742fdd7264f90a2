//! Decides which callers may open and continue a session.
//!
//! Guarantees: only a hello of the same tenant that names the same job, attempt and rank continues an existing session.
//! It must present the secret of the first hello. If the first hello had no secret (an older agent), the caller must be
//! the same. A session that has ended takes no more items. The rule is one function, which every store calls under its
//! write lock.
//!
//! An error does not name what differs. A tenant cannot find another tenant's session, because the stored id is a hash
//! of the tenant's name and the id.

use memctl_model::{SessionId, SessionInfo, SourceKind};
use sha2::{Digest as _, Sha256};

use super::plan::SUM_MAX;
use super::tenant::{DEFAULT_TENANT, Tenant};

/// The hash of a session's secret.
pub type SecretHash = [u8; 32];

/// The content of a hello.
#[derive(Clone, Debug)]
pub struct Opening<'o> {
    /// The session's tenant.
    pub tenant: &'o Tenant,
    /// Its description.
    pub info: &'o SessionInfo,
    /// The caller, as named in the audit log.
    pub owner: &'o str,
    /// The hash of its secret; older agents have none.
    pub secret: Option<SecretHash>,
    /// The daemon's clock.
    pub now_ns: u64,
}

/// An existing session, with the values that the next hello is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExistingSession {
    /// Its job.
    pub job: String,
    /// Its attempt.
    pub attempt: u32,
    /// Its rank.
    pub rank: u32,
    /// The caller that opened it.
    pub owner: String,
    /// The hash of its secret.
    pub secret: Option<Vec<u8>>,
    /// Whether its end is stored.
    pub ended: bool,
}

impl Opening<'_> {
    /// The id under which the session is stored.
    #[must_use]
    pub fn stored_id(&self) -> SessionId {
        stored_id(self.tenant, self.info.id)
    }

    /// When the run was started or imported, if this session begins a new run. Lists of runs are ordered by this time.
    #[must_use]
    pub fn arrived_ns(&self) -> u64 {
        match self.info.source {
            SourceKind::Live => self.info.started_ns,
            SourceKind::Import => self.now_ns.min(SUM_MAX),
        }
    }

    /// Whether this hello may continue an existing session.
    #[must_use]
    pub fn may_continue(&self, held: &ExistingSession) -> bool {
        let SessionInfo { job, attempt, rank, .. } = self.info;
        let proved = match (&held.secret, &self.secret) {
            (Some(known), Some(brought)) => equal_in_constant_time(known, brought),
            (Some(_), None) => false,
            // Sessions from before secrets existed have no owner either.
            (None, _) => held.owner.is_empty() || held.owner == self.owner,
        };
        proved && (held.job.as_str(), held.attempt, held.rank) == (job.as_str(), *attempt, *rank)
    }
}

/// The stored id. The id of a recording derives from its content. If two tenants store the same recording, the
/// tenants' names make their stored ids different.
#[must_use]
pub fn stored_id(tenant: &Tenant, id: SessionId) -> SessionId {
    if tenant.name() == DEFAULT_TENANT {
        return id;
    }
    let digest = Sha256::new().chain_update(tenant.name()).chain_update([0]).chain_update(id.0).finalize();
    let mut stored = [0; 16];
    stored.copy_from_slice(&digest[..16]);
    SessionId(stored)
}

/// The stored hash of a secret. Secrets are random and long, so a fast hash suffices.
#[must_use]
pub fn hash(secret: &[u8]) -> SecretHash {
    Sha256::digest(secret).into()
}

/// Compares two hashes in a time that does not reveal where they differ.
#[must_use]
pub fn equal_in_constant_time(known: &[u8], brought: &[u8]) -> bool {
    let differ = known.iter().zip(brought).fold(0, |differ, (a, b)| differ | (a ^ b));
    known.len() == brought.len() && std::hint::black_box(differ) == 0
}

#[cfg(test)]
mod tests {

    use super::*;

    fn info() -> SessionInfo {
        SessionInfo { attempt: 1, rank: 2, resolution_ns: 1, ..SessionInfo::live(SessionId([7; 16]), "job", 1) }
    }

    #[test]
    fn a_session_is_its_agents_alone() {
        let info = info();
        let tenant = Tenant::default();
        let wrong = [
            SessionInfo { job: "other".into(), ..info.clone() },
            SessionInfo { attempt: 0, ..info.clone() },
            SessionInfo { rank: 0, ..info.clone() },
        ];
        let opening = |info, secret: Option<&[u8]>, owner| Opening {
            tenant: &tenant,
            info,
            owner,
            secret: secret.map(hash),
            now_ns: 1,
        };
        let held = |secret: Option<&[u8]>, ended| ExistingSession {
            job: "job".into(),
            attempt: 1,
            rank: 2,
            owner: "me".into(),
            secret: secret.map(|secret| hash(secret).to_vec()),
            ended,
        };
        let own = opening(&info, Some(b"mine"), "me");
        assert!(own.may_continue(&held(Some(b"mine"), false)) && own.may_continue(&held(Some(b"mine"), true)));
        assert!(opening(&info, Some(b"mine"), "another token").may_continue(&held(Some(b"mine"), false)));
        assert!(!own.may_continue(&held(Some(b"other"), false)));
        assert!(!opening(&info, None, "me").may_continue(&held(Some(b"mine"), false)));
        for wrong in &wrong {
            assert!(!opening(wrong, Some(b"mine"), "me").may_continue(&held(Some(b"mine"), false)));
        }
        // Without a secret: the same caller only.
        assert!(opening(&info, None, "me").may_continue(&held(None, false)));
        assert!(!opening(&info, None, "you").may_continue(&held(None, false)));
        assert!(!opening(&info, Some(b"new"), "you").may_continue(&held(None, true)));
        assert!(
            opening(&info, None, "you").may_continue(&ExistingSession { owner: String::new(), ..held(None, false) })
        );
    }

    #[test]
    fn an_id_of_one_tenant_is_not_found_by_another() {
        let (a, b) = (Tenant::named("a").unwrap(), Tenant::named("b").unwrap());
        let id = SessionId([7; 16]);
        assert_eq!(stored_id(&Tenant::default(), id), id, "ids stored before tenants existed are found");
        assert_ne!(stored_id(&a, id), stored_id(&b, id));
        assert_ne!(stored_id(&a, id), id);
        assert_eq!(stored_id(&a, id), stored_id(&a, id));
    }

    #[test]
    fn hashes_of_different_length_differ() {
        assert!(equal_in_constant_time(&hash(b"a"), &hash(b"a")) && !equal_in_constant_time(&hash(b"a"), &hash(b"b")));
        assert!(!equal_in_constant_time(&[], &hash(b"a")) && !equal_in_constant_time(&hash(b"a")[..31], &hash(b"a")));
    }
}
