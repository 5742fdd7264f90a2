//! Compares estimates of the time to out of memory with the true time. The runs are leaky, and their devices are just
//! large enough for most of the run.
//!
//! Guarantees: the true time is that of the first sample point at which reserved memory exceeds the device. The
//! estimate is read halfway to this point. Half of the trainings pause after every epoch (as for a checkpoint or an
//! evaluation elsewhere), for up to twice the length of an epoch.
//! Refuses runs whose leak does not fill the device. The leak must be at least a fifth of the peak.

use memctl_model::{Boundary, Frame, SiteTable};
use serde_json::{Value, json};

use super::Corpus;
use super::detect::{Detector, RunFacts};
use super::draw::Draw;
use super::parts::View;
use super::runs::Run;
use super::score::blames_leak;
use super::stream::Stream;
use super::tally::{Share, table};

/// An estimate must be between these multiples of the true time.
const WITHIN: (f64, f64) = (0.7, 1.4);
/// Number of attempts to draw a run that fits.
const TRIES: u64 = 64;
/// The first run number. It is above the numbers of other tables.
const FIRST_NUMBER: u64 = 1 << 32;

/// The estimate halfway to the failure, as a multiple of the true time; `None` if there was none.
type Estimate = Option<f64>;

/// A run and the time at which it fills its device.
struct Full {
    run: Run,
    /// The tables of each rank, with the pauses.
    tables: Vec<Vec<SiteTable>>,
    begun_ns: u64,
    full_ns: u64,
}

fn make(corpus: &Corpus, number: u64) -> Option<Full> {
    (0..TRIES).find_map(|attempt| fill(corpus, FIRST_NUMBER + number * TRIES + attempt))
}

fn fill(corpus: &Corpus, number: u64) -> Option<Full> {
    let mut run = corpus.make(true, number);
    let mut draw = Draw::fork(corpus.part.seed_of(true, number), "full");
    let longest = if draw.chance(0.5) { draw.real(0.2, 2.0) } else { 0.0 };
    let truth = run.truth.as_ref()?;
    let pause = if corpus.view == View::Marked { longest } else { 0.0 };
    let tables: Vec<Vec<SiteTable>> = run.streams.iter().map(|stream| paused(stream, pause)).collect();
    let leaking: Vec<&Vec<SiteTable>> = truth.ranks.iter().filter_map(|&rank| tables.get(rank)).collect();
    let rounds = leaking.iter().map(|tables| tables.len()).min()?;
    let last = (draw.real(0.8, 0.97) * rounds as f64) as usize;
    let peak = |tables: &[SiteTable]| tables.iter().map(|table| table.peaks_within.reserved_bytes).max().unwrap_or(0);
    let total = leaking.iter().map(|tables| peak(&tables[..last])).max()?;
    let leaked: u64 = truth.blocks.iter().map(|&(_, bytes)| bytes).sum();
    let full = leaking.iter().filter_map(|tables| {
        tables.iter().find(|table| table.peaks_within.reserved_bytes > total).map(|table| table.time_ns)
    });
    let full_ns = full.min()?;
    let begun_ns = leaking.first()?.first()?.time_ns;
    // The halfway point must be well after the begin of the leak.
    let early = truth.begun_ns.saturating_sub(begun_ns) * 4 < full_ns.saturating_sub(begun_ns);
    if leaked < total / 5 || !early {
        return None;
    }
    run.device_total_bytes.fill(total);
    Some(Full { tables, begun_ns, full_ns, run })
}

/// The tables of a rank. After every epoch they are delayed by a pause, whose length is given in epochs.
fn paused(stream: &Stream, epochs: f64) -> Vec<SiteTable> {
    let mut tables: Vec<SiteTable> =
        (0..stream.len()).filter_map(|number| stream.table(number)).map(std::borrow::Cow::into_owned).collect();
    let ends = tables.iter().filter(|table| table.boundary == Boundary::EpochEnd).count().max(1) as f64;
    let whole = tables.last().map_or(0, |last| last.time_ns) - tables.first().map_or(0, |first| first.time_ns);
    let pause_ns = (whole as f64 / ends * epochs) as u64;
    let mut late_ns = 0;
    for table in &mut tables {
        table.time_ns += late_ns;
        late_ns += if table.boundary == Boundary::EpochEnd { pause_ns } else { 0 };
    }
    tables
}

/// memctl's estimate halfway to the failure.
fn estimate(full: &Full, judge: &mut dyn Detector) -> Estimate {
    let half_ns = full.begun_ns + (full.full_ns - full.begun_ns) / 2;
    let stacks: Vec<Vec<&[Frame]>> = full
        .run
        .bases
        .iter()
        .map(|base| base.stacks.iter().chain(&full.run.sites.stacks).map(Vec::as_slice).collect())
        .collect();
    let epochs = full.run.view == View::Marked;
    let rounds = full.tables.iter().map(Vec::len).max().unwrap_or(0);
    judge.begin(&RunFacts { stacks: &stacks, device_total_bytes: &full.run.device_total_bytes, rounds, epochs });
    let mut now_ns = full.begun_ns;
    for round in 0..rounds {
        let due = full.tables.iter().enumerate().filter_map(|(rank, tables)| Some((rank, tables.get(round)?)));
        for (rank, table) in due.filter(|(_, table)| table.time_ns <= half_ns) {
            judge.table(rank, table);
            now_ns = now_ns.max(table.time_ns);
        }
    }
    let truth = full.run.truth.as_ref()?;
    let verdicts = judge.verdicts();
    let seconds = verdicts.iter().filter(|verdict| blames_leak(verdict, truth)).find_map(|it| it.seconds_to_oom)?;
    Some(seconds / ((full.full_ns - now_ns) as f64 / 1e9))
}

/// The table of a view as text and as JSON.
pub fn report(corpus: &Corpus, runs: u64) -> (String, Value) {
    if matches!(corpus.view, View::Unmarked | View::Long) {
        return (String::new(), Value::Null);
    }
    let estimates: Vec<Estimate> = super::in_parallel(runs, |number, detectors| {
        let full = make(corpus, number)?;
        Some(detectors.first_mut().and_then(|judge| estimate(&full, judge.as_mut())))
    })
    .into_iter()
    .flatten()
    .collect();
    let within = |ratio: &Estimate| ratio.is_some_and(|share| (WITHIN.0..=WITHIN.1).contains(&share));
    let any = Share::count(estimates.iter().map(Option::is_some));
    let right = Share::count(estimates.iter().filter(|ratio| ratio.is_some()).map(within));
    let mut shares: Vec<f64> = estimates.iter().flatten().copied().collect();
    shares.sort_unstable_by(f64::total_cmp);
    let place = |share: f64| shares.get(((shares.len() as f64 * share) as usize).min(shares.len().saturating_sub(1)));
    let figure = |share: f64| place(share).map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"));
    let head = ["runs", "told", "of these within 0.7 to 1.4", "5 %", "median", "95 %"];
    let row =
        vec![estimates.len().to_string(), any.to_string(), right.to_string(), figure(0.05), figure(0.5), figure(0.95)];
    let text = format!("Time to out of memory, told at half of the way, over the truth:\n\n{}", table(&head, &[row]));
    let json = json!({
        "told": any.json(),
        "within": right.json(),
        "p5": place(0.05),
        "median": place(0.5),
        "p95": place(0.95),
    });
    (text, json)
}
