//! The gate: it authenticates and authorizes callers, and it is the layer before every gRPC call.
//!
//! Guarantees: a call reaches its service only with a [`Caller`] whose role the table of rights allows. HTTP uses the
//! same function ([`Gate::admit`]). If a call has a token, only the token decides: an invalid token is refused even if
//! a caller without a token would be admitted. While a stream lasts, [`Gate::still`] checks again what admitted its
//! caller: the token, the configuration's entry for the user or certificate, the certificate's end of validity, or that
//! no token exists yet.
//!
//! An error does not state why a token is invalid.
//!
//! (Over 400 lines: the tests are next to the rules that they cover.)

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};

use memctl_proto::v1::RefusedReason;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Request, Response, StatusCode, header};

use super::rights::{Need, need};
use super::settings::{Access, Grant, scope};
use super::tokens::{Token, Tokens};
use super::{Audit, Caller, Proof, Role, subject};
use crate::clock::now_ns;
use crate::listen::{Admission, ClientCertificate, Peer};
use crate::store::{Scope, Store, StoreError, TokenRow};

/// The header in which a caller of all tenants names one tenant.
pub const TENANT_HEADER: &str = "memctl-tenant";
/// The call of an agent's stream.
const PUSH: &str = "/memctl.v1.Ingest/Push";
/// How often the caller of a stream is checked again.
pub const LOOK_EVERY: std::time::Duration = super::tokens::AGE_MAX;

/// Why a call was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The caller could not be authenticated.
    #[error("{0}")]
    Unauthenticated(String),
    /// The caller is known but lacks the right.
    #[error("{0}")]
    Denied(String),
    /// The store does not respond now.
    #[error("{0}")]
    Unavailable(String),
}

impl Refusal {
    /// The HTTP status.
    #[must_use]
    pub const fn code(&self) -> StatusCode {
        match self {
            Self::Unauthenticated(_) => StatusCode::UNAUTHORIZED,
            Self::Denied(_) => StatusCode::FORBIDDEN,
            Self::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unauthenticated(why) => Self::unauthenticated(why),
            Refusal::Denied(why) => Self::permission_denied(why),
            Refusal::Unavailable(why) => Self::unavailable(why),
        }
    }
}

fn unknown_token() -> Refusal {
    Refusal::Unauthenticated(
        "the token is not known here, has expired or was revoked; `memctl token create` makes one (an admin runs it)"
            .into(),
    )
}

fn away(error: &StoreError) -> Refusal {
    Refusal::Unavailable(format!("who you are cannot be looked up now: {error}"))
}

/// The gate; see the module. Clones share one gate.
#[derive(Clone)]
pub struct Gate {
    inner: Arc<Inner>,
}

struct Inner {
    access: RwLock<Arc<Access>>,
    tokens: Tokens,
    audit: Audit,
    /// The daemon's own user.
    uid: u32,
    /// Streams of agents that were refused here: unauthenticated, denied.
    refused_streams: [AtomicU64; 2],
}

