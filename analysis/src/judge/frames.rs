//! What a frame is, by its function's name.
//!
//! Guarantees: knows the names that torch itself gives; recognises a user's own function by those names alone.

use memctl_model::Frame;

/// Whether a frame is a module's forward pass: torch.nn's own way into it, or a method that every module has.
pub(super) fn is_forward_frame(frame: &Frame) -> bool {
    matches!(frame.plain_function(), "forward" | "_call_impl" | "_wrapped_call_impl")
}
