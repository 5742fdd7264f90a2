//! The first sentence of every page about a job.
//!
//! Guarantees: the sentence states the measurement first, then its meaning, and nothing else.

use memctl_model::verdict::{bytes_in_duration, duration};
use memctl_model::{Boundary, Cause, Finding, HumanBytes, Judged, NotJudged, Pattern, Severity, TensorHolder};

use super::{EVEN_SHARE, places, until};
use crate::judge::Activity;
use crate::judge::course::{Course, Way};
use crate::judge::holder_bound::{self, Bound};
use crate::judge::optimizers::{self, Optimizers};
use crate::judge::second_holders;
use crate::judge::subjects::{self, Subject};
use crate::judge::verdict_inputs::{CourseContext, RisenPeaks, Room, VerdictInputs};
use crate::wording::{all_of, opening_letter, plural, sentence};

/// ``Live memory has grown 682 MiB in 9 s, allocated in f (x.py:3), and it was not given back. It is a leak unless …``
pub(in crate::judge) fn growing(
    inputs: &VerdictInputs<'_>,
    shown: &CourseContext<'_>,
    finding: Option<&Finding>,
    cause: Cause,
) -> String {
    let pace = if is_uneven(inputs, shown) { String::new() } else { rate(finding, shown.course) };
    let fact = format!("{}{pace}{}.", grown(inputs, shown), also(&shown.others));
    let end = finding
        .filter(|_| inputs.activity == Activity::Running)
        .and_then(|finding| until(finding.epochs_to_oom, finding.time_to_oom_seconds));
    let end = end.map_or_else(String::new, |end| format!(" At this rate the device is out of memory {end}."));
    let why = match cause {
        Cause::Known => known(finding),
        Cause::Open => open(inputs, shown.course, finding),
    };
    format!("{fact} {why}{end}")
}

/// `Live memory has grown 682 MiB in 9 s on rank 0, allocated in f (x.py:3), and it was not given back`.
fn grown(inputs: &VerdictInputs<'_>, shown: &CourseContext<'_>) -> String {
    let course = shown.course;
    let most = if is_uneven(inputs, shown) { "by up to " } else { "" };
    let what = format!("{most}{}", bytes_in_duration(course.gained, course.seconds()));
    let freed = match course.way {
        Way::Kept | Way::Sum if course.given_back => ", and it was given back only at the end of the recording",
        Way::Kept | Way::Sum => ", and it was not given back",
        Way::Replaced => ": a tensor is replaced by a larger one each time",
        Way::WithWork => ", as each step works on more",
        Way::MadeAgain { .. } => ": no block stays for long, but each epoch allocates more of them",
    };
    let of_device = |room: &&Room| room.who == course.who && course.way == Way::WithWork;
    let peaks = inputs.courses.devices.iter().find(of_device).and_then(|room| room.peaks);
    let peaks = peaks.map_or_else(String::new, |peaks| {
        format!(", and the peak of a step {} over the last {}", rose(peaks), last_third(inputs.judged))
    });
    format!("Live memory has grown {what}{}{}{freed}{peaks}", on(inputs, shown), at(course))
}

/// Whether the devices of a course have gained different amounts.
fn is_uneven(inputs: &VerdictInputs<'_>, shown: &CourseContext<'_>) -> bool {
    let is_shown = |course: &&Course| course.site == shown.course.site && shown.on.contains(&&course.who);
    let of_device = inputs.courses.courses.iter().filter(is_shown).filter(|course| course.stand == shown.course.stand);
    let least = of_device.map(|course| course.gained).min().unwrap_or(shown.course.gained);
    (least as f64) < EVEN_SHARE * shown.course.gained as f64
}

/// ` on rank 0`; empty if there is only one process.
fn on(inputs: &VerdictInputs<'_>, shown: &CourseContext<'_>) -> String {
    let all = inputs.courses.subjects();
    if all.len() < 2 { String::new() } else { format!(" on {}", subjects::on(&shown.on, &all)) }
}

fn at(course: &Course) -> String {
    let Some(site) = &course.site else { return String::new() };
    // The growth of a sum is not that of one line.
    let most = if course.way == Way::Sum { "most of it " } else { "" };
    format!(", {most}allocated in {}", places(site, &course.place.lines))
}

fn also(others: &[&Course]) -> String {
    let bytes: u64 = others.iter().fold(0, |sum, course| sum.saturating_add(course.gained));
    match others.len() {
        0 => String::new(),
        more => format!("; {} more at {}", HumanBytes::of(bytes), plural(more as u64, "other place")),
    }
}

