//! Sends one message to the receiver: a POST over HTTP/1.1 or a gRPC call over HTTP/2, by the same client.
//!
//! Guarantees: one timeout covers a whole message (name, connection, TLS, response). A response is read up to a limit.
//! Headers are never logged.
//! Refuses: redirects.

use bytes::{BufMut as _, Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, TE, USER_AGENT};
use hyper::{Request, Response, StatusCode, body::Incoming};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use memctl_proto::otlp::opentelemetry::proto::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use prost::Message as _;

use crate::alerts::certificates;
use crate::config::otlp::{Protocol, Settings};
use crate::url_text::decoded;

/// Bytes of a response that are read.
const ANSWER_BYTES_MAX: usize = 16 << 10;
/// Characters of a receiver's message that are logged.
const WORDS_MAX: usize = 300;
/// The prefix of a gRPC message: a flag (not compressed) and its length.
const PREFIX: usize = 5;

/// The receiver.
pub(super) struct Receiver {
    settings: Settings,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl Receiver {
    /// A receiver; nothing is sent yet.
    ///
    /// # Errors
    /// A file with certificates cannot be used.
    pub(super) fn new(settings: Settings) -> Result<Self, String> {
        let is_encrypted = settings.endpoint.scheme_str() == Some("https");
        let tls = certificates::client(is_encrypted, settings.ca_file.as_deref(), settings.identity.clone())?;
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
        let mut client = Client::builder(TokioExecutor::new());
        // Each message uses its own connection. Messages are rare, and a message sent on a connection that had died
        // would be lost.
        client.pool_max_idle_per_host(0);
        let client = match settings.protocol {
            Protocol::Http => client.build(builder.enable_http1().build()),
            Protocol::Grpc => client.http2_only(true).build(builder.enable_http2().build()),
        };
        Ok(Self { settings, client })
    }

    /// Delivers a message. If the receiver did not accept all of it, this returns the receiver's reason.
    ///
    /// # Errors
    /// The reason why the message was not delivered.
    pub(super) async fn deliver(&self, message: &ExportMetricsServiceRequest) -> Result<Option<String>, String> {
        let limit = self.settings.timeout;
        let late = || format!("no answer within {} s", limit.as_secs_f64());
        tokio::time::timeout(limit, self.delivered(message)).await.unwrap_or_else(|_| Err(late()))
    }

    async fn delivered(&self, message: &ExportMetricsServiceRequest) -> Result<Option<String>, String> {
        let sent = self.client.request(self.request(message)?).await;
        let answer = sent.map_err(|error| innermost(&error))?;
        let status = answer.status();
        let (body, head, tail) = read(answer).await?;
        if status != StatusCode::OK {
            return Err(format!("HTTP {status}{}", behind(&String::from_utf8_lossy(&body))));
        }
        let body = match self.settings.protocol {
            Protocol::Http => &body[..],
            Protocol::Grpc => {
                let said = |name: &str| tail.get(name).or_else(|| head.get(name)).and_then(|value| value.to_str().ok());
                match said("grpc-status") {
                    Some("0") => body.get(PREFIX..).unwrap_or_default(),
                    Some(code) => {
                        // gRPC's message is percent-encoded.
                        let words = said("grpc-message").and_then(decoded).unwrap_or_default();
                        return Err(format!("gRPC status {code}{}", behind(&words)));
                    }
                    None => return Err("the server there does not speak gRPC".into()),
                }
            }
        };
        // A body that is not an OTLP response has no information about refused points.
        let partial = ExportMetricsServiceResponse::decode(body).ok().and_then(|answer| answer.partial_success);
        let refused = partial.filter(|partial| partial.rejected_data_points > 0 || !partial.error_message.is_empty());
        Ok(refused.map(|partial| {
            format!("{} points refused{}", partial.rejected_data_points, behind(&partial.error_message))
        }))
    }

    fn request(&self, message: &ExportMetricsServiceRequest) -> Result<Request<Full<Bytes>>, String> {
        let length = message.encoded_len();
        let mut body = BytesMut::with_capacity(PREFIX + length);
        let content = match self.settings.protocol {
            Protocol::Http => HeaderValue::from_static("application/x-protobuf"),
            Protocol::Grpc => {
                body.put_u8(0);
                body.put_u32(u32::try_from(length).map_err(|_| "the message is too large".to_owned())?);
                HeaderValue::from_static("application/grpc")
            }
        };
        message.encode(&mut body).map_err(|error| error.to_string())?;
        let mut request = Request::post(self.settings.endpoint.clone());
        let agent = HeaderValue::from_static(concat!("memctl/", env!("CARGO_PKG_VERSION")));
        let te = (self.settings.protocol == Protocol::Grpc).then(|| (TE, HeaderValue::from_static("trailers")));
        let own: [(HeaderName, HeaderValue); 2] = [(CONTENT_TYPE, content), (USER_AGENT, agent)];
        for (name, value) in own.into_iter().chain(te).chain(self.settings.headers.iter().cloned()) {
            request = request.header(name, value);
        }
        request.body(Full::new(body.freeze())).map_err(|error| error.to_string())
    }
}

/// A response's body, up to the limit, and its headers and trailers.
async fn read(answer: Response<Incoming>) -> Result<(Vec<u8>, HeaderMap, HeaderMap), String> {
    let (head, mut body) = answer.into_parts();
    let (mut bytes, mut tail) = (Vec::new(), HeaderMap::new());
    while let Some(frame) = body.frame().await {
        match frame.map_err(|error| innermost(&error))?.into_data() {
            Ok(data) => bytes.extend_from_slice(&data[..data.len().min(ANSWER_BYTES_MAX - bytes.len())]),
            Err(frame) => tail = frame.into_trailers().unwrap_or_default(),
        }
        if bytes.len() >= ANSWER_BYTES_MAX {
            break;
        }
    }
    Ok((bytes, head.headers, tail))
}

/// Appends the receiver's message, on one line.
fn behind(words: &str) -> String {
    let words: String = words.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(WORDS_MAX).collect();
    if words.is_empty() { words } else { format!(": {}", words.escape_debug()) }
}

/// The innermost cause, which is the most specific one: "Connection refused" rather than "client error (Connect)".
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
