//! leakbench measures how many leaks are found, and how often there is a false alarm.
//!
//! Recorded trainings and generated servers without leaks are passed through the block map, with added leaks or
//! harmless growth. memctl's judge and four other detectors receive site tables as a daemon does, one boundary after
//! another. Their verdicts are compared with the added leaks. Seeds determine everything. `bench/leakbench/README.md`
//! has the method, the distributions and the division into parts.

mod ahead;
mod arena;
mod base;
mod benign;
mod causes;
mod cuts;
mod detect;
mod draw;
mod events;
mod full;
mod long;
mod long_stream;
mod overlay;
mod parts;
mod replay;
mod report;
mod runs;
mod schedule;
mod score;
mod sentence;
mod server_runs;
mod serving;
mod site;
mod stream;
mod tally;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use memctl_model::FindingKind;
use parts::{Part, Training, View};
use report::{Report, Scored};

/// Default number of leaky runs, and of clean runs.
const RUNS: u64 = 2_000;

/// The table of memories that fill slowly has one run per this many runs.
const SLOW_SHARE: u64 = 10;

/// The table of times to out of memory has one run per this many runs.
const FULL_SHARE: u64 = 10;

/// The folder of the trainings recorded for this benchmark.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/leakbench")
}

struct Options {
    part: Part,
    views: Vec<View>,
    runs: u64,
    json: Option<PathBuf>,
    /// Lists each run that memctl got wrong.
    wrong: bool,
    /// Shows one run, leaky or clean, with memctl's verdicts over its course.
    show: Option<(u64, bool)>,
    /// Makes only the table of out-of-memory forecasts.
    ahead: bool,
}

fn options(words: &[String]) -> Result<Options, Box<dyn Error>> {
    let mut options = Options {
        part: Part::Tune2,
        views: vec![View::Marked],
        runs: RUNS,
        json: None,
        wrong: false,
        show: None,
        ahead: false,
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} wants a value"));
        match word.as_str() {
            "--part" => {
                let part = value()?;
                let names = Part::ALL.map(Part::name).join(", ");
                let found = Part::ALL.into_iter().find(|it| it.name() == part);
                options.part = found.ok_or_else(|| format!("there is no part {part}; there are {names}"))?;
            }
            "--view" => {
                let view = value()?;
                let names = View::ALL.map(View::name).join(", ");
                options.views = View::ALL.into_iter().filter(|it| it.name() == view || view == "all").collect();
                if options.views.is_empty() {
                    return Err(format!("there is no view {view}; there are {names} and all").into());
                }
            }
            "--runs" => options.runs = value()?.parse()?,
            "--json" => options.json = Some(value()?.into()),
            "--wrong" => options.wrong = true,
            "--ahead" => options.ahead = true,
            "--leaky" => options.show = Some((value()?.parse()?, true)),
            "--clean" => options.show = Some((value()?.parse()?, false)),
            other => {
                let known = "--part, --view, --runs, --json, --wrong, --ahead, --leaky and --clean";
                return Err(format!("leakbench has no {other}; it has {known}").into());
            }
        }
    }
    Ok(options)
}

/// One part, seen in one view.
struct Corpus {
    part: Part,
    view: View,
    trainings: Vec<Training>,
}

impl Corpus {
    fn make(&self, leaky: bool, number: u64) -> runs::Run {
        match self.view {
            View::Marked | View::Unmarked => runs::make(self.part, self.view, &self.trainings, leaky, number),
            View::Serving => server_runs::make(self.part, leaky, number),
            View::Long => long::make(self.part, &self.trainings, leaky, number),
        }
    }

    /// A run whose only growth is a memory that fills slowly. A long epoch has no such run.
    fn make_slow(&self, number: u64) -> Option<runs::Run> {
        match self.view {
            View::Marked | View::Unmarked => Some(runs::make_slow(self.part, self.view, &self.trainings, number)),
            View::Serving => Some(server_runs::make_slow(self.part, number)),
            View::Long => None,
        }
    }
}

