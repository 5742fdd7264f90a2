//! Ids as text: 16 hexadecimal digits.
//!
//! Guarantees: reading returns the written value.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An id, which is 16 hexadecimal digits in an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(test, derive(ts_rs::TS), ts(type = "string"))]
pub struct Id(pub u64);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        u64::from_str_radix(&text, 16).map(Self).map_err(|_| de::Error::custom(format!("{text} is no id")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_was_written() {
        for (id, text) in [(0xab, "\"00000000000000ab\""), (u64::MAX, "\"ffffffffffffffff\"")] {
            assert_eq!(serde_json::to_string(&Id(id)).unwrap(), text);
            assert_eq!(serde_json::from_str::<Id>(text).unwrap(), Id(id));
        }
        assert!(serde_json::from_str::<Id>("\"leak\"").is_err());
    }
}
