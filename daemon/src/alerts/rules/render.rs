//! Writes the rules in force as a rules file.
//!
//! Guarantees: reading the file yields the same rules. The values of headers, which may be secrets, are left out. With
//! [`ReceiverDetail::Names`], receivers have only names and kinds, without addresses and commands.

use std::fmt::Write as _;

use super::{Http, ReceiverDetail, ReceiverKind, Rules};

const SECOND_NS: u64 = 1_000_000_000;

/// The rules file as text.
pub(super) fn toml(rules: &Rules, shown: ReceiverDetail) -> String {
    let Rules { origin, external_url, resolve_after_ns, keep_firing_ns, imported, job_labels, rules, receivers } =
        rules;
    let mut out = format!("# The alert rules in force, read from {}.\n\n", origin.escape_default());
    let key = |out: &mut String, name: &str, value: String| {
        // Writing into a string cannot fail.
        let _ = writeln!(out, "{name} = {value}");
    };
    if !external_url.is_empty() {
        key(&mut out, "external_url", text(external_url));
    }
    key(&mut out, "resolve_after", text(&time(*resolve_after_ns)));
    key(&mut out, "keep_firing_for", text(&time(*keep_firing_ns)));
    key(&mut out, "imported", imported.to_string());
    key(&mut out, "job_labels", list(job_labels));
    key(&mut out, "default_rules", "false".into());
    for receiver in receivers {
        out.push_str("\n[[receiver]]\n");
        key(&mut out, "name", text(&receiver.name));
        key(&mut out, "type", text(receiver.kind_name()));
        key(&mut out, "timeout", text(&time(receiver.timeout_ns)));
        match &receiver.kind {
            _ if shown == ReceiverDetail::Names => {
                out.push_str("# the address is only shown to operators of all tenants\n")
            }
            ReceiverKind::Webhook(to) => http(&mut out, to),
            ReceiverKind::Alertmanager { http: to, resend_ns } => {
                http(&mut out, to);
                key(&mut out, "resend", text(&time(*resend_ns)));
            }
            ReceiverKind::Command(command) => key(&mut out, "command", list(command)),
        }
    }
    for rule in rules {
        out.push_str("\n[[rule]]\n");
        key(&mut out, "name", text(&rule.name));
        let kinds: Vec<String> = rule.kinds.iter().map(|kind| kind.name().to_owned()).collect();
        key(&mut out, "kinds", list(&kinds));
        key(&mut out, "severity", text(rule.severity.name()));
        key(&mut out, "confidence", format!("{:?}", rule.confidence));
        if let Some(seconds) = rule.horizon_seconds {
            key(&mut out, "horizon", text(&format!("{}s", seconds as u64)));
        }
        if let Some(epochs) = rule.horizon_epochs {
            key(&mut out, "horizon_epochs", format!("{epochs:?}"));
        }
        key(&mut out, "for", text(&time(rule.for_ns)));
        key(&mut out, "repeat", text(&time(rule.repeat_ns)));
        key(&mut out, "labels", table(&rule.labels));
        key(&mut out, "annotations", table(&rule.annotations));
        key(&mut out, "receivers", list(&rule.receivers));
    }
    out
}

fn http(out: &mut String, http: &Http) {
    let mut key = |name: &str, value: String| {
        let _ = writeln!(out, "{name} = {value}");
    };
    key("url", text(&http.url));
    if !http.headers.is_empty() {
        let names: Vec<String> = http.headers.iter().map(|(name, _)| name.escape_default().to_string()).collect();
        key("# headers that are not shown", names.join(", "));
    }
    let (cert_file, key_file) = http.identity.as_ref().map(|(cert, key)| (cert, key)).unzip();
    let (token, ca) = (http.bearer_token_file.as_ref(), http.ca_file.as_ref());
    for (name, path) in
        [("bearer_token_file", token), ("ca_file", ca), ("cert_file", cert_file), ("key_file", key_file)]
    {
        if let Some(path) = path {
            key(name, text(&path.to_string_lossy()));
        }
    }
}

/// A duration in the file's notation.
pub(super) fn time(ns: u64) -> String {
    for (unit, seconds) in [("d", 86_400), ("h", 3_600), ("m", 60)] {
        let unit_ns = seconds * SECOND_NS;
        if ns >= unit_ns && ns.is_multiple_of(unit_ns) {
            return format!("{}{unit}", ns / unit_ns);
        }
    }
    format!("{}s", ns / SECOND_NS)
}

fn text(text: &str) -> String {
    // Text is escaped so that TOML and JSON both accept it.
    toml::Value::String(text.to_owned()).to_string()
}

fn list(texts: &[String]) -> String {
    format!("[{}]", texts.iter().map(|it| text(it)).collect::<Vec<_>>().join(", "))
}

fn table(pairs: &[(String, String)]) -> String {
    let pairs: Vec<String> = pairs.iter().map(|(name, value)| format!("{} = {}", text(name), text(value))).collect();
    if pairs.is_empty() { "{}".into() } else { format!("{{ {} }}", pairs.join(", ")) }
}
