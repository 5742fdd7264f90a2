//! Prints an answer in the format that was asked for: a page for people, or data.

use std::io::{self, Write};

use crate::args::{Format, Global};
use crate::exit::Failure;
use crate::page::Page;
use crate::render::screen::Screen;

/// Prints an answer.
///
/// # Errors
/// The writer's.
pub fn print(answer: &dyn Page, format: Format, screen: &Screen, out: &mut dyn Write) -> io::Result<()> {
    match format {
        Format::Table => out.write_all(answer.page(screen).as_bytes()),
        Format::Json => answer.json(out),
        Format::Ndjson => answer.ndjson(out),
        Format::Csv => answer.csv(out),
    }
}

/// Prints an answer in the format that was asked for.
///
/// # Errors
/// The output cannot be written.
pub fn show(answer: &dyn Page, global: &Global, screen: &Screen, out: &mut dyn Write) -> Result<(), Failure> {
    print(answer, global.output, screen, out).map_err(|error| Failure::output("standard output", &error))
}
