//! The page's TypeScript types, made from the structs that are serialised.
//!
//! Guarantees: `web/src/api/types/` has every type that an answer to the page consists of, with every field. (The fields'
//! descriptions are in `docs/json.md` and at the structs.) Refuses two types of one name: `ts(rename = "…")` distinguishes them.
//!
//! A field with `skip_serializing_if` needs `serde(default)` beside it: only then does ts-rs write it as optional.
//!
//! `MEMCTL_REGENERATE=1 cargo test -p memctl-answers typescript` writes the file again.

use std::any::TypeId;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::marker::PhantomData;
use std::path::Path;

use memctl_model::{Gap, JobState, Severity};
use ts_rs::{Config, TS, TypeVisitor};

const HEAD: &str = "\
// The responses of `/api/v1`. docs/json.md describes their fields.
//
// Generated from the structs in answers/: `MEMCTL_REGENERATE=1 cargo test -p memctl-answers typescript` writes this file.
// (Over 400 lines: a list of fields.)
";

/// Types that have the fields of another one, where that is optional: ts-rs does not write them.
const EXTENDS: [(&str, &str); 1] = [("JobVerdict", "Partial<Verdict>")];

/// Visits the answers of a file.
type Visit = fn(&mut Types<'_>);

/// The files, in the order in which they are made. A type is in the first file that needs it.
const FILES: [(&str, Visit); 2] = [("jobs", of_jobs), ("memory", of_memory)];

/// The answers about jobs: what is known, found and reported of them.
fn of_jobs(types: &mut Types<'_>) {
    types.visit::<crate::access::Known>();
    types.visit::<crate::alerts::Alerts>();
    types.visit::<crate::alerts::Silences>();
    types.visit::<crate::diagnose::Diagnosis>();
    types.visit::<crate::jobs::Jobs>();
    types.visit::<crate::oom::Oom>();
    types.visit::<crate::report::Report>();
    types.visit::<crate::sparkline::Sparkline>();
}

/// The answers about memory: over time, at a moment, and under other settings.
fn of_memory(types: &mut Types<'_>) {
    types.visit::<crate::anatomy::Anatomy>();
    types.visit::<crate::blocks::Blocks>();
    types.visit::<crate::classes::Classes>();
    types.visit::<crate::diff::Diff>();
    types.visit::<crate::dossier::flame::Flame>();
    types.visit::<crate::fit::Fit>();
    types.visit::<crate::heat::Heat>();
    types.visit::<crate::ledger::Ledger>();
    types.visit::<crate::sites::Sites>();
    types.visit::<crate::step_memory::StepMemory>();
    types.visit::<crate::tile::Head>();
    types.visit::<crate::timeline::Timeline>();
    types.visit::<crate::what_if::WhatIf>();
}

/// A value of the model that is written by its name.
pub struct ByName<T>(PhantomData<T>);

/// The names of a type's values.
pub trait Names {
    const TYPE: &'static str;
    const DOCS: &'static str;

    fn names() -> Vec<&'static str>;
}

impl Names for Gap {
    const TYPE: &'static str = "Gap";
    const DOCS: &'static str = "How much was not judged.";

    fn names() -> Vec<&'static str> {
        [Self::Part, Self::Whole].map(Self::name).into()
    }
}

impl Names for JobState {
    const TYPE: &'static str = "JobState";
    const DOCS: &'static str = "The state of a job, or of a process.";

    fn names() -> Vec<&'static str> {
        Self::ALL.map(Self::name).into()
    }
}

impl Names for Severity {
    const TYPE: &'static str = "Severity";
    const DOCS: &'static str = "How serious a finding is.";

    fn names() -> Vec<&'static str> {
        Self::ALL.map(Self::name).into()
    }
}

impl<T: Names + 'static> TS for ByName<T> {
    type WithoutGenerics = Self;
    type OptionInnerType = Self;

    fn docs() -> Option<String> {
        Some(format!("/**\n * {}\n */\n", T::DOCS))
    }

    fn name(_: &Config) -> String {
        T::TYPE.to_owned()
    }

    fn inline(_: &Config) -> String {
        T::names().iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(" | ")
    }

    fn output_path() -> Option<std::path::PathBuf> {
        Some(T::TYPE.into())
    }
}

/// The declarations, by name.
struct Types<'c> {
    config: &'c Config,
    found: BTreeMap<String, (TypeId, String)>,
}

impl TypeVisitor for Types<'_> {
    fn visit<T: TS + 'static + ?Sized>(&mut self) {
        // (Numbers, lists and the like have no declaration.)
        if T::output_path().is_none() {
            return;
        }
        let (name, id) = (T::name(self.config), TypeId::of::<T>());
        if let Some((known, _)) = self.found.get(&name) {
            assert_eq!(*known, id, "two types have the name {name}: one needs ts(rename = \"…\")");
            return;
        }
        let text = declaration(&name, T::docs(), &T::inline(self.config));
        self.found.insert(name, (id, text));
        T::visit_dependencies(self);
    }
}

