//! Derives the name of an autograd node from the C++ name of its type, `typeid(node).name()` of the Itanium ABI.
//!
//! For example, `N5torch8autograd9generated12MulBackward0E` gives `MulBackward0`, and a
//! `torch::autograd::CppNode<ns::Fn>` gives `CppNode<Fn>`.
//! Guarantees: never panics. The depth of recursion is bounded. A name has at most [`NAME_BYTES`] bytes. Any other text
//! gives its longest identifier, or itself truncated.
//! Refuses: to be a complete demangler. Scopes, substitutions and numbers are skipped.

/// Maximum bytes of a name. Longer names are truncated.
pub const NAME_BYTES: usize = 256;
/// Maximum depth of nested templates. Deeper ones lose their arguments.
const DEPTH_MAX: usize = 12;

/// The last component of a type's name, as in PyTorch's `grad_fn`.
#[must_use]
pub fn node_name(raw: &str) -> String {
    // The name of a type that is local to one translation unit has a leading star.
    let mangled = raw.strip_prefix('*').unwrap_or(raw);
    let mangled = mangled.strip_prefix("_ZTS").or_else(|| mangled.strip_prefix("_ZTI")).unwrap_or(mangled);
    let mut reader = Reader { text: mangled, depth: 0 };
    let name = match reader.type_name() {
        Some(Some(name)) if reader.text.is_empty() => name,
        _ if raw.contains("::") => last_component(raw).to_owned(),
        _ => longest_identifier(mangled).to_owned(),
    };
    let name = if name.is_empty() { raw } else { &name };
    name[..name.floor_char_boundary(NAME_BYTES)].to_owned()
}

