//! Tokens: their form, and the lookup of a caller's token.
//!
//! Guarantees: a token has 256 random bits. The store and this cache keep only a hash of them. A cached token is at
//! most [`AGE_MAX`] old, so a token that any daemon on the same store revokes stops working within seconds. While the
//! store does not respond, cached tokens stay valid for [`AWAY_MAX`]. So callers can still read the daemon's own
//! metrics, which report the fault. No lookup takes longer than [`Store::patience`].
//!
//! Without the store, a token is not accepted for the first time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::store::opening::{equal_in_constant_time, hash};
use crate::store::{SecretHash, Store, StoreError, TokenRow};

/// The prefix of a token. Scanners can find tokens that leaked into a repository by it.
const PREFIX: &str = "memctl_";
/// The age at which a cached token must be looked up again.
pub const AGE_MAX: Duration = Duration::from_secs(2);
/// The same limit while the store does not respond.
pub const AWAY_MAX: Duration = Duration::from_secs(600);
/// The most tokens in the cache.
const KNOWN_MAX: usize = 4_096;

/// A token as a caller sends it, with its secret hashed.
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

    /// Parses a token.
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

/// A cached lookup.
#[derive(Clone)]
struct CachedLookup<T> {
    since: Instant,
    /// When the store last failed to respond to a lookup of it.
    away: Option<Instant>,
    found: T,
}

impl<T> CachedLookup<T> {
    fn new(found: T) -> Self {
        Self { since: Instant::now(), away: None, found }
    }

    /// Whether it can be used without another lookup.
    fn counts(&self) -> bool {
        self.since.elapsed() < AGE_MAX || (self.holds_on() && self.away.is_some_and(|away| away.elapsed() < AGE_MAX))
    }

    /// Whether it stays valid while the store does not respond.
    fn holds_on(&self) -> bool {
        self.since.elapsed() < AWAY_MAX
    }
}

/// A token's row, if it exists.
type Row = Option<Arc<TokenRow>>;

/// The cache of a store's tokens.
pub struct Tokens {
    store: Arc<dyn Store>,
    known: Mutex<HashMap<u64, CachedLookup<Row>>>,
    /// Whether any token exists.
    any: Mutex<Option<CachedLookup<bool>>>,
}

impl Tokens {
    /// Creates the cache over a store.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, known: Mutex::default(), any: Mutex::default() }
    }

    /// The row of a token that is valid now; `None` if it is unknown or no longer valid.
    ///
    /// # Errors
    /// The store does not respond, and it has not returned the token within [`AWAY_MAX`].
    pub async fn find(&self, token: &Token, now_ns: u64) -> Result<Row, StoreError> {
        let row = self.row(token.id).await?;
        Ok(row.filter(|row| equal_in_constant_time(&row.secret, &token.secret) && row.counts(now_ns)))
    }

    async fn row(&self, id: u64) -> Result<Row, StoreError> {
        let known = self.lock_known().get(&id).cloned();
        if let Some(known) = known.as_ref().filter(|known| known.counts()) {
            return Ok(known.found.clone());
        }
        match (self.answered(self.store.token(id)).await, known.filter(CachedLookup::holds_on)) {
            (Ok(row), _) => {
                let row = row.map(Arc::new);
                self.keep(id, CachedLookup::new(row.clone()));
                Ok(row)
            }
            (Err(_), Some(known)) => {
                let row = known.found.clone();
                self.keep(id, CachedLookup { away: Some(Instant::now()), ..known });
                Ok(row)
            }
            (Err(error), None) => Err(error),
        }
    }

    /// Whether any token was ever created.
    ///
    /// # Errors
    /// The store does not respond, and it has not responded within [`AWAY_MAX`].
    pub async fn any(&self) -> Result<bool, StoreError> {
        let known = self.lock_any().clone();
        // Tokens are never removed, only revoked, so a positive result stays valid.
        if let Some(known) = known.as_ref().filter(|known| known.found || known.counts()) {
            return Ok(known.found);
        }
        let (now, any) = match (self.answered(self.store.tokens()).await, known.filter(CachedLookup::holds_on)) {
            (Ok(tokens), _) => (CachedLookup::new(!tokens.is_empty()), !tokens.is_empty()),
            (Err(_), Some(known)) => (CachedLookup { away: Some(Instant::now()), ..known }, false),
            (Err(error), None) => return Err(error),
        };
        *self.lock_any() = Some(now);
        Ok(any)
    }

    /// Clears the cache, because tokens have changed.
    pub fn forget(&self) {
        self.lock_known().clear();
        *self.lock_any() = None;
    }

    /// The store's response, or an error after its timeout.
    async fn answered<T>(&self, asking: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let patience = self.store.patience();
        let away = |_| StoreError::Unreachable {
            place: "the store".to_owned(),
            reason: format!("the store does not answer within {} s", patience.as_secs_f64()),
        };
        tokio::time::timeout(patience, asking).await.map_err(away)?
    }

    fn lock_known(&self) -> MutexGuard<'_, HashMap<u64, CachedLookup<Row>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_any(&self) -> MutexGuard<'_, Option<CachedLookup<bool>>> {
        self.any.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, id: u64, row: CachedLookup<Row>) {
        let mut known = self.lock_known();
        if known.len() >= KNOWN_MAX {
            known.retain(|_, known| known.counts());
            if known.len() >= KNOWN_MAX {
                known.clear();
            }
        }
        known.insert(id, row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::SqliteStore;

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
        let store: Arc<dyn Store> = Arc::new(SqliteStore::in_memory().await.unwrap());
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
        assert!(tokens.any().await.unwrap(), "a revoked token still counts as made");
    }
}
