//! Memory over time on the page: for each rank what was allocated, what never came back, what was reserved, the device's
//! limit, epochs as bands, and findings and failed requests as marks that lead to their sentence.
//!
//! Guarantees: epochs have equal widths and time runs within each, so that ranks line up whatever their clocks say; all
//! plots have one scale; a limit that would flatten them is told instead of drawn.

use std::collections::HashMap;

use memctl_answers::dossier::Dossier;
use memctl_answers::finding::Finding;
use memctl_answers::format::html::escape;
use memctl_answers::format::time;
use memctl_answers::naming::name_of;
use memctl_answers::oom::Failed;
use memctl_answers::report::Rank;
use memctl_answers::timeline::{Point, RankTimeline};
use memctl_model::{FindingKind, HumanBytes};

use super::verdict::{FINDINGS_SHOWN, sign};
use super::{absent, along};
use crate::render::text::{capital, plural};

/// Plots on the page.
const PLOTS_SHOWN: usize = 8;
/// Height of a plot, and what is above and below its lines.
const HEIGHT: usize = 200;
const ABOVE: usize = 18;
const BELOW: usize = 20;
/// Labels along the axis.
const TICKS: u64 = 10;
/// A limit up to so many times the highest level is drawn.
const LIMIT_TIMES: u64 = 4;
/// The plot's own units, in both directions.
const UNITS: u32 = 1000;
/// Signs that are nearer than so many units stand beside each other, so far apart.
const NEAR: u32 = 25;
const SIGN: usize = 24;

/// See the module.
#[must_use]
pub fn section(dossier: &Dossier) -> String {
    let course = match &dossier.parts.course {
        Ok(course) => course,
        Err(reason) => return absent(reason),
    };
    let with_points: Vec<&RankTimeline> = course.ranks.iter().filter(|rank| !rank.points.is_empty()).collect();
    if with_points.is_empty() {
        return absent("no allocator event of this part of the job is stored");
    }
    let shown = &with_points[..with_points.len().min(PLOTS_SHOWN)];
    let levels = shown.iter().flat_map(|rank| &rank.points).map(highest).max().unwrap_or(0).max(1);
    let limits = shown.iter().filter_map(|of| limit_of(dossier, of));
    let top = limits.filter(|limit| *limit <= levels.saturating_mul(LIMIT_TIMES)).max().unwrap_or(0).max(levels);
    let axis = Axis::new(shown);
    let mut out = legend(shown.iter().any(|of| limit_of(dossier, of).is_some_and(|limit| limit <= top)));
    for rank in shown {
        out.push_str(&plot(dossier, rank, &axis, top));
    }
    let reported = dossier.note.report.ranks.len();
    if reported > shown.len() {
        let text = "Not drawn here: {}. Ranks that failed or are told apart are drawn first.";
        out.push_str(&format!(
            "<p>{}</p>\n",
            text.replace("{}", &plural((reported - shown.len()) as u64, "more rank"))
        ));
    }
    out
}

fn rank_of<'d>(dossier: &'d Dossier, of: &RankTimeline) -> Option<&'d Rank> {
    let is_it = |rank: &&Rank| (rank.rank, rank.device, &rank.process) == (of.rank, of.device, &of.process);
    dossier.note.report.ranks.iter().find(is_it)
}

fn limit_of(dossier: &Dossier, of: &RankTimeline) -> Option<u64> {
    rank_of(dossier, of)?.device_total_bytes
}

fn highest(point: &Point) -> u64 {
    point.peak_allocated_bytes.max(point.peak_reserved_bytes).max(point.reserved_bytes)
}

fn legend(with_limit: bool) -> String {
    let keys = [
        ("key-envelope", "allocated, lowest to highest"),
        ("key-floor", "lowest from here on: what never came back"),
        ("key-reserved", "reserved"),
        ("key-limit", "the device's limit"),
    ];
    let key = |(class, name): (&str, &str)| {
        format!(
            "<li><svg width=\"12\" height=\"12\" aria-hidden=\"true\"><rect class=\"{class}\" width=\"12\" height=\"12\"/></svg>{name}</li>"
        )
    };
    let keys: String = keys.into_iter().filter(|(class, _)| with_limit || *class != "key-limit").map(key).collect();
    format!("<ul class=\"legend\">{keys}</ul>\n")
}

