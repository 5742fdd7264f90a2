//! The arguments of one call, after their check.
//!
//! Guarantees: values have the forms of the command line's flags, and the same messages if they are wrong.

use std::str::FromStr;

use memctl_proto::v1;
use rmcp::model::JsonObject;
use serde_json::Value;

use crate::args::values::{EpochRange, RankList, known_job};
use crate::exit::Failure;

/// The job of a call that names none.
const NEWEST: &str = "latest";

/// See the module.
#[derive(Clone, Debug)]
pub struct ToolCall {
    given: JsonObject,
}

impl ToolCall {
    /// Arguments that passed [`super::shape::check`].
    #[must_use]
    pub const fn new(given: JsonObject) -> Self {
        Self { given }
    }

    /// The arguments as they were sent.
    #[must_use]
    pub const fn given(&self) -> &JsonObject {
        &self.given
    }

    /// A text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.given.get(name).and_then(Value::as_str)
    }

    /// Texts; empty if there are none.
    #[must_use]
    pub fn texts(&self, name: &str) -> Vec<String> {
        let items = self.given.get(name).and_then(Value::as_array);
        items.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    }

    /// A whole number.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        self.given.get(name).and_then(Value::as_u64)
    }

    /// A whole number that the argument's shape limits to 32 bits.
    #[must_use]
    pub fn small(&self, name: &str) -> Option<u32> {
        self.number(name).and_then(|number| u32::try_from(number).ok())
    }

    /// Whole numbers; empty if there are none.
    #[must_use]
    pub fn numbers(&self, name: &str) -> Vec<u64> {
        let items = self.given.get(name).and_then(Value::as_array);
        items.into_iter().flatten().filter_map(Value::as_u64).collect()
    }

    /// Whether a flag is true.
    #[must_use]
    pub fn flag(&self, name: &str) -> bool {
        self.given.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    /// A text in the form of a flag's value.
    ///
    /// # Errors
    /// It has another form.
    pub fn parsed<T: FromStr<Err = String>>(&self, name: &str) -> Result<Option<T>, Failure> {
        let wrong = |why: String| Failure::usage(format!("{name}: {why}"));
        self.text(name).map(|text| text.parse().map_err(wrong)).transpose()
    }

    /// A size in bytes such as `40GiB`.
    ///
    /// # Errors
    /// It is not a size.
    pub fn bytes(&self, name: &str) -> Result<Option<u64>, Failure> {
        self.text(name).map(|text| size(name, text)).transpose()
    }

    /// Rows of the tool's list to leave out at the beginning.
    #[must_use]
    pub fn skip(&self) -> usize {
        self.number("skip").and_then(|rows| usize::try_from(rows).ok()).unwrap_or(0)
    }

    /// The job.
    ///
    /// # Errors
    /// The text cannot be a job's name.
    pub fn job(&self) -> Result<String, Failure> {
        known_job(self.text("job").unwrap_or(NEWEST)).map_err(|why| Failure::usage(format!("job: {why}")))
    }

    /// The selection for the daemon, from `job`, `attempt`, `rank` and `epoch`.
    ///
    /// # Errors
    /// A value has another form.
    pub fn selection(&self) -> Result<v1::Selection, Failure> {
        let epochs = self.parsed::<EpochRange>("epoch")?.unwrap_or_default();
        Ok(v1::Selection {
            job: self.job()?,
            attempt: self.small("attempt"),
            ranks: self.parsed::<RankList>("rank")?.unwrap_or_default().0,
            first_epoch: epochs.first,
            last_epoch: epochs.last,
            ..v1::Selection::default()
        })
    }
}

/// A size in bytes, of an argument of this name.
///
/// # Errors
/// It is not a size.
pub fn size(name: &str, text: &str) -> Result<u64, Failure> {
    memctl_answers::conditions::bytes(text).map_err(|why| Failure::usage(format!("{name}: {why}")))
}
