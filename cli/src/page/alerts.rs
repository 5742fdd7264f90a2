//! The pages of `memctl alerts`: alerts with their sentences, silences, and the responses of receivers to a test.

use memctl_answers::alerts::{Alert, AlertedFinding, Alerts, Answers, Phase, Rules, Silences, Watched};
use memctl_answers::format::time::{self, Time};
use memctl_answers::naming::shell_word;
use memctl_model::limits::JOBS_LISTED;

use super::{Page, next, prose};
use crate::render::screen::{Screen, Tone};
use crate::render::table::{Table, left, right};
use crate::render::text::{plural, rank_list, safe};

/// Maximum number of lines about jobs that were not judged. `memctl jobs` lists all of these jobs.
const LINES: usize = 4;

impl Page for Alerts {
    fn page(&self, screen: &Screen) -> String {
        alerts(self, screen)
    }
}

/// The page of alerts.
#[must_use]
pub fn alerts(alerts: &Alerts, screen: &Screen) -> String {
    let mut out = String::new();
    if alerts.alerts.is_empty() {
        out.push_str("No alert.\n");
    } else {
        let mut table = Table::new(&[
            left("STATE", 0),
            left("SEVERITY", 1),
            left("RULE", 0),
            left("JOB", 0),
            left("RANKS", 4),
            right("SINCE", 3),
            left("SILENCED BY", 5),
            left("NOTIFIED", 2),
        ]);
        for alert in &alerts.alerts {
            table.toned(row(alert, alerts.view.now));
        }
        out.push_str(&table.show(screen));
        let firing: Vec<&Alert> = alerts.alerts.iter().filter(|alert| alert.state == Phase::Firing).collect();
        let is_same = |one: &Alert, other: &Alert| one.finding.id == other.finding.id && one.tenant == other.tenant;
        for (at, alert) in firing.iter().enumerate() {
            // A finding that several rules select is shown once.
            if firing[..at].iter().any(|before| is_same(before, alert)) {
                continue;
            }
            let rules: Vec<&str> =
                firing.iter().filter(|other| is_same(other, alert)).map(|other| other.rule.as_str()).collect();
            let rules = if rules.len() > 1 { format!(" ({})", rules.join(", ")) } else { String::new() };
            let line = format!("{}{rules}: {}", alert.address(), alert.finding.title);
            out.push_str(&format!("\n{}\n", screen.wrapped(&safe(&line), 0)));
            let advice = &alert.finding.advice;
            if !advice.is_empty() {
                out.push_str(&format!("  {}\n", screen.paint(Tone::Faint, &screen.wrapped(&safe(advice), 2))));
            }
        }
    }
    if let Some(watched) = &alerts.jobs {
        out.push_str(&looked_at(watched, alerts.alerts.is_empty(), screen));
    }
    for (count, what) in [
        (alerts.refused, "alert was not created because there were too many"),
        (alerts.given_up, "notification was given up"),
    ] {
        if count > 0 {
            let line = format!("Since the daemon started: {count} × {what}.");
            out.push_str(&format!("\n{}\n", screen.paint(Tone::Alert, &screen.wrapped(&line, 0))));
        }
    }
    if let (Some(hint), Some(firing)) =
        (&alerts.view.hint, alerts.alerts.iter().find(|alert| alert.state == Phase::Firing))
    {
        let job = shell_word(&firing.address());
        let with = |line: String| format!("{line}{}{hint}", if hint.is_empty() { "" } else { " " });
        let mut ways = vec![(with(format!("memctl query --job {job}")), "the job's page")];
        if alerts.view.may_silence {
            ways.push((with(format!("memctl alerts silence --job {job} --for 2h")), "no notifications for two hours"));
        }
        out.push_str(&next(&ways, screen));
    }
    out
}

