//! JSON that is exact and safe on a terminal.
//!
//! Guarantees: the same values as any JSON writer's; characters that could control a terminal (C1 controls, DEL, marks
//! that reorder text) are written as `\uXXXX`, which every reader decodes.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter};

use super::text::is_unsafe;

/// One object over many lines.
///
/// # Errors
/// The writer's.
pub fn pretty(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    write(out, value, Escaping(PrettyFormatter::new()))
}

/// One object on one line.
///
/// # Errors
/// The writer's.
pub fn line(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    write(out, value, Escaping(CompactFormatter))
}

/// A text as a JSON string, in quotation marks.
#[must_use]
pub fn text(value: &str) -> String {
    let mut out = Vec::new();
    // Writing into a `Vec` cannot fail, and a JSON formatter writes valid UTF-8.
    let _ = value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, Escaping(CompactFormatter)));
    String::from_utf8_lossy(&out).into_owned()
}

fn write<F: Formatter>(out: &mut dyn Write, value: &impl Serialize, formatter: F) -> io::Result<()> {
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut *out, formatter))?;
    out.write_all(b"\n")
}

/// A formatter that escapes more than JSON requires.
struct Escaping<F>(F);

impl<F: Formatter> Formatter for Escaping<F> {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(is_unsafe) {
            let (plain, tail) = rest.split_at(at);
            self.0.write_string_fragment(writer, plain)?;
            let mut characters = tail.chars();
            let mut units = [0_u16; 2];
            for unit in characters.next().unwrap_or_default().encode_utf16(&mut units) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = characters.as_str();
        }
        self.0.write_string_fragment(writer, rest)
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_array(writer)
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array(writer)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array_value(writer)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object(writer)
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object_value(writer)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object_value(writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_steers_a_terminal_and_everything_comes_back() {
        let hostile = "\u{1b}[2J\u{9b}31m\u{7f}\u{202e}\"\\ü漢\u{1f600}".to_owned();
        let mut out = Vec::new();
        line(&mut out, &hostile).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "\"\\u001b[2J\\u009b31m\\u007f\\u202e\\\"\\\\ü漢\u{1f600}\"\n");
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), hostile);
    }

    #[test]
    fn pretty_keeps_its_shape() {
        let mut out = Vec::new();
        pretty(&mut out, &serde_json::json!({"a": [1, {"b": null}]})).unwrap();
        let expected = "{\n  \"a\": [\n    1,\n    {\n      \"b\": null\n    }\n  ]\n}\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
