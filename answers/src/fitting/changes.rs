//! The peak with a change: without a site, or with modules checkpointed.
//!
//! Guarantees: the saving is the difference of two replays. Refuses a site or a module that the recording does not
//! have, and names up to [`NAMED_MAX`] that it has. Refuses to checkpoint if forward and backward passes cannot be
//! distinguished.

use std::collections::HashMap;

use memctl_analysis::classes::Class;
use memctl_analysis::modules::{self, Pass};
use memctl_replay::Limit;
use memctl_replay::fit::{self as replay, Fit, Script};

use super::Meaning;
use super::refused::Refused;
use crate::Frame;
use crate::fit::{Checkpoint, Without};
use crate::naming::{is_named, place};

/// The limitation of a peak without a site.
pub(super) const WITHOUT: &str =
    "Memory that the program would use instead: data that moves to the host may come back to the device for a moment.";
/// The limitations of a peak with checkpointing.
pub(super) const CHECKPOINT: [&str; 2] = [
    "Time: the repeated share is a share of the bytes that forward passes request, not of their computing time.",
    "Which block is a module's result: of the last operation whose blocks stay, the largest block is taken. \
     Memory that only the second forward pass needs, such as saved states of random numbers, is not counted.",
];
/// Names that an error lists at most.
const NAMED_MAX: usize = 8;

/// The peak without a site, and the remaining requests.
///
/// # Errors
/// No request belongs to the site.
pub(super) fn without(site: &str, fit: &Fit, meaning: &Meaning) -> Result<(Without, Script), Refused> {
    let is_it: Vec<bool> = meaning
        .places
        .iter()
        .map(|(frame, _)| frame.as_ref().is_some_and(|it| is_named(&Frame::from(it), site)))
        .collect();
    let of_site = |request: usize| meaning.holders.get(request).is_some_and(|&holder| is_it[holder as usize]);
    let requests = (0..fit.script().requests()).filter(|&request| of_site(fit.script().origin(request))).count();
    if requests == 0 {
        let known = largest(fit, meaning).join(", ");
        return Err(Refused::NoSite { site: site.to_owned(), known });
    }
    let script = fit.script().without(|request| of_site(fit.script().origin(request)));
    let (before, after) = (outcome(fit, fit.script()), outcome(fit, &script));
    let mut places: Vec<Frame> = Vec::new();
    for frame in
        meaning.places.iter().zip(&is_it).filter(|(_, is_it)| **is_it).filter_map(|((frame, _), _)| frame.as_ref())
    {
        let frame = Frame::from(frame);
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
        saves_allocated_bytes: saved_bytes(before.0, after.0),
        saves_reserved_bytes: saved_bytes(before.1, after.1),
    };
    Ok((without, script))
}

/// The peak with modules checkpointed, and the resulting requests.
///
/// # Errors
/// No such module, or no backward pass that can be distinguished from a forward pass.
pub(super) fn checkpoint(name: &str, fit: &Fit, meaning: &Meaning) -> Result<(Checkpoint, Script), Refused> {
    let all = meaning.modules.all();
    if all.is_empty() {
        return Err(Refused::NoModules);
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
        let known = if known.is_empty() { "none calls another module".to_owned() } else { known.join(", ") };
        return Err(Refused::NoModule { name: name.to_owned(), known });
    }
    let edited = checkpointed(fit.script(), &calls, meaning);
    if edited.calls == 0 {
        return Err(Refused::NothingKept(name.to_owned()));
    }
    let (before, after) = (outcome(fit, fit.script()), outcome(fit, &edited.script));
    let checkpoint = Checkpoint {
        modules: name.to_owned(),
        calls: edited.calls as u64,
        peak_allocated_bytes: after.0,
        peak_reserved_bytes: after.1,
        saves_allocated_bytes: saved_bytes(before.0, after.0),
        saves_reserved_bytes: saved_bytes(before.1, after.1),
        repeated_share: edited.repeated_bytes as f64 / edited.forward_bytes.max(1) as f64,
    };
    Ok((checkpoint, edited.script))
}

/// The requests with calls checkpointed.
pub(super) fn checkpointed(
    script: &Script,
    calls: &[std::ops::Range<usize>],
    meaning: &Meaning,
) -> replay::Checkpointed {
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
    script.checkpointed(calls, replay::CheckpointFacts { pass, lingers, saves_itself, once, lines })
}

/// Peaks of allocated and reserved bytes.
pub(super) fn outcome(fit: &Fit, script: &Script) -> (u64, u64) {
    let counts = script.outcome(fit.conf(), Limit::None).counts;
    (counts.peak_allocated_bytes, counts.peak_reserved_bytes)
}

/// The bytes by which the second is less than the first.
pub(super) fn saved_bytes(before: u64, after: u64) -> i64 {
    let difference = i128::from(before) - i128::from(after);
    i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
}

/// The sites that hold most at the peak.
fn largest(fit: &Fit, meaning: &Meaning) -> Vec<String> {
    let mut held: HashMap<String, u64> = HashMap::new();
    for &(request, bytes) in &fit.script().peak(fit.conf()).live {
        if let Some((Some(frame), _)) = meaning.holder(fit.script().origin(request)) {
            *held.entry(place(&Frame::from(frame))).or_default() += bytes;
        }
    }
    let mut held: Vec<(String, u64)> = held.into_iter().collect();
    held.sort_by(|one, other| (other.1, &one.0).cmp(&(one.1, &other.0)));
    held.into_iter().take(NAMED_MAX).map(|(site, _)| site).collect()
}
