//! leakbench: how well leaks are found, and how seldom what is none is called one.
//!
//! Recorded trainings that leak nothing are passed through the block map with leaks or harmless growth added to them; memctl's
//! judge and four rivals see the site tables that a daemon sees, step by step, and are scored by what was added. Everything
//! follows from seeds. `bench/leakbench/README.md` has the method, the distributions and how the parts are divided.

mod arena;
mod base;
mod benign;
mod causes;
mod detect;
mod draw;
mod replay;
mod report;
mod runs;
mod schedule;
mod score;
mod site;
mod tally;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use report::{Report, Scored};
use runs::{Part, Training};

/// Leaky runs and as many clean ones, unless told otherwise.
const RUNS: u64 = 2_000;

/// Of so many runs one is of the table of memories that fill slowly.
const SLOW_SHARE: u64 = 10;

/// The folder of the trainings recorded for this benchmark.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/leakbench")
}

struct Options {
    part: Part,
    runs: u64,
    json: Option<PathBuf>,
    /// Tells of each run that memctl got wrong.
    wrong: bool,
    /// One run alone, leaky or clean: what memctl says of it, as it goes on.
    show: Option<(u64, bool)>,
}

fn options(words: &[String]) -> Result<Options, Box<dyn Error>> {
    let mut options = Options { part: Part::Tune, runs: RUNS, json: None, wrong: false, show: None };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} wants a value"));
        match word.as_str() {
            "--part" => {
                let part = value()?;
                options.part = [Part::Tune, Part::Report]
                    .into_iter()
                    .find(|it| it.name() == part)
                    .ok_or_else(|| format!("there is no part {part}; there are tune and report"))?;
            }
            "--runs" => options.runs = value()?.parse()?,
            "--json" => options.json = Some(value()?.into()),
            "--wrong" => options.wrong = true,
            "--leaky" => options.show = Some((value()?.parse()?, true)),
            "--clean" => options.show = Some((value()?.parse()?, false)),
            other => {
                let known = "--part, --runs, --json, --wrong, --leaky and --clean";
                return Err(format!("leakbench has no {other}; it has {known}").into());
            }
        }
    }
    Ok(options)
}

/// Runs what the command line asks for.
///
/// # Errors
/// When a training cannot be read or an option is unknown.
pub fn run(words: &[String]) -> Result<(), Box<dyn Error>> {
    let options = options(words)?;
    let began = Instant::now();
    let trainings = runs::trainings(options.part)?;
    if let Some((number, leaky)) = options.show {
        show(&runs::make(options.part, &trainings, leaky, number));
        return Ok(());
    }
    let scored = score_all(options.part, &trainings, options.runs);
    let names: Vec<&'static str> = detect::all().iter().map(|detector| detector.name()).collect();
    let report = Report { runs: &scored, detectors: &names };
    println!(
        "Part {}: {} leaky runs and {} clean ones of {} trainings, {:.0} s\n",
        options.part.name(),
        options.runs,
        options.runs,
        trainings.len(),
        began.elapsed().as_secs_f64()
    );
    println!("{}", report.markdown());
    println!("{}", slow(options.part, &trainings, options.runs / SLOW_SHARE));
    if options.wrong {
        scored.iter().filter_map(wrong).for_each(|line| println!("{line}"));
    }
    if let Some(path) = options.json {
        std::fs::write(&path, serde_json::to_vec_pretty(&report.json())?)?;
    }
    Ok(())
}

/// Memories that fill at a steady rate for a fifth to three fifths of a run: who calls them leaks before they are full.
fn slow(part: Part, trainings: &[Training], runs: u64) -> String {
    let mut detectors = detect::all();
    let outcomes: Vec<Vec<score::Outcome>> =
        (0..runs).map(|number| score::judge(&runs::make_slow(part, trainings, number), &mut detectors)).collect();
    let share = |read: fn(&score::Outcome) -> bool, index: usize| {
        tally::Share::count(outcomes.iter().map(|run| read(&run[index]))).to_string()
    };
    let rows: Vec<Vec<String>> = detectors
        .iter()
        .enumerate()
        .map(|(index, detector)| {
            vec![detector.name().to_owned(), share(|it| it.ever_alarmed, index), share(|it| it.alarmed_at_end, index)]
        })
        .collect();
    let head = ["detector", "alarm at some time", "alarm at the end"];
    format!("Memories that fill steadily for a fifth to three fifths of {runs} runs:\n\n{}", tally::table(&head, &rows))
}