/// ` (4.52 MiB per epoch)` if the finding covers most of the growth. A course also counts memory that is allocated
/// further inside.
fn rate(finding: Option<&Finding>, course: &Course) -> String {
    let is_all = |finding: &&Finding| finding.live_bytes.is_none_or(|live| live >= course.gained / 5 * 4);
    let Some(finding) = finding.filter(is_all) else { return String::new() };
    let boundary = finding.first_seen.boundary;
    let named = [
        (finding.bytes_per_epoch, "per epoch"),
        (finding.bytes_per_step.filter(|_| boundary != Some(Boundary::WindowEnd)), "per step"),
        (finding.bytes_per_minute, "per minute"),
    ];
    let rate = named.into_iter().find_map(|(rate, unit)| Some((rate.filter(|rate| rate.value >= 1.0)?, unit)));
    rate.map_or_else(String::new, |(rate, unit)| format!(" ({} {unit})", HumanBytes::of(rate.value as u64)))
}

/// The reason why it is a leak.
fn known(finding: Option<&Finding>) -> String {
    if let Some(holder) = finding.and_then(holder) {
        return format!("It is a leak: held by {holder}.");
    }
    let why = finding.and_then(reason).map_or_else(String::new, |reason| format!(": {reason}"));
    format!("It is a leak{why}.")
}

/// The reason given by a pattern that no cache has; `None` for patterns that a cache may have as well.
pub(in crate::judge) fn reason(finding: &Finding) -> Option<&'static str> {
    Some(match finding.pattern? {
        Pattern::EvalGraph => "the evaluation runs with gradients enabled, and its graph is kept",
        Pattern::GraphKept => "graphs of steps are kept",
        Pattern::HiddenChain => "each step's graph keeps the previous step's",
        Pattern::HooksPileUp => "a hook is registered repeatedly",
        Pattern::OptimizerRecreated => "a new optimizer is created while the old one is still referenced",
        Pattern::GraphsCaptured => "CUDA graphs are captured again and again, each with a pool of its own",
        Pattern::TensorsKept | Pattern::ReplacedByLarger | Pattern::OptimizerState | Pattern::CacheEmptied => {
            return None;
        }
    })
}

/// The fact that would decide whether it is a leak.
fn open(inputs: &VerdictInputs<'_>, course: &Course, finding: Option<&Finding>) -> String {
    if course.way == Way::WithWork {
        return "It stops when the inputs stop growing.".to_owned();
    }
    if let Way::MadeAgain { by_hook } = course.way {
        return if by_hook {
            "A module calls this function as a hook: it goes on as long as each epoch registers another one and keeps the ones \
             before. Remove a hook by its handle: handle.remove()."
        } else {
            "It goes on as long as each epoch adds something that allocates there, such as a hook, a layer or a callback."
        }
        .to_owned();
    }
    if course.slows && finding.is_none() {
        return "The growth slows down, as that of a cache that fills. It is a leak unless it stops; what holds it is not known."
            .to_owned();
    }
    if let Some(sentence) = finding.and_then(of_optimizer) {
        return sentence;
    }
    // A process may have been queried about another finding of the same growth.
    let of_process = |other: &&Finding| other.kind.is_leak() && other.processes.contains(&course.who.name());
    let asked = || inputs.findings.iter().filter(of_process).filter_map(|finding| finding.holders.as_ref());
    let answers = || asked().filter_map(|holders| holders.asked.outcome.as_ref().ok());
    let held = match finding.and_then(holder) {
        Some(holder) => format!("held by {holder}"),
        None if finding.is_none() => "what holds it is not known".to_owned(),
        None if answers().any(|found| found.complete) => "no Python object was found that holds most of it".to_owned(),
        None if answers().next().is_some() => {
            let traced = finding.and_then(Finding::traced_graph).map_or_else(String::new, |(graph, found)| {
                format!(", and traced {} of {} blocks to {}", graph.blocks, found.asked_blocks, graph.subject)
            });
            format!("the search for what holds it ended before it had seen everything{traced}")
        }
        None if asked().next().is_some() => "the process was asked what holds it and could not say".to_owned(),
        None if !inputs.holders_allowed => {
            "the daemon does not search for what holds it (holders = \"off\" in its configuration)".to_owned()
        }
        None if inputs.activity == Activity::Ended => "no answer about what holds it is stored".to_owned(),
        None => "no process has been asked yet what holds it".to_owned(),
    };
    format!("It is a leak unless what holds it is bounded; {held}.")
}

