//! Call stacks, interned: a frame is stored once, a stack is a list of frames, innermost first.

use std::sync::{Arc, LazyLock};

use crate::limits::OWNER_BYTES_MAX;

/// Functions that run a library's training loop: their caller leaves the whole loop to the library.
const TRAINING: [&str; 13] = [
    "_inner_training_loop",
    "evaluate",
    "evaluation_loop",
    "fit",
    "fit_loop",
    "predict",
    "run_train",
    "train",
    "train_batch",
    "train_epoch",
    "train_one_epoch",
    "train_step",
    "training_step",
];

/// Represents autograd's thread if a recording with C++ frames has no Python frames there.
static BACKWARD: LazyLock<Frame> =
    LazyLock::new(|| Frame { function: "backward pass".into(), file: "".into(), line: 0 });

/// Represents C++ code that no Python frame called: threads of libraries.
static NATIVE: LazyLock<Frame> =
    LazyLock::new(|| Frame { function: "C++ outside Python".into(), file: "".into(), line: 0 });

/// Endings of files of compiled code in recordings with C++ frames: sources, headers, objects, libraries.
const NATIVE_ENDINGS: [&str; 14] =
    ["S", "a", "c", "cc", "cpp", "cu", "cuh", "cxx", "h", "hpp", "inc", "inl", "o", "so"];

/// Represents code that a compiler generated, in any of its files and lines.
static COMPILED: LazyLock<Frame> =
    LazyLock::new(|| Frame { function: "compiled graph".into(), file: "".into(), line: 0 });

/// The file of a frame that names a memory's owner. No real path has angle brackets.
const OWNER_FILE: &str = "<owner>";

/// A stack within its session; 0 means "no stack was recorded".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StackId(pub u32);

impl StackId {
    /// No stack was recorded.
    pub const NONE: Self = Self(0);

    /// Whether a stack was recorded.
    #[must_use]
    pub const fn is_some(self) -> bool {
        self.0 != 0
    }
}

/// A frame within its session; ids count up from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct FrameId(pub u32);

/// One line of a call stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Frame {
    /// Function name from the interpreter or symbolizer.
    pub function: Arc<str>,
    /// File as recorded; empty if unknown.
    pub file: Arc<str>,
    /// Line; 0 if unknown.
    pub line: u32,
}

impl Frame {
    /// The frame that names the memory's owner, in the process's own words (PyTorch's memory metadata and
    /// annotations).
    ///
    /// It is the innermost frame of its stack. So a name is interned with the stack and needs no bytes in an event.
    #[must_use]
    pub fn of_owner(name: &str) -> Self {
        let name = &name[..name.floor_char_boundary(OWNER_BYTES_MAX)];
        Self { function: name.into(), file: OWNER_FILE.into(), line: 0 }
    }

    /// The owner that this frame names, if it is such a frame.
    #[must_use]
    pub fn owner(&self) -> Option<&str> {
        (&*self.file == OWNER_FILE).then_some(&*self.function)
    }

    /// The function's name without enclosing classes and functions. Live stacks have qualified names from CPython 3.11
    /// on (`Module._call_impl`); snapshots have plain names.
    #[must_use]
    pub fn plain_function(&self) -> &str {
        self.function.rsplit('.').next().unwrap_or_default()
    }

    /// Whether the frame is the user's own code. Its file must belong neither to the standard library nor to an
    /// installed package nor to the interpreter.
    ///
    /// Only the path decides, because the files are on another machine.
    #[must_use]
    pub fn is_user_code(&self) -> bool {
        let file = &*self.file;
        !(self.is_native()
            || self.is_compiled()
            || (file.starts_with('<') && !self.is_typed_in())
            || file.contains("/site-packages/")
            || file.contains("/dist-packages/")
            || file.contains("/lib/python3.")
            || file.contains("\\site-packages\\"))
    }

    /// Whether the frame is of a program that has no file: one from standard input, of `python -c`, or of a notebook's
    /// cell. (Functions that libraries generate have the file `<string>` as well, so only the top level counts there.)
    fn is_typed_in(&self) -> bool {
        match &*self.file {
            "<stdin>" => true,
            "<string>" => &*self.function == "<module>",
            file => file.starts_with("<ipython-input"),
        }
    }

