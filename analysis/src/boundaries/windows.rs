//! Windows: if nothing repeats, a recording is cut by time. If most of its events lie in little time, it is cut by
//! number of events.
//!
//! Guarantees: 24 to 64 windows or none. Each window ends at the lowest live level near its place, so that ends can be
//! compared. Three passes; memory is proportional to the number of windows. A recording with too few events to fill
//! the windows is not cut.

use memctl_model::Event;

use super::rounds::Live;

/// Maximum number of windows.
const WINDOWS: u64 = 64;
/// Minimum events of a window, on average.
const EVENTS_MIN: u64 = 4;
/// Minimum number of windows that hold events for a cut by time.
const BUSY_MIN: usize = 12;

/// The measure of a window.
#[derive(Clone, Copy)]
enum Measure {
    Nanoseconds(u64),
    Events(u64),
}

/// The ends of windows and how they were cut.
pub(super) fn cut<I: Iterator<Item = Event>>(events: &impl Fn() -> I) -> Option<(String, Vec<u64>)> {
    let (mut count, mut first, mut last) = (0_u64, u64::MAX, 0);
    for event in events() {
        (count, first, last) = (count + 1, first.min(event.time_ns), last.max(event.time_ns));
    }
    if count < WINDOWS * EVENTS_MIN {
        return None;
    }
    let wide = round_up((last - first).div_ceil(WINDOWS));
    let mut busy = [false; WINDOWS as usize + 1];
    for event in events() {
        if let Some(busy) = busy.get_mut(((event.time_ns - first) / wide) as usize) {
            *busy = true;
        }
    }
    let by_time = busy.iter().filter(|&&busy| busy).count() >= BUSY_MIN;
    let measure = if by_time { Measure::Nanoseconds(wide) } else { Measure::Events(round_up(count.div_ceil(WINDOWS))) };
    let ends = ends(events(), measure, (first, last));
    Some((measure.words(), ends))
}

/// 1, 2 or 5 times a power of ten, not below `n`.
fn round_up(n: u64) -> u64 {
    let mut power = 1_u64;
    loop {
        for factor in [1, 2, 5] {
            let round = power.saturating_mul(factor);
            if round >= n {
                return round;
            }
        }
        power = power.saturating_mul(10);
    }
}

impl Measure {
    fn width(self) -> u64 {
        match self {
            Self::Nanoseconds(width) | Self::Events(width) => width,
        }
    }

    fn words(self) -> String {
        match self {
            Self::Events(events) => format!("windows of {events} events"),
            Self::Nanoseconds(ns) if ns >= 1_000_000_000 => format!("windows of {} s", ns / 1_000_000_000),
            Self::Nanoseconds(ns) if ns >= 100_000_000 => format!("windows of 0.{} s", ns / 100_000_000),
            Self::Nanoseconds(ns) if ns >= 1_000_000 => format!("windows of {} ms", ns / 1_000_000),
            Self::Nanoseconds(ns) => format!("windows of {} µs", ns.div_ceil(1_000)),
        }
    }
}

/// The lowest point around each place at which a window would end.
fn ends(events: impl Iterator<Item = Event>, measure: Measure, (first, last): (u64, u64)) -> Vec<u64> {
    let (width, mut live) = (measure.width(), Live::default());
    let mut ends: Vec<u64> = Vec::new();
    // The place under examination, the lowest level around it and the time of that level.
    let mut lowest: Option<(u64, i64, u64)> = None;
    for (at, event) in (0_u64..).zip(events) {
        live.note(&event);
        let position = match measure {
            Measure::Nanoseconds(_) => event.time_ns - first,
            Measure::Events(_) => at,
        };
        let place = position.saturating_add(width / 2) / width;
        let near = position.abs_diff(place.saturating_mul(width)) <= width / 4;
        if let Some((before, _, end_ns)) = lowest
            && (!near || before != place)
        {
            ends.push(end_ns);
            lowest = None;
        }
        if near && place > 0 {
            let lower = lowest.is_none_or(|(_, level, _)| live.0 < level);
            if lower {
                lowest = Some((place, live.0, event.time_ns));
            }
        }
    }
    ends.push(last);
    ends.dedup();
    ends
}

#[cfg(test)]
mod tests {
    use super::*;
    use memctl_model::Action;

    fn event(time_ns: u64, action: Action) -> Event {
        Event { time_ns, size: 512, action, ..Event::default() }
    }

    #[test]
    fn widths_are_round() {
        assert_eq!([0, 1, 3, 7, 11, 60].map(round_up), [1, 1, 5, 10, 20, 100]);
        assert_eq!(round_up(u64::MAX), u64::MAX);
        assert_eq!(Measure::Nanoseconds(500_000_000).words(), "windows of 0.5 s");
        assert_eq!(Measure::Nanoseconds(20_000_000).words(), "windows of 20 ms");
        assert_eq!(Measure::Events(2_000).words(), "windows of 2000 events");
    }

    #[test]
    fn windows_end_where_least_lives() {
        // A block is allocated and freed every tenth of a millisecond.
        let all =
            |at: u64| event(at * 50_000, if at.is_multiple_of(2) { Action::Alloc } else { Action::FreeRequested });
        let (by, ends) = cut(&|| (0..20_000).map(all)).unwrap();
        assert_eq!(by, "windows of 20 ms");
        assert_eq!(ends.len(), 50);
        assert!(ends.iter().all(|end| end / 50_000 % 2 == 1), "{ends:?}");
    }

    #[test]
    fn a_burst_is_cut_by_volume_and_a_handful_not_at_all() {
        let burst = || (0..10_000).map(|at| event(at, Action::Alloc)).chain([event(1 << 50, Action::Alloc)]);
        let (by, ends) = cut(&burst).unwrap();
        assert_eq!(by, "windows of 200 events");
        assert_eq!(ends.len(), 50);
        assert!(cut(&|| (0..9).map(|at| event(at, Action::Alloc))).is_none());
    }
}
