//! Compares documents with the tables of docs/json.md.

use std::collections::BTreeMap;

use serde_json::Value;

/// One row of a type's table.
struct Row {
    /// Of an enum: the variant that it belongs to.
    variant: String,
    key: String,
    value: String,
}

/// The tables of docs/json.md, by type.
pub struct Page(BTreeMap<String, Vec<Row>>);

impl Page {
    pub fn read() -> Page {
        let text =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md")).unwrap();
        let sections = text.split("\n### ").skip(1).map(|section| {
            let name = section.lines().next().unwrap_or_default().to_owned();
            (
                name,
                section
                    .lines()
                    .filter(|line| line.starts_with("| `") || line.starts_with("|  |"))
                    .filter_map(row)
                    .collect(),
            )
        });
        Page(sections.collect())
    }

    /// What a value has and its type's table has not, and the other way round. `kind` as the tables write it.
    pub fn wrong(&self, at: &str, value: &Value, kind: &str) -> Vec<String> {
        let plain = kind.trim_end_matches(", may be absent").trim_end_matches(" or null");
        let fits = match (plain, value) {
            (_, Value::Null) => kind.contains(" or null"),
            ("text", value) => value.is_string(),
            ("integer", value) => value.is_i64() || value.is_u64(),
            ("number", value) => value.is_number(),
            ("true or false", value) => value.is_boolean(),
            ("object", value) => value.is_object(),
            _ => true,
        };
        if !fits {
            return vec![format!("{at} is {value}, not {kind}")];
        }
        match (value, plain.strip_prefix("list of "), plain.strip_prefix("map to ")) {
            (Value::Array(members), Some(kind), _) => {
                members.iter().flat_map(|one| self.wrong(&format!("{at}[]"), one, kind)).collect()
            }
            (Value::Object(members), _, Some(kind)) => {
                members.iter().flat_map(|(key, one)| self.wrong(&format!("{at}.{key}"), one, kind)).collect()
            }
            (Value::Null, ..) => Vec::new(),
            _ => match plain.strip_prefix('[').and_then(|kind| kind.split_once(']')) {
                Some((name, _)) => self.of_type(at, value, name),
                None => Vec::new(),
            },
        }
    }

    fn of_type(&self, at: &str, value: &Value, name: &str) -> Vec<String> {
        if let Some(text) = value.as_str() {
            let known = self
                .0
                .get(name)
                .is_some_and(|rows| rows.iter().any(|row| row.variant == format!("\"{text}\"")));
            return if known { Vec::new() } else { vec![format!("{at} is {text}, which is no {name}")] };
        }
        let Some(object) = value.as_object() else { return vec![format!("{at} is {value}, not {name}")] };
        let rows = self.rows(name, object);
        if rows.is_empty() {
            return vec![format!("{at}: there is no table of {name} with fields")];
        }
        let mut wrong = Vec::new();
        for (key, value) in object {
            match rows.iter().find(|row| row.key == *key) {
                Some(row) => wrong.extend(self.wrong(&format!("{at}.{key}"), value, &row.value)),
                None => wrong.push(format!("{at}.{key} is on no row of {name}")),
            }
        }
        let absent =
            rows.iter().filter(|row| !row.value.contains("may be absent") && !object.contains_key(&row.key));
        wrong.extend(absent.map(|row| format!("{at}.{} of {name} is not there", row.key)));
        wrong
    }

    /// Rows of the fields of an object: its type's, and those of types that are spread into it.
    fn rows(&self, name: &str, object: &serde_json::Map<String, Value>) -> Vec<Row> {
        let mut found = Vec::new();
        for row in self.0.get(name).into_iter().flatten() {
            let is_variant = |value: &Value| value.as_str().is_some_and(|text| text == row.variant);
            let own =
                |row: &Row| Row { variant: String::new(), key: row.key.clone(), value: row.value.clone() };
            // {"forced": 1000}
            if let Some(key) = row.variant.strip_prefix("{\"").and_then(|text| text.strip_suffix("\": …}"))
            {
                if object.contains_key(key) {
                    found.push(Row { key: key.to_owned(), ..own(row) });
                }
                continue;
            }
            let tag = ["kind", "event"].into_iter().find(|tag| object.get(*tag).is_some_and(is_variant));
            if !row.variant.is_empty() && tag.is_none() {
                continue;
            }
            if let Some(tag) = tag.filter(|tag| found.iter().all(|row: &Row| row.key != *tag)) {
                found.push(Row { key: tag.to_owned(), value: "text".to_owned(), ..own(row) });
            }
            match row.value.strip_prefix("fields of [").and_then(|kind| kind.split_once(']')) {
                Some((inner, _)) => found.extend(self.rows(inner, object)),
                None if row.key.is_empty() => {}
                None => found.push(own(row)),
            }
        }
        found
    }
}

/// `| field | value | meaning |`, `| variant | field | value | meaning |` or `| value | meaning |`.
fn row(line: &str) -> Option<Row> {
    let line = line.replace("\\|", "/");
    let cells: Vec<&str> =
        line.trim_matches('|').split(" | ").map(|cell| cell.trim().trim_matches('`')).collect();
    let new = |variant: &str, key: &str, value: &str| {
        Some(Row { variant: variant.to_owned(), key: key.to_owned(), value: value.to_owned() })
    };
    match cells[..] {
        [value, _] => match value.split_once("`, ") {
            Some((variant, kind)) => new(variant, "", kind),
            None => new(value, "", ""),
        },
        [key, value, _] => new("", key, value),
        [variant, key, value, _] => new(variant, key, value),
        _ => None,
    }
}
