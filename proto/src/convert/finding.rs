//! Findings on the wire. Out they go whole; in they come for showing, so an unknown kind or severity is an error only for who needs it.

use memctl_model::{EvidenceValue, Finding, Frame, Moment, Rate, Severity};

use crate::v1;

impl From<&Frame> for v1::Frame {
    fn from(frame: &Frame) -> Self {
        Self { function: frame.function.to_string(), file: frame.file.to_string(), line: frame.line }
    }
}

impl From<Severity> for v1::Severity {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Info => Self::Info,
            Severity::Warning => Self::Warning,
            Severity::Critical => Self::Critical,
        }
    }
}

impl From<Rate> for v1::Rate {
    fn from(Rate { value, low, high }: Rate) -> Self {
        Self { value, low, high }
    }
}

/// A finding of a job for the wire.
#[must_use]
pub fn to_wire(finding: &Finding, job: &str) -> v1::Finding {
    let Moment { epoch, step, time_ns } = finding.first_seen;
    v1::Finding {
        id: finding.fingerprint(job).to_string(),
        kind: finding.kind.name().to_owned(),
        severity: v1::Severity::from(finding.severity) as i32,
        confidence: finding.confidence,
        ranks: finding.ranks.clone(),
        all_ranks: finding.all_ranks,
        first_seen: Some(v1::FirstSeen { epoch, step, time_ns }),
        bytes_per_epoch: finding.bytes_per_epoch.map(Into::into),
        bytes_per_step: finding.bytes_per_step.map(Into::into),
        live_bytes: finding.live_bytes,
        live_blocks: finding.live_blocks,
        time_to_oom_seconds: finding.time_to_oom_seconds,
        epochs_to_oom: finding.epochs_to_oom,
        site: finding.site.as_ref().map(Into::into),
        stack: finding.stack.iter().map(Into::into).collect(),
        subject: finding.subject.clone(),
        title: finding.title.clone(),
        explanation: finding.explanation.clone(),
        advice: finding.advice.clone(),
        evidence: finding.evidence.iter().map(|(name, value)| evidence(name, value)).collect(),
    }
}

fn evidence(name: &str, value: &EvidenceValue) -> v1::Evidence {
    use v1::evidence::Value;
    let value = match value {
        EvidenceValue::Count(count) => Value::Count(*count),
        EvidenceValue::Number(number) => Value::Number(*number),
        EvidenceValue::Text(text) => Value::Text(text.clone()),
        EvidenceValue::Series(values) => Value::Series(v1::Series { values: values.clone() }),
    };
    v1::Evidence { name: name.to_owned(), value: Some(value) }
}
