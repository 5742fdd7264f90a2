//! Notifies a receiver over HTTP or HTTPS.
//!
//! Guarantees: one timeout covers a whole request (name, connection, TLS, response). The body of a response is read up
//! to a limit. Certificates are verified with the authorities of the system, or those that the rules name.
//! Refuses: redirects. Only the address in the rules is notified.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, USER_AGENT};
use hyper::{Request, Response, StatusCode, body::Incoming};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use super::Failed;
use crate::alerts::certificates;
use crate::alerts::rules::Http;

/// Bytes of a response's body that are read. The log gets fewer.
const ANSWER_BYTES_MAX: usize = 4_096;
/// Size limit of a token file.
const TOKEN_BYTES_MAX: usize = 64 << 10;

/// A receiver at an address.
pub(super) struct Peer {
    http: Http,
    url: String,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl Peer {
    /// A receiver at this address with `path` appended.
    pub(super) fn new(http: &Http, path: &str) -> Result<Self, String> {
        let tls =
            certificates::client(http.url.starts_with("https://"), http.ca_file.as_deref(), http.identity.clone())?;
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
        // Each message uses its own connection. Messages are rare, and a message sent on a connection that had died
        // would be lost.
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
        Ok(Self { http: http.clone(), url: format!("{}{path}", http.url.trim_end_matches('/')), client })
    }

    /// Posts JSON once; returns the response as text.
    pub(super) async fn post(&self, body: Vec<u8>, timeout: Duration) -> Result<String, Failed> {
        let late =
            || Failed::passing(format!("{} did not answer within {} s", self.http.origin(), timeout.as_secs_f64()));
        tokio::time::timeout(timeout, self.posted(body)).await.unwrap_or_else(|_| Err(late()))
    }

    async fn posted(&self, body: Vec<u8>) -> Result<String, Failed> {
        let request = self.request(body).await?;
        let sent = self.client.request(request).await;
        let answer = sent.map_err(|error| Failed::passing(format!("{}: {}", self.http.origin(), innermost(&error))))?;
        let status = answer.status();
        let words = words(answer).await;
        if status.is_success() {
            return Ok(format!("HTTP {status}"));
        }
        let words = if words.is_empty() { String::new() } else { format!(": {words}") };
        let reason = format!("{} answered HTTP {status}{words}", self.http.origin());
        let passing = status.is_server_error()
            || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS | StatusCode::TOO_EARLY);
        Err(Failed { reason, passing })
    }

    async fn request(&self, body: Vec<u8>) -> Result<Request<Full<Bytes>>, Failed> {
        let mut request = Request::post(&self.url)
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, concat!("memctl/", env!("CARGO_PKG_VERSION")));
        if let Some(path) = &self.http.bearer_token_file {
            let shown = path.display();
            let token = tokio::fs::read(path).await.map_err(|error| Failed::passing(format!("{shown}: {error}")))?;
            let token = std::str::from_utf8(&token).ok().map(str::trim).filter(|token| token.len() <= TOKEN_BYTES_MAX);
            let value = token.and_then(|token| HeaderValue::try_from(format!("Bearer {token}")).ok());
            let mut value = value.ok_or_else(|| Failed::passing(format!("{shown} contains no token")))?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        for (name, value) in &self.http.headers {
            request = request.header(name, value);
        }
        request
            .body(Full::new(body.into()))
            .map_err(|error| Failed::passing(format!("{}: {error}", self.http.origin())))
    }
}

/// The beginning of a response's body, on one line.
async fn words(answer: Response<Incoming>) -> String {
    let mut body = answer.into_body();
    let mut bytes = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        let data = frame.into_data().unwrap_or_default();
        bytes.extend_from_slice(&data[..data.len().min(ANSWER_BYTES_MAX - bytes.len())]);
        if bytes.len() >= ANSWER_BYTES_MAX {
            break;
        }
    }
    String::from_utf8_lossy(&bytes).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The innermost cause, which is the most specific one: "Connection refused" rather than "client error (Connect)".
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
