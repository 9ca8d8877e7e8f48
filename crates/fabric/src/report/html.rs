//! A page that needs nothing else: no script, no font, no picture from elsewhere. Its picture has hosts on the left,
//! switches or networks on the right, a line for each cable; red and yellow where something is wrong.

use std::fmt::Write;

use crate::model::{Finding, PortRef, Probe, Severity, Survey};
use crate::report::{clean, headline, summary, word};

const STYLE: &str = "body{font:15px/1.45 sans-serif;margin:2em auto;max-width:75em;padding:0 \
    1em;color:#222}table{border-collapse:collapse;margin:.5em 0}td,th{border:1px solid #ccc;padding:.2em \
    .6em;text-align:left}details{margin:.3em 0}summary{cursor:pointer}code{background:#f2f2f2;padding:.1em \
    .3em}.error{color:#b00020}.warning{color:#9a6700}.hint{color:#0550ae}svg text{font:12px sans-serif}";

/// The whole report as one HTML page without outside resources.
pub fn html(survey: &Survey, findings: &[Finding]) -> String {
    let mut sorted: Vec<&Finding> = findings.iter().collect();
    sorted.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let list: String = sorted.into_iter().map(entry).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>linerate doctor</title><style>{STYLE}</style></head><body>\n<h1>linerate doctor</h1>\n<p>{}</p>\n\
         <h2>Findings</h2>\n{list}<h2>Hosts, links, switches</h2>\n{}{}</body></html>\n",
        escape(&summary(survey, findings)),
        picture(survey, findings),
        matrix(&survey.matrix.probes),
    )
}

/// Text for any place in a page, attributes too.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for one in clean(text).chars() {
        match one {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            one => out.push(one),
        }
    }
    out
}

fn entry(finding: &Finding) -> String {
    let class = word(finding.severity);
    let seen: String = finding
        .seen
        .iter()
        .map(|seen| row("td", &[seen.location.to_string(), seen.what.clone(), seen.value.clone()]))
        .collect();
    let follows = |effect: &crate::model::Effect| format!("<li>follows: {}</li>", escape(&effect.title));
    let follows: String = finding.effects.iter().map(follows).collect();
    let fix = |fix: &crate::model::Fix| {
        let location =
            fix.location.as_ref().map(|location| format!("{}: ", location.host)).unwrap_or_default();
        let command = fix.command.as_ref().map(|command| format!("<br><code>{}</code>", escape(command)));
        format!("<li>{}{}</li>", escape(&format!("{location}{}", fix.what)), command.unwrap_or_default())
    };
    let fixes: String = finding.fixes.iter().map(fix).collect();
    format!(
        "<details><summary><b class=\"{class}\">{class}</b> {}</summary>\n<table>{seen}</table>\n<ul>{follows}</ul>\n<p>{}</p>\n<ul>{fixes}</ul>\n\
         <p>{}</p></details>\n",
        escape(&headline(finding)),
        escape(&finding.why),
        escape(&finding.page),
    )
}

fn row<const N: usize>(tag: &str, cells: &[String; N]) -> String {
    let cells: String = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
    format!("<tr>{cells}</tr>\n")
}

/// One line for each pair of ports and direction.
fn matrix(probes: &[Probe]) -> String {
    if probes.is_empty() {
        return String::new();
    }
    let head =
        ["from", "to", "path MTU", "round trip", "throughput", "RDMA", "loaded", "lost under load", ""]
            .map(String::from);
    let rows: String = probes.iter().map(|probe| row("td", &cells(probe))).collect();
    format!("<h2>What was measured</h2>\n<table>\n{}{rows}</table>\n", row("th", &head))
}

fn cells(probe: &Probe) -> [String; 9] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
    let time = |latency: crate::model::Latency| format!("{} µs", latency.median_ns / 1000);
    let mtu = probe.path_mtu.map(|path| match (path.passed < path.promised, path.black_hole) {
        (false, _) => path.passed.to_string(),
        (true, false) => format!("{} of {}", path.passed, path.promised),
        (true, true) => format!("{} of {}, silently", path.passed, path.promised),
    });
    let notes = [
        (probe.reachable == Some(false)).then(|| "not reachable".to_owned()),
        probe.leaves_by.as_ref().map(|port| format!("leaves by {port}")),
        probe.arrives_at.as_ref().map(|port| format!("arrives at {port}")),
        probe.failure.clone(),
        probe.tcp_failure.as_ref().map(|why| format!("TCP: {why}")),
        probe.loss.filter(|loss| loss.lost > 0).map(|loss| format!("{} of {} lost", loss.lost, loss.sent)),
        probe.rdma_failure.as_ref().map(|why| format!("RDMA: {why}")),
        probe.rdma_not_measured.as_ref().map(|why| format!("RDMA was not measured: {why}")),
    ];
    [
        format!("{} {}", probe.from.host, probe.from.port),
        format!("{} {}", probe.to.host, probe.to.port),
        or_dash(mtu),
        or_dash(probe.latency.map(time)),
        or_dash(probe.throughput_mbps.map(|rate| format!("{rate} Mb/s"))),
        or_dash(probe.rdma_mbps.map(|rate| format!("{rate} Mb/s"))),
        or_dash(probe.latency_loaded.map(time)),
        or_dash(probe.loss_permille.map(|loss| format!("{loss} ‰"))),
        notes.into_iter().flatten().collect::<Vec<_>>().join("; "),
    ]
}