/// Where a moment stands between left and right.
struct Axis {
    first_epoch: u32,
    epochs: u64,
}

impl Axis {
    fn new(ranks: &[&RankTimeline]) -> Self {
        let epochs = || ranks.iter().flat_map(|rank| &rank.points).map(|point| point.epoch);
        let first_epoch = epochs().min().unwrap_or(0);
        Self { first_epoch, epochs: u64::from(epochs().max().unwrap_or(0) - first_epoch) + 1 }
    }

    /// In units from the left.
    fn at(&self, epoch: u32, time_ns: u64, spans: &Spans) -> f64 {
        let (first, last) = spans.get(&epoch).copied().unwrap_or_default();
        let within = time_ns.saturating_sub(first) as f64 / last.saturating_sub(first).max(1) as f64;
        self.units(f64::from(epoch.saturating_sub(self.first_epoch)) + within.clamp(0.0, 1.0))
    }

    /// In units from the left, so many epochs on.
    fn units(&self, epochs: f64) -> f64 {
        f64::from(UNITS) * epochs / self.epochs as f64
    }

    /// Every second epoch, so that each is seen.
    fn bands(&self) -> String {
        if self.epochs > u64::from(UNITS) {
            return String::new();
        }
        let band = |at: u64| {
            let (x, width) = (self.units(at as f64), self.units(1.0));
            format!("<rect class=\"band\" x=\"{x:.2}\" y=\"0\" width=\"{width:.2}\" height=\"{UNITS}\"/>")
        };
        (1..self.epochs).step_by(2).map(band).collect()
    }

    fn ticks(&self, spans: &Spans) -> String {
        let y = HEIGHT - BELOW / 3;
        let tick = |part: u64, whole: u64, text: &str| {
            format!("<text class=\"tick\" x=\"{}\" y=\"{y}\" dx=\"3\">{text}</text>", along(part, whole))
        };
        if self.epochs > 1 {
            let step = self.epochs.div_ceil(TICKS).max(1);
            let label = |at: u64| {
                let epoch = u64::from(self.first_epoch) + at;
                if at == 0 { format!("epoch {epoch}") } else { epoch.to_string() }
            };
            // Beside the first one's word there is no room for the second.
            let shown = (0..self.epochs).step_by(step as usize);
            return shown.map(|at| tick(at, self.epochs, &label(at))).collect();
        }
        let (first, last) = spans.values().next().copied().unwrap_or_default();
        let quarter = |of: u64| time::duration((u128::from(last - first) * u128::from(of) / 4) as u64);
        (0..4).map(|of| tick(of, 4, &quarter(of))).collect()
    }
}

/// First and last time of each epoch of a rank.
type Spans = HashMap<u32, (u64, u64)>;

fn spans(rank: &RankTimeline) -> Spans {
    let mut spans = Spans::new();
    for point in &rank.points {
        let span = spans.entry(point.epoch).or_insert((point.first_ns, point.last_ns));
        *span = (span.0.min(point.first_ns), span.1.max(point.last_ns));
    }
    spans
}

fn plot(dossier: &Dossier, rank: &RankTimeline, axis: &Axis, top: u64) -> String {
    let (spans, told) = (spans(rank), rank_of(dossier, rank));
    let y = |bytes: u64| f64::from(UNITS) * (1.0 - bytes as f64 / top as f64);
    let lines = Lines { axis, spans: &spans, y: &y };
    let mut drawn = axis.bands();
    drawn.push_str(&format!("<path class=\"envelope\" d=\"{}\"/>", lines.envelope(&rank.points)));
    // After the last epoch everything is torn down, which says nothing of what came back.
    let until = told.and_then(|told| told.epoch_ends.last()).map_or(u64::MAX, |end| end.time_ns);
    drawn.push_str(&format!("<path class=\"floor\" d=\"{}\"/>", lines.floor(&rank.points, until)));
    drawn.push_str(&format!("<path class=\"reserved\" d=\"{}\"/>", lines.reserved(&rank.points)));
    let limit = told.and_then(|told| told.device_total_bytes);
    if let Some(limit) = limit.filter(|limit| *limit <= top) {
        drawn.push_str(&format!("<path class=\"limit\" d=\"M0 {0:.1}H{UNITS}\"/>", y(limit)));
    }
    let marks = marks(dossier, rank, &lines);
    let title = title(dossier, rank, told);
    let tall = HEIGHT - ABOVE - BELOW;
    format!(
        "<figure>\n<figcaption>{title}</figcaption>\n<svg class=\"course\" role=\"group\" aria-label=\"{title}\" width=\"100%\" height=\"{HEIGHT}\">\
         <svg y=\"{ABOVE}\" width=\"100%\" height=\"{tall}\" viewBox=\"0 0 {UNITS} {UNITS}\" preserveAspectRatio=\"none\" aria-hidden=\"true\">{drawn}</svg>\
         <text class=\"scale\" x=\"4\" y=\"{}\">{}</text>{}{marks}</svg>\n</figure>\n",
        ABOVE + 12,
        HumanBytes::of(top),
        axis.ticks(&spans)
    )
}

