//! Sizes in words.

/// Bytes in the largest binary unit that leaves at least one of it: `4 GiB`, `1.5 GiB`, `512 bytes`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let Some((unit, name)) = UNITS.into_iter().find(|(unit, _)| bytes >= *unit) else {
        return format!("{bytes} bytes");
    };
    let tenths = (u128::from(bytes) * 10 + u128::from(unit / 2)) / u128::from(unit);
    match tenths % 10 {
        0 => format!("{} {name}", tenths / 10),
        rest => format!("{}.{rest} {name}", tenths / 10),
    }
}

/// The same with the number behind it, where two sizes may differ by a little.
pub fn exact_bytes(size: u64) -> String {
    if size < 1 << 10 { bytes(size) } else { format!("{} ({size} bytes)", bytes(size)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_in_units() {
        for (size, words) in [
            (0, "0 bytes"),
            (1000, "1000 bytes"),
            (1 << 10, "1 KiB"),
            (4 << 30, "4 GiB"),
            (1536 << 20, "1.5 GiB"),
            ((8 << 30) - 1, "8 GiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(bytes(size), words);
        }
        assert_eq!(exact_bytes((8 << 30) - 1), "8 GiB (8589934591 bytes)");
    }
}
