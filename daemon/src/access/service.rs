//! The gRPC service of access control: creates, lists and revokes tokens, and shows the audit log.
//!
//! Guarantees: a caller cannot create a token with more rights than its own. An admin of one tenant does not see the
//! tokens and audit entries of other tenants. Every change is in the audit log. The first token, if it is an admin's
//! and names no tenant, is for all tenants.
//! Refuses: tokens without a name.

use std::sync::Arc;

use memctl_answers::SCHEMA;
use memctl_answers::access::{self as shown, Entry, TokenState, Tokens};
use memctl_answers::format::id::Id;
use memctl_answers::format::time::Time;
use memctl_proto::v1;
use memctl_proto::v1::access_server;
use tonic::{Request, Response, Status};

use super::gate::Gate;
use super::settings::{EVERY_TENANT, Grant};
use super::tokens::Token;
use super::{Caller, EVERY_JOB, Proof, Role};
use crate::answered::answered;
use crate::clock::now_ns;
use crate::store::{AuditRow, Scope, Scoped, Store, StoreError, TokenRow};

/// Audit entries in a response: the default, and the most.
const AUDIT_LISTED: u32 = 100;
const AUDIT_LISTED_MAX: u32 = 10_000;
/// Limit of the bytes of a token's name and of its pattern.
const TEXT_MAX: usize = 128;

/// The service; see the module.
pub struct AccessService {
    store: Arc<dyn Store>,
    gate: Gate,
}

fn failed(error: StoreError) -> Status {
    let words = error.to_string();
    if error.is_refusal() { Status::permission_denied(words) } else { Status::unavailable(words) }
}

impl AccessService {
    /// Creates the service over a store, behind its gate.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, gate: Gate) -> Self {
        Self { store, gate }
    }

    /// The name and the rights of a requested token. `is_first`: no token exists yet.
    fn asked(caller: &Caller, asked: &v1::CreateTokenRequest, is_first: bool) -> Result<(String, Grant), Status> {
        let v1::CreateTokenRequest { name, role: _, tenant, jobs, expires_in_ns } = asked;
        let plain = |text: &str| text.len() <= TEXT_MAX && !text.chars().any(char::is_control);
        if name.trim().is_empty() || !plain(name) || !plain(jobs) {
            return Err(Status::invalid_argument(format!(
                "a token needs a name; it and the pattern of jobs have {TEXT_MAX} bytes at most"
            )));
        }
        if *expires_in_ns == Some(0) {
            return Err(Status::invalid_argument("a token cannot expire at once"));
        }
        let role = Role::from_wire(asked.role())
            .ok_or_else(|| Status::invalid_argument("a token needs a role: agent, reader, operator or admin"))?;
        let own = caller.tenant();
        let tenant = match tenant.as_str() {
            // As soon as a token exists, callers over TCP need one. A first administrator of one tenant would lock its
            // user out of the other tenants.
            "" if is_first && role == Role::Admin && caller.scope == Scope::All => EVERY_TENANT,
            "" => own.name(),
            tenant => tenant,
        };
        let grant = Grant::named(role.name(), tenant, Some(jobs)).map_err(Status::invalid_argument)?;
        if caller.scope.and(&grant.scope) != grant.scope {
            return Err(Status::permission_denied(format!(
                "{} belongs to tenant {} and can only make tokens for it; an admin of all tenants can make others, on the daemon's own socket for example",
                caller.name,
                caller.tenant_name()
            )));
        }
        if caller.jobs != EVERY_JOB && caller.jobs != grant.jobs {
            return Err(Status::permission_denied(format!(
                "{} may write only to jobs {:?}; its tokens cannot have more",
                caller.name, caller.jobs
            )));
        }
        if caller.proof == Proof::Open && grant.role != Role::Admin {
            return Err(Status::failed_precondition(
                "the first token must have the role admin: as soon as there is one, this daemon takes only callers with a token",
            ));
        }
        Ok((name.clone(), grant))
    }

    /// The only token with this name or id.
    async fn named(&self, caller: &Caller, wanted: &str) -> Result<TokenRow, Status> {
        let now_ns = now_ns();
        let tokens = Scoped::of(&self.store, &caller.scope).tokens().await.map_err(failed)?;
        let by_id = u64::from_str_radix(wanted, 16).ok().filter(|_| wanted.len() == 16);
        if let Some(found) = tokens.iter().find(|token| Some(token.id) == by_id) {
            return Ok(found.clone());
        }
        let mut called = tokens.into_iter().filter(|token| token.name == wanted && token.counts(now_ns));
        match (called.next(), called.next()) {
            (Some(only), None) => Ok(only),
            (Some(_), Some(_)) => Err(Status::failed_precondition(format!(
                "several tokens are called {wanted:?}: name one by its id; `memctl token list` shows them"
            ))),
            _ => Err(Status::not_found(format!(
                "there is no valid token {:?}; `memctl token list` shows them",
                wanted.chars().take(TEXT_MAX).collect::<String>()
            ))),
        }
    }
}

impl AccessService {
    /// Refuses to revoke the last admin token of all tenants for a caller with a token. A caller on the daemon's socket
    /// keeps this way in.
    async fn keep_an_admin(&self, caller: &Caller, token: &TokenRow, now_ns: u64) -> Result<(), Status> {
        let admits =
            |token: &TokenRow| token.role == Role::Admin.name() && token.tenant == EVERY_TENANT && token.counts(now_ns);
        if !matches!(caller.proof, Proof::Token(_)) || !admits(token) {
            return Ok(());
        }
        let tokens = self.store.tokens().await.map_err(failed)?;
        if tokens.iter().any(|other| other.id != token.id && admits(other)) {
            return Ok(());
        }
        Err(Status::failed_precondition(
            "this is the last token of an admin of all tenants: make another one first (`memctl token create NAME --role admin`), or revoke it on the daemon's socket",
        ))
    }
}

