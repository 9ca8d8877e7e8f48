//! What the doctor found, for a tired person: worst first, one line each; then the links with what they carry.

use linerate_api::{AnsweredHost, UnreachableHost};
use linerate_fabric::model::{Finding, Latency, Loss, Port, Probe, Severity, Survey};

use super::format::clean;
use super::table::{Align, Table, wrap};
use crate::context::Screen;
use crate::render::paint::Paint;

/// The doctor's whole report as text.
pub fn report(
    survey: &Survey,
    findings: &[Finding],
    unreachable: &[UnreachableHost],
    details: bool,
    screen: Screen,
) -> String {
    let paint = screen.paint;
    let mut lines = Vec::new();
    for silent in unreachable {
        let text = format!("{} could not be asked: {}", clean(&silent.host), clean(&silent.why));
        lines.extend(entry(&paint.red("error  "), &text, screen.width));
    }
    for finding in findings {
        lines.extend(entry(&word(finding.severity, paint), &title(finding), screen.width));
        if details {
            lines.extend(more(finding, screen));
        }
    }
    if !lines.is_empty() {
        lines.push(String::new());
    }
    lines.extend(matrix(&survey.matrix.probes, screen.width));
    lines.extend(incasts(survey));
    lines.push(summary(survey, findings, unreachable, paint));
    if !details && !findings.is_empty() {
        lines.push(paint.dim("what was seen, why it matters and how to put it right: --details"));
    }
    lines.join("\n") + "\n"
}

/// A line for each name that led to a host that was looked at already, unless it is that host's own name.
pub fn repeated(all: &[AnsweredHost]) -> String {
    let line = |one: &AnsweredHost| {
        let (named, host) = (clean(&one.named), clean(&one.host));
        format!(
            "{named} leads to {host}, which was looked at already: no other host was asked by this name\n"
        )
    };
    all.iter().filter(|one| one.named != one.host).map(line).collect()
}

/// Links that a look of one second was too short for: it took as many round trips as it needs. `None` if there are
/// none.
pub fn too_far(probes: &[Probe]) -> Option<String> {
    let far = probes.iter().filter_map(|probe| {
        let median_ms = probe.latency?.median_ns / 1_000_000;
        let (from, to) = (&probe.from, &probe.to);
        let text = || format!("{} {} to {} {} ({median_ms} ms)", from.host, from.port, to.host, to.port);
        (median_ms >= FAR_MS).then(text)
    });
    let far: Vec<String> = far.collect();
    (!far.is_empty()).then(|| clean(&format!("too far for a look of one second: {}", far.join(", "))) + "\n")
}

/// Round trip, milliseconds. A short look takes a dozen of them.
const FAR_MS: u64 = 80;

/// Errors and warnings in a line each, and where to read on; `None` if there are none.
pub fn brief(findings: &[Finding], to: &str, screen: Screen) -> Option<String> {
    let grave = findings.iter().filter(|finding| finding.severity != Severity::Hint);
    let mut lines: Vec<String> = grave
        .flat_map(|finding| entry(&word(finding.severity, screen.paint), &title(finding), screen.width))
        .collect();
    if lines.is_empty() {
        return None;
    }
    lines.push(screen.paint.dim(&format!("more: linerate doctor {} --details", clean(to))));
    Some(lines.join("\n"))
}

/// Ports with what can be set.
pub fn ports(ports: &[Port]) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[Left, Left, Right, Right, Left, Left, Left, Right, Left]);
    let head = ["port", "kind", "MTU", "speed", "", "FEC", "pause", "queues", "other side"];
    table.row(head.map(String::from));
    for port in ports {
        table.row(port_cells(port).map(|cell| clean(&cell)));
    }
    table.lines(0).join("\n") + "\n"
}

