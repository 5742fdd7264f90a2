//! Assigns requests for memory to the calls of modules, derived from the requests' stacks.
//!
//! A module's forward is the frame that `torch/nn/modules/module.py` calls. Consecutive requests through the same
//! frames up to that call are a run. A run is usually one call. It is several calls if a loop makes them: the same
//! sequence of stacks repeats, or the run's first stack recurs and the forward has moved back to an earlier line.
//!
//! Guarantees: the calls of one answer are in order and disjoint. A module that allocates nothing is not seen. Two
//! objects of one class are not distinguished. If the recording has only plain function names, modules are named by
//! the line that calls them.
//!
//! (Over 400 lines: a fifth are tests; the rules that read a stack belong together.)

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ops::Range;

use memctl_model::{Frame, Stack, StackId};

/// The pass in which a request was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// In a module's forward, or around it.
    Forward,
    /// In the backward pass.
    Backward,
    /// In the optimizer.
    Optimizer,
}

/// A place that calls a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Its class, if the recording has qualified names.
    pub class: Option<String>,
    /// The line that calls it: file (without its folders) and number.
    pub called_at: String,
    /// Number of modules around it.
    pub depth: usize,
    /// Whether it calls modules itself.
    pub is_outer: bool,
    /// Whether one call of the module around it calls it more than once.
    pub is_looped: bool,
    /// Its calls, as ranges of requests.
    pub calls: Vec<Range<usize>>,
}

impl Module {
    /// The name: the class (`Block`), or without a class the line (`model.py:44`).
    #[must_use]
    pub fn name(&self) -> &str {
        self.class.as_deref().unwrap_or(&self.called_at)
    }

    fn is(&self, name: &str) -> bool {
        self.class.as_deref() == Some(name) || self.called_at == name
    }
}

/// The index of a place while stacks are read.
type PlaceId = usize;

#[derive(Clone, Debug)]
struct Place {
    class: Option<String>,
    called_at: String,
    depth: usize,
    is_outer: bool,
}

#[derive(Clone, Debug)]
struct StackModules {
    pass: Pass,
    /// The modules on the stack, outermost first, each with the line that its forward was at.
    places: Vec<(PlaceId, u32)>,
    /// Hashes of the Python lines on the stack, outermost first.
    lines: Vec<u64>,
}

/// The modules and calls of a list of requests. Each stack is read once.
pub struct Modules {
    places: Vec<Place>,
    known: Vec<StackModules>,
    /// For each request: the index of its stack in `known`.
    requests: Vec<u32>,
    /// The first request of each forward pass.
    forwards: Vec<usize>,
}

impl Modules {
    /// Reads the stacks of requests, which are in order.
    #[must_use]
    pub fn new(stacks: &[StackId], resolve: &dyn Fn(StackId) -> Stack) -> Self {
        let (mut places, mut ids) = (Vec::new(), HashMap::new());
        let (mut known, mut seen) = (Vec::new(), HashMap::new());
        let requests = stacks.iter().map(|&stack| {
            *seen.entry(stack).or_insert_with(|| {
                // With `stacks="all"`, frames of C++ are between the call of a module and its forward; they are
                // removed.
                let mut frames = resolve(stack).frames;
                frames.retain(|frame| !frame.is_native());
                known.push(read(&frames, &mut places, &mut ids));
                u32::try_from(known.len() - 1).unwrap_or(u32::MAX)
            })
        });
        let requests: Vec<u32> = requests.collect();
        let is_forward = |stack: u32| known[stack as usize].pass == Pass::Forward;
        let begins =
            |&at: &usize| is_forward(requests[at]) && at.checked_sub(1).is_none_or(|at| !is_forward(requests[at]));
        let forwards = (0..requests.len()).filter(begins).collect();
        Self { places, known, requests, forwards }
    }

    /// The pass in which a request was made.
    #[must_use]
    pub fn pass(&self, request: usize) -> Pass {
        self.of(request).map_or(Pass::Backward, |known| known.pass)
    }