/// How many jobs were analysed for alerts, which were not judged, and which grow for an unknown reason.
fn looked_at(watched: &Watched, none: bool, screen: &Screen) -> String {
    if watched.jobs == 0 {
        return if none { "No job is stored, so nothing was judged.\n".to_owned() } else { String::new() };
    }
    let mut out = String::new();
    if none {
        let jobs = plural(u64::from(watched.jobs), "job");
        let imported = match watched.imported {
            0 => String::new(),
            some => format!(", {some} of them imported; imported jobs raise alerts only where the rules say so"),
        };
        let these = if watched.jobs < JOBS_LISTED { format!("{jobs} stored") } else { format!("The newest {jobs}") };
        out.push_str(&prose::hanging("", &format!("{these}{imported}."), usize::MAX, screen));
    }
    if !watched.not_judged.is_empty() {
        out.push_str(&prose::hanging("Not judged: ", &format!("{}.", watched.not_judged.join(", ")), LINES, screen));
    }
    if !watched.growing.is_empty() {
        let jobs = format!("{}. This raises no alert; `memctl query JOB` says what grows.", watched.growing.join(", "));
        out.push_str(&prose::hanging("Memory grows, cause open: ", &jobs, LINES, screen));
    }
    out
}

fn row(alert: &Alert, now: Time) -> Vec<(String, Option<Tone>)> {
    let tone = match alert.state {
        Phase::Firing => Some(Tone::Alert),
        Phase::Resolved => Some(Tone::Good),
        Phase::Pending => None,
    };
    let AlertedFinding { severity, ranks, rank_count, .. } = &alert.finding;
    let listed = rank_list(ranks);
    let more = if *rank_count as usize > ranks.len() { format!(",… ({rank_count})") } else { String::new() };
    let receivers: Vec<String> = alert
        .receivers
        .iter()
        .map(|it| format!("{} {}", it.receiver, phase_in_words(it.notified, it.last_error.is_some())))
        .collect();
    // The job may have later runs, which resolved the alert.
    let job = match (alert.state, alert.run) {
        (Phase::Resolved, Some(run)) => format!("{}#{run}", alert.job),
        _ => alert.address(),
    };
    vec![
        (alert.state.name().to_owned(), tone),
        (severity.name().to_owned(), None),
        (alert.rule.clone(), Some(Tone::Strong)),
        (job, None),
        (format!("{listed}{more}"), None),
        (time::duration(now.0.saturating_sub(alert.entered().0)), None),
        (alert.silenced_by.clone().unwrap_or_default(), None),
        (receivers.join(", "), None),
    ]
}

const fn phase_in_words(notified: Option<Phase>, failed: bool) -> &'static str {
    match notified {
        _ if failed => "FAILED",
        Some(phase) => phase.name(),
        None => "not yet",
    }
}

impl Page for Silences {
    fn page(&self, screen: &Screen) -> String {
        silences(self, screen)
    }
}

/// The page of silences.
#[must_use]
pub fn silences(silences: &Silences, screen: &Screen) -> String {
    if silences.silences.is_empty() {
        return "No silences.\n".to_owned();
    }
    let mut table = Table::new(&[
        left("ID", 0),
        left("TENANT", 0),
        left("MATCHES", 0),
        right("ENDS IN", 0),
        left("AUTHOR", 1),
        left("COMMENT", 2),
    ]);
    for silence in &silences.silences {
        table.row(vec![
            silence.id.clone(),
            silence.covers().to_owned(),
            silence.matches(),
            time::duration(silence.ends_at.0.saturating_sub(silences.now.0)),
            silence.author.clone().unwrap_or_default(),
            silence.comment.clone().unwrap_or_default(),
        ]);
    }
    table.show(screen)
}

impl Page for Answers {
    fn page(&self, screen: &Screen) -> String {
        answers(self, screen)
    }
}