fn title(dossier: &Dossier, rank: &RankTimeline, told: Option<&Rank>) -> String {
    let peak = |read: fn(&Point) -> u64| HumanBytes::of(rank.points.iter().map(read).max().unwrap_or(0));
    let peak_is = if dossier.note.completeness.events_expired > 0 { "highest still stored:" } else { "peak" };
    let mut text = format!(
        "{}: {peak_is} {} allocated, {} reserved",
        capital(&name_of(&rank.process, rank.rank)),
        peak(|point| point.peak_allocated_bytes),
        peak(|point| point.peak_reserved_bytes)
    );
    match told.and_then(|told| told.device_total_bytes) {
        Some(limit) => text.push_str(&format!(", of {} on the device", HumanBytes::of(limit))),
        None => text.push_str("; the device's size was not recorded"),
    }
    if told.is_some_and(|told| !told.completeness.exact) {
        text.push_str("; NOT EXACT");
    }
    escape(&text)
}

/// Levels as paths.
struct Lines<'a> {
    axis: &'a Axis,
    spans: &'a Spans,
    y: &'a dyn Fn(u64) -> f64,
}

impl Lines<'_> {
    fn x(&self, point: &Point) -> (f64, f64) {
        (self.axis.at(point.epoch, point.first_ns, self.spans), self.axis.at(point.epoch, point.last_ns, self.spans))
    }

    /// Up over the highest levels and back over the lowest.
    fn envelope(&self, points: &[Point]) -> String {
        let (mut over, mut back) = (String::new(), Vec::new());
        for point in points {
            let ((from, to), high) = (self.x(point), (self.y)(point.peak_allocated_bytes));
            let sign = if over.is_empty() { 'M' } else { 'L' };
            over.push_str(&format!("{sign}{from:.1} {high:.1}H{to:.1}"));
            let low = (self.y)(point.min_allocated_bytes.min(point.allocated_bytes));
            back.push(format!("L{to:.1} {low:.1}H{from:.1}"));
        }
        back.reverse();
        format!("{over}{}Z", back.concat())
    }

    /// At every time the lowest level from then on: what leaks lifts it.
    fn floor(&self, points: &[Point], until_ns: u64) -> String {
        // The stretch in which it ends may hold the beginning of the teardown.
        let points = match points.partition_point(|point| point.last_ns <= until_ns) {
            0 => points,
            whole => &points[..whole],
        };
        let mut floors: Vec<u64> = points.iter().map(|point| point.min_allocated_bytes).collect();
        let mut lowest = u64::MAX;
        for floor in floors.iter_mut().rev() {
            lowest = lowest.min(*floor);
            *floor = lowest;
        }
        let mut path = String::new();
        for (point, floor) in points.iter().zip(floors) {
            let ((from, to), high) = (self.x(point), (self.y)(floor));
            let sign = if path.is_empty() { format!("M{from:.1} {UNITS}L") } else { "L".to_owned() };
            path.push_str(&format!("{sign}{from:.1} {high:.1}H{to:.1}"));
        }
        if path.is_empty() { path } else { format!("{path}V{UNITS}Z") }
    }

    fn reserved(&self, points: &[Point]) -> String {
        let mut path = String::new();
        for point in points {
            let ((from, to), high) = (self.x(point), (self.y)(point.peak_reserved_bytes));
            let sign = if path.is_empty() { 'M' } else { 'L' };
            path.push_str(&format!("{sign}{from:.1} {high:.1}H{to:.1}"));
        }
        path
    }

    /// The units from the left at which a time stands on this rank.
    fn at_time(&self, points: &[Point], time_ns: u64) -> Option<f64> {
        let behind = points.partition_point(|point| point.first_ns <= time_ns);
        let point = points.get(behind.saturating_sub(1))?;
        Some(self.axis.at(point.epoch, time_ns, self.spans))
    }

    /// The units at which a finding was first seen.
    fn first_seen(&self, points: &[Point], finding: &Finding) -> Option<f64> {
        let seen = &finding.first_seen;
        let by_step = seen
            .step
            .zip(seen.epoch)
            .and_then(|(step, epoch)| points.iter().find(|point| point.epoch == epoch && point.step >= step));
        if let Some(point) = by_step {
            return Some(self.axis.at(point.epoch, point.last_ns, self.spans));
        }
        // Another rank may have another clock: its time counts where it lies in the same epoch.
        let is_within = |time_ns: &u64| {
            let within = |epoch| self.spans.get(&epoch).is_some_and(|(first, last)| (first..=last).contains(&time_ns));
            seen.epoch.is_none_or(within)
        };
        if let Some(time_ns) = seen.time_ns.filter(is_within) {
            return self.at_time(points, time_ns);
        }
        let last = points.iter().rfind(|point| Some(point.epoch) == seen.epoch)?;
        Some(self.axis.at(last.epoch, last.last_ns, self.spans))
    }
}