impl Gate {
    /// Creates a gate over a store.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, access: Access) -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let audit = Audit::new(store.clone());
        Self {
            inner: Arc::new(Inner {
                access: RwLock::new(Arc::new(access)),
                tokens: Tokens::new(store),
                audit,
                uid,
                refused_streams: Default::default(),
            }),
        }
    }

    /// The audit log.
    #[must_use]
    pub fn audit(&self) -> &Audit {
        &self.inner.audit
    }

    /// Streams of agents that were refused before they reached ingest, by reason.
    #[must_use]
    pub fn refused_streams(&self) -> [(RefusedReason, u64); 2] {
        let [unauthenticated, denied] = &self.inner.refused_streams;
        // Relaxed here and below: this is only a metric.
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [(RefusedReason::Unauthenticated, read(unauthenticated)), (RefusedReason::Denied, read(denied))]
    }

    /// Replaces the rules. Streams whose callers the new rules do not admit end within [`LOOK_EVERY`].
    pub fn replace_access(&self, access: Access) {
        *self.inner.access.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(access);
    }

    fn access(&self) -> Arc<Access> {
        self.inner.access.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Clears the cache of tokens.
    pub fn forget(&self) {
        self.inner.tokens.forget();
    }

    /// Whether callers over TCP are admitted without proof.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn is_open(&self) -> Result<bool, StoreError> {
        Ok(!self.access().tokens_required && !self.inner.tokens.any().await?)
    }

    /// Whether any token exists or existed.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn has_tokens(&self) -> Result<bool, StoreError> {
        self.inner.tokens.any().await
    }

    /// Admits a call, or returns the reason for the refusal. `subject` is awaited only if a refusal is recorded.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn admit(
        &self,
        peer: Option<&Peer>,
        path: &str,
        headers: &HeaderMap,
        subject: impl Future<Output = String>,
    ) -> Result<Caller, Refusal> {
        let admitted = self.admitted(peer, path, headers, subject).await;
        let [unauthenticated, denied] = &self.inner.refused_streams;
        let count = match &admitted {
            Err(Refusal::Unauthenticated(_)) => unauthenticated,
            Err(Refusal::Denied(_)) => denied,
            _ => return admitted,
        };
        if path == PUSH {
            count.fetch_add(1, Ordering::Relaxed);
        }
        admitted
    }

    async fn admitted(
        &self,
        peer: Option<&Peer>,
        path: &str,
        headers: &HeaderMap,
        subject: impl Future<Output = String>,
    ) -> Result<Caller, Refusal> {
        let Some(need) = need(path) else {
            return Err(Refusal::Denied("there is no such call, or no role may make it".into()));
        };
        if need == Need::Nothing {
            // The response does not depend on the caller, so the store is not needed.
            return Ok(unidentified(peer));
        }
        // The route of a job's views ends with placeholders.
        let action = path.rsplit('/').find(|part| !part.starts_with('{')).unwrap_or(path);
        let mut caller = match self.caller(peer, headers).await {
            Err(Refusal::Unauthenticated(why)) => {
                self.inner.audit.turned_away(&host(peer), action, &why);
                return Err(Refusal::Unauthenticated(why));
            }
            found => found?,
        };
        let why = match named_scope(&caller, headers) {
            Err(why) => why,
            Ok(named) if caller.may(need) => {
                caller.scope = named;
                return Ok(caller);
            }
            Ok(_) => lacks_role(&caller, need, action),
        };
        if need.is_audited() {
            self.inner.audit.refused(&caller, action, &subject.await, &why).await;
        } else {
            self.inner.audit.turned_away(&caller.name, action, &why);
        }
        Err(Refusal::Denied(why))
    }

    /// Checks whether an admitted caller would still be admitted with the same rights. If the store does not respond,
    /// the caller stays admitted.
    ///
    /// # Errors
    /// Its token expired or was revoked, its entry was removed or changed, or its certificate expired.
    pub async fn still(&self, caller: &Caller) -> Result<(), Refusal> {
        match &caller.proof {
            Proof::Lasting => Ok(()),
            Proof::Open => match self.is_open().await {
                Ok(false) => Err(wants_token("")),
                Ok(true) => Ok(()),
                Err(error) => {
                    tracing::debug!(%error, "whether there are tokens cannot be looked up now; streams go on");
                    Ok(())
                }
            },
            Proof::Token(token) => match self.inner.tokens.find(token, now_ns()).await {
                Ok(Some(row)) if row.role == caller.role.name() => Ok(()),
                Ok(_) => Err(unknown_token()),
                Err(error) => {
                    tracing::debug!(%error, caller = caller.name, "a token cannot be looked up now; its streams go on");
                    Ok(())
                }
            },
            Proof::User(uid) => match self.access().of_uid(*uid) {
                Some(grant) if is_the_same(grant, caller) => Ok(()),
                Some(_) => Err(changed(caller)),
                None => Err(unknown_user(*uid)),
            },
            Proof::Certificate(certificate) => {
                current(certificate)?;
                match self.access().of_certificate(certificate) {
                    Some((_, grant)) if is_the_same(grant, caller) => Ok(()),
                    _ => Err(changed(caller)),
                }
            }
        }
    }

    /// Waits until a caller would no longer be admitted, and returns the reason.
    pub async fn ended(&self, caller: &Caller) -> Refusal {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if let Err(refusal) = self.still(caller).await {
                return refusal;
            }
        }
    }

    /// Authenticates the caller.
    async fn caller(&self, peer: Option<&Peer>, headers: &HeaderMap) -> Result<Caller, Refusal> {
        let Some(peer) = peer else {
            return Err(Refusal::Unauthenticated("the connection does not identify its peer".into()));
        };
        match (peer, headers.get(header::AUTHORIZATION)) {
            (Peer::Embedded, _) => Ok(Caller::owner("this process", peer.to_string())),
            (_, Some(value)) => self.of_token(peer, value.to_str().unwrap_or_default()).await,
            (Peer::Unix { uid, .. }, None) => self.of_uid(peer, *uid),
            (Peer::Tcp { .. }, None) => self.of_tcp(peer).await,
        }
    }

    async fn of_token(&self, peer: &Peer, value: &str) -> Result<Caller, Refusal> {
        let text = value.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let Some(token) = text.and_then(|(_, text)| Token::read(text.trim())) else {
            return Err(Refusal::Unauthenticated("this is not a token: tokens look like memctl_…_…".into()));
        };
        let found = self.inner.tokens.find(&token, now_ns()).await.map_err(|error| away(&error))?;
        let row = found.ok_or_else(unknown_token)?;
        of_row(peer, token, &row)
    }

    fn of_uid(&self, peer: &Peer, uid: u32) -> Result<Caller, Refusal> {
        let name = format!("uid {uid}");
        if uid == self.inner.uid || uid == 0 {
            return Ok(Caller::owner(name, peer.to_string()));
        }
        match self.access().of_uid(uid) {
            Some(grant) => Ok(granted(name, peer, grant, Proof::User(uid))),
            None => Err(unknown_user(uid)),
        }
    }

    async fn of_tcp(&self, peer: &Peer) -> Result<Caller, Refusal> {
        let Peer::Tcp { address, certificate } = peer else { return Err(unknown_token()) };
        let access = self.access();
        let granting =
            certificate.as_ref().and_then(|certificate| Some((certificate, access.of_certificate(certificate)?)));
        if let Some((certificate, (name, grant))) = granting {
            // A connection may last longer than its certificate is valid.
            current(certificate)?;
            let name = format!("certificate {}", name.escape_default());
            return Ok(granted(name, peer, grant, Proof::Certificate(certificate.clone())));
        }
        let is_near = address.ip().to_canonical().is_loopback() || access.insecure;
        if is_near && self.is_open().await.map_err(|error| away(&error))? {
            let anybody = Caller::owner("a caller without a token", peer.to_string());
            return Ok(Caller { proof: Proof::Open, ..anybody });
        }
        let shown = certificate.as_ref().map_or_else(String::new, |certificate| {
            format!(
                "no [[access.certificate]] has a name of the certificate that was shown ({}); ",
                certificate.shown()
            )
        });
        Err(wants_token(&shown))
    }
}

