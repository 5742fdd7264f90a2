//! The finding about a request that will fail within a few steps: a forecast by a replay of the last steps of a
//! growing process.
//!
//! Guarantees: the sentence names the process, the number of steps, the request, its place, and the reason of the
//! failure. If steps differ, it also names other requests that may fail instead. The forecast itself is made
//! elsewhere, because it needs the allocator's own rules.

use std::fmt;

use memctl_model::{EvidenceValue, Finding, FindingKind, Frame, HumanBytes, Severity};

use super::subjects::Subject;
use crate::wording::{opening, place};

/// Confidence. It is measured: one false report in a thousand near-full runs; 0.96 of the runs that a leak ends are
/// reported (BENCHMARKS.md).
const CONFIDENCE: f64 = 0.9;

/// Maximum number of places that are named in addition to the likeliest one, because it is unknown which of them will
/// fail.
const INSTEAD: usize = 2;

/// A request for memory.
#[derive(Clone, Debug)]
pub struct ForecastRequest {
    /// Bytes of the request.
    pub bytes: u64,
    /// The requesting stack, innermost frame first.
    pub stack: Vec<Frame>,
}

impl ForecastRequest {
    fn site(&self) -> Option<&Frame> {
        self.stack.iter().find(|frame| frame.is_user_code()).or(self.stack.first())
    }
}

impl fmt::Display for ForecastRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", HumanBytes::of(self.bytes))?;
        self.site().map_or(Ok(()), |site| write!(f, " in {}", place(site)))
    }
}

/// The forecast.
#[derive(Clone, Debug)]
pub struct Foreseen {
    /// The device on which the request will fail.
    pub who: Subject,
    /// Number of steps until then.
    pub steps: u32,
    /// Whether the largest of the recent steps does not fit, whenever one like it comes. Otherwise the last step does
    /// not fit.
    pub is_of_largest: bool,
    /// The request.
    pub request: ForecastRequest,
    /// Requests that will fail instead if the step is like another of the recent ones; the likeliest first.
    pub instead: Vec<ForecastRequest>,
    /// Whether the free memory would suffice in one piece.
    pub is_cut_up: bool,
    /// Bytes that will be allocated then.
    pub allocated_bytes: u64,
    /// Bytes that will be reserved after everything possible is released.
    pub reserved_bytes: u64,
    /// Bytes that the process may use of its device.
    pub limit_bytes: u64,
    /// Duration of a step in seconds.
    pub step_seconds: Option<f64>,
}

/// The finding of a forecast.
#[must_use]
pub fn foreseen(it: &Foreseen) -> Finding {
    let Foreseen { who, steps, request, .. } = it;
    let (name, instead) = (who.name(), it.instead());
    let or_another = match instead.len() {
        0 => "",
        _ => ", or another request of the recent steps,",
    };
    let reason = if it.is_cut_up { "fragmentation" } else { "capacity" };
    let when = match (it.is_of_largest, steps) {
        (true, 1) => "at the next step like the largest of the recent ones".to_owned(),
        (true, steps) => format!("at a step like the largest of the recent ones, about {steps} steps from now"),
        (false, 1) => "in the next step".to_owned(),
        (false, steps) => format!("in about {steps} steps"),
    };
    let cut_up = if it.is_cut_up { ": no free piece will be large enough" } else { "" };
    let why = if it.is_cut_up { "no free piece will be large enough" } else { "so much will not be left" };
    Finding {
        live_bytes: Some(it.allocated_bytes),
        // It is unknown when a step like the largest one will come.
        time_to_oom_seconds: it.step_seconds.filter(|_| !it.is_of_largest).map(|seconds| seconds * f64::from(*steps)),
        title: format!("{} will run out of memory {when}: {request}{or_another} will fail{cut_up}", opening(&name)),
        explanation: format!(
            "The recent steps' requests were replayed from the present state, with what grows: {why}. {} will be allocated \
             then, and {} of the {} that the process may use reserved once its cache has been emptied.{}",
            HumanBytes::of(it.allocated_bytes),
            HumanBytes::of(it.reserved_bytes),
            HumanBytes::of(it.limit_bytes),
            match &*instead {
                [] => String::new(),
                some => format!(" The recent steps differ, so it may be {} instead.", some.join(" or ")),
            }
        ),
        advice: "Save a checkpoint now. The leak that was found beside this is what fills the device: repair it, or restart \
                 from a checkpoint."
            .to_owned(),
        site: request.site().cloned(),
        stack: request.stack.clone(),
        evidence: vec![
            ("steps_ahead".to_owned(), EvidenceValue::Count(u64::from(*steps))),
            ("requested_bytes".to_owned(), EvidenceValue::Count(request.bytes)),
            ("reason".to_owned(), EvidenceValue::Text(reason.to_owned())),
            ("allocated_bytes".to_owned(), EvidenceValue::Count(it.allocated_bytes)),
            ("reserved_bytes".to_owned(), EvidenceValue::Count(it.reserved_bytes)),
            ("limit_bytes".to_owned(), EvidenceValue::Count(it.limit_bytes)),
        ]
        .into_iter()
        .chain((!instead.is_empty()).then(|| ("or_instead".to_owned(), EvidenceValue::Text(instead.join("; ")))))
        .collect(),
        processes: vec![name.clone()],
        subject: format!("{name} ahead"),
        ..Finding::new(FindingKind::NearOom, Severity::Warning, CONFIDENCE, vec![who.rank])
    }
}

