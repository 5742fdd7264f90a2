//! Classifies frames by the names of their functions.
//!
//! Guarantees: only the names that torch itself uses are known, also for the user's own functions.

use memctl_model::Frame;

/// Whether a frame is a module's forward pass: torch.nn's own call, or the method that every module has.
pub(super) fn is_forward_frame(frame: &Frame) -> bool {
    matches!(frame.plain_function(), "forward" | "_call_impl" | "_wrapped_call_impl")
}