/// Reads a mangled name. `text` is the part that is not read yet.
struct Reader<'a> {
    text: &'a str,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, prefix: &str) -> bool {
        let rest = self.text.strip_prefix(prefix);
        self.text = rest.unwrap_or(self.text);
        rest.is_some()
    }

    /// Reads a type. Returns `None` when it is not understood, and `Some(None)` for a type without its own name (`int`,
    /// a substitution).
    fn type_name(&mut self) -> Option<Option<String>> {
        if self.depth == DEPTH_MAX {
            return None;
        }
        self.depth += 1;
        let name = self.type_within();
        self.depth -= 1;
        name
    }

    fn type_within(&mut self) -> Option<Option<String>> {
        // Pointers, references, const and volatile do not change the name.
        self.text = self.text.trim_start_matches(['P', 'R', 'O', 'K', 'V']);
        if self.take("N") {
            return self.components(true);
        }
        if self.take("Z") {
            return self.local();
        }
        let first = self.text.bytes().next()?;
        match first {
            b'0'..=b'9' | b'S' => self.components(false),
            b'T' => {
                // A parameter of the enclosing template.
                let end = self.text.find('_')?;
                self.text = &self.text[end + 1..];
                Some(None)
            }
            b'A' => {
                // An array is named after its elements.
                let end = self.text.find('_')?;
                self.text = &self.text[end + 1..];
                self.type_name()
            }
            b'M' => {
                // A pointer to a member is named after its class.
                self.text = &self.text[1..];
                let class = self.type_name()?;
                self.type_name()?;
                Some(class)
            }
            b'F' => {
                self.text = &self.text[1..];
                while !self.take("E") {
                    self.type_name()?;
                }
                Some(None)
            }
            b'D' => {
                // Two letters: decltype(nullptr), half, char8_t and the like.
                self.text = self.text.get(2..)?;
                Some(None)
            }
            b'a'..=b'z' => {
                self.text = &self.text[1..];
                Some(None)
            }
            _ => None,
        }
    }

    /// Reads the components of a nested name up to its `E`, or the only component of a plain name. Returns the last
    /// one, with its arguments.
    fn components(&mut self, nested: bool) -> Option<Option<String>> {
        let mut last: Option<String> = None;
        loop {
            if nested && self.take("E") {
                return Some(last);
            }
            match self.text.bytes().next() {
                Some(b'0'..=b'9') => last = Some(self.identifier()?.to_owned()),
                Some(b'S') => {
                    last = None;
                    // After `std`, the name follows.
                    if self.substitution()? && !nested {
                        last = Some(self.identifier()?.to_owned());
                    }
                }
                Some(b'I') => {
                    let Some(arguments) = self.arguments() else {
                        // This may be an expression. The components so far are the name.
                        self.text = "";
                        return Some(last);
                    };
                    last = last.map(|name| if arguments.is_empty() { name } else { format!("{name}<{arguments}>") });
                }
                Some(b'B') => {
                    // An ABI tag.
                    self.text = &self.text[1..];
                    self.identifier()?;
                }
                Some(b'r' | b'V' | b'K' | b'L') if nested => self.text = &self.text[1..],
                // A lambda or an unnamed type.
                Some(b'U') => last = self.unnamed()?,
                _ if nested => return None,
                _ => return Some(last),
            }
            // The rest of the text bounds the loop, and this limit bounds names.
            if last.as_ref().is_some_and(|name| name.len() > 4 * NAME_BYTES) {
                return None;
            }
        }
    }

    /// Reads an identifier with its length, such as `12MulBackward0`.
    fn identifier(&mut self) -> Option<&'a str> {
        let digits = self.text.bytes().take_while(u8::is_ascii_digit).count();
        let length: usize = self.text[..digits].parse().ok()?;
        let end = digits.checked_add(length)?;
        let name = self.text.get(digits..end).filter(|name| !name.is_empty())?;
        self.text = &self.text[end..];
        Some(if name.starts_with("_GLOBAL__N") { "(anonymous)" } else { name })
    }

    /// Reads a substitution: `S_`, `S1_`, `St`, `Ss` and similar ones. Returns true for `St`, which a name follows.
    fn substitution(&mut self) -> Option<bool> {
        let after = &self.text[1..];
        let letter = after.bytes().next()?;
        if letter.is_ascii_lowercase() {
            self.text = &after[1..];
            return Some(letter == b't');
        }
        let end = after.bytes().position(|byte| byte == b'_')?;
        if !after[..end].bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase()) {
            return None;
        }
        self.text = &after[end + 1..];
        Some(false)
    }

    /// Reads the template arguments between `I` and `E`. Returns their names, separated by commas. Arguments without a
    /// name are left out.
    fn arguments(&mut self) -> Option<String> {
        self.take("I");
        let mut names: Vec<String> = Vec::new();
        while !self.take("E") {
            // The arguments of a pack count as separate arguments.
            if self.take("J") {
                let mut rest = Reader { text: self.text, depth: self.depth + 1 };
                if rest.depth >= DEPTH_MAX {
                    return None;
                }
                let pack = rest.arguments()?;
                self.text = rest.text;
                names.extend((!pack.is_empty()).then_some(pack));
            } else if self.take("L") {
                // A value consists of its type, its digits and `E`.
                self.type_name()?;
                let end = self.text.find('E')?;
                self.text = &self.text[end + 1..];
            } else {
                names.extend(self.type_name()?);
            }
        }
        Some(names.join(", "))
    }

    /// Reads a type inside a function: `Z`, the function, `E`, the type's name, a number.
    fn local(&mut self) -> Option<Option<String>> {
        // The function's parameters are a list of types after its name.
        self.type_name()?;
        while !self.take("E") {
            self.type_name()?;
        }
        let name = self.components(false)?;
        if self.take("_") {
            self.text = self.text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '_');
        }
        Some(name)
    }

    /// Reads a type without a name: `Ut_`, `Ut3_`, `UlvE_`, `UliiE2_`.
    fn unnamed(&mut self) -> Option<Option<String>> {
        let lambda = self.take("Ul");
        if lambda {
            while !self.take("E") {
                self.type_name()?;
            }
        } else if !self.take("Ut") {
            return None;
        }
        let end = self.text.find('_')?;
        if !self.text[..end].bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        self.text = &self.text[end + 1..];
        Some(Some(if lambda { "(lambda)" } else { "(unnamed)" }.to_owned()))
    }
}

/// The part after the last `::` of a readable name, outside of `<…>`.
fn last_component(name: &str) -> &str {
    let (mut depth, mut begin, mut before) = (0usize, 0, b' ');
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'<' => depth += 1,
            b'>' => depth = depth.saturating_sub(1),
            b':' if before == b':' && depth == 0 => begin = at + 1,
            _ => {}
        }
        before = byte;
    }
    name[begin..].trim()
}

