//! The pages of `memctl token` and `memctl audit`.

use memctl_answers::access::{Audit, Entry, Role, Tokens};
use memctl_answers::format::time::Time;

use super::Page;
use super::prose::hanging;
use crate::render::screen::{Screen, Tone};
use crate::render::table::{Table, left};
use crate::render::text::{safe, width};

/// The name for all tenants.
const EVERY_TENANT: &str = "*";
/// Number of characters of a time without its fraction: `2026-03-01T12:30:00`.
const SECONDS: usize = 19;

impl Page for Tokens {
    fn page(&self, screen: &Screen) -> String {
        if self.tokens.is_empty() {
            return "No tokens.\n".to_owned();
        }
        let columns = [("NAME", 0), ("ID", 0), ("ROLE", 0), ("TENANT", 2), ("JOBS", 3), ("STATE", 0), ("EXPIRES", 1)];
        let mut table = Table::new(&columns.map(|(name, rank)| left(name, rank)));
        for token in &self.tokens {
            table.row(vec![
                token.name.clone(),
                token.id.to_string(),
                token.role.map_or("unknown", Role::name).to_owned(),
                token.tenant.clone(),
                token.jobs.clone(),
                token.state.name().to_owned(),
                token.expires_at.map_or_else(|| "never".to_owned(), seconds),
            ]);
        }
        let mut out = table.show(screen);
        for (token, secret) in self.tokens.iter().filter_map(|token| Some((token, token.secret.as_ref()?))) {
            if token.tenant == EVERY_TENANT {
                let whole = "This token is for all tenants. A token for one tenant: `memctl token create NAME --role ROLE --tenant TENANT`.";
                out.push_str(&format!("\n{}\n", screen.wrapped(whole, 0)));
            }
            let note = "This is the only time that the token is shown. Keep it in a file of your own (chmod 600) and name the \
                        file in MEMCTL_TOKEN_FILE.";
            out.push_str(&format!("\n{}\n\n{}\n", safe(secret), screen.paint(Tone::Faint, note)));
        }
        out
    }
}

impl Page for Audit {
    fn page(&self, screen: &Screen) -> String {
        if self.entries.is_empty() {
            return "Nothing is in the audit log.\n".to_owned();
        }
        let columns = [
            ("AT (UTC)", 0),
            ("CALLER", 0),
            ("PEER", 4),
            ("TENANT", 3),
            ("ACTION", 0),
            ("DONE", 0),
            ("SUBJECT", 0),
            ("OUTCOME", 2),
        ];
        let mut table = Table::new(&columns.map(|(name, rank)| left(name, rank)));
        for entry in &self.entries {
            table.row(vec![
                seconds(entry.at),
                entry.caller.clone(),
                entry.peer.clone(),
                entry.tenant.clone(),
                entry.action.clone(),
                done(entry).to_owned(),
                entry.subject.clone(),
                entry.outcome.clone(),
            ]);
        }
        // Audit entries are evidence, so nothing is cut. If the table is too wide for the screen, entries are wrapped.
        let is_whole = screen.columns.is_none_or(|columns| {
            table.show(&Screen { columns: None, colour: false, ..*screen }).lines().all(|line| width(line) <= columns)
        });
        if is_whole { table.show(screen) } else { self.entries.iter().map(|entry| block(entry, screen)).collect() }
    }
}

/// A time without its fraction.
fn seconds(at: Time) -> String {
    let at = at.to_string();
    at.get(..SECONDS).unwrap_or(&at).replace('T', " ")
}

fn done(entry: &Entry) -> &'static str {
    if entry.refused { "refused" } else { "yes" }
}

/// An entry, on as many lines as it needs.
fn block(entry: &Entry, screen: &Screen) -> String {
    let Entry { caller, peer, tenant, action, subject, outcome, .. } = entry;
    let refused = if entry.refused { " (refused)" } else { "" };
    let from = if peer.is_empty() { String::new() } else { format!(" from {peer}") };
    let mut out = hanging(
        &format!("{}  ", seconds(entry.at)),
        &format!("{action}{refused} by {caller}{from}, tenant {tenant}"),
        usize::MAX,
        screen,
    );
    let what: Vec<&str> = [subject, outcome].into_iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
    if !what.is_empty() {
        out.push_str(&hanging("    ", &what.join(": "), usize::MAX, screen));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn audit() -> Audit {
        let entry = Entry {
            at: Time(1_772_368_200_500_000_000),
            caller: "token ci-nodes-of-the-cluster (00f1e2d3c4b5a697)".into(),
            peer: "192.0.2.17:51234".into(),
            tenant: "default".into(),
            action: "Push".into(),
            refused: true,
            subject: "foo session 0123456789abcdef0123456789abcdef".into(),
            outcome: "token ci-nodes-of-the-cluster may write only to jobs \"train-*\"".into(),
        };
        Audit { schema: memctl_answers::SCHEMA, entries: vec![entry] }
    }

    #[test]
    fn an_entry_is_wrapped_and_never_cut() {
        let screen = Screen { columns: Some(80), unicode: true, colour: false };
        insta::assert_snapshot!(audit().page(&screen), @r#"
        2026-03-01 12:30:00  Push (refused) by token ci-nodes-of-the-cluster
                             (00f1e2d3c4b5a697) from 192.0.2.17:51234, tenant default
            foo session 0123456789abcdef0123456789abcdef: token ci-nodes-of-the-cluster
            may write only to jobs "train-*"
        "#);
    }

    #[test]
    fn where_there_is_room_it_is_a_table() {
        let screen = Screen { columns: None, unicode: true, colour: false };
        let page = audit().page(&screen);
        assert!(page.starts_with("AT (UTC)") && page.lines().count() == 2, "{page}");
    }
}
