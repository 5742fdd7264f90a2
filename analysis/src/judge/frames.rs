//! What a frame is, as its function tells.
//!
//! Guarantees: knows names that torch itself gives; a function of the user's own is told by nothing but them.

use memctl_model::Frame;

/// Whether a frame is a module's forward pass: torch.nn's own way into it, or a method that every module has.
pub(super) fn is_forward_frame(frame: &Frame) -> bool {
    matches!(frame.plain_function(), "forward" | "_call_impl" | "_wrapped_call_impl")
}
