//! What the detectors said of a run against what was added to it.
//!
//! Guarantees: every detector is asked after every boundary, all ranks in step. "Found" means that a verdict came when the
//! leak had begun, and that it names one of the right lines among its first three where the detector names lines at all.

use memctl_model::{Boundary, Frame, SiteTable};

use super::detect::{Detector, Given, Level, Verdict};
use super::runs::{Run, Truth};

/// Steps and bytes since a leak's first block, on the first rank that leaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// Ends of steps, the one that found it included.
    pub steps: u64,
    /// Bytes leaked by then.
    pub bytes: u64,
}

/// What one detector said of one run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// It raised an alarm at some time; in a leaky run one that came when the leak had begun.
    pub ever_alarmed: bool,
    /// It raised an alarm before there was a leak: a false one.
    pub alarmed_before: bool,
    /// It suspected something at some time.
    pub ever_suspected: bool,
    /// Its alarm stands at the run's end.
    pub alarmed_at_end: bool,
    /// The first line of its gravest verdict at the end is a right one; `None` where it gives none or there is none to give.
    pub top1: Option<bool>,
    /// Likewise for the first three lines.
    pub top3: Option<bool>,
    /// Whether the ranks of its alarms at the end are those that leak.
    pub ranks_right: Option<bool>,
    /// When it first found the leak, suspicion or alarm.
    pub suspected: Option<Delay>,
    /// When an alarm first named it.
    pub alarmed: Option<Delay>,
}

/// Shows a run to all detectors.
pub fn judge(run: &Run<'_>, detectors: &mut [Box<dyn Detector>]) -> Vec<Outcome> {
    let mut outcomes = vec![Outcome::default(); detectors.len()];
    let last = boundaries(run).saturating_sub(1);
    let names_sites: Vec<bool> = detectors.iter().map(|detector| detector.names_sites()).collect();
    pass(run, detectors, |boundary, delay, detector, verdicts| {
        outcomes[detector].note(run, verdicts, delay, names_sites[detector]);
        if boundary == last {
            outcomes[detector].end(run, verdicts, names_sites[detector]);
        }
    });
    outcomes
}

/// Shows a run to memctl alone; what it says goes to `sink` after every boundary, with the first rank's table of it.
pub fn watch(run: &Run<'_>, mut sink: impl FnMut(&SiteTable, Option<Delay>, &[Verdict])) {
    let mut detectors = super::detect::all();
    detectors.truncate(1);
    pass(run, &mut detectors, |boundary, delay, _, verdicts| {
        sink(&run.streams[0].tables[boundary], delay, verdicts);
    });
}

fn boundaries(run: &Run<'_>) -> usize {
    run.streams.iter().map(|stream| stream.tables.len()).min().unwrap_or(0)
}

/// All detectors over a run; the verdicts of each after every boundary go to `sink`.
fn pass(
    run: &Run<'_>,
    detectors: &mut [Box<dyn Detector>],
    mut sink: impl FnMut(usize, Option<Delay>, usize, &[Verdict]),
) {
    let stacks: Vec<Vec<&[Frame]>> = (0..run.streams.len())
        .map(|rank| run.training.base(rank).stacks.iter().chain(&run.sites.stacks).map(Vec::as_slice).collect())
        .collect();
    let given = Given { stacks: &stacks, device_total_bytes: run.device_total_bytes };
    for detector in detectors.iter_mut() {
        detector.begin(&given);
    }
    let mut settled = vec![0; run.streams.len()];
    let mut clock = run.truth.as_ref().map(|truth| Clock::new(run, truth));
    for boundary in 0..boundaries(run) {
        for (rank, stream) in run.streams.iter().enumerate() {
            let due = stream.settled[settled[rank]..].iter().take_while(|sample| sample.tables_before <= boundary);
            let due = due.count();
            for sample in &stream.settled[settled[rank]..][..due] {
                detectors.iter_mut().for_each(|detector| detector.settled(rank, sample));
            }
            settled[rank] += due;
            if let Some(table) = stream.tables.get(boundary) {
                detectors.iter_mut().for_each(|detector| detector.table(rank, table));
            }
        }
        let delay = clock.as_mut().and_then(|clock| clock.boundary(boundary));
        for (place, detector) in detectors.iter_mut().enumerate() {
            sink(boundary, delay, place, &detector.verdicts());
        }
    }
}

/// Follows how far a leak has come.
struct Clock<'a> {
    run: &'a Run<'a>,
    truth: &'a Truth,
    blocks: usize,
    delay: Delay,
}

impl<'a> Clock<'a> {
    fn new(run: &'a Run<'a>, truth: &'a Truth) -> Self {
        Self { run, truth, blocks: 0, delay: Delay { steps: 0, bytes: 0 } }
    }

    /// `None` as long as nothing has leaked.
    fn boundary(&mut self, boundary: usize) -> Option<Delay> {
        let rank = self.truth.ranks[0];
        let position = *self.run.training.base(rank).boundaries.get(boundary)?;
        while let Some(&(at, bytes)) = self.truth.blocks.get(self.blocks)
            && at <= position
        {
            self.blocks += 1;
            self.delay.bytes += bytes;
        }
        let table = self.run.streams[rank].tables.get(boundary)?;
        if self.blocks > 0 && table.boundary == Boundary::StepEnd {
            self.delay.steps += 1;
        }
        (self.blocks > 0).then_some(self.delay)
    }
}

/// The lines that verdicts name, in their order, each once.
fn lines(verdicts: &[Verdict], level: Level) -> Vec<&Frame> {
    let mut lines: Vec<&Frame> = Vec::new();
    for frame in verdicts.iter().filter(|verdict| verdict.level >= level).flat_map(|verdict| &verdict.sites) {
        if !lines.contains(&frame) {
            lines.push(frame);
        }
    }
    lines
}

impl Outcome {
    fn note(&mut self, run: &Run<'_>, verdicts: &[Verdict], delay: Option<Delay>, names_sites: bool) {
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

    fn end(&mut self, run: &Run<'_>, verdicts: &[Verdict], names_sites: bool) {
        let alarms: Vec<&Verdict> = verdicts.iter().filter(|verdict| verdict.level == Level::Alarm).collect();
        self.alarmed_at_end = !alarms.is_empty();
        let Some(truth) = run.truth.as_ref().filter(|_| self.alarmed_at_end) else { return };
        let blamed = |verdict: &&&Verdict| verdict.sites.iter().any(|frame| truth.frames.contains(frame));
        let right = alarms.iter().find(blamed).or(alarms.first().filter(|_| !names_sites));
        self.ranks_right =
            right.map(|verdict| verdict.ranks.iter().map(|&rank| rank as usize).eq(truth.ranks.iter().copied()));
        if names_sites && !truth.frames.is_empty() {
            let lines = lines(verdicts, Level::Alarm);
            self.top1 = Some(lines.first().is_some_and(|frame| truth.frames.contains(frame)));
            self.top3 = Some(lines.iter().take(3).any(|frame| truth.frames.contains(*frame)));
        }
    }
}
