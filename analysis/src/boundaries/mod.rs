//! Boundaries of a recording without marks: its steps and epochs, found by the loop that repeats.
//!
//! Guarantees: a few passes over the events; memory is proportional to the number of stacks and rounds; the same
//! recording always gives the same boundaries. Training loops are recognised by their calls (an optimizer,
//! `zero_grad`, a backward pass) and by the lines of the functions around those calls. Other loops are recognised by
//! the lines that repeat, and recordings without stacks by the period of their requests. If nothing repeats but memory
//! is allocated and freed, the recording is cut into windows.
//!
//! Repetition within a model's call is a layer. Repetition in library code that the user did not call is the library's
//! own loop. Neither is a step. A step frees the memory that it allocated. The last step of a loop gets an end only if
//! a further step follows. Parts of a pass are never compared.
//!
//! - `stacks`: what each stack shows; `anchors`: work that happens once a step; `loops`: the loop of that work and its
//!   outer loop; `rounds`: steps and phases; `epochs`: the loop around the steps.
//! - Without training: `lines`, then `periods`, then `windows`; `turnover`: whether their results may be steps.

mod anchors;
mod epochs;
mod lines;
mod loops;
mod periods;
mod rounds;
mod stacks;
mod turnover;
mod windows;

use memctl_model::{Event, Phase};

pub use stacks::Stacks;

/// From the first event of a range to its last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// Time of its first event.
    pub begin_ns: u64,
    /// Time of its last event.
    pub end_ns: u64,
}

/// The boundaries that were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Boundaries {
    /// How they were found: `the loop at train.py:31`; `None` if nothing was found.
    pub by: Option<String>,
    /// Steps, in order.
    pub steps: Vec<Span>,
    /// Epochs, in order; empty if the steps' loop has no outer loop.
    pub epochs: Vec<Span>,
    /// Passes, the optimizer, evaluations; sorted by their begin.
    pub phases: Vec<(Span, Phase)>,
    /// Ends of windows, in order; only if steps were not found, or only in a small part of the recording.
    pub windows: Vec<u64>,
}

/// Finds the boundaries of a recording; each call of `events` returns all its events in order.
pub fn find<I: Iterator<Item = Event>>(stacks: Stacks<'_>, events: impl Fn() -> I) -> Boundaries {
    let found = look(stacks, events);
    Boundaries { steps: apart(found.steps), epochs: apart(found.epochs), ..found }
}

impl Boundaries {
    /// Adds windows over the whole recording if the steps are a small part of it.
    fn beside(self, windows: Option<(String, Vec<u64>)>) -> Self {
        let Some((by_windows, windows)) = windows else { return self };
        let by = self.by.map_or(by_windows.clone(), |by| format!("{by} and {by_windows}"));
        Self { by: Some(by), windows, ..self }
    }
}

/// Whether most of a recording is outside its steps, by time and by events. An example is a server whose warm-up had a
/// few steps.
fn is_small(steps: &[Span], events: impl Iterator<Item = Event>) -> bool {
    let (Some(first), Some(last)) = (steps.first(), steps.last()) else { return false };
    let (mut count, mut inside, mut begin_ns, mut end_ns) = (0_u64, 0_u64, u64::MAX, 0);
    for event in events {
        count += 1;
        inside += u64::from((first.begin_ns..=last.end_ns).contains(&event.time_ns));
        (begin_ns, end_ns) = (begin_ns.min(event.time_ns), end_ns.max(event.time_ns));
    }
    inside * 2 < count && last.end_ns.saturating_sub(first.begin_ns) < end_ns.saturating_sub(begin_ns) / 2
}

/// The events before and after the steps.
fn beside(found: &Boundaries, events: impl Iterator<Item = Event>) -> impl Iterator<Item = Event> {
    let begin_ns = found.steps.first().map_or(u64::MAX, |step| step.begin_ns);
    let end_ns = found.steps.last().map_or(0, |step| step.end_ns);
    events.filter(move |event| event.time_ns < begin_ns || event.time_ns > end_ns)
}

/// Makes ranges consecutive again after odd times have mixed up their order.
fn apart(mut spans: Vec<Span>) -> Vec<Span> {
    let mut end_ns = 0;
    for span in &mut spans {
        span.begin_ns = span.begin_ns.max(end_ns);
        span.end_ns = span.end_ns.max(span.begin_ns);
        end_ns = span.end_ns;
    }
    spans
}

fn look<I: Iterator<Item = Event>>(stacks: Stacks<'_>, events: impl Fn() -> I) -> Boundaries {
    let paths = stacks::Paths::new(stacks);
    if let Some(training) = training(&paths, &events) {
        let rest =
            is_small(&training.steps, events()) && turnover::comes_and_goes(&paths, &|| beside(&training, events()));
        return if rest { training.beside(windows::cut(&events)) } else { training };
    }
    if let Some((by, steps)) = lines::find(&paths, &events).or_else(|| periods::find(&paths, &events)) {
        return Boundaries { by: Some(by), steps, ..Boundaries::default() };
    }
    let windows = if turnover::comes_and_goes(&paths, &events) { windows::cut(&events) } else { None };
    let (by, windows) = windows.unzip();
    Boundaries { by, windows: windows.unwrap_or_default(), ..Boundaries::default() }
}

/// Steps of a training, by what is called once in each.
fn training<I: Iterator<Item = Event>>(paths: &stacks::Paths<'_>, events: &impl Fn() -> I) -> Option<Boundaries> {
    let anchors = anchors::find(paths, events());
    let loops = loops::find(paths, &anchors, events());
    let longest = loops.iter().max_by_key(|found| found.anchor.visits)?;
    let rounds::Cut { rounds, mut phases } = rounds::cut(paths, &loops, events());
    if rounds.len() < 2 {
        return None;
    }
    phases.sort_by_key(|&(span, _)| span);
    let steps = rounds.iter().map(|round| round.span).collect();
    let epochs = epochs::epochs(&rounds);
    Some(Boundaries { by: Some(longest.name.clone()), steps, epochs, phases, windows: Vec::new() })
}
