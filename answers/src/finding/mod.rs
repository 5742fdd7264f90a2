//! A finding as data: the object that scripts and dashboards depend on, in JSON, NDJSON and CSV.
//!
//! Guarantees: every documented key is present, null if unknown; bytes are integers; an unknown kind of a newer daemon
//! is shown unchanged, and an unknown severity counts as a warning. Analyses nothing: the daemon decides what is wrong.
//!
//! (Over 400 lines: a table of fields with their meaning, and the same fields as columns.)

pub mod holders;
pub mod phrases;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};

use memctl_model::{self as model, Boundary, EvidenceValue, FindingKind, Foresight, Moment, Rate, Severity};
use serde::{Deserialize, Serialize};

use super::{Frame, finite, whole};
use crate::format::csv::{self, Cell};
use crate::format::text::rank_list;
use crate::format::time::Time;

/// A problem: its place, its ranks, its severity, and what to do.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Finding {
    /// Stays the same while the finding grows or spreads.
    pub id: String,
    /// What kind it is, by name.
    pub kind: String,
    /// `info`, `warning` or `critical`.
    #[serde(with = "severity_by_name")]
    #[cfg_attr(test, ts(as = "crate::typescript::ByName<Severity>"))]
    pub severity: Severity,
    /// An order among findings of one severity, 0..1; no probability.
    pub confidence: Option<f64>,
    /// Whether it may still turn out harmless.
    #[serde(default)]
    pub suspected: bool,
    /// Whether what grew filled the device: a request failed because of it.
    #[serde(default)]
    pub filled_device: bool,
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
    /// Its live bytes now, on the rank that holds most.
    pub live_bytes: Option<u64>,
    /// Seconds until the device is full at the present growth rate.
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
    /// Its live blocks now, on the rank that holds most.
    pub live_blocks: Option<u64>,
    /// Epochs until the device is full at the present growth rate.
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
    /// Lines of the site's function that allocated it, ascending, if there are several.
    #[serde(default)]
    pub lines: Vec<u32>,
    /// The holders of its blocks; null if no process was searched.
    pub holders: Option<holders::FindingHolders>,
    /// Whether its holder, or a pattern that no cache has, shows that it is a leak. If not, it may be a container that
    /// stops growing.
    #[serde(default)]
    pub cause_known: bool,
}

/// When a finding was first seen, as far as it is known.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct FirstSeen {
    /// Epoch.
    pub epoch: Option<u32>,
    /// Step.
    pub step: Option<u64>,
    /// Time.
    pub at: Option<Time>,
    /// The kind of boundary that showed it: `epoch`, `step` or `window`.
    pub boundary: Option<Cow<'static, str>>,
}

/// Where the memory of a finding was allocated.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(rename = "FindingSite"))]
pub struct Site {
    /// The innermost frame of the user's own code.
    #[serde(flatten)]
    pub frame: Frame,
    /// The whole stack, innermost first.
    pub stack: Vec<Frame>,
}