/// Runs the benchmark with the options of the command line.
///
/// # Errors
/// A training cannot be read or an option is unknown.
pub fn run(words: &[String]) -> Result<(), Box<dyn Error>> {
    let options = options(words)?;
    let mut corpus = Corpus { part: options.part, view: View::Marked, trainings: parts::trainings(options.part)? };
    let mut results = serde_json::Map::new();
    for &view in &options.views {
        corpus.view = view;
        if let Some((number, leaky)) = options.show {
            let run = corpus.make(leaky, number);
            show(&run);
            show_sentence(&run);
            continue;
        }
        if options.ahead {
            let (text, json) = ahead::report(&corpus, options.runs, options.wrong);
            println!("{text}");
            results.insert(view.name().to_owned(), json);
            continue;
        }
        results.insert(view.name().to_owned(), one_view(&corpus, &options));
    }
    if let Some(path) = &options.json {
        let all = serde_json::json!({ "schema": 2, "part": options.part.name(), "views": results });
        std::fs::write(path, serde_json::to_vec_pretty(&all)?)?;
    }
    Ok(())
}

fn one_view(corpus: &Corpus, options: &Options) -> serde_json::Value {
    let began = Instant::now();
    let scored = in_parallel(2 * options.runs, |number, detectors| score_one(corpus, number, detectors));
    let names: Vec<&'static str> = detect::all().iter().map(|detector| detector.name()).collect();
    let report = Report { view: corpus.view, runs: &scored, detectors: &names };
    println!(
        "Part {}, {}: {} leaky runs and {} clean ones, {:.0} s\n",
        options.part.name(),
        corpus.view.name(),
        options.runs,
        options.runs,
        began.elapsed().as_secs_f64()
    );
    println!("{}", report.markdown());
    let (text, slow) = slow(corpus, options.runs / SLOW_SHARE, &names);
    println!("{text}");
    if options.wrong {
        scored.iter().filter_map(wrong).for_each(|line| println!("{line}"));
    }
    let (text, full) = full::report(corpus, options.runs / FULL_SHARE);
    println!("{text}");
    let mut json = report.json();
    json["slow"] = slow;
    json["time_to_out_of_memory"] = full;
    json
}

/// The table of memories that fill at a steady rate for a long part of a run. It shows which detectors call them leaks
/// before they are full.
fn slow(corpus: &Corpus, runs: u64, names: &[&str]) -> (String, serde_json::Value) {
    let outcomes: Vec<Vec<score::Outcome>> =
        in_parallel(runs, |number, detectors| Some(score::judge(&corpus.make_slow(number)?, detectors)))
            .into_iter()
            .flatten()
            .collect();
    if outcomes.is_empty() {
        return (String::new(), serde_json::Value::Null);
    }
    let share = |read: fn(&score::Outcome) -> bool, index: usize| {
        tally::Share::count(outcomes.iter().map(|run| read(&run[index])))
    };
    let each = |index: usize| (share(|it| it.ever_alarmed, index), share(|it| it.alarmed_at_end, index));
    let rows: Vec<Vec<String>> = names
        .iter()
        .enumerate()
        .map(|(index, name)| {
            let (ever, end) = each(index);
            vec![(*name).to_owned(), ever.to_string(), end.to_string()]
        })
        .collect();
    let json = names.iter().enumerate().map(|(index, name)| {
        let (ever, end) = each(index);
        serde_json::json!({ "name": name, "ever": ever.json(), "at_end": end.json() })
    });
    let head = ["detector", "alarm at some time", "alarm at the end"];
    let text = format!("Memories that fill late, {} runs:\n\n{}", outcomes.len(), tally::table(&head, &rows));
    (text, json.collect())
}

