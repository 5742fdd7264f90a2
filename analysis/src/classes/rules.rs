//! The rules of the classes: what a stack shows, and what this means together with phase, age and size.
//!
//! Guarantees: the rules are a pure table. Every rule is a fact about PyTorch that can be verified in its sources.

use memctl_model::{Frame, Phase, Stack};

use super::{Class, Stay};

/// The code that a stack shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Says {
    /// The optimizer makes its state (`_init_group`) or loads it.
    OptimizerState,
    /// Other code within the optimizer's step.
    Optimizer,
    /// The user's own code within the closure that the optimizer's step calls.
    Closure,
    /// A module is made, moved, loaded or copied.
    Module,
    /// A reducer makes its gradient buckets.
    Buckets,
    /// An autograd node accumulates a gradient.
    AccumulateGrad,
    /// Another autograd node, or other work in autograd's threads.
    Autograd,
    /// A library allocates its workspace: a frame of C++ shows it.
    Workspace,
    /// A module's forward.
    Forward,
    /// The user's own code outside all of these.
    Elsewhere,
    /// No stack.
    Nothing,
}

/// The code that a stack shows, and whether autograd's threads run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    pub says: Says,
    pub in_backward: bool,
}

pub(super) fn read(stack: &Stack) -> Reading {
    // User-defined names of memory are skipped, because they do not show how it is used.
    let calls = stack.calls();
    // The innermost frame is the autograd node that allocates. The forward call that made the node follows it in the
    // stack.
    if let Some(node) = calls.first().filter(|innermost| &*innermost.file == "<autograd>") {
        let accumulates = node.function.contains("AccumulateGrad");
        let says = if accumulates { Says::AccumulateGrad } else { Says::Autograd };
        return Reading { says, in_backward: true };
    }
    let native = |what: fn(&Frame) -> bool| calls.iter().any(|frame| frame.is_native() && what(frame));
    // With `stacks="all"`, frames of C++ are between and around those of Python.
    let python: Vec<Frame> = calls.iter().filter(|frame| !frame.is_native()).cloned().collect();
    let in_backward = native(Frame::is_autograd_thread) || python.last().is_some_and(Frame::begins_autograd_thread);
    if native(|frame| frame.function.starts_with("at::cuda::") && frame.function.contains("Workspace")) {
        return Reading { says: Says::Workspace, in_backward };
    }
    let says = match (in_backward, python.is_empty()) {
        (true, _) if native(|frame| frame.function.contains("AccumulateGrad")) => Says::AccumulateGrad,
        (true, _) if recomputes(&python) => Says::Forward,
        (true, _) => Says::Autograd,
        (false, true) => Says::Nothing,
        (false, false) => of_python(&python),
    };
    Reading { says, in_backward }
}

/// Whether a checkpoint runs its part of the forward pass again.
fn recomputes(python: &[Frame]) -> bool {
    let checkpoint = python.iter().position(|frame| frame.file.ends_with("torch/utils/checkpoint.py"));
    checkpoint.is_some_and(|at| python[..at].iter().any(|frame| frame.plain_function() == "forward"))
}

fn of_python(frames: &[Frame]) -> Says {
    let Some(innermost) = frames.first() else { return Says::Nothing };
    let any = |file: &str, functions: &[&str]| {
        frames.iter().any(|frame| {
            frame.file.contains(file) && (functions.is_empty() || functions.contains(&frame.plain_function()))
        })
    };
    // The state is made at the first step or loaded from a checkpoint.
    if any("", &["_init_group", "_init_state", "init_state"]) || any("torch/optim/", &["load_state_dict"]) {
        return Says::OptimizerState;
    }
    // The code of averaged weights is in the optimizer package, but the weights are no optimizer state. They are a
    // module with copies of another module's parameters.
    let is_copy = any("torch/optim/swa_utils.py", &["__init__"]) || any("torch/nn/parameter.py", &["__deepcopy__"]);
    if is_copy {
        return Says::Module;
    }
    let within = Within::of(frames);
    if within == Within::Own {
        return Says::Optimizer;
    }
    let reducer = innermost.file.ends_with("torch/nn/parallel/distributed.py");
    if reducer && ["_ddp_init_helper", "_pre_forward", "_rebuild_buckets"].contains(&innermost.plain_function()) {
        return Says::Buckets;
    }
    let is_module = any("torch/nn/modules/module.py", &["_apply", "to_empty", "load_state_dict"])
        || any("torch/nn/modules/", &["__init__", "reset_parameters"])
        || any("torch/nn/init.py", &[])
        || any("", &["from_pretrained", "_load_state_dict_into_model"]);
    let is_forward = any("", &["forward"]);
    match (is_forward, is_module) {
        // A module is rarely made within a forward pass, whereas forwards often call a factory function.
        (true, _) => Says::Forward,
        (false, true) => Says::Module,
        (false, false) if within == Within::Closure => Says::Closure,
        (false, false) => Says::Elsewhere,
    }
}