/// Findings and requests that failed, each leading to what is said of it.
fn marks(dossier: &Dossier, rank: &RankTimeline, lines: &Lines<'_>) -> String {
    let concerns = |finding: &&Finding| match finding.processes.is_empty() {
        true => finding.ranks.contains(&rank.rank),
        false => finding.processes.contains(&rank.process),
    };
    let failed = dossier.parts.failures.as_ref().map(|oom| oom.failures.as_slice()).unwrap_or_default();
    let here =
        |failed: &&Failed| (failed.rank, failed.device, &failed.process) == (rank.rank, rank.device, &rank.process);
    let failed: Vec<&Failed> = failed.iter().filter(here).collect();
    let (mut out, mut places) = (String::new(), Vec::new());
    let shown = dossier.note.findings.iter().take(FINDINGS_SHOWN).enumerate();
    for (at, finding) in shown.filter(|(_, finding)| concerns(finding)) {
        // Each rank has its own moment at which its request failed.
        let own = failed.first().filter(|_| finding.known_kind() == Some(FindingKind::Oom));
        let own = own.and_then(|failed| lines.at_time(&rank.points, failed.time_ns));
        let Some(x) = own.or_else(|| lines.first_seen(&rank.points, finding)) else { continue };
        let (number, sign) = (at + 1, sign(finding.level));
        let beside = room(&mut places, x);
        out.push_str(&mark((x, beside), &format!("#f{number}"), &format!("{sign}{number}"), &finding.title));
    }
    for failed in failed {
        let Some(x) = lines.at_time(&rank.points, failed.time_ns) else { continue };
        let text = format!("A request for {} failed ({})", HumanBytes::of(failed.asked_bytes), failed.cause);
        let beside = room(&mut places, x);
        out.push_str(&mark((x, beside), "#verdict", "✕", &text));
    }
    out
}

/// How many signs stand at a place already.
fn room(places: &mut Vec<f64>, x: f64) -> usize {
    let near = places.iter().filter(|other| (*other - x).abs() < f64::from(NEAR)).count();
    places.push(x);
    near
}

fn mark((x, beside): (f64, usize), link: &str, sign: &str, text: &str) -> String {
    let percent = |x: f64| format!("{:.2}%", 100.0 * x / f64::from(UNITS));
    // At either end a sign would be cut off.
    let (sign_x, x, text) = (percent(x.clamp(14.0, 986.0)), percent(x), escape(text));
    let left = beside * SIGN;
    format!(
        "<a class=\"mark\" href=\"{link}\" aria-label=\"{sign}: {text}\"><title>{text}</title><line x1=\"{x}\" x2=\"{x}\" y1=\"{ABOVE}\" y2=\"{}\"/><text x=\"{sign_x}\" dx=\"-{left}\" y=\"13\" text-anchor=\"middle\">{sign}</text></a>",
        HEIGHT - BELOW
    )
}