/// Prints the blocks that were added to a run, and memctl's verdict whenever it changes.
fn show(run: &runs::Run) {
    println!("{}, {} ranks, also growing: {:?}", run.name, run.streams.len(), run.benign);
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
    let began_ns = run.streams.first().and_then(|stream| stream.table(0)).map_or(0, |table| table.time_ns);
    score::watch(run, |table, delay, verdicts| {
        let line = |verdict: &detect::Verdict| {
            let sites = verdict.sites.iter().map(|frame| format!("{} {}:{}", frame.function, frame.file, frame.line));
            let (kind, pattern) =
                (verdict.kind.map_or("", |kind| kind.name()), verdict.pattern.map_or("", |it| it.name()));
            let sites = sites.collect::<Vec<_>>().join(", ");
            format!("  {:?} on {:?}: {kind} {pattern} {sites}", verdict.level, verdict.ranks)
        };
        let now: Vec<String> = verdicts.iter().map(line).collect();
        if now != before {
            let leaked = delay.map_or_else(String::new, |it| format!(", {} steps and {} leaked", it.steps, it.bytes));
            let seconds = table.time_ns.saturating_sub(began_ns) as f64 / 1e9;
            println!("epoch {}, step {}, {seconds:.1} s{leaked}:", table.epoch, table.step);
            now.iter().for_each(|line| println!("{line}"));
            before = now;
        }
    });
}

/// Prints the first sentence about a run, and whether it is true.
fn show_sentence(run: &runs::Run) {
    let mut detectors = detect::all();
    detectors.truncate(1);
    score::pass(run, &mut detectors, |_, _, _| {});
    if let Some(verdict) = detectors[0].sentence() {
        println!("{} {:?}: {}", verdict.kind.name(), sentence::said(run, &verdict), verdict.sentence);
    }
}

/// A line about a run that memctl got wrong.
fn wrong(run: &Scored) -> Option<String> {
    let outcome = run.outcomes[0];
    let untrue = outcome.said.filter(|said| !said.is_true);
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
        None if outcome.notified.iter().any(|&count| count > 0) => {
            let kinds = FindingKind::ALL.into_iter().zip(outcome.notified).filter(|&(_, count)| count > 0);
            format!("notified of {}", kinds.map(|(kind, _)| kind.name()).collect::<Vec<_>>().join(", "))
        }
        leak if untrue.is_some() => {
            let leak =
                leak.map_or_else(|| "clean".to_owned(), |leak| format!("{}, {}, {}", leak.0.name(), leak.1, leak.2));
            format!("untrue sentence, {}: {leak}", untrue.map_or("", |said| said.kind.name()))
        }
        _ => return None,
    };
    Some(format!("run {} of {} (also growing: {}): {said}", run.number, run.training, growing.join(", ")))
}

/// Makes `runs` runs and passes them to the detectors, with one thread per core. A run depends only on its number.
fn in_parallel<T: Send>(runs: u64, judge: impl Fn(u64, &mut [Box<dyn detect::Detector>]) -> T + Sync) -> Vec<T> {
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut judged: Vec<(u64, T)> = std::thread::scope(|scope| {
        let work = || {
            let mut detectors = detect::all();
            let mut judged = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= runs {
                    return judged;
                }
                judged.push((number, judge(number, &mut detectors)));
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        // If a worker panicked, this program has a bug, so it ends.
        workers.into_iter().flat_map(|worker| worker.join().expect("a worker panicked")).collect()
    });
    judged.sort_by_key(|&(number, _)| number);
    judged.into_iter().map(|(_, judged)| judged).collect()
}

fn score_one(corpus: &Corpus, number: u64, detectors: &mut [Box<dyn detect::Detector>]) -> Scored {
    let run = corpus.make(number.is_multiple_of(2), number / 2);
    for stream in &run.streams {
        assert_eq!(stream.contradictions(), 0, "run {number} of {} contradicts the block map", run.name);
    }
    let outcomes = score::judge(&run, detectors);
    let leak =
        run.truth.as_ref().map(|truth| (truth.cause, truth.rate.name(), truth.size.name(), run.ranks_in_words()));
    Scored { leak, benign: run.benign, training: run.name, outcomes, number: number / 2 }
}
