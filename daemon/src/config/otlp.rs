//! OpenTelemetry's variables: where metrics are sent, how, how often, and with which attributes.
//!
//! Guarantees: without an endpoint nothing is sent. A variable for metrics takes precedence over the one for all
//! signals. An error about an invalid value states what to do, before the daemon opens anything.
//! Refuses: unsupported protocols, and names and passwords in an endpoint, which would be logged.

use std::path::PathBuf;
use std::time::Duration;

use hyper::Uri;
use hyper::header::{HeaderName, HeaderValue};

use crate::url_text::decoded;

/// Every variable that is read.
pub const VARIABLES: [&str; 19] = [
    "OTEL_SDK_DISABLED",
    "OTEL_METRICS_EXPORTER",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
    "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT",
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_METRICS_CLIENT_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_KEY",
    "OTEL_EXPORTER_OTLP_METRICS_CLIENT_KEY",
    "OTEL_METRIC_EXPORT_INTERVAL",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_SERVICE_NAME",
];
/// The path for metrics, which is appended to the HTTP endpoint of all signals.
const METRICS_PATH: &str = "/v1/metrics";
/// The path of the gRPC method.
const METHOD: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";
/// OpenTelemetry's own defaults.
const TIMEOUT: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_secs(60);
/// The shortest interval. A shorter one is not useful, and a typing error must not keep the daemon busy.
const INTERVAL_LEAST: Duration = Duration::from_millis(100);

/// How messages are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Each message is a POST over HTTP/1.1.
    Http,
    /// Each message is a gRPC call.
    Grpc,
}

/// Where and how metrics are sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The endpoint.
    pub endpoint: Uri,
    /// The protocol.
    pub protocol: Protocol,
    /// Headers of every message. Their values are secrets.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Timeout for the delivery of a message.
    pub timeout: Duration,
    /// Time between two exports.
    pub interval: Duration,
    /// Attributes of this daemon, by key.
    pub resource: Vec<(String, String)>,
    /// The authorities to trust instead of the system's, in PEM.
    pub ca_file: Option<PathBuf>,
    /// The client certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// An invalid variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The variable.
    pub variable: &'static str,
    /// The reason why the variable is invalid.
    pub reason: String,
}

/// The variables by name. An empty one counts as unset.
struct Variables<'a>(&'a dyn Fn(&str) -> Option<String>);

impl Variables<'_> {
    fn of(&self, name: &'static str) -> Option<(&'static str, String)> {
        (self.0)(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()).map(|text| (name, text))
    }

    /// The variable for metrics, otherwise the variable for all signals.
    fn either(&self, metrics: &'static str, all: &'static str) -> Option<(&'static str, String)> {
        self.of(metrics).or_else(|| self.of(all))
    }

    fn is(&self, name: &'static str, wanted: &str) -> bool {
        self.of(name).is_some_and(|(_, text)| text.eq_ignore_ascii_case(wanted))
    }

    fn milliseconds(&self, found: Option<(&'static str, String)>, default: Duration) -> Result<Duration, Wrong> {
        let Some((variable, text)) = found else { return Ok(default) };
        let reason = || Wrong { variable, reason: format!("{text:?} is not a number of milliseconds above 0") };
        text.parse().ok().filter(|ms: &u64| *ms > 0).map(Duration::from_millis).ok_or_else(reason)
    }
}

