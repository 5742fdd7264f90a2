//! The peak with a change: without a site, or with modules checkpointed.
//!
//! Guarantees: the saving is the difference of two replays. Refuses a site or a module that the recording does not
//! have, and names those that it has; refuses to checkpoint if forward and backward passes cannot be distinguished.

use std::collections::HashMap;

use memctl_analysis::classes::Class;
use memctl_analysis::modules::{self, Pass};
use memctl_answers::Frame;
use memctl_answers::fit::{Checkpoint, Without};
use memctl_answers::fitting::Meaning;
use memctl_answers::naming::{is_named, place};
use memctl_replay::Limit;
use memctl_replay::fit::{self as replay, Fit, Script};

use crate::exit::Failure;

/// What a peak without a site does not say.
pub const WITHOUT: &str =
    "What the program would do instead: memory that moves to the host may come back for a moment.";
/// What a peak with checkpointing does not say.
pub const CHECKPOINT: [&str; 2] = [
    "Time: the repeated share is of the bytes that forward passes ask for, not of their work.",
    "Which of a module's blocks is its result is concluded: the largest of the last call that stays. What the second forward needs besides, such as saved states of random numbers, is not counted.",
];
/// Names that an error lists at most.
const NAMED_MAX: usize = 8;

/// The peak without a site, and the requests that are left.
///
/// # Errors
/// No request is of the site.
pub fn without(site: &str, fit: &Fit, meaning: &Meaning) -> Result<(Without, Script), Failure> {
    let is_it: Vec<bool> =
        meaning.places.iter().map(|(frame, _)| frame.as_ref().is_some_and(|it| is_named(&shown(it), site))).collect();
    let of_site = |request: usize| meaning.holders.get(request).is_some_and(|&holder| is_it[holder as usize]);
    let requests = (0..fit.script().requests()).filter(|&request| of_site(fit.script().origin(request))).count();
    if requests == 0 {
        let known = largest(fit, meaning).join(", ");
        return Err(Failure::input(format!(
            "no request was made at {site}; those that hold most at the peak: {known}"
        )));
    }
    let script = fit.script().without(|request| of_site(fit.script().origin(request)));
    let (before, after) = (outcome(fit, fit.script()), outcome(fit, &script));
    let mut places: Vec<Frame> = Vec::new();
    for frame in
        meaning.places.iter().zip(&is_it).filter(|(_, is_it)| **is_it).filter_map(|((frame, _), _)| frame.as_ref())
    {
        let frame = shown(frame);
        if !places.contains(&frame) {
            places.push(frame);
        }
    }
    let without = Without {
        site: site.to_owned(),
        places,
        requests: requests as u64,
        peak_allocated_bytes: after.0,
        peak_reserved_bytes: after.1,
        saves_allocated_bytes: less(before.0, after.0),
        saves_reserved_bytes: less(before.1, after.1),
    };
    Ok((without, script))
}

/// The peak with modules checkpointed, and the requests that this makes.
///
/// # Errors
/// No such module, or no backward pass that can be distinguished from a forward pass.
pub fn checkpoint(name: &str, fit: &Fit, meaning: &Meaning) -> Result<(Checkpoint, Script), Failure> {
    let all = meaning.modules.all();
    if all.is_empty() {
        return Err(Failure::input(
            "no request was made in a module's forward, so forward and backward passes cannot be distinguished; record with \
             memctl run, or with _record_memory_history(context=\"all\", stacks=\"python\")",
        ));
    }
    let calls = modules::chosen(&all, name);
    if calls.is_empty() {
        let mut known: Vec<String> = Vec::new();
        for module in all.iter().filter(|module| module.is_outer) {
            if !known.contains(&module.name().to_owned()) {
                known.push(module.name().to_owned());
            }
        }
        known.truncate(NAMED_MAX);
        let known = if known.is_empty() { "none that calls others".to_owned() } else { known.join(", ") };
        return Err(Failure::input(format!("no module {name} was called; modules of this recording: {known}")));
    }
    let edited = checkpointed(fit.script(), &calls, meaning);
    if edited.calls == 0 {
        return Err(Failure::input(format!(
            "nothing that {name} made was given back in a backward pass: the recording has none behind it, or these modules \
             are checkpointed already"
        )));
    }
    let (before, after) = (outcome(fit, fit.script()), outcome(fit, &edited.script));
    let checkpoint = Checkpoint {
        modules: name.to_owned(),
        calls: edited.calls as u64,
        peak_allocated_bytes: after.0,
        peak_reserved_bytes: after.1,
        saves_allocated_bytes: less(before.0, after.0),
        saves_reserved_bytes: less(before.1, after.1),
        repeated_share: edited.repeated_bytes as f64 / edited.forward_bytes.max(1) as f64,
    };
    Ok((checkpoint, edited.script))
}

/// The requests with calls checkpointed.
pub fn checkpointed(script: &Script, calls: &[std::ops::Range<usize>], meaning: &Meaning) -> replay::Checkpointed {
    let pass = |request: usize| match meaning.modules.pass(request) {
        Pass::Forward => replay::Pass::Forward,
        Pass::Backward => replay::Pass::Backward,
        Pass::Optimizer => replay::Pass::Other,
    };
    let lingers = |request: usize| meaning.is_copy(request);
    let saves_itself = |request: usize| meaning.saves_itself(request);
    let once =
        |request: usize| !matches!(meaning.class(request), Class::Activations | Class::Temporaries | Class::Unknown);
    let lines = |request: usize| meaning.modules.lines(request);
    script.checkpointed(calls, replay::Known { pass, lingers, saves_itself, once, lines })
}

/// Peaks of allocated and reserved bytes.
pub fn outcome(fit: &Fit, script: &Script) -> (u64, u64) {
    let counts = script.outcome(fit.conf(), Limit::None).counts;
    (counts.peak_allocated_bytes, counts.peak_reserved_bytes)
}

/// By how much the second is less than the first.
pub fn less(before: u64, after: u64) -> i64 {
    let difference = i128::from(before) - i128::from(after);
    i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
}

/// A frame as answers have it.
pub fn shown(frame: &memctl_model::Frame) -> Frame {
    let memctl_model::Frame { function, file, line } = frame;
    Frame { function: function.to_string(), file: file.to_string(), line: Some(*line).filter(|&line| line > 0) }
}

/// The sites that hold most at the peak.
fn largest(fit: &Fit, meaning: &Meaning) -> Vec<String> {
    let mut held: HashMap<String, u64> = HashMap::new();
    for &(request, bytes) in &fit.script().peak(fit.conf()).live {
        if let Some((Some(frame), _)) = meaning.holder(fit.script().origin(request)) {
            *held.entry(place(&shown(frame))).or_default() += bytes;
        }
    }
    let mut held: Vec<(String, u64)> = held.into_iter().collect();
    held.sort_by(|one, other| (other.1, &one.0).cmp(&(one.1, &other.0)));
    held.into_iter().take(NAMED_MAX).map(|(site, _)| site).collect()
}
