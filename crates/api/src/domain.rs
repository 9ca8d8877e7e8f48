//! Sockets of migrations of libvirt's domains: names by which a restarted agent knows what was left behind.

/// What they are for: libvirt's own protocol, the migration, copied disks.
const KINDS: [&str; 4] = ["rpc", "job", "mig", "nbd"];
/// Digits of a migration's own part of the name.
const ID_DIGITS: usize = 32;

/// A socket's name in its folder. `id` is of one migration alone: 32 random hexadecimal digits.
pub fn domain_socket(id: &str, kind: &str) -> String {
    format!("{id}-{kind}.sock")
}

/// Whether a name was made by [`domain_socket`].
pub fn is_domain_socket(name: &str) -> bool {
    let Some((id, kind)) = name.strip_suffix(".sock").and_then(|name| name.split_once('-')) else {
        return false;
    };
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    id.len() == ID_DIGITS && id.bytes().all(is_digit) && KINDS.contains(&kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_again_and_no_others() {
        let id = "0123456789abcdef0123456789abcdef";
        for kind in KINDS {
            assert!(is_domain_socket(&domain_socket(id, kind)), "{kind}");
        }
        for other in [
            &domain_socket("web", "mig"),
            &domain_socket(id, "qmp"),
            &domain_socket(&id.to_uppercase(), "mig"),
            id,
            "",
        ] {
            assert!(!is_domain_socket(other), "{other}");
        }
    }
}
