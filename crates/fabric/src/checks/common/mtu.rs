//! Advice for the MTU of a port.

use crate::link::Wish;
use crate::link::plan::IPV6_MTU_MIN;
use crate::model::{Finding, PortRef};

/// Gives the port this MTU. One that is too small for IPv6 is for hands: the addresses that it takes away do not come back with the old MTU.
pub(in crate::checks) fn set_mtu(finding: Finding, at: PortRef<'_>, what: &str, mtu: u32) -> Finding {
    let command = format!("ip link set dev {} mtu {mtu}", at.port.name);
    match mtu {
        0..IPV6_MTU_MIN => {
            let what = format!("{what} (IPv6 needs {IPV6_MTU_MIN}: its addresses go away for good)");
            finding.command(at.place(), &what, command)
        }
        _ => finding.mend(at.place(), what, command, Wish { mtu: Some(mtu), ..Wish::default() }),
    }
}
