//! The floor of a device: for each moment, the lowest level between it and a last moment.
//!
//! Guarantees: exact for the levels that are pushed, up to `STEPS_MAX` steps. Beyond that, neighbours are merged into
//! one step at the lower level; the last step is never merged.

/// Maximum steps in memory; beyond it neighbours are merged.
const STEPS_MAX: usize = 1 << 16;

/// A step of the floor: its level holds from the previous step's end to this one's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its end, ns since the Unix epoch.
    pub until_ns: u64,
    /// The lowest level in bytes between any moment of this step and the last moment.
    pub bytes: u64,
}

/// The floor; see the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Floor {
    /// Steps that ascend in time and in level: a later and lower level removes the higher steps before it.
    steps: Vec<Step>,
}

impl Floor {
    /// Adds the level that holds from this time on. Times must ascend.
    pub fn push(&mut self, time_ns: u64, bytes: u64) {
        if let Some(last) = self.steps.last_mut() {
            last.until_ns = time_ns;
        }
        while self.steps.last().is_some_and(|step| step.bytes >= bytes) {
            self.steps.pop();
        }
        if self.steps.len() >= STEPS_MAX {
            self.steps = merged(&self.steps, STEPS_MAX / 2);
        }
        self.steps.push(Step { until_ns: u64::MAX, bytes });
    }

    /// The steps up to the last moment: at least one and at most `most`, or none if no level was pushed.
    #[must_use]
    pub fn finish(mut self, last_ns: u64, most: usize) -> Vec<Step> {
        let Some(mut last) = self.steps.pop() else { return Vec::new() };
        last.until_ns = last_ns;
        // Steps between events of the same time have no duration and are dropped.
        let mut reached = 0;
        self.steps.retain(|step| {
            let takes_time = step.until_ns > reached;
            reached = reached.max(step.until_ns);
            takes_time
        });
        let mut steps = merged(&self.steps, most.saturating_sub(1));
        steps.push(last);
        steps
    }
}

/// At most this many steps; neighbours are merged if there are more.
fn merged(steps: &[Step], most: usize) -> Vec<Step> {
    if steps.len() <= most || most == 0 {
        return if most == 0 { Vec::new() } else { steps.to_vec() };
    }
    let one = |few: &[Step]| Some(Step { until_ns: few.last()?.until_ns, bytes: few.first()?.bytes });
    steps.chunks(steps.len().div_ceil(most)).filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floor(levels: &[(u64, u64)]) -> Floor {
        let mut floor = Floor::default();
        levels.iter().for_each(|&(time_ns, bytes)| floor.push(time_ns, bytes));
        floor
    }

    fn pairs(steps: &[Step]) -> Vec<(u64, u64)> {
        steps.iter().map(|step| (step.until_ns, step.bytes)).collect()
    }

    #[test]
    fn every_step_is_the_lowest_level_from_there_to_the_last_moment() {
        let levels = [(0, 0), (10, 50), (20, 10), (30, 90), (40, 20), (50, 70), (60, 30)];
        let steps = floor(&levels).finish(65, 100);
        assert_eq!(pairs(&steps), [(10, 0), (30, 10), (50, 20), (65, 30)]);
        for (at, &(time_ns, _)) in levels.iter().enumerate() {
            let lowest = levels[at..].iter().map(|(_, bytes)| *bytes).min();
            assert_eq!(steps.iter().find(|step| time_ns < step.until_ns).map(|step| step.bytes), lowest, "{time_ns}");
        }
    }

    #[test]
    fn what_falls_behind_the_last_moment_is_not_pushed_and_changes_nothing() {
        assert_eq!(pairs(&floor(&[(0, 5), (7, 9)]).finish(9, 10)), [(7, 5), (9, 9)]);
        assert_eq!(pairs(&floor(&[(0, 5), (7, 9), (7, 6), (7, 8)]).finish(7, 10)), [(7, 5), (7, 8)]);
        assert!(Floor::default().finish(9, 10).is_empty());
    }

    #[test]
    fn many_steps_are_merged_downwards_and_the_last_one_stays() {
        let rising: Vec<(u64, u64)> = (0..200_000).map(|at| (at, at)).collect();
        let steps = floor(&rising).finish(200_000, 100);
        assert!(steps.len() <= 100, "{}", steps.len());
        assert_eq!(steps.last(), Some(&Step { until_ns: 200_000, bytes: 199_999 }));
        assert!(steps.iter().all(|step| step.bytes < step.until_ns));
        assert!(steps.is_sorted_by_key(|step| (step.until_ns, step.bytes)));
    }
}