/// The same for growth of optimizer state, if no answer shows that several optimizers hold it.
fn of_optimizer(finding: &Finding) -> Option<String> {
    let ends = "which ends when all parameters have state";
    Some(match optimizers::of(finding) {
        Some(Optimizers::One) => format!(
            "It is a leak unless parameters are added to the optimizer (unfreezing, add_param_group), {ends}; all of it is held by {}.",
            holder(finding)?
        ),
        None if finding.pattern != Some(Pattern::OptimizerState) => return None,
        _ => format!(
            "It is a leak if a new optimizer is created each time while the old one is still referenced. It is none if parameters \
             are added to one optimizer (unfreezing, add_param_group), {ends}."
        ),
    })
}

/// The holder of most of a finding's blocks, in words.
pub(in crate::judge) fn holder(finding: &Finding) -> Option<String> {
    let (_, most, _) = finding.main_holder()?;
    // A container and the graphs of its tensors are one object: `list x`, and `the graph of the tensors in list x`.
    let is_same =
        |other: &&TensorHolder| other.subject.ends_with(&*most.subject) || most.subject.ends_with(&*other.subject);
    let others = second_holders::beside(finding).into_iter().filter(|other| !is_same(other));
    let others = others.map(|holder| holder.subject.clone());
    Some(all_of(&std::iter::once(most.subject.clone()).chain(others).collect::<Vec<String>>()))
}

pub(in crate::judge) fn filling(
    inputs: &VerdictInputs<'_>,
    shown: &CourseContext<'_>,
    finding: &Finding,
    (bound, fits, own_limit): (Option<u64>, Option<bool>, Option<u64>),
) -> String {
    let held = holder(finding).unwrap_or_else(|| "a container with a bound".to_owned());
    let stops = bound.map_or_else(String::new, |bytes| format!(" It stops at {}.", HumanBytes::of(bytes)));
    let who = own_limit.map_or_else(
        || "The device".to_owned(),
        |limit| format!("The process's own limit of {}", HumanBytes::of(limit)),
    );
    let fits = match fits {
        Some(true) if bound.is_some() => format!(" {who} has room for it."),
        Some(false) => format!(" {who} has no room for it."),
        _ => String::new(),
    };
    format!("{}. It fills {held}.{stops}{fits}", grown(inputs, shown))
}

/// `Inconclusive: Growth of live memory not judged: needs 30 steps or 3 epoch ends, found 1 epoch end.`
pub(in crate::judge) fn not_enough(inputs: &VerdictInputs<'_>, not: &NotJudged) -> String {
    match worst(inputs) {
        Some(worst) => format!("{worst}{} not judged: {}.", opening_letter(not.kind.subject()), not.reason),
        None => format!("Inconclusive: {} not judged: {}.", opening_letter(not.kind.subject()), not.reason),
    }
}

pub(in crate::judge) fn released(inputs: &VerdictInputs<'_>, shown: &CourseContext<'_>) -> String {
    let course = shown.course;
    let when = if course.way == Way::Sum { "each time" } else { "within each epoch" };
    format!(
        "{}Live memory rises by {} {when}{}{}, and is given back.",
        worst(inputs).unwrap_or_default(),
        HumanBytes::of(course.gained),
        on(inputs, shown),
        at(course)
    )
}

pub(in crate::judge) fn levelled_off(inputs: &VerdictInputs<'_>, shown: &CourseContext<'_>) -> String {
    let course = shown.course;
    let until = course.until_step.map_or_else(String::new, |step| format!(" until step {step}"));
    let since = if course.hardly_grows { "has hardly grown since" } else { "has not grown since" };
    format!(
        "{}Live memory grew {} in {}{until}{}{} and {since}.",
        worst(inputs).unwrap_or_default(),
        HumanBytes::of(course.gained),
        duration(course.seconds()),
        on(inputs, shown),
        at(course)
    )
}

