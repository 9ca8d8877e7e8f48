//! A bridge in the middle passes 1500 bytes while the hosts send 9000: migrations without the doctor's advice and with
//! it, in turn.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::ensure;
use linerate_lab::{Lab, LinkSpec};
use serde::Serialize;

use crate::interrupt;
use crate::moving::Ending;
use crate::output::Progress;
use crate::pair::Pair;
use crate::statistics::{Spread, spread};

/// How many states of the links are compared.
pub const STATES: usize = 4;
/// Rate of each link, Mb/s.
pub(super) const MBPS: u64 = 1000;
pub(super) const GUEST_MIB: u64 = 256;
/// Only a hang meets it.
pub(super) const LONG: Duration = Duration::from_secs(120);

/// What the links are like, and which of them the migration may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Healthy,
    SmallBridge,
    SmallBridgeOnly,
    Fixed,
}

const ALL: [(State, &str); STATES] = [
    (State::Healthy, "both links pass 9000 bytes"),
    (State::SmallBridge, "a bridge of the second link passes 1500, without an ICMP error"),
    (State::SmallBridgeOnly, "the same, and the migration may use this link only"),
    (State::Fixed, "the bridge as before, after `linerate doctor --fix`: its hosts send 1500"),
];

/// Migrations in one state.
#[derive(Debug, Serialize)]
pub struct Row {
    state: State,
    what: &'static str,
    /// Of those that completed, from the request to the answer.
    seconds: Option<Spread>,
    /// Share of the second link in what was sent, percent.
    second_link_percent: Option<Spread>,
    /// Each different end, with how often.
    ends: Vec<(String, usize)>,
}

/// All states in turn, `rounds` times.
pub fn run(binary: &Path, rounds: usize, progress: &mut Progress) -> anyhow::Result<Vec<Row>> {
    let mut stage = Stage::new(binary)?;
    let mut endings: Vec<Vec<Ending>> = vec![Vec::new(); STATES];
    for _ in 0..rounds {
        for ((state, what), endings) in ALL.iter().zip(&mut endings) {
            ensure!(!interrupt::asked(), "interrupted");
            progress.doing(what);
            stage.prepare(*state)?;
            let ending = stage.migrate(*state)?;
            progress.done(&format!("{what}: {} after {:.2} s", ending.text(), ending.total.as_secs_f64()));
            endings.push(ending);
        }
    }
    Ok(ALL.iter().zip(&endings).map(|((state, what), endings)| row(*state, what, endings)).collect())
}

fn row(state: State, what: &'static str, endings: &[Ending]) -> Row {
    let done = || endings.iter().filter(|ending| ending.completed());
    let mut ends: Vec<(String, usize)> = Vec::new();
    for text in endings.iter().map(Ending::text) {
        match ends.iter_mut().find(|(known, _)| *known == text) {
            Some((_, count)) => *count += 1,
            None => ends.push((text, 1)),
        }
    }
    Row {
        state,
        what,
        seconds: spread(done().map(|ending| ending.total.as_secs_f64())),
        second_link_percent: spread(done().filter_map(second_link_percent)),
        ends,
    }
}

/// Whether all guests arrived where a link was good, or the other one was.
pub fn arrived(rows: &[Row]) -> bool {
    let rows = rows.iter().filter(|row| row.state != State::SmallBridgeOnly);
    rows.flat_map(|row| &row.ends).all(|(end, _)| end == "completed")
}

fn second_link_percent(ending: &Ending) -> Option<f64> {
    let links = &ending.report.as_ref()?.links;
    let all: u64 = links.iter().map(|link| link.sent_bytes).sum();
    let second: u64 = links.iter().filter(|link| link.name.contains("l1")).map(|link| link.sent_bytes).sum();
    (all > 0).then(|| second as f64 * 100.0 / all as f64)
}

pub fn table(rows: &[Row]) -> String {
    let head =
        "| links | ends | seconds, median (least to most) | over the second link |\n|---|---|---|---|\n";
    let mut text = if rows.is_empty() { String::new() } else { head.to_owned() };
    for row in rows {
        let ends: Vec<String> = row.ends.iter().map(|(end, count)| format!("{count} x {end}")).collect();
        let time = row.seconds.map_or_else(
            || "–".to_owned(),
            |time| format!("{:.2} ({:.2} to {:.2})", time.median, time.min, time.max),
        );
        let share =
            row.second_link_percent.map_or_else(|| "–".to_owned(), |share| format!("{:.0} %", share.median));
        text += &format!("| {} | {} | {time} | {share} |\n", row.what, ends.join(", "));
    }
    text
}

/// Two hosts with agents and a third without, so that there are bridges in the middle.
struct Stage(Pair);

impl Stage {
    fn new(binary: &Path) -> anyhow::Result<Stage> {
        let lab = Lab::builder().hosts(3).links([LinkSpec::shaped(MBPS); 2]).build()?;
        Ok(Stage(Pair::new(lab, binary, "settings_from_agents = true\n", GUEST_MIB)?))
    }

    fn prepare(&self, state: State) -> anyhow::Result<()> {
        let bridge = if state == State::Healthy { "9000" } else { "1500" };
        set_mtu(&self.0.lab, 1, "9000", bridge)?;
        if state == State::Fixed {
            self.fix()?;
        }
        Ok(())
    }

    /// As an operator would.
    fn fix(&self) -> anyhow::Result<()> {
        let other = self.0.to()?;
        let mut doctor = self.0.source()?.client();
        let done = doctor.args(["doctor", "--quick", "--fix", "--yes", &other]).output()?;
        let text = String::from_utf8_lossy(&done.stdout);
        ensure!(text.contains("it stays"), "{text}{}", String::from_utf8_lossy(&done.stderr));
        Ok(())
    }

    fn migrate(&mut self, state: State) -> anyhow::Result<Ending> {
        let only = self.0.network(1)?;
        let mut flags = vec!["--no-check"];
        if state == State::SmallBridgeOnly {
            flags.extend(["--links", &only]);
        }
        self.0.migrate(&flags, LONG)
    }
}

/// What hosts send over a link, and what its bridge passes, bytes.
pub(super) fn set_mtu(lab: &Lab, link: usize, hosts: &str, bridge: &str) -> anyhow::Result<()> {
    let switch = format!("{}-sw", lab.name());
    for host in lab.hosts() {
        ip(&switch, &format!("l{link}-{}", host.name()), ["mtu", bridge])?;
        ip(host.namespace(), &host.device(link), ["mtu", hosts])?;
        // A veth hands over what an adapter would have cut into packets, and a bridge passes that whatever its length.
        ip(host.namespace(), &host.device(link), ["gso_max_segs", "1"])?;
    }
    Ok(())
}

fn ip(namespace: &str, device: &str, setting: [&str; 2]) -> anyhow::Result<()> {
    let done =
        Command::new("ip").args(["-n", namespace, "link", "set", "dev", device]).args(setting).output()?;
    ensure!(done.status.success(), "ip: {}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_stays_is_a_result_only_where_no_link_is_good() {
        let rows = |state| {
            let ends = vec![("completed".to_owned(), 4), ("failed".to_owned(), 1)];
            [Row { state, what: "", seconds: None, second_link_percent: None, ends }]
        };
        assert!(arrived(&rows(State::SmallBridgeOnly)) && !arrived(&rows(State::Fixed)));
    }
}
