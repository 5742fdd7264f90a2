//! The page of `memctl fit`: the memory of the recordings, the forecast for other sizes or changes, the largest size
//! that fits, and the changes that reduce memory below a limit.
//!
//! The page begins with how the recordings were aligned. The forecast follows. The last part states what was not
//! analysed.

use memctl_answers::fit::{Aligned, Checkpoint, Fit, Growing, Held, Holder, Peak, Recording, Scaled, Under, Without};
use memctl_answers::naming::{name_of, place};
use memctl_model::HumanBytes;

use super::{Page, prose};
use crate::render::screen::{Screen, Tone};
use crate::render::table::{Table, left, right};
use crate::render::text::{count, plural, safe};

/// Maximum number of rows of a table of the peak. The data formats have more rows.
const ROWS: usize = 10;

impl Page for Fit {
    fn page(&self, screen: &Screen) -> String {
        page(self, screen)
    }
}

/// The page's text.
#[must_use]
pub fn page(answer: &Fit, screen: &Screen) -> String {
    let mut out: String = answer.recordings.iter().map(|it| recorded(it, screen)).collect();
    out.push_str(&answer.aligned.as_ref().map(|it| paragraph(&aligned(it), screen)).unwrap_or_default());
    out.push_str(&answer.scaled.as_ref().map(|it| paragraph(&scaled(it), screen)).unwrap_or_default());
    for growing in &answer.growing {
        out.push_str(&changed(&grows(growing, answer), screen));
    }
    out.push_str(&answer.without.as_ref().map(|it| changed(&without(it), screen)).unwrap_or_default());
    out.push_str(&answer.checkpoint.as_ref().map(|it| changed(&checkpoint(it), screen)).unwrap_or_default());
    out.push_str(&answer.peak.as_ref().map(|it| anatomy(it, screen)).unwrap_or_default());
    out.push_str(&answer.under.as_ref().map(|it| under(it, screen)).unwrap_or_default());
    if !answer.at.is_empty() {
        out.push('\n');
        out.push_str(&sizes(answer, screen));
    }
    if let Some(memory) = answer.device_memory_bytes.filter(|_| !answer.at.is_empty()) {
        let memory = HumanBytes::of(memory);
        let (text, tone) = match answer.largest_that_fits {
            Some(size) => (format!("The largest that fits in {memory}: {size}."), Tone::Good),
            None => (format!("No size fits in {memory}."), Tone::Alert),
        };
        out.push_str(&format!("\n{}\n", screen.paint(tone, &screen.wrapped(&text, 0))));
    }
    out.push_str("\nNot looked at:\n");
    for text in &answer.not_looked_at {
        for line in prose::wrap(text, prose::columns(screen).saturating_sub(2)) {
            out.push_str(&format!("  {line}\n"));
        }
    }
    out
}

fn paragraph(text: &str, screen: &Screen) -> String {
    prose::wrap(text, prose::columns(screen)).iter().map(|line| format!("{line}\n")).collect()
}

fn changed(text: &str, screen: &Screen) -> String {
    format!("\n{}", paragraph(text, screen))
}

fn aligned(aligned: &Aligned) -> String {
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
    text
}

fn scaled(scaled: &Scaled) -> String {
    format!(
        "One recording only, which is weaker than two: of {} {} are taken to stay the same ({}), {} to grow in proportion ({}); \
         {} of them are in doubt ({}).",
        plural(scaled.requests, "request"),
        count(scaled.fixed),
        HumanBytes::of(scaled.fixed_bytes),
        count(scaled.proportional),
        HumanBytes::of(scaled.proportional_bytes),
        count(scaled.doubtful),
        HumanBytes::of(scaled.doubtful_bytes),
    )
}

fn without(without: &Without) -> String {
    let Without { site, places: _, requests, peak_allocated_bytes, peak_reserved_bytes, .. } = without;
    format!(
        "Without {} of {}: {} allocated at most ({}), {} reserved ({}).",
        plural(*requests, "request"),
        safe(site),
        HumanBytes::of(*peak_allocated_bytes),
        saved(without.saves_allocated_bytes),
        HumanBytes::of(*peak_reserved_bytes),
        saved(without.saves_reserved_bytes),
    )
}

fn checkpoint(checkpoint: &Checkpoint) -> String {
    let Checkpoint { modules, calls, peak_allocated_bytes, peak_reserved_bytes, .. } = checkpoint;
    format!(
        "With {} of {} checkpointed: {} allocated at most ({}), {} reserved ({}). {:.0} % of what forward passes ask for is \
         asked for again.",
        plural(*calls, "call"),
        if modules == "all" { "all blocks".into() } else { safe(modules) },
        HumanBytes::of(*peak_allocated_bytes),
        saved(checkpoint.saves_allocated_bytes),
        HumanBytes::of(*peak_reserved_bytes),
        saved(checkpoint.saves_reserved_bytes),
        100.0 * checkpoint.repeated_share,
    )
}

