//! The rules: which findings become alerts, when, and which receivers are notified.
//!
//! Guarantees: a file is checked completely before the daemon starts. An error names file, line, rule, key and the
//! remedy. The rules in force can be printed as a file, without secrets.
//! Refuses: unknown keys.

mod read;
mod render;

use std::path::{Path, PathBuf};

use memctl_model::{Finding, FindingKind, Severity};

pub use read::RulesError;

/// The built-in rules, as the rules file that `memctl alerts rules` prints.
pub const DEFAULT: &str = include_str!("default.toml");
/// The origin of the built-in rules.
pub const BUILT_IN: &str = "built in";

/// The contents of a rules file.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// Where the rules come from.
    pub origin: String,
    /// The base URL of links in notifications.
    pub external_url: String,
    /// An alert whose finding was not seen for this long resolves.
    pub resolve_after_ns: u64,
    /// How long an alert keeps firing after its finding disappeared, while its run is still running.
    pub keep_firing_ns: u64,
    /// Whether imported jobs raise alerts.
    pub imported: bool,
    /// Labels of jobs that alerts pass on.
    pub job_labels: Vec<String>,
    /// The rules; names are unique.
    pub rules: Vec<Rule>,
    /// The receivers; names are unique.
    pub receivers: Vec<Receiver>,
}

/// One rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Its name, which is the alert's name.
    pub name: String,
    /// The kinds of findings that it selects.
    pub kinds: Vec<FindingKind>,
    /// The mildest severity that it selects.
    pub severity: Severity,
    /// The lowest confidence that it selects, 0..1.
    pub confidence: f64,
    /// Selects only findings with at most this many seconds until out of memory.
    pub horizon_seconds: Option<f64>,
    /// Selects only findings with at most this many epochs until out of memory. One of the two horizons suffices.
    pub horizon_epochs: Option<f64>,
    /// How long a finding must persist before the alert fires.
    pub for_ns: u64,
    /// The time after which webhooks and commands are notified again.
    pub repeat_ns: u64,
    /// Labels of its alerts.
    pub labels: Vec<(String, String)>,
    /// Annotations of its alerts.
    pub annotations: Vec<(String, String)>,
    /// Names of the receivers to notify.
    pub receivers: Vec<String>,
}

/// A receiver of notifications.
#[derive(Clone, Debug, PartialEq)]
pub struct Receiver {
    /// Its name.
    pub name: String,
    /// The timeout of one attempt.
    pub timeout_ns: u64,
    /// How it is notified.
    pub kind: ReceiverKind,
}

/// How a receiver is notified.
#[derive(Clone, Debug, PartialEq)]
pub enum ReceiverKind {
    /// A webhook, with messages in Alertmanager's webhook format, version 4.
    Webhook(Http),
    /// Alertmanager's own API, which is notified again every `resend_ns`.
    Alertmanager {
        /// The base URL; `/api/v2/alerts` is appended.
        http: Http,
        /// How often a firing alert is sent again.
        resend_ns: u64,
    },
    /// A program, with the webhook's JSON on its standard input.
    Command(Vec<String>),
}

/// An address and the authentication for it.
#[derive(Clone, PartialEq)]
pub struct Http {
    /// `http://` or `https://`.
    pub url: String,
    /// Headers; their values may be secrets.
    pub headers: Vec<(String, String)>,
    /// The file with a token for `Authorization: Bearer`.
    pub bearer_token_file: Option<PathBuf>,
    /// Authorities to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// The client certificate of the daemon, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The values of headers are left out.
impl std::fmt::Debug for Http {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let headers: Vec<&String> = self.headers.iter().map(|(name, _)| name).collect();
        let Self { url, bearer_token_file, ca_file, identity, .. } = self;
        f.debug_struct("Http")
            .field("url", url)
            .field("headers", &headers)
            .field("bearer_token_file", bearer_token_file)
            .field("ca_file", ca_file)
            .field("identity", identity)
            .finish()
    }
}

