//! A finding as data: the object that scripts and dashboards depend on, in JSON, NDJSON and CSV.
//!
//! Guarantees: every documented key is present, null if unknown; bytes are integers; a kind or a severity of a newer
//! daemon is shown unchanged. Analyses nothing: the daemon decides what is wrong.
//!
//! (Over 400 lines: a table of fields with what each means, and the same fields as columns; nothing here decides anything.)

pub mod holders;
pub mod phrases;

use std::collections::BTreeMap;
use std::io::{self, Write};

use memctl_model::{FindingKind, Severity};
use memctl_proto::v1;
use serde::Serialize;

use super::{Frame, whole};
use crate::format::csv::{self, Cell};
use crate::format::text::rank_list;
use crate::format::time;

/// What is wrong, where, on which ranks, how bad, and what to do.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Stays the same while the finding grows or spreads.
    pub id: String,
    /// What kind it is, by name.
    pub kind: String,
    /// `info`, `warning` or `critical`.
    pub severity: &'static str,
    /// An order among findings of one severity, 0..1; no probability.
    pub confidence: Option<f64>,
    /// Ranks concerned, ascending.
    pub ranks: Vec<u32>,
    /// Whether these are all ranks (and more than one).
    pub all_ranks: bool,
    /// When it was first seen.
    pub first_seen: FirstSeen,
    /// Growth an epoch, of one rank.
    pub bytes_per_epoch: Option<i64>,
    /// Growth a step, of one rank.
    pub bytes_per_step: Option<i64>,
    /// What lives of it now, on the rank that holds most.
    pub live_bytes: Option<u64>,
    /// Seconds until the device is full, at this slope.
    pub time_to_oom_seconds: Option<f64>,
    /// The innermost frame of the user's own code, with the stack behind it; null when no stack was recorded.
    pub site: Option<Site>,
    /// One sentence.
    pub title: String,
    /// Why memctl says so.
    pub explanation: String,
    /// What to change.
    pub advice: String,
    /// The figures and facts behind it.
    pub evidence: BTreeMap<String, Evidence>,
    /// Blocks of it that live, on the rank that holds most.
    pub live_blocks: Option<u64>,
    /// Epochs until the device is full, at this slope.
    pub epochs_to_oom: Option<f64>,
    /// Lower end of the slope's interval of 90 % confidence.
    pub bytes_per_epoch_low: Option<i64>,
    /// Upper end.
    pub bytes_per_epoch_high: Option<i64>,
    /// Lower end of the slope's interval of 90 % confidence.
    pub bytes_per_step_low: Option<i64>,
    /// Upper end.
    pub bytes_per_step_high: Option<i64>,
    /// Distinguishes two findings of one kind without a site: `rank 3`.
    pub subject: Option<String>,
    /// What the code does, as far as it is known: `tensors_kept`, `hooks_pile_up`.
    pub pattern: Option<String>,
    /// Processes concerned, by name.
    pub processes: Vec<String>,
    /// Growth a minute of wall-clock time, of one rank.
    pub bytes_per_minute: Option<i64>,
    /// Lower end of the slope's interval of 90 % confidence.
    pub bytes_per_minute_low: Option<i64>,
    /// Upper end.
    pub bytes_per_minute_high: Option<i64>,
    /// What holds its blocks; null where no process was asked.
    pub holders: Option<holders::FindingHolders>,
    /// For comparisons.
    #[serde(skip)]
    pub level: Severity,
}

/// When a finding was first seen, as far as it is known.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FirstSeen {
    /// Epoch.
    pub epoch: Option<u32>,
    /// Step.
    pub step: Option<u64>,
    /// Time.
    pub at: Option<String>,
    /// The kind of boundary that showed it: `epoch`, `step` or `window`.
    pub boundary: Option<&'static str>,
    /// For the page.
    #[serde(skip)]
    pub time_ns: Option<u64>,
}

/// Where the memory of a finding was allocated.
#[derive(Clone, Debug, Serialize)]
pub struct Site {
    /// The innermost frame of the user's own code.
    #[serde(flatten)]
    pub frame: Frame,
    /// The whole stack, innermost first.
    pub stack: Vec<Frame>,
}

/// One figure or fact; null when it is no number.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Evidence {
    /// A number of something.
    Count(u64),
    /// A ratio or a rate.
    Number(Option<f64>),
    /// Words.
    Text(String),
    /// A timeline.
    Series(Vec<u64>),
}

impl Finding {
    /// The kind, when this memctl knows it.
    #[must_use]
    pub fn known_kind(&self) -> Option<FindingKind> {
        FindingKind::of_name(&self.kind)
    }

    /// Whether it will hurt: warning or worse.
    #[must_use]
    pub fn hurts(&self) -> bool {
        self.level >= Severity::Warning
    }

