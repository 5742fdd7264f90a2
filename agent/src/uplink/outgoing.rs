//! An item on its way out.
//!
//! Guarantees: the events of the item stay counted, regardless of whether it is delivered or lost.

use memctl_proto::item::Packed;

/// An item; see the module's documentation.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The item.
    pub packed: Packed,
    /// Number of events in the item.
    pub events: u64,
}
