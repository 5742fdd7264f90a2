//! What the reader's screen can show: its width, its characters, its colours.
//!
//! Guarantees: no colour if piped, with `NO_COLOR`, with `--color never` or on a dumb terminal, unless `--color always`
//! is given; only ASCII if the locale is not UTF-8; nothing is cut if piped, unless `COLUMNS` is set.

use std::io::IsTerminal;

use clap::ValueEnum;

/// Narrower terminals get the layout of this width: narrower layouts are not useful.
const COLUMNS_MIN: usize = 40;

/// When the output has colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Colour {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Also in a pipe (`| less -R`).
    Always,
    /// Never.
    Never,
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Screen {
    /// Columns; `None` = no limit.
    pub columns: Option<usize>,
    /// Whether characters beyond ASCII can be shown.
    pub unicode: bool,
    /// Whether colours can be shown.
    pub colour: bool,
}

/// The role of a piece of text, which determines its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// A heading.
    Strong,
    /// Something to look at first.
    Alert,
    /// Something good.
    Good,
    /// In the background.
    Faint,
}

impl Screen {
    /// The screen behind standard output.
    #[must_use]
    pub fn detect(colour: Colour) -> Self {
        Self::of(std::io::stdout().is_terminal(), colour)
    }

    /// The screen behind a stream that is a terminal or not.
    #[must_use]
    pub fn of(is_terminal: bool, colour: Colour) -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let columns = match variable("COLUMNS").and_then(|value| value.parse::<usize>().ok()) {
            Some(columns) => Some(columns),
            None if is_terminal => Some(terminal_size::terminal_size().map_or(80, |(width, _)| usize::from(width.0))),
            None => None,
        };
        let dumb = variable("TERM").as_deref() == Some("dumb");
        Self {
            columns: columns.map(|columns| columns.max(COLUMNS_MIN)),
            unicode: is_utf8(
                variable("LC_ALL").or_else(|| variable("LC_CTYPE")).or_else(|| variable("LANG")).as_deref(),
            ),
            colour: match colour {
                Colour::Always => true,
                Colour::Never => false,
                Colour::Auto => is_terminal && !dumb && variable("NO_COLOR").is_none(),
            },
        }
    }

    /// The text in its tone, if this screen has colours.
    #[must_use]
    pub fn paint(&self, tone: Tone, text: &str) -> String {
        if !self.colour {
            return text.to_owned();
        }
        let code = match tone {
            Tone::Strong => "1",
            Tone::Alert => "1;31",
            Tone::Good => "32",
            Tone::Faint => "2",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }

    /// The text on as many lines as it needs. The first line begins after `used` columns, the others are aligned below
    /// it. A sentence is never cut.
    #[must_use]
    pub fn wrapped(&self, text: &str, used: usize) -> String {
        match self.columns {
            Some(columns) if super::text::width(text) > columns.saturating_sub(used) => {
                let below = format!("\n{:used$}", "");
                super::text::wrap(text, columns.saturating_sub(used)).join(&below)
            }
            _ => text.to_owned(),
        }
    }

    /// The text cut to the screen, of which `used` columns are taken.
    #[must_use]
    pub fn fit(&self, text: &str, used: usize) -> String {
        match self.columns {
            Some(columns) => super::text::cut(text, columns.saturating_sub(used), self.unicode),
            None => text.to_owned(),
        }
    }

    /// The first text if more than ASCII can be shown, else the second.
    #[must_use]
    pub fn pick<T>(&self, unicode: T, ascii: T) -> T {
        if self.unicode { unicode } else { ascii }
    }
}

/// Whether a locale's name (`C.UTF-8`, `de_DE.utf8`) names UTF-8. Without a name the POSIX locale applies: ASCII.
fn is_utf8(locale: Option<&str>) -> bool {
    locale.is_some_and(|name| {
        let name = name.to_ascii_lowercase();
        name.contains("utf-8") || name.contains("utf8")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locales() {
        assert!(is_utf8(Some("C.UTF-8")));
        assert!(is_utf8(Some("de_DE.utf8")));
        assert!(!is_utf8(Some("POSIX")));
        assert!(!is_utf8(None));
    }

    #[test]
    fn colour_only_where_it_is_wanted() {
        let mut screen = Screen { columns: Some(10), unicode: true, colour: false };
        assert_eq!(screen.paint(Tone::Alert, "x"), "x");
        screen.colour = true;
        assert_eq!(screen.paint(Tone::Alert, "x"), "\u{1b}[1;31mx\u{1b}[0m");
        assert_eq!(screen.fit("0123456789", 3), "012345…");
        assert_eq!(screen.wrapped("012 345 6789", 3), "012 345\n   6789", "further lines stand below the first");
        assert_eq!(screen.wrapped("012  345", 0), "012  345", "what fits stays as it is");
    }
}