    /// Number of forward passes that had begun when a request was made.
    #[must_use]
    pub fn forward(&self, request: usize) -> u32 {
        u32::try_from(self.forwards.partition_point(|&first| first <= request)).unwrap_or(u32::MAX)
    }

    /// The Python lines on the stack of a forward pass's request, outermost first. Equal numbers mean the same line of
    /// the same function.
    #[must_use]
    pub fn lines(&self, request: usize) -> &[u64] {
        self.of(request).map_or(&[], |known| &known.lines)
    }

    /// The name of the innermost module around a request that calls modules itself. If there is none, it is the
    /// innermost module.
    #[must_use]
    pub fn around(&self, request: usize) -> Option<String> {
        let places = &self.of(request)?.places;
        let outer = places.iter().rev().find(|(place, _)| self.places[*place].is_outer).or(places.last())?;
        let Place { class, called_at, .. } = &self.places[outer.0];
        Some(class.clone().unwrap_or_else(|| called_at.clone()))
    }

    fn of(&self, request: usize) -> Option<&StackModules> {
        self.known.get(*self.requests.get(request)? as usize)
    }

    /// Every place that calls a module in a forward pass, with its calls.
    #[must_use]
    pub fn all(&self) -> Vec<Module> {
        let mut runs: Vec<Vec<Range<usize>>> = vec![Vec::new(); self.places.len()];
        for request in 0..self.requests.len() {
            let Some(known) = self.of(request).filter(|known| known.pass == Pass::Forward) else { continue };
            for &(place, _) in &known.places {
                match runs[place].last_mut() {
                    Some(run) if run.end == request => run.end += 1,
                    _ => runs[place].push(request..request + 1),
                }
            }
        }
        let of_place = |(place, runs): (PlaceId, &Vec<Range<usize>>)| self.split_all(place, runs);
        let calls: Vec<Vec<Range<usize>>> = runs.iter().enumerate().map(of_place).collect();
        let looped = self.looped(&calls);
        let of_place = self.places.iter().zip(calls).enumerate();
        let modules = of_place.map(|(at, (place, calls))| {
            let Place { class, called_at, depth, is_outer } = place.clone();
            Module { class, called_at, depth, is_outer, is_looped: looped.contains(&at), calls }
        });
        modules.filter(|module| !module.calls.is_empty()).collect()
    }

    fn split_all(&self, place: PlaceId, runs: &[Range<usize>]) -> Vec<Range<usize>> {
        let line = |stack: u32| {
            let places = self.known.get(stack as usize).map(|known| &known.places[..]).unwrap_or_default();
            places.iter().find(|(other, _)| *other == place).map_or(0, |(_, line)| *line)
        };
        let split = |run: &Range<usize>| {
            let lengths = split(&self.requests[run.clone()], line);
            let mut begin = run.start;
            let ranges = lengths.into_iter().map(move |length| {
                begin += length;
                begin - length..begin
            });
            ranges.collect::<Vec<_>>()
        };
        runs.iter().flat_map(split).collect()
    }

    /// Places that are called more than once within one call of the module around them.
    fn looped(&self, calls: &[Vec<Range<usize>>]) -> HashSet<PlaceId> {
        let mut looped = HashSet::new();
        let mut begun: HashMap<(PlaceId, usize), u32> = HashMap::new();
        for (place, calls_of) in calls.iter().enumerate() {
            for call in calls_of {
                let places = self.of(call.start).map(|known| &known.places[..]).unwrap_or_default();
                let Some(at) = places.iter().position(|&(other, _)| other == place).and_then(|at| at.checked_sub(1))
                else {
                    continue;
                };
                let around = &calls[places[at].0];
                let within = around.partition_point(|other| other.start <= call.start);
                let times = begun.entry((place, within)).or_default();
                *times += 1;
                if *times > 1 {
                    looped.insert(place);
                }
            }
            begun.clear();
        }
        looped
    }
}