fn saved(bytes: i64) -> String {
    let size = HumanBytes::of(bytes.unsigned_abs());
    if bytes < 0 { format!("{size} more") } else { format!("{size} less") }
}

/// Live memory at the peak.
fn anatomy(peak: &Peak, screen: &Screen) -> String {
    let allocated = HumanBytes::of(peak.allocated_bytes);
    let mut text = format!(
        "At the peak {allocated} are allocated; {} are reserved at most.",
        HumanBytes::of(peak.peak_reserved_bytes)
    );
    if peak.failed_bytes > 0 {
        let failed = HumanBytes::of(peak.failed_bytes);
        text.push_str(&format!(" Among what is allocated are the {failed} of a request that failed."));
    }
    let mut out = format!("\n{}", paragraph(&text, screen));
    for (title, held) in [("CLASS", &peak.classes), ("MODULE", &peak.modules)] {
        let mut table = Table::new(&[left(title, 0), right("BLOCKS", 2), right("BYTES", 1)]);
        for Held { name, blocks, bytes } in held.iter().take(ROWS) {
            // The names of classes are memctl's, so they are shown as words. The names of modules are the user's and
            // are not changed.
            let name = name.as_deref().unwrap_or("(none)");
            let name = if title == "CLASS" { name.replace('_', " ") } else { name.to_owned() };
            table.row(vec![name, count(*blocks), HumanBytes::of(*bytes).to_string()]);
        }
        out.push_str(&format!("\n{}", table.show(screen)));
    }
    let mut table = Table::new(&[left("SITE", 0), left("CLASS", 2), right("BLOCKS", 3), right("BYTES", 1)]);
    for holder in peak.sites.iter().take(ROWS) {
        let class = holder.class.replace('_', " ");
        table.row(vec![named(holder), class, count(holder.blocks), HumanBytes::of(holder.bytes).to_string()]);
    }
    out.push_str(&format!("\n{}", table.show(screen)));
    out
}

fn named(holder: &Holder) -> String {
    holder.site.as_ref().map_or_else(|| "(no stack)".to_owned(), place)
}

/// The changes that reduce memory below the limit.
fn under(under: &Under, screen: &Screen) -> String {
    let limit = HumanBytes::of(under.limit_bytes);
    let mut out = String::from("\n");
    if under.excess_bytes == 0 {
        out.push_str(&paragraph(&format!("The peak is under {limit} as it is."), screen));
    } else {
        let excess = HumanBytes::of(under.excess_bytes);
        out.push_str(&paragraph(
            &format!(
                "The peak is {excess} above {limit}. What must go, each time the largest at the peak of what is left:"
            ),
            screen,
        ));
        for gone in &under.must_go {
            let text = format!(
                "{} ({}, {}, {}): then {} reserved",
                named(&gone.holder),
                gone.holder.class.replace('_', " "),
                plural(gone.holder.blocks, "block"),
                HumanBytes::of(gone.holder.bytes),
                HumanBytes::of(gone.peak_reserved_bytes),
            );
            out.push_str(&format!("  {}\n", screen.wrapped(&text, 2)));
        }
        if !under.is_enough {
            out.push_str(&paragraph("Even that is not enough.", screen));
        }
    }
    out.push_str(&under.first.as_ref().map(|it| changed(it, screen)).unwrap_or_default());
    let none = if under.measures.is_empty() { " none." } else { "" };
    out.push_str(&format!("\nMeasures, each by itself:{none}\n"));
    for measure in &under.measures {
        let mark = if measure.is_enough { "enough" } else { "not enough" };
        let (peak, saves) = (HumanBytes::of(measure.peak_reserved_bytes), saved(measure.saves_bytes));
        let text = format!("{}: {peak} reserved, {saves}, {mark}", safe(&measure.what));
        let text = format!("  {}", screen.wrapped(&text, 2));
        let text = if measure.is_enough { screen.paint(Tone::Good, &text) } else { text };
        out.push_str(&format!("{text}\n"));
        for line in prose::wrap(&measure.arithmetic, prose::columns(screen).saturating_sub(4)) {
            out.push_str(&format!("    {line}\n"));
        }
    }
    out
}

