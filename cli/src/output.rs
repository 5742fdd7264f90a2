//! Prints a response in the requested format: a page for people, or data.

use std::io::{self, Write};

use crate::args::{Format, Global, Part};
use crate::exit::Failure;
use crate::page::Page;
use crate::render::screen::Screen;

/// Prints a response.
///
/// # Errors
/// The writer's.
pub fn print(answer: &impl Page, format: Format, screen: &Screen, out: &mut dyn Write) -> io::Result<()> {
    match format {
        Format::Table => out.write_all(answer.page(screen).as_bytes()),
        Format::Json => answer.json(out),
        Format::Ndjson => answer.ndjson(out),
        Format::Csv => answer.csv(out),
    }
}

/// Prints a response in the requested format.
///
/// # Errors
/// The output cannot be written.
pub fn show(answer: &impl Page, global: &Global, screen: &Screen, out: &mut dyn Write) -> Result<(), Failure> {
    print(answer, global.output, screen, out).map_err(|error| Failure::output("standard output", &error))
}

/// Prints a response about a part of a job. If it is not the whole job, a line before the table states the measured
/// part.
///
/// # Errors
/// The output cannot be written.
pub fn show_part(
    answer: &impl Page,
    part: &Part,
    global: &Global,
    screen: &Screen,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    if let Some(range) = part.range_in_words().filter(|_| global.output == Format::Table) {
        writeln!(out, "{}", screen.wrapped(&range, 0)).map_err(|error| Failure::output("standard output", &error))?;
    }
    show(answer, global, screen, out)
}
