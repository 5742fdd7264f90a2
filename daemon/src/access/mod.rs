//! Who may do what: callers, their roles and tenants, and the gate that every call passes.
//!
//! Guarantees: one table ([`rights`]) says which roles a call takes; a call without a row is refused, so that a service
//! that is added later is closed until somebody decides. Whose data a call sees is decided here as well ([`Caller::scope`])
//! and nowhere else. Secrets are neither kept nor logged: of a token the store has a hash.
//! Refuses: callers that nobody vouches for; and to let a token speak for more than it was made for.
//!
//! - [`rights`]: the table; [`gate`]: who a peer is, and the layer around the router; [`settings`]: `[access]` of the
//!   configuration; [`tokens`]: how a token is written and found; [`audit`]: the log; `service`: the gRPC service.

pub mod audit;
pub mod gate;
pub mod rights;
mod service;
pub mod settings;
pub mod tokens;

pub use audit::Audit;
pub use gate::{Gate, Refusal};
pub use service::AccessService;
pub use settings::Access;

use std::sync::Arc;

use memctl_proto::v1;

use crate::listen::ClientCertificate;
use crate::pattern::fits;
use crate::store::{Scope, Tenant};
use rights::Need;

/// What somebody may do at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Writes to the jobs that its pattern allows.
    Agent,
    /// Asks questions.
    Reader,
    /// Asks, writes, silences, deletes.
    Operator,
    /// All of it, and tokens.
    Admin,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Agent, Self::Reader, Self::Operator, Self::Admin];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Reader => "reader",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }

    /// A role by its name.
    ///
    /// # Errors
    /// The names that there are.
    pub fn named(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|role| role.name() == name);
        found.ok_or_else(|| format!("there is no role {name:?}; there are agent, reader, operator and admin"))
    }

    /// For the wire.
    #[must_use]
    pub const fn to_wire(self) -> v1::Role {
        match self {
            Self::Agent => v1::Role::Agent,
            Self::Reader => v1::Role::Reader,
            Self::Operator => v1::Role::Operator,
            Self::Admin => v1::Role::Admin,
        }
    }

    /// From the wire.
    #[must_use]
    pub const fn from_wire(role: v1::Role) -> Option<Self> {
        match role {
            v1::Role::Unspecified => None,
            v1::Role::Agent => Some(Self::Agent),
            v1::Role::Reader => Some(Self::Reader),
            v1::Role::Operator => Some(Self::Operator),
            v1::Role::Admin => Some(Self::Admin),
        }
    }
}

/// Every job, as a pattern.
pub const EVERY_JOB: &str = "*";

/// Who calls, as far as it was proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// What the log calls it: `token ci (0123456789abcdef)`, `uid 1000`, `certificate node-7`.
    pub name: String,
    /// Where it calls from.
    pub peer: String,
    /// What it may do.
    pub role: Role,
    /// Whose jobs it sees.
    pub scope: Scope,
    /// Jobs that it may write to: a name in which `*` stands for anything.
    pub jobs: String,
    /// What vouches for it, asked again while a stream goes on.
    pub(crate) proof: Proof,
}

/// What vouches for a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Nothing that could be taken away: the store's owner.
    Lasting,
    /// That the daemon asks nobody on this machine for more, which ends with the first token.
    Open,
    /// A token.
    Token(tokens::Token),
    /// A user of this machine, named in the configuration.
    User(u32),
    /// A certificate whose name the configuration has.
    Certificate(Arc<ClientCertificate>),
}

impl Caller {
    /// Whoever holds the store's process or files anyway: all of everything.
    #[must_use]
    pub fn owner(name: impl Into<String>, peer: impl Into<String>) -> Self {
        let (name, peer) = (name.into(), peer.into());
        Self { name, peer, role: Role::Admin, scope: Scope::All, jobs: EVERY_JOB.to_owned(), proof: Proof::Lasting }
    }

    /// The caller of a request that has passed the gate.
    ///
    /// # Errors
    /// The request never passed it: a fault of the daemon, answered as if nobody had called.
    pub fn of<T>(request: &tonic::Request<T>) -> Result<Self, tonic::Status> {
        let caller = request.extensions().get::<Self>().cloned();
        caller.ok_or_else(|| tonic::Status::unauthenticated("this call did not pass the daemon's gate"))
    }

    /// Whether a token speaks for it.
    #[must_use]
    pub(crate) const fn has_token(&self) -> bool {
        matches!(self.proof, Proof::Token(_))
    }

    /// Whether its role is enough.
    #[must_use]
    pub fn may(&self, need: Need) -> bool {
        need.roles().contains(&self.role)
    }

    /// Whether it may write to a job.
    #[must_use]
    pub fn may_write(&self, job: &str) -> bool {
        self.may(Need::Write) && fits(&self.jobs, job)
    }

    /// The tenant that what it makes belongs to.
    #[must_use]
    pub fn tenant(&self) -> Tenant {
        match &self.scope {
            Scope::All => Tenant::default(),
            Scope::One(tenant) => tenant.clone(),
        }
    }

    /// Its tenant as it is written, `*` for all.
    #[must_use]
    pub fn tenant_name(&self) -> &str {
        self.scope.name().unwrap_or("*")
    }
}
