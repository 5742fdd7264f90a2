//! The page of `memctl timeline`: one small plot for each rank and device. All plots have the same scale. The epochs
//! are below them.
//!
//! All epochs have the same width, and within an epoch the axis is time. So the ranks are aligned even if their clocks
//! differ, and a long start does not narrow the rest. A job with one epoch is drawn over its time.

use std::collections::HashMap;

use memctl_answers::format::time;
use memctl_answers::naming::{command, name_of};
use memctl_answers::timeline::{Point, RankTimeline, Timeline};
use memctl_model::{HumanBytes, JobState};

use super::{Page, completeness, heading};
use crate::render::plot::{Column, MARGIN, Tick, legend, plot};
use crate::render::screen::{Screen, Tone};
use crate::render::text::{plural, rank_list};

/// Number of columns of a plot if the screen's width is unknown, and the maximum number of columns.
const COLUMNS_DEFAULT: usize = 90;
const COLUMNS_MAX: usize = 180;
/// Maximum number of plots on one page, unless the user chooses ranks.
const PLOTS_SHOWN: usize = 8;
/// If there are at most this many plots, they are tall; otherwise they are flat.
const TALL_PLOTS: usize = 2;
/// Minimum number of columns between two labels of the axis.
const TICK_COLUMNS: usize = 6;

/// The number of a plot's columns on this screen, which determines the request to the daemon.
#[must_use]
pub fn columns(screen: &Screen) -> usize {
    screen.columns.map_or(COLUMNS_DEFAULT, |columns| columns.saturating_sub(MARGIN).clamp(20, COLUMNS_MAX))
}

impl Page for Timeline {
    fn page(&self, screen: &Screen) -> String {
        page(self, screen)
    }
}

/// The page's text.
#[must_use]
pub fn page(timeline: &Timeline, screen: &Screen) -> String {
    let mut out = heading(&timeline.job, screen);
    let ranks: Vec<&RankTimeline> = timeline.ranks.iter().filter(|rank| !rank.points.is_empty()).collect();
    if ranks.is_empty() {
        let nothing = "No allocator event of this part of the job is stored, so there is nothing to plot.";
        out.push_str(&format!("\n{}\n", screen.fit(nothing, 0)));
        if !timeline.completeness.exact {
            out.push_str(&completeness(&timeline.completeness, false, screen));
        }
        return out;
    }
    let most = if timeline.chosen { ranks.len() } else { PLOTS_SHOWN };
    let shown = &ranks[..ranks.len().min(most)];
    let columns = columns(screen);
    let axis = Axis::new(shown, columns);
    let top = shown.iter().flat_map(|rank| &rank.points).map(highest).max().unwrap_or(0);
    let rows = if shown.len() > TALL_PLOTS { 6 } else { 10 };
    for rank in shown {
        let drawn = axis.columns_of(rank);
        out.push_str(&format!("\n{}\n", title(rank, timeline, screen)));
        out.push_str(&plot(&drawn, top, rows, &axis.ticks(rank), screen));
    }
    out.push_str(&format!(
        "{:MARGIN$}{}\n",
        "",
        screen.paint(Tone::Faint, &screen.fit(&format!("{}   {}", axis.name(), legend(screen)), MARGIN))
    ));
    if ranks.len() > shown.len() {
        let hidden = &ranks[shown.len()..];
        // A rank has a plot for each of its devices.
        let others: Vec<u32> = hidden.iter().map(|rank| rank.rank).collect();
        let noun = if others.first() == others.last() { "rank" } else { "ranks" };
        let text = format!(
            "{} not shown ({noun} {}): select with --rank",
            plural(hidden.len() as u64, "more plot"),
            rank_list(&others)
        );
        out.push_str(&format!("\n{}\n", screen.fit(&text, 0)));
    }
    out.push('\n');
    out.push_str(&completeness(&timeline.completeness, timeline.job.state == JobState::Running, screen));
    if let Some(hint) = &timeline.hint {
        let sites = command("sites", &timeline.job, "--peak", hint);
        out.push_str(&super::next(&[(sites, "what was live at the peak")], screen));
    }
    out
}

fn highest(point: &Point) -> u64 {
    point.peak_allocated_bytes.max(point.peak_reserved_bytes).max(point.reserved_bytes)
}

/// If events have expired, the title does not call the highest value a peak, because the real peak may be among these
/// events.
fn title(rank: &RankTimeline, timeline: &Timeline, screen: &Screen) -> String {
    let peak = |read: fn(&Point) -> u64| HumanBytes::of(rank.points.iter().map(read).max().unwrap_or(0));
    let end = rank.points.last().map_or(0, |point| point.allocated_bytes);
    let peak_is = if timeline.completeness.events_expired > 0 { "highest of what is still stored:" } else { "peak" };
    let text = format!(
        "{peak_is} {} allocated, {} reserved; {} at the end",
        peak(|point| point.peak_allocated_bytes),
        peak(|point| point.peak_reserved_bytes),
        HumanBytes::of(end)
    );
    let mut name = name_of(&rank.process, rank.rank);
    let is_sibling = |other: &RankTimeline| {
        (&other.process, other.rank) == (&rank.process, rank.rank) && other.device != rank.device
    };
    if timeline.ranks.iter().any(is_sibling) {
        name.push_str(&format!(", device {}", rank.device));
    }
    format!("{}  {}", screen.paint(Tone::Strong, &name), screen.fit(&text, name.len() + 2))
}

