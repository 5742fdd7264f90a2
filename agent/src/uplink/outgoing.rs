//! An item on its way out.
//!
//! Guarantees: the events that it carries stay counted, whether it is delivered or lost.

use memctl_proto::item::Packed;

/// See the module.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The item.
    pub packed: Packed,
    /// Events in it.
    pub events: u64,
}
