//! No import cycles between modules: in every crate, at every level, siblings import each other in one direction only.
//!
//! Guarantees: `use` lines, paths in code and re-exports are followed to the module that defines a name. A parent
//! (`mod.rs`) may define types that its children use, and call them as well; this does not count as a cycle. Imports of
//! tests do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A module's path within its crate.
type Place = Vec<String>;

/// A module: the names that it re-exports, and the paths that it names.
#[derive(Default)]
struct Module {
    handed_on: BTreeMap<String, Vec<String>>,
    named: Vec<Vec<String>>,
}

#[test]
fn modules_form_no_circles() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests lie in the repository");
    let crates = ["model", "proto", "analysis", "snapshot", "answers", "agent", "daemon", "cli", "bench"];
    let found: Vec<String> = crates
        .iter()
        .filter(|name| root.join(name).is_dir())
        .flat_map(|name| circles(name, &modules(&root.join(name).join("src"))))
        .collect();
    assert!(found.is_empty(), "modules import each other in a circle:\n{}", list(&found));
}

#[test]
fn a_circle_is_seen_through_use_lines_paths_and_what_is_handed_on() {
    let text = |of: &[(&str, &str)]| -> BTreeMap<Place, Module> {
        let places = of.iter().map(|(place, _)| split(place)).collect();
        of.iter().map(|(place, text)| (split(place), module(&split(place), text, &places))).collect()
    };
    let two = |a: &str, b: &str| circles("it", &text(&[("", "mod a; mod b; pub use b::B;"), ("a", a), ("b", b)]));
    assert_eq!(two("use crate::B;", "fn f() {}"), [""; 0]);
    assert_eq!(two("use crate::{B, c};", "use super::a::{self, A};").len(), 1);
    assert_eq!(two("fn f() { super::b::g() }", "fn g() { crate::a::f() }").len(), 1);
    assert_eq!(two("use crate::B;", "// use crate::a::A;\nconst A: &str = \"crate::a::A\";"), [""; 0]);
    assert_eq!(two("use crate::B;", "#[cfg(test)]\nmod tests {\n use crate::a::A;\n}"), [""; 0]);
}

fn list(of: &[String]) -> String {
    of.iter().map(|line| format!("  {line}\n")).collect()
}

