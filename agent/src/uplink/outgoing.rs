//! An item on its way out.
//!
//! Guarantees: it is counted by the events that it carries, whatever becomes of it.

use memctl_proto::item::Packed;

/// See the module.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The item.
    pub packed: Packed,
    /// Events in it.
    pub events: u64,
}
