//! Reads a rules file. Every value has its line, and every error has the remedy.
//!
//! Guarantees: nothing is guessed: unknown keys, kinds, receivers and units are errors. Texts, lists and the file
//! itself are bounded.
//!
//! Refuses: of other files, only the certificates that the rules name are opened.
//!
//! (Over 400 lines: one function for each kind of table and of value, and the text of their errors.)

use std::io::Read as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memctl_model::limits::LABEL_BYTES_MAX;
use memctl_model::{FindingKind, Severity};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{BUILT_IN, DEFAULT, Http, Receiver, ReceiverKind, Rule, Rules};
use crate::quantity::duration_ns;

const FILE_BYTES_MAX: u64 = 1 << 20;
const RULES_MAX: usize = 256;
const RECEIVERS_MAX: usize = 32;
const TEXT_BYTES_MAX: usize = 4_096;
/// The most labels (or annotations, or headers) of one rule or receiver, and the most bytes of a value. They are
/// bounded because they are sent with every alert.
const PAIRS_MAX: usize = 16;
const PAIR_BYTES_MAX: usize = 1_024;
const SECOND_NS: u64 = 1_000_000_000;
/// Labels that memctl sets itself.
const OWN_LABELS: [&str; 5] = ["alertname", "job", "kind", "severity", "fingerprint"];
/// Annotations that memctl sets itself.
const OWN_ANNOTATIONS: [&str; 4] = ["summary", "description", "advice", "ranks"];

/// An error in a rules file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("alert rules {origin}{}: {place}{reason}", line.map(|line| format!(", line {line}")).unwrap_or_default())]
pub struct RulesError {
    origin: String,
    line: Option<usize>,
    /// `rule "MemoryLeak", key "kinds": `, or nothing.
    place: String,
    reason: String,
}

impl RulesError {
    pub(super) fn unreadable(origin: &str, reason: String) -> Self {
        Self { origin: origin.into(), line: None, place: String::new(), reason }
    }
}

/// The text of a file within the size limit of a rules file.
pub(super) fn bounded(path: &Path) -> Result<String, String> {
    let file = std::fs::File::open(path).map_err(|error| format!("cannot be read: {error}"))?;
    let mut text = String::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| format!("cannot be read: {error}"))?;
    if text.len() as u64 > FILE_BYTES_MAX { Err("is larger than 1 MiB".into()) } else { Ok(text) }
}

pub(super) fn built_in() -> Result<Rules, RulesError> {
    Source { text: DEFAULT, origin: BUILT_IN }.rules(None)
}

pub(super) fn rules(text: &str, origin: &str) -> Result<Rules, RulesError> {
    Source { text, origin }.rules(Some(built_in()?))
}

#[derive(Clone, Copy)]
struct Source<'t> {
    text: &'t str,
    origin: &'t str,
}

/// A table with its position in the file, for errors.
struct Section<'t> {
    source: Source<'t>,
    name: String,
    table: &'t DeTable<'t>,
    span: Range<usize>,
}

impl<'t> Source<'t> {
    fn error(self, span: Option<Range<usize>>, place: String, reason: impl Into<String>) -> RulesError {
        let line = span.map(|span| self.text[..span.start.min(self.text.len())].matches('\n').count() + 1);
        RulesError { origin: self.origin.to_owned(), line, place, reason: reason.into() }
    }

    fn rules(self, built_in: Option<Rules>) -> Result<Rules, RulesError> {
        let tree = DeTable::parse(self.text).map_err(|error| {
            self.error(error.span(), String::new(), format!("this is not TOML: {}", error.message()))
        })?;
        let top = Section { source: self, name: String::new(), table: tree.get_ref(), span: tree.span() };
        top.only(&[
            "external_url",
            "resolve_after",
            "keep_firing_for",
            "imported",
            "job_labels",
            "default_rules",
            "receiver",
            "rule",
        ])?;
        let receivers = top.sections("receiver", RECEIVERS_MAX)?.iter().map(receiver).collect::<Result<Vec<_>, _>>()?;
        let names: Vec<String> = receivers.iter().map(|receiver| receiver.name.clone()).collect();
        let mut rules: Vec<Rule> = match &built_in {
            Some(built_in) if top.flag("default_rules")?.unwrap_or(true) => built_in.rules.clone(),
            _ => Vec::new(),
        };
        for rule in &mut rules {
            rule.receivers.clone_from(&names);
        }
        let mut own: Vec<String> = Vec::new();
        for section in &top.sections("rule", RULES_MAX)? {
            let (rule, enabled) = rule(section, &names)?;
            if own.contains(&rule.name) {
                return Err(section.error("name", "there are two rules of this name; rename or remove one"));
            }
            own.push(rule.name.clone());
            rules.retain(|other| other.name != rule.name);
            if enabled {
                rules.push(rule);
            }
        }
        let external_url = top.text("external_url")?.unwrap_or_default();
        if !external_url.is_empty() {
            check_url(&external_url).map_err(|reason| top.error("external_url", reason))?;
        }
        let default = |of: fn(&Rules) -> u64, otherwise| built_in.as_ref().map_or(otherwise, of);
        let day = 24 * 3_600 * SECOND_NS;
        Ok(Rules {
            origin: self.origin.to_owned(),
            external_url,
            resolve_after_ns: top
                .time("resolve_after", 1, 365 * day)?
                .unwrap_or(default(|it| it.resolve_after_ns, day)),
            keep_firing_ns: top.time("keep_firing_for", 0, day)?.unwrap_or(default(|it| it.keep_firing_ns, 0)),
            imported: top.flag("imported")?.unwrap_or(false),
            job_labels: top.texts("job_labels", 16)?.unwrap_or_default(),
            rules,
            receivers: unique(&top, receivers)?,
        })
    }
}

