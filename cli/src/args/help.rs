//! The parts of `--help` other than flags: the commands in groups, and two examples of each command.
//!
//! Guarantees: every command is in exactly one group. Every command except `version` has examples, and they parse. A
//! test checks both.

use clap::{Command, CommandFactory};

use super::Cli;

/// The commands by purpose, each with a short description.
const GROUPS: [(&str, &[(&str, &str)]); 5] = [
    ("Begin", &[("demo", "Analyse a recorded 4-GPU job; needs no GPU, leaves no files")]),
    (
        "Record",
        &[
            ("run", "Run a command and record all its PyTorch processes"),
            ("import", "Import PyTorch memory snapshots as a job"),
            ("daemon", "Receive events, store them, analyse jobs, answer queries"),
        ],
    ),
    (
        "Look",
        &[
            ("ui", "Show jobs, their memory and their sites in a browser"),
            ("jobs", "List jobs, newest first"),
            ("query", "Summarize a job: levels, peaks, problems and their places"),
            ("leaks", "Show memory that grows, each finding in full"),
            ("diff", "Compare the memory of two runs"),
            ("ranks", "Compare the ranks and show the outliers"),
            ("diagnose", "Write a page: the problem, its line, the fix, the proof"),
            ("report", "Write a report: one HTML file, or Markdown"),
            ("timeline", "Show memory over time, as a plot or as data"),
            ("sites", "Show live memory by allocation site at one moment"),
            ("holders", "Find the objects that hold the tensors of a site"),
            ("ledger", "Break down the device's memory into classes"),
            ("oom", "Explain failed requests: the reason, what filled the device"),
            ("frag", "Show how memory is fragmented, and which sites cause it"),
            ("need", "Show the memory that a job needs, and sizes that suffice"),
            ("fit", "Forecast the memory of a training at other sizes"),
            ("what-if", "Replay a job under other allocator settings and limits"),
            ("export", "Export stored data in the format of another tool"),
            ("mcp", "Answer an AI assistant's questions (MCP), read-only"),
        ],
    ),
    (
        "Prove",
        &[
            ("assert", "Check conditions, for CI: exit code 1 if one does not hold"),
            ("baseline", "Save a run's figures into a file, for assert --against"),
        ],
    ),
    (
        "Operate",
        &[
            ("alerts", "List alerts, test receivers, silence alerts"),
            ("doctor", "Check store, daemon and recording, and name remedies"),
            ("node", "Show whose processes hold this machine's devices"),
            ("spool", "List, deliver or discard recordings that wait on this disk"),
            ("delete", "Delete a run of a job, or one attempt of it"),
            ("backup", "Write all stored data into one new file"),
            ("restore", "Load a backup into an empty store, SQLite or Postgres"),
            ("check", "Check that stored data is complete and undamaged"),
            ("token", "Create, list and revoke tokens"),
            ("audit", "Show which caller changed what, and refused attempts"),
            ("completions", "Print the completion script for a shell"),
            ("version", "Print the version"),
        ],
    ),
];

