//! The language of comments and documents: few unusual words, and short sentences.
//!
//! Guarantees: counts comments of Rust, Python and TypeScript and all text of documents, without code in them. The
//! meaning of a word is not considered: a word on the list is counted everywhere.

use std::path::{Path, PathBuf};

/// Pronouns and adverbs with a plainer counterpart: `no one`, `those who`, `again`.
const ODD: [&str; 5] = ["nobody", "whoever", "somebody", "anybody", "anew"];
/// Verbs that hide who reports, shows or distinguishes what.
const TELL: [&str; 3] = ["tell", "tells", "told"];
/// Words of a list for each 1,000 words of text, at most.
const SHARE_MAX: f64 = 0.1;
/// The median sentence of a document has at most this many words,
const MEDIAN_MAX: usize = 18;
/// and one in ten may have more than this many.
const TENTH_MAX: usize = 30;
/// A document with fewer sentences is a table or a list.
const SENTENCES_MIN: usize = 10;

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    const LEFT_OUT: [&str; 7] = ["target", ".git", "generated", "node_modules", ".venv", "dist", "results"];
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() && !LEFT_OUT.contains(&name.as_str()) {
            files(&path, found);
        } else if [".rs", ".py", ".ts", ".tsx", ".md"].iter().any(|end| name.ends_with(end)) {
            found.push(path);
        }
    }
}

/// The prose of a file: all text of a document, the comments of a source.
fn prose(path: &Path, text: &str) -> String {
    match path.extension().and_then(|end| end.to_str()) {
        Some("md") => without_code(text),
        Some("py") => comments(text, "#") + &doc_strings(text),
        _ => comments(text, "//"),
    }
}

fn comments(text: &str, mark: &str) -> String {
    let lines = text.lines().filter_map(|line| line.trim_start().strip_prefix(mark));
    lines.map(without_quotes).collect::<Vec<_>>().join("\n")
}

/// The texts between three quotation marks that begin a module, a class or a function.
fn doc_strings(text: &str) -> String {
    let mut texts = text.split("\"\"\"");
    let mut found = String::new();
    while let (Some(before), Some(inside)) = (texts.next(), texts.next()) {
        let opens = before.trim_end().is_empty() || before.trim_end().ends_with(':');
        if opens {
            found.push('\n');
            found.push_str(&without_quotes(inside));
        }
    }
    found
}

/// The text without fenced blocks and without text in backquotes.
fn without_code(text: &str) -> String {
    text.split("```").step_by(2).map(without_quotes).collect()
}

fn without_quotes(text: &str) -> String {
    text.split('`').step_by(2).collect::<Vec<_>>().join(" it ")
}

fn words(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|letter: char| !letter.is_alphanumeric() && letter != '\'' && letter != '-');
    words.filter(|word| word.chars().any(char::is_alphabetic)).map(str::to_lowercase)
}

#[test]
fn comments_and_documents_use_plain_words() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap();
    let (mut all, mut count, mut seen) = (Vec::new(), 0_usize, Vec::new());
    files(&root, &mut all);
    assert!(all.len() > 500, "only {} files were read", all.len());
    for path in all.iter().filter(|path| !path.ends_with("tests/tests/house/words.rs")) {
        for word in words(&prose(path, &std::fs::read_to_string(path).unwrap())) {
            count += 1;
            if ODD.contains(&word.as_str()) || TELL.contains(&word.as_str()) {
                seen.push((word, path.strip_prefix(&root).unwrap().to_owned()));
            }
        }
    }
    for list in [&ODD[..], &TELL] {
        let found: Vec<_> = seen.iter().filter(|(word, _)| list.contains(&word.as_str())).collect();
        let share = found.len() as f64 * 1_000.0 / count as f64;
        assert!(share <= SHARE_MAX, "{share:.3} of 1,000 words are among {list:?}: {found:?}");
    }
}

/// Words of each sentence, without tables, headings and code.
fn sentences(text: &str) -> Vec<usize> {
    let lines = without_code(text);
    let lines = lines.lines().filter(|line| !line.starts_with('|') && !line.starts_with('#'));
    let ends = |line: &str| line.split_inclusive(['.', '!', '?', ':']).map(str::to_owned).collect::<Vec<_>>();
    let mut counts: Vec<usize> = Vec::new();
    for line in lines {
        let mut carried = 0;
        for part in ends(line) {
            carried += words(&part).count();
            // A full stop within a name or a number does not end a sentence.
            if part.ends_with(['.', '!', '?', ':']) && carried >= 3 {
                counts.push(std::mem::take(&mut carried));
            }
        }
        counts.extend((carried >= 3).then_some(carried));
    }
    counts
}

#[test]
fn documents_have_short_sentences() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let at_top = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "ARCHITECTURE.md", "CHANGELOG.md", "BENCHMARKS.md"];
    let mut pages: Vec<PathBuf> = at_top.iter().map(|name| root.join(name)).collect();
    files(&root.join("docs"), &mut pages);
    assert!(pages.len() > 12, "{pages:?}");
    for page in pages {
        let mut counts = sentences(&std::fs::read_to_string(&page).unwrap());
        if counts.len() < SENTENCES_MIN {
            continue;
        }
        counts.sort_unstable();
        let (median, tenth) = (counts[counts.len() / 2], counts[counts.len() * 9 / 10]);
        assert!(median <= MEDIAN_MAX, "{}: the median sentence has {median} words", page.display());
        assert!(tenth <= TENTH_MAX, "{}: one sentence in ten has {tenth} words or more", page.display());
    }
}

#[test]
fn a_word_on_the_list_is_seen_in_comments_and_not_in_code() {
    let rust = "let told = 1; // nothing\n// Nobody is told.\n/// A `told` name.\n";
    let read = |name: &str, text: &str| -> Vec<String> {
        words(&prose(Path::new(name), text))
            .filter(|word| ODD.contains(&word.as_str()) || TELL.contains(&word.as_str()))
            .collect()
    };
    assert_eq!(read("a.rs", rust), ["nobody", "told"]);
    assert_eq!(read("a.py", "\"\"\"Told anew.\"\"\"\nx = 'told'\n# tells\n"), ["tells", "told", "anew"]);
    assert_eq!(read("a.md", "Told.\n```\ntold\n```\n"), ["told"]);
    assert_eq!(sentences("One two three. Four five six seven.\n| a b c d |\n"), [3, 4]);
}
