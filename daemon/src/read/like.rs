//! Names like one that there is not: what may have been meant.
//!
//! Guarantees: bounded work, whatever is asked for; the nearest first. Refuses to guess far: what differs in a third of its
//! letters is another name.

/// Names told at most.
const TOLD: usize = 3;
/// Letters of a name that are compared.
const LETTERS_MAX: usize = 128;

/// Of these names those like `asked`, the nearest first; among equals in their order.
pub(crate) fn names(asked: &str, there: impl Iterator<Item = String>) -> Vec<String> {
    let letters: Vec<char> = lower(asked);
    let mut like: Vec<(usize, String)> = Vec::new();
    for name in there {
        let other = lower(&name);
        let far = distance(&letters, &other);
        // A beginning that was typed no further is near, too.
        let begins = letters.len() >= 3 && other.starts_with(&letters);
        let near = far * 3 <= letters.len().max(other.len()) || begins;
        if near && name != asked && !like.iter().any(|(_, known)| *known == name) {
            like.push((if begins { far.min(1) } else { far }, name));
        }
    }
    like.sort_by_key(|(far, _)| *far);
    like.into_iter().take(TOLD).map(|(_, name)| name).collect()
}

fn lower(name: &str) -> Vec<char> {
    name.chars().flat_map(char::to_lowercase).take(LETTERS_MAX).collect()
}

/// Letters to be put in, left out or changed (Levenshtein).
fn distance(from: &[char], to: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (at, letter) in from.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (column, other) in to.iter().enumerate() {
            let changed = diagonal + usize::from(letter != other);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn like(asked: &str) -> Vec<String> {
        let there = ["vit-17", "vit-18", "gpt-clean", "vit-17", "bert", "resnet-long-name"];
        names(asked, there.into_iter().map(str::to_owned))
    }

    #[test]
    fn what_may_have_been_meant() {
        assert_eq!(like("vit-71"), ["vit-17", "vit-18"]);
        assert_eq!(like("VIT-18"), ["vit-18", "vit-17"]);
        assert_eq!(like("gpt_claen"), ["gpt-clean"]);
        assert_eq!(like("resnet"), ["resnet-long-name"]);
        assert_eq!(like("something-else"), Vec::<String>::new());
        assert_eq!(like(""), Vec::<String>::new());
        assert!(like(&"x".repeat(100_000)).is_empty(), "bounded");
    }
}
