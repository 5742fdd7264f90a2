//! A request that will fail within a few steps, as a finding: what a replay of the last steps foresaw in a process that grows.
//!
//! Guarantees: the sentence says who, in how many steps, which request, where, and why it fails. Refuses to foresee anything
//! itself: that takes the allocator's own rules, which analysis does not know.

use memctl_model::{EvidenceValue, Finding, FindingKind, Frame, HumanBytes, Severity};

use super::who::Who;
use crate::wording::{opening, place};

/// How sure it is: of a thousand runs that come close one is told falsely, of those that a leak ends 0.96 are told (BENCHMARKS.md).
const CONFIDENCE: f64 = 0.9;

/// What was foreseen.
#[derive(Clone, Debug)]
pub struct Foreseen {
    /// Who it will happen to.
    pub who: Who,
    /// In how many steps.
    pub steps: u32,
    /// Whether it is the largest of the recent steps that does not fit, whenever one like it comes, rather than the last one.
    pub is_of_largest: bool,
    /// Bytes that will be asked for.
    pub requested_bytes: u64,
    /// By whom, innermost frame first.
    pub stack: Vec<Frame>,
    /// Whether there would be enough were it one piece.
    pub is_cut_up: bool,
    /// Bytes that will be handed out then.
    pub allocated_bytes: u64,
    /// Bytes that will be reserved when all that can be released is.
    pub reserved_bytes: u64,
    /// What the process may use of its device.
    pub limit_bytes: u64,
    /// Seconds that a step takes.
    pub step_seconds: Option<f64>,
}

/// It as a finding.
#[must_use]
pub fn foreseen(it: &Foreseen) -> Finding {
    let Foreseen { who, steps, requested_bytes, stack, .. } = it;
    let (name, requested) = (who.name(), HumanBytes::of(*requested_bytes));
    let site = stack.iter().find(|frame| frame.is_user_code()).or(stack.first());
    let at = site.map_or_else(String::new, |site| format!(" in {}", place(site)));
    let reason = if it.is_cut_up { "fragmentation" } else { "capacity" };
    let when = match (it.is_of_largest, steps) {
        (true, 1) => "at the next step like the largest of the recent ones".to_owned(),
        (true, steps) => format!("at a step like the largest of the recent ones, about {steps} steps from now"),
        (false, 1) => "in the next step".to_owned(),
        (false, steps) => format!("in about {steps} steps"),
    };
    let why = if it.is_cut_up { "no free piece will be large enough" } else { "so much will not be left" };
    Finding {
        live_bytes: Some(it.allocated_bytes),
        // (When a step like the largest comes nobody knows.)
        time_to_oom_seconds: it.step_seconds.filter(|_| !it.is_of_largest).map(|seconds| seconds * f64::from(*steps)),
        title: format!("{} will run out of memory {when}: {requested}{at} will fail ({reason})", opening(&name)),
        explanation: format!(
            "The recent steps' requests were replayed from the present state, with what grows: {why}. {} will be allocated \
             then, and {} of the {} that the process may use reserved once its cache has been emptied.",
            HumanBytes::of(it.allocated_bytes),
            HumanBytes::of(it.reserved_bytes),
            HumanBytes::of(it.limit_bytes)
        ),
        advice: "Save a checkpoint now. The leak that was found beside this is what fills the device: repair it, or restart \
                 from a checkpoint."
            .to_owned(),
        site: site.cloned(),
        stack: stack.clone(),
        evidence: vec![
            ("steps_ahead".to_owned(), EvidenceValue::Count(u64::from(*steps))),
            ("requested_bytes".to_owned(), EvidenceValue::Count(*requested_bytes)),
            ("reason".to_owned(), EvidenceValue::Text(reason.to_owned())),
            ("allocated_bytes".to_owned(), EvidenceValue::Count(it.allocated_bytes)),
            ("reserved_bytes".to_owned(), EvidenceValue::Count(it.reserved_bytes)),
            ("limit_bytes".to_owned(), EvidenceValue::Count(it.limit_bytes)),
        ],
        processes: vec![name.clone()],
        subject: format!("{name} ahead"),
        ..Finding::new(FindingKind::NearOom, Severity::Warning, CONFIDENCE, vec![who.rank])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_says_who_when_what_where_and_why() {
        let frame = Frame { function: "forward".into(), file: "model.py".into(), line: 40 };
        let mut it = Foreseen {
            who: Who { rank: 2, process: "".into(), device: 0 },
            steps: 2,
            is_of_largest: false,
            requested_bytes: 512 << 20,
            stack: vec![frame],
            is_cut_up: false,
            allocated_bytes: 70 << 30,
            reserved_bytes: 71 << 30,
            limit_bytes: 72 << 30,
            step_seconds: Some(1.5),
        };
        let finding = foreseen(&it);
        assert_eq!(
            finding.title,
            "Rank 2 will run out of memory in about 2 steps: 512 MiB in forward (model.py:40) will fail (capacity)"
        );
        assert_eq!(finding.time_to_oom_seconds, Some(3.0));
        (it.is_of_largest, it.is_cut_up) = (true, true);
        let title = foreseen(&it).title;
        assert!(title.contains("at a step like the largest of the recent ones, about 2 steps from now"), "{title}");
        it.steps = 1;
        assert!(foreseen(&it).title.contains("at the next step like the largest of the recent ones"));
        assert!(foreseen(&it).title.ends_with("(fragmentation)"));
        assert_eq!(foreseen(&it).time_to_oom_seconds, None);
    }
}
