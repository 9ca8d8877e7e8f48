//! QEMU's option strings: `driver,key=value,flag` with doubled commas, or one JSON object, read into the same list of
//! pairs.
//!
//! What is written out again is always the canonical `key=value` form, so that QEMU cannot read it otherwise than we
//! did.

use std::fmt;

use serde_json::Value;

/// Why an option string cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// JSON that is not an object or not JSON at all.
    #[error("not a JSON object")]
    Json,
    /// A key with characters that no QEMU key has.
    #[error("the key {0:?} is not a QEMU option name")]
    Key(String),
}

/// A parsed option string.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pairs: Vec<(String, String)>,
}

impl Options {
    /// Reads a string. `implied` is the key of a first part without `=` (`driver` of `-device`); none makes it a flag.
    pub fn parse(text: &str, implied: Option<&str>) -> Result<Options, OptionsError> {
        let mut options = Options::default();
        if text.starts_with('{') {
            let Ok(value @ Value::Object(_)) = serde_json::from_str(text) else {
                return Err(OptionsError::Json);
            };
            options.add_json("", &value)?;
            return Ok(options);
        }
        for (index, part) in split_commas(text).into_iter().enumerate() {
            match (part.split_once('='), implied) {
                (Some((key, value)), _) => options.add(key, value)?,
                (None, Some(key)) if index == 0 => options.add(key, &part)?,
                (None, _) if part.is_empty() => {}
                // Old style flags: `nowait` says wait=off, `server` says server=on.
                (None, _) => match part.strip_prefix("no") {
                    Some(key) if !key.is_empty() => options.add(key, "off")?,
                    _ => options.add(&part, "on")?,
                },
            }
        }
        Ok(options)
    }

    pub fn from_pairs(pairs: &[(&str, &str)]) -> Options {
        let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Options { pairs }
    }

    /// The value of a key; the last one counts, as in QEMU.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// Whether a switch is on.
    pub fn is_on(&self, key: &str) -> bool {
        matches!(self.get(key), Some("on" | "yes" | "true" | "y"))
    }

    /// Sets a key, in its old place or at the end.
    pub fn set(&mut self, key: &str, value: &str) {
        let place = self.pairs.iter().position(|(name, _)| name == key);
        self.remove(key);
        let place = place.unwrap_or(self.pairs.len());
        self.pairs.insert(place.min(self.pairs.len()), (key.to_owned(), value.to_owned()));
    }

    /// Adds a pair at the end, whatever is there of its key.
    pub(crate) fn push(&mut self, key: &str, value: &str) {
        self.pairs.push((key.to_owned(), value.to_owned()));
    }

    /// Keeps the keys that the predicate takes.
    pub fn retain(&mut self, mut keeps: impl FnMut(&str) -> bool) {
        self.pairs.retain(|(key, _)| keeps(key));
    }

    /// Takes all values of a key away.
    pub fn remove(&mut self, key: &str) {
        self.pairs.retain(|(name, _)| name != key);
    }

    /// All pairs in order.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    fn add(&mut self, key: &str, value: &str) -> Result<(), OptionsError> {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if key.is_empty() || !key.chars().all(legal) {
            return Err(OptionsError::Key(key.chars().take(80).collect()));
        }
        self.pairs.push((key.to_owned(), value.to_owned()));
        Ok(())
    }

    fn add_json(&mut self, prefix: &str, value: &Value) -> Result<(), OptionsError> {
        let nested = |key: &str| if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") };
        match value {
            Value::Object(members) => {
                members.iter().try_for_each(|(key, member)| self.add_json(&nested(key), member))
            }
            Value::Array(members) => members
                .iter()
                .enumerate()
                .try_for_each(|(index, member)| self.add_json(&nested(&index.to_string()), member)),
            Value::Null => Ok(()),
            Value::Bool(on) => self.add(prefix, if *on { "on" } else { "off" }),
            Value::Number(number) => self.add(prefix, &number.to_string()),
            Value::String(text) => self.add(prefix, text),
        }
    }
}

/// `key=value,key=value`, commas in values doubled.
impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (key, value)) in self.pairs.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{key}={}", escape(value))?;
        }
        Ok(())
    }
}

/// A value with its commas doubled, as QEMU wants it.
pub fn escape(value: &str) -> String {
    value.replace(',', ",,")
}

fn split_commas(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if character != ',' {
            push(&mut parts, character);
        } else if characters.next_if_eq(&',').is_some() {
            push(&mut parts, ',');
        } else {
            parts.push(String::new());
        }
    }
    parts
}

fn push(parts: &mut [String], character: char) {
    if let Some(last) = parts.last_mut() {
        last.push(character);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_styles_read_alike() {
        let keyed = Options::parse("socket,id=m,path=/a,,b,server,nowait", Some("backend")).unwrap();
        let json = r#"{"backend":"socket","id":"m","path":"/a,b","server":true,"wait":false}"#;
        assert_eq!(keyed, Options::parse(json, Some("backend")).unwrap_or_default().reordered_like(&keyed));
        assert_eq!(keyed.get("path"), Some("/a,b"));
        assert!(keyed.is_on("server") && !keyed.is_on("wait"));
        assert_eq!(keyed.to_string(), "backend=socket,id=m,path=/a,,b,server=on,wait=off");
    }

    impl Options {
        fn reordered_like(mut self, other: &Options) -> Options {
            self.pairs.sort_by_key(|(key, _)| other.pairs.iter().position(|(name, _)| name == key));
            self
        }
    }

    #[test]
    fn the_last_value_counts_and_set_replaces_all() {
        let mut options = Options::parse("a=1,b=2,a=3", None).unwrap();
        assert_eq!(options.get("a"), Some("3"));
        options.set("a", "4");
        assert_eq!(options.to_string(), "a=4,b=2");
    }

    #[test]
    fn strange_keys_and_json_are_refused() {
        assert_eq!(Options::parse("{", None), Err(OptionsError::Json));
        assert!(matches!(Options::parse(r#"{"a,b":"c"}"#, None), Err(OptionsError::Key(_))));
        assert!(matches!(Options::parse("a b=c", None), Err(OptionsError::Key(_))));
    }

    proptest! {
        #[test]
        fn written_and_read_again_is_the_same(values in proptest::collection::vec("[ -~]{0,12}", 1..6)) {
            let mut options = Options::default();
            for (index, value) in values.iter().enumerate() {
                options.set(&format!("key{index}"), value);
            }
            prop_assert_eq!(Options::parse(&options.to_string(), None).unwrap(), options);
        }

        #[test]
        fn reading_never_panics(text in ".{0,60}") {
            let _ = Options::parse(&text, Some("driver"));
        }
    }
}
