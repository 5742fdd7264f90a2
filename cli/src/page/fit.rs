//! The page of `memctl fit`: what two recordings held, what other sizes would hold, and the largest that fits.
//!
//! It says how the recordings were aligned before it forecasts anything, and what it did not look at after everything.

use memctl_answers::fit::{Fit, Recording};
use memctl_answers::naming::name_of;
use memctl_model::HumanBytes;

use super::{Page, prose};
use crate::render::screen::{Screen, Tone};
use crate::render::table::{Table, left, right};
use crate::render::text::{count, plural, safe};

impl Page for Fit {
    fn page(&self, screen: &Screen) -> String {
        page(self, screen)
    }
}

/// See the module.
#[must_use]
pub fn page(answer: &Fit, screen: &Screen) -> String {
    let mut out: String = answer.recordings.iter().map(|it| format!("{}\n", screen.fit(&recorded(it), 0))).collect();
    let aligned = &answer.aligned;
    let mut text = format!(
        "Of {} at the larger size {} took the same bytes at both, {} in proportion to the size, {} to its square, {} otherwise.",
        plural(aligned.requests, "request"),
        count(aligned.constant),
        count(aligned.linear),
        count(aligned.quadratic),
        count(aligned.other),
    );
    if aligned.unmatched > 0 {
        let bytes = HumanBytes::of(aligned.unmatched_bytes);
        text.push_str(&format!(" {} ({bytes}) are in the larger recording only.", count(aligned.unmatched)));
    }
    for line in prose::wrap(&text, prose::columns(screen)) {
        out.push_str(&format!("{line}\n"));
    }
    out.push('\n');
    out.push_str(&sizes(answer, screen));
    if let Some(memory) = answer.device_memory_bytes {
        let memory = HumanBytes::of(memory);
        let (text, tone) = match answer.largest_that_fits {
            Some(size) => (format!("The largest that fits in {memory}: {size}."), Tone::Good),
            None => (format!("No size fits in {memory}."), Tone::Alert),
        };
        out.push_str(&format!("\n{}\n", screen.paint(tone, &screen.fit(&text, 0))));
    }
    out.push_str("\nNot looked at:\n");
    for text in &answer.not_looked_at {
        for line in prose::wrap(text, prose::columns(screen).saturating_sub(2)) {
            out.push_str(&format!("  {line}\n"));
        }
    }
    out
}

fn recorded(recording: &Recording) -> String {
    format!(
        "{} at {}, {}: {} allocated at most, {} reserved",
        safe(&recording.job),
        recording.size,
        name_of(&recording.process, recording.rank),
        HumanBytes::of(recording.peak_allocated_bytes),
        HumanBytes::of(recording.peak_reserved_bytes),
    )
}

fn sizes(answer: &Fit, screen: &Screen) -> String {
    let mut table = Table::new(&[
        right("SIZE", 0),
        right("ALLOCATED", 2),
        right("RESERVED", 0),
        right("LOW", 3),
        right("HIGH", 3),
        left("FITS", 1),
    ]);
    for at in &answer.at {
        let fits = match at.fits {
            Some(true) => ("yes", Some(Tone::Good)),
            Some(false) => ("NO", Some(Tone::Alert)),
            None => ("-", None),
        };
        table.toned(vec![
            (at.size.to_string(), None),
            (HumanBytes::of(at.peak_allocated_bytes).to_string(), None),
            (HumanBytes::of(at.peak_reserved_bytes).to_string(), None),
            (HumanBytes::of(at.low).to_string(), None),
            (HumanBytes::of(at.high).to_string(), None),
            (fits.0.to_owned(), fits.1),
        ]);
    }
    table.show(screen)
}
