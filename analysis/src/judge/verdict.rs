//! The verdict on a job: the gravest behaviour of its devices and hosts, as one value with one sentence.
//!
//! Guarantees: growth that goes on is always reported as such, whether its cause is known or not. "Nothing wrong" is
//! reported only if retained memory was flat over the last third of the boundaries. Causes are not searched here:
//! findings name them, and holders decide.

use memctl_model::finding::Growth;
use memctl_model::{Cause, Finding, FindingKind, MemoryKind, Severity, Verdict, VerdictKind};

use super::course::{Course, Stand, Way};
use super::group::same_function;
use super::holder_bound::{self, Bound};
use super::optimizers::{self, Optimizers};
use super::verdict_inputs::{CourseContext, VerdictInputs};
use super::words::verdict as words;

/// Makes the verdict.
#[must_use]
pub fn verdict(inputs: &VerdictInputs<'_>) -> Verdict {
    if let Some(failed) = worst(inputs, crate::oom::outcome::tells) {
        return of_finding(VerdictKind::OutOfMemory, None, failed);
    }
    let courses = &inputs.courses.courses;
    growing(inputs, courses)
        .or_else(|| filling(inputs, courses))
        .or_else(|| not_enough(inputs))
        .or_else(|| of_course(inputs, courses, Stand::Released))
        .or_else(|| more_work(inputs))
        .or_else(|| of_course(inputs, courses, Stand::Stopped))
        .or_else(|| risen(inputs))
        .unwrap_or_else(|| steady(inputs))
}

fn worst<'a>(inputs: &VerdictInputs<'a>, of: impl Fn(&Finding) -> bool) -> Option<&'a Finding> {
    inputs.findings.iter().find(|finding| finding.severity >= Severity::Warning && of(finding))
}

/// A verdict with a finding's title as its sentence, because the title already contains everything.
fn of_finding(kind: VerdictKind, cause: Option<Cause>, finding: &Finding) -> Verdict {
    let memory = match finding.kind {
        FindingKind::HostGrowth => MemoryKind::Host,
        FindingKind::OutsideAllocator => MemoryKind::OutsideAllocator,
        _ => MemoryKind::Device,
    };
    Verdict {
        cause,
        memory: Some(memory),
        grown_bytes: finding.gained_bytes,
        site: finding.site.clone(),
        ranks: finding.ranks.clone(),
        processes: finding.processes.clone(),
        holder: words::holder(finding),
        ..Verdict::new(kind, crate::wording::sentence(finding.headline()))
    }
}

/// The finding about the place of a course.
fn finding_of<'a>(inputs: &VerdictInputs<'a>, course: &Course) -> Option<&'a Finding> {
    let about = |finding: &&Finding| {
        let fills = finding.kind.growth().is_some_and(|growth| growth != Growth::Beside);
        let same = finding.site == course.site || finding.kind == course.kind && is_near(finding, course);
        fills && same && finding.processes.contains(&course.who.name())
    };
    inputs.findings.iter().find(about)
}

/// Whether both are in one function. Ranks at different lines of one function show one leak.
fn is_near(finding: &Finding, course: &Course) -> bool {
    let (Some(one), Some(other)) = (&finding.site, &course.site) else { return false };
    same_function(one, other)
}

/// Whether something other than the duration of its growth shows that it is a leak: its holder, or a pattern that no
/// cache has. However long memory has grown, a bounded buffer may be longer.
#[must_use]
pub fn is_explained(finding: &Finding) -> bool {
    let graph = [FindingKind::HiddenChain, FindingKind::EvalGraph, FindingKind::GraphKept, FindingKind::PrivatePools];
    // The state of an optimizer grows as long as parameters are added to it.
    let is_held =
        || optimizers::of(finding).is_none_or(|of| of == Optimizers::Several) && words::holder(finding).is_some();
    words::reason(finding).is_some() || graph.contains(&finding.kind) || is_held()
}

