//! The domains that run on this host, for a drain.

use linerate_api::ErrorBody;

use super::virsh::{HERE, Virsh};

/// Sockets of a libvirt of this host: of the one daemon, and of the one for QEMU alone.
const SOCKETS: [&str; 2] = ["/run/libvirt/libvirt-sock", "/run/libvirt/virtqemud-sock"];

/// A running or paused domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Domain {
    pub name: String,
    pub uuid: String,
    /// Bytes of memory that it may have.
    pub memory_bytes: u64,
}

/// Domains that this host's libvirt runs; none on a host without libvirt.
pub(crate) async fn running() -> Result<Vec<Domain>, ErrorBody> {
    if !SOCKETS.iter().any(|socket| std::path::Path::new(socket).exists()) {
        return Ok(Vec::new());
    }
    all(&Virsh::new(HERE)).await
}

/// State of a domain of this host's libvirt. One that is arriving is `paused`. None if libvirt does not know it or does
/// not answer.
pub(crate) async fn state(uuid: &str) -> Option<String> {
    Virsh::new(HERE).state(uuid).await.ok()
}

async fn all(virsh: &Virsh) -> Result<Vec<Domain>, ErrorBody> {
    let mut found = Vec::new();
    // A name may have blanks: each domain is asked for by its UUID.
    let listed = virsh.run(&["list", "--uuid"]).await?;
    for uuid in listed.split_whitespace() {
        let text = match virsh.run(&["dominfo", uuid]).await {
            Ok(text) => text,
            // One that has ended meanwhile is not there.
            Err(error) if virsh.run(&["list", "--uuid"]).await?.contains(uuid) => return Err(error),
            Err(_) => continue,
        };
        let name = field(&text, "Name:").unwrap_or(uuid).to_owned();
        let memory_bytes = field(&text, "Max memory:").and_then(kib).unwrap_or(0);
        found.push(Domain { name, uuid: uuid.to_owned(), memory_bytes });
    }
    Ok(found)
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.trim().strip_prefix(name)).map(str::trim)
}

fn kib(text: &str) -> Option<u64> {
    text.strip_suffix("KiB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::super::testing::FakeLibvirt;
    use super::*;

    #[tokio::test]
    async fn a_domain_that_is_listed_and_cannot_be_looked_at_is_not_left_out() {
        let fake = FakeLibvirt::new(None);
        assert_eq!(all(&fake.virsh()).await.ok(), Some(vec![]));
        fake.set("others", "0f0e8c9a-0000-4000-8000-000000000002\n");
        assert!(all(&fake.virsh()).await.is_err());
    }

    #[test]
    fn a_domain_has_its_name_and_its_memory() {
        let text =
            "Id:             3\nName:           my web\nMax memory:     262144 KiB\nUsed memory:    1 KiB\n";
        assert_eq!(field(text, "Name:"), Some("my web"));
        assert_eq!(field(text, "Max memory:").and_then(kib), Some(256 << 20));
        assert_eq!(kib("12 MiB"), None);
    }
}