/// Two examples of each command.
const EXAMPLES: [(&str, [&str; 2]); 36] = [
    ("demo", ["memctl demo", "memctl demo --ui --open"]),
    ("run", ["memctl run -- python train.py", "memctl run --job gpt2 -- torchrun --nproc-per-node 4 train.py"]),
    ("import", ["memctl import --job gpt2 snapshot.pickle", "memctl import --job gpt2 snapshots/ --replace"]),
    ("daemon", ["memctl daemon --listen 127.0.0.1:7717 --http-listen 127.0.0.1:9717", "memctl daemon status"]),
    ("ui", ["memctl ui --open", "memctl ui --port 7719   # from another machine: ssh -L 7719:localhost:7719 HOST"]),
    ("jobs", ["memctl jobs", "memctl jobs -o json"]),
    ("query", ["memctl query", "memctl query gpt2 --rank 0-3 --epoch 2.."]),
    ("leaks", ["memctl leaks", "memctl leaks gpt2 --rank 3"]),
    ("diff", ["memctl diff gpt2", "memctl diff gpt2#3 gpt2#4 --markdown"]),
    ("ranks", ["memctl ranks gpt2", "memctl ranks gpt2 -o csv"]),
    ("diagnose", ["memctl diagnose", "memctl diagnose gpt2"]),
    ("report", ["memctl report gpt2 -f gpt2.html", "memctl report gpt2 --markdown"]),
    ("timeline", ["memctl timeline gpt2", "memctl timeline gpt2 -o csv"]),
    ("sites", ["memctl sites gpt2 --peak", "memctl sites gpt2 --end --folded"]),
    ("holders", ["memctl holders gpt2", "memctl holders gpt2 --site train.py:22"]),
    ("ledger", ["memctl ledger gpt2", "memctl ledger gpt2 --peak"]),
    ("oom", ["memctl oom", "memctl oom gpt2 --rank 2"]),
    ("frag", ["memctl frag gpt2", "memctl frag gpt2 --rank 0"]),
    ("need", ["memctl need gpt2", "memctl need slurm:1234 --line"]),
    ("fit", ["memctl fit --job gpt2=4 --at 8", "memctl fit --job gpt2=4 --job gpt2-b8=8 --at 16"]),
    ("what-if", ["memctl what-if gpt2", "memctl what-if gpt2 --limit 40GiB"]),
    (
        "export",
        [
            "memctl export gpt2 --format pprof -f live.pb.gz",
            "memctl export gpt2 --format memory-viz -f rank{rank}.pickle",
        ],
    ),
    ("mcp", ["memctl mcp", "memctl mcp --listen 127.0.0.1:7720"]),
    ("assert", ["memctl assert gpt2 no-leak 'peak<40GiB'", "memctl assert gpt2 stable --tolerance 5MiB"]),
    ("baseline", ["memctl baseline save gpt2 -f memory.json", "memctl baseline save gpt2 --runs 3"]),
    ("alerts", ["memctl alerts", "memctl alerts rules"]),
    ("doctor", ["memctl doctor", "memctl doctor -o json"]),
    ("node", ["memctl node check", "memctl node check --refuse --allow nvidia-cuda-mps-server"]),
    ("spool", ["memctl spool", "memctl spool deliver --data-dir DIR"]),
    ("delete", ["memctl delete 'gpt2#3'", "memctl delete gpt2 --all-runs --yes"]),
    ("backup", ["memctl backup memctl-backup.db", "memctl backup copy.db --data-dir /var/lib/memctl"]),
    (
        "restore",
        ["memctl restore memctl-backup.db --data-dir DIR", "memctl restore copy.db --store postgres://host/memctl"],
    ),
    ("check", ["memctl check", "memctl check --deep"]),
    ("token", ["memctl token create ci --role agent", "memctl token list"]),
    ("audit", ["memctl audit", "memctl audit -o json"]),
    ("completions", ["source <(memctl completions bash)", "memctl completions zsh >~/.zfunc/_memctl"]),
];

/// The command line with its groups and examples.
#[must_use]
pub fn command() -> Command {
    let plain = Cli::command();
    let listed = listed();
    let template = format!("{{about}}\n\n{{usage-heading}} {{usage}}\n\n{listed}\nOptions:\n{{options}}{{after-help}}");
    let command = EXAMPLES.iter().fold(plain, |command, (name, lines)| {
        let lines: Vec<String> = lines.iter().map(|line| format!("  {line}")).collect();
        let text = format!("Examples:\n{}", lines.join("\n"));
        command.mut_subcommand(name, |command| {
            // The command's own text below its flags comes first.
            let own = command.get_after_help().map(|own| format!("{own}\n\n")).unwrap_or_default();
            let long = command.get_after_long_help().map(|own| format!("{own}\n\n{text}"));
            let command = command.after_help(format!("{own}{text}"));
            match long {
                Some(long) => command.after_long_help(long),
                None => command,
            }
        })
    });
    // (Subcommands are listed above, by group.)
    command.help_template(template)
}

fn listed() -> String {
    let lines = GROUPS.iter().map(|(group, commands)| {
        let lines: Vec<String> = commands.iter().map(|(name, words)| format!("  {name:<12} {words}\n")).collect();
        format!("{group}:\n{}", lines.concat())
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_command_is_in_one_group_and_has_examples() {
        let command = Cli::command();
        let known: BTreeSet<&str> = command.get_subcommands().map(Command::get_name).collect();
        let grouped: Vec<&str> =
            GROUPS.iter().flat_map(|(_, commands)| commands.iter().map(|(name, _)| *name)).collect();
        assert_eq!(grouped.iter().copied().collect::<BTreeSet<_>>(), known);
        assert_eq!(grouped.len(), known.len(), "one group each");
        assert!(listed().lines().all(|line| line.len() <= 80), "a terminal's width");
        let with_examples: BTreeSet<&str> = EXAMPLES.iter().map(|(name, _)| *name).collect();
        assert_eq!(&known - &with_examples, BTreeSet::from(["version"]));
    }

    #[test]
    fn examples_parse() {
        for line in EXAMPLES.iter().flat_map(|(_, lines)| lines) {
            let words = line.split('#').next().unwrap().replace('\'', "");
            let words = words.strip_prefix("source <(").map_or(words.clone(), |rest| rest.replace(')', ""));
            let words: Vec<&str> = words.split_whitespace().take_while(|word| !word.starts_with('>')).collect();
            if let Err(error) = command().try_get_matches_from(words) {
                panic!("{line}: {error}");
            }
        }
    }
}