    /// Whether the frame is C or C++ code: PyTorch's, the interpreter's, or a library's. A frame without a file counts
    /// as well.
    #[must_use]
    pub fn is_native(&self) -> bool {
        if self.file.starts_with('<') {
            return false;
        }
        let name = self.file.rsplit(['/', '\\']).next().unwrap_or_default();
        match name.rsplit_once('.') {
            Some((stem, ending)) => NATIVE_ENDINGS.contains(&ending) || stem.ends_with(".so") || stem.contains(".so."),
            // A script may have no extension.
            None => name.is_empty() || name == "??" || self.function.contains("::"),
        }
    }

    /// Whether this C++ frame belongs to an autograd thread: it is in the engine's loop, or at the start of a thread
    /// that Python did not create.
    #[must_use]
    pub fn is_autograd_thread(&self) -> bool {
        self.function.starts_with("torch::autograd::Engine::") || &*self.function == "execute_native_thread_routine"
    }

    /// Whether a stack that begins with this Python frame belongs to an autograd thread: a Python function's backward,
    /// or a checkpoint that recomputes what it did not keep.
    #[must_use]
    pub fn begins_autograd_thread(&self) -> bool {
        let file = self.file.replace('\\', "/");
        let function = self.plain_function();
        (function == "apply" && file.ends_with("torch/autograd/function.py"))
            || (function == "unpack_hook" && file.ends_with("torch/utils/checkpoint.py"))
    }

    /// Whether a compiler generated the code: generated modules of `torch.compile`, wherever their cache is, and
    /// graphs of `torch.fx`.
    #[must_use]
    pub fn is_compiled(&self) -> bool {
        let file = &*self.file;
        let mut parts = file.rsplit(['/', '\\']);
        let (name, folder) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let stem = name.strip_suffix(".py").unwrap_or_default();
        // `ab/cab….py`: a `c` and a digest in base 32, in a folder named after the digest's first two letters.
        let digest = stem.len() >= 40 && stem.bytes().all(|b| b.is_ascii_lowercase() || (b'2'..=b'7').contains(&b));
        (digest && folder.len() == 2 && stem.get(1..3) == Some(folder))
            || file.contains("torchinductor_")
            || file.starts_with("<eval_with_key>")
            || name.starts_with("fx_generated_")
    }

    /// Whether the frame is in a file of a single model in a library of models, and not in code that several models
    /// share.
    fn is_model(&self) -> bool {
        let name = self.file.rsplit(['/', '\\']).next().unwrap_or_default();
        name.starts_with("modeling_") || self.file.contains("/models/") || self.file.contains("\\models\\")
    }

    /// Whether the frame belongs to an installed library other than torch itself.
    fn is_library(&self) -> bool {
        let file = &*self.file;
        let packages = ["/site-packages/", "/dist-packages/", "\\site-packages\\"];
        let inside = packages.iter().find_map(|folder| file.split_once(folder));
        inside.is_some_and(|(_, path)| !path.starts_with("torch/") && !path.starts_with("torch\\"))
            && !self.is_compiled()
    }
}

/// The frame that names an allocation. The frames are ordered innermost first.
///
/// It is the innermost frame of the user's own code. If that frame only starts a library's training loop, or there is
/// none, it is the innermost frame of a model in a library, else of any library. Otherwise it is a compiled graph,
/// autograd's own thread, or the innermost Python frame. It is never a C++ frame: if there is nothing else, a fixed
/// frame is used.
#[must_use]
pub fn site_of<'a>(frames: impl Iterator<Item = &'a Frame>) -> Option<&'a Frame> {
    let (mut first, mut library, mut model) = (None, None, None);
    let (mut trains, mut compiled, mut autograd, mut native) = (false, false, false, false);
    for frame in frames.filter(|frame| frame.owner().is_none()) {
        if frame.is_user_code() {
            return model.or(library).filter(|_| trains).or(Some(frame));
        }
        autograd |= frame.is_autograd_thread();
        if frame.is_native() {
            native = true;
            continue;
        }
        first = first.or(Some(frame));
        compiled |= frame.is_compiled();
        if frame.is_library() {
            library = library.or(Some(frame));
            model = model.or(Some(frame).filter(|frame| frame.is_model()));
            trains |= TRAINING.contains(&frame.plain_function());
        }
    }
    let stands_in = || match (compiled, autograd) {
        (true, _) => Some(&*COMPILED),
        (false, true) => Some(&*BACKWARD),
        (false, false) => None,
    };
    model.or(library).or_else(stands_in).or(first).or_else(|| native.then_some(&*NATIVE))
}