impl Default for Rules {
    fn default() -> Self {
        // A test reads the built-in rules, so this does not hide an error.
        read::built_in().unwrap_or_else(|_| Self {
            origin: BUILT_IN.into(),
            external_url: String::new(),
            resolve_after_ns: 24 * 3_600_000_000_000,
            keep_firing_ns: 0,
            imported: false,
            job_labels: Vec::new(),
            rules: Vec::new(),
            receivers: Vec::new(),
        })
    }
}

impl Rules {
    /// Reads the rules of a file.
    ///
    /// # Errors
    /// The first fault in the file.
    pub fn from_file(path: &Path) -> Result<Self, RulesError> {
        let origin = path.display().to_string();
        let bytes = read::bounded(path).map_err(|reason| RulesError::unreadable(&origin, reason))?;
        Self::parse(&bytes, &origin)
    }

    /// Reads the rules of a text. Errors name it `origin`.
    ///
    /// # Errors
    /// The first fault in the text.
    pub fn parse(text: &str, origin: &str) -> Result<Self, RulesError> {
        read::rules(text, origin)
    }

    /// The rule with a name.
    #[must_use]
    pub fn rule(&self, name: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.name == name)
    }

    /// The receiver with a name.
    #[must_use]
    pub fn receiver(&self, name: &str) -> Option<&Receiver> {
        self.receivers.iter().find(|receiver| receiver.name == name)
    }

    /// The rules in force as a rules file. The built-in file is returned with its comments.
    #[must_use]
    pub fn to_toml(&self, shown: ReceiverDetail) -> String {
        if self.origin == BUILT_IN { DEFAULT.to_owned() } else { render::toml(self, shown) }
    }
}

/// How much of the receivers is shown. Addresses and commands may contain secrets (in the paths of webhooks, in
/// arguments).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiverDetail {
    /// Everything except the values of headers.
    Everything,
    /// Names and kinds.
    Names,
}

impl Http {
    /// The address without its path and query, which may be secrets; for logs and errors.
    #[must_use]
    pub fn origin(&self) -> String {
        let uri: hyper::Uri = self.url.parse().unwrap_or_default();
        let (scheme, authority) = (uri.scheme_str().unwrap_or("http"), uri.authority());
        format!("{scheme}://{}", authority.map_or("", hyper::http::uri::Authority::as_str))
    }
}

impl Rule {
    /// Whether this rule selects a finding. Suspected findings are never selected, even by a mild rule.
    #[must_use]
    pub fn takes(&self, finding: &Finding) -> bool {
        let within =
            |left: Option<f64>, horizon: Option<f64>| left.zip(horizon).is_some_and(|(left, horizon)| left <= horizon);
        let near = self.horizon_seconds.is_none() && self.horizon_epochs.is_none()
            || within(finding.time_to_oom_seconds, self.horizon_seconds)
            || within(finding.epochs_to_oom, self.horizon_epochs)
            // A finding of this kind is near out of memory by definition and needs no growth rate.
            || finding.kind == FindingKind::NearOom;
        self.kinds.contains(&finding.kind)
            && !finding.is_suspected
            && finding.severity >= self.severity
            && finding.confidence >= self.confidence
            && near
    }
}

impl Receiver {
    /// `webhook`, `alertmanager` or `command`.
    #[must_use]
    pub const fn kind_name(&self) -> &'static str {
        match self.kind {
            ReceiverKind::Webhook(_) => "webhook",
            ReceiverKind::Alertmanager { .. } => "alertmanager",
            ReceiverKind::Command(_) => "command",
        }
    }

    /// The time after which a firing alert is sent again.
    #[must_use]
    pub const fn repeat_ns(&self, rule_repeat_ns: u64) -> u64 {
        match self.kind {
            ReceiverKind::Alertmanager { resend_ns, .. } => resend_ns,
            ReceiverKind::Webhook(_) | ReceiverKind::Command(_) => rule_repeat_ns,
        }
    }
}

#[cfg(test)]
mod tests;