/// A declaration, a line for each field.
fn declaration(name: &str, docs: Option<String>, inline: &str) -> String {
    let mut text = docs.map_or_else(String::new, |docs| comment(docs.trim()));
    let Some(fields) = inline.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) else {
        let _ = writeln!(text, "export type {name} = {};", shape(inline));
        return text;
    };
    let base =
        EXTENDS.iter().find(|(of, _)| *of == name).map_or_else(String::new, |(_, base)| format!(" extends {base}"));
    let _ = writeln!(text, "export interface {name}{base} {{");
    // Every field has a description: the compiler asks for it.
    for part in fields.split("/**").filter(|part| !part.trim().is_empty()) {
        let (_, field) = part.split_once("*/").expect("a description");
        let (field, of) = field.trim().trim_end_matches(',').split_once(": ").expect("a field and its type");
        let _ = writeln!(text, "  {field}: {};", shape(of));
    }
    text.push_str("}\n");
    text
}

/// A description, on one line where it has only one.
fn comment(docs: &str) -> String {
    let docs = docs.trim().trim_start_matches("/**").trim_end_matches("*/").trim();
    let docs = without_links(docs);
    let lines: Vec<&str> = docs.lines().map(|line| line.trim().trim_start_matches('*').trim()).collect();
    match lines.as_slice() {
        [line] => format!("/** {line} */\n"),
        lines => {
            let lines: String = lines.iter().map(|line| format!(" * {line}\n")).collect();
            format!("/**\n{lines} */\n")
        }
    }
}

/// Without the links of Rust: "[`a::B`](c)" becomes "`B`".
fn without_links(docs: &str) -> String {
    let (mut text, mut rest) = (String::new(), docs);
    while let Some((before, behind)) = rest.split_once("[`") {
        let (link, behind) = behind.split_once("`]").expect("an end of the link");
        let _ = write!(text, "{before}`{}`", link.rsplit("::").next().unwrap_or(link));
        let target = behind.strip_prefix('(').and_then(|target| target.split_once(')'));
        rest = target.map_or(behind, |(_, behind)| behind);
    }
    text + rest
}

/// A type in the style of the page.
fn shape(of: &str) -> String {
    let mut text = of.replace('"', "'");
    // The last `Array<` has no other one within.
    while let Some(start) = text.rfind("Array<") {
        let end = start + text[start..].find('>').expect("an end of the list");
        let of = &text[start + "Array<".len()..end];
        let list = if of.contains(" | ") { format!("({of})[]") } else { format!("{of}[]") };
        text.replace_range(start..=end, &list);
    }
    if let Some(of) = text.strip_prefix("{ [key in string]: ").and_then(|rest| rest.strip_suffix(" }")) {
        return format!("Record<string, {of}>");
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in text.split(" | ") {
        // (A list of unions is in brackets, and its parts stay as they are.)
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    parts.join(" | ")
}

#[test]
#[expect(clippy::disallowed_methods, reason = "it compares a file, and writes it when it is asked to")]
fn the_pages_types_are_made_from_the_structs() {
    let config = Config::new().with_large_int("number").with_array_tuple_limit(0);
    let mut types = Types { config: &config, found: BTreeMap::new() };
    let mut earlier: BTreeMap<String, &str> = BTreeMap::new();
    for (name, visit) in FILES {
        visit(&mut types);
        let own = types.found.iter().filter(|(name, _)| !earlier.contains_key(*name));
        let declarations: Vec<&str> = own.map(|(_, (_, declaration))| declaration.as_str()).collect();
        let text = format!("{HEAD}{}\n{}", imports(&declarations, &earlier), declarations.join("\n"));
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../web/src/api/types/{name}.ts"));
        if std::env::var_os("MEMCTL_REGENERATE").is_some() {
            std::fs::write(&file, text).expect("the types are written");
        } else {
            assert!(
                std::fs::read_to_string(&file).is_ok_and(|found| found == text),
                "web/src/api/types/{name}.ts is stale: run MEMCTL_REGENERATE=1 cargo test -p memctl-answers typescript"
            );
        }
        for known in types.found.keys() {
            earlier.entry(known.clone()).or_insert(name);
        }
    }
}

/// The line that imports what other files have.
fn imports(declarations: &[&str], earlier: &BTreeMap<String, &str>) -> String {
    let words =
        declarations.iter().flat_map(|text| text.lines()).filter(|line| line.starts_with("  ") || line.contains(" = "));
    let words: BTreeSet<&str> =
        words.flat_map(|line| line.split(|letter: char| !letter.is_alphanumeric() && letter != '_')).collect();
    let mut by_file: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (known, file) in earlier.iter().filter(|(known, _)| words.contains(known.as_str())) {
        by_file.entry(file).or_default().push(known);
    }
    by_file.iter().fold(String::new(), |text, (file, names)| {
        format!("{text}\nimport type {{ {} }} from './{file}';\n", names.join(", "))
    })
}
