//! The size of answers: lists are shortened from their ends until an answer fits, and text from outside is made safe.
//!
//! Guarantees: what is left out is counted, with the way to ask for it. Figures are never changed. Texts lose only
//! their ends, which is counted too.

use memctl_answers::format::text::is_unsafe;
use serde_json::Value;

/// The most tokens of an answer.
pub const ANSWER_TOKENS_MAX: usize = 8_000;
/// Bytes of a token, counted cautiously: English prose has four, figures and punctuation three.
const TOKEN_BYTES: usize = 3;
/// The most bytes of an answer as JSON, its text and its data together.
pub const ANSWER_BYTES_MAX: usize = ANSWER_TOKENS_MAX * TOKEN_BYTES;
/// The most bytes of the short text beside the data.
pub const TEXT_BYTES_MAX: usize = 3_000;
/// The most bytes of one text within the data. Advice with an example has fewer.
const STRING_BYTES_MAX: usize = 1_500;

/// Rows that an answer leaves out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The list, as in [`super::catalogue::Tool::lists`].
    pub list: String,
    /// How many.
    pub rows: usize,
    /// How many of the list stay, where it is one list.
    pub kept: usize,
}

/// Leaves out the first rows of a list.
pub fn skip(answer: &mut Value, list: &str, rows: usize) {
    for rows_of in lists_at(answer, list) {
        rows_of.drain(..rows.min(rows_of.len()));
    }
}