/// Whether the innermost operation of a stack saves its own result for its backward pass (`result` in PyTorch's
/// derivatives.yaml).
#[must_use]
pub fn saves_itself(stack: &Stack) -> bool {
    const NAMES: [&str; 8] = ["relu", "relu_", "sigmoid", "tanh", "softmax", "log_softmax", "exp", "sqrt"];
    let innermost = stack.frames.iter().find(|frame| !frame.is_native());
    innermost.is_some_and(|frame| NAMES.contains(&&*frame.function))
}

/// The calls of the modules with this name, without calls nested in them. The name `all` selects the outermost modules
/// that are called in a loop and call modules themselves (the blocks of a transformer). If there are none, it selects
/// the modules directly below the whole model.
#[must_use]
pub fn chosen(modules: &[Module], name: &str) -> Vec<Range<usize>> {
    let blocks = |module: &&Module| module.is_outer && module.is_looped;
    let halves = |module: &&Module| module.is_outer && module.depth == 1;
    let mut ranges: Vec<Range<usize>> = match name {
        "all" if modules.iter().any(|module| blocks(&module)) => ranges(modules.iter().filter(blocks)),
        "all" => ranges(modules.iter().filter(halves)),
        name => ranges(modules.iter().filter(|module| module.is(name))),
    };
    // If two ranges begin together, the longer one comes first.
    ranges.sort_by_key(|range| (range.start, std::cmp::Reverse(range.end)));
    let mut end = 0;
    ranges.retain(|range| {
        let is_outermost = range.start >= end;
        end = end.max(range.end);
        is_outermost
    });
    ranges
}

fn ranges<'a>(modules: impl Iterator<Item = &'a Module>) -> Vec<Range<usize>> {
    modules.flat_map(|module| module.calls.iter().cloned()).collect()
}

/// Derives the pass, the modules and the lines from a stack.
fn read(frames: &[Frame], places: &mut Vec<Place>, ids: &mut HashMap<u64, PlaceId>) -> StackModules {
    let pass = pass(frames);
    if pass != Pass::Forward {
        return StackModules { pass, places: Vec::new(), lines: Vec::new() };
    }
    let lines = frames.iter().rev().filter(|frame| frame.owner().is_none()).map(hash).collect();
    let mut hasher = DefaultHasher::new();
    let mut through: Vec<(PlaceId, u32)> = Vec::new();
    // `caller` is the last frame outside of module.py; `calls` is whether frames of module.py follow it.
    let (mut caller, mut calls): (Option<&Frame>, bool) = (None, false);
    for frame in frames.iter().rev().filter(|frame| frame.owner().is_none()) {
        if is_call(frame) {
            calls = true;
            continue;
        }
        if calls {
            let mut here = hasher.clone();
            (&*frame.file, &*frame.function).hash(&mut here);
            let place = *ids.entry(here.finish()).or_insert_with(|| {
                let depth = through.len();
                places.push(Place { class: class(frame), called_at: line(caller), depth, is_outer: false });
                places.len() - 1
            });
            if let Some(&(around, _)) = through.last() {
                places[around].is_outer = true;
            }
            through.push((place, frame.line));
            calls = false;
        }
        frame.hash(&mut hasher);
        caller = Some(frame);
    }
    StackModules { pass, places: through, lines }
}

fn hash(frame: &Frame) -> u64 {
    let mut hasher = DefaultHasher::new();
    frame.hash(&mut hasher);
    hasher.finish()
}

fn pass(frames: &[Frame]) -> Pass {
    let Some(innermost) = frames.iter().find(|frame| frame.owner().is_none()) else { return Pass::Backward };
    let in_backward = |frame: &Frame| {
        frame.function.starts_with("torch::autograd::Engine::")
            || (frame.file.ends_with("torch/utils/checkpoint.py")
                && ["unpack_hook", "recompute_fn", "backward"].contains(&frame.plain_function()))
    };
    if &*innermost.file == "<autograd>" || frames.iter().any(in_backward) {
        Pass::Backward
    } else if frames.iter().any(|frame| frame.file.contains("torch/optim/")) {
        Pass::Optimizer
    } else {
        Pass::Forward
    }
}