/// The column of a moment.
struct Axis {
    columns: usize,
    first_epoch: u32,
    last_epoch: u32,
}

impl Axis {
    fn new(ranks: &[&RankTimeline], columns: usize) -> Self {
        let epochs = ranks.iter().flat_map(|rank| &rank.points).map(|point| point.epoch);
        Self { columns, first_epoch: epochs.clone().min().unwrap_or(0), last_epoch: epochs.max().unwrap_or(0) }
    }

    fn epochs(&self) -> u64 {
        u64::from(self.last_epoch - self.first_epoch) + 1
    }

    fn name(&self) -> &'static str {
        if self.epochs() > 1 { "epochs" } else { "time" }
    }

    /// First and last time of each epoch.
    fn spans(rank: &RankTimeline) -> HashMap<u32, (u64, u64)> {
        let mut spans: HashMap<u32, (u64, u64)> = HashMap::new();
        for point in &rank.points {
            let span = spans.entry(point.epoch).or_insert((point.first_at.0, point.last_at.0));
            *span = (span.0.min(point.first_at.0), span.1.max(point.last_at.0));
        }
        spans
    }

    fn column(&self, epoch: u32, time_ns: u64, (first, last): (u64, u64)) -> usize {
        let within = time_ns.saturating_sub(first) as f64 / last.saturating_sub(first).max(1) as f64;
        // The value is just below 1, so that the last moment of an epoch is not drawn in the next epoch.
        let at = f64::from(epoch - self.first_epoch) + within.clamp(0.0, 0.999_999);
        ((at / self.epochs() as f64 * self.columns as f64) as usize).min(self.columns.saturating_sub(1))
    }

    fn columns_of(&self, rank: &RankTimeline) -> Vec<Option<Column>> {
        let spans = Self::spans(rank);
        let mut columns: Vec<Option<Column>> = vec![None; self.columns];
        // The level at the end of each column. Columns without points repeat the level before them.
        let mut ends: Vec<Option<(u64, u64)>> = vec![None; self.columns];
        for point in &rank.points {
            let Some(&span) = spans.get(&point.epoch) else { continue };
            let (from, to) =
                (self.column(point.epoch, point.first_at.0, span), self.column(point.epoch, point.last_at.0, span));
            for at in from..=to.max(from) {
                let column = columns[at].get_or_insert(Column { floor: u64::MAX, peak: 0, reserved: 0 });
                column.floor = column.floor.min(point.min_allocated_bytes.min(point.allocated_bytes));
                column.peak = column.peak.max(point.peak_allocated_bytes);
                column.reserved = column.reserved.max(point.peak_reserved_bytes);
                ends[at] = Some((point.allocated_bytes, point.reserved_bytes));
            }
        }
        let last = columns.iter().rposition(Option::is_some).unwrap_or(0);
        let mut level: Option<(u64, u64)> = None;
        for (column, end) in columns.iter_mut().zip(ends).take(last) {
            if column.is_none() {
                *column = level.map(|(allocated, reserved)| Column { floor: allocated, peak: allocated, reserved });
            }
            level = end.or(level);
        }
        columns
    }

    fn ticks(&self, rank: &RankTimeline) -> Vec<Tick> {
        let epochs = self.epochs();
        if epochs > 1 {
            let most = (self.columns / TICK_COLUMNS).max(1) as u64;
            let step = epochs.div_ceil(most).max(1);
            let tick = |index: u64| {
                let offset = index * step;
                let column = (offset as u128 * self.columns as u128).div_ceil(u128::from(epochs)) as usize;
                Tick { column, label: (u64::from(self.first_epoch) + offset).to_string() }
            };
            return (0..epochs.div_ceil(step)).map(tick).collect();
        }
        let first = rank.points.iter().map(|point| point.first_at.0).min().unwrap_or(0);
        let last = rank.points.iter().map(|point| point.last_at.0).max().unwrap_or(first);
        let tick = |quarter: u64| Tick {
            column: (quarter as usize * self.columns.saturating_sub(1)) / 4,
            label: time::duration((u128::from(last - first) * u128::from(quarter) / 4) as u64),
        };
        // A label at the right end would be wider than the plot.
        (0..4).map(tick).collect()
    }
}

#[cfg(test)]
mod tests {
    use memctl_answers::format::time::Time;

    use super::*;

    fn timeline(ranks: u32, devices: u32, chosen: bool) -> String {
        let of = |rank, device| RankTimeline {
            rank,
            device,
            points: vec![Point { last_at: Time(9), ..Point::default() }],
            process: format!("rank {rank}"),
            ..RankTimeline::default()
        };
        let ranks = (0..ranks).flat_map(|rank| (0..devices).map(move |device| of(rank, device))).collect();
        let screen = Screen { columns: Some(100), unicode: true, colour: false };
        page(&Timeline { ranks, chosen, ..Timeline::default() }, &screen)
    }

    #[test]
    fn plots_are_counted_and_named_by_device_and_chosen_ranks_are_all_drawn() {
        let some = timeline(8, 2, false);
        assert!(some.contains("8 more plots not shown (ranks 4-7): select with --rank"), "{some}");
        assert!(some.contains("\nrank 3, device 1  peak"), "{some}");
        let all = timeline(16, 1, true);
        assert!(all.contains("\nrank 15  peak") && !all.contains("not shown"), "{all}");
    }
}