fn port_cells(port: &Port) -> [String; 9] {
    let unknown = || "–".to_owned();
    let kind = serde_json::to_value(port.kind).ok().and_then(|kind| Some(kind.as_str()?.to_owned()));
    let flag = |on: Option<bool>, word: &str| if on == Some(true) { word.to_owned() } else { String::new() };
    let pause = port.pause.map(|pause| [flag(pause.rx, "rx"), flag(pause.tx, "tx")].concat());
    let negotiation = match (port.carrier, port.link.autonegotiation) {
        (Some(false), _) => port.link.down_reason.clone().unwrap_or_else(|| "no link".into()),
        (_, Some(true)) => "auto".into(),
        (_, Some(false)) => "forced".into(),
        (_, None) => String::new(),
    };
    let neighbour = port
        .neighbours
        .first()
        .map(|one| [&one.system, &one.port].into_iter().flatten().cloned().collect::<Vec<_>>().join(" "));
    [
        port.name.clone(),
        kind.unwrap_or_else(unknown),
        port.mtu.map_or_else(unknown, |mtu| mtu.to_string()),
        port.link.speed_mbps.map_or_else(unknown, |speed| format!("{speed} Mb/s")),
        negotiation,
        port.fec.as_ref().and_then(|fec| fec.active.clone()).unwrap_or_else(unknown),
        pause.map_or_else(unknown, |pause| if pause.is_empty() { "off".into() } else { pause }),
        port.queues
            .map_or_else(unknown, |queues| format!("{}/{}", queues.receiving(), queues.receiving_max())),
        neighbour.unwrap_or_default(),
    ]
}

fn word(severity: Severity, paint: Paint) -> String {
    match severity {
        Severity::Error => paint.red("error  "),
        Severity::Warning => paint.yellow("warning"),
        Severity::Hint => paint.cyan("hint   "),
    }
}

/// Where, what, and which finding it is.
fn title(finding: &Finding) -> String {
    let locations: Vec<String> = finding.locations.iter().map(ToString::to_string).collect();
    let locations = if locations.is_empty() { String::new() } else { format!("{}: ", locations.join(", ")) };
    clean(&format!("{locations}{} [{}]", finding.title, finding.id))
}

/// Behind a label of seven columns.
fn entry(label: &str, text: &str, width: usize) -> Vec<String> {
    let lines = wrap(text, width.saturating_sub(9).max(20));
    let line = |(number, line): (usize, &String)| {
        if number == 0 { format!("{label}  {line}") } else { format!("         {line}") }
    };
    lines.iter().enumerate().map(line).collect()
}

fn more(finding: &Finding, screen: Screen) -> Vec<String> {
    let mut table = Table::new(&[Align::Left, Align::Left, Align::Left]);
    for seen in &finding.seen {
        table
            .row([seen.location.to_string(), seen.what.clone(), seen.value.clone()].map(|cell| clean(&cell)));
    }
    let mut lines: Vec<String> = table.lines(11);
    let mut add = |label: &str, text: &str| {
        lines.extend(entry("       ", &format!("{label} {}", clean(text)), screen.width));
    };
    for effect in &finding.effects {
        let locations: Vec<String> = effect.locations.iter().map(ToString::to_string).collect();
        add("follows:", &format!("{}: {} [{}]", locations.join(", "), effect.title, effect.id));
    }
    add("why:", &finding.why);
    for fix in &finding.fixes {
        let location =
            fix.location.as_ref().map(|location| format!("{}: ", location.host)).unwrap_or_default();
        add("do:", &format!("{location}{}", fix.what));
        if let Some(command) = &fix.command {
            add("   ", &screen.paint.bold(&clean(command)));
        }
    }
    add("more:", &finding.page);
    lines.push(String::new());
    lines
}

