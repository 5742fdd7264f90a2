//! Authentication over HTTP: by the gate, or by a key that is printed once if a command serves its own user.
//!
//! Guarantees: a cookie is checked like the token in it, at every request. Scripts and other sites cannot read it, and
//! under TLS it is only sent encrypted. A request that sets or ends a cookie must come from this page itself. A key is
//! exchanged once, within the process that printed it, and is compared in constant time. If the connection is a
//! caller's only credential, a page of another site whose name points to this machine gets no data.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{Extension, Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, COOKIE, HOST, HeaderMap, HeaderValue, LOCATION, ORIGIN, SET_COOKIE,
};
use axum::http::uri::Authority;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};

use super::params::Params;
use super::{Room, plain};
use crate::access::gate::TENANT_HEADER;
use crate::access::rights::{Need, need};
use crate::access::{Caller, Gate, Proof, Refusal, subject};
use crate::listen::Peer;
use crate::store::opening::{equal_in_constant_time, hash};

/// The cookie that holds a token.
const TOKEN_COOKIE: &str = "memctl-token";
/// The path of the address that contains a [`Key`].
const ENTER: &str = "/enter?key=";
/// The message if the key is missing.
pub(super) const NEEDS_KEY: &str = "open the address that `memctl ui` printed; it works once, for one browser";
/// The header in which browsers report the origin of a request.
const FETCH_SITE: &str = "sec-fetch-site";

/// Whether a request arrived over TLS.
#[derive(Clone, Copy, Debug)]
pub struct Encrypted(pub bool);

/// How callers are authenticated.
#[derive(Clone)]
pub enum Authentication {
    /// By the gate, as for gRPC.
    Gate(Gate),
    /// By a key. Its bearer is the user of this process.
    Key(Arc<Key>),
}

/// A key that is printed, and the cookie that replaces it.
pub struct Key {
    /// The cookie's name. It contains the port, because browsers send a cookie to all ports of a host.
    cookie: String,
    session: String,
    /// The key until it is exchanged, then `None`.
    once: Mutex<Option<String>>,
}

impl Key {
    /// A new key for the page on a port, and the path that contains the key.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn new(port: u16) -> Result<(Self, String), getrandom::Error> {
        let (once, session) = (secret()?, secret()?);
        let path = format!("{ENTER}{once}");
        Ok((Self { cookie: format!("memctl-ui-{port}"), session, once: Mutex::new(Some(once)) }, path))
    }

    pub(super) fn knows(&self, headers: &HeaderMap) -> bool {
        cookie(headers, &self.cookie).is_some_and(|shown| equal(shown, &self.session))
    }

    /// The response that ends the cookie.
    pub(super) fn ended(&self) -> Response {
        set(StatusCode::NO_CONTENT, &cookie_of(&self.cookie, "", false, true))
    }

    /// Whether this is the key. If so, the key cannot be used again.
    fn exchange(&self, shown: &str) -> bool {
        let mut once = self.once.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = once.as_deref().is_some_and(|key| equal(shown, key));
        if fits {
            *once = None;
        }
        fits
    }
}

fn secret() -> Result<String, getrandom::Error> {
    let mut bytes = [0; 24];
    getrandom::fill(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Compares two texts in constant time.
fn equal(shown: &str, known: &str) -> bool {
    equal_in_constant_time(&hash(shown.as_bytes()), &hash(known.as_bytes()))
}

/// The value of a cookie with this name.
fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let pairs = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok()).flat_map(|all| all.split(';'));
    pairs.filter_map(|pair| pair.trim().split_once('=')).find(|(known, _)| *known == name).map(|(_, value)| value)
}

fn cookie_of(name: &str, value: &str, encrypted: bool, ends: bool) -> String {
    let secure = if encrypted { "; Secure" } else { "" };
    let age = if ends { "; Max-Age=0" } else { "" };
    format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict{secure}{age}")
}

impl Authentication {
    /// Admits a request, or returns the reason for the refusal.
    pub(super) async fn admit(
        &self,
        peer: Option<&Peer>,
        path: &str,
        request: &mut Parts<'_>,
    ) -> Result<Caller, Refusal> {
        match self {
            Self::Gate(gate) => {
                request.bring_along();
                let caller =
                    gate.admit(peer, path, request.headers, std::future::ready(subject(path, request.uri))).await?;
                if need(path) != Some(Need::Nothing)
                    && is_unproved(&caller, peer)
                    && !names_this_machine(request.headers)
                {
                    return Err(Refusal::Denied(
                        "under this host name the daemon requires a token: use its address (http://127.0.0.1:PORT), or send a token".into(),
                    ));
                }
                Ok(caller)
            }
            Self::Key(key) => {
                let known = key.knows(request.headers);
                if need(path) == Some(Need::Nothing) || known {
                    let name = if known { "whoever has the printed address" } else { "nobody" };
                    return Ok(Caller::owner(name, peer.map_or_else(String::new, ToString::to_string)));
                }
                Err(Refusal::Unauthenticated(NEEDS_KEY.into()))
            }
        }
    }
}