/// The verdict on growth that goes on. Among several courses, one with a known cause comes first, then the largest.
fn growing(inputs: &VerdictInputs<'_>, courses: &[Course]) -> Option<Verdict> {
    let open = |course: &&Course| course.stand == Stand::Growing && !matches!(bound_of(inputs, course), Bound::At(_));
    let cause = |course: &Course| {
        let known = |finding: &Finding| finding.severity >= Severity::Warning && is_explained(finding);
        if finding_of(inputs, course).is_some_and(known) { Cause::Known } else { Cause::Open }
    };
    let order = |course: &&Course| (cause(course) == Cause::Known, course.gained);
    let device = courses.iter().filter(open).max_by_key(order).map(|most| {
        let alike = |inner: &&Course| open(inner) && cause(inner) == cause(most);
        courses.iter().filter(alike).filter(|inner| is_inside(inner, most)).max_by_key(order).unwrap_or(most)
    });
    // A chain of graphs falls back with each epoch, but grows within it.
    let chain = worst(inputs, |finding| finding.kind == FindingKind::HiddenChain);
    let is_beside =
        |finding: &&Finding| matches!(finding.kind, FindingKind::HostGrowth | FindingKind::OutsideAllocator);
    let beside = inputs.findings.iter().find(is_beside);
    match (device, chain) {
        (Some(course), chain) if chain.is_none() || cause(course) == Cause::Known => {
            Some(grown(inputs, courses, course, cause(course)))
        }
        (_, Some(chain)) => Some(of_finding(VerdictKind::Growing, Some(Cause::Known), chain)),
        _ => None,
    }
    .or_else(|| beside.map(|finding| of_finding(VerdictKind::Growing, Some(Cause::Open), finding)))
}

/// Whether a place is reached through another one and brings most of its growth. It is then the more precise place, and
/// what holds the rest at the outer place does not hold most of it.
fn is_inside(inner: &Course, outer: &Course) -> bool {
    inner.who == outer.who
        && inner.site != outer.site
        && outer.place.is_on(inner.stack.iter())
        && inner.gained > outer.gained / 2
}

fn grown(inputs: &VerdictInputs<'_>, courses: &[Course], course: &Course, cause: Cause) -> Verdict {
    let finding = finding_of(inputs, course);
    let shown = CourseContext::new(courses, course);
    Verdict {
        cause: Some(cause),
        holder: finding.and_then(words::holder),
        sentence: words::growing(inputs, &shown, finding, cause),
        ..shown.measured(VerdictKind::Growing)
    }
}

/// The bound of the holder of a course's blocks.
fn bound_of(inputs: &VerdictInputs<'_>, course: &Course) -> Bound {
    finding_of(inputs, course).map_or(Bound::Unknown, holder_bound::bound)
}

fn filling(inputs: &VerdictInputs<'_>, courses: &[Course]) -> Option<Verdict> {
    let bounded = |course: &Course| match bound_of(inputs, course) {
        Bound::At(bytes) if course.stand == Stand::Growing => Some(bytes),
        _ => None,
    };
    let filling = courses.iter().filter_map(|course| Some((course, bounded(course)?)));
    let (course, bytes) = filling.max_by_key(|(course, _)| course.gained)?;
    let finding = finding_of(inputs, course)?;
    let room = inputs.courses.devices.iter().find(|room| room.who == course.who)?;
    let more = bytes.map(|bound| bound.saturating_sub(course.gained));
    let fits = more.zip(room.limit_bytes).map(|(more, limit)| room.peak_bytes.saturating_add(more) <= limit);
    let shown = CourseContext::new(courses, course);
    Some(Verdict {
        bound_bytes: bytes,
        fits,
        holder: words::holder(finding),
        sentence: words::filling(inputs, &shown, finding, (bytes, fits, room.own_limit_bytes)),
        ..shown.measured(VerdictKind::Filling)
    })
}

/// The verdict if too few boundaries were seen. A leak that was found nevertheless is known to grow.
fn not_enough(inputs: &VerdictInputs<'_>) -> Option<Verdict> {
    let not = inputs.not_judged.iter().find(|not| not.decides())?;
    let is_leak = |finding: &Finding| finding.kind.fills() && !matches!(holder_bound::bound(finding), Bound::At(_));
    if let Some(leak) = worst(inputs, is_leak) {
        let cause = if is_explained(leak) { Cause::Known } else { Cause::Open };
        return Some(of_finding(VerdictKind::Growing, Some(cause), leak));
    }
    Some(Verdict::new(VerdictKind::NotEnoughData, words::not_enough(inputs, not)))
}

