//! Thirty questions of users over the bundled recordings: at most three calls answer each, and the fact in the answer is
//! the one that the command prints.

use memctl_tests::recordings::NAMES;
use serde_json::{Value, json};

use super::Store;

/// A question, the calls that answer it, and the fact.
struct Question {
    words: &'static str,
    /// Tools with their arguments. The last one has the fact.
    calls: &'static [(&'static str, &'static str)],
    /// The place of the fact, in the answer and in what the command prints.
    fact: &'static str,
    /// The command that prints the fact.
    command: &'static [&'static str],
}

const fn asked(
    words: &'static str,
    calls: &'static [(&'static str, &'static str)],
    fact: &'static str,
    command: &'static [&'static str],
) -> Question {
    Question { words, calls, fact, command }
}

const QUESTIONS: [Question; 30] = [
    asked(
        "What happened to the memory of gpt_val_graph_leak?",
        &[("verdict", r#"{"job": "gpt_val_graph_leak"}"#)],
        "/verdict/sentence",
        &["query", "gpt_val_graph_leak"],
    ),
    asked(
        "Is gpt_clean all right?",
        &[("verdict", r#"{"job": "gpt_clean"}"#)],
        "/verdict/kind",
        &["query", "gpt_clean"],
    ),
    asked(
        "Does the cache of cnn_cache_saturates stop growing?",
        &[("verdict", r#"{"job": "cnn_cache_saturates"}"#)],
        "/verdict/kind",
        &["query", "cnn_cache_saturates"],
    ),
    asked(
        "Is the cause of the growth in lstm_hidden_chain known?",
        &[("verdict", r#"{"job": "lstm_hidden_chain"}"#)],
        "/verdict/cause",
        &["query", "lstm_hidden_chain"],
    ),
    asked(
        "On which ranks does gpt_val_graph_leak grow?",
        &[("verdict", r#"{"job": "gpt_val_graph_leak"}"#)],
        "/verdict/ranks",
        &["query", "gpt_val_graph_leak"],
    ),
    asked("Which jobs are recorded?", &[("jobs", "{}")], "/jobs/8/id", &["jobs"]),
    asked(
        "What is wrong with my last job?",
        &[("jobs", "{}"), ("verdict", r#"{"job": "latest"}"#)],
        "/findings/0/title",
        &["query"],
    ),
    asked(
        "Which line leaks in gpt_val_graph_leak?",
        &[("verdict", r#"{"job": "gpt_val_graph_leak"}"#), ("leaks", r#"{"job": "gpt_val_graph_leak"}"#)],
        "/findings/0/site/line",
        &["leaks", "gpt_val_graph_leak"],
    ),
    asked(
        "How fast does it leak?",
        &[("leaks", r#"{"job": "gpt_val_graph_leak"}"#)],
        "/findings/0/bytes_per_epoch",
        &["leaks", "gpt_val_graph_leak"],
    ),
    asked(
        "Since when?",
        &[("leaks", r#"{"job": "gpt_val_graph_leak"}"#)],
        "/findings/0/first_seen",
        &["leaks", "gpt_val_graph_leak"],
    ),
    asked(
        "What should I change in gpt_val_graph_leak?",
        &[("verdict", r#"{"job": "gpt_val_graph_leak"}"#), ("diagnose", r#"{"job": "gpt_val_graph_leak"}"#)],
        "/findings/0/advice",
        &["diagnose", "gpt_val_graph_leak"],
    ),
    asked(
        "Which pattern is it in lstm_hidden_chain?",
        &[("diagnose", r#"{"job": "lstm_hidden_chain"}"#)],
        "/findings/0/pattern",
        &["diagnose", "lstm_hidden_chain"],
    ),
    asked(
        "Is it demand or fragmentation in gpt_val_graph_leak?",
        &[("diagnose", r#"{"job": "gpt_val_graph_leak"}"#)],
        "/questions/2/answer",
        &["diagnose", "gpt_val_graph_leak"],
    ),
    asked(
        "How much does rank 2 of gpt_clean need at most?",
        &[("ranks", r#"{"job": "gpt_clean"}"#)],
        "/ranks/2/peak_allocated_bytes",
        &["ranks", "gpt_clean"],
    ),
    asked(
        "How does rank 0 of cnn_rank0_cache differ?",
        &[("ranks", r#"{"job": "cnn_rank0_cache"}"#)],
        "/ranks/0/stands_out",
        &["ranks", "cnn_rank0_cache"],
    ),
    asked(
        "What is usual among the ranks of cnn_rank0_cache?",
        &[("ranks", r#"{"job": "cnn_rank0_cache"}"#)],
        "/spread/0/median_bytes",
        &["ranks", "cnn_rank0_cache"],
    ),
    asked(
        "How did rank 3 of gpt_curriculum fare alone?",
        &[("verdict", r#"{"job": "gpt_curriculum", "rank": "3"}"#)],
        "/ranks/0/peak_reserved_bytes",
        &["query", "gpt_curriculum", "--rank", "3"],
    ),
    asked(
        "Which line holds most at the peak of gpt_ema_step_up?",
        &[("sites", r#"{"job": "gpt_ema_step_up", "at": "peak"}"#)],
        "/ranks/0/sites/0/site",
        &["sites", "gpt_ema_step_up", "--peak"],
    ),
    asked(
        "How much is live on rank 1 after epoch 2 of gpt_val_graph_leak?",
        &[("sites", r#"{"job": "gpt_val_graph_leak", "rank": "1", "at": "epoch_end", "epoch_end": 2}"#)],
        "/ranks/0/allocated_bytes",
        &["sites", "gpt_val_graph_leak", "--rank", "1", "--epoch-end", "2"],
    ),
    asked(
        "How much is activations at the peak of gpt_clean?",
        &[("ledger", r#"{"job": "gpt_clean"}"#)],
        "/ranks/0/classes",
        &["ledger", "gpt_clean"],
    ),
    asked(
        "What did the curve of rank 0 of gpt_clean begin with?",
        &[("timeline", r#"{"job": "gpt_clean", "rank": "0", "points": 16}"#)],
        "/ranks/0/points/0",
        &["timeline", "gpt_clean", "--rank", "0", "--points", "16"],
    ),
    asked(
        "Which request failed in oom_by_fragmentation?",
        &[("verdict", r#"{"job": "oom_by_fragmentation"}"#), ("oom", r#"{"job": "oom_by_fragmentation"}"#)],
        "/failures/0/asked_bytes",
        &["oom", "oom_by_fragmentation"],
    ),
    asked(
        "How many requests failed there?",
        &[("oom", r#"{"job": "oom_by_fragmentation"}"#)],
        "/failed",
        &["oom", "oom_by_fragmentation"],
    ),
    asked(
        "How much of gpt_varlen_fragmentation is free and unusable?",
        &[("frag", r#"{"job": "gpt_varlen_fragmentation", "rank": "0"}"#)],
        "/ranks/0/reserved_bytes",
        &["frag", "gpt_varlen_fragmentation", "--rank", "0"],
    ),
    asked(
        "Which allocator setting would help gpt_varlen_fragmentation?",
        &[("frag", r#"{"job": "gpt_varlen_fragmentation"}"#), ("what_if", r#"{"job": "gpt_varlen_fragmentation"}"#)],
        "/ranks/0/recommended",
        &["what-if", "gpt_varlen_fragmentation"],
    ),
    asked(
        "How much would gpt_val_graph_leak reserve with expandable segments?",
        &[("what_if", r#"{"job": "gpt_val_graph_leak", "settings": ["expandable_segments:True"]}"#)],
        "/ranks/0/settings/0/peak_reserved_bytes",
        &["what-if", "gpt_val_graph_leak", "--set", "expandable_segments:True"],
    ),
    asked(
        "Would gpt_val_graph_leak have fitted into 600 MiB?",
        &[("what_if", r#"{"job": "gpt_val_graph_leak", "limits": ["600MiB"]}"#)],
        "/ranks/0/settings/0/out_of_memory",
        &["what-if", "gpt_val_graph_leak", "--limit", "600MiB"],
    ),
    asked(
        "What would twice the batch need?",
        &[("fit", r#"{"recordings": ["gpt_clean=4"], "at": [8]}"#)],
        "/at/0/peak_allocated_bytes",
        &["fit", "--job", "gpt_clean=4", "--at", "8"],
    ),
    asked(
        "What changed from gpt_clean to gpt_val_graph_leak?",
        &[("diff", r#"{"runs": ["gpt_clean", "gpt_val_graph_leak"]}"#)],
        "/sentence",
        &["diff", "gpt_clean", "gpt_val_graph_leak"],
    ),
    asked(
        "Which line differs most between them?",
        &[("jobs", "{}"), ("diff", r#"{"runs": ["gpt_clean", "gpt_val_graph_leak"]}"#)],
        "/sites/0",
        &["diff", "gpt_clean", "gpt_val_graph_leak"],
    ),
];

#[test]
fn thirty_questions_are_answered_in_three_calls_with_the_fact_of_the_command() {
    let store = Store::with(&NAMES);
    let mut assistant = store.assistant();
    for Question { words, calls, fact, command } in QUESTIONS {
        assert!((1..=3).contains(&calls.len()), "{words}");
        let mut last = Value::Null;
        for (tool, arguments) in calls {
            let arguments: Value = serde_json::from_str(arguments).unwrap();
            last = assistant.answer(tool, arguments);
        }
        let printed = store.json(command);
        let expected = printed.pointer(fact).unwrap_or_else(|| panic!("{words} {fact} is not in {printed}"));
        assert_eq!(last["answer"].pointer(fact), Some(expected), "{words} {}", json!(last["left_out"]));
    }
}
