//! Converts marks to columns. Times and steps are stored as differences, and each name is stored once.

use std::collections::HashMap;

use memctl_model::limits::NAME_BYTES_MAX;
use memctl_model::{Mark, MarkKind, Phase};

use super::{WireError, at_most, even};
use crate::v1;

/// Maximum number of marks in one batch.
pub const MARKS_MAX: usize = 65_536;

/// Packs marks. Times are rounded down to the resolution.
#[must_use]
pub fn to_wire(marks: &[Mark], resolution_ns: u32) -> v1::MarkBatch {
    let mut batch = v1::MarkBatch { resolution_ns, ..Default::default() };
    let mut names: HashMap<&str, u64> = HashMap::new();
    let (mut last_time, mut last_step) = (None, 0_u64);
    for mark in marks {
        let time = mark.time_ns / u64::from(resolution_ns.max(1));
        match last_time {
            None => batch.first = time,
            Some(last) => batch.deltas.push(time.wrapping_sub(last) as i64),
        }
        last_time = Some(time);
        let (kind, value) = match &mark.kind {
            MarkKind::EpochBegin(epoch) => (v1::MarkKind::EpochBegin, u64::from(*epoch)),
            MarkKind::EpochEnd(epoch) => (v1::MarkKind::EpochEnd, u64::from(*epoch)),
            MarkKind::StepBegin(step) => (v1::MarkKind::StepBegin, step_delta(&mut last_step, *step)),
            MarkKind::StepEnd(step) => (v1::MarkKind::StepEnd, step_delta(&mut last_step, *step)),
            MarkKind::PhaseBegin(phase) => (v1::MarkKind::PhaseBegin, *phase as u64),
            MarkKind::PhaseEnd(phase) => (v1::MarkKind::PhaseEnd, *phase as u64),
            MarkKind::RegionBegin(name) => (v1::MarkKind::RegionBegin, index_of(&mut batch.names, &mut names, name)),
            MarkKind::RegionEnd(name) => (v1::MarkKind::RegionEnd, index_of(&mut batch.names, &mut names, name)),
            MarkKind::Note(name) => (v1::MarkKind::Note, index_of(&mut batch.names, &mut names, name)),
            MarkKind::WindowEnd(window) => (v1::MarkKind::WindowEnd, *window),
        };
        batch.kinds.push(kind as i32);
        batch.values.push(value);
    }
    batch
}

fn step_delta(last: &mut u64, step: u64) -> u64 {
    let delta = step.wrapping_sub(*last) as i64;
    *last = step;
    // Zigzag is computed here, because the column also has values that are not differences.
    ((delta << 1) ^ (delta >> 63)) as u64
}

fn index_of<'a>(names: &mut Vec<String>, known: &mut HashMap<&'a str, u64>, name: &'a str) -> u64 {
    *known.entry(name).or_insert_with(|| {
        names.push(name.to_owned());
        names.len() as u64 - 1
    })
}

/// Unpacks marks.
///
/// # Errors
/// Uneven columns, unknown kinds, phases or names, or more than [`MARKS_MAX`] marks.
pub fn from_wire(batch: &v1::MarkBatch) -> Result<Vec<Mark>, WireError> {
    let rows = batch.kinds.len();
    at_most("marks of a batch", rows, MARKS_MAX)?;
    even("marks", rows, &[batch.values.len(), batch.deltas.len() + usize::from(rows > 0)])?;
    if batch.resolution_ns == 0 && rows > 0 {
        return Err(WireError::invalid("marks.resolution_ns", 0, "at least 1"));
    }
    for name in &batch.names {
        at_most("bytes of a mark's name", name.len(), NAME_BYTES_MAX)?;
    }
    let (mut time, mut step) = (batch.first, 0_u64);
    let mut marks = Vec::with_capacity(rows);
    for row in 0..rows {
        if row > 0 {
            time = time.wrapping_add(batch.deltas[row - 1] as u64);
        }
        let kind = kind_of(batch, row, &mut step)?;
        marks.push(Mark { time_ns: time.saturating_mul(u64::from(batch.resolution_ns)), kind });
    }
    Ok(marks)
}

