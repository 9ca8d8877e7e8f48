//! Hosts on the left, switches or networks on the right, a line for each cable; red and yellow where something is wrong.

use std::fmt::Write;

use crate::model::{Finding, PortRef, Room, Severity};

use super::html::escape;

const ROW: usize = 22;
const WIDTH: usize = 900;
const HOST_RIGHT: usize = 300;
const HUB_LEFT: usize = 640;

/// What a port hangs on: its switch, or the network of its address.
fn hub(room: &Room, at: PortRef<'_>) -> Option<String> {
    let heard = at.port.neighbours.iter().find_map(|one| one.system.clone().or_else(|| one.chassis.clone()));
    let exported = || {
        let ours = |port: &crate::model::SwitchPort| {
            port.host.as_ref() == Some(&at.host.host) && port.host_port.as_ref() == Some(&at.port.name)
        };
        room.switches.iter().find(|switch| switch.ports.iter().any(ours)).map(|switch| switch.switch.clone())
    };
    let network =
        || at.port.addresses.iter().find(|address| address.shared()).map(|one| one.network().to_string());
    heard.or_else(exported).or_else(network)
}

fn color(findings: &[Finding], at: PortRef<'_>) -> &'static str {
    let place = at.place();
    let here = findings.iter().filter(|finding| finding.places.contains(&place));
    match here.map(|finding| finding.severity).max() {
        Some(Severity::Error) => "#b00020",
        Some(Severity::Warning) => "#d29922",
        Some(Severity::Hint) | None => "#57606a",
    }
}

/// The picture as inline SVG.
pub(super) fn picture(room: &Room, findings: &[Finding]) -> String {
    let mut hubs: Vec<String> = Vec::new();
    let mut body = String::new();
    let mut lines: Vec<(usize, usize, &'static str, String)> = Vec::new();
    let mut y = 10;
    for host in &room.hosts {
        let cables: Vec<(PortRef<'_>, String)> = host
            .ports
            .iter()
            .filter_map(|port| Some((PortRef { host, port }, hub(room, PortRef { host, port })?)))
            .collect();
        let height = ROW * (cables.len() + 1) + 6;
        let _ = write!(
            body,
            "{}<text x=\"20\" y=\"{}\" font-weight=\"bold\">{}</text>",
            frame(10, y, height),
            y + 16,
            escape(&host.host)
        );
        for (row, (at, hub)) in (1..).zip(cables) {
            let middle = y + ROW * row + 12;
            let speed = at.port.link.speed_mbps.map(|speed| format!(", {speed} Mb/s")).unwrap_or_default();
            let mtu = at.port.mtu.map(|mtu| format!(", MTU {mtu}")).unwrap_or_default();
            let label = format!("{}{speed}{mtu}", at.port.name);
            let _ = write!(body, "<text x=\"30\" y=\"{}\">{}</text>", middle + 4, escape(&label));
            let number = hubs.iter().position(|known| *known == hub).unwrap_or_else(|| {
                hubs.push(hub);
                hubs.len() - 1
            });
            lines.push((middle, number, color(findings, at), label));
        }
        y += height + 14;
    }
    let between = y / hubs.len().max(1);
    let hub_y = |number: usize| number * between + between / 2;
    for (from, number, color, label) in lines {
        let _ = write!(
            body,
            "<line x1=\"{HOST_RIGHT}\" y1=\"{from}\" x2=\"{HUB_LEFT}\" y2=\"{}\" stroke=\"{color}\" stroke-width=\"2\"><title>{}</title></line>",
            hub_y(number),
            escape(&label)
        );
    }
    for (number, hub) in hubs.iter().enumerate() {
        let top = hub_y(number).saturating_sub(16);
        let _ = write!(
            body,
            "{}<text x=\"{}\" y=\"{}\">{}</text>",
            frame(HUB_LEFT, top, 32),
            HUB_LEFT + 10,
            top + 20,
            escape(hub)
        );
    }
    format!("<svg viewBox=\"0 0 {WIDTH} {}\" width=\"{WIDTH}\" role=\"img\">{body}</svg>\n", y.max(40))
}

fn frame(x: usize, y: usize, height: usize) -> String {
    let width = if x == HUB_LEFT { WIDTH - HUB_LEFT - 10 } else { HOST_RIGHT - x };
    format!(
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"4\" fill=\"#f6f8fa\" stroke=\"#57606a\"/>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::run_all;
    use crate::testing::{healthy_room, port};

    #[test]
    fn a_line_for_each_cable_and_the_faulty_one_is_red() {
        let mut room = healthy_room();
        let healthy = picture(&room, &[]);
        // Three hosts with three ports each; two switches and the management network.
        assert_eq!((healthy.matches("<line").count(), healthy.matches("<rect").count()), (9, 6));
        assert!(healthy.contains("leaf0") && healthy.contains("192.168.0.0/24"));
        assert!(!healthy.contains("#b00020"));
        port(&mut room, "beta", "ens1f1").mtu = Some(1500);
        let faulty = picture(&room, &run_all(&room));
        assert_eq!(faulty.matches("#b00020").count(), 1);
    }
}
