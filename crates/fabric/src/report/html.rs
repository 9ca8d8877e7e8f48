//! A page that needs nothing else: no script, no font, no picture from elsewhere.

use crate::model::{Finding, Probe, Room};

use super::picture::picture;
use super::{clean, headline, summary, word};

const STYLE: &str = "body{font:15px/1.45 sans-serif;margin:2em auto;max-width:75em;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:.5em 0}td,th{border:1px solid #ccc;padding:.2em .6em;text-align:left}\
details{margin:.3em 0}summary{cursor:pointer}code{background:#f2f2f2;padding:.1em .3em}\
.error{color:#b00020}.warning{color:#9a6700}.hint{color:#0550ae}svg text{font:12px sans-serif}";

/// The whole report.
pub fn html(room: &Room, findings: &[Finding]) -> String {
    let mut sorted: Vec<&Finding> = findings.iter().collect();
    sorted.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let list: String = sorted.into_iter().map(entry).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>linerate doctor</title><style>{STYLE}</style></head><body>\n<h1>linerate doctor</h1>\n<p>{}</p>\n\
         <h2>Findings</h2>\n{list}<h2>Hosts, links, switches</h2>\n{}{}</body></html>\n",
        escape(&summary(room, findings)),
        picture(room, findings),
        matrix(&room.matrix.probes),
    )
}

/// Text for any place in a page, attributes too.
pub(super) fn escape(text: &str) -> String {
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
        .map(|seen| row("td", &[seen.place.to_string(), seen.what.clone(), seen.value.clone()]))
        .collect();
    let follows = |effect: &crate::model::Effect| format!("<li>follows: {}</li>", escape(&effect.title));
    let follows: String = finding.effects.iter().map(follows).collect();
    let fix = |fix: &crate::model::Fix| {
        let place = fix.place.as_ref().map(|place| format!("{}: ", place.host)).unwrap_or_default();
        let command = fix.command.as_ref().map(|command| format!("<br><code>{}</code>", escape(command)));
        format!("<li>{}{}</li>", escape(&format!("{place}{}", fix.what)), command.unwrap_or_default())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::run_all;
    use crate::model::{End, PathMtu};
    use crate::testing::{healthy_room, port};

    #[test]
    fn nothing_from_outside_becomes_markup_and_nothing_is_loaded() {
        let evil = "<script>alert('x')</script>\"><img src=http://x>";
        let mut room = healthy_room();
        room.hosts[1].host = evil.into();
        room.hosts[1].ports[1].name = evil.into();
        room.hosts[1].ports[1].carrier_changes = Some(500);
        room.hosts[1].ports[1].neighbours[0].system = Some(evil.into());
        let end = End { host: evil.into(), port: evil.into(), ip: [10, 1, 0, 1].into() };
        let mut probe = Probe::new(end.clone(), end);
        probe.failure = Some(evil.into());
        room.matrix.probes = vec![probe];
        let page = html(&room, &run_all(&room));
        assert!(page.contains("&lt;script&gt;"), "the name is shown");
        for forbidden in ["<script", "<img", "<link", "@import", "src=\"", "url("] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
    }

    #[test]
    fn findings_picture_and_matrix_are_there() {
        let mut room = healthy_room();
        port(&mut room, "beta", "ens1f1").mtu = Some(1500);
        let end = |host: &str| End { host: host.into(), port: "ens1f1".into(), ip: [10, 1, 1, 1].into() };
        let mut probe = Probe::new(end("alpha"), end("beta"));
        probe.path_mtu = Some(PathMtu { promised: 9000, passed: 1500, black_hole: true });
        room.matrix.probes = vec![probe];
        let page = html(&room, &run_all(&room));
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