/// A token in the form of the list.
fn shown(token: &TokenRow, now_ns: u64) -> shown::Token {
    let TokenRow { id, name, role, tenant, jobs, secret: _, created_ns, expires_ns, revoked_ns } = token;
    let state = match (revoked_ns, expires_ns) {
        (Some(_), _) => TokenState::Revoked,
        (None, Some(expires_ns)) if *expires_ns <= now_ns => TokenState::Expired,
        (None, _) => TokenState::Valid,
    };
    shown::Token {
        id: Id(*id),
        name: name.clone(),
        role: Role::named(role).ok(),
        tenant: tenant.clone(),
        jobs: jobs.clone(),
        state,
        created_at: Time(*created_ns),
        expires_at: expires_ns.map(Time),
        revoked_at: revoked_ns.map(Time),
        secret: None,
    }
}

fn entry(row: AuditRow) -> Entry {
    let AuditRow { id: _, time_ns, tenant, caller, peer, action, subject, refused, outcome } = row;
    Entry { at: Time(time_ns), tenant, caller, peer, action, subject, refused, outcome }
}

#[tonic::async_trait]
impl access_server::Access for AccessService {
    async fn get_caller(&self, request: Request<v1::GetCallerRequest>) -> Result<Response<v1::Answer>, Status> {
        let caller = Caller::of(&request)?;
        let tenant = caller.tenant_name().to_owned();
        let Caller { name, role, jobs, .. } = caller;
        answered(&shown::Caller { name, role, tenant, jobs })
    }

    async fn create_token(&self, request: Request<v1::CreateTokenRequest>) -> Result<Response<v1::Answer>, Status> {
        let caller = Caller::of(&request)?;
        let asked = request.into_inner();
        let is_first = !self.gate.has_tokens().await.map_err(failed)?;
        let (name, grant) = match Self::asked(&caller, &asked, is_first) {
            Ok(asked) => asked,
            Err(status) => {
                self.gate.audit().refused(&caller, "CreateToken", &asked.name, status.message()).await;
                return Err(status);
            }
        };
        let (token, text) =
            Token::new().map_err(|error| Status::internal(format!("no random number is available: {error}")))?;
        let now_ns = now_ns();
        let row = TokenRow {
            id: token.id,
            name,
            role: grant.role.name().to_owned(),
            tenant: grant.scope.name().unwrap_or(EVERY_TENANT).to_owned(),
            jobs: grant.jobs,
            secret: token.secret,
            created_ns: now_ns,
            // SQL orders by this value, so it stays below 2^63.
            expires_ns: asked.expires_in_ns.map(|lasts| now_ns.saturating_add(lasts).min(i64::MAX as u64)),
            revoked_ns: None,
        };
        if !self.store.add_token(&row).await.map_err(failed)? {
            return Err(Status::resource_exhausted("there are too many tokens; revoke unused ones"));
        }
        self.gate.forget();
        let made = format!("{} of tenant {}, jobs {}", row.role, row.tenant, row.jobs);
        let subject = format!("{} ({:016x})", row.name, row.id);
        self.gate.audit().done(&caller, "CreateToken", &subject, &made).await;
        let made = shown::Token { secret: Some(text), ..shown(&row, now_ns) };
        answered(&Tokens { schema: SCHEMA, tokens: vec![made] })
    }

    async fn list_tokens(&self, request: Request<v1::ListTokensRequest>) -> Result<Response<v1::Answer>, Status> {
        let caller = Caller::of(&request)?;
        let tokens = Scoped::of(&self.store, &caller.scope).tokens().await.map_err(failed)?;
        let now_ns = now_ns();
        answered(&Tokens { schema: SCHEMA, tokens: tokens.iter().map(|token| shown(token, now_ns)).collect() })
    }

    async fn revoke_token(&self, request: Request<v1::RevokeTokenRequest>) -> Result<Response<v1::Answer>, Status> {
        let caller = Caller::of(&request)?;
        let wanted = request.into_inner().token;
        let mut token = self.named(&caller, &wanted).await?;
        let now_ns = now_ns();
        self.keep_an_admin(&caller, &token, now_ns).await?;
        if self.store.revoke_token(token.id, now_ns).await.map_err(failed)? {
            token.revoked_ns = Some(now_ns);
        }
        self.gate.forget();
        let subject = format!("{} ({:016x})", token.name, token.id);
        self.gate.audit().done(&caller, "RevokeToken", &subject, "revoked").await;
        answered(&Tokens { schema: SCHEMA, tokens: vec![shown(&token, now_ns)] })
    }

    async fn list_audit(&self, request: Request<v1::ListAuditRequest>) -> Result<Response<v1::Answer>, Status> {
        let caller = Caller::of(&request)?;
        let limit = match request.into_inner().limit {
            0 => AUDIT_LISTED,
            limit => limit.min(AUDIT_LISTED_MAX),
        };
        let rows = self.store.audit_in(&caller.scope, limit).await.map_err(failed)?;
        answered(&shown::Audit { schema: SCHEMA, entries: rows.into_iter().map(entry).collect() })
    }
}