/// The code that allocates within an optimizer's step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    /// The stack has no optimizer.
    No,
    /// The optimizer's own code.
    Own,
    /// A closure's code. The optimizer may call the user's whole step (LBFGS, Lightning), so the inner frames decide.
    Closure,
}

impl Within {
    fn of(frames: &[Frame]) -> Self {
        let is_optimizer = |frame: &Frame| frame.file.contains("torch/optim/") && !frame.file.contains("swa_utils.py");
        let Some(at) = frames.iter().position(is_optimizer) else { return Self::No };
        let (inside, file) = (&frames[..at], &*frames[at].file);
        // The folder of the installed torch. The optimizer itself calls the frames of this folder further inside.
        let torch = file.find("torch/optim/").map_or("", |begin| &file[..begin + "torch/".len()]);
        let is_users = |frame: &Frame| {
            let name = frame.plain_function();
            ["forward", "_call_impl", "backward", "training_step"].contains(&name) || name.contains("closure")
        };
        let is_foreign = |frame: &Frame| !frame.file.starts_with(torch) && !frame.file.starts_with('<');
        if inside.iter().any(is_users) {
            return Self::Closure;
        }
        // An optimizer of another library: torch wraps the `step` of every optimizer.
        let wraps = file.ends_with("torch/optim/optimizer.py") || file.ends_with("torch/optim/lr_scheduler.py");
        match inside.last() {
            Some(called) if is_foreign(called) && !(wraps && called.plain_function() == "step") => Self::Closure,
            _ => Self::Own,
        }
    }
}

/// Known facts about a block besides its stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockFacts {
    pub phase: Option<Phase>,
    pub stay: Stay,
    pub is_parameter_size: bool,
    /// For a block of a backward pass: whether it outlives the pass.
    pub outlives_pass: bool,
    pub is_workspace: bool,
}

pub(super) fn class(says: Says, known: BlockFacts) -> Class {
    let BlockFacts { phase, stay, is_parameter_size, outlives_pass, is_workspace } = known;
    let old = stay != Stay::Within;
    let backward = || match (is_parameter_size && outlives_pass, stay) {
        // A gradient has its parameter's size. Nothing else that a backward pass makes outlives the pass.
        (true, _) => Class::Gradients,
        (false, Stay::Within | Stay::UntilNextStep) => Class::Temporaries,
        (false, Stay::Kept) => Class::Unknown,
    };
    let is_workspace = is_workspace && !is_parameter_size;
    match (says, phase) {
        (Says::OptimizerState, _) => Class::OptimizerState,
        (Says::Module, _) => Class::Parameters,
        (Says::Buckets | Says::AccumulateGrad, _) => Class::Gradients,
        (Says::Workspace, _) => Class::Workspace,
        (Says::Forward | Says::Autograd | Says::Nothing, _) if is_workspace => Class::Workspace,
        // This is code that a closure calls, if only the optimizer's phase around it was marked.
        (Says::Forward, Some(Phase::Optimizer)) => Class::Activations,
        (Says::Autograd, Some(Phase::Optimizer)) => backward(),
        (Says::Closure, Some(Phase::Optimizer)) if old => Class::Unknown,
        (Says::Closure, Some(Phase::Optimizer)) => Class::Temporaries,
        // Memory that the optimizer made and kept is its state. The rest is freed with the step, or soon after it if
        // the step's end was derived and not marked.
        (Says::Optimizer, _) | (_, Some(Phase::Optimizer)) if stay == Stay::Kept => Class::OptimizerState,
        (Says::Optimizer, _) | (_, Some(Phase::Optimizer)) => Class::Temporaries,
        (Says::Autograd, _) | (_, Some(Phase::Backward)) => backward(),
        (Says::Forward, _) | (_, Some(Phase::Forward | Phase::Eval)) => Class::Activations,
        // Inputs, targets and losses are live until the next ones replace them.
        (Says::Elsewhere | Says::Closure, _) | (_, Some(Phase::Train)) if stay != Stay::Kept => Class::Temporaries,
        (Says::Elsewhere | Says::Closure | Says::Nothing, _) => Class::Unknown,
    }
}
