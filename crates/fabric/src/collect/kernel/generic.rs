//! Generic netlink: families are numbered at run time.

use linerate_net::netlink::NetlinkError;
use netlink_sys::protocols::NETLINK_GENERIC;

use super::ask::Asker;
use super::attributes::{Attributes, Writer};

const CONTROLLER: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// Command, version, two reserved bytes.
const HEADER_BYTES: usize = 4;

/// A family of the kernel.
pub struct Family {
    asker: Asker,
    number: u16,
}

impl Family {
    /// Looks a family up. `None` if the kernel has no such family.
    pub fn find(name: &str) -> Result<Option<Family>, NetlinkError> {
        let mut asker = Asker::open(NETLINK_GENERIC)?;
        let request = Writer::new().text(FAMILY_NAME, name).finish();
        match asker.ask(CONTROLLER, 0, &with_header(GET_FAMILY, request)) {
            Err(error) if super::ask::is_absent(&error) => Ok(None),
            Err(error) => Err(error),
            Ok(answers) => Ok(answers
                .first()
                .and_then(|answer| number(&answer.payload))
                .map(|number| Family { asker, number })),
        }
    }

    /// Asks it; gives each answer's attributes.
    pub fn ask(&mut self, command: u8, flags: u16, attributes: Writer) -> Result<Vec<Vec<u8>>, NetlinkError> {
        let answers = self.asker.ask(self.number, flags, &with_header(command, attributes.finish()))?;
        Ok(answers
            .into_iter()
            .filter_map(|answer| Some(answer.payload.get(HEADER_BYTES..)?.to_vec()))
            .collect())
    }
}

fn with_header(command: u8, attributes: Vec<u8>) -> Vec<u8> {
    [vec![command, 1, 0, 0], attributes].concat()
}

fn number(payload: &[u8]) -> Option<u16> {
    let value = Attributes::new(payload.get(HEADER_BYTES..)?).get(FAMILY_ID)?;
    value.first_chunk().map(|two| u16::from_ne_bytes(*two))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_has_ethtool_and_no_nonsense() {
        assert!(Family::find("ethtool").unwrap().is_some());
        assert!(Family::find("no-such-family").unwrap().is_none());
    }
}