/// Makes every text of an answer safe to show, and cuts long ones. Returns how many were cut.
pub fn make_safe(answer: &mut Value) -> usize {
    match answer {
        Value::String(text) => usize::from(make_text_safe(text)),
        Value::Array(items) => items.iter_mut().map(make_safe).sum(),
        Value::Object(fields) => {
            // A name from outside may also be a key: of a label, for example.
            if fields.keys().any(|key| key.contains(is_unsafe)) {
                let all = std::mem::take(fields);
                *fields = all.into_iter().map(|(key, value)| (escaped(&key), value)).collect();
            }
            fields.values_mut().map(make_safe).sum()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

fn make_text_safe(text: &mut String) -> bool {
    if text.contains(|c| is_unsafe(c) && c != '\n') {
        *text = escaped(text);
    }
    let is_cut = text.len() > STRING_BYTES_MAX;
    if is_cut {
        text.truncate(text.floor_char_boundary(STRING_BYTES_MAX));
        text.push('…');
    }
    is_cut
}

/// The text with control characters spelled out; an example keeps its lines.
fn escaped(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        if is_unsafe(c) && c != '\n' {
            out.push_str(&format!("\\u{{{:x}}}", u32::from(c)));
        } else {
            out.push(c);
        }
        out
    })
}

/// The short text beside the data: the page's first lines, as quoted data.
#[must_use]
pub fn quoted(page: &str) -> String {
    // A name from outside may not end the quotation.
    let page = page.trim().replace("```", "'''");
    let mut kept = String::new();
    let (mut lines, total) = (0, page.lines().count());
    for line in page.lines() {
        if kept.len() + line.len() > TEXT_BYTES_MAX {
            break;
        }
        kept.push_str(line.trim_end());
        kept.push('\n');
        lines += 1;
    }
    if lines < total {
        kept.push_str(&format!("(… {} more lines; structuredContent has the figures)\n", total - lines));
    }
    format!("```text\n{kept}```")
}

/// Shortens an answer to a size in bytes as JSON: one list after the other, each from its end. The list `main` keeps a
/// row. If that does not suffice, whole fields go, the largest first.
#[must_use]
pub fn shorten(answer: &mut Value, lists: &[&str], main: Option<&str>, bytes_max: usize) -> Vec<LeftOut> {
    let over = |answer: &Value| size(answer).checked_sub(bytes_max).filter(|over| *over > 0);
    let mut left_out = Vec::new();
    for list in lists {
        // A stack keeps its innermost frame, which names the place.
        let keep = usize::from(list.ends_with("stack") || Some(*list) == main);
        let mut rows = 0;
        while let Some(over) = over(answer) {
            match cut(lists_at(answer, list), over, keep) {
                0 => break,
                cut => rows += cut,
            }
        }
        if rows > 0 {
            let kept = lists_at(answer, list).iter().map(|rows| rows.len()).max().unwrap_or(0);
            left_out.push(LeftOut { list: (*list).to_owned(), rows, kept });
        }
    }
    while over(answer).is_some() {
        let Some(fields) = answer.as_object_mut() else { break };
        let largest = fields.iter().max_by_key(|(_, value)| size(value)).map(|(name, _)| name.clone());
        let Some((list, value)) = largest.and_then(|name| Some((name.clone(), fields.remove(&name)?))) else { break };
        left_out.push(LeftOut { list, rows: value.as_array().map_or(1, Vec::len), kept: 0 });
    }
    left_out
}

/// Removes rows from the ends of the longest lists until about `over` bytes are gone; returns their number.
fn cut(mut lists: Vec<&mut Vec<Value>>, over: usize, keep: usize) -> usize {
    let (mut gone, mut rows) = (0, 0);
    while gone < over {
        let longest = lists.iter_mut().filter(|list| list.len() > keep).max_by_key(|list| list.len());
        let Some(row) = longest.and_then(|list| list.pop()) else { break };
        gone += size(&row) + 1;
        rows += 1;
    }
    rows
}

/// The bytes of a value as JSON.
#[must_use]
pub fn size(value: &Value) -> usize {
    value.to_string().len()
}

/// The lists at a path such as `ranks/*/sites`.
fn lists_at<'a>(value: &'a mut Value, path: &str) -> Vec<&'a mut Vec<Value>> {
    let mut found = vec![value];
    for part in path.split('/') {
        found = found
            .into_iter()
            .flat_map(|value| match (part, value) {
                ("*", Value::Array(items)) => items.iter_mut().collect(),
                (name, Value::Object(fields)) => fields.get_mut(name).into_iter().collect(),
                _ => Vec::new(),
            })
            .collect();
    }
    found.into_iter().filter_map(Value::as_array_mut).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_are_shortened_from_their_ends_in_order() {
        let rows = |count: usize| (0..count).map(|row| json!({"row": row})).collect::<Vec<_>>();
        let mut answer = json!({"ranks": [{"sites": rows(50)}, {"sites": rows(10)}], "findings": rows(30)});
        let whole = answer.clone();
        assert_eq!(shorten(&mut answer, &["ranks/*/sites", "findings"], None, size(&whole)), []);
        assert_eq!(answer, whole, "what fits is not changed");

        let left_out = shorten(&mut answer, &["ranks/*/sites", "findings"], None, size(&whole) - 100);
        assert!(size(&answer) <= size(&whole) - 100);
        let kept = answer["ranks"][0]["sites"].as_array().unwrap();
        assert_eq!(left_out, [LeftOut { list: "ranks/*/sites".to_owned(), rows: 50 - kept.len(), kept: kept.len() }]);
        assert_eq!(kept.last().unwrap()["row"], kept.len() - 1, "rows go from the end");
        assert_eq!(answer["findings"], whole["findings"]);

        let left_out = shorten(&mut answer, &["ranks/*/sites", "findings"], None, 200);
        assert!(size(&answer) <= 200, "{answer}");
        assert_eq!(answer["ranks"], json!([{"sites": []}, {"sites": []}]));
        assert_eq!(left_out.len(), 2);

        let mut answer = json!({"findings": rows(9), "words": "x".repeat(300)});
        let left_out = shorten(&mut answer, &["findings"], Some("findings"), 100);
        assert_eq!(answer, json!({"findings": [{"row": 0}]}));
        assert_eq!(left_out[1], LeftOut { list: "words".to_owned(), rows: 1, kept: 0 });
    }

    #[test]
    fn rows_before_the_wanted_ones_are_skipped() {
        let mut answer = json!({"ranks": [{"sites": [1, 2, 3]}, {"sites": [4]}]});
        skip(&mut answer, "ranks/*/sites", 2);
        assert_eq!(answer, json!({"ranks": [{"sites": [3]}, {"sites": []}]}));
    }

    #[test]
    fn text_from_outside_is_escaped_and_quoted() {
        let mut answer = json!({"a\u{1b}": ["\u{202e}x\u{7f}", "two\nlines"], "long": "ü".repeat(2_000)});
        assert_eq!(make_safe(&mut answer), 1);
        assert_eq!(answer[r"a\u{1b}"], json!([r"\u{202e}x\u{7f}", "two\nlines"]));
        assert!(answer["long"].as_str().unwrap().len() <= STRING_BYTES_MAX + '…'.len_utf8());
        assert_eq!(quoted("a\n```\nnow do this  \n"), "```text\na\n'''\nnow do this\n```");
        let long = quoted(&"0123456789\n".repeat(1_000));
        assert!(
            long.len() < TEXT_BYTES_MAX + 200 && long.ends_with("more lines; structuredContent has the figures)\n```")
        );
    }
}
