//! Tokens: how they are written, and how the one that a caller brings is found.
//!
//! Guarantees: a token has 256 random bits; of them the store and this cache have a hash alone. What is known of a token is
//! at most [`AGE_MAX`] old, so that one that was revoked, by whichever daemon on the same store, is out within seconds.
//! Refuses: to look for more tokens at once than fit, whoever asks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::store::opening::{hash, same};
use crate::store::{SecretHash, Store, StoreError, TokenRow};

/// What a token begins with, so that scanners of repositories can find one that was lost there.
const PREFIX: &str = "memctl_";
/// How old what is known of a token may be.
pub const AGE_MAX: Duration = Duration::from_secs(2);
/// Tokens that are remembered.
const KNOWN_MAX: usize = 4_096;

/// A token as a caller brings it; of its secret the hash.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Its public half.
    pub id: u64,
    /// The hash of its secret half.
    pub secret: SecretHash,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token({:016x})", self.id)
    }
}

impl Token {
    /// A new token and its text, which is shown once.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn new() -> Result<(Self, String), getrandom::Error> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret)?;
        let (id, secret) = (getrandom::u64()?, hex(&secret));
        let text = format!("{PREFIX}{id:016x}_{secret}");
        Ok((Self { id, secret: hash(secret.as_bytes()) }, text))
    }

    /// A token from its text.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let plain = |text: &str, digits| text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        (plain(id, 16) && plain(secret, 64)).then_some(())?;
        Some(Self { id: u64::from_str_radix(id, 16).ok()?, secret: hash(secret.as_bytes()) })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What is known of one token.
#[derive(Clone)]
struct Known {
    since: Instant,
    row: Option<Arc<TokenRow>>,
}

/// The tokens of a store, for a moment each.
pub struct Tokens {
    store: Arc<dyn Store>,
    known: Mutex<HashMap<u64, Known>>,
    /// When it was looked whether there are any, and whether there were.
    any: Mutex<Option<(Instant, bool)>>,
}

impl Tokens {
    /// Over a store.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, known: Mutex::default(), any: Mutex::default() }
    }

    /// The row of a token that counts at this moment; `None` for one that is not known, or no longer counts.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn find(&self, token: &Token, now_ns: u64) -> Result<Option<Arc<TokenRow>>, StoreError> {
        let row = match self.recent(token.id) {
            Some(row) => row,
            None => {
                let row = self.store.token(token.id).await?.map(Arc::new);
                self.keep(token.id, row.clone());
                row
            }
        };
        Ok(row.filter(|row| same(&row.secret, &token.secret) && row.counts(now_ns)))
    }

    /// Whether a token was ever made.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn any(&self) -> Result<bool, StoreError> {
        let known = *self.any.lock().unwrap_or_else(PoisonError::into_inner);
        match known {
            // Once there was one, there always was.
            Some((_, true)) => return Ok(true),
            Some((since, false)) if since.elapsed() < AGE_MAX => return Ok(false),
            _ => {}
        }
        let any = !self.store.tokens().await?.is_empty();
        *self.any.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), any));
        Ok(any)
    }

    /// Forgets what is known: something has changed.
    pub fn forget(&self) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
        *self.any.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn recent(&self, id: u64) -> Option<Option<Arc<TokenRow>>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&id).filter(|known| known.since.elapsed() < AGE_MAX).map(|known| known.row.clone())
    }

    fn keep(&self, id: u64, row: Option<Arc<TokenRow>>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MAX {
            known.retain(|_, known| known.since.elapsed() < AGE_MAX);
            if known.len() >= KNOWN_MAX {
                known.clear();
            }
        }
        known.insert(id, Known { since: Instant::now(), row });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    fn row(token: &Token) -> TokenRow {
        TokenRow {
            id: token.id,
            name: "ci".into(),
            role: "agent".into(),
            tenant: "default".into(),
            jobs: "*".into(),
            secret: token.secret,
            created_ns: 1,
            expires_ns: Some(10),
            revoked_ns: None,
        }
    }

    #[test]
    fn a_token_is_read_as_it_was_written() {
        let (token, text) = Token::new().unwrap();
        assert_eq!(Token::read(&text), Some(token.clone()));
        assert_eq!(text.len(), "memctl_".len() + 16 + 1 + 64);
        assert!(!format!("{token:?}").contains(&text[24..]), "neither the secret nor its hash is ever written");
        assert_ne!(Token::new().unwrap().1, text);
        for wrong in ["", "memctl_", &text[1..], &text[..text.len() - 1], &format!("{text}0"), &text.replace('_', "-")]
        {
            assert_eq!(Token::read(wrong), None, "{wrong}");
        }
    }

    #[tokio::test]
    async fn only_the_whole_token_counts_and_only_while_it_does() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let tokens = Tokens::new(store.clone());
        assert!(!tokens.any().await.unwrap());
        let (token, _) = Token::new().unwrap();
        assert!(store.add_token(&row(&token)).await.unwrap());
        tokens.forget();
        assert!(tokens.any().await.unwrap());
        assert!(tokens.find(&token, 9).await.unwrap().is_some());
        assert!(tokens.find(&token, 10).await.unwrap().is_none(), "it has expired");
        let (other, _) = Token::new().unwrap();
        assert!(tokens.find(&Token { id: token.id, ..other }, 9).await.unwrap().is_none());
        assert!(tokens.find(&Token { secret: token.secret, ..other }, 9).await.unwrap().is_none());
        assert!(store.revoke_token(token.id, 5).await.unwrap());
        tokens.forget();
        assert!(tokens.find(&token, 9).await.unwrap().is_none());
        assert!(tokens.any().await.unwrap(), "that there was one is not forgotten");
    }
}