/// `Nothing wrong was found: live memory was flat within 2.00 KiB over the last 14 of 40 steps.` If it was not flat:
/// `went up and down between 219 MiB and 518 MiB`.
pub(in crate::judge) fn steady(
    inputs: &VerdictInputs<'_>,
    swing_bytes: Option<(u64, u64)>,
    peaks: Option<RisenPeaks>,
) -> String {
    let how = swing_bytes.map_or_else(
        || match inputs.courses.devices.iter().map(|room| room.flat_within_bytes).max() {
            None | Some(0) => "was flat".to_owned(),
            Some(bytes) => format!("was flat within {}", HumanBytes::of(bytes)),
        },
        |(lowest, highest)| {
            format!("went up and down between {} and {}", HumanBytes::of(lowest), HumanBytes::of(highest))
        },
    );
    let peaks = peaks.map_or_else(String::new, |peaks| format!(", and the peak of a step {}", rose(peaks)));
    let flat = format!("live memory {how} over the last {}{peaks}", last_third(inputs.judged));
    if let Some(worst) = worst(inputs) {
        return format!("{worst}{}.", opening_letter(&flat));
    }
    let so_far = if inputs.activity == Activity::Running { " so far" } else { "" };
    // Growth that is small beside the peak is no warning, but memory was not flat at its place.
    let grows = |finding: &&Finding| finding.kind.is_leak() && !matches!(holder_bound::bound(finding), Bound::At(_));
    match inputs.findings.iter().find(grows) {
        Some(small) => {
            let leak = match holder_bound::bound(small) {
                Bound::None => format!(" {}", known(Some(small))),
                Bound::Unknown | Bound::At(_) => String::new(),
            };
            format!(
                "Nothing that matters was found{so_far}: {flat}, apart from growth that is small beside the peak. {}{leak}",
                sentence(small.headline())
            )
        }
        None => format!("Nothing wrong was found{so_far}: {flat}."),
    }
}

/// `The peak of a step rose from 286 MiB to 495 MiB on rank 0 over the last 18 of 52 steps, and what stays after a step did not:
/// each step works on more. …`
pub(in crate::judge) fn more_work(inputs: &VerdictInputs<'_>, who: &Subject, peaks: RisenPeaks) -> String {
    let all = inputs.courses.subjects();
    let on = if all.len() < 2 { String::new() } else { format!(" on {}", subjects::on(&[who], &all)) };
    format!(
        "{}The peak of a step {}{on} over the last {}, and what stays after a step did not: each step works on more. It stops \
         when the inputs stop growing.",
        worst(inputs).unwrap_or_default(),
        rose(peaks),
        last_third(inputs.judged)
    )
}

/// `rose from 286 MiB to 495 MiB`.
fn rose(peaks: RisenPeaks) -> String {
    format!("rose from {} to {}", HumanBytes::of(peaks.lowest_bytes), HumanBytes::of(peaks.highest_bytes))
}

/// `Inconclusive: live memory rose from 286 MiB to 495 MiB over the last 18 of 52 windows, and too little was seen to say
/// whether that goes on.`
pub(in crate::judge) fn risen(inputs: &VerdictInputs<'_>, (lowest, highest): (u64, u64)) -> String {
    let rose = format!(
        "live memory rose from {} to {} over the last {}, and too little was seen to say whether that goes on",
        HumanBytes::of(lowest),
        HumanBytes::of(highest),
        last_third(inputs.judged)
    );
    match worst(inputs) {
        Some(worst) => format!("{worst}{}.", opening_letter(&rose)),
        None => format!("Inconclusive: {rose}."),
    }
}

/// The worst finding as a sentence with a trailing space. Problems come first in a text.
fn worst(inputs: &VerdictInputs<'_>) -> Option<String> {
    let worst = inputs.findings.iter().find(|finding| finding.severity >= Severity::Warning);
    // What failed and is no warning was caught.
    let is_explained = inputs.findings.iter().any(crate::oom::outcome::tells);
    let failed = inputs.failed.then(|| match is_explained {
        true => "A request failed, and the program caught it".to_owned(),
        false => "A request or a rank failed, and no finding explains why".to_owned(),
    });
    worst.map(Finding::headline).or(failed).map(|title| sentence(title) + " ")
}

/// `14 of 40 steps`.
fn last_third(judged: &Judged) -> String {
    let boundaries = [(judged.steps, "step"), (judged.epoch_ends, "epoch end"), (judged.windows, "window")];
    let (count, noun) = boundaries.into_iter().find(|(count, _)| *count > 2).unwrap_or((0, "moment"));
    if count == 0 {
        return "third of what was seen".to_owned();
    }
    format!("{} of {}", count.div_ceil(3), plural(count, noun))
}