fn wants_token(before: &str) -> Refusal {
    Refusal::Unauthenticated(format!(
        "{before}this daemon wants a token: name a file that holds one with --token-file or MEMCTL_TOKEN_FILE, or set MEMCTL_TOKEN"
    ))
}

fn unknown_user(uid: u32) -> Refusal {
    Refusal::Unauthenticated(format!(
        "user {uid} has no role here: bring a token (MEMCTL_TOKEN_FILE), or have [access.uids] name the user"
    ))
}

fn changed(caller: &Caller) -> Refusal {
    Refusal::Unauthenticated(format!("what [access] gives {} has changed; connect again", caller.name))
}

fn current(certificate: &ClientCertificate) -> Result<(), Refusal> {
    match certificate.not_after_s {
        Some(last) if now_ns() / 1_000_000_000 > last => Err(Refusal::Unauthenticated(format!(
            "the certificate of {} has expired; connect with a renewed one",
            certificate.shown()
        ))),
        _ => Ok(()),
    }
}

/// Whether the caller was admitted with this grant. A caller of all tenants may have named one of them.
fn is_the_same(grant: &Grant, caller: &Caller) -> bool {
    let Grant { role, scope, jobs } = grant;
    *role == caller.role && *jobs == caller.jobs && (*scope == caller.scope || *scope == Scope::All)
}

