//! Inventories of many hosts, made of one: the same ports with other addresses.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};

/// Writes `count` inventories into `into`, each like the first one in `from`.
pub fn many(from: &Path, into: &Path, count: usize) -> anyhow::Result<()> {
    let first = first(from)?;
    let model: Value = serde_json::from_slice(&std::fs::read(&first)?)?;
    std::fs::create_dir_all(into)?;
    for number in 1..=count {
        let host = format!("host{number}");
        let text = serde_json::to_vec(&like(&model, &host, number))?;
        std::fs::write(into.join(format!("{host}.json")), text)?;
    }
    Ok(())
}

fn first(folder: &Path) -> anyhow::Result<PathBuf> {
    let files = std::fs::read_dir(folder)?.map_while(Result::ok).map(|entry| entry.path());
    files.filter(|path| path.extension().is_some_and(|end| end == "json")).min().context("no saved inventory")
}

/// The model with another name, last octets and hardware addresses.
fn like(model: &Value, host: &str, number: usize) -> Value {
    let mut made = model.clone();
    if let Some(name) = made.get_mut("host") {
        *name = json!(host);
    }
    let ports = made.get_mut("ports").and_then(Value::as_array_mut);
    for (place, port) in ports.into_iter().flatten().enumerate() {
        if let Some(mac) = port.get_mut("mac").filter(|mac| mac.is_string()) {
            *mac = json!(format!("02:00:00:{place:02x}:{:02x}:{:02x}", number >> 8, number & 255));
        }
        let addresses = port.get_mut("addresses").and_then(Value::as_array_mut);
        for ip in addresses.into_iter().flatten().filter_map(|address| address.get_mut("ip")) {
            *ip = json!(numbered(ip.as_str().unwrap_or_default(), number));
        }
    }
    let listen = made.pointer_mut("/agent/listen").and_then(Value::as_array_mut);
    for address in listen.into_iter().flatten() {
        let (ip, port) = address.as_str().and_then(|text| text.rsplit_once(':')).unwrap_or_default();
        *address = json!(format!("{}:{port}", numbered(ip, number)));
    }
    made
}

/// `10.64.0.1` as `10.64.0.NUMBER`; other forms stay.
fn numbered(ip: &str, number: usize) -> String {
    match ip.rsplit_once('.').filter(|_| !ip.starts_with("127.")) {
        Some((network, _)) => format!("{network}.{number}"),
        None => ip.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_has_its_own_addresses() {
        let model = json!({
            "host": "a",
            "ports": [{"mac": "aa:bb:cc:dd:ee:ff", "addresses": [{"ip": "10.64.0.1"}, {"ip": "127.0.0.1"}]}],
            "agent": {"listen": ["10.64.0.1:7979"]},
        });
        let made = like(&model, "host9", 9);
        assert_eq!(made["host"], "host9");
        assert_eq!(made["ports"][0]["addresses"], json!([{"ip": "10.64.0.9"}, {"ip": "127.0.0.1"}]));
        assert_eq!(made["agent"]["listen"][0], "10.64.0.9:7979");
        assert_ne!(made["ports"][0]["mac"], like(&model, "host8", 8)["ports"][0]["mac"]);
    }
}
