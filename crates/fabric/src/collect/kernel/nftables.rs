//! nftables: chains that see incoming packets, and what they do with what no rule takes.
//! Numbers are those of `linux/netfilter/nf_tables.h`.

use linerate_net::netlink::NetlinkError;
use netlink_packet_core::NLM_F_DUMP;
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::netlink::{Asker, Attributes, is_absent};
use crate::model::{Firewall, FirewallChain};

/// Subsystem 10, message 4.
const GET_CHAIN: u16 = (10 << 8) | 4;
/// Family, version, two bytes of a number.
const HEADER_BYTES: usize = 4;

/// The chains; `None` if the kernel has no nftables.
pub fn read() -> Result<Option<Firewall>, NetlinkError> {
    let mut asker = Asker::open(NETLINK_NETFILTER)?;
    match asker.ask(GET_CHAIN, NLM_F_DUMP, &[0, 0, 0, 0]) {
        Ok(answers) => {
            let chains = answers.iter().filter_map(|answer| chain(&answer.payload)).collect();
            Ok(Some(Firewall { input: chains }))
        }
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn chain(payload: &[u8]) -> Option<FirewallChain> {
    let family = *payload.first()?;
    let attributes = Attributes::new(payload.get(HEADER_BYTES..)?);
    let number = attributes.nested(4)?.u32_network(1)?;
    let (family, hook) = match (family, number) {
        (1, 0) => ("inet", "prerouting"),
        (1, 1) => ("inet", "input"),
        (1, 5) => ("inet", "ingress"),
        (2, 0) => ("ip", "prerouting"),
        (2, 1) => ("ip", "input"),
        (10, 0) => ("ip6", "prerouting"),
        (10, 1) => ("ip6", "input"),
        (5, 0) => ("netdev", "ingress"),
        _ => return None,
    };
    Some(FirewallChain {
        table: format!("{family} {}", attributes.text(1)?),
        name: attributes.text(3)?,
        hook: hook.to_owned(),
        drops: attributes.u32_network(5) == Some(0),
        rules: attributes.u32_network(6).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::super::netlink::Writer;
    use super::*;

    fn answer(family: u8, hook: u32, policy: u32) -> Vec<u8> {
        let hook = Writer::new().bytes(1, &hook.to_be_bytes());
        let attributes =
            Writer::new().text(1, "filter").text(3, "in").nest(4, hook).bytes(5, &policy.to_be_bytes());
        [vec![family, 0, 0, 0], attributes.bytes(6, &3u32.to_be_bytes()).finish()].concat()
    }

    #[test]
    fn a_chain_with_policy_drop_is_parsed() {
        let chain = chain(&answer(1, 1, 0)).unwrap();
        assert_eq!((chain.table.as_str(), chain.hook.as_str()), ("inet filter", "input"));
        assert!(chain.drops);
        assert_eq!(chain.rules, 3);
    }

    #[test]
    fn what_leaves_or_passes_by_does_not_matter() {
        assert_eq!(chain(&answer(1, 3, 0)), None);
        assert!(!chain(&answer(2, 1, 1)).unwrap().drops);
        assert_eq!(chain(&[1]), None);
    }
}
