//! Names of libvirt's domains.

/// A domain of this host's system libvirt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// The domain's name, ID or UUID.
    pub name: String,
}

impl Domain {
    /// What names of domains of the host's own libvirt begin with.
    pub const SYSTEM: &str = "qemu:///system/";

    /// A guest that is named as a domain: `qemu:///system/NAME`.
    pub fn parse(guest: &str) -> Option<Domain> {
        let name = guest.strip_prefix(Domain::SYSTEM)?;
        let is_name = !name.is_empty() && !name.contains('/');
        is_name.then(|| Domain { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_is_a_guest_that_names_its_libvirt() {
        let domain = Domain::parse("qemu:///system/web").unwrap();
        assert_eq!(domain.name, "web");
        for other in ["web", "qemu:///system/", "qemu:///system", "qemu:///system/a/b", "xen:///system/web"] {
            assert_eq!(Domain::parse(other), None, "{other}");
        }
    }
}
