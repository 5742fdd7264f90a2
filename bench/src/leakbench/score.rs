//! Compares the verdicts of the detectors with the leak that was added to a run.
//!
//! Guarantees: the tables of all ranks are passed in the order of the boundaries. Every detector is queried after every
//! boundary, with two exceptions. In a long epoch it is queried only after steps that leak, and once in 200 steps. In a
//! run without marks it is queried only once, at the end, as for an import.
//! A verdict finds the leak if it comes after the leak began. If the detector names lines, a right line must also be
//! among the first three lines of its verdicts.

use memctl_model::{FindingKind, Frame, SiteTable};

use super::detect::{Detector, Level, Notified, RunFacts, Verdict};
use super::parts::{View, own_findings};
use super::runs::{Run, Truth};
use super::sentence::{ScoredVerdict, said};

/// The progress of a leak since its first block, on the first rank that leaks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Delay {
    /// Number of steps that have ended since then, including the step in which the leak was found.
    pub steps: u64,
    /// Bytes that have leaked.
    pub bytes: u64,
    /// How often it has leaked: the number of positions with leaked blocks.
    pub times: u64,
    /// Recorded time in seconds.
    pub seconds: f64,
}

/// The result of one detector for one run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// The detector raised an alarm at some time. In a leaky run, only alarms after the leak began count.
    pub ever_alarmed: bool,
    /// It raised an alarm before the leak began. This is a false alarm.
    pub alarmed_before: bool,
    /// It suspected a leak at some time.
    pub ever_suspected: bool,
    /// It has an alarm at the end of the run.
    pub alarmed_at_end: bool,
    /// Whether the first line of its alarms at the end is a right one; `None` if the detector names no lines or there
    /// is no right line.
    pub top1: Option<bool>,
    /// Whether a right line is among the first three lines of its alarms at the end.
    pub top3: Option<bool>,
    /// Whether the chosen alarm at the end names exactly the ranks that leak. The chosen alarm is the first that names
    /// a right line, or the first of a detector that names no lines. `None` if there is no such alarm.
    pub ranks_right: Option<bool>,
    /// Whether this alarm names the kind of the cause; `None` if there is no such alarm or it names no kind.
    pub kind_right: Option<bool>,
    /// Whether this alarm names the pattern of the cause; `None` if there is no such alarm or it names no pattern.
    pub pattern_right: Option<bool>,
    /// The progress of the leak when a suspicion or an alarm first found it.
    pub suspected: Option<Delay>,
    /// The progress of the leak when an alarm first found it.
    pub alarmed: Option<Delay>,
    /// Notifications that the built-in rules would have sent. Findings that the training has without additions are not
    /// counted.
    pub notified: Notified,
    /// The first sentence at the end; only for memctl.
    pub said: Option<ScoredVerdict>,
}

/// Passes a run to all detectors, and returns the result of each.
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

/// Passes a run to memctl only. After each query, passes the verdicts to `sink`, with the first rank's table.
pub fn watch(run: &Run, mut sink: impl FnMut(&SiteTable, Option<Delay>, &[Verdict])) {
    let mut detectors = super::detect::all();
    detectors.truncate(1);
    pass(run, &mut detectors, |now, _, verdicts| {
        if let Some(table) = run.streams.first().and_then(|stream| stream.table(now.round)) {
            sink(&table, now.delay, verdicts);
        }
    });
}

/// The number of boundaries of the rank that has most of them.
fn rounds(run: &Run) -> usize {
    run.streams.iter().map(super::stream::Stream::len).max().unwrap_or(0)
}

/// The state of a run when the detectors are queried.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The number of the boundary, from 0.
    pub round: usize,
    /// The progress of the leak; `None` before the first leaked block.
    pub delay: Option<Delay>,
}

/// Passes a run to all detectors. After each query, passes the verdicts of each detector to `sink`.
pub fn pass(run: &Run, detectors: &mut [Box<dyn Detector>], mut sink: impl FnMut(Now, usize, &[Verdict])) {
    let stacks: Vec<Vec<&[Frame]>> =
        run.bases.iter().map(|base| base.stacks.iter().chain(&run.sites.stacks).map(Vec::as_slice).collect()).collect();
    let rounds = rounds(run);
    let epochs = run.view == View::Marked;
    let given = RunFacts { stacks: &stacks, device_total_bytes: &run.device_total_bytes, rounds, epochs };
    for detector in detectors.iter_mut() {
        detector.begin(&given);
    }
    let mut settled = vec![0; run.streams.len()];
    let mut progress = run.truth.as_ref().map(|truth| LeakProgress::new(run, truth));
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
        // An import is judged only at its end, so a run without marks is, too.
        let asks = run.view != View::Unmarked && run.streams.iter().any(|stream| stream.asks_after(round));
        if round + 1 < rounds && !asks {
            continue;
        }
        let delay = progress.as_mut().and_then(|progress| progress.boundary(round, time_ns));
        let now = Now { round, delay };
        for (place, detector) in detectors.iter_mut().enumerate() {
            let verdicts = detector.verdicts();
            detector.apply_rules(time_ns, round + 1 == rounds);
            sink(now, place, &verdicts);
        }
    }
}

/// Computes the progress of a leak.
struct LeakProgress<'a> {
    run: &'a Run,
    truth: &'a Truth,
    blocks: usize,
    delay: Delay,
}

impl<'a> LeakProgress<'a> {
    fn new(run: &'a Run, truth: &'a Truth) -> Self {
        Self { run, truth, blocks: 0, delay: Delay::default() }
    }

    /// The progress at a boundary; `None` before the first leaked block.
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

/// The different lines that verdicts name, in the order of the verdicts.
fn lines(verdicts: &[Verdict], level: Level) -> Vec<&Frame> {
    let mut lines: Vec<&Frame> = Vec::new();
    for frame in verdicts.iter().filter(|verdict| verdict.level >= level).flat_map(|verdict| &verdict.sites) {
        if !lines.contains(&frame) {
            lines.push(frame);
        }
    }
    lines
}

/// Whether a verdict names a right line, or the leak has no right line.
pub fn blames_leak(verdict: &Verdict, truth: &Truth) -> bool {
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
