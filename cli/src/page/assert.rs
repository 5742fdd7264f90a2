//! The page of `memctl assert`: one line per condition. If the data cannot decide a condition, the line has the reason.

use memctl_answers::assert::{Outcome, Verdicts};

use super::{Page, heading, prose};
use crate::render::screen::{Screen, Tone};
use crate::render::text::{safe, width};

/// Number of columns of the verdict.
const VERDICT: usize = 14;

impl Page for Verdicts {
    fn page(&self, screen: &Screen) -> String {
        page(self, screen)
    }
}

/// The page's text.
#[must_use]
pub fn page(verdicts: &Verdicts, screen: &Screen) -> String {
    let mut out = heading(&verdicts.job, screen);
    out.push('\n');
    let conditions = verdicts.conditions.iter().map(|checked| width(&safe(&checked.condition))).max().unwrap_or(0);
    for checked in &verdicts.conditions {
        let (words, condition) = (checked.verdict.words(), safe(&checked.condition).into_owned());
        let padding = conditions - width(&condition);
        let head = format!("{words:VERDICT$}  {condition}{:padding$}  ", "");
        let lines = prose::hanging(&head, &checked.because, usize::MAX, screen);
        let tone = if checked.verdict == Outcome::Holds { Tone::Good } else { Tone::Alert };
        out.push_str(&lines.replacen(words, &screen.paint(tone, words), 1));
    }
    if !verdicts.incomplete.is_empty() {
        let way_out = if verdicts.incomplete_allowed { "" } else { " (--allow-incomplete judges what there is)" };
        let text = format!("{}.{way_out}", verdicts.incomplete.join("; "));
        out.push('\n');
        out.push_str(&prose::hanging("Incomplete: ", &text, usize::MAX, screen));
    }
    out
}
