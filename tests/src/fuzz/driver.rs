//! Runs a target over its corpus and over mutations of it.
//!
//! Guarantees: the same inputs for the same seed, on every machine. An input with a new outcome joins those that are
//! mutated, so mutations get past the checks in front of a parser one by one.
//! Refuses: to end a run by the clock.

use std::collections::HashSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use super::{INPUT_BYTES_MAX, Target};

/// Inputs that are mutated, at most.
const POOL_MAX: usize = 1_000;
/// Outcomes that are compared, at most.
const TEXTS_MAX: usize = 4_000;
/// Bytes that parsers treat specially: ends of ranges, brackets, separators.
const TELLING: [u8; 20] = *b"\0\x01\x7f\x80\xff\x08.-<>=\"[]{}(\n0e";

/// An input under which a target panicked.
#[derive(Debug)]
pub struct Crash {
    /// The input.
    pub input: Vec<u8>,
    /// The message of the panic.
    pub said: String,
}

/// A target's corpus, in the order of the files' names.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder(target))
        .unwrap_or_else(|error| panic!("{}: {error}", folder(target).display()))
        .map(|entry| entry.expect("a file of the corpus").path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder(target).display());
    files.iter().map(|file| fs::read(file).expect("a file of the corpus")).collect()
}

fn folder(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target.name)
}

impl Crash {
    /// Adds the input to the corpus, so that every run begins with it. Returns the file's path.
    ///
    /// # Panics
    /// When it cannot be written.
    #[must_use]
    pub fn keep(&self, target: &Target) -> PathBuf {
        let path = folder(target).join(format!("crash-{:08x}", crc32c::crc32c(&self.input)));
        fs::write(&path, &self.input).expect("the corpus can be written");
        path
    }
}

/// Runs a target over its corpus, then over `inputs` mutations, and returns the distinct outcomes.
///
/// # Errors
/// The first input under which the target panicked, or after which `checked` reported something.
pub fn drive(
    target: &Target,
    inputs: u64,
    seed: u64,
    mut checked: impl FnMut() -> Result<(), String>,
) -> Result<HashSet<String>, Crash> {
    let mut pool = Vec::new();
    let (mut outcomes, mut texts) = (HashSet::new(), HashSet::new());
    let mut try_one = |input: Vec<u8>, pool: &mut Vec<Vec<u8>>| {
        let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(&input))).map_err(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            text.unwrap_or("a panic without words").to_owned()
        });
        let outcome = match outcome.and_then(|outcome| checked().map(|()| outcome)) {
            Ok(outcome) => outcome,
            Err(said) => return Err(Crash { input, said }),
        };
        // Digits only denote positions, so they are removed. Searching for quotations would take longer than most
        // targets.
        let new = texts.len() < TEXTS_MAX && texts.insert(outcome.replace(|c: char| c.is_ascii_digit(), ""));
        if new && outcomes.insert(own_words(&outcome, &input)) && pool.len() < POOL_MAX {
            pool.push(input);
        }
        Ok(())
    };
    let seeds = corpus(target);
    for seed in &seeds {
        try_one(seed.clone(), &mut pool)?;
    }
    pool.extend(seeds);
    let mut rng = Rng(seed);
    for _ in 0..inputs {
        let input = mutated(&pool, &mut rng);
        try_one(input, &mut pool)?;
    }
    Ok(outcomes)
}

/// Endless mutations of these inputs, the same for the same seed.
pub fn mutations(pool: Vec<Vec<u8>>, seed: u64) -> impl Iterator<Item = Vec<u8>> {
    let mut rng = Rng(seed);
    std::iter::repeat_with(move || mutated(&pool, &mut rng))
}

/// An outcome without its quotation of the input: a new quotation is not a new outcome.
fn own_words(outcome: &str, input: &[u8]) -> String {
    let quoted = |word: &&str| input.windows(word.len()).any(|part| part == word.as_bytes());
    let words = outcome.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| word.len() > 3);
    words.filter(|word| !quoted(word)).collect::<Vec<_>>().join(" ")
}

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 if `end` is 0.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

fn mutated(pool: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut input = pool[rng.below(pool.len())].clone();
    for _ in 0..=rng.below(4) {
        mutate(&mut input, pool, rng);
    }
    input.truncate(INPUT_BYTES_MAX);
    input
}

/// One change: of a bit, a byte or a number, or of a part that is removed, doubled or taken from another input.
fn mutate(input: &mut Vec<u8>, pool: &[Vec<u8>], rng: &mut Rng) {
    let at = rng.below(input.len());
    let telling = TELLING[rng.below(TELLING.len())];
    match rng.below(9) {
        0 if !input.is_empty() => input[at] ^= 1 << rng.below(8),
        1 if !input.is_empty() => input[at] = rng.next() as u8,
        2 if !input.is_empty() => input[at] = telling,
        3 if !input.is_empty() => input[at] = input[at].wrapping_add([1, 255, 16, 240][rng.below(4)]),
        4 => input.insert(at, telling),
        5 => {
            let end = (at + 1 + rng.below(16)).min(input.len());
            input.drain(at.min(end)..end);
        }
        6 => input.truncate(at),
        7 => {
            let part = part_of(input, rng);
            input.splice(at..at, part);
        }
        _ => {
            let part = part_of(&pool[rng.below(pool.len())], rng);
            let end = if rng.below(2) == 0 { at } else { (at + part.len()).min(input.len()) };
            input.splice(at..end, part);
        }
    }
}

fn part_of(input: &[u8], rng: &mut Rng) -> Vec<u8> {
    let from = rng.below(input.len());
    let most = [4, 16, 64, 512][rng.below(4)];
    let bytes = 1 + rng.below(most);
    input[from..(from + bytes).min(input.len())].to_vec()
}
