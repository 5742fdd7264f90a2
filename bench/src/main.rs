//! memctl's benchmarks, each with its rival in the same run: `cargo run --release -p memctl-bench -- NAME…`.
//!
//! `hook`, `codec`, `batch`, `tables`, `import`, `ingest`, `tls`, `load`, `store`, `query`, `tiles`, `judge`, `replay`,
//! or `all`; `leakbench` by itself, with its own options (`--part PART`, `--view VIEW`, `--runs N`, `--json FILE`,
//! `--wrong`). BENCHMARKS.md has the method and the results. `MEMCTL_TEST_POSTGRES` is the admin URL of a throw-away
//! Postgres (`tests/postgres start DIR`) for the rivals of `store`; `MEMCTL_BIN` names the built command line (default:
//! beside this program).

mod batch;
mod chunks;
mod codec;
mod hook;
mod import;
mod ingest;
mod judge;
mod leakbench;
mod load;
mod query;
mod recordings;
mod replay;
mod store;
mod tables;
mod tiles;
mod whole_import;

use std::error::Error;
use std::path::{Path, PathBuf};

use memctl_analysis::statistics::{median, quantile};

const NAMES: [&str; 13] = [
    "hook", "codec", "batch", "tables", "import", "ingest", "tls", "load", "store", "query", "tiles", "judge", "replay",
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut asked: Vec<String> = std::env::args().skip(1).filter(|name| !name.starts_with('-')).collect();
    if asked.first().is_some_and(|name| name == "leakbench") {
        asked.truncate(1); // the following words are its own options
    }
    if asked.is_empty() || asked.iter().any(|name| name == "all") {
        asked = NAMES.map(String::from).to_vec();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    for name in asked {
        println!("\n## {name}\n");
        match name.as_str() {
            "hook" => println!("{}", hook::run(7)?),
            "codec" => run_codec()?,
            "batch" => run_batch()?,
            "tables" => println!("{}", tables::run(5)?),
            "import" => run_import()?,
            "ingest" => runtime.block_on(run_ingest())?,
            "tls" => runtime.block_on(run_tls())?,
            "load" => runtime.block_on(run_load())?,
            "store" => runtime.block_on(run_store())?,
            "leakbench" => leakbench::run(&std::env::args().skip(2).collect::<Vec<_>>())?,
            "query" => runtime.block_on(run_query())?,
            "tiles" => runtime.block_on(run_tiles())?,
            "replay" => run_replay()?,
            "judge" => runtime.block_on(run_judge())?,
            other => return Err(format!("there is no benchmark {other}; there are {}", NAMES.join(", ")).into()),
        }
    }
    Ok(())
}

fn memctl() -> Result<PathBuf, Box<dyn Error>> {
    if let Some(path) = std::env::var_os("MEMCTL_BIN") {
        return Ok(path.into());
    }
    let path = std::env::current_exe()?.with_file_name("memctl");
    if path.exists() {
        Ok(path)
    } else {
        Err(format!("{} is not there: cargo build --release -p memctl", path.display()).into())
    }
}

fn run_codec() -> Result<(), Box<dyn Error>> {
    let (mut streams, mut originals) = (Vec::new(), Vec::new());
    for (name, path) in recordings::files()? {
        streams.push((name, recordings::events(&recordings::recording(&path)?)));
        originals.push(recordings::unpacked(&path)?);
    }
    println!("{}", codec::run(&streams, &originals, 1_000, 7)?);
    Ok(())
}

fn run_replay() -> Result<(), Box<dyn Error>> {
    let mut sources = Vec::new();
    for (_, path) in recordings::files()? {
        sources.extend(replay::Source::new(&recordings::recording(&path)?));
    }
    println!("{}", replay::run(&sources, 7)?);
    let mut conformance = replay::Conformance::default();
    for path in recordings::all()? {
        conformance.add(&recordings::recording(&path)?);
    }
    println!("{conformance}");
    Ok(())
}

fn run_batch() -> Result<(), Box<dyn Error>> {
    let recordings: Result<Vec<_>, _> =
        recordings::files()?.iter().map(|(_, path)| recordings::recording(path)).collect();
    let recordings = recordings?;
    for (what, with_marks) in [
        ("chunks only: block map, live tracking, encoding", false),
        ("with marks and a site table every step and epoch", true),
    ] {
        let mut runs = Vec::new();
        for _ in 0..7 {
            let mut sum = batch::Sum::default();
            for recording in &recordings {
                let one = batch::run(recording, with_marks)?;
                sum.events += one.events;
                sum.bytes += one.bytes;
                sum.chunk_bytes += one.chunk_bytes;
                sum.seconds += one.seconds;
            }
            runs.push(sum);
        }
        runs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let sum = runs[runs.len() / 2];
        let each = |bytes: u64| bytes as f64 / sum.events as f64;
        println!(
            "{what}: {:.1} M events/s on one core; {:.3} bytes an event, {:.3} of them chunks",
            sum.events as f64 / sum.seconds / 1e6,
            each(sum.bytes),
            each(sum.chunk_bytes)
        );
    }
    Ok(())
}

fn run_import() -> Result<(), Box<dyn Error>> {
    let recording = recordings::folder().join("gpt_clean/rank0.pickle.zst");
    let work = tempfile::tempdir()?;
    println!("reading alone:\n\n{}", import::run(&recording, work.path(), &[100_000_000], 3)?);
    println!("whole import, file to durable store:\n");
    println!(
        "| file MB | events | memctl import s | peak / file | pickle.load s | peak / file | faster |\n|---|---|---|---|---|---|---|"
    );
    for size in [100_000_000, 1_000_000_000] {
        let row = whole_import::run(&memctl()?, &recording, work.path(), size, 3)?;
        let share = |bytes: u64| bytes as f64 / row.file_bytes as f64;
        println!(
            "| {} | {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.1}x |",
            row.file_bytes / 1_000_000,
            row.events,
            row.memctl_seconds,
            share(row.memctl_peak_bytes),
            row.python_seconds,
            share(row.python_peak_bytes),
            row.python_seconds / row.memctl_seconds
        );
    }
    Ok(())
}

async fn run_ingest() -> Result<(), Box<dyn Error>> {
    let recording = recordings::recording(&recordings::folder().join("gpt_clean/rank0.pickle.zst"))?;
    let events = recordings::events(&recording);
    println!(
        "| streams | events | MB | seconds | M events/s | MB/s | daemon's peak MB |\n|---|---|---|---|---|---|---|"
    );
    for streams in [1, 4, 16] {
        let mut runs = Vec::new();
        for _ in 0..5 {
            runs.push(ingest::run(&memctl()?, &events, streams, 480 / streams as usize, ingest::Way::Plain).await?);
        }
        runs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let run = runs[runs.len() / 2];
        println!(
            "| {} | {} | {:.1} | {:.2} | {:.1} | {:.1} | {:.0} |",
            run.streams,
            run.events,
            run.bytes as f64 / 1e6,
            run.seconds,
            run.events as f64 / run.seconds / 1e6,
            run.bytes as f64 / run.seconds / 1e6,
            run.daemon_peak_bytes as f64 / 1e6
        );
    }
    Ok(())
}

/// Sixty-four clients and eight agents at once.
async fn run_load() -> Result<(), Box<dyn Error>> {
    let recording = recordings::recording(&recordings::folder().join("gpt_clean/rank0.pickle.zst"))?;
    let events = recordings::events(&recording);
    println!(
        "| ranks × steps | stored MB | askers | questions | asked again | answer ms, median | p99 | largest answer MB | durable ms, median | p99 | daemon's peak MiB |\n|---|---|---|---|---|---|---|---|---|---|---|"
    );
    let at = |milliseconds: &[f64], share| quantile(milliseconds, share).unwrap_or(f64::NAN);
    for (ranks, steps) in [(64, 10_000), (640, 100_000)] {
        let load = load::run(&memctl()?, &events, (ranks, steps), (64, 4), 8).await?;
        println!(
            "| {ranks} × {steps} | {:.1} | 64 | {} | {} | {:.0} | {:.0} | {:.1} | {:.1} | {:.1} | {:.0} |",
            load.store_bytes as f64 / 1e6,
            load.answered_ms.len(),
            load.refused,
            at(&load.answered_ms, 0.5),
            at(&load.answered_ms, 0.99),
            load.answer_bytes as f64 / 1e6,
            at(&load.durable_ms, 0.5),
            at(&load.durable_ms, 0.99),
            load.peak_bytes as f64 / f64::from(1 << 20),
        );
    }
    Ok(())
}

/// Ingest without TLS, with TLS and with mutual TLS, alternately.
async fn run_tls() -> Result<(), Box<dyn Error>> {
    const WAYS: [ingest::Way; 3] = [ingest::Way::Plain, ingest::Way::Tls, ingest::Way::MutualTls];
    const TURNS: usize = 5;
    let recording = recordings::recording(&recordings::folder().join("gpt_clean/rank0.pickle.zst"))?;
    let (memctl, events) = (memctl()?, recordings::events(&recording));
    println!(
        "| streams | plain, M events/s | TLS | mutual TLS | TLS / plain, median of turns | mutual TLS / plain |\n|---|---|---|---|---|---|"
    );
    for streams in [1, 4, 16] {
        let mut rates = [const { Vec::new() }; 3];
        for turn in 0..TURNS {
            // The order rotates, so that a machine that gets slower, or an idle disk, does not favour one of them.
            for at in (0..WAYS.len()).map(|at| (at + turn) % WAYS.len()) {
                let run = ingest::run(&memctl, &events, streams, 480 / streams as usize, WAYS[at]).await?;
                rates[at].push(run.events as f64 / run.seconds / 1e6);
            }
        }
        let [mut plain, mut tls, mut mutual] = rates;
        let over = |rates: &[f64]| {
            median(rates.iter().zip(&plain).map(|(rate, plain)| rate / plain).collect()).unwrap_or(f64::NAN)
        };
        let (of_tls, of_mutual) = (over(&tls), over(&mutual));
        for rates in [&mut plain, &mut tls, &mut mutual] {
            rates.sort_by(f64::total_cmp);
        }
        let middle = TURNS / 2;
        println!(
            "| {streams} | {:.1} | {:.1} | {:.1} | {of_tls:.2} | {of_mutual:.2} |",
            plain[middle], tls[middle], mutual[middle]
        );
    }
    Ok(())
}

async fn run_judge() -> Result<(), Box<dyn Error>> {
    println!("a job from its epoch ends to its findings, one core, median of 5:\n");
    println!(
        "| ranks | epochs | sites | rows | taken s | judged s | together s | memory MB | findings |\n|---|---|---|---|---|---|---|---|---|"
    );
    for (ranks, epochs, sites) in [(4, 100, 500), (64, 100, 500), (1_024, 100, 500)] {
        let mut runs: Vec<judge::Large> = (0..5).map(|_| judge::large(ranks, epochs, sites)).collect();
        runs.sort_by(|a, b| (a.taking + a.judging).total_cmp(&(b.taking + b.judging)));
        // Only in the first run of a size, the allocator does not yet retain memory of an earlier run.
        let memory = runs.iter().map(|run| run.memory_bytes).max().unwrap_or(0);
        let run = runs[runs.len() / 2];
        println!(
            "| {ranks} | {epochs} | {sites} | {} | {:.3} | {:.3} | {:.3} | {:.0} | {} |",
            run.rows,
            run.taking,
            run.judging,
            run.taking + run.judging,
            memory as f64 / 1e6,
            run.findings
        );
    }
    println!("\ningest of chunks with a site table every 4,096 events, M events/s, medians of 7 pairs:\n");
    println!("| streams | judging off | judging on | on / off, median of pairs |\n|---|---|---|---|");
    let recording = recordings::recording(&recordings::folder().join("gpt_clean/rank0.pickle.zst"))?;
    let (memctl, events) = (memctl()?, recordings::events(&recording));
    for streams in [1, 4, 16] {
        let (mut off, mut on, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for pair in 0..7 {
            // The order alternates, so that a machine that gets slower does not favour one of them.
            let order = if pair % 2 == 0 { ["off", "on"] } else { ["on", "off"] };
            let mut rates = std::collections::HashMap::new();
            for judging in order {
                rates.insert(judging, judge::ingest(&memctl, &events, streams, 960 / streams as usize, judging).await?);
            }
            off.push(rates["off"]);
            on.push(rates["on"]);
            ratios.push(rates["on"] / rates["off"]);
        }
        for all in [&mut off, &mut on, &mut ratios] {
            all.sort_by(f64::total_cmp);
        }
        println!("| {streams} | {:.1} | {:.1} | {:.3} |", off[3] / 1e6, on[3] / 1e6, ratios[3]);
    }
    Ok(())
}

async fn run_store() -> Result<(), Box<dyn Error>> {
    let (work, postgres) = (tempfile::tempdir()?, std::env::var("MEMCTL_TEST_POSTGRES").ok());
    println!("{}", store::run(work.path(), postgres.as_deref(), store::Amount::default()).await?);
    Ok(())
}

async fn run_query() -> Result<(), Box<dyn Error>> {
    let recording = recordings::recording(&recordings::folder().join("gpt_clean/rank0.pickle.zst"))?;
    let work = tempfile::tempdir()?;
    let (events, bytes) = query::fill(work.path(), &recordings::events(&recording), 100_000_000, 4).await?;
    println!("job of {events} events, 4 ranks; database {:.1} MB\n", bytes as f64 / 1e6);
    println!("| command, process start included | median ms | slowest of 20 ms |\n|---|---|---|");
    let memctl = memctl()?;
    for arguments in [
        &["query", "--job", "large"][..],
        &["query", "--job", "large", "-o", "json"],
        &["timeline", "--job", "large", "--rank", "0"],
        &["sites", "--job", "large", "--epoch-end", "3"],
        &["jobs"],
    ] {
        println!("{}", query::time(&memctl, &data_dir(work.path())?, arguments, 20)?);
    }
    let work = tempfile::tempdir()?;
    let bytes = query::fill_long(work.path(), LONG_EPOCHS, LONG_STEPS).await?;
    println!("\njob of one rank, {LONG_EPOCHS} epochs of {LONG_STEPS} steps; database {:.1} MB\n", bytes as f64 / 1e6);
    println!("| command, process start included | median ms | slowest of 20 ms |\n|---|---|---|");
    let asked = [&["query", "--job", "long"][..], &["query", "--job", "long", "-o", "json"], &["jobs"]];
    for arguments in asked {
        println!("{}", query::time(&memctl, &data_dir(work.path())?, arguments, 20)?);
    }
    println!("\n| the same, asked of a daemon that runs | median ms | slowest of 20 ms |\n|---|---|---|");
    let daemon = ingest::Daemon::start_on(&memctl, work.path(), &[])?;
    for arguments in asked {
        println!("{}", query::time(&memctl, &["--daemon", daemon.url()], arguments, 20)?);
    }
    drop(daemon);
    keep(work.path())
}

/// The flag that names a store without a daemon.
fn data_dir(folder: &Path) -> Result<[&str; 2], Box<dyn Error>> {
    Ok(["--data-dir", folder.to_str().ok_or("the folder's name is no text")?])
}

async fn run_tiles() -> Result<(), Box<dyn Error>> {
    let recording = recordings::recording(&recordings::folder().join("gpt_clean/rank0.pickle.zst"))?;
    let work = tempfile::tempdir()?;
    let events = recordings::events(&recording);
    println!("{}", tiles::run(&memctl()?, work.path(), &events, 100_000_000, 200).await?);
    keep(work.path())
}

/// Keeps a benchmark's store, for queries of a daemon or for the page.
fn keep(work: &Path) -> Result<(), Box<dyn Error>> {
    if let Some(kept) = std::env::var_os("MEMCTL_BENCH_KEEP") {
        std::fs::copy(work.join("memctl.db"), PathBuf::from(kept).join("memctl.db"))?;
    }
    Ok(())
}

/// The long job: a day of a small model.
const LONG_EPOCHS: u32 = 4_775;
const LONG_STEPS: u64 = 100;