/// One figure or fact; null if a figure is not a number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
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

    /// Whether its severity is warning or worse.
    #[must_use]
    pub fn is_warning_or_worse(&self) -> bool {
        self.severity >= Severity::Warning
    }

    /// A fact of its evidence, in words.
    #[must_use]
    pub fn fact(&self, name: &str) -> Option<&str> {
        match self.evidence.get(name) {
            Some(Evidence::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// Its first series of bytes, with the name.
    #[must_use]
    pub fn first_series(&self) -> Option<(&str, &[u64])> {
        self.evidence.iter().find_map(|(name, value)| match value {
            Evidence::Series(values) if name.contains("_bytes") && !values.is_empty() => Some((&**name, &**values)),
            _ => None,
        })
    }
}

impl Finding {
    /// Converts a finding of a job.
    #[must_use]
    pub fn new(finding: &model::Finding, job: &str) -> Self {
        let model::Finding {
            kind,
            severity,
            confidence,
            is_suspected,
            filled_device,
            slows: _,
            foresight: _,
            rises: _,
            gained_bytes: _,
            pattern,
            ranks,
            processes,
            all_ranks,
            first_seen,
            bytes_per_epoch,
            bytes_per_step,
            bytes_per_minute,
            live_bytes,
            live_blocks,
            time_to_oom_seconds,
            epochs_to_oom,
            site,
            lines,
            stack,
            subject,
            title: _,
            horizon: _,
            explanation,
            advice,
            evidence,
            holders,
        } = finding;
        let rate = |rate: &Option<Rate>, read: fn(&Rate) -> f64| rate.as_ref().and_then(|rate| whole(read(rate)));
        let (mut ranks, mut processes) = (ranks.clone(), processes.clone());
        ranks.sort_unstable();
        processes.sort_unstable();
        Self {
            id: finding.fingerprint(job).to_string(),
            kind: kind.name().to_owned(),
            severity: *severity,
            confidence: finite(*confidence).map(|confidence| confidence.clamp(0.0, 1.0)),
            suspected: *is_suspected,
            filled_device: *filled_device,
            ranks,
            all_ranks: *all_ranks,
            first_seen: first_seen.into(),
            bytes_per_epoch: rate(bytes_per_epoch, |rate| rate.value),
            bytes_per_step: rate(bytes_per_step, |rate| rate.value),
            live_bytes: *live_bytes,
            time_to_oom_seconds: time_to_oom_seconds.and_then(finite),
            site: Site::new(site.as_ref().map(Frame::from), stack.iter().map(Frame::from).collect()),
            title: finding.headline(),
            explanation: explanation.clone(),
            advice: advice.clone(),
            evidence: figures(finding)
                .chain(evidence.iter().map(|(name, value)| (name.clone(), value.into())))
                .collect(),
            pattern: pattern.map(|pattern| pattern.name().to_owned()),
            processes,
            bytes_per_minute: rate(bytes_per_minute, |rate| rate.value),
            bytes_per_minute_low: rate(bytes_per_minute, |rate| rate.low),
            bytes_per_minute_high: rate(bytes_per_minute, |rate| rate.high),
            live_blocks: *live_blocks,
            epochs_to_oom: epochs_to_oom.and_then(finite),
            bytes_per_epoch_low: rate(bytes_per_epoch, |rate| rate.low),
            bytes_per_epoch_high: rate(bytes_per_epoch, |rate| rate.high),
            bytes_per_step_low: rate(bytes_per_step, |rate| rate.low),
            bytes_per_step_high: rate(bytes_per_step, |rate| rate.high),
            subject: (!subject.is_empty()).then(|| subject.clone()),
            lines: lines.clone(),
            holders: holders.as_ref().map(Into::into),
            cause_known: memctl_analysis::judge::is_explained(finding),
        }
    }
}

impl Site {
    /// The site with the given frame. Without one, the frame is the stack's innermost frame of the user's own code, or
    /// else its innermost frame.
    #[must_use]
    pub fn new(site: Option<Frame>, stack: Vec<Frame>) -> Option<Self> {
        let (_, stack) = super::owned(stack);
        let frame = site.or_else(|| super::site_of(&stack))?;
        Some(Self { frame, stack })
    }
}

impl From<&Moment> for FirstSeen {
    fn from(moment: &Moment) -> Self {
        let &Moment { epoch, step, time_ns, boundary } = moment;
        let boundary = boundary.filter(|boundary| *boundary != Boundary::End).map(|boundary| boundary.name().into());
        Self { epoch, step, at: time_ns.map(Time), boundary }
    }
}

impl From<&EvidenceValue> for Evidence {
    fn from(value: &EvidenceValue) -> Self {
        match value {
            EvidenceValue::Count(count) => Self::Count(*count),
            EvidenceValue::Number(number) => Self::Number(finite(*number)),
            EvidenceValue::Text(text) => Self::Text(text.clone()),
            EvidenceValue::Series(values) => Self::Series(values.clone()),
        }
    }
}

/// A severity by its name. An unknown severity of a newer daemon is not treated as harmless.
pub(crate) mod severity_by_name {
    use memctl_model::Severity;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(severity: &Severity, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(severity.name())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Severity, D::Error> {
        let name = String::deserialize(from)?;
        Ok(Severity::of_name(&name).unwrap_or_default())
    }
}

/// A finding's own figures, as evidence.
fn figures(finding: &model::Finding) -> impl Iterator<Item = (String, Evidence)> {
    let foresight =
        (finding.foresight > Foresight::Nothing).then(|| Evidence::Text(finding.foresight.name().to_owned()));
    let figures = [
        ("rises", finding.rises.map(Evidence::Count)),
        ("gained_bytes", finding.gained_bytes.map(Evidence::Count)),
        ("foresight", foresight),
        ("suspected", finding.is_suspected.then_some(Evidence::Count(1))),
        ("outcome", finding.filled_device.then(|| Evidence::Text("out_of_memory".to_owned()))),
    ];
    figures.into_iter().filter_map(|(name, figure)| Some((name.to_owned(), figure?)))
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
        Cell::plain(finding.severity.name()),
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
    fn bare() -> model::Finding {
        model::Finding::new(FindingKind::Leak, Severity::Warning, 0.5, Vec::new())
    }

    #[test]
    fn what_is_not_known_is_null_and_no_key_is_missing() {
        let json = serde_json::to_value(Finding::new(&bare(), "j")).unwrap();
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
        assert_eq!((json["kind"].as_str(), json["severity"].as_str()), (Some("leak"), Some("warning")));
    }

    #[test]
    fn what_is_no_number_is_not_shown_as_one() {
        let finding = model::Finding {
            confidence: 7.0,
            time_to_oom_seconds: Some(f64::INFINITY),
            bytes_per_epoch: Some(Rate { value: f64::NAN, low: f64::NEG_INFINITY, high: 1e300 }),
            evidence: [("odd", f64::INFINITY), ("half", 0.5)]
                .map(|(name, number)| (name.to_owned(), EvidenceValue::Number(number)))
                .into(),
            ..bare()
        };
        let json = serde_json::to_value(Finding::new(&finding, "j")).unwrap();
        assert_eq!(json["confidence"], 1.0);
        assert!(json["bytes_per_epoch"].is_null() && json["time_to_oom_seconds"].is_null());
        assert_eq!(json["bytes_per_epoch_high"], i64::MAX);
        assert_eq!(json["evidence"], serde_json::json!({ "odd": null, "half": 0.5 }));
    }

    #[test]
    fn a_site_is_the_users_own_code() {
        let frame = |file: &str| model::Frame { function: "f".into(), file: file.into(), line: 1 };
        let stack = vec![frame("/usr/lib/python3/site-packages/torch/nn.py"), frame("/home/me/train.py")];
        let finding = Finding::new(&model::Finding { stack, ..bare() }, "j");
        assert_eq!(finding.site.as_ref().unwrap().frame.file, "/home/me/train.py");
    }

    #[test]
    fn what_is_read_is_what_was_written_and_a_new_kind_or_severity_is_shown() {
        let evidence = [
            ("count", EvidenceValue::Count(u64::MAX)),
            ("number", EvidenceValue::Number(3.0)),
            ("text", EvidenceValue::Text("3".into())),
            ("series", EvidenceValue::Series(vec![1, 2])),
        ];
        let evidence = evidence.map(|(name, value)| (name.to_owned(), value)).into();
        let time_ns = Some(1_795_168_323_226_534_976);
        let first_seen = Moment { epoch: Some(1), step: None, time_ns, boundary: Some(Boundary::EpochEnd) };
        let mut json =
            serde_json::to_value(Finding::new(&model::Finding { evidence, first_seen, ..bare() }, "j")).unwrap();
        let read: Finding = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), json);
        (json["kind"], json["severity"]) = ("a_new_kind".into(), "fatal".into());
        let read: Finding = serde_json::from_value(json).unwrap();
        assert_eq!((&*read.kind, read.known_kind(), read.is_warning_or_worse()), ("a_new_kind", None, true));
    }
}
