//! `memctl check`: verifies the content of a store.
//!
//! Guarantees: ends with exit code 0 if no fault is found, 1 if one is found, 3 if the store cannot be read.

use std::io::Write;

use memctl_answers::SCHEMA;
use memctl_answers::format::csv::{self, Cell};
use memctl_answers::format::json;
use memctl_model::HumanBytes;
use serde::Serialize;

use super::store_place;
use crate::args::{Check, Format, Global};
use crate::exit::Failure;
use crate::hosting::stores::{self, Checked};
use crate::render::text::{plural, safe};

#[derive(Serialize)]
struct Answer {
    schema: u32,
    store: String,
    kind: &'static str,
    schema_version: i64,
    deep: bool,
    jobs: u64,
    sessions: u64,
    stored_bytes: u64,
    items_read: u64,
    items_without_checksum: u64,
    problems_found: u64,
    problems: Vec<Problem>,
}

#[derive(Serialize)]
struct Problem {
    session: Option<i64>,
    item: Option<u64>,
    problem: String,
}

/// See the module.
///
/// # Errors
/// A fault was found, or the store cannot be read.
pub async fn run(args: &Check, global: &Global, out: &mut (dyn Write + Send)) -> Result<(), Failure> {
    let place = store_place("check", args.store.as_deref(), global)?;
    if args.compact {
        let (before, after) = stores::compact(&place).await?;
        if !global.quiet {
            eprintln!("memctl: compacted from {} to {}", HumanBytes::of(before), HumanBytes::of(after));
        }
    }
    let answer = Answer::of(stores::check(&place, args.deep).await?, args.deep);
    answer.write(global.output, out).map_err(|error| Failure::output("standard output", &error))?;
    if answer.problems_found == 0 {
        return Ok(());
    }
    let problems = plural(answer.problems_found, "problem");
    Err(Failure::found(format!("{problems} in {}: restore a backup, or delete the jobs concerned", answer.store)))
}

impl Answer {
    fn of(checked: Checked, deep: bool) -> Self {
        let Checked { info, totals, items_read, items_without_checksum, problems, problems_found } = checked;
        Self {
            schema: SCHEMA,
            store: info.place,
            kind: info.kind,
            schema_version: info.schema_version,
            deep,
            jobs: totals.jobs,
            sessions: totals.sessions,
            stored_bytes: totals.stored_bytes,
            items_read,
            items_without_checksum,
            problems_found,
            problems: problems
                .into_iter()
                .map(|problem| Problem { session: problem.session, item: problem.item, problem: problem.what })
                .collect(),
        }
    }

    fn write(&self, format: Format, out: &mut (dyn Write + Send)) -> std::io::Result<()> {
        match format {
            Format::Table => self.page(out),
            Format::Json => json::pretty(out, self),
            Format::Ndjson => self.problems.iter().try_for_each(|problem| json::line(out, problem)),
            Format::Csv => {
                csv::header(out, &["session", "item", "problem"])?;
                self.problems.iter().try_for_each(|problem| {
                    let cells =
                        [Cell::maybe(problem.session), Cell::maybe(problem.item), Cell::text(problem.problem.as_str())];
                    csv::record(out, &cells)
                })
            }
        }
    }

    fn page(&self, out: &mut dyn Write) -> std::io::Result<()> {
        writeln!(out, "store     {} ({}, schema {})", safe(&self.store), self.kind, self.schema_version)?;
        let (jobs, sessions) = (plural(self.jobs, "job"), plural(self.sessions, "session"));
        writeln!(out, "holds     {jobs}, {sessions}, {}", HumanBytes::of(self.stored_bytes))?;
        if self.deep {
            let without = match self.items_without_checksum {
                0 => String::new(),
                some => format!(", {some} of them without a checksum (an older memctl stored them)"),
            };
            writeln!(out, "read      {}{without}", plural(self.items_read, "item"))?;
        } else {
            writeln!(out, "read      the rows about items, not the items themselves (--deep reads both)")?;
        }
        for problem in &self.problems {
            let item = problem.item.map_or(String::new(), |item| format!("item {item} of "));
            let session = problem.session.map_or(String::new(), |session| format!("session {session}"));
            let colon = if problem.item.is_some() || session.is_empty() { " " } else { ": " };
            writeln!(out, "problem   {}", safe(format!("{item}{session}{colon}{}", problem.problem).trim()))?;
        }
        let left_out = self.problems_found - self.problems.len() as u64;
        if left_out > 0 {
            writeln!(out, "problem   and {left_out} more")?;
        }
        if self.problems_found == 0 {
            writeln!(out, "found     no problem")?;
        }
        Ok(())
    }
}
