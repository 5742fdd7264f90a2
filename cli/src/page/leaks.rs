//! The page of `memctl leaks`: each finding about growth in full. If there is none, the page states this, and what was
//! analysed.

use memctl_answers::leaks::Leaks;
use memctl_answers::naming::command;
use memctl_model::JobState;

use super::{Page, completeness, finding, heading, judged, next};
use crate::render::screen::Screen;
use crate::render::text::plural;

impl Page for Leaks {
    fn page(&self, screen: &Screen) -> String {
        page(self, screen)
    }
}

/// The page's text.
#[must_use]
pub fn page(leaks: &Leaks, screen: &Screen) -> String {
    let mut out = judged::headline(leaks.verdict.as_ref(), &leaks.scope, screen);
    out.push_str(&heading(&leaks.job, screen));
    for found in &leaks.findings {
        out.push('\n');
        out.push_str(&finding::full(found, screen));
    }
    out.push('\n');
    if leaks.findings.is_empty() {
        out.push_str(&judged::no_findings(leaks.verdict.as_ref(), &leaks.findings, &leaks.scope, screen));
    } else {
        out.push_str(&judged::not_judged(&leaks.scope, screen));
    }
    if leaks.suspected_left_out > 0 {
        let suspected = plural(leaks.suspected_left_out as u64, "suspected finding");
        out.push_str(&format!("{suspected} not shown; growth that is suspected may be harmless (--all shows it).\n"));
    }
    out.push_str(&completeness(&leaks.completeness, leaks.job.state == JobState::Running, screen));
    if let (Some(hint), Some(_)) = (&leaks.report.hint, leaks.findings.first()) {
        let commands = [
            (command("diagnose", &leaks.job, "", hint), "what to change, and how to prove it"),
            (command("sites", &leaks.job, "", hint), "whose memory is live at the last epoch's end"),
        ];
        out.push_str(&next(&commands, screen));
    }
    out
}