/// The parts of a request that identify the caller.
pub(super) struct Parts<'r> {
    pub(super) headers: &'r mut HeaderMap,
    pub(super) uri: &'r Uri,
}

impl Parts<'_> {
    /// Puts the token of the cookie into its header, and `?tenant=` into the header of the tenant.
    fn bring_along(&mut self) {
        if !self.headers.contains_key(AUTHORIZATION) {
            let token =
                cookie(self.headers, TOKEN_COOKIE).map(|token| HeaderValue::try_from(format!("Bearer {token}")));
            if let Some(Ok(value)) = token {
                self.headers.insert(AUTHORIZATION, value);
            }
        }
        let tenant = Params::of(self.uri).ok().and_then(|asked| asked.text("tenant").map(str::to_owned));
        if let Some(Ok(value)) = tenant.filter(|_| !self.headers.contains_key(TENANT_HEADER)).map(HeaderValue::try_from)
        {
            self.headers.insert(TENANT_HEADER, value);
        }
    }
}

/// What a request is about, for the audit log. Only requests that change something are recorded.
fn subject(path: &str, uri: &Uri) -> String {
    let Ok(asked) = Params::of(uri) else { return String::new() };
    match path {
        "/api/v1/silence" => asked.silence().map(|silence| subject::of_silence(&silence)).unwrap_or_default(),
        "/api/v1/unsilence" => asked.text("id").unwrap_or_default().to_owned(),
        _ => String::new(),
    }
}

/// Whether a caller's only credential is a connection from this machine.
fn is_unproved(caller: &Caller, peer: Option<&Peer>) -> bool {
    let near = matches!(peer, Some(Peer::Tcp { address, .. }) if address.ip().to_canonical().is_loopback());
    near && caller.proof == Proof::Open
}

/// Whether the request's host is an address or `localhost`. The owner of any other name can make it point to this
/// machine.
fn names_this_machine(headers: &HeaderMap) -> bool {
    // A request without the header does not come from a browser, because browsers always send it.
    let Some(host) = headers.get(HOST) else { return true };
    let Ok(host) = Authority::try_from(host.as_bytes()) else { return false };
    let is_address = |name: &str| name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    !host.as_str().contains('@') && (is_address(host.host()) || host.host().eq_ignore_ascii_case("localhost"))
}

/// Whether a request that changes something comes from this page.
pub(super) fn from_this_page(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(site) = text(FETCH_SITE) {
        return site == "same-origin";
    }
    let origin = text(ORIGIN.as_str()).and_then(|origin| origin.split_once("://")).map(|(_, authority)| authority);
    origin.is_some() && origin == text(HOST.as_str())
}

/// The response to a request that does not come from this page.
pub(super) fn elsewhere() -> Response {
    plain(
        StatusCode::FORBIDDEN,
        "this request must come from the page itself (headers Sec-Fetch-Site or Origin); open the page and use its form\n"
            .to_owned(),
    )
}

/// `POST /login`: turns the token in the header `Authorization` into a cookie. The token has passed the gate.
pub(super) async fn login(
    State(room): State<Room>,
    encrypted: Option<Extension<Encrypted>>,
    request: Request,
) -> Response {
    if !from_this_page(request.headers()) {
        return elsewhere();
    }
    if matches!(room.auth, Authentication::Key(_)) {
        return takes_no_tokens();
    }
    let value = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some(token) = value.and_then(|value| value.split_once(' ')).map(|(_, token)| token.trim()) else {
        return plain(StatusCode::BAD_REQUEST, "a token comes in the header: Authorization: Bearer TOKEN\n".to_owned());
    };
    let encrypted = encrypted.is_some_and(|Extension(Encrypted(encrypted))| encrypted);
    set(StatusCode::NO_CONTENT, &cookie_of(TOKEN_COOKIE, token, encrypted, false))
}

/// The response to a token if a key is needed.
pub(super) fn takes_no_tokens() -> Response {
    plain(StatusCode::CONFLICT, "this page accepts no tokens: it is served by `memctl ui`\n".to_owned())
}

