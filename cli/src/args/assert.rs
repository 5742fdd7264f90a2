//! The flags of `assert`, and those that write its results for continuous integration.

use std::path::PathBuf;

use clap::Args;
use clap_complete::engine::ArgValueCandidates;
use memctl_answers::conditions::{CONDITIONS, Condition, Tolerance};
use memctl_model::limits::is_job_name;

use super::job_names::job_names;
use super::questions::Part;
use super::values;

/// `memctl assert`.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = ASSERT_HELP)]
pub struct Assert {
    /// The job's name [default: the newest], unless --job gives it. Then the conditions: stable, no-leak, no-oom, no-findings, 'peak<10GiB', 'peak_reserved<12GiB', 'reserved/allocated<1.3', 'growth<1MiB/epoch'.
    #[arg(required_unless_present_any = ["against", "max_peak", "max_growth"], value_name = "[JOB] CONDITION", add = ArgValueCandidates::new(job_names))]
    pub words: Vec<String>,
    /// The job's name, as a flag; `latest` is the newest.
    #[arg(long, value_name = "JOB", value_parser = values::known_job, add = ArgValueCandidates::new(job_names))]
    pub job: Option<String>,
    /// Which part of the job.
    #[command(flatten)]
    pub part: Part,
    /// Compare with this job, or with a file of `memctl baseline save`. Without a condition about it (no-new-leak, 'peak<=+2%', 'peak_reserved<=+2%'): its peaks may be exceeded by 5 %, and there may be no finding of severity warning or above, no failed request and no leak that it does not have.
    #[arg(long, value_name = "JOB|FILE", add = ArgValueCandidates::new(job_names))]
    pub against: Option<String>,
    /// The same as 'peak<=BYTES', without characters that a shell reads.
    #[arg(long, value_name = "BYTES")]
    pub max_peak: Option<String>,
    /// The same as 'growth<=RATE': 1MiB/epoch, 64KiB/step, 10MiB/minute.
    #[arg(long, value_name = "RATE")]
    pub max_growth: Option<String>,
    /// Use only data from the end of this epoch on, including this end.
    #[arg(long, value_name = "N")]
    pub after_epoch: Option<u32>,
    /// For stable: by how much allocated memory at later epoch ends may exceed allocated memory at the first epoch end, 5% or 16MiB [default: 1%, at least 1 MiB].
    #[arg(long, value_name = "AMOUNT")]
    pub tolerance: Option<Tolerance>,
    /// Also decide conditions for a job that is still running, failed, was not recorded completely or has too few epochs.
    #[arg(long)]
    pub allow_incomplete: bool,
    /// Accept suspected growth, which may be a cache that is still filling.
    #[arg(long)]
    pub allow_suspected: bool,
    /// Where the results go besides the page.
    #[command(flatten)]
    pub results: Results,
}

/// Formats of the results for continuous integration.
#[derive(Clone, Debug, Default, Args)]
pub struct Results {
    /// Also write the results of the conditions to this file, as JUnit XML.
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Also write what is wrong to this file, with lines of the checkout, as SARIF 2.1.0.
    #[arg(long, value_name = "FILE")]
    pub sarif: Option<PathBuf>,
    /// Also print annotations for a GitHub workflow, lines that the pull request changes first, and append to GITHUB_STEP_SUMMARY.
    #[arg(long)]
    pub github: bool,
}

impl Results {
    /// Whether no format is wanted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.junit.is_none() && self.sarif.is_none() && !self.github
    }
}

impl Assert {
    /// The job and the conditions: the first word is the job's name if it is not a condition and --job is missing.
    ///
    /// # Errors
    /// Why a word is not a condition.
    pub fn asked(&self) -> Result<(String, Vec<Condition>), String> {
        let named = match (&self.job, self.words.split_first()) {
            (None, Some((first, rest)))
                if first.parse::<Condition>().is_err() && (first == "latest" || is_job_or_run(first)) =>
            {
                Some((first.clone(), rest))
            }
            _ => None,
        };
        let newest = || self.job.clone().unwrap_or_else(|| "latest".to_owned());
        let (job, words) = named.unwrap_or_else(|| (newest(), &self.words));
        let flags = [("peak<=", &self.max_peak), ("growth<=", &self.max_growth)];
        let flags = flags.into_iter().filter_map(|(figure, limit)| Some(format!("{figure}{}", limit.as_ref()?)));
        let conditions = words.iter().cloned().chain(flags);
        let conditions = conditions.map(|word| word.parse()).collect::<Result<Vec<Condition>, String>>()?;
        if self.against.is_none()
            && let Some(relative) = conditions.iter().find(|condition| condition.asks.is_relative())
        {
            return Err(format!(
                "`{relative}` compares with another job: name it, or a baseline's file, with --against"
            ));
        }
        if conditions.is_empty() && self.against.is_none() {
            return Err(format!("there is no condition to check after the job's name `{job}`; {CONDITIONS}"));
        }
        Ok((job, conditions))
    }
}

/// Whether a word can be a job's name, or one of its runs: `gpt2#3`.
fn is_job_or_run(word: &str) -> bool {
    let run = word.rsplit_once('#').filter(|(_, number)| number.parse::<u32>().is_ok());
    is_job_name(run.map_or(word, |(name, _)| name))
}

const ASSERT_HELP: &str = "Conditions:\n  \
no-leak                 no finding of growing live memory, not even suspected growth\n  \
no-oom                  no request failed, even if the program continued\n  \
no-findings             no finding of severity warning or above, and no suspected leak\n  \
stable                  no-leak holds, no other memory grows, and allocated memory at epoch ends stays within the tolerance\n  \
'peak<10GiB'            the peak of allocated bytes on every rank (also <=; KiB, MiB, GiB, TiB, KB, MB, GB, TB)\n  \
'peak_reserved<12GiB'   the peak of reserved bytes\n  \
'peak<=+2%'             with --against: the peak above the other job's, also 'peak_reserved<=+2%', 'peak<=+512MiB'\n  \
no-new-leak             with --against: no leak that the other job does not have there, at this rate and in this object\n  \
'reserved/allocated<R'  the ratio of these two peaks\n  \
'growth<1MiB/epoch'     growth of every rank, also /step and /minute\n  \
'unused<50%'            the share of reserved bytes that no live block uses at epoch ends (cache included)\n\
Exit codes: 0 all conditions hold, 1 a condition does not hold or cannot be decided from the data, 2 wrong usage, 4 no such job, or its last `memctl run` recorded nothing.";
