//! `memctl baseline save`: writes the figures of a run into a file that is committed beside the program.

use std::io::Write;

use memctl_answers::baseline::Baseline;
use memctl_answers::format::json;
use memctl_answers::profile::KnownFinding;
use memctl_model::{HumanBytes, JobState};

use crate::args::{self, BaselineVerb, Global};
use crate::client::{asking, newest, profile};
use crate::exit::Failure;
use crate::render::text::{plural, safe};
use crate::unrecorded;

/// See the module.
///
/// # Errors
/// See [`Failure`]. A run that is not complete is refused: its figures would be those of a part.
pub async fn run(args: &args::Baseline, global: &Global, out: &mut (dyn Write + Send)) -> Result<(), Failure> {
    let BaselineVerb::Save(save) = &args.verb;
    let job = save.which.name();
    let profiles = asking(global, async |connection| {
        let mut profiles = Vec::new();
        if let Some(last) = newest(connection, &job, 1).await?.first() {
            unrecorded::refuse(global, &job, last)?;
        }
        if save.runs == 1 {
            profiles.push(profile(connection, &job).await?);
            return Ok(profiles);
        }
        let runs = newest(connection, &job, save.runs as usize).await?;
        if runs.len() < save.runs as usize {
            let there = runs.len();
            return Err(Failure::usage(format!("{job} has {there} runs, and --runs {} were wanted", save.runs)));
        }
        for run in runs {
            profiles.push(profile(connection, &run.id).await?);
        }
        Ok(profiles)
    })
    .await?;
    if let Some(part) = profiles.iter().find(|profile| profile.state != JobState::Finished || !profile.exact) {
        return Err(Failure::usage(format!(
            "{} is no baseline: it {}",
            part.job,
            if part.exact { "has not ended normally" } else { "was not recorded completely" }
        )));
    }
    let Some(baseline) = Baseline::new(&profiles) else { return Err(Failure::usage("there is no run")) };
    let mut content = Vec::new();
    let failed = |error: std::io::Error| Failure::output(&save.file.display().to_string(), &error);
    json::pretty(&mut content, &baseline).map_err(failed)?;
    std::fs::write(&save.file, content).map_err(failed)?;
    if let Some(line) = saved_leaks(&baseline.profile.findings).filter(|_| !global.quiet) {
        eprintln!("memctl: {}", safe(&line));
    }
    // With several runs, the others only widen what is allowed, so the output names them.
    let others: Vec<&str> = profiles.iter().skip(1).map(|profile| profile.job.as_str()).collect();
    let others = if others.is_empty() { String::new() } else { format!(", and the spread of {}", others.join(", ")) };
    let peak = baseline.profile.most(|rank| rank.peak_allocated_bytes).map_or(0, |bytes| bytes);
    writeln!(
        out,
        "{} has the figures of {}{others}: peak {}. Check a later run: memctl assert no-oom no-new-leak 'peak<=+2%' --against {}",
        save.file.display(),
        baseline.profile.job,
        HumanBytes::of(peak),
        save.file.display()
    )
    .map_err(|error| Failure::output("standard output", &error))
}

/// A warning that later checks accept the leaks that are saved.
fn saved_leaks(findings: &[KnownFinding]) -> Option<String> {
    let leaks: Vec<&KnownFinding> = findings.iter().filter(|finding| finding.fills()).collect();
    let first = leaks.first()?;
    let more = match leaks.len() - 1 {
        0 => String::new(),
        more => format!(" (and {})", plural(more as u64, "more leak")),
    };
    Some(format!("the baseline has a leak, which no-new-leak accepts: {}{more}", first.words()))
}
