//! `memctl import` as a whole, file to durable store, against Python's `pickle.load` of the same file; peak memory of
//! both processes.

use std::error::Error;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::import::write_snapshot;
use crate::recordings;

/// One file's result: medians of seconds, highest peaks.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Bytes of the pickle.
    pub file_bytes: u64,
    /// Events in it.
    pub events: u64,
    /// Seconds of `memctl import` into a fresh embedded store.
    pub memctl_seconds: f64,
    /// Its peak resident bytes.
    pub memctl_peak_bytes: u64,
    /// Seconds of `python3 -c pickle.load`.
    pub python_seconds: f64,
    /// Its peak resident bytes.
    pub python_peak_bytes: u64,
}

/// Makes a pickle of `size` bytes and reads it with both, alternately, `runs` times.
///
/// # Errors
/// One of them fails.
pub fn run(memctl: &Path, recording: &Path, work: &Path, size: u64, runs: usize) -> Result<Row, Box<dyn Error>> {
    let path = work.join("rank0.pickle");
    let source = recordings::recording(recording)?;
    let mut out = BufWriter::new(File::create(&path)?);
    let events = write_snapshot(&source, size, &mut out)?;
    out.into_inner()?.sync_all()?;
    drop(source);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        let data = tempfile::tempdir_in(work)?;
        let mut import = Command::new(memctl);
        import.env("MEMCTL_SERVICE", "off");
        import.args(["import", "-q", "--job", "bench", "-o", "json", "--data-dir"]).arg(data.path()).arg(&path);
        ours.push(measure(&mut import)?);
        let mut load = Command::new("python3");
        load.args(["-c", "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"]).arg(&path);
        theirs.push(measure(&mut load)?);
    }
    let file_bytes = std::fs::metadata(&path)?.len();
    std::fs::remove_file(path)?;
    let (memctl_seconds, memctl_peak_bytes) = middle(ours);
    let (python_seconds, python_peak_bytes) = middle(theirs);
    Ok(Row { file_bytes, events, memctl_seconds, memctl_peak_bytes, python_seconds, python_peak_bytes })
}

fn middle(mut runs: Vec<(f64, u64)>) -> (f64, u64) {
    runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    (runs[runs.len() / 2].0, runs.iter().map(|run| run.1).max().unwrap_or(0))
}

/// Seconds and peak resident bytes of a command that must succeed.
fn measure(command: &mut Command) -> Result<(f64, u64), Box<dyn Error>> {
    let begun = Instant::now();
    let mut child = command.stdout(Stdio::null()).spawn()?;
    let mut peak = 0;
    let status = loop {
        // The kernel keeps the peak, so the last reading before the end has it, except for this interval.
        peak = peak_bytes(&child).unwrap_or(0).max(peak);
        match child.try_wait()? {
            Some(status) => break status,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let seconds = begun.elapsed().as_secs_f64();
    if status.success() { Ok((seconds, peak)) } else { Err(format!("{command:?} ended with {status}").into()) }
}

fn peak_bytes(child: &Child) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}