/// One line for each pair of ports and direction, and what is to be said of it below. Where the screen is too narrow
/// for a table, text.
fn matrix(probes: &[Probe], width: usize) -> Vec<String> {
    if probes.is_empty() {
        return Vec::new();
    }
    use Align::{Left, Right};
    let mut table = Table::new(&[Left, Left, Right, Right, Right, Right, Right]);
    let rdma = if probes.iter().any(has_rdma) { "RDMA" } else { "" };
    let head = ["from", "to", "path MTU", "round trip", "throughput", rdma, "loaded"];
    table.row(head.map(String::from));
    for probe in probes {
        table.row(cells(probe).map(|cell| clean(&cell)));
    }
    let mut rows = table.lines(0).into_iter();
    let fits = rows.as_slice().iter().all(|row| row.trim_end().chars().count() <= width);
    let mut lines: Vec<String> = rows.next().filter(|_| fits).into_iter().collect();
    for (probe, row) in probes.iter().zip(rows) {
        match fits {
            true => lines.push(row.trim_end().to_owned()),
            false => lines.extend(wrap(&in_words(probe, &head), width.max(20))),
        }
        let below = wrap(&clean(&notes(probe)), width.saturating_sub(4).max(20));
        lines.extend(below.into_iter().filter(|line| !line.is_empty()).map(|line| format!("    {line}")));
    }
    lines.push(String::new());
    lines
}

/// `a l0 to b l0: path MTU 9000, round trip 70 µs`.
fn in_words(probe: &Probe, head: &[&str; 7]) -> String {
    let cells = cells(probe);
    let figures = head.iter().zip(&cells).skip(2).filter(|(_, cell)| !cell.is_empty() && *cell != "–");
    let figures: Vec<String> = figures.map(|(what, cell)| format!("{what} {cell}")).collect();
    clean(&format!("{} to {}: {}", cells[0], cells[1], figures.join(", ")))
}

fn has_rdma(probe: &Probe) -> bool {
    probe.rdma_mbps.is_some() || probe.rdma_failure.is_some()
}

fn cells(probe: &Probe) -> [String; 7] {
    let unknown = || "–".to_owned();
    let mtu = probe.path_mtu.map_or_else(unknown, |mtu| match (mtu.passed < mtu.promised, mtu.black_hole) {
        (false, _) => mtu.passed.to_string(),
        (true, false) => format!("{} of {}", mtu.passed, mtu.promised),
        (true, true) => format!("{} of {}, silently", mtu.passed, mtu.promised),
    });
    let time = |latency: Option<Latency>| {
        latency.map_or_else(unknown, |latency| format!("{} µs", latency.median_ns / 1000))
    };
    [
        format!("{} {}", probe.from.host, probe.from.port),
        format!("{} {}", probe.to.host, probe.to.port),
        mtu,
        time(probe.latency),
        probe.throughput_mbps.map_or_else(unknown, |rate| format!("{rate} Mb/s")),
        match (probe.rdma_mbps, &probe.rdma_failure) {
            (Some(rate), _) => format!("{rate} Mb/s"),
            (None, Some(_)) => unknown(),
            (None, None) => String::new(),
        },
        time(probe.latency_loaded),
    ]
}

