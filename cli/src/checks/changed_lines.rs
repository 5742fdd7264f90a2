//! The lines that a pull request changes, as git reports them.
//!
//! Guarantees: an empty set if this is no pull request, the base is not in the checkout, or git does not answer in
//! time. The order of annotations is all that depends on it.

use std::collections::HashSet;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use super::repository::{Location, Repository};

/// The environment variable with the base branch of a pull request.
const BASE_VARIABLE: &str = "GITHUB_BASE_REF";
/// How long git may take.
const TIME_MAX: Duration = Duration::from_secs(10);
/// Lines that are kept.
const LINES_MAX: usize = 1_000_000;

/// The lines that the pull request of this workflow changes.
pub async fn of_pull_request(repository: &Repository) -> HashSet<Location> {
    let base = std::env::var(BASE_VARIABLE).ok().filter(|base| !base.is_empty() && !base.starts_with('-'));
    let Some(base) = base else { return HashSet::new() };
    for range in [format!("origin/{base}...HEAD"), format!("{base}...HEAD")] {
        if let Some(diff) = diff(repository, &range).await {
            return lines(&diff);
        }
    }
    HashSet::new()
}

async fn diff(repository: &Repository, range: &str) -> Option<String> {
    let mut command = Command::new("git");
    command.arg("-C").arg(repository.root());
    command.args(["-c", "core.quotePath=false", "diff", "--unified=0", "--no-color", "--no-ext-diff", "--no-renames"]);
    command.arg("--end-of-options").arg(range);
    command.stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(TIME_MAX, command.output()).await.ok()?.ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The lines on the new side of a diff without context.
fn lines(diff: &str) -> HashSet<Location> {
    let mut changed = HashSet::new();
    let mut path = None;
    for line in diff.lines() {
        if let Some(file) = line.strip_prefix("+++ ") {
            path = file.strip_prefix("b/");
        } else if let (Some(path), Some((first, count))) = (path, hunk(line)) {
            let room = LINES_MAX.saturating_sub(changed.len());
            let numbers = (first..first.saturating_add(count)).take(room);
            changed.extend(numbers.map(|line| Location { path: path.to_owned(), line }));
        }
    }
    changed
}

/// The first line and the number of lines on the new side: `@@ -3,2 +5,4 @@`.
fn hunk(line: &str) -> Option<(u32, u32)> {
    let new = line.strip_prefix("@@ -")?.split(' ').nth(1)?.strip_prefix('+')?;
    match new.split_once(',') {
        Some((first, count)) => Some((first.parse().ok()?, count.parse().ok()?)),
        None => Some((new.parse().ok()?, 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_new_side_of_each_hunk_counts() {
        let diff = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1,0 +2,2 @@ def f():\n+x\n+y\n@@ -9 +11 @@\n-a\n+b\n\
            --- a/gone.py\n+++ /dev/null\n@@ -1,3 +0,0 @@\n";
        let mut found: Vec<(String, u32)> = lines(diff).into_iter().map(|at| (at.path, at.line)).collect();
        found.sort();
        assert_eq!(found, [("a.py".to_owned(), 2), ("a.py".to_owned(), 3), ("a.py".to_owned(), 11)]);
    }
}
