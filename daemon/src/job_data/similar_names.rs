//! Finds similar names, for errors about a name that does not exist.
//!
//! Guarantees: the work is bounded for any input, and the most similar names come first.
//! Refuses: distant guesses. A name that differs in more than a third of its letters is not similar.

/// The most names returned.
const TOLD: usize = 3;
/// The most letters of a name that are compared.
const LETTERS_MAX: usize = 128;

/// The names in `there` that are similar to `asked`, the most similar first. Equally similar ones keep their order.
pub(crate) fn names(asked: &str, there: impl Iterator<Item = String>) -> Vec<String> {
    let letters: Vec<char> = lower(asked);
    let mut like: Vec<(usize, String)> = Vec::new();
    for name in there {
        let other = lower(&name);
        let far = strsim::generic_levenshtein(&letters, &other);
        // The beginning of a name is similar too.
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