impl Settings {
    /// Reads the variables; `None` if nothing is to be sent.
    ///
    /// # Errors
    /// The first invalid variable.
    pub fn of(variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>, Wrong> {
        let variables = Variables(variable);
        if variables.is("OTEL_SDK_DISABLED", "true") || variables.is("OTEL_METRICS_EXPORTER", "none") {
            return Ok(None);
        }
        let of_metrics = variables.of("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT");
        let is_whole = of_metrics.is_some();
        let Some((name, text)) = of_metrics.or_else(|| variables.of("OTEL_EXPORTER_OTLP_ENDPOINT")) else {
            return Ok(None);
        };
        let protocol = protocol(&variables)?;
        let timeout = variables.either("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT");
        let interval = variables.milliseconds(variables.of("OTEL_METRIC_EXPORT_INTERVAL"), INTERVAL)?;
        let file = |metrics, all| variables.either(metrics, all).map(|(_, path)| PathBuf::from(path));
        let cert = file("OTEL_EXPORTER_OTLP_METRICS_CLIENT_CERTIFICATE", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE");
        let key = file("OTEL_EXPORTER_OTLP_METRICS_CLIENT_KEY", "OTEL_EXPORTER_OTLP_CLIENT_KEY");
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => {
                let reason = "a certificate needs its key: set OTEL_EXPORTER_OTLP_CLIENT_KEY as well".to_owned();
                return Err(Wrong { variable: "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", reason });
            }
        };
        Ok(Some(Self {
            endpoint: endpoint(&text, protocol, is_whole).map_err(|reason| Wrong { variable: name, reason })?,
            protocol,
            headers: headers(&variables)?,
            timeout: variables.milliseconds(timeout, TIMEOUT)?,
            interval: interval.max(INTERVAL_LEAST),
            resource: resource(&variables)?,
            ca_file: file("OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"),
            identity,
        }))
    }
}

fn protocol(variables: &Variables<'_>) -> Result<Protocol, Wrong> {
    match variables.either("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL") {
        None => Ok(Protocol::Http),
        Some((variable, text)) => match text.as_str() {
            "http/protobuf" => Ok(Protocol::Http),
            "grpc" => Ok(Protocol::Grpc),
            other => Err(Wrong {
                variable,
                reason: format!(
                    "{other:?} is not supported: set http/protobuf or grpc, or OTEL_METRICS_EXPORTER=none to send no metrics"
                ),
            }),
        },
    }
}

/// The address for messages. An endpoint for metrics is used unchanged; to the endpoint of all signals, the path of
/// metrics is appended.
fn endpoint(text: &str, protocol: Protocol, is_whole: bool) -> Result<Uri, String> {
    let wrong = || "it is not an address such as http://127.0.0.1:4318 or https://otel.example.org".to_owned();
    let base: Uri = text.parse().map_err(|_| wrong())?;
    let (Some("http" | "https"), Some(authority)) = (base.scheme_str(), base.authority()) else { return Err(wrong()) };
    if authority.as_str().contains('@') {
        return Err("a name and a password do not belong there: set OTEL_EXPORTER_OTLP_HEADERS".into());
    }
    let path = match protocol {
        Protocol::Grpc => METHOD.to_owned(),
        Protocol::Http if is_whole => base.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
        Protocol::Http => format!("{}{METRICS_PATH}", base.path().trim_end_matches('/')),
    };
    let mut parts = base.into_parts();
    parts.path_and_query = Some(path.parse().map_err(|_| wrong())?);
    Uri::from_parts(parts).map_err(|_| wrong())
}

fn headers(variables: &Variables<'_>) -> Result<Vec<(HeaderName, HeaderValue)>, Wrong> {
    let found = variables.either("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS");
    let Some((variable, text)) = found else { return Ok(Vec::new()) };
    let header = |(name, value): (String, String)| {
        let mut value = HeaderValue::try_from(value).ok()?;
        value.set_sensitive(true);
        Some((HeaderName::try_from(name).ok()?, value))
    };
    // The error does not include the value, which may be a secret.
    let wrong = || Wrong { variable, reason: "it must list headers such as authorization=Bearer%20TOKEN".into() };
    pairs(&text).and_then(|pairs| pairs.into_iter().map(header).collect()).ok_or_else(wrong)
}

fn resource(variables: &Variables<'_>) -> Result<Vec<(String, String)>, Wrong> {
    let mut attributes = match variables.of("OTEL_RESOURCE_ATTRIBUTES") {
        None => Vec::new(),
        Some((variable, text)) => {
            let reason = format!("{text:?} is not a list such as deployment.environment=test,team=vision");
            pairs(&text).ok_or(Wrong { variable, reason })?
        }
    };
    if let Some((_, name)) = variables.of("OTEL_SERVICE_NAME") {
        attributes.retain(|(key, _)| key != "service.name");
        attributes.push(("service.name".into(), name));
    }
    let mut random = [0; 16];
    // Without random numbers, all daemons of the same name have the same instance id.
    let _ = getrandom::fill(&mut random);
    let instance: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    for (key, value) in
        [("service.name", "memctl"), ("service.version", env!("CARGO_PKG_VERSION")), ("service.instance.id", &instance)]
    {
        if attributes.iter().all(|(known, _)| known != key) {
            attributes.push((key.into(), value.into()));
        }
    }
    Ok(attributes)
}

/// Parses `a=b,c=d` with percent-encoded values. If a key occurs twice, the last value counts.
fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let mut found: Vec<(String, String)> = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=')?;
        let (key, value) = (key.trim(), decoded(value.trim())?);
        if key.is_empty() {
            return None;
        }
        found.retain(|(known, _)| known != key);
        found.push((key.to_owned(), value));
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&'static str, &str)]) -> Result<Option<Settings>, Wrong> {
        assert!(variables.iter().all(|(name, _)| VARIABLES.contains(name)), "{variables:?}");
        Settings::of(&|name| variables.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned()))
    }

    const ALL: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
    const METRICS: &str = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT";
    const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";

    #[test]
    fn nothing_is_sent_without_an_address() {
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[(ALL, "")]), Ok(None));
        assert_eq!(of(&[("OTEL_METRIC_EXPORT_INTERVAL", "1"), ("OTEL_SERVICE_NAME", "x")]), Ok(None));
        assert_eq!(of(&[(ALL, "http://h"), ("OTEL_SDK_DISABLED", "True")]), Ok(None));
        assert_eq!(of(&[(ALL, "http://h"), ("OTEL_METRICS_EXPORTER", "none")]), Ok(None));
        assert!(of(&[(ALL, "http://h"), ("OTEL_SDK_DISABLED", "false")]).unwrap().is_some());
    }

    #[test]
    fn the_endpoint_is_where_the_protocol_wants_it() {
        let at = |variables: &[(&'static str, &str)]| of(variables).unwrap().unwrap().endpoint.to_string();
        assert_eq!(at(&[(ALL, "http://h:4318")]), "http://h:4318/v1/metrics");
        assert_eq!(at(&[(ALL, "https://h/otlp/")]), "https://h/otlp/v1/metrics");
        assert_eq!(at(&[(ALL, "http://h:4318"), (METRICS, "http://m:1/own?a=b")]), "http://m:1/own?a=b");
        assert_eq!(at(&[(METRICS, "http://m:1")]), "http://m:1/");
        assert_eq!(at(&[(METRICS, "http://m:1"), (PROTOCOL, "grpc")]), format!("http://m:1{METHOD}"));
        for wrong in ["h:4318", "ftp://h", "http://", "/v1", "http://name:s3cret@h"] {
            let refused = of(&[(ALL, wrong)]).unwrap_err();
            assert_eq!(refused.variable, ALL, "{wrong}");
            assert!(!refused.reason.contains("s3cret"), "{}", refused.reason);
        }
    }

    #[test]
    fn headers_attributes_and_times_are_read_as_opentelemetry_writes_them() {
        let settings = of(&[
            (ALL, "http://h"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-all=1"),
            ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "Authorization=Bearer%20a%2Cb, x-two = 2"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=old,team=vision%3D1,service.instance.id=seven"),
            ("OTEL_SERVICE_NAME", "gpu memory"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "1500"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "1"),
        ])
        .unwrap()
        .unwrap();
        let headers: Vec<_> =
            settings.headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(headers, [("authorization", "Bearer a,b"), ("x-two", "2")]);
        let attribute = |key: &str| {
            let found: Vec<_> = settings.resource.iter().filter(|(known, _)| known == key).collect();
            assert_eq!(found.len(), 1, "{key}");
            found[0].1.clone()
        };
        assert_eq!(attribute("service.name"), "gpu memory");
        assert_eq!(attribute("team"), "vision=1");
        assert_eq!(attribute("service.instance.id"), "seven");
        assert_eq!((settings.timeout, settings.interval), (Duration::from_millis(1_500), INTERVAL_LEAST));
    }

    #[test]
    fn what_cannot_be_is_named() {
        for (variable, text) in [
            (PROTOCOL, "http/json"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "1s"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "0"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "-1"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "secret"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=%zz"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a b=c"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=%0d%0ax: y"),
            ("OTEL_RESOURCE_ATTRIBUTES", "=x"),
            ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "/c"),
        ] {
            let refused = of(&[(ALL, "http://h"), (variable, text)]).unwrap_err();
            assert_eq!(refused.variable, variable, "{text}");
            assert!(!refused.reason.contains("secret"));
        }
    }
}