fn split(path: &str) -> Vec<String> {
    path.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// All modules below a folder of sources.
fn modules(src: &Path) -> BTreeMap<Place, Module> {
    let mut files = Vec::new();
    gather(src, &mut files);
    let texts: BTreeMap<Place, String> =
        files.iter().map(|file| (place(src, file), fs::read_to_string(file).expect("a source can be read"))).collect();
    let places: BTreeSet<Place> = texts.keys().cloned().collect();
    let tests = |place: &Place| place.last().is_some_and(|name| name.ends_with("tests"));
    texts
        .iter()
        .filter(|(place, _)| !tests(place))
        .map(|(place, text)| (place.clone(), module(place, text, &places)))
        .collect()
}

fn gather(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder can be read") {
        let path = entry.expect("an entry can be read").path();
        if path.is_dir() && !path.ends_with("generated") {
            gather(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

fn place(src: &Path, file: &Path) -> Place {
    let inside = file.strip_prefix(src).expect("files lie below their sources").with_extension("");
    let mut place: Place = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if place.last().is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main")) {
        place.pop();
    }
    place
}

fn module(place: &Place, text: &str, places: &BTreeSet<Place>) -> Module {
    let code = code_of(text);
    let mut module = Module::default();
    let mut bound: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut rest = String::new();
    for statement in code.split_inclusive([';', '{', '}']).scan(String::new(), whole_use) {
        let words = statement.trim_start();
        let Some((public, tree)) = used(words) else {
            rest.push_str(&statement);
            continue;
        };
        for (path, name) in branches(tree) {
            let Some(path) = absolute(place, &path, places) else { continue };
            if public {
                module.handed_on.insert(name.clone(), path.clone());
            }
            if places.contains(&path) {
                bound.insert(name, path.clone());
            }
            module.named.push(path);
        }
    }
    let paths = rest.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).filter(|word| word.contains("::"));
    for path in paths.map(split).filter(|path| path.len() > 1) {
        let through = bound.get(&path[0]).map(|of| of.iter().chain(&path[1..]).cloned().collect());
        module.named.extend(through.or_else(|| absolute(place, &path, places)));
    }
    module
}

/// Joins the pieces of a `use` with braces.
fn whole_use(open: &mut String, piece: &str) -> Option<String> {
    open.push_str(piece);
    let begun = used(open.trim_start()).is_some();
    Some(if begun && !open.ends_with(';') { String::new() } else { std::mem::take(open) })
}

/// For a `use` statement: whether it is public, and its tree.
fn used(statement: &str) -> Option<(bool, &str)> {
    let rest = statement.strip_prefix("pub").map(|rest| match rest.strip_prefix('(') {
        Some(rest) => rest.split_once(')').map_or(rest, |(_, rest)| rest),
        None => rest,
    });
    let tree = rest.unwrap_or(statement).trim_start().strip_prefix("use")?;
    (tree.starts_with([' ', '\n']) && !tree.trim_start().starts_with('<'))
        .then(|| (rest.is_some(), tree.trim().trim_end_matches(';')))
}

/// The code without comments, texts and modules of tests.
fn code_of(text: &str) -> String {
    let text = text.find("#[cfg(test)]\nmod ").map_or(text, |at| &text[..at]);
    let mut code = String::new();
    for line in text.lines() {
        let mut quoted = false;
        let mut before = ' ';
        for (at, c) in line.char_indices() {
            match c {
                '/' if !quoted && line[at..].starts_with("//") => break,
                '"' if before != '\\' && before != '\'' => quoted = !quoted,
                _ if quoted => {}
                _ => code.push(c),
            }
            before = c;
        }
        code.push('\n');
    }
    code
}

/// The paths of a tree of names, each with the name that it is bound to.
fn branches(tree: &str) -> Vec<(Vec<String>, String)> {
    let Some((head, body)) = tree.split_once('{') else {
        let (path, name) = tree.split_once(" as ").map_or((tree, None), |(path, name)| (path, Some(name)));
        let path = split(path);
        let name = name.map(|name| name.trim().to_owned()).or_else(|| path.last().cloned());
        return name.map(|name| (path, name)).into_iter().collect();
    };
    let body = body.trim_end().strip_suffix('}').unwrap_or(body);
    let (mut depth, mut from, mut parts) = (0_u32, 0, Vec::new());
    for (at, c) in body.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&body[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&body[from..]);
    let head = split(head);
    let of = |(path, name): (Vec<String>, String)| {
        let own = path.last().is_some_and(|last| last == "self");
        let path: Vec<String> = head.iter().chain(&path).filter(|part| *part != "self").cloned().collect();
        let name = if own { path.last().cloned().unwrap_or_default() } else { name };
        (path, name)
    };
    parts.into_iter().filter(|part| !part.trim().is_empty()).flat_map(|part| branches(part.trim())).map(of).collect()
}

/// A path from the crate's root, if it leads into the crate.
fn absolute(place: &Place, path: &[String], places: &BTreeSet<Place>) -> Option<Vec<String>> {
    let first = path.first()?;
    if first == "crate" {
        return Some(path[1..].to_vec());
    }
    let ups = path.iter().take_while(|part| *part == "super").count();
    let rest = if first == "self" { &path[1..] } else { &path[ups..] };
    let joined: Vec<String> = place.iter().take(place.len().checked_sub(ups)?).chain(rest).cloned().collect();
    let child: Vec<String> = place.iter().chain([first]).cloned().collect();
    (ups > 0 || first == "self" || places.contains(&child)).then_some(joined)
}

/// The module that defines what a path names.
fn home(path: &[String], modules: &BTreeMap<Place, Module>, steps: u32) -> Option<Place> {
    let known = (0..=path.len()).rev().find(|&length| modules.contains_key(&path[..length]))?;
    let (place, rest) = path.split_at(known);
    let on = rest.first().and_then(|name| modules[place].handed_on.get(name)).filter(|_| steps < 8);
    on.map_or(Some(place.to_vec()), |on| {
        let path: Vec<String> = on.iter().chain(&rest[1..]).cloned().collect();
        home(&path, modules, steps + 1)
    })
}

/// Each cycle between siblings, as a line with their names and the names that connect them.
fn circles(name: &str, modules: &BTreeMap<Place, Module>) -> Vec<String> {
    let mut below: BTreeMap<Place, BTreeMap<String, BTreeMap<String, String>>> = BTreeMap::new();
    for (place, module) in modules {
        for home in module.named.iter().filter_map(|path| home(path, modules, 0)) {
            let shared = place.iter().zip(&home).take_while(|(a, b)| a == b).count();
            let (Some(from), Some(to)) = (place.get(shared), home.get(shared)) else { continue };
            let tie = format!("{} takes from {}", place.join("::"), home.join("::"));
            let arrows = below.entry(place[..shared].to_vec()).or_default().entry(from.clone()).or_default();
            arrows.entry(to.clone()).or_insert(tie);
        }
    }
    let mut found = Vec::new();
    for (parent, arrows) in &below {
        let reached: BTreeMap<&String, BTreeSet<&String>> =
            arrows.keys().map(|from| (from, reach(from, arrows))).collect();
        let both = |a: &String, b: &String| reached[a].contains(b) && reached.get(b).is_some_and(|of| of.contains(a));
        let mut reported: BTreeSet<&String> = BTreeSet::new();
        for from in arrows.keys().filter(|from| both(from, from)) {
            let circle: Vec<&String> = arrows.keys().filter(|to| both(from, to)).collect();
            if reported.insert(circle[0]) {
                let ties = circle.iter().flat_map(|from| arrows[*from].iter().filter(|(to, _)| circle.contains(to)));
                let ties: Vec<&str> = ties.map(|(_, tie)| tie.as_str()).collect();
                let names: Vec<&str> = circle.iter().map(|name| name.as_str()).collect();
                found.push(format!("{name}, {}: {} ({})", parent.join("::"), names.join(" "), ties.join(", ")));
            }
        }
    }
    found
}

fn reach<'a>(from: &String, arrows: &'a BTreeMap<String, BTreeMap<String, String>>) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&String> = arrows.get(from).into_iter().flat_map(BTreeMap::keys).collect();
    while let Some(next) = open.pop() {
        if reached.insert(next) {
            open.extend(arrows.get(next).into_iter().flat_map(BTreeMap::keys));
        }
    }
    reached
}
