//! Compares the detectors' verdicts on a run with the added leak.
//!
//! Guarantees: every detector is queried after every sample point, all ranks in step (in a long epoch after every
//! leaked block and every hundredth step; without marks once the run has ended, as for an import). "Found" means a
//! verdict after the leak began that has a right line among its first three, if the detector names lines at all.

use memctl_model::{FindingKind, Frame, SiteTable};

use super::detect::{Detector, Given, Level, Notified, Verdict};
use super::parts::{View, own_findings};
use super::runs::{Run, Truth};
use super::sentence::{Said, said};

/// The progress of a leak since its first block, on the first rank that leaks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Delay {
    /// Ends of steps, including the step in which it was found.
    pub steps: u64,
    /// Bytes leaked by then.
    pub bytes: u64,
    /// Times that it leaked: positions with leaked blocks.
    pub times: u64,
    /// Seconds of recorded time.
    pub seconds: f64,
}

/// The result of one detector for one run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// It raised an alarm at some time; in a leaky run after the leak had begun.
    pub ever_alarmed: bool,
    /// It raised an alarm before the leak began, which is a false alarm.
    pub alarmed_before: bool,
    /// It suspected something at some time.
    pub ever_suspected: bool,
    /// Its alarm is active at the run's end.
    pub alarmed_at_end: bool,
    /// The first line of its gravest verdict at the end is a right one; `None` if it names no line or there is no right
    /// line.
    pub top1: Option<bool>,
    /// The same for the first three lines.
    pub top3: Option<bool>,
    /// Whether the ranks of its alarms at the end are those that leak.
    pub ranks_right: Option<bool>,
    /// Whether the alarm at the end that names a right line names the cause's kind; `None` if there is no such alarm,
    /// or no kind.
    pub kind_right: Option<bool>,
    /// The same for the cause's pattern, if it names one.
    pub pattern_right: Option<bool>,
    /// The progress at which it first found the leak, as a suspicion or an alarm.
    pub suspected: Option<Delay>,
    /// The progress at which an alarm first named the leak.
    pub alarmed: Option<Delay>,
    /// Notifications that the built-in rules would have sent, except for findings that the training itself has.
    pub notified: Notified,
    /// The first sentence at the end, only for memctl.
    pub said: Option<Said>,
}

/// Runs all detectors on a run.
pub fn judge(run: &Run, detectors: &mut [Box<dyn Detector>]) -> Vec<Outcome> {
    let mut outcomes = vec![Outcome::default(); detectors.len()];
    let last = rounds(run).saturating_sub(1);
    let names_sites: Vec<bool> = detectors.iter().map(|detector| detector.names_sites()).collect();
    pass(run, detectors, |now, detector, verdicts| {
        outcomes[detector].note(run, verdicts, now.delay, names_sites[detector]);
        if now.round == last {
            outcomes[detector].end(run, verdicts, names_sites[detector]);
        }
    });
    for (outcome, detector) in outcomes.iter_mut().zip(detectors) {
        outcome.notified = detector.notifications();
        outcome.said = detector.sentence().map(|verdict| said(run, &verdict));
        for (count, kind) in outcome.notified.iter_mut().zip(FindingKind::ALL) {
            let own = run.others.iter().chain([&run.name]).any(|name| own_findings(name).contains(&kind));
            *count = if own { 0 } else { *count };
        }
    }
    outcomes
}

/// Runs only memctl on a run. Passes its verdicts to `sink` after every boundary, with the first rank's table.
pub fn watch(run: &Run, mut sink: impl FnMut(&SiteTable, Option<Delay>, &[Verdict])) {
    let mut detectors = super::detect::all();
    detectors.truncate(1);
    pass(run, &mut detectors, |now, _, verdicts| {
        if let Some(table) = run.streams.first().and_then(|stream| stream.table(now.round)) {
            sink(&table, now.delay, verdicts);
        }
    });
}

/// The number of boundaries of the rank with most.
fn rounds(run: &Run) -> usize {
    run.streams.iter().map(super::stream::Stream::len).max().unwrap_or(0)
}

/// The state of a run when detectors are queried.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The boundary, from 0.
    pub round: usize,
    /// The progress of the leak; `None` before the first leaked block.
    pub delay: Option<Delay>,
}

/// Runs all detectors on a run and passes the verdicts of each to `sink` after every boundary.
pub fn pass(run: &Run, detectors: &mut [Box<dyn Detector>], mut sink: impl FnMut(Now, usize, &[Verdict])) {
    let stacks: Vec<Vec<&[Frame]>> =
        run.bases.iter().map(|base| base.stacks.iter().chain(&run.sites.stacks).map(Vec::as_slice).collect()).collect();
    let rounds = rounds(run);
    let epochs = run.view == View::Marked;
    let given = Given { stacks: &stacks, device_total_bytes: &run.device_total_bytes, rounds, epochs };
    for detector in detectors.iter_mut() {
        detector.begin(&given);
    }
    let mut settled = vec![0; run.streams.len()];
    let mut clock = run.truth.as_ref().map(|truth| Clock::new(run, truth));
    let mut time_ns = 0;
    for round in 0..rounds {
        for (rank, stream) in run.streams.iter().enumerate() {
            let due = stream.settled()[settled[rank]..].iter().take_while(|sample| sample.tables_before <= round);
            let due = due.count();
            for sample in &stream.settled()[settled[rank]..][..due] {
                detectors.iter_mut().for_each(|detector| detector.settled(rank, sample));
            }
            settled[rank] += due;
            if let Some(table) = stream.table(round) {
                detectors.iter_mut().for_each(|detector| detector.table(rank, &table));
                time_ns = time_ns.max(table.time_ns);
            }
        }
        // A recording without marks is judged only after its import.
        let asks = run.view != View::Unmarked && run.streams.iter().any(|stream| stream.asks_after(round));
        if round + 1 < rounds && !asks {
            continue;
        }
        let delay = clock.as_mut().and_then(|clock| clock.boundary(round, time_ns));
        let now = Now { round, delay };
        for (place, detector) in detectors.iter_mut().enumerate() {
            let verdicts = detector.verdicts();
            detector.rings(time_ns, round + 1 == rounds);
            sink(now, place, &verdicts);
        }
    }
}