fn unique(top: &Section<'_>, receivers: Vec<Receiver>) -> Result<Vec<Receiver>, RulesError> {
    for (at, receiver) in receivers.iter().enumerate() {
        if receivers[..at].iter().any(|other| other.name == receiver.name) {
            let reason = format!("there are two receivers {:?}; rename one", receiver.name);
            return Err(top.error("receiver", reason));
        }
    }
    Ok(receivers)
}

fn rule(section: &Section<'_>, receivers: &[String]) -> Result<(Rule, bool), RulesError> {
    section.only(&[
        "name",
        "kinds",
        "severity",
        "confidence",
        "horizon",
        "horizon_epochs",
        "for",
        "repeat",
        "labels",
        "annotations",
        "receivers",
        "enabled",
    ])?;
    let name = section.name_of()?;
    let enabled = section.flag("enabled")?.unwrap_or(true);
    let mut kinds = Vec::new();
    for name in section.texts("kinds", FindingKind::ALL.len())?.unwrap_or_default() {
        let kind = FindingKind::of_name(&name).ok_or_else(|| {
            let known: Vec<&str> = FindingKind::ALL.iter().map(|kind| kind.name()).collect();
            section.error("kinds", format!("there is no kind {name:?}; there are {}", known.join(", ")))
        })?;
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    if kinds.is_empty() && enabled {
        return Err(section.error("kinds", "is missing; name the kinds of findings that the rule is about"));
    }
    let severity = match section.text("severity")? {
        None => Severity::Warning,
        Some(name) => Severity::of_name(&name)
            .ok_or_else(|| section.error("severity", format!("{name:?} is not one of info, warning, critical")))?,
    };
    let wanted = section.texts("receivers", RECEIVERS_MAX)?;
    if let Some(unknown) = wanted.iter().flatten().find(|name| !receivers.contains(name)) {
        let known = if receivers.is_empty() {
            "no receivers are defined".to_owned()
        } else {
            format!("there are {}", receivers.join(", "))
        };
        let reason = format!("there is no receiver {unknown:?}; {known}; add a [[receiver]] of that name");
        return Err(section.error("receivers", reason));
    }
    let rule = Rule {
        kinds,
        severity,
        confidence: section.number("confidence", 0.0, 1.0)?.unwrap_or(0.0),
        horizon_seconds: section.time("horizon", 1, u64::MAX)?.map(|ns| ns as f64 / SECOND_NS as f64),
        horizon_epochs: section.number("horizon_epochs", 0.0, 1e9)?,
        for_ns: section.time("for", 0, 30 * 24 * 3_600 * SECOND_NS)?.unwrap_or(0),
        repeat_ns: section
            .time("repeat", 10 * SECOND_NS, 365 * 24 * 3_600 * SECOND_NS)?
            .unwrap_or(4 * 3_600 * SECOND_NS),
        labels: section.pairs("labels", &OWN_LABELS)?,
        annotations: section.pairs("annotations", &OWN_ANNOTATIONS)?,
        receivers: wanted.unwrap_or_else(|| receivers.to_vec()),
        name,
    };
    Ok((rule, enabled))
}

fn receiver(section: &Section<'_>) -> Result<Receiver, RulesError> {
    let name = section.name_of()?;
    if name == "log" {
        return Err(section.error("name", "`log` is the built-in receiver; choose another name"));
    }
    const HTTP: [&str; 9] =
        ["name", "type", "timeout", "url", "headers", "bearer_token_file", "ca_file", "cert_file", "key_file"];
    let (kind, most) = match section.text("type")?.as_deref() {
        Some("webhook") => {
            section.only(&HTTP)?;
            (ReceiverKind::Webhook(http(section)?), 60)
        }
        Some("alertmanager") => {
            section.only(&[&HTTP[..], &["resend"]].concat())?;
            let resend_ns = section.time("resend", SECOND_NS, 3_600 * SECOND_NS)?.unwrap_or(60 * SECOND_NS);
            (ReceiverKind::Alertmanager { http: http(section)?, resend_ns }, 60)
        }
        Some("command") => {
            section.only(&["name", "type", "timeout", "command"])?;
            let command = section.texts("command", 64)?.unwrap_or_default();
            if command.first().is_none_or(String::is_empty) {
                return Err(
                    section.error("command", "is missing; write it as a list: [\"/path/to/program\", \"argument\"]")
                );
            }
            (ReceiverKind::Command(command), 300)
        }
        other => {
            let found = other.map_or("is missing".to_owned(), |other| format!("{other:?} is not a type"));
            return Err(section.error("type", format!("{found}; the types are webhook, alertmanager and command")));
        }
    };
    let timeout_ns = section.time("timeout", SECOND_NS / 10, most * SECOND_NS)?.unwrap_or(10 * SECOND_NS);
    Ok(Receiver { name, timeout_ns, kind })
}

fn http(section: &Section<'_>) -> Result<Http, RulesError> {
    let missing = || section.error("url", "is missing; write it like http://127.0.0.1:9093");
    let url = section.text("url")?.ok_or_else(missing)?;
    check_url(&url).map_err(|reason| section.error("url", reason))?;
    let ca_file = section.text("ca_file")?.map(PathBuf::from);
    if let Some(path) = &ca_file {
        crate::alerts::certificates::read(path).map_err(|reason| section.error("ca_file", reason))?;
    }
    let headers = section.pairs("headers", &[])?;
    for (name, value) in &headers {
        if hyper::header::HeaderName::try_from(name).is_err() || hyper::header::HeaderValue::try_from(value).is_err() {
            return Err(section.error("headers", format!("{name:?} is not a valid HTTP header")));
        }
    }
    let file = |key| Ok::<_, RulesError>(section.text(key)?.map(PathBuf::from));
    let identity = match (file("cert_file")?, file("key_file")?) {
        (Some(cert), Some(key)) => {
            crate::alerts::certificates::identity(&cert, &key).map_err(|reason| section.error("cert_file", reason))?;
            Some((cert, key))
        }
        (None, None) => None,
        (Some(_), None) => return Err(section.error("cert_file", "needs key_file as well".to_owned())),
        (None, Some(_)) => return Err(section.error("key_file", "needs cert_file as well".to_owned())),
    };
    Ok(Http { url, headers, bearer_token_file: file("bearer_token_file")?, ca_file, identity })
}

fn check_url(url: &str) -> Result<(), String> {
    let wrong = || format!("{url:?} is not a URL such as http://127.0.0.1:9093 or https://host/path");
    let parsed: hyper::Uri = url.parse().map_err(|_| wrong())?;
    let authority = parsed.authority().filter(|authority| !authority.host().is_empty()).ok_or_else(wrong)?;
    if !matches!(parsed.scheme_str(), Some("http" | "https")) {
        return Err(wrong());
    }
    // The message does not include the URL, because it contains a password.
    if authority.as_str().contains('@') {
        return Err("a URL must not contain a user and password; use headers or bearer_token_file".into());
    }
    Ok(())
}

impl<'t> Section<'t> {
    fn place(&self, key: &str) -> String {
        let key = format!("key `{key}`: ");
        if self.name.is_empty() { key } else { format!("{}, {key}", self.name) }
    }

    /// An error at a key, or at the section if the key is missing.
    fn error(&self, key: &str, reason: impl Into<String>) -> RulesError {
        let span = self.table.get(key).map_or_else(|| self.span.clone(), Spanned::span);
        self.source.error(Some(span), self.place(key), reason)
    }

    fn only(&self, known: &[&str]) -> Result<(), RulesError> {
        match self.table.keys().find(|key| !known.contains(&key.get_ref().as_ref())) {
            Some(key) => {
                let reason = format!("there is no such key; valid keys: {}", known.join(", "));
                Err(self.source.error(Some(key.span()), self.place(key.get_ref()), reason))
            }
            None => Ok(()),
        }
    }

    fn sections(&self, key: &str, most: usize) -> Result<Vec<Section<'t>>, RulesError> {
        let Some(value) = self.table.get(key) else { return Ok(Vec::new()) };
        let shape = || self.error(key, format!("write it as [[{key}]]"));
        let DeValue::Array(items) = value.get_ref() else { return Err(shape()) };
        if items.len() > most {
            return Err(self.error(key, format!("has {} entries; the limit is {most}", items.len())));
        }
        let mut sections = Vec::new();
        for (at, item) in items.iter().enumerate() {
            let DeValue::Table(table) = item.get_ref() else { return Err(shape()) };
            let name = table.get("name").and_then(|name| name.get_ref().as_str());
            let name = name.map_or_else(|| format!("{key} {}", at + 1), |name| format!("{key} {name:?}"));
            sections.push(Section { source: self.source, name, table, span: item.span() });
        }
        Ok(sections)
    }

    fn name_of(&self) -> Result<String, RulesError> {
        let good = |name: &str| {
            !name.is_empty()
                && name.len() <= 64
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
        };
        match self.text("name")? {
            Some(name) if good(&name) => Ok(name),
            Some(_) => Err(self.error("name", "may contain only letters, digits, _ and -, at most 64 characters")),
            None => Err(self.error("name", "is missing")),
        }
    }

    fn text(&self, key: &str) -> Result<Option<String>, RulesError> {
        let Some(value) = self.table.get(key) else { return Ok(None) };
        self.text_of(key, value).map(Some)
    }

    fn text_of(&self, key: &str, value: &Spanned<DeValue<'_>>) -> Result<String, RulesError> {
        match value.get_ref().as_str() {
            Some(text) if text.len() <= TEXT_BYTES_MAX && !text.contains('\0') => Ok(text.to_owned()),
            Some(_) => Err(self.error(key, format!("has more than {TEXT_BYTES_MAX} bytes, or a zero byte"))),
            None => {
                Err(self.error(key, format!("must be a quoted string, not of type {}", value.get_ref().type_str())))
            }
        }
    }

    fn texts(&self, key: &str, most: usize) -> Result<Option<Vec<String>>, RulesError> {
        let Some(value) = self.table.get(key) else { return Ok(None) };
        let Some(items) = value.get_ref().as_array() else {
            return Err(self.error(key, "must be a list: [\"a\", \"b\"]"));
        };
        if items.len() > most {
            return Err(self.error(key, format!("has {} entries; the limit is {most}", items.len())));
        }
        items.iter().map(|item| self.text_of(key, item)).collect::<Result<Vec<_>, _>>().map(Some)
    }

    fn pairs(&self, key: &str, reserved: &[&str]) -> Result<Vec<(String, String)>, RulesError> {
        let Some(value) = self.table.get(key) else { return Ok(Vec::new()) };
        let Some(table) = value.get_ref().as_table() else {
            return Err(self.error(key, format!("must be a table: {key} = {{ team = \"ml\" }}")));
        };
        let mut pairs = Vec::new();
        for (name, value) in table {
            let name = name.get_ref().as_ref();
            if reserved.contains(&name) {
                return Err(self.error(key, format!("{name:?} is reserved for memctl; choose another name")));
            }
            // The syntax of Prometheus for label names; headers have their own check.
            let label = !name.starts_with(|c: char| c.is_ascii_digit())
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            if name.is_empty() || name.len() > LABEL_BYTES_MAX || (!reserved.is_empty() && !label) {
                return Err(self.error(key, format!("{name:?} is not a label name: letters, digits and _")));
            }
            let value = self.text_of(key, value)?;
            if value.len() > PAIR_BYTES_MAX {
                return Err(self.error(key, format!("{name:?} has more than {PAIR_BYTES_MAX} bytes")));
            }
            pairs.push((name.to_owned(), value));
        }
        if pairs.len() > PAIRS_MAX {
            return Err(self.error(key, format!("has {} entries; the limit is {PAIRS_MAX}", pairs.len())));
        }
        Ok(pairs)
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, RulesError> {
        let Some(value) = self.table.get(key) else { return Ok(None) };
        value.get_ref().as_bool().map(Some).ok_or_else(|| self.error(key, "must be true or false, without quotes"))
    }

    fn number(&self, key: &str, least: f64, most: f64) -> Result<Option<f64>, RulesError> {
        let Some(value) = self.table.get(key) else { return Ok(None) };
        let digits = match value.get_ref() {
            DeValue::Float(float) => float.as_str(),
            DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str(),
            _ => "",
        };
        match digits.replace('_', "").parse::<f64>() {
            Ok(number) if (least..=most).contains(&number) => Ok(Some(number)),
            _ => Err(self.error(key, format!("must be a number from {least} to {most}"))),
        }
    }

    fn time(&self, key: &str, least_ns: u64, most_ns: u64) -> Result<Option<u64>, RulesError> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        let ns = duration_ns(&text).map_err(|error| self.error(key, error.to_string()))?;
        if (least_ns..=most_ns).contains(&ns) {
            return Ok(Some(ns));
        }
        let shown = |ns: u64| super::render::time(ns);
        Err(self.error(key, format!("{text} is not between {} and {}", shown(least_ns), shown(most_ns))))
    }
}
