//! Splits `PYTORCH_CUDA_ALLOC_CONF` into words: keys, values, and the four signs `,` `:` `[` `]`.
//!
//! Guarantees: blanks are skipped and do not separate words, as in the allocator. The words together are the text
//! without blanks.

/// One word or sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub text: String,
}

pub(super) fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut word = String::new();
    for c in text.chars() {
        let is_sign = matches!(c, ',' | ':' | '[' | ']');
        if is_sign {
            flush(&mut word, &mut tokens);
            tokens.push(Token { text: c.to_string() });
        } else if !c.is_whitespace() {
            word.push(c);
        }
    }
    flush(&mut word, &mut tokens);
    tokens
}

fn flush(word: &mut String, tokens: &mut Vec<Token>) {
    if !word.is_empty() {
        tokens.push(Token { text: std::mem::take(word) });
    }
}

/// A sequence of words with a position.
pub(super) struct Words {
    tokens: Vec<Token>,
    at: usize,
}

impl Words {
    pub fn of(text: &str) -> Self {
        Self { tokens: tokens(text), at: 0 }
    }

    /// The next word; advances the position.
    pub fn next(&mut self) -> Option<String> {
        let token = self.tokens.get(self.at)?;
        self.at += 1;
        Some(token.text.clone())
    }

    /// Advances the position if the next word is this one.
    pub fn accept(&mut self, sign: &str) -> bool {
        let is_there = self.tokens.get(self.at).is_some_and(|token| token.text == sign);
        self.at += usize::from(is_there);
        is_there
    }
}