/// `POST /logout`: ends the cookie. The token stays valid until it is revoked.
pub(super) async fn logout(
    State(room): State<Room>,
    encrypted: Option<Extension<Encrypted>>,
    headers: HeaderMap,
) -> Response {
    if !from_this_page(&headers) {
        return elsewhere();
    }
    let encrypted = encrypted.is_some_and(|Extension(Encrypted(encrypted))| encrypted);
    match &room.auth {
        Authentication::Gate(_) => set(StatusCode::NO_CONTENT, &cookie_of(TOKEN_COOKIE, "", encrypted, true)),
        Authentication::Key(key) => key.ended(),
    }
}

/// `GET /enter?key=…`: turns the key into a cookie, and redirects to the page's address without the key.
pub(super) async fn enter(State(room): State<Room>, method: Method, uri: Uri, headers: HeaderMap) -> Response {
    let Authentication::Key(key) = &room.auth else {
        return plain(StatusCode::NOT_FOUND, "this daemon uses tokens, not keys: the page is at /\n".to_owned());
    };
    exchanged(key, &method, &uri, &headers)
}

/// The response to a caller with a key: it sets the cookie and redirects to the page.
pub(super) fn exchanged(key: &Key, method: &Method, uri: &Uri, headers: &HeaderMap) -> Response {
    // The router treats HEAD as GET, but a HEAD request must not use up the key.
    if *method != Method::GET {
        return StatusCode::NO_CONTENT.into_response();
    }
    let home = [(LOCATION, HeaderValue::from_static("/")), (CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    if key.knows(headers) {
        return (StatusCode::SEE_OTHER, home).into_response();
    }
    let shown = Params::of(uri).ok().and_then(|asked| asked.text("key").map(str::to_owned)).unwrap_or_default();
    if !key.exchange(&shown) {
        return plain(
            StatusCode::FORBIDDEN,
            "this address was used before, or belongs to another process: end `memctl ui` and start it again for a new one\n"
                .to_owned(),
        );
    }
    let mut answer = set(StatusCode::SEE_OTHER, &cookie_of(&key.cookie, &key.session, false, false));
    answer.headers_mut().extend(home);
    answer
}

fn set(status: StatusCode, cookie: &str) -> Response {
    match HeaderValue::try_from(cookie) {
        Ok(cookie) => {
            (status, [(SET_COOKIE, cookie), (CACHE_CONTROL, HeaderValue::from_static("no-store"))]).into_response()
        }
        Err(_) => plain(StatusCode::BAD_REQUEST, "this is not a token: tokens look like memctl_…_…\n".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(of: &[(&'static str, &str)]) -> HeaderMap {
        of.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_key_opens_once_and_its_cookie_as_long_as_it_is_shown() {
        let (key, path) = Key::new(1234).unwrap();
        let once = path.strip_prefix(ENTER).unwrap();
        assert!(!key.exchange("") && !key.exchange(&once[1..]) && !key.exchange(&key.session.clone()));
        assert!(key.exchange(once) && !key.exchange(once), "once");
        let shown = |value: &str| key.knows(&headers(&[("cookie", &format!("a=b; memctl-ui-1234={value}"))]));
        assert!(shown(&key.session) && !shown(once) && !shown(""));
        assert!(!key.knows(&headers(&[("cookie", &format!("memctl-ui-1={}", key.session))])), "another port's");
    }

    #[test]
    fn what_changes_something_comes_from_the_page() {
        for (of, right) in [
            (&[("sec-fetch-site", "same-origin")][..], true),
            (&[("sec-fetch-site", "same-site"), ("origin", "http://a:1"), ("host", "a:1")], false),
            (&[("sec-fetch-site", "cross-site")], false),
            (&[("sec-fetch-site", "none")], false),
            (&[("origin", "https://a:1"), ("host", "a:1")], true),
            (&[("origin", "https://a:2"), ("host", "a:1")], false),
            (&[("origin", "null"), ("host", "null")], false),
            (&[("host", "a:1")], false),
            (&[], false),
        ] {
            assert_eq!(from_this_page(&headers(of)), right, "{of:?}");
        }
    }

    #[test]
    fn only_names_that_cannot_be_made_to_point_here() {
        for (host, right) in [
            ("127.0.0.1:9717", true),
            ("127.0.0.1", true),
            ("[::1]:9717", true),
            ("[::1]", true),
            ("localhost:9717", true),
            ("LOCALHOST", true),
            ("example.org:9717", false),
            ("localhost.example.org", false),
            ("127.0.0.1.example.org:80", false),
            ("", false),
        ] {
            assert_eq!(names_this_machine(&headers(&[("host", host)])), right, "{host}");
        }
        assert!(names_this_machine(&HeaderMap::new()));
    }

    #[test]
    fn a_cookie_is_out_of_reach() {
        assert_eq!(cookie_of("n", "v", true, false), "n=v; Path=/; HttpOnly; SameSite=Strict; Secure");
        assert_eq!(cookie_of("n", "", false, true), "n=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0");
    }
}