fn of_course(inputs: &VerdictInputs<'_>, courses: &[Course], stand: Stand) -> Option<Verdict> {
    let course = courses.iter().filter(|course| course.stand == stand).max_by_key(|course| course.gained)?;
    let all = if stand == Stand::Stopped { united(courses, course) } else { course.clone() };
    let shown = CourseContext::new(courses, &all);
    let (kind, sentence) = match stand {
        Stand::Released => (VerdictKind::Released, words::released(inputs, &shown)),
        Stand::Stopped | Stand::Growing => (VerdictKind::LevelledOff, words::levelled_off(inputs, &shown)),
    };
    Some(Verdict { sentence, ..shown.measured(kind) })
}

/// The growth of all places of a device that has stopped, with the place that brought most of it. It has stopped when the
/// last of them has.
fn united(courses: &[Course], most: &Course) -> Course {
    let alike = || courses.iter().filter(|course| course.stand == most.stand && course.who == most.who);
    let is_within = |one: &Course, other: &Course| other.place.is_on(one.stack.iter());
    let beside = |other: &&Course| other.site != most.site && !is_within(most, other) && !is_within(other, most);
    let others: Vec<&Course> = alike().filter(beside).collect();
    // A place that is reached through the largest one may bring most of its growth.
    let inner = alike().filter(|other| other.site != most.site && is_within(other, most) && !is_within(most, other));
    let inner = inner.filter(|inner| inner.gained > most.gained / 2).max_by_key(|inner| inner.gained);
    if others.is_empty() && inner.is_none() {
        return most.clone();
    }
    let mut all = most.clone();
    for other in &others {
        all.gained = all.gained.saturating_add(other.gained);
        all.begun_ns = all.begun_ns.min(other.begun_ns);
        all.hardly_grows |= other.hardly_grows;
        if other.until_ns > all.until_ns {
            (all.until_ns, all.until_step) = (other.until_ns, other.until_step);
        }
    }
    if let Some(inner) = inner {
        (all.site, all.place, all.stack) = (inner.site.clone(), inner.place.clone(), inner.stack.clone());
    }
    // No single line has all of it.
    all.way = Way::Sum;
    all
}

/// The verdict if no more memory stays but the peak of a step rises. Growing inputs end in an out of memory, too.
fn more_work(inputs: &VerdictInputs<'_>) -> Option<Verdict> {
    let rooms =
        inputs.courses.devices.iter().filter_map(|room| Some((room, room.peaks.filter(|peaks| peaks.goes_on)?)));
    let (room, peaks) = rooms.max_by_key(|(_, peaks)| peaks.late_bytes - peaks.early_bytes)?;
    Some(Verdict {
        cause: Some(Cause::Open),
        memory: Some(MemoryKind::Device),
        grown_bytes: Some(peaks.highest_bytes - peaks.lowest_bytes),
        ranks: vec![room.who.rank],
        processes: vec![room.who.name()],
        ..Verdict::new(VerdictKind::Growing, words::more_work(inputs, &room.who, peaks))
    })
}

/// The verdict if memory only rose over the last third and no place is known to grow.
fn risen(inputs: &VerdictInputs<'_>) -> Option<Verdict> {
    let rooms = inputs.courses.devices.iter().filter(|room| room.rose);
    let swing = rooms.filter_map(|room| room.swing_bytes).max_by_key(|(lowest, highest)| highest - lowest)?;
    let sentence = words::risen(inputs, swing);
    Some(Verdict { swing_bytes: Some(swing), ..Verdict::new(VerdictKind::NotEnoughData, sentence) })
}

fn steady(inputs: &VerdictInputs<'_>) -> Verdict {
    let devices = &inputs.courses.devices;
    let memory = (!devices.is_empty()).then_some(MemoryKind::Device);
    // The device with the largest swing is shown.
    let swings = devices.iter().filter_map(|device| device.swing_bytes);
    let swing_bytes = swings.max_by_key(|(lowest, highest)| highest - lowest);
    let peaks = devices.iter().filter_map(|device| device.peaks);
    let peaks = peaks.max_by_key(|peaks| peaks.late_bytes - peaks.early_bytes);
    Verdict { memory, swing_bytes, ..Verdict::new(VerdictKind::Steady, words::steady(inputs, swing_bytes, peaks)) }
}