impl Foreseen {
    /// The other requests that are named: one per place.
    fn instead(&self) -> Vec<String> {
        let mut named = vec![&self.request];
        for other in &self.instead {
            if named.len() <= INSTEAD && named.iter().all(|known| known.site() != other.site()) {
                named.push(other);
            }
        }
        named[1..].iter().map(ToString::to_string).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(bytes: u64, line: u32) -> ForecastRequest {
        ForecastRequest { bytes, stack: vec![Frame { function: "forward".into(), file: "model.py".into(), line }] }
    }

    #[test]
    fn the_sentence_says_who_when_what_where_and_why() {
        let mut it = Foreseen {
            who: Subject { rank: 2, process: "".into(), device: 0 },
            steps: 2,
            is_of_largest: false,
            request: asked(512 << 20, 40),
            instead: Vec::new(),
            is_cut_up: false,
            allocated_bytes: 70 << 30,
            reserved_bytes: 71 << 30,
            limit_bytes: 72 << 30,
            step_seconds: Some(1.5),
        };
        let finding = foreseen(&it);
        assert_eq!(
            finding.title,
            "Rank 2 will run out of memory in about 2 steps: 512 MiB in forward (model.py:40) will fail"
        );
        assert_eq!(finding.time_to_oom_seconds, Some(3.0));
        (it.is_of_largest, it.is_cut_up) = (true, true);
        let title = foreseen(&it).title;
        assert!(title.contains("at a step like the largest of the recent ones, about 2 steps from now"), "{title}");
        it.steps = 1;
        assert!(foreseen(&it).title.contains("at the next step like the largest of the recent ones"));
        assert!(foreseen(&it).title.ends_with("will fail: no free piece will be large enough"));
        assert_eq!(foreseen(&it).time_to_oom_seconds, None);
        // The first place again, one place twice, and one place too many.
        it.instead = [40, 50, 50, 60, 70].into_iter().zip(1..).map(|(line, mib)| asked(mib << 20, line)).collect();
        let finding = foreseen(&it);
        let or = "512 MiB in forward (model.py:40), or another request of the recent steps, will fail: no free piece will be large enough";
        assert!(finding.title.ends_with(or), "{}", finding.title);
        let which = "so it may be 2.00 MiB in forward (model.py:50) or 4.00 MiB in forward (model.py:60) instead.";
        assert!(finding.explanation.ends_with(which), "{}", finding.explanation);
        let text = "2.00 MiB in forward (model.py:50); 4.00 MiB in forward (model.py:60)".to_owned();
        assert!(finding.evidence.contains(&("or_instead".to_owned(), EvidenceValue::Text(text))));
    }
}