/// The memory of a recording, and of its replay if that differs.
fn recorded(recording: &Recording, screen: &Screen) -> String {
    let at = recording.size.map_or_else(String::new, |size| format!(" at {size}"));
    let text = format!(
        "{}{at}, {}: {} allocated at most, {} reserved",
        safe(&recording.job),
        name_of(&recording.process, recording.rank),
        HumanBytes::of(recording.peak_allocated_bytes),
        HumanBytes::of(recording.peak_reserved_bytes),
    );
    let mut out = format!("{}\n", screen.wrapped(&text, 0));
    if let Some(why) = recording.difference() {
        let replayed = format!(
            "Replayed without a change it is {} allocated at most, {} reserved, which the figures below rest on. {why}",
            HumanBytes::of(recording.replayed.peak_allocated_bytes),
            HumanBytes::of(recording.replayed.peak_reserved_bytes),
        );
        for line in prose::wrap(&replayed, prose::columns(screen).saturating_sub(2)) {
            out.push_str(&format!("  {line}\n"));
        }
    }
    out
}

/// For how long the figures are valid if memory grows.
fn grows(growing: &Growing, answer: &Fit) -> String {
    let Growing { job, sentence, steps, is_bounded, .. } = growing;
    let job = if answer.recordings.len() > 1 { format!("In {}: ", safe(job)) } else { String::new() };
    let recorded = match steps {
        0 => "for a run as long as the recorded one".to_owned(),
        steps => format!("for the {} that were recorded", plural(*steps, "step")),
    };
    let longer = if *is_bounded { "until it is full, a longer run holds more" } else { "a longer run holds more" };
    let larger = match answer.at.is_empty() {
        true => "",
        false => " What each step adds is scaled like all other memory: at a larger size it may grow faster.",
    };
    format!("{job}{sentence} The figures here are {recorded}: {longer}.{larger}")
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
            // The lower end of the interval fits, so neither is promised.
            Some(false) if answer.device_memory_bytes.is_some_and(|memory| at.low <= memory) => ("unsure", None),
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

#[cfg(test)]
mod tests {
    use memctl_answers::fit::{Measure, Recording, Replayed};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn answer() -> Fit {
        let replayed = Replayed {
            peak_reserved_bytes: 1040 * MIB,
            peak_allocated_bytes: 1013 * MIB,
            failed_requests: 1,
            failed_bytes: 188 * MIB,
            began_with_bytes: 0,
        };
        let recording = Recording {
            job: "oom".to_owned(),
            attempt: 1,
            size: None,
            rank: 0,
            process: String::new(),
            device: 0,
            peak_reserved_bytes: 964 * MIB,
            peak_allocated_bytes: 861 * MIB,
            exact: true,
            replayed,
        };
        Fit::new(vec![recording], None)
    }

    fn narrow() -> Screen {
        Screen { columns: Some(80), unicode: true, colour: false }
    }

    #[test]
    fn a_replay_that_differs_is_shown_with_its_reason() {
        let text = page(&answer(), &narrow());
        assert!(text.contains("861 MiB allocated at most, 964 MiB reserved\n  Replayed without a change"), "{text}");
        assert!(text.replace("\n  ", " ").contains("the request for 188 MiB that failed"), "{text}");
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    }

    #[test]
    fn what_grows_is_said_before_the_figures_and_measures_keep_their_indentation() {
        let mut answer = answer();
        let sentence = "Live memory has grown 241 MiB in 4 s.".to_owned();
        let advice = Some("Give it a bound.".to_owned());
        answer.growing =
            vec![Growing { job: "oom".to_owned(), sentence, steps: 240, is_leak: true, is_bounded: false, advice }];
        let measure = Measure {
            kind: "optimizer_sharded".into(),
            what: "optimizer state sharded over 2 ranks, which is a name that has to be wrapped".to_owned(),
            peak_reserved_bytes: MIB,
            saves_bytes: 0,
            is_enough: true,
            arithmetic: "counted".to_owned(),
        };
        answer.under = Some(Under {
            limit_bytes: MIB,
            peak_reserved_bytes: 2 * MIB,
            excess_bytes: MIB,
            must_go: Vec::new(),
            is_enough: false,
            first: Some("Remove the leak first.".to_owned()),
            measures: vec![measure],
        });
        let text = page(&answer, &narrow());
        assert!(text.replace('\n', " ").contains("in 4 s. The figures here are for the 240 steps that were recorded"));
        let (first, measures) = (text.find("Remove the leak first."), text.find("Measures, each by itself:"));
        assert!(first.is_some() && first < measures, "{text}");
        let measures = &text[measures.unwrap_or_default()..];
        assert!(measures.lines().skip(1).take(3).all(|line| line.starts_with("  ")), "{text}");
    }
}