fn granted(name: String, peer: &Peer, Grant { role, scope, jobs }: &Grant, proof: Proof) -> Caller {
    let (scope, jobs) = (scope.clone(), jobs.clone());
    Caller { name, peer: peer.to_string(), role: *role, scope, jobs, proof }
}

fn of_row(peer: &Peer, token: Token, row: &TokenRow) -> Result<Caller, Refusal> {
    // A newer memctl may have created the token.
    let unreadable = |why| Refusal::Denied(format!("this memctl does not understand the token: {why}"));
    let grant = Grant::named(&row.role, &row.tenant, Some(&row.jobs)).map_err(unreadable)?;
    Ok(granted(format!("token {} ({:016x})", row.name, row.id), peer, &grant, Proof::Token(token)))
}

/// A caller whose identity does not matter.
fn unidentified(peer: Option<&Peer>) -> Caller {
    let peer = peer.map_or_else(String::new, ToString::to_string);
    let none = Scope::One(crate::store::Tenant::default());
    Caller { name: "nobody".into(), peer, role: Role::Agent, scope: none, jobs: String::new(), proof: Proof::Lasting }
}

/// The origin of a call without the port, which differs for each connection.
fn host(peer: Option<&Peer>) -> String {
    match peer {
        Some(Peer::Tcp { address, .. }) => address.ip().to_canonical().to_string(),
        Some(peer) => peer.to_string(),
        None => "unknown".to_owned(),
    }
}

/// The caller's scope, restricted to the tenant that the request names.
fn named_scope(caller: &Caller, headers: &HeaderMap) -> Result<Scope, String> {
    let Some(wanted) = headers.get(TENANT_HEADER) else { return Ok(caller.scope.clone()) };
    let wanted = scope(wanted.to_str().unwrap_or_default())?;
    if caller.scope != Scope::All && wanted != caller.scope {
        return Err(format!(
            "tenant {} was requested, but {} belongs to tenant {}; leave out --tenant, or use a token of another tenant",
            wanted.name().unwrap_or("*"),
            caller.name,
            caller.tenant_name()
        ));
    }
    Ok(wanted)
}

/// The reason why the caller's role does not suffice.
fn lacks_role(caller: &Caller, need: Need, action: &str) -> String {
    let way_out = match (caller.role, need) {
        (Role::Agent, Need::Read) => {
            "; an agent writes and does not read: ask with another token (`memctl token create NAME --role reader`)"
        }
        _ => "",
    };
    format!("{} is {}; {action} takes {}{way_out}", caller.name, caller.role.name(), need.in_words())
}

/// The layer that puts the gate in front of the services.
#[derive(Clone)]
pub struct GateLayer(pub Gate);

impl<S> tower::Layer<S> for GateLayer {
    type Service = Gated<S>;

    fn layer(&self, inner: S) -> Gated<S> {
        Gated { gate: self.0.clone(), inner }
    }
}

