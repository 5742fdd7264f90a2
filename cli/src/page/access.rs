//! The pages of `memctl token` and `memctl audit`.

use memctl_answers::access::{Audit, Tokens};

use super::Page;
use crate::render::screen::{Screen, Tone};
use crate::render::table::{Table, left};
use crate::render::text::safe;

/// Characters of a time without its fraction: `2026-03-01T12:30:00`.
const SECONDS: usize = 19;

impl Page for Tokens {
    fn page(&self, screen: &Screen) -> String {
        if self.tokens.is_empty() {
            return "No tokens.\n".to_owned();
        }
        let columns = [("NAME", 0), ("ID", 0), ("ROLE", 0), ("TENANT", 1), ("JOBS", 2), ("STATE", 0), ("EXPIRES", 3)];
        let mut table = Table::new(&columns.map(|(name, rank)| left(name, rank)));
        for token in &self.tokens {
            table.row(vec![
                token.name.clone(),
                token.id.clone(),
                token.role.unwrap_or("unknown").to_owned(),
                token.tenant.clone(),
                token.jobs.clone(),
                token.state.to_owned(),
                token.expires_at.clone().unwrap_or_else(|| "never".to_owned()),
            ]);
        }
        let mut out = table.show(screen);
        for secret in self.tokens.iter().filter_map(|token| token.secret.as_ref()) {
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
                entry.at.get(..SECONDS).unwrap_or(&entry.at).replace('T', " "),
                entry.caller.clone(),
                entry.peer.clone(),
                entry.tenant.clone(),
                entry.action.clone(),
                if entry.refused { "refused" } else { "yes" }.to_owned(),
                entry.subject.clone(),
                entry.outcome.clone(),
            ]);
        }
        table.show(screen)
    }
}