fn kind_of(batch: &v1::MarkBatch, row: usize, step: &mut u64) -> Result<MarkKind, WireError> {
    let value = batch.values[row];
    let epoch = || u32::try_from(value).map_err(|_| WireError::invalid("mark.epoch", value, "below 2^32"));
    let phase = || {
        Phase::ALL
            .into_iter()
            .find(|phase| *phase as u64 == value)
            .ok_or_else(|| WireError::invalid("mark.phase", value, "1 to 5"))
    };
    let name = || {
        usize::try_from(value)
            .ok()
            .and_then(|index| batch.names.get(index))
            .cloned()
            .ok_or_else(|| WireError::invalid("mark.name", value, "an index into names"))
    };
    let mut next_step = || {
        let delta = (value >> 1) as i64 ^ -((value & 1) as i64);
        *step = step.wrapping_add(delta as u64);
        *step
    };
    Ok(match v1::MarkKind::try_from(batch.kinds[row]) {
        Ok(v1::MarkKind::EpochBegin) => MarkKind::EpochBegin(epoch()?),
        Ok(v1::MarkKind::EpochEnd) => MarkKind::EpochEnd(epoch()?),
        Ok(v1::MarkKind::StepBegin) => MarkKind::StepBegin(next_step()),
        Ok(v1::MarkKind::StepEnd) => MarkKind::StepEnd(next_step()),
        Ok(v1::MarkKind::PhaseBegin) => MarkKind::PhaseBegin(phase()?),
        Ok(v1::MarkKind::PhaseEnd) => MarkKind::PhaseEnd(phase()?),
        Ok(v1::MarkKind::RegionBegin) => MarkKind::RegionBegin(name()?),
        Ok(v1::MarkKind::RegionEnd) => MarkKind::RegionEnd(name()?),
        Ok(v1::MarkKind::Note) => MarkKind::Note(name()?),
        Ok(v1::MarkKind::WindowEnd) => MarkKind::WindowEnd(value),
        Ok(v1::MarkKind::Unspecified) | Err(_) => {
            return Err(WireError::invalid("mark.kind", batch.kinds[row], "1 to 10"));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_kind() -> impl Strategy<Value = MarkKind> {
        let phase = proptest::sample::select(&Phase::ALL[..]);
        prop_oneof![
            any::<u32>().prop_map(MarkKind::EpochBegin),
            any::<u32>().prop_map(MarkKind::EpochEnd),
            any::<u64>().prop_map(MarkKind::StepBegin),
            any::<u64>().prop_map(MarkKind::StepEnd),
            phase.clone().prop_map(MarkKind::PhaseBegin),
            phase.prop_map(MarkKind::PhaseEnd),
            "[a-c]{0,3}".prop_map(MarkKind::RegionBegin),
            "[a-c]{0,3}".prop_map(MarkKind::RegionEnd),
            "[a-c]{0,3}".prop_map(MarkKind::Note),
            any::<u64>().prop_map(MarkKind::WindowEnd),
        ]
    }

    proptest! {
        #[test]
        fn what_goes_out_comes_in(rows in proptest::collection::vec((any::<u64>(), any_kind()), 0..40), resolution in 1_u32..2000) {
            let marks: Vec<Mark> = rows
                .into_iter()
                .map(|(time, kind)| Mark { time_ns: time / u64::from(resolution) * u64::from(resolution), kind })
                .collect();
            prop_assert_eq!(from_wire(&to_wire(&marks, resolution)).unwrap(), marks);
        }
    }

    #[test]
    fn lies_are_named() {
        let batch = v1::MarkBatch { resolution_ns: 1, kinds: vec![1, 1], values: vec![0], ..Default::default() };
        assert!(matches!(from_wire(&batch), Err(WireError::Uneven { .. })));
        let batch = v1::MarkBatch { resolution_ns: 1, kinds: vec![9], values: vec![0], ..Default::default() };
        assert!(matches!(from_wire(&batch), Err(WireError::Invalid { field: "mark.name", .. })));
        let batch = v1::MarkBatch { resolution_ns: 1, kinds: vec![77], values: vec![0], ..Default::default() };
        assert!(matches!(from_wire(&batch), Err(WireError::Invalid { field: "mark.kind", .. })));
    }
}
