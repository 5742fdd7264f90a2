//! Findings on the wire. They are encoded completely, and decoded for display: an unknown kind or severity is an error
//! only for callers that need it.

use memctl_model::{Boundary, EvidenceValue, Finding, Frame, Moment, Pattern, Rate, Severity};

use super::holders;
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

impl From<Boundary> for v1::Boundary {
    fn from(boundary: Boundary) -> Self {
        match boundary {
            Boundary::StepEnd => Self::StepEnd,
            Boundary::EpochEnd => Self::EpochEnd,
            Boundary::End => Self::End,
            Boundary::WindowEnd => Self::WindowEnd,
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
    let Finding {
        kind,
        severity,
        confidence,
        pattern,
        ranks,
        processes,
        all_ranks,
        first_seen: Moment { epoch, step, time_ns, boundary },
        bytes_per_epoch,
        bytes_per_step,
        bytes_per_minute,
        live_bytes,
        live_blocks,
        time_to_oom_seconds,
        epochs_to_oom,
        site,
        stack,
        subject,
        title,
        explanation,
        advice,
        evidence,
        holders,
    } = finding;
    let boundary = boundary.map(|boundary| v1::Boundary::from(boundary) as i32);
    v1::Finding {
        id: finding.fingerprint(job).to_string(),
        kind: kind.name().to_owned(),
        severity: v1::Severity::from(*severity) as i32,
        confidence: *confidence,
        ranks: ranks.clone(),
        all_ranks: *all_ranks,
        first_seen: Some(v1::FirstSeen {
            epoch: *epoch,
            step: *step,
            time_ns: *time_ns,
            boundary: boundary.unwrap_or(0),
        }),
        bytes_per_epoch: bytes_per_epoch.map(Into::into),
        bytes_per_step: bytes_per_step.map(Into::into),
        live_bytes: *live_bytes,
        live_blocks: *live_blocks,
        time_to_oom_seconds: *time_to_oom_seconds,
        epochs_to_oom: *epochs_to_oom,
        site: site.as_ref().map(Into::into),
        stack: stack.iter().map(Into::into).collect(),
        subject: subject.clone(),
        title: title.clone(),
        explanation: explanation.clone(),
        advice: advice.clone(),
        evidence: evidence.iter().map(|(name, value)| evidence_to_wire(name, value)).collect(),
        pattern: pattern.map_or("", Pattern::name).to_owned(),
        processes: processes.clone(),
        bytes_per_minute: bytes_per_minute.map(Into::into),
        holders: holders.as_ref().map(holders::to_wire),
    }
}

fn evidence_to_wire(name: &str, value: &EvidenceValue) -> v1::Evidence {
    use v1::evidence::Value;
    let value = match value {
        EvidenceValue::Count(count) => Value::Count(*count),
        EvidenceValue::Number(number) => Value::Number(*number),
        EvidenceValue::Text(text) => Value::Text(text.clone()),
        EvidenceValue::Series(values) => Value::Series(v1::Series { values: values.clone() }),
    };
    v1::Evidence { name: name.to_owned(), value: Some(value) }
}