/// What was added to a run, and what memctl says of it whenever that changes.
fn show(run: &runs::Run<'_>) {
    println!("{}, {} ranks, also growing: {:?}", run.training.name, run.streams.len(), run.benign);
    if let Some(truth) = &run.truth {
        let bytes: u64 = truth.blocks.iter().map(|&(_, bytes)| bytes).sum();
        println!(
            "leak: {}, {}, {}, ranks {:?}, {} blocks, {}; right lines:",
            truth.cause.name(),
            truth.rate.name(),
            truth.size.name(),
            truth.ranks,
            truth.blocks.len(),
            tally::bytes(bytes)
        );
        truth.frames.iter().for_each(|frame| println!("  {} {}:{}", frame.function, frame.file, frame.line));
    }
    let mut before = Vec::new();
    score::watch(run, |table, delay, verdicts| {
        let line = |verdict: &detect::Verdict| {
            let sites = verdict.sites.iter().map(|frame| format!("{} {}:{}", frame.function, frame.file, frame.line));
            format!("  {:?} on {:?}: {}", verdict.level, verdict.ranks, sites.collect::<Vec<_>>().join(", "))
        };
        let now: Vec<String> = verdicts.iter().map(line).collect();
        if now != before {
            let leaked = delay.map_or_else(String::new, |it| format!(", {} steps and {} leaked", it.steps, it.bytes));
            println!("epoch {}, step {}{leaked}:", table.epoch, table.step);
            now.iter().for_each(|line| println!("{line}"));
            before = now;
        }
    });
}

/// A line about a run that memctl got wrong.
fn wrong(run: &Scored) -> Option<String> {
    let outcome = run.outcomes[0];
    let growing: Vec<&str> = run.benign.iter().map(|kind| kind.name()).collect();
    let said = match run.leak {
        Some(leak) if outcome.alarmed.is_none() => {
            let suspected = if outcome.suspected.is_some() { "only suspected" } else { "missed" };
            let elsewhere = if outcome.ever_alarmed { ", alarm elsewhere" } else { "" };
            format!("{suspected}{elsewhere}: {}, {}, {}, {}", leak.0.name(), leak.1, leak.2, leak.3)
        }
        Some(leak) if outcome.top1 == Some(false) => format!("wrong line first: {}, {}", leak.0.name(), leak.1),
        Some(leak) if outcome.alarmed_before => format!("alarm before the leak: {}, {}", leak.0.name(), leak.1),
        None if outcome.ever_alarmed => "false alarm".to_owned(),
        _ => return None,
    };
    Some(format!("run {} of {} (also growing: {}): {said}", run.number, run.training, growing.join(", ")))
}

/// Makes and judges all runs, on as many threads as there are cores. A run depends on its number alone.
fn score_all(part: Part, trainings: &[Training], runs: u64) -> Vec<Scored> {
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut scored: Vec<Scored> = std::thread::scope(|scope| {
        let work = || {
            let mut detectors = detect::all();
            let mut scored = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= 2 * runs {
                    return scored;
                }
                scored.push(score_one(part, trainings, number, &mut detectors));
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        // A worker that panicked is a fault of this program: it ends with it.
        workers.into_iter().flat_map(|worker| worker.join().expect("a worker panicked")).collect()
    });
    scored.sort_by_key(|run| (run.number, run.leak.is_none()));
    scored
}

fn score_one(part: Part, trainings: &[Training], number: u64, detectors: &mut [Box<dyn detect::Detector>]) -> Scored {
    let run = runs::make(part, trainings, number.is_multiple_of(2), number / 2);
    for stream in &run.streams {
        assert_eq!(
            stream.anomalies.contradictions, 0,
            "run {number} of {} contradicts the block map",
            run.training.name
        );
    }
    let outcomes = score::judge(&run, detectors);
    let leak = run.truth.as_ref().map(|truth| {
        let ranks = match (truth.ranks.len(), run.streams.len()) {
            (_, 1) => "the only one",
            (1, _) => "one of several",
            _ => "all of several",
        };
        (truth.cause, truth.rate.name(), truth.size.name(), ranks)
    });
    Scored { leak, benign: run.benign, training: run.training.name, outcomes, number: number / 2 }
}