fn is_call(frame: &Frame) -> bool {
    frame.file.ends_with("torch/nn/modules/module.py")
        && ["_wrapped_call_impl", "_call_impl", "inner", "__call__"].contains(&frame.plain_function())
}

/// The class in a qualified function name: `Block` of `Block.forward`.
fn class(frame: &Frame) -> Option<String> {
    let (class, _) = frame.function.rsplit_once('.')?;
    Some(class.rsplit('.').next().unwrap_or(class).to_owned())
}

fn line(caller: Option<&Frame>) -> String {
    let Some(Frame { file, line, .. }) = caller else { return "?".to_owned() };
    format!("{}:{line}", file.rsplit(['/', '\\']).next().unwrap_or_default())
}

/// The lengths of the calls in a run; `line` returns the line of the module's forward in a stack.
fn split(run: &[u32], line: impl Fn(u32) -> u32) -> Vec<usize> {
    let period = period(run);
    if period > 1 && period < run.len() {
        return vec![period; run.len() / period];
    }
    let (mut lengths, mut length) = (Vec::new(), 0);
    for (at, &stack) in run.iter().enumerate() {
        // A stack at the same line does not begin a call, because it may come from a loop within the forward's first
        // line.
        if at > 0 && stack == run[0] && line(stack) < line(run[at - 1]) {
            lengths.push(length);
            length = 0;
        }
        length += 1;
    }
    lengths.push(length);
    lengths
}

