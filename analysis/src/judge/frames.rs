//! Classifies frames by the names of their functions.
//!
//! Guarantees: only the names that torch itself uses are known, also for the user's own functions.

use memctl_model::Frame;

/// Whether torch.nn calls a function as a hook of a module. `stack` has the innermost frame first.
pub(super) fn is_hook(stack: &[Frame], function: &Frame) -> bool {
    let of_module = |frame: &Frame| frame.file.ends_with("torch/nn/modules/module.py");
    let called_by = stack.iter().skip_while(|frame| *frame != function).nth(1);
    !is_forward_frame(function) && called_by.is_some_and(|caller| of_module(caller) && is_forward_call(caller))
}

/// Whether a frame is the part of torch.nn that calls a module's forward pass and its hooks. `inner` is a function of
/// `_call_impl` that torch has from version 2.5 on.
fn is_forward_call(frame: &Frame) -> bool {
    is_forward_frame(frame) || frame.plain_function() == "inner"
}

/// Whether a frame is a module's forward pass: torch.nn's own call, or the method that every module has.
pub(super) fn is_forward_frame(frame: &Frame) -> bool {
    matches!(frame.plain_function(), "forward" | "_call_impl" | "_wrapped_call_impl")
}
