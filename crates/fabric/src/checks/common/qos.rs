//! Advice that is one file for all hosts: `linerate qos`.

use crate::model::{Finding, PortRef, Selector};
use crate::qos::intent::parse;
use crate::qos::plan::port_plan;

use super::rdma::{roce_of, traffic_class};

/// What switches and adapters usually have for RoCE.
const USUAL_PRIORITY: u8 = 3;
const USUAL_DSCP: u8 = 26;

/// One file for all hosts, whatever it says.
pub(in crate::checks) fn advise_intent(mut finding: Finding, ports: &[PortRef<'_>]) -> Finding {
    let mut hosts: Vec<&str> = ports.iter().map(|at| at.host.host.as_str()).collect();
    hosts.dedup();
    for host in hosts {
        finding = finding.by_intent(host, "make all hosts as one file says (docs/qos.md)");
    }
    finding.step(None, "and every switch port of the network: `linerate qos switch FILE` writes its side")
}

/// The same with the file: RoCE lossless in the priority that most of the ports have. A port that cannot have it says why.
pub(in crate::checks) fn suggest_intent(
    finding: Finding,
    ports: &[PortRef<'_>],
    priority: Option<u8>,
) -> Finding {
    let (priority, dscp) = (priority.unwrap_or(USUAL_PRIORITY), mark(ports));
    let mut names: Vec<&str> = ports.iter().map(|at| at.port.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let class = format!("[migration]\npriority = {priority}\nshare = 50\nlossless = true\ndscp = {dscp}");
    let text = format!("ports = {names:?}\nroce = \"v2\"\n{class}");
    let Ok(intent) = parse(&text) else { return advise_intent(finding, ports) };
    let (mut able, mut unable) = (Vec::new(), Vec::new());
    for at in ports {
        match port_plan(at.host, at.port, &intent) {
            Ok(_) => able.push(*at),
            Err(why) => unable.push((at.place(), why.to_string())),
        }
    }
    let mut finding = finding;
    if !able.is_empty() {
        let words = text.replace('\n', "; ");
        let file = format!("a file for it, with the share that migrations shall have: {words}");
        let marked =
            format!("`rdma_type_of_service = {}` for the agents, so that their RDMA has the mark", dscp << 2);
        finding = advise_intent(finding.step(None, file), &able).step(None, marked);
    }
    unable.into_iter().fold(finding, |finding, (place, why)| finding.step(Some(place), why))
}

/// The mark that RoCE has already, or that some port gives a priority to.
fn mark(ports: &[PortRef<'_>]) -> u8 {
    let own = |at: &PortRef<'_>| {
        let class = traffic_class(at.host, roce_of(*at)?.1)?;
        Some(class >> 2).filter(|dscp| *dscp > 0)
    };
    let told = |at: &PortRef<'_>| {
        let table = &at.port.dcb.as_ref()?.applications;
        let one =
            table.iter().find(|one| one.selector == Selector::Dscp && (1..64).contains(&one.protocol))?;
        u8::try_from(one.protocol).ok()
    };
    ports.iter().find_map(own).or_else(|| ports.iter().find_map(told)).unwrap_or(USUAL_DSCP)
}
