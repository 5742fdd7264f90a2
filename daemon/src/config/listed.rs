//! A setting that is one text or a list of texts.

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

/// One text or several: `"a"` or `["a", "b"]`; in an environment variable `a,b`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed(pub Vec<String>);

impl Listed {
    /// Splits text at commas.
    #[must_use]
    pub fn separated(text: &str) -> Self {
        Self(text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect())
    }
}

impl<'de> Deserialize<'de> for Listed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrSeveral;
        impl<'de> Visitor<'de> for OneOrSeveral {
            type Value = Listed;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string or a list of strings")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Listed, E> {
                Ok(Listed(vec![text.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut texts: A) -> Result<Listed, A::Error> {
                let mut found = Vec::new();
                while let Some(text) = texts.next_element()? {
                    found.push(text);
                }
                Ok(Listed(found))
            }
        }
        deserializer.deserialize_any(OneOrSeveral)
    }
}
