//! The job of a command: chosen by name or by `--job`, otherwise the newest.

use clap::Args;
use clap_complete::engine::ArgValueCandidates;

use super::job_names::job_names;
use super::values;

/// The newest job.
pub const NEWEST: &str = "latest";

/// The job of a query.
#[derive(Clone, Debug, Args)]
pub struct Which {
    /// The job's name [default: the newest].
    #[arg(value_name = "JOB", value_parser = values::known_job, add = ArgValueCandidates::new(job_names), conflicts_with = "job")]
    pub named: Option<String>,
    /// The job's name, as a flag; `latest` is the newest.
    #[arg(long, value_name = "JOB", value_parser = values::known_job, add = ArgValueCandidates::new(job_names))]
    pub job: Option<String>,
}

impl Which {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> String {
        self.named.as_ref().or(self.job.as_ref()).map_or(NEWEST, String::as_str).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use crate::args::{Cli, Command};

    fn asked(words: &[&str]) -> Option<String> {
        let words = ["memctl"].iter().chain(words);
        match Cli::try_parse_from(words).ok()?.command {
            Command::Query(query) => Some(query.narrow.which.name()),
            Command::Delete(delete) => Some(delete.name().to_owned()),
            Command::Assert(assert) => {
                let (job, conditions) = assert.asked().ok()?;
                Some(format!("{job}: {}", conditions.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")))
            }
            _ => None,
        }
    }

    #[test]
    fn a_job_without_conditions_is_no_unknown_condition() {
        let Command::Assert(assert) = Cli::try_parse_from(["memctl", "assert", "base"]).unwrap().command else {
            panic!("not an assert")
        };
        let why = assert.asked().unwrap_err();
        assert!(
            why.starts_with("there is no condition to check after the job's name `base`; conditions are:"),
            "{why}"
        );
    }

    #[test]
    fn a_job_is_named_by_a_word_a_flag_or_not_at_all() {
        assert_eq!(asked(&["query", "gpt2"]).as_deref(), Some("gpt2"));
        assert_eq!(asked(&["query", "--job", "gpt2"]).as_deref(), Some("gpt2"));
        assert_eq!(asked(&["query"]).as_deref(), Some("latest"));
        assert_eq!(asked(&["query", "gpt2", "--job", "vit"]), None, "one of them");
        assert_eq!(asked(&["delete", "gpt2"]).as_deref(), Some("gpt2"));
        assert_eq!(asked(&["delete"]), None, "a job is deleted by its own name");
    }

    #[test]
    fn of_the_words_of_assert_the_first_may_be_the_job() {
        assert_eq!(asked(&["assert", "gpt2", "no-leak", "stable"]).as_deref(), Some("gpt2: no-leak stable"));
        assert_eq!(asked(&["assert", "no-leak", "--job", "gpt2"]).as_deref(), Some("gpt2: no-leak"));
        assert_eq!(asked(&["assert", "latest", "peak<1GiB"]).as_deref(), Some("latest: peak<1GiB"));
        assert_eq!(asked(&["assert", "no-oom"]).as_deref(), Some("latest: no-oom"));
        assert_eq!(asked(&["assert", "leek"]), None, "a mistyped condition is no job without conditions");
        assert_eq!(asked(&["assert", "gpt2", "leek"]), None);
    }
}