/// A call stack: frames innermost first.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Stack {
    /// The frames, innermost first.
    pub frames: Vec<Frame>,
}

impl Stack {
    /// The memory's owner, if the process named one.
    #[must_use]
    pub fn owner(&self) -> Option<&str> {
        self.frames.first().and_then(Frame::owner)
    }

    /// The frames of the calls, without the frame that names the owner.
    #[must_use]
    pub fn calls(&self) -> &[Frame] {
        &self.frames[usize::from(self.owner().is_some())..]
    }

    /// The frame that names the stack: see [`site_of`].
    #[must_use]
    pub fn site(&self) -> Option<&Frame> {
        site_of(self.frames.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(file: &str) -> Frame {
        Frame { function: "f".into(), file: file.into(), line: 1 }
    }

    #[test]
    fn plain_names_have_no_classes() {
        let named = |function: &str| Frame { function: function.into(), ..frame("a.py") };
        assert_eq!(named("Module._call_impl").plain_function(), "_call_impl");
        assert_eq!(named("Outer.f.<locals>.<lambda>").plain_function(), "<lambda>");
        assert_eq!(named("forward").plain_function(), "forward");
    }

    #[test]
    fn a_program_without_a_file_is_user_code() {
        let of = |function: &str, file: &str| Frame { function: function.into(), file: file.into(), line: 1 };
        for (function, file) in [("keep", "<stdin>"), ("keep", "<ipython-input-3-5f2c>"), ("<module>", "<string>")] {
            assert!(of(function, file).is_user_code() && !of(function, file).is_native(), "{file}");
        }
        for (function, file) in [("__init__", "<string>"), ("<module>", "<frozen runpy>"), ("f", "<autograd>")] {
            assert!(!of(function, file).is_user_code(), "{file}");
        }
    }

    #[test]
    fn the_site_is_the_innermost_user_frame() {
        let stack = Stack {
            frames: vec![
                frame("/usr/lib/python3.12/site-packages/torch/nn/functional.py"),
                frame("/home/u/train.py"),
                frame("/home/u/main.py"),
            ],
        };
        assert_eq!(&*stack.site().unwrap().file, "/home/u/train.py");
    }

    fn stack(frames: &[(&str, &str)]) -> Stack {
        let frame = |&(function, file): &(&str, &str)| Frame { function: function.into(), file: file.into(), line: 1 };
        Stack { frames: frames.iter().map(frame).collect() }
    }

    const MODULE: (&str, &str) = ("_call_impl", "/v/lib/python3.11/site-packages/torch/nn/modules/module.py");
    const GENERATED: (&str, &str) =
        ("call", "/tmp/torchinductor_u/7h/c7hlavqxyzabcdefghijklmnopqrstuvwxyz234567abcdefghij.py");

    #[test]
    fn a_library_that_trains_is_named_by_its_model() {
        let model = ("forward", "/v/lib/python3.11/site-packages/transformers/models/gpt2/modeling_gpt2.py");
        let trainer = ("_inner_training_loop", "/v/lib/python3.11/site-packages/transformers/trainer.py");
        let script = ("<module>", "/home/u/train.py");
        let linear = ("forward", "/v/lib/python3.11/site-packages/torch/nn/modules/linear.py");
        assert_eq!(&*stack(&[linear, MODULE, model, MODULE, trainer, script]).site().unwrap().file, model.1);
        // If the user's own loop calls a library's model, that loop is the site.
        assert_eq!(&*stack(&[linear, MODULE, model, MODULE, script]).site().unwrap().file, script.1);
        // The user's own model or callback within the library's loop is the site, too.
        let own = ("forward", "/home/u/model.py");
        assert_eq!(&*stack(&[linear, MODULE, own, MODULE, trainer, script]).site().unwrap().file, own.1);
        // Code that all models share is less specific than the model.
        let shared = ("forward", "/v/lib/python3.11/site-packages/transformers/activations.py");
        assert_eq!(&*stack(&[shared, MODULE, model, MODULE, trainer, script]).site().unwrap().file, model.1);
        // The whole program is a library.
        assert_eq!(&*stack(&[linear, MODULE, model, trainer]).site().unwrap().file, model.1);
    }

    #[test]
    fn compiled_code_is_no_users_own() {
        let of = |file: &str| Frame { function: "call".into(), file: file.into(), line: 1 };
        let cached = "/scratch/cache/7h/c7hlavqxyzabcdefghijklmnopqrstuvwxyz234567abcdefghij.py";
        for file in [GENERATED.1, cached, "<eval_with_key>.12", "/x/fx_generated_ab12.py"] {
            assert!(of(file).is_compiled() && !of(file).is_user_code(), "{file}");
        }
        for file in ["/home/u/7h/train.py", "/home/u/ab/cabinet.py", "", "c.py"] {
            assert!(!of(file).is_compiled(), "{file}");
        }
        // The site is the module that was compiled, or in a backward pass a compiled graph.
        let own = ("forward", "/home/u/model.py");
        assert_eq!(&*stack(&[GENERATED, MODULE, own]).site().unwrap().file, own.1);
        assert_eq!(&*stack(&[GENERATED, MODULE]).site().unwrap().function, "compiled graph");
    }

    #[test]
    fn a_thread_of_autograd_is_told_as_the_backward_pass() {
        let engine = [("torch::unwind::unwind()", "??"), ("torch::autograd::Engine::thread_main(x)", "Engine.cpp")];
        assert_eq!(&*stack(&engine).site().unwrap().function, "backward pass");
        let own = [engine[0], ("main", "/home/u/train.py")];
        assert_eq!(&*stack(&own).site().unwrap().function, "main");
        // The stack is truncated or in a library without symbols, but the thread began outside Python.
        let cut = [engine[0], ("execute_native_thread_routine", "thread48.o"), ("clone", "??")];
        assert_eq!(&*stack(&cut).site().unwrap().function, "backward pass");
    }

    #[test]
    fn a_frame_of_cpp_is_never_the_site() {
        let of = |function: &str, file: &str| Frame { function: function.into(), file: file.into(), line: 1 };
        for file in ["thread48.o", "/x/ceval.c", "libc.so.6", "libtorch.so", "??", "", "RegisterCUDA.cpp", "a.cuh"] {
            assert!(of("f", file).is_native() && !of("f", file).is_user_code(), "{file}");
        }
        for file in ["train.py", "/home/u/train", "<string>", "/home/u/main.rs", "C:\\u\\cell.ipynb"] {
            assert!(!of("f", file).is_native(), "{file}");
        }
        assert!(of("c10::Allocator::f()", "libc10").is_native());
        let allocator = ("c10::cuda::CUDACachingAllocator::malloc()", "CUDACachingAllocator.cpp");
        let eval = ("_PyEval_EvalFrameDefault", "??");
        let library = ("relu", "/v/lib/python3.11/site-packages/torch/nn/functional.py");
        assert_eq!(&*stack(&[allocator, eval, library, eval]).site().unwrap().file, library.1);
        assert_eq!(&*stack(&[allocator, eval]).site().unwrap().function, "C++ outside Python");
    }

    #[test]
    fn an_owner_is_told_and_is_no_call() {
        let library = frame("/usr/lib/python3.12/site-packages/torch/nn/functional.py");
        let owned = |frames: Vec<Frame>| Stack { frames: [vec![Frame::of_owner("KV cache")], frames].concat() };
        let stack = owned(vec![library.clone(), frame("/home/u/train.py")]);
        assert_eq!((stack.owner(), &*stack.site().unwrap().file), (Some("KV cache"), "/home/u/train.py"));
        assert_eq!((stack.calls().len(), owned(vec![library.clone()]).site()), (2, Some(&library)));
        assert_eq!((owned(Vec::new()).site(), Stack { frames: vec![library] }.owner()), (None, None));
        let long = Frame::of_owner(&"\u{fc}".repeat(OWNER_BYTES_MAX));
        assert_eq!(long.owner().map(str::len), Some(OWNER_BYTES_MAX));
    }

    #[test]
    fn without_user_frames_the_innermost_stands_for_the_site() {
        let stack = Stack { frames: vec![frame("/usr/lib/python3.12/threading.py"), frame("<string>")] };
        assert_eq!(&*stack.site().unwrap().file, "/usr/lib/python3.12/threading.py");
        assert_eq!(Stack::default().site(), None);
    }
}