const ROW: usize = 22;
const WIDTH: usize = 900;
const HOST_RIGHT: usize = 300;
const HUB_LEFT: usize = 640;

/// What a port hangs on: its switch, or the network of its address.
fn hub(survey: &Survey, at: PortRef<'_>) -> Option<String> {
    let neighbour =
        at.port.neighbours.iter().find_map(|one| one.system.clone().or_else(|| one.chassis.clone()));
    let exported = || {
        let ours = |port: &crate::model::SwitchPort| {
            port.host.as_ref() == Some(&at.host.host) && port.host_port.as_ref() == Some(&at.port.name)
        };
        survey
            .switches
            .iter()
            .find(|switch| switch.ports.iter().any(ours))
            .map(|switch| switch.switch.clone())
    };
    let network =
        || at.port.addresses.iter().find(|address| address.shared()).map(|one| one.network().to_string());
    neighbour.or_else(exported).or_else(network)
}

fn color(findings: &[Finding], at: PortRef<'_>) -> &'static str {
    let location = at.location();
    let here = findings.iter().filter(|finding| finding.locations.contains(&location));
    match here.map(|finding| finding.severity).max() {
        Some(Severity::Error) => "#b00020",
        Some(Severity::Warning) => "#d29922",
        Some(Severity::Hint) | None => "#57606a",
    }
}

/// The picture as inline SVG.
fn picture(survey: &Survey, findings: &[Finding]) -> String {
    let mut hubs: Vec<String> = Vec::new();
    let mut body = String::new();
    let mut lines: Vec<(usize, usize, &'static str, String)> = Vec::new();
    let mut y = 10;
    for host in &survey.hosts {
        let cables: Vec<(PortRef<'_>, String)> = host
            .ports
            .iter()
            .filter_map(|port| Some((PortRef { host, port }, hub(survey, PortRef { host, port })?)))
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
    mod page {
        use super::super::*;
        use crate::checks::run_all;
        use crate::model::{End, PathMtu};
        use crate::testing::{healthy_survey, port};

        #[test]
        fn nothing_from_outside_becomes_markup_and_nothing_is_loaded() {
            let evil = "<script>alert('x')</script>\"><img src=http://x>";
            let mut survey = healthy_survey();
            survey.hosts[1].host = evil.into();
            survey.hosts[1].ports[1].name = evil.into();
            survey.hosts[1].ports[1].carrier_changes = Some(500);
            survey.hosts[1].ports[1].neighbours[0].system = Some(evil.into());
            let end = End { host: evil.into(), port: evil.into(), ip: [10, 1, 0, 1].into() };
            let mut probe = Probe::new(end.clone(), end);
            probe.failure = Some(evil.into());
            survey.matrix.probes = vec![probe];
            let page = html(&survey, &run_all(&survey));
            assert!(page.contains("&lt;script&gt;"), "the name is shown");
            for forbidden in ["<script", "<img", "<link", "@import", "src=\"", "url("] {
                assert!(!page.contains(forbidden), "{forbidden}");
            }
        }

        #[test]
        fn findings_picture_and_matrix_are_there() {
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "ens1f1").mtu = Some(1500);
            let end = |host: &str| End { host: host.into(), port: "ens1f1".into(), ip: [10, 1, 1, 1].into() };
            let mut probe = Probe::new(end("alpha"), end("beta"));
            probe.path_mtu = Some(PathMtu { promised: 9000, passed: 1500, black_hole: true });
            survey.matrix.probes = vec![probe];
            let page = html(&survey, &run_all(&survey));
            for words in [
                "<b class=\"error\">error</b> beta ens1f1: MTU 1500 and 9000",
                "<svg",
                "1500 of 9000, silently",
                "ip link set dev ens1f1 mtu 9000",
            ] {
                assert!(page.contains(words), "{words} is not in\n{page}");
            }
            assert_eq!(page.matches("<details>").count(), page.matches("</details>").count());
        }
    }

    mod picture {
        use super::super::*;
        use crate::checks::run_all;
        use crate::testing::{healthy_survey, port};

        #[test]
        fn a_line_for_each_cable_and_the_faulty_one_is_red() {
            let mut survey = healthy_survey();
            let healthy = picture(&survey, &[]);
            // Three hosts with three ports each; two switches and the management network.
            assert_eq!((healthy.matches("<line").count(), healthy.matches("<rect").count()), (9, 6));
            assert!(healthy.contains("leaf0") && healthy.contains("192.168.0.0/24"));
            assert!(!healthy.contains("#b00020"));
            port(&mut survey, "beta", "ens1f1").mtu = Some(1500);
            let faulty = picture(&survey, &run_all(&survey));
            assert_eq!(faulty.matches("#b00020").count(), 1);
        }
    }
}
