//! Call stacks, interned: a frame is stored once, a stack is a list of frames, innermost first.

use std::sync::Arc;

/// A stack within its session; 0 means "no stack was recorded".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
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
pub struct Frame {
    /// Function name as the interpreter or symbolizer gives it.
    pub function: Arc<str>,
    /// File as recorded; empty when unknown.
    pub file: Arc<str>,
    /// Line, 0 when unknown.
    pub line: u32,
}

impl Frame {
    /// The function's name without the classes and functions it lies in: live stacks have qualified names from CPython 3.11 on
    /// (`Module._call_impl`), snapshots have plain ones.
    #[must_use]
    pub fn plain_function(&self) -> &str {
        self.function.rsplit('.').next().unwrap_or_default()
    }

    /// Whether the frame is the user's own code: a file that is neither the standard library's nor an installed package's nor the interpreter's.
    ///
    /// Judged by path alone, because the files are on another machine.
    #[must_use]
    pub fn is_user_code(&self) -> bool {
        let file = &*self.file;
        !(file.is_empty()
            || file.starts_with('<')
            || file == "??"
            || file.contains("/site-packages/")
            || file.contains("/dist-packages/")
            || file.contains("/lib/python3.")
            || file.contains("\\site-packages\\")
            || file.ends_with(".so")
            || file.ends_with(".cpp")
            || file.ends_with(".cc")
            || file.ends_with(".h")
            || file.ends_with(".cu"))
    }
}

/// A call stack: frames innermost first.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Stack {
    /// The frames, innermost first.
    pub frames: Vec<Frame>,
}

impl Stack {
    /// The innermost frame of the user's own code, else the innermost frame of all.
    #[must_use]
    pub fn site(&self) -> Option<&Frame> {
        self.frames.iter().find(|frame| frame.is_user_code()).or_else(|| self.frames.first())
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

    #[test]
    fn without_user_frames_the_innermost_stands_for_the_site() {
        let stack = Stack { frames: vec![frame("/usr/lib/python3.12/threading.py"), frame("<string>")] };
        assert_eq!(&*stack.site().unwrap().file, "/usr/lib/python3.12/threading.py");
        assert_eq!(Stack::default().site(), None);
    }
}
