//! Builds the messages for receivers: Alertmanager's webhook format, version 4, and the body of its `/api/v2/alerts`.
//!
//! Guarantees: the JSON is valid for any names. Labels are few and change only with the alert's severity; figures and
//! ranks are annotations.
//!
//! Stacks, processes and times are never labels.

use memctl_answers::format::time::rfc3339;
use memctl_model::Severity;
use serde_json::{Map, Value, json};

use super::alert::{Alert, Phase};

/// One alert for one receiver.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// The current alert.
    pub alert: Alert,
    /// The severity of the last notification, if it differs. For Alertmanager, an alert with that severity is another
    /// alert, which must end.
    pub replaces: Option<Severity>,
}

impl Notice {
    fn labels(&self, severity: Severity) -> Map<String, Value> {
        let Alert { tenant, rule, job, finding, .. } = &self.alert;
        let mut labels = Map::new();
        // The rule's labels are added first, so that memctl's own labels override them.
        for (name, value) in &self.alert.labels {
            labels.insert(label_name(name), json!(value));
        }
        let own = [
            ("alertname", rule.as_str()),
            ("tenant", tenant),
            ("job", job),
            ("kind", &finding.kind),
            ("severity", severity.name()),
            ("fingerprint", &self.alert.id_text()),
        ];
        for (name, value) in own {
            labels.insert(name.into(), json!(value));
        }
        labels
    }

    fn annotations(&self) -> Map<String, Value> {
        let (alert, finding) = (&self.alert, &self.alert.finding);
        let mut annotations = Map::new();
        for (name, value) in &alert.annotations {
            annotations.insert(name.clone(), json!(value));
        }
        let ranks = if finding.all_ranks { format!("all ({})", alert.rank_list()) } else { alert.rank_list() };
        let run = alert.run_name();
        let own = [
            ("summary", finding.title.as_str()),
            ("description", &finding.explanation),
            ("advice", &finding.advice),
            ("ranks", &ranks),
            // An annotation and not a label, because the alert stays the same in the next run.
            ("run", &run),
        ];
        for (name, value) in own {
            // An empty annotation has no meaning, and Alertmanager drops it.
            if !value.is_empty() {
                annotations.insert(name.into(), json!(value));
            }
        }
        annotations
    }

    fn starts_at(&self) -> String {
        rfc3339(self.alert.fired_ns.unwrap_or(self.alert.since_ns))
    }

    fn resolved(&self) -> bool {
        self.alert.phase == Phase::Resolved
    }
}

/// A label name for Prometheus, which accepts letters, digits and `_`. Labels of jobs may have other characters.
fn label_name(name: &str) -> String {
    let mut out: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if out.is_empty() || out.starts_with(|c: char| c.is_ascii_digit()) {
        out.insert(0, '_');
    }
    out
}

/// The webhook message about one alert. The message's group contains only this alert, so the status of both is the
/// same. The group's labels identify the alert. They stay the same while the alert is about the same finding, also when
/// its severity changes.
#[must_use]
pub fn webhook(notice: &Notice, receiver: &str, external_url: &str) -> Value {
    let labels = notice.labels(notice.alert.finding.severity);
    let annotations = notice.annotations();
    let status = if notice.resolved() { "resolved" } else { "firing" };
    // The names are sorted, as in the keys that Alertmanager makes.
    let group = ["alertname", "fingerprint", "job", "kind", "tenant"].map(|name| (name, &labels[name]));
    let key: Vec<String> = group.iter().map(|(name, value)| format!("{name}={value}")).collect();
    json!({
        "version": "4",
        "groupKey": format!("{{}}:{{{}}}", key.join(", ")),
        "truncatedAlerts": 0,
        "status": status,
        "receiver": receiver,
        "groupLabels": group.into_iter().map(|(name, value)| (name.to_owned(), value.clone())).collect::<Map<_, _>>(),
        "commonLabels": labels,
        "commonAnnotations": annotations,
        "externalURL": external_url,
        "alerts": [{
            "status": status,
            "labels": labels,
            "annotations": annotations,
            "startsAt": notice.starts_at(),
            // An alert that has not ended has Go's zero time as its end.
            "endsAt": match notice.alert.resolved_ns {
                Some(at_ns) if notice.resolved() => rfc3339(at_ns),
                _ => "0001-01-01T00:00:00Z".to_owned(),
            },
            "generatorURL": external_url,
            "fingerprint": notice.alert.id_text(),
        }],
    })
}

/// The body of a POST to Alertmanager. Firing alerts end `lasts_ns` from now unless they are sent again.
#[must_use]
pub fn alertmanager(notices: &[Notice], external_url: &str, lasts_ns: u64, now_ns: u64) -> Value {
    let mut alerts = Vec::new();
    for notice in notices {
        let ends_ns = match notice.alert.resolved_ns {
            Some(at_ns) if notice.resolved() => at_ns,
            _ => now_ns.saturating_add(lasts_ns),
        };
        let mut add = |severity, ends_ns: u64| {
            let mut alert = json!({
                "labels": notice.labels(severity),
                "annotations": notice.annotations(),
                "startsAt": notice.starts_at(),
                "endsAt": rfc3339(ends_ns),
            });
            // Alertmanager rejects an empty URL.
            if !external_url.is_empty() {
                alert["generatorURL"] = json!(external_url);
            }
            alerts.push(alert);
        };
        if let Some(before) = notice.replaces {
            add(before, now_ns);
        }
        add(notice.alert.finding.severity, ends_ns);
    }
    Value::Array(alerts)
}

#[cfg(test)]
mod tests;