    /// What its evidence says of this in words.
    #[must_use]
    pub fn fact(&self, name: &str) -> Option<&str> {
        match self.evidence.get(name) {
            Some(Evidence::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The timeline behind it: the first series of bytes, with its name.
    #[must_use]
    pub fn course(&self) -> Option<(&str, &[u64])> {
        self.evidence.iter().find_map(|(name, value)| match value {
            Evidence::Series(values) if name.contains("_bytes") && !values.is_empty() => Some((&**name, &**values)),
            _ => None,
        })
    }
}

/// Findings from the wire, the worst first.
#[must_use]
pub fn findings(wire: Vec<v1::Finding>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = wire.into_iter().map(Finding::from).collect();
    // The daemon sends them so; sorting is stable and keeps its order among equals.
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    findings
}

/// How bad it is, for comparisons.
#[must_use]
pub fn level(severity: v1::Severity) -> Severity {
    match severity {
        v1::Severity::Info => Severity::Info,
        // A severity of a newer daemon is not made harmless.
        v1::Severity::Warning | v1::Severity::Unspecified => Severity::Warning,
        v1::Severity::Critical => Severity::Critical,
    }
}

/// What is finite.
fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite())
}

impl From<v1::Finding> for Finding {
    fn from(wire: v1::Finding) -> Self {
        let level = level(wire.severity());
        let v1::Finding {
            id,
            kind,
            severity: _,
            confidence,
            mut ranks,
            all_ranks,
            first_seen,
            bytes_per_epoch,
            bytes_per_step,
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
            pattern,
            mut processes,
            bytes_per_minute,
            holders,
        } = wire;
        ranks.sort_unstable();
        processes.sort_unstable();
        let rate = |rate: Option<v1::Rate>, read: fn(v1::Rate) -> f64| rate.and_then(|rate| whole(read(rate)));
        Self {
            id,
            kind,
            severity: level.name(),
            confidence: finite(Some(confidence)).map(|confidence| confidence.clamp(0.0, 1.0)),
            ranks,
            all_ranks,
            first_seen: first_seen.map(FirstSeen::from).unwrap_or_default(),
            bytes_per_epoch: rate(bytes_per_epoch, |rate| rate.value),
            bytes_per_step: rate(bytes_per_step, |rate| rate.value),
            live_bytes,
            time_to_oom_seconds: finite(time_to_oom_seconds),
            site: Site::new(site, stack),
            title,
            explanation,
            advice,
            evidence: evidence.into_iter().filter_map(named).collect(),
            pattern: Some(pattern).filter(|pattern| !pattern.is_empty()),
            processes,
            bytes_per_minute: rate(bytes_per_minute, |rate| rate.value),
            bytes_per_minute_low: rate(bytes_per_minute, |rate| rate.low),
            bytes_per_minute_high: rate(bytes_per_minute, |rate| rate.high),
            live_blocks,
            epochs_to_oom: finite(epochs_to_oom),
            bytes_per_epoch_low: rate(bytes_per_epoch, |rate| rate.low),
            bytes_per_epoch_high: rate(bytes_per_epoch, |rate| rate.high),
            bytes_per_step_low: rate(bytes_per_step, |rate| rate.low),
            bytes_per_step_high: rate(bytes_per_step, |rate| rate.high),
            subject: (!subject.is_empty()).then_some(subject),
            holders: holders.map(Into::into),
            level,
        }
    }
}

impl Site {
    /// The frame that the daemon named, else the first of the stack that is the user's own code, else its innermost.
    #[must_use]
    pub fn new(site: Option<v1::Frame>, stack: Vec<v1::Frame>) -> Option<Self> {
        let (_, stack) = super::owned(stack);
        let own = || super::site_of(&stack);
        let frame = site.map(Frame::from).or_else(own)?;
        Some(Self { frame, stack })
    }
}

impl From<v1::FirstSeen> for FirstSeen {
    fn from(wire: v1::FirstSeen) -> Self {
        let boundary = match wire.boundary() {
            v1::Boundary::EpochEnd => Some("epoch"),
            v1::Boundary::StepEnd => Some("step"),
            v1::Boundary::WindowEnd => Some("window"),
            v1::Boundary::End | v1::Boundary::Unspecified => None,
        };
        let v1::FirstSeen { epoch, step, time_ns, boundary: _ } = wire;
        Self { epoch, step, at: time_ns.map(time::rfc3339), boundary, time_ns }
    }
}

fn named(wire: v1::Evidence) -> Option<(String, Evidence)> {
    use v1::evidence::Value;
    let v1::Evidence { name, value } = wire;
    let value = match value? {
        Value::Count(count) => Evidence::Count(count),
        Value::Number(number) => Evidence::Number(finite(Some(number))),
        Value::Text(text) => Evidence::Text(text),
        Value::Series(v1::Series { values }) => Evidence::Series(values),
    };
    Some((name, value))
}

/// Findings as CSV, one a line.
///
/// # Errors
/// The writer's.
pub fn csv(findings: &[Finding], out: &mut dyn Write) -> io::Result<()> {
    let names = [
        "id",
        "kind",
        "severity",
        "confidence",
        "ranks",
        "all_ranks",
        "first_epoch",
        "first_step",
        "first_at",
        "bytes_per_epoch",
        "bytes_per_step",
        "live_bytes",
        "live_blocks",
        "time_to_oom_seconds",
        "epochs_to_oom",
        "function",
        "file",
        "line",
        "subject",
        "title",
        "advice",
        "processes",
        "bytes_per_minute",
        "pattern",
    ];
    csv::header(out, &names)?;
    findings.iter().try_for_each(|finding| csv::record(out, &cells(finding)))
}

fn cells(finding: &Finding) -> [Cell; 24] {
    let site = finding.site.as_ref().map(|site| &site.frame);
    [
        Cell::text(&finding.id),
        Cell::text(&finding.kind),
        Cell::plain(finding.severity),
        Cell::maybe(finding.confidence),
        // Spaces instead of commas and dashes: a spreadsheet would read 1-3 as a date.
        Cell::plain(rank_list(&finding.ranks).replace(',', " ").replace('-', "..")),
        Cell::plain(finding.all_ranks),
        Cell::maybe(finding.first_seen.epoch),
        Cell::maybe(finding.first_seen.step),
        Cell::maybe(finding.first_seen.at.as_ref()),
        Cell::maybe(finding.bytes_per_epoch),
        Cell::maybe(finding.bytes_per_step),
        Cell::maybe(finding.live_bytes),
        Cell::maybe(finding.live_blocks),
        Cell::maybe(finding.time_to_oom_seconds),
        Cell::maybe(finding.epochs_to_oom),
        Cell::maybe_text(site.map(|site| site.function.as_str())),
        Cell::maybe_text(site.map(|site| site.file.as_str())),
        Cell::maybe(site.and_then(|site| site.line)),
        Cell::maybe_text(finding.subject.as_deref()),
        Cell::text(&finding.title),
        Cell::text(&finding.advice),
        Cell::text(finding.processes.join(" ")),
        Cell::maybe(finding.bytes_per_minute),
        Cell::maybe_text(finding.pattern.as_deref()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A finding of which nothing is known.
    fn bare() -> v1::Finding {
        v1::Finding { id: "00".into(), kind: "a_new_kind".into(), ..Default::default() }
    }

    #[test]
    fn what_is_not_known_is_null_and_no_key_is_missing() {
        let json = serde_json::to_value(Finding::from(bare())).unwrap();
        let documented = [
            "id",
            "kind",
            "severity",
            "confidence",
            "ranks",
            "all_ranks",
            "first_seen",
            "bytes_per_epoch",
            "bytes_per_step",
            "live_bytes",
            "time_to_oom_seconds",
            "site",
            "title",
            "explanation",
            "advice",
            "evidence",
        ];
        for key in documented {
            assert!(json.get(key).is_some(), "{key}");
        }
        for key in ["bytes_per_epoch", "bytes_per_step", "live_bytes", "time_to_oom_seconds", "site", "epochs_to_oom"] {
            assert!(json[key].is_null(), "{key}");
        }
        assert_eq!(
            json["first_seen"],
            serde_json::json!({ "epoch": null, "step": null, "at": null, "boundary": null })
        );
        assert_eq!(json["evidence"], serde_json::json!({}));
        assert_eq!((json["kind"].as_str(), json["severity"].as_str()), (Some("a_new_kind"), Some("warning")));
    }

    #[test]
    fn what_is_no_number_is_not_shown_as_one() {
        let rate = Some(v1::Rate { value: f64::NAN, low: f64::NEG_INFINITY, high: 1e300 });
        let evidence = [f64::INFINITY, 0.5]
            .map(|number| v1::Evidence { name: number.to_string(), value: Some(v1::evidence::Value::Number(number)) });
        let wire = v1::Finding {
            confidence: 7.0,
            time_to_oom_seconds: Some(f64::INFINITY),
            bytes_per_epoch: rate,
            evidence: evidence.to_vec(),
            ..bare()
        };
        let json = serde_json::to_value(Finding::from(wire)).unwrap();
        assert_eq!(json["confidence"], 1.0);
        assert!(json["bytes_per_epoch"].is_null() && json["time_to_oom_seconds"].is_null());
        assert_eq!(json["bytes_per_epoch_high"], i64::MAX);
        assert_eq!(json["evidence"], serde_json::json!({ "inf": null, "0.5": 0.5 }));
    }

    #[test]
    fn the_worst_is_first_and_a_site_is_the_users_own_code() {
        let frame = |file: &str| v1::Frame { function: "f".into(), file: file.into(), line: 1 };
        let own = v1::Finding {
            severity: v1::Severity::Critical as i32,
            stack: vec![frame("/usr/lib/python3/site-packages/torch/nn.py"), frame("/home/me/train.py")],
            ..bare()
        };
        let mild = v1::Finding { severity: v1::Severity::Info as i32, ..bare() };
        let findings = findings(vec![mild, own]);
        assert_eq!(findings[0].severity, "critical");
        assert_eq!(findings[0].site.as_ref().unwrap().frame.file, "/home/me/train.py");
        assert!(findings[0].hurts() && !findings[1].hurts());
    }
}