/// A service behind the gate.
#[derive(Clone)]
pub struct Gated<S> {
    gate: Gate,
    inner: S,
}

impl<S> tower::Service<Request<Body>> for Gated<S>
where
    S: tower::Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // The clone that `poll_ready` made ready serves this call, and a new clone takes its place.
        let fresh = self.inner.clone();
        let mut ready = std::mem::replace(&mut self.inner, fresh);
        let gate = self.gate.clone();
        Box::pin(async move {
            // Data that is held while the gate queries the store must be `Sync`, and a whole request is not.
            let (mut head, mut body) = request.into_parts();
            let peer = Peer::of(&head.extensions).cloned();
            let path = head.uri.path();
            match gate.admit(peer.as_ref(), path, &head.headers, subject::of_call(path, &mut body)).await {
                Ok(caller) => {
                    if need(path) != Some(Need::Nothing)
                        && let Some(admission) = head.extensions.get::<Admission>()
                    {
                        admission.admitted();
                    }
                    head.extensions.insert(caller);
                    ready.call(Request::from_parts(head, body)).await
                }
                Err(refusal) => Ok(Status::from(refusal).into_http()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::settings::AccessLayer;
    use super::*;
    use crate::store::SqliteStore;

    const ASK: &str = "/memctl.v1.Query/GetReport";
    const DELETE: &str = "/memctl.v1.Query/DeleteJob";

    async fn gate(access: &str) -> (Arc<dyn Store>, Gate) {
        let store: Arc<dyn Store> = Arc::new(SqliteStore::in_memory().await.unwrap());
        let layer: AccessLayer = toml::from_str(access).unwrap();
        (store.clone(), Gate::new(store, Access::new(&layer).unwrap()))
    }

    async fn about() -> String {
        "vit".to_owned()
    }

    fn tcp(address: &str) -> Peer {
        Peer::Tcp { address: address.parse().unwrap(), certificate: None }
    }

    fn unix(uid: u32) -> Peer {
        Peer::Unix { uid, gid: 1, pid: None }
    }

    async fn made(store: &Arc<dyn Store>, role: &str, tenant: &str) -> (HeaderMap, u64) {
        let (token, text) = Token::new().unwrap();
        let row = TokenRow {
            id: token.id,
            name: "t".into(),
            role: role.into(),
            tenant: tenant.into(),
            jobs: "*".into(),
            secret: token.secret,
            created_ns: 1,
            expires_ns: None,
            revoked_ns: None,
        };
        assert!(store.add_token(&row).await.unwrap());
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, format!("Bearer {text}").parse().unwrap());
        (headers, token.id)
    }

    #[tokio::test]
    async fn a_machine_of_one_user_is_open_until_a_token_is_made() {
        let (store, gate) = gate("").await;
        let none = HeaderMap::new();
        let near = tcp("127.0.0.1:1");
        let anybody = gate.admit(Some(&near), DELETE, &none, about()).await.unwrap();
        assert_eq!(anybody.role, Role::Admin);
        gate.still(&anybody).await.unwrap();
        for peer in [Some(&tcp("192.0.2.1:1")), Some(&unix(gate.inner.uid + 1)), None] {
            let refused = gate.admit(peer, ASK, &none, about()).await.unwrap_err();
            assert_eq!(refused.code(), StatusCode::UNAUTHORIZED, "{peer:?}");
        }
        for peer in [unix(gate.inner.uid), unix(0), Peer::Embedded] {
            assert_eq!(gate.admit(Some(&peer), DELETE, &none, about()).await.unwrap().scope, Scope::All);
        }
        made(&store, "reader", "a").await;
        gate.forget();
        assert!(gate.admit(Some(&near), ASK, &none, about()).await.is_err(), "now every caller needs one");
        assert!(gate.still(&anybody).await.is_err(), "callers admitted before are refused");
        assert!(gate.admit(Some(&unix(gate.inner.uid)), DELETE, &none, about()).await.is_ok(), "except the owner");
    }

    #[tokio::test]
    async fn a_refusal_names_the_route_and_no_placeholder() {
        let (store, gate) = gate("").await;
        let (agent, _) = made(&store, "agent", "a").await;
        let refused =
            gate.admit(Some(&tcp("[::1]:1")), "/api/v1/jobs/{job}/{view}", &agent, about()).await.unwrap_err();
        assert!(refused.to_string().contains("; jobs takes "), "{refused}");
    }

    #[tokio::test]
    async fn an_attempt_at_another_tenant_is_recorded_with_its_subject() {
        let (store, gate) = gate("").await;
        let (admin, _) = made(&store, "admin", "nlp").await;
        let near = tcp("[::1]:1");
        let create = "/memctl.v1.Access/CreateToken";
        for (call, tenant) in
            [(create, "*"), (create, "vision"), ("/memctl.v1.Access/RevokeToken", "vision"), (DELETE, "vision")]
        {
            let mut headers = admin.clone();
            headers.insert(TENANT_HEADER, tenant.parse().unwrap());
            let refused = gate.admit(Some(&near), call, &headers, about()).await.unwrap_err();
            assert_eq!(refused.code(), StatusCode::FORBIDDEN, "{call}");
            assert!(refused.to_string().contains(&format!("tenant {tenant} was requested")), "{refused}");
        }
        let mut query = admin.clone();
        query.insert(TENANT_HEADER, "vision".parse().unwrap());
        assert!(gate.admit(Some(&near), ASK, &query, async { panic!("a query is not recorded") }).await.is_err());
        // The admins of the caller's tenant see the entries.
        let entries = store.audit_in(&Scope::One(crate::store::Tenant::named("nlp").unwrap()), 10).await.unwrap();
        let mut actions: Vec<&str> = entries.iter().map(|entry| entry.action.as_str()).collect();
        actions.sort_unstable();
        assert_eq!(actions, ["CreateToken", "CreateToken", "DeleteJob", "RevokeToken"]);
        assert!(entries.iter().all(|entry| entry.refused && entry.subject == "vit"), "{entries:?}");
    }

    #[tokio::test]
    async fn a_token_decides_alone() {
        let (store, gate) = gate("").await;
        let (reader, id) = made(&store, "reader", "a").await;
        let near = tcp("[::1]:1");
        let caller = gate.admit(Some(&near), ASK, &reader, about()).await.unwrap();
        assert_eq!((caller.role, caller.scope.name()), (Role::Reader, Some("a")));
        let refused = gate.admit(Some(&near), DELETE, &reader, about()).await.unwrap_err();
        assert_eq!(refused.code(), StatusCode::FORBIDDEN);
        let entry = store.audit_in(&Scope::All, 10).await.unwrap().remove(0);
        assert_eq!((entry.action.as_str(), entry.subject.as_str()), ("DeleteJob", "vit"));
        let owner = unix(gate.inner.uid);
        assert!(gate.admit(Some(&owner), DELETE, &reader, about()).await.is_err(), "the owner as a reader is a reader");
        for wrong in ["Bearer memctl_0_0", "Basic YTpi", "", "Bearer", "Bearer \u{e4}"] {
            let mut headers = HeaderMap::new();
            headers.insert(
                header::AUTHORIZATION,
                tonic::codegen::http::HeaderValue::from_bytes(wrong.as_bytes()).unwrap(),
            );
            assert!(gate.admit(Some(&near), ASK, &headers, about()).await.is_err(), "{wrong}");
            assert!(gate.admit(Some(&owner), ASK, &headers, about()).await.is_err(), "{wrong}");
        }
        gate.still(&caller).await.unwrap();
        store.revoke_token(id, 2).await.unwrap();
        gate.forget();
        assert!(gate.still(&caller).await.is_err());
        assert!(gate.admit(Some(&near), ASK, &reader, about()).await.is_err());
    }

    #[tokio::test]
    async fn only_a_caller_of_all_tenants_names_another_one() {
        let (store, gate) = gate("[uids.77777]\nrole = 'operator'\ntenant = 'a'").await;
        let named = |headers: &HeaderMap, tenant: &str| {
            let mut headers = headers.clone();
            headers.insert(TENANT_HEADER, tenant.parse().unwrap());
            headers
        };
        let user = unix(77_777);
        let none = HeaderMap::new();
        assert_eq!(gate.admit(Some(&user), ASK, &none, about()).await.unwrap().scope.name(), Some("a"));
        assert!(gate.admit(Some(&user), ASK, &named(&none, "a"), about()).await.is_ok());
        for other in ["b", "*", "a b"] {
            assert!(gate.admit(Some(&user), ASK, &named(&none, other), about()).await.is_err(), "{other}");
        }
        let (admin, _) = made(&store, "admin", "*").await;
        let near = tcp("127.0.0.1:1");
        assert_eq!(gate.admit(Some(&near), ASK, &named(&admin, "b"), about()).await.unwrap().scope.name(), Some("b"));
        assert!(
            gate.admit(Some(&near), ASK, &none, about()).await.is_err(),
            "a user is named, so every caller has to be"
        );
    }

    #[tokio::test]
    async fn an_entry_that_is_gone_ends_what_it_let_in() {
        let rows = "[uids.77777]\nrole = 'operator'\ntenant = 'a'\n\
                    [[certificate]]\nname = 'node-*'\nrole = 'agent'\ntenant = '*'\njobs = 'train-*'";
        let (_, gate) = gate(rows).await;
        let shown = |name: &str, not_after_s| {
            let certificate =
                ClientCertificate { subject: name.into(), names: Vec::new(), fingerprint: [0; 32], not_after_s };
            Peer::Tcp { address: "192.0.2.1:1".parse().unwrap(), certificate: Some(Arc::new(certificate)) }
        };
        let push = "/memctl.v1.Ingest/Push";
        let none = HeaderMap::new();
        let user = gate.admit(Some(&unix(77_777)), push, &none, about()).await.unwrap();
        let node = gate.admit(Some(&shown("node-1", Some(u64::MAX))), push, &none, about()).await.unwrap();
        assert_eq!((node.role, node.jobs.as_str()), (Role::Agent, "train-*"));
        for caller in [&user, &node] {
            gate.still(caller).await.unwrap();
        }
        let refused = gate.admit(Some(&shown("other", None)), push, &none, about()).await.unwrap_err().to_string();
        assert!(refused.contains("(other)") && refused.contains("--token-file"), "{refused}");
        let refused = gate.admit(Some(&shown("node-1", Some(1))), push, &none, about()).await.unwrap_err().to_string();
        assert!(refused.contains("has expired"), "{refused}");
        let put = |text: &str| gate.replace_access(Access::new(&toml::from_str(text).unwrap()).unwrap());
        put(&rows.replace("operator", "reader").replace("train-*", "other-*"));
        for caller in [&user, &node] {
            assert!(gate.still(caller).await.unwrap_err().to_string().contains("has changed"));
        }
        put("");
        assert!(gate.still(&user).await.unwrap_err().to_string().contains("user 77777 has no role here"));
        assert!(gate.still(&node).await.is_err());
        put(rows);
        gate.still(&user).await.unwrap();
    }

    #[tokio::test]
    async fn health_is_for_all_callers_and_a_call_without_a_row_for_none() {
        let (_, gate) = gate("tokens = 'required'").await;
        let far = tcp("192.0.2.1:1");
        assert!(gate.admit(Some(&far), "/grpc.health.v1.Health/Check", &HeaderMap::new(), about()).await.is_ok());
        assert!(gate.admit(Some(&Peer::Embedded), "/memctl.v1.New/Call", &HeaderMap::new(), about()).await.is_err());
    }
}
