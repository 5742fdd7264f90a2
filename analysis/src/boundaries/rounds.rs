//! Cuts a recording into the rounds of its loops: steps, the epochs around them and the phases within them.
//!
//! Guarantees: a round ends at the lowest live level between the anchor's visit and the next pass. Activations are
//! freed at that point, as at the end of a real step. Rounds are disjoint and in order. The time before the first
//! round and after the last round is not a step.

use memctl_model::{Action, Event, Phase};

use super::Span;
use super::anchors::Between;
use super::loops::{Loop, Touch, Trail};
use super::stacks::{Paths, Work};

/// Maximum number of steps of one recording. The part after them is not cut.
pub(super) const STEPS_MAX: usize = 1 << 21;

/// Live bytes relative to the recording's start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Live(pub i64);

impl Live {
    pub(super) fn note(&mut self, event: &Event) {
        let size = i64::try_from(event.size).unwrap_or(i64::MAX);
        match event.action {
            Action::Alloc => self.0 = self.0.saturating_add(size),
            Action::FreeRequested => self.0 = self.0.saturating_sub(size),
            _ => {}
        }
    }
}

/// One round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Round {
    pub span: Span,
    /// Live bytes at its end.
    pub live: i64,
    /// The time at which the outer loop iterated after this round.
    pub outer_ns: Option<u64>,
}

/// The lowest point between some event and the begin of the next pass.
#[derive(Clone, Copy, Debug)]
struct Gap {
    live: i64,
    at: u64,
    end_ns: u64,
    next_ns: Option<u64>,
    open: bool,
}

impl Gap {
    fn after(live: Live, at: u64, event: &Event) -> Self {
        Self { live: live.0, at, end_ns: event.time_ns, next_ns: None, open: true }
    }

    fn note(&mut self, live: Live, at: u64, event: &Event) {
        if !self.open {
            self.next_ns.get_or_insert(event.time_ns);
            return;
        }
        // A free consists of two events; the second belongs to the first.
        let completes = event.action == Action::FreeCompleted && self.at + 1 == at;
        if live.0 < self.live || (completes && live.0 == self.live) {
            *self = Self::after(live, at, event);
        } else {
            self.next_ns.get_or_insert(event.time_ns);
        }
    }
}

/// All results of the cut.
#[derive(Debug, Default)]
pub(super) struct Cut {
    pub rounds: Vec<Round>,
    pub phases: Vec<(Span, Phase)>,
}

/// Work between two rounds.
#[derive(Clone, Copy, Debug)]
struct Aside {
    span: Span,
    forward: bool,
    backward: bool,
}

/// Follows one loop.
struct Follower<'a> {
    found: &'a Loop,
    paths: &'a Paths<'a>,
    trail: Trail<'a>,
    visits: u64,
    seen: u64,
    /// The begin of the current round.
    begin_ns: Option<u64>,
    /// The first event of the rounds since the last event outside of them.
    inside_ns: Option<u64>,
    /// The lowest point since the anchor's last event.
    gap: Option<Gap>,
    /// The lowest point since the last event that showed an iteration of the outer loop.
    outer: Option<Gap>,
    aside: Option<Aside>,
    part: Option<(Phase, u64)>,
    last_ns: u64,
    /// Whether the function that the loop calls has been left since the anchor's last event.
    returned: bool,
    over: bool,
    cut: Cut,
}

impl<'a> Follower<'a> {
    fn new(paths: &'a Paths<'a>, found: &'a Loop) -> Self {
        Self {
            found,
            paths,
            trail: Trail::new(paths, found.anchor.caller),
            visits: 0,
            seen: 0,
            begin_ns: None,
            inside_ns: None,
            gap: None,
            outer: None,
            aside: None,
            part: None,
            last_ns: 0,
            returned: false,
            over: false,
            cut: Cut::default(),
        }
    }

    fn note(&mut self, event: &Event, (at, live): (u64, Live), (work, is_anchor): (Work, bool), seen: u64) {
        let touch = if is_anchor { Touch::Through } else { self.trail.touch(event) };
        let outside = self.found.is_outside(self.paths, touch);
        if is_anchor {
            if self.visits == 0 || self.seen != seen {
                self.inside_ns.get_or_insert(event.time_ns);
                self.close_round();
                self.visits += 1;
            }
            (self.seen, self.returned) = (seen, false);
            self.gap = Some(Gap::after(live, at, event));
        } else if outside {
            self.outside(event, (at, live), work, touch);
        } else {
            self.inside(event, (at, live), work, touch);
        }
        if touch != Touch::Foreign {
            self.phase(event, if outside { Work::ZeroGrad } else { work });
        }
        self.last_ns = event.time_ns;
    }

    fn inside(&mut self, event: &Event, (at, live): (u64, Live), work: Work, touch: Touch) {
        if touch != Touch::Foreign {
            self.inside_ns.get_or_insert(event.time_ns);
        }
        self.returned |= touch == Touch::Beside(self.found.depth);
        let passes = touch != Touch::Foreign && matches!(work, Work::Forward | Work::Backward);
        let passes = passes || self.comes_round(touch);
        for gap in [&mut self.gap, &mut self.outer].into_iter().flatten() {
            gap.open &= !passes;
            gap.note(live, at, event);
        }
    }