/// What else is to be said of a probe.
fn notes(probe: &Probe) -> String {
    let lost = |loss: Loss| format!("{} of {} packets lost", loss.lost, loss.sent);
    let notes = [
        (probe.reachable == Some(false)).then(|| "NOT REACHABLE".to_owned()),
        probe.failure.clone(),
        probe.tcp_failure.as_ref().map(|why| format!("TCP: {why}")),
        probe.loss.filter(|loss| loss.lost > 0).map(lost),
        probe.leaves_by.as_ref().map(|port| format!("unbound packets leave by {port}")),
        probe.arrives_at.as_ref().map(|port| format!("arrives at {port}")),
        probe.rdma_failure.as_ref().map(|why| format!("RDMA: {why}")),
        probe.rdma_not_measured.as_ref().map(|why| format!("RDMA was not measured: {why}")),
        probe.loss_permille.filter(|loss| *loss > 0).map(|loss| format!("{loss} ‰ lost under load")),
    ];
    notes.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

fn incasts(survey: &Survey) -> Vec<String> {
    let line = |incast: &linerate_fabric::model::Incast| {
        let sum: u64 = incast.throughput_mbps.iter().sum();
        let alone = incast.alone_mbps.map(|alone| format!(", one alone {alone} Mb/s")).unwrap_or_default();
        let (count, failed) = (incast.from.len() + incast.failed.len(), incast.failed.len());
        let failed = if failed > 0 { format!(", {failed} failed") } else { String::new() };
        clean(&format!(
            "{count} hosts at once to {} {}: {sum} Mb/s together{alone}{failed}",
            incast.to.host, incast.to.port
        ))
    };
    let mut lines: Vec<String> = survey.matrix.incasts.iter().map(line).collect();
    if !lines.is_empty() {
        lines.push(String::new());
    }
    lines
}

fn summary(survey: &Survey, findings: &[Finding], unreachable: &[UnreachableHost], paint: Paint) -> String {
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let errors = count(Severity::Error) + unreachable.len();
    let (warnings, hints) = (count(Severity::Warning), count(Severity::Hint));
    let hosts = survey.hosts.len();
    let plural = if hosts == 1 { "host" } else { "hosts" };
    if errors + warnings + hints == 0 {
        return paint.green(&format!("{hosts} {plural}: nothing found"));
    }
    format!("{hosts} {plural}: errors {errors}, warnings {warnings}, hints {hints}")
}

#[cfg(test)]
mod tests {
    use linerate_fabric::model::{End, Location, PathMtu};

    use super::*;

    const SCREEN: Screen = Screen { width: 100, paint: Paint::PLAIN, live: false };

    fn probe() -> Probe {
        let end =
            |host: &str, last: u8| End { host: host.into(), port: "l0".into(), ip: [10, 0, 0, last].into() };
        Probe::new(end("a", 1), end("b", 2))
    }

    #[test]
    fn links_that_need_more_than_a_second_are_reported() {
        let with = |ms: u64| {
            let ns = ms * 1_000_000;
            Probe { latency: Some(Latency { min_ns: ns, median_ns: ns, max_ns: ns }), ..probe() }
        };
        assert_eq!(too_far(&[probe(), with(1)]), None);
        let expected = "too far for a look of one second: a l0 to b l0 (600 ms)\n";
        assert_eq!(too_far(&[with(1), with(600)]).unwrap(), expected);
    }

    #[test]
    fn a_name_that_led_elsewhere_is_reported_and_a_hosts_own_name_is_not() {
        let led = |named: &str| AnsweredHost { named: named.into(), host: "alpha".into() };
        let text = repeated(&[led("alpha"), led("gamma\x1b[2J")]);
        let start = "gamma [2J leads to alpha, which was looked at already";
        assert!(text.starts_with(start) && text.lines().count() == 1, "{text:?}");
    }

    #[test]
    fn before_a_migration_only_errors_are_shown() {
        let finding = |severity, title: &str| {
            Finding::new("mtu-between-hosts", severity, title).at(Location::port("beta", "ens1f1"))
        };
        assert_eq!(brief(&[finding(Severity::Hint, "a hint")], "beta", SCREEN), None);
        let both = [finding(Severity::Warning, "MTU 1500 and 9000"), finding(Severity::Hint, "a hint")];
        assert_eq!(
            brief(&both, "beta", SCREEN).unwrap(),
            "warning  beta ens1f1: MTU 1500 and 9000 [mtu-between-hosts]\nmore: linerate doctor beta --details"
        );
    }

    #[test]
    fn one_line_each_and_more_on_demand() {
        let location = Location::port("beta", "ens1f1");
        let finding = Finding::new("mtu-between-hosts", Severity::Error, "MTU 1500 and 9000")
            .at(location.clone())
            .seen(location.clone(), "MTU", 1500)
            .why("it hangs")
            .command(location, "raise it", "ip link set dev ens1f1 mtu 9000");
        let survey = Survey::default();
        let short = report(&survey, std::slice::from_ref(&finding), &[], false, SCREEN);
        assert!(
            short.starts_with("error    beta ens1f1: MTU 1500 and 9000 [mtu-between-hosts]\n\n"),
            "{short}"
        );
        assert!(!short.contains("it hangs"));
        let long = report(&survey, &[finding], &[], true, SCREEN);
        for words in [
            "why: it hangs",
            "do: beta: raise it",
            "ip link set dev ens1f1 mtu 9000",
            "docs/findings.md#mtu-between-hosts",
        ] {
            assert!(long.contains(words), "{words} is not in\n{long}");
        }
    }

    #[test]
    fn a_black_hole_can_be_seen_in_the_matrix() {
        let mut one = probe();
        one.path_mtu = Some(PathMtu { promised: 9000, passed: 1500, black_hole: true });
        one.throughput_mbps = Some(2412);
        let text = matrix(&[one], 100).join("\n");
        assert!(text.contains("1500 of 9000, silently"), "{text}");
        assert!(text.contains("2412 Mb/s") && !text.contains("RDMA"), "{text}");
        let mut fast = probe();
        (fast.rdma_mbps, fast.throughput_mbps) = (Some(92_000), Some(80_000));
        let mut broken = probe();
        broken.rdma_failure = Some("no answer".into());
        let mut idle = probe();
        idle.rdma_not_measured = Some("a guest is being migrated".into());
        let text = matrix(&[fast, broken, idle], 100).join("\n");
        assert!(text.contains("RDMA was not measured: a guest is being migrated"), "{text}");
        assert!(
            text.contains("RDMA") && text.contains("92000 Mb/s") && text.contains("RDMA: no answer"),
            "{text}"
        );
    }

    #[test]
    fn what_was_measured_fits_every_screen() {
        let mut one = probe();
        (one.from.host, one.to.host) = ("hypervisor-17.example".into(), "hypervisor-18.example".into());
        one.path_mtu = Some(PathMtu { promised: 9000, passed: 1500, black_hole: true });
        one.latency = Some(Latency { min_ns: 60_000, median_ns: 70_000, max_ns: 80_000 });
        (one.throughput_mbps, one.rdma_mbps, one.latency_loaded) = (Some(92_400), Some(98_000), one.latency);
        one.failure = Some("no reply from 10.0.0.2:7979 over l0: wrong cable or VLAN, a firewall that drops UDP, or a wrong route back".into());
        one.rdma_failure =
            Some("the peer rejected the connection for a reason that takes many words to explain".into());
        for width in [60, 80, 100] {
            let lines = matrix(&[one.clone(), probe()], width);
            assert!(lines.iter().all(|line| line.chars().count() <= width), "{width}: {lines:#?}");
            let text = lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
            assert!(
                text.contains("92400 Mb/s") && text.contains("70 µs") && text.contains("wrong route"),
                "{text}"
            );
        }
    }

    #[test]
    fn effects_are_listed_under_their_finding() {
        let mut finding = Finding::new("packet-loss", Severity::Error, "30 %").at(Location::port("b", "l0"));
        let locations = vec![Location::port("b", "l0")];
        let effect = linerate_fabric::model::Effect {
            id: "drops-rising".into(),
            title: "9 packets".into(),
            locations,
        };
        finding.effects = vec![effect];
        let text = report(&Survey::default(), &[finding], &[], true, SCREEN);
        assert!(text.contains("follows: b l0: 9 packets [drops-rising]"), "{text}");
    }

    #[test]
    fn what_comes_from_other_hosts_cannot_steer_the_terminal() {
        let mut one = probe();
        one.failure = Some("\x1b[2Jgone".into());
        let silent = UnreachableHost { host: "b\x1b[2J".into(), why: "x".into() };
        let text =
            report(&Survey::default(), &[], &[silent], false, SCREEN) + &matrix(&[one], 100).join("\n");
        assert!(!text.contains('\x1b'), "{text:?}");
    }

    #[test]
    fn a_clean_result_is_shown() {
        assert_eq!(report(&Survey::default(), &[], &[], false, SCREEN), "0 hosts: nothing found\n");
    }
}
