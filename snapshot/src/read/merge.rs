//! Merges marks and events into the order in which they happened.
//!
//! Within a device, events keep the recording's order, regardless of their times. Marks keep their order as well.
//! Between devices, and between marks and events, time decides; [`mark_precedes`] decides ties with marks. At equal
//! times the lower device comes first.

use std::iter::Peekable;

use memctl_model::{DeviceIndex, Event, Mark};

use super::marks::mark_precedes;

/// The next mark or event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Moment {
    /// A mark; it applies to every device.
    Mark(Mark),
    /// An event of a device.
    Event(DeviceIndex, Event),
}

/// Iterator over marks and events, see [`merge`].
pub struct Merged<M: Iterator<Item = Mark>, E: Iterator<Item = Event>> {
    marks: Peekable<M>,
    devices: Vec<(DeviceIndex, Peekable<E>)>,
}

/// Merges marks with the events of devices; pass consuming iterators to free events as they are read.
pub fn merge<M, E>(marks: M, devices: Vec<(DeviceIndex, E)>) -> Merged<M::IntoIter, E>
where
    M: IntoIterator<Item = Mark>,
    E: Iterator<Item = Event>,
{
    let devices = devices.into_iter().map(|(device, events)| (device, events.peekable())).collect();
    Merged { marks: marks.into_iter().peekable(), devices }
}

impl<M: Iterator<Item = Mark>, E: Iterator<Item = Event>> Iterator for Merged<M, E> {
    type Item = Moment;

    fn next(&mut self) -> Option<Moment> {
        // A recording has one device with events, rarely a few, so a scan is as fast as a heap.
        let next = self
            .devices
            .iter_mut()
            .enumerate()
            .filter_map(|(at, (_, events))| events.peek().map(|event| (event.time_ns, at, *event)))
            .min_by_key(|&(time_ns, at, _)| (time_ns, at));
        let Some((_, at, event)) = next else { return self.marks.next().map(Moment::Mark) };
        if let Some(mark) = self.marks.next_if(|mark| mark_precedes(mark, &event)) {
            return Some(Moment::Mark(mark));
        }
        let (device, events) = &mut self.devices[at];
        events.next().map(|event| Moment::Event(*device, event))
    }
}