    /// Whether the loop is in its next round: at a line before the anchor's line, or again in a function that it had
    /// left.
    fn comes_round(&self, touch: Touch) -> bool {
        let line_of = |id| self.paths.frame(id).map_or(0, |frame| frame.line);
        match touch {
            Touch::Foreign | Touch::Beside(_) => false,
            Touch::Line(depth, frame) if depth == self.found.depth => {
                self.trail.path().get(depth).is_some_and(|&anchor| line_of(frame) < line_of(anchor))
            }
            Touch::Through | Touch::Line(..) => self.returned,
        }
    }

    fn outside(&mut self, event: &Event, (at, live): (u64, Live), work: Work, touch: Touch) {
        self.inside_ns = None;
        if let Some(gap) = &mut self.gap {
            gap.open = false;
            gap.note(live, at, event);
        }
        // After the last round, only touches that were also seen between earlier rounds belong to the outer loop.
        self.over |= self.visits >= self.found.anchor.visits && !self.found.is_between(touch);
        if self.over || self.visits == 0 {
            return;
        }
        if self.outer.is_some() || self.found.is_outer(touch) {
            self.outer = Some(Gap::after(live, at, event));
        }
        let span = Span { begin_ns: event.time_ns, end_ns: event.time_ns };
        let aside = self.aside.get_or_insert(Aside { span, forward: false, backward: false });
        aside.span.end_ns = event.time_ns;
        aside.forward |= work == Work::Forward;
        aside.backward |= work == Work::Backward;
    }

    /// Ends the round of the last visit, if there was one, and begins the next.
    fn close_round(&mut self) {
        let (gap, outer, aside) = (self.gap.take(), self.outer.take(), self.aside.take());
        let inside_ns = self.inside_ns.take();
        let next_ns = match (&gap, &outer, &aside) {
            (_, Some(outer), _) => outer.next_ns.or(inside_ns),
            (Some(gap), None, None) => gap.next_ns.or(inside_ns),
            _ => inside_ns,
        };
        let begin_ns = std::mem::replace(&mut self.begin_ns, next_ns);
        let (Some(gap), Some(begin_ns)) = (gap, begin_ns) else { return };
        if self.cut.rounds.len() >= STEPS_MAX {
            return;
        }
        let span = Span { begin_ns: begin_ns.min(gap.end_ns), end_ns: gap.end_ns };
        self.cut.rounds.push(Round { span, live: gap.live, outer_ns: outer.map(|outer| outer.end_ns) });
        if let Some(aside) = aside.filter(|aside| aside.forward && !aside.backward) {
            self.cut.phases.push((aside.span, Phase::Eval));
        }
    }

    fn phase(&mut self, event: &Event, work: Work) {
        let now = self.part.map(|(phase, _)| phase);
        let next = match work {
            Work::Forward => Some(Phase::Forward),
            Work::Backward => Some(Phase::Backward),
            Work::Optimizer => Some(Phase::Optimizer),
            // The loss is computed after the last module, so this work still belongs to the forward pass.
            Work::Other if now == Some(Phase::Forward) => now,
            Work::Other | Work::ZeroGrad | Work::Unseen => None,
        };
        if next == now {
            return;
        }
        if let Some((phase, begin_ns)) = self.part.take()
            && self.cut.phases.len() < STEPS_MAX * 4
        {
            self.cut.phases.push((Span { begin_ns, end_ns: self.last_ns }, phase));
        }
        self.part = next.map(|phase| (phase, event.time_ns));
    }

    fn finish(mut self) -> Cut {
        self.close_round();
        self.cut
    }
}

/// The rounds of loops that follow one another.
pub(super) fn cut(paths: &Paths<'_>, loops: &[Loop], events: impl Iterator<Item = Event>) -> Cut {
    let mut whole = Cut::default();
    let mut left = loops.iter().peekable();
    let mut now = left.next().map(|found| Follower::new(paths, found));
    let (mut between, mut live) = (Between::default(), Live::default());
    let mut join = |cut: Cut| {
        whole.phases.extend(cut.phases);
        let room = STEPS_MAX.saturating_sub(whole.rounds.len());
        whole.rounds.extend(cut.rounds.into_iter().take(room));
    };
    for (at, event) in (0_u64..).zip(events) {
        live.note(&event);
        let reading = paths.reading(event.stack);
        between.note(reading.work);
        let Some(follower) = now.as_mut() else { break };
        let is_anchor =
            reading.work == follower.found.anchor.work && reading.caller == Some(follower.found.anchor.caller);
        let seen = between.seen_by(follower.found.anchor.work);
        follower.note(&event, (at, live), (reading.work, is_anchor), seen);
        if follower.over || left.peek().is_some_and(|next| at + 1 >= next.anchor.first) {
            let next = left.next().map(|found| Follower::new(paths, found));
            if let Some(over) = std::mem::replace(&mut now, next) {
                join(over.finish());
            }
        }
    }
    if let Some(follower) = now {
        join(follower.finish());
    }
    whole
}