/// The responses of receivers to a test.
#[must_use]
pub fn answers(answers: &Answers, screen: &Screen) -> String {
    let mut table =
        Table::new(&[left("RECEIVER", 0), left("TYPE", 1), left("RESULT", 0), right("TOOK", 2), left("ANSWER", 0)]);
    for tested in &answers.receivers {
        let (word, tone) = if tested.delivered { ("delivered", Tone::Good) } else { ("FAILED", Tone::Alert) };
        table.toned(vec![
            (tested.receiver.clone(), Some(Tone::Strong)),
            (tested.r#type.clone(), None),
            (word.to_owned(), Some(tone)),
            (time::duration((tested.seconds * 1e9).round() as u64), None),
            (tested.answer.clone(), None),
        ]);
    }
    let mut out = table.show(screen);
    // The reason is shown in full below the table, because the table may have cut it.
    for tested in answers.receivers.iter().filter(|tested| !tested.delivered) {
        out.push_str(&format!("\n{}: {}\n", safe(&tested.receiver), safe(&tested.answer)));
    }
    let failed = answers.receivers.iter().filter(|tested| !tested.delivered).count() as u64;
    if failed > 0 {
        out.push_str(&format!("\n{} failed.\n", plural(failed, "receiver")));
    }
    out
}

impl Page for Rules {
    /// The names of the rules. `memctl alerts rules` prints the TOML file instead of this page.
    fn page(&self, _: &Screen) -> String {
        self.rules.iter().map(|rule| format!("{}\n", safe(&rule.name))).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use memctl_answers::SCHEMA;
    use memctl_answers::alerts::{Receiver, View};
    use memctl_answers::format::id::Id;
    use memctl_model::Severity;

    use super::*;

    pub(crate) fn firing() -> Alert {
        let finding = AlertedFinding {
            id: Id(1),
            kind: "leak".into(),
            severity: Severity::Warning,
            confidence: 1.0,
            ranks: vec![0],
            rank_count: 1,
            all_ranks: true,
            title: "grows".into(),
            explanation: String::new(),
            advice: String::new(),
        };
        Alert {
            id: Id(2),
            rule: "LeakingMemory".into(),
            state: Phase::Firing,
            job: "vit".into(),
            run: Some(1),
            attempt: 0,
            finding,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            since: Time(0),
            fired_at: Some(Time(0)),
            resolved_at: None,
            seen_at: Time(0),
            silenced_by: None,
            receivers: Vec::new(),
            tenant: "default".into(),
        }
    }

    fn page_of(alerts: Vec<Alert>, may_silence: bool) -> String {
        let view = View { now: Time(0), hint: Some("--token-file t".to_owned()), may_silence };
        let alerts = Alerts { schema: SCHEMA, alerts, refused: 0, given_up: 0, jobs: None, view };
        alerts.page(&Screen { columns: Some(80), unicode: true, colour: false })
    }

    #[test]
    fn a_resolved_alert_names_its_run_and_a_narrow_table_shows_who_was_notified() {
        let hook = Receiver {
            receiver: "hook".into(),
            notified: Some(Phase::Resolved),
            notified_at: Some(Time(0)),
            given_up: 0,
            last_error: None,
        };
        let resolved = Alert { state: Phase::Resolved, receivers: vec![hook], ..firing() };
        let silenced = Alert { silenced_by: Some("0123456789abcdef".into()), ..firing() };
        let page = page_of(vec![resolved, silenced], false);
        assert!(page.contains("vit#1") && page.contains("NOTIFIED") && page.contains("hook resolved"), "{page}");
    }

    #[test]
    fn a_finding_that_two_rules_select_is_one_paragraph() {
        let of_rule = |id, rule: &str| Alert { id: Id(id), rule: rule.into(), ..firing() };
        let page = page_of(vec![of_rule(2, "MemoryLeak"), of_rule(3, "OutOfMemoryAhead")], false);
        assert!(page.contains("vit (MemoryLeak, OutOfMemoryAhead): grows"), "{page}");
        assert_eq!(page.matches(": grows").count(), 1, "{page}");
    }

    #[test]
    fn only_who_may_silence_is_shown_how() {
        let page = |may_silence| page_of(vec![firing()], may_silence);
        assert!(page(true).contains("memctl alerts silence --job vit --for 2h --token-file t"), "{}", page(true));
        assert!(page(false).contains("memctl query --job vit") && !page(false).contains("silence"), "{}", page(false));
    }
}