/// Follows the progress of a leak.
struct Clock<'a> {
    run: &'a Run,
    truth: &'a Truth,
    blocks: usize,
    delay: Delay,
}

impl<'a> Clock<'a> {
    fn new(run: &'a Run, truth: &'a Truth) -> Self {
        Self { run, truth, blocks: 0, delay: Delay::default() }
    }

    /// `None` before the first leaked block.
    fn boundary(&mut self, round: usize, time_ns: u64) -> Option<Delay> {
        let rank = *self.truth.ranks.first()?;
        let stream = &self.run.streams[rank];
        // A rank that has ended keeps its last position.
        let position = stream.at(round.min(stream.len().checked_sub(1)?))?;
        while let Some(&(at, bytes)) = self.truth.blocks.get(self.blocks)
            && at <= position
        {
            let again = self.blocks > 0 && self.truth.blocks[self.blocks - 1].0 == at;
            self.delay.times += u64::from(!again);
            self.blocks += 1;
            self.delay.bytes += bytes;
        }
        let (first, _) = *self.truth.blocks.first().filter(|_| self.blocks > 0)?;
        let ends = &self.truth.step_ends;
        let done = ends.partition_point(|&end| end <= position) - ends.partition_point(|&end| end < first);
        self.delay.steps = done as u64;
        self.delay.seconds = time_ns.saturating_sub(self.truth.begun_ns) as f64 / 1e9;
        Some(self.delay)
    }
}

/// The distinct lines that verdicts name, in their order.
fn lines(verdicts: &[Verdict], level: Level) -> Vec<&Frame> {
    let mut lines: Vec<&Frame> = Vec::new();
    for frame in verdicts.iter().filter(|verdict| verdict.level >= level).flat_map(|verdict| &verdict.sites) {
        if !lines.contains(&frame) {
            lines.push(frame);
        }
    }
    lines
}

/// Whether a verdict names a right line, or its detector names no lines.
pub fn is_blamed(verdict: &Verdict, truth: &Truth) -> bool {
    truth.frames.is_empty() || verdict.sites.iter().any(|frame| truth.frames.contains(frame))
}

impl Outcome {
    fn note(&mut self, run: &Run, verdicts: &[Verdict], delay: Option<Delay>, names_sites: bool) {
        let alarm = verdicts.iter().any(|verdict| verdict.level == Level::Alarm);
        self.ever_suspected |= !verdicts.is_empty();
        let Some(truth) = &run.truth else {
            self.ever_alarmed |= alarm;
            return;
        };
        let Some(delay) = delay else {
            self.alarmed_before |= alarm;
            return;
        };
        self.ever_alarmed |= alarm;
        let found = |level: Level| {
            if names_sites && !truth.frames.is_empty() {
                lines(verdicts, level).into_iter().take(3).any(|frame| truth.frames.contains(frame))
            } else {
                verdicts.iter().any(|verdict| verdict.level >= level)
            }
        };
        if self.suspected.is_none() && found(Level::Suspected) {
            self.suspected = Some(delay);
        }
        if self.alarmed.is_none() && alarm && found(Level::Alarm) {
            self.alarmed = Some(delay);
        }
    }

    fn end(&mut self, run: &Run, verdicts: &[Verdict], names_sites: bool) {
        let alarms: Vec<&Verdict> = verdicts.iter().filter(|verdict| verdict.level == Level::Alarm).collect();
        self.alarmed_at_end = !alarms.is_empty();
        let Some(truth) = run.truth.as_ref().filter(|_| self.alarmed_at_end) else { return };
        let blamed = |verdict: &&&Verdict| verdict.sites.iter().any(|frame| truth.frames.contains(frame));
        let right = alarms.iter().find(blamed).or(alarms.first().filter(|_| !names_sites));
        self.ranks_right =
            right.map(|verdict| verdict.ranks.iter().map(|&rank| rank as usize).eq(truth.ranks.iter().copied()));
        self.kind_right = right.and_then(|verdict| Some(truth.cause.kinds().contains(&verdict.kind?)));
        self.pattern_right = right.and_then(|verdict| Some(truth.cause.patterns().contains(&verdict.pattern?)));
        if names_sites && !truth.frames.is_empty() {
            let lines = lines(verdicts, Level::Alarm);
            self.top1 = Some(lines.first().is_some_and(|frame| truth.frames.contains(frame)));
            self.top3 = Some(lines.iter().take(3).any(|frame| truth.frames.contains(*frame)));
        }
    }
}