/// The length of the shortest sequence whose repetitions make up the whole run (Knuth, Morris and Pratt 1977). It is
/// the run's length if there is no such repetition.
fn period(run: &[u32]) -> usize {
    let mut border = vec![0; run.len()];
    let mut matched = 0;
    for at in 1..run.len() {
        while matched > 0 && run[at] != run[matched] {
            matched = border[matched - 1];
        }
        matched += usize::from(run[at] == run[matched]);
        border[at] = matched;
    }
    let period = run.len() - border.last().copied().unwrap_or(0);
    if period > 0 && run.len().is_multiple_of(period) { period } else { run.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULE: &str = "/v/lib/python3.11/site-packages/torch/nn/modules/module.py";

    /// A stack from calls, outermost first: function, file, line. Each call of a forward gets frames of `module.py`.
    fn stack(calls: &[(&str, &str, u32)]) -> Stack {
        let mut frames = Vec::new();
        for (at, &(function, file, line)) in calls.iter().enumerate() {
            if at > 0 && function.ends_with("forward") {
                for own in ["_wrapped_call_impl", "_call_impl"] {
                    frames.push(Frame { function: own.into(), file: MODULE.into(), line: 1 });
                }
            }
            frames.push(Frame { function: function.into(), file: file.into(), line });
        }
        frames.reverse();
        Stack { frames }
    }

    /// Two steps of a model with three blocks. A block has a norm (three requests), a linear and a sum of its own.
    fn modules(function: &str) -> (Modules, usize) {
        let model = |line: u32| vec![("<module>", "t.py", 9), (function, "m.py", line)];
        let block = |line: u32, inner: Option<(&'static str, &'static str, u32)>| {
            let mut calls = model(20);
            calls.push((function, "b.py", line));
            calls.extend(inner);
            stack(&calls)
        };
        let stacks = [
            Stack::default(),
            stack(&model(10)),
            block(5, Some(("forward", "norm.py", 1))),
            block(6, Some(("forward", "linear.py", 1))),
            block(7, None),
            stack(&model(30)),
        ];
        let one = [2, 2, 2, 3, 4];
        let step: Vec<u32> = [1].into_iter().chain(one).chain(one).chain(one).chain([5, 0, 0, 0]).collect();
        let ids: Vec<StackId> = step.iter().chain(&step).map(|&id| StackId(id)).collect();
        (Modules::new(&ids, &|id: StackId| stacks[id.0 as usize].clone()), step.len())
    }

    #[test]
    fn frames_of_cpp_between_a_call_and_its_forward_are_no_modules() {
        let mut mixed = stack(&[("<module>", "t.py", 9), ("forward", "m.py", 20), ("forward", "linear.py", 1)]);
        let plain = mixed.clone();
        let cpp = |function: &str| Frame { function: function.into(), file: "??".into(), line: 0 };
        for at in (0..=mixed.frames.len()).rev() {
            mixed.frames.insert(at, cpp("method_vectorcall.llvm.12275804"));
        }
        let facts = |stack: &Stack| {
            let modules = Modules::new(&[StackId(1)], &|_| stack.clone());
            (modules.pass(0), modules.around(0), modules.lines(0).to_vec())
        };
        assert_eq!(facts(&mixed), facts(&plain));
        assert!(facts(&plain).1.is_some());
    }

    #[test]
    fn a_loop_over_blocks_is_told_apart() {
        for (function, name) in [("forward", "m.py:20"), ("Block.forward", "Block")] {
            let (modules, step) = modules(function);
            assert_eq!((modules.pass(0), modules.pass(step - 1)), (Pass::Forward, Pass::Backward));
            assert_eq!(modules.around(2).as_deref(), Some(name));
            let all = modules.all();
            let blocks = [1..6, 6..11, 11..16, 1 + step..6 + step, 6 + step..11 + step, 11 + step..16 + step];
            assert_eq!(chosen(&all, "all"), blocks, "{all:?}");
            assert_eq!(chosen(&all, "m.py:20"), blocks);
            assert_eq!(chosen(&all, "nobody"), []);
            let whole = all.iter().find(|module| module.depth == 0).expect("the model");
            assert_eq!(whole.calls, [0..17, step..step + 17], "the whole model is called once a step");
            assert!(!whole.is_looped && whole.is_outer);
        }
    }

    #[test]
    fn lines_and_forward_passes_are_told() {
        let (modules, step) = modules("forward");
        let (norm, linear, sum) = (modules.lines(2), modules.lines(4), modules.lines(5));
        let shared = |one: &[u64], other: &[u64]| one.iter().zip(other).take_while(|(one, other)| one == other).count();
        assert_eq!((norm, shared(norm, sum)), (modules.lines(7), 6), "the lines of script and model, and the calls");
        assert!(norm != linear && norm.len() == linear.len() && sum.len() < norm.len());
        assert!(modules.lines(step - 1).is_empty(), "none of a backward pass");
        assert_eq!([0, 1, step - 1, step + 1, 2 * step].map(|request| modules.forward(request)), [1, 1, 1, 2, 2]);
    }

    #[test]
    fn runs_are_split_where_they_begin_again() {
        let each = |run: &[u32]| split(run, |stack| stack);
        assert_eq!(each(&[1, 2, 3, 1, 2, 3]), [3, 3]);
        assert_eq!(each(&[1, 1, 2, 1, 1, 2, 2]), [3, 4]);
        assert_eq!(each(&[1, 2, 1, 2, 3, 1, 2, 1, 2, 3]), [5, 5], "a loop within");
        assert_eq!((each(&[7, 7, 7]), each(&[7]), each(&[])), (vec![3], vec![1], vec![0]));
        // A model that begins with a loop over its blocks, all of them called from one line.
        assert_eq!(split(&[1, 2, 1, 2, 1, 2, 3], |stack| if stack == 3 { 20 } else { 10 }), [7]);
    }

    #[test]
    fn a_second_forward_belongs_to_the_backward_pass() {
        let again = stack(&[("unpack_hook", "/v/torch/utils/checkpoint.py", 1), ("forward", "b.py", 5)]);
        assert_eq!(pass(&again.frames), Pass::Backward);
        let first = stack(&[("checkpoint", "/v/torch/utils/checkpoint.py", 1), ("forward", "b.py", 5)]);
        assert_eq!(pass(&first.frames), Pass::Forward);
        assert_eq!(pass(&stack(&[("step", "/v/torch/optim/adam.py", 1)]).frames), Pass::Optimizer);
    }
}
