//! Access control: callers, their roles and tenants, and the gate that every call passes.
//!
//! Guarantees: one table ([`rights`]) has the roles that each call needs. A call without a row is refused, so that a
//! new service is closed until it has a row. The data that a call may see is decided only here ([`Caller::scope`]).
//! Secrets are neither stored nor logged: the store has only the hash of a token.
//! Refuses: callers that cannot be authenticated.
//!
//! - [`rights`]: the table; [`gate`]: authentication, and the layer around the router; [`settings`]: `[access]` of the
//!   configuration; [`tokens`]: the form of tokens and their lookup; [`audit`]: the log; `subject`: what a
//!   refused call was about; `service`: the gRPC service.

pub mod audit;
pub mod gate;
pub mod rights;
mod service;
pub mod settings;
pub(crate) mod subject;
pub mod tokens;

pub use audit::Audit;
pub use gate::{Gate, Refusal};
pub use service::AccessService;
pub use settings::{Access, AccessLayer, CertificateLayer};

use std::sync::Arc;

pub use memctl_answers::access::Role;

use crate::listen::ClientCertificate;
pub use crate::pattern::fits;
use crate::store::{Scope, Tenant};
use rights::Need;

/// The pattern that matches every job.
pub const EVERY_JOB: &str = "*";

/// The authenticated caller of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its name in logs: `token ci (0123456789abcdef)`, `uid 1000`, `certificate node-7`.
    pub name: String,
    /// Its address.
    pub peer: String,
    /// What it may do, as a role.
    pub role: Role,
    /// The tenants whose jobs it sees.
    pub scope: Scope,
    /// Pattern of the jobs that it may write to; `*` matches anything.
    pub jobs: String,
    /// How it was authenticated. This is checked again while a stream lasts.
    pub(crate) proof: Proof,
}

/// How a caller was authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// It is the owner of the store, which cannot be revoked.
    Lasting,
    /// It was not authenticated: the daemon requires no proof until the first token exists.
    Open,
    /// A token.
    Token(tokens::Token),
    /// A user of this machine, named in the configuration.
    User(u32),
    /// A certificate with a name that the configuration has.
    Certificate(Arc<ClientCertificate>),
}

impl Caller {
    /// The owner. It controls the store's process or files anyway, so it may do everything.
    #[must_use]
    pub fn owner(name: impl Into<String>, peer: impl Into<String>) -> Self {
        let (name, peer) = (name.into(), peer.into());
        Self { name, peer, role: Role::Admin, scope: Scope::All, jobs: EVERY_JOB.to_owned(), proof: Proof::Lasting }
    }

    /// The caller of a request that has passed the gate.
    ///
    /// # Errors
    /// The request did not pass the gate (a bug in the daemon). The response is that of an unauthenticated call.
    pub fn of<T>(request: &tonic::Request<T>) -> Result<Self, tonic::Status> {
        let caller = request.extensions().get::<Self>().cloned();
        caller.ok_or_else(|| tonic::Status::unauthenticated("this call did not pass the daemon's gate"))
    }

    /// Whether it was authenticated by a token.
    #[must_use]
    pub(crate) const fn has_token(&self) -> bool {
        matches!(self.proof, Proof::Token(_))
    }

    /// Whether its role suffices.
    #[must_use]
    pub fn may(&self, need: Need) -> bool {
        need.roles().contains(&self.role)
    }

    /// Whether it may write to a job.
    #[must_use]
    pub fn may_write(&self, job: &str) -> bool {
        self.may(Need::Write) && fits(&self.jobs, job)
    }

    /// The tenant that owns what this caller creates.
    #[must_use]
    pub fn tenant(&self) -> Tenant {
        match &self.scope {
            Scope::All => Tenant::default(),
            Scope::One(tenant) => tenant.clone(),
        }
    }

    /// Its tenant as text, `*` for all.
    #[must_use]
    pub fn tenant_name(&self) -> &str {
        self.scope.name().unwrap_or("*")
    }
}