/// The longest run of letters, digits and `_` that does not begin with a digit; the first if there are several.
fn longest_identifier(text: &str) -> &str {
    let mut longest = "";
    for run in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
        let run = run.trim_start_matches(|c: char| c.is_ascii_digit());
        if run.len() > longest.len() {
            longest = run;
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nodes_have_the_names_that_grad_fn_shows() {
        for (raw, name) in [
            // These names are from g++ 12.
            ("N5torch8autograd9generated12MulBackward0E", "MulBackward0"),
            ("N5torch8autograd9generated24NativeLayerNormBackward0E", "NativeLayerNormBackward0"),
            ("N5torch8autograd14AccumulateGradE", "AccumulateGrad"),
            ("N5torch8autograd12_GLOBAL__N_16HiddenE", "Hidden"),
            ("N5torch8autograd7CppNodeIN3foo4MyFnEEE", "CppNode<MyFn>"),
            ("N5torch8autograd7CppNodeIN3foo2FnIfLi3EEEEE", "CppNode<Fn>"),
            ("N5torch8autograd7CppNodeIN3foo2FnIfLin3EEEEE", "CppNode<Fn>"),
            ("N5torch8autograd7CppNodeIN3foo4PairINS2_1AESt6vectorIfSaIfEEEEEE", "CppNode<Pair<A, vector>>"),
            ("N5torch8autograd7CppNodeIN3foo12_GLOBAL__N_13ROIEEE", "CppNode<ROI>"),
            ("N3foo4PairIifE5InnerE", "Inner"),
            ("N3foo3BarIJifNS_1AEEE3BazE", "Baz"),
            ("N3foo3BarIJEE3BazE", "Baz"),
            ("N5torch8autograd7CppNodeISt10shared_ptrIN3foo1AEEEE", "CppNode<shared_ptr<A>>"),
            ("St6vectorIiSaIiEE", "vector"),
            ("N5torch8autograd7CppNodeISt8functionIFiiEEEE", "CppNode<function>"),
            ("N5torch8autograd7CppNodeIPN3foo1AEEE", "CppNode<A>"),
            ("N5torch8autograd7CppNodeIN3foo4PairINS2_1AES4_EEEE", "CppNode<Pair<A>>"),
            ("N5torch8autograd7CppNodeIA3_N3foo1AEEE", "CppNode<A>"),
            ("6TaggedB5cxx11", "Tagged"),
            ("N5torch8autograd7CppNodeI6TaggedB5cxx11EE", "CppNode<Tagged>"),
            ("4FlagILb1EE", "Flag"),
            ("2FpIXadL_Z2ffiEEE", "Fp"),
            ("2TTISt6vectorE", "TT<vector>"),
            ("N5torch8autograd7CppNodeIDnEE", "CppNode"),
            ("N5torch8autograd7CppNodeIMN3foo1AEFvvEEE", "CppNode<A>"),
            ("Z4mainE1L", "L"),
            ("N5torch8autograd7CppNodeIZ4mainE1LEE", "CppNode<L>"),
            ("Z4mainE1L_0", "L"),
            ("N5torch8autograd7CppNodeIZ4mainEUliE_EE", "CppNode<(lambda)>"),
            ("Z4mainEUlN3foo1AEdE0_", "(lambda)"),
            ("Z5innerIiEvT_E5Local", "Local"),
            ("N5torch8autograd7CppNodeIZ5innerIiEvT_E5LocalEE", "CppNode<Local>"),
            ("Z4mainEUt_", "(unnamed)"),
            ("N5torch8autograd7CppNodeINS1_INS1_IN3foo4MyFnEEEEEEE", "CppNode"),
            ("N5torch8autograd7CppNodeIRKN3foo1AEEE", "CppNode<A>"),
            ("12MulBackward0", "MulBackward0"),
            ("*N12_GLOBAL__N_18BackwardE", "Backward"),
            ("_ZTSN5torch8autograd9GraphRootE", "GraphRoot"),
            ("torch::autograd::generated::MulBackward0", "MulBackward0"),
            ("torch::autograd::CppNode<foo::MyFn>", "CppNode<foo::MyFn>"),
        ] {
            assert_eq!(node_name(raw), name.to_owned(), "{raw}");
        }
    }

    #[test]
    fn what_is_no_such_name_is_cut_or_its_longest_identifier() {
        for (raw, name) in [
            ("", ""),
            ("MulBackward0", "MulBackward0"),
            ("N5torch8autograd99MulBackward0E", "N5torch8autograd99MulBackward0E"),
            ("N5torch8autograd", "N5torch8autograd"),
            ("!!", "!!"),
            ("日本", "日本"),
            ("a-bcd-e", "bcd"),
            ("99999999999999999999999999x", "x"),
        ] {
            assert_eq!(node_name(raw), name.to_owned(), "{raw}");
        }
        assert_eq!(node_name(&"日".repeat(300)).len(), 255);
        assert_eq!(node_name(&"x".repeat(1_000)).len(), NAME_BYTES);
        assert!(node_name(&"N1aI".repeat(10_000)).len() <= NAME_BYTES);
        assert!(node_name(&"IJ".repeat(10_000)).len() <= NAME_BYTES);
        assert!(node_name(&format!("N1a{}", "IJ".repeat(10_000))).len() <= NAME_BYTES);
    }

    proptest! {
        #[test]
        fn rubbish_never_panics(raw in prop_oneof![
            any::<String>(),
            "[N0-9a-zA-Z_*]{0,60}",
            "([N|Z|S|St|I|J|E|L|Ul|Ut|S_|1a|3foo|K|P|i|v|_|B|D]){0,80}",
        ]) {
            let name = node_name(&raw);
            prop_assert!(name.len() <= NAME_BYTES);
            prop_assert_eq!(name.is_empty(), raw.is_empty());
        }
    }
}
