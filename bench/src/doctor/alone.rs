//! What QEMU's own migration does over one link with a bridge that passes less than the hosts send.

use std::time::{Duration, Instant};

use anyhow::ensure;
use linerate_lab::{Console, GuestParameters, GuestSpec, Lab, LinkSpec, Qemu, QemuOptions, QemuVersion, Ram};
use serde::Serialize;
use serde_json::{Value, json};

use super::jumbo::{GUEST_MIB, LONG, MBPS, set_mtu};
use crate::interrupt;
use crate::output::Progress;
use crate::statistics::{Spread, spread};

/// What hosts and bridge are set to, bytes, and what that is.
const STATES: [(&str, &str, &str); 3] = [
    ("9000", "9000", "the link passes 9000 bytes"),
    ("9000", "1500", "a bridge in the middle passes 1500, without an ICMP error"),
    ("1500", "1500", "the bridge as before, its hosts send 1500"),
];
pub const COUNT: usize = STATES.len();
/// After so long without an end a migration is given up: many times what a healthy one takes.
const GIVEN_UP: Duration = Duration::from_secs(30);
const PORT: u16 = 7000;
const LINK: usize = 1;

/// Migrations in one state.
#[derive(Debug, Serialize)]
pub struct Row {
    what: &'static str,
    completed: usize,
    /// Not at its end after [`GIVEN_UP`].
    given_up: usize,
    /// Of those that completed.
    seconds: Option<Spread>,
    /// What QEMU says that it has sent by the end, MB.
    sent_mb: Option<Spread>,
}

struct Ending {
    completed: bool,
    seconds: f64,
    sent_mb: f64,
}

/// All states in turn, `rounds` times.
pub fn run(rounds: usize, progress: &mut Progress) -> anyhow::Result<Vec<Row>> {
    let lab = Lab::builder().hosts(3).links([LinkSpec::shaped(MBPS); 2]).ram_mb(1024).build()?;
    let mut endings: [Vec<Ending>; COUNT] = Default::default();
    for _ in 0..rounds {
        for ((hosts, bridge, what), endings) in STATES.into_iter().zip(&mut endings) {
            interrupt::check()?;
            let what = format!("QEMU by itself, {what}");
            progress.doing(&what);
            set_mtu(&lab, LINK, hosts, bridge)?;
            let ending = migrate(&lab)?;
            let end = if ending.completed { "completed" } else { "given up" };
            progress
                .done(&format!("{what}: {end} after {:.2} s, {:.0} MB sent", ending.seconds, ending.sent_mb));
            endings.push(ending);
        }
    }
    let row = |((_, _, what), endings): ((&str, &str, &'static str), &Vec<Ending>)| {
        let done = || endings.iter().filter(|ending| ending.completed);
        Row {
            what,
            completed: done().count(),
            given_up: endings.len() - done().count(),
            seconds: spread(done().map(|ending| ending.seconds)),
            sent_mb: spread(endings.iter().map(|ending| ending.sent_mb)),
        }
    };
    Ok(STATES.into_iter().zip(&endings).map(row).collect())
}

/// A fresh guest, moved once by its QEMU.
fn migrate(lab: &Lab) -> anyhow::Result<Ending> {
    let parameters = GuestParameters { mem_mb: GUEST_MIB, ..GuestParameters::default() };
    let guest = GuestSpec::new("alone", parameters).qemu(QemuVersion::Ten);
    let options =
        |incoming: Option<String>| QemuOptions { ram: Ram::Plain, incoming, ..QemuOptions::default() };
    let (source, destination) = (lab.host(0)?, lab.host(1)?);
    let here = Qemu::start(source, &guest, &options(None))?;
    Console::new(vec![guest.serial(source)]).wait_passes(1, LONG)?;
    let uri = format!("tcp:{}:{PORT}", destination.address(LINK));
    let _there = Qemu::start(destination, &guest, &options(Some(uri.clone())))?;

    let mut here = here.qmp()?;
    here.execute("migrate-set-parameters", json!({ "max-bandwidth": 100_000_000_000u64 }))?;
    let began = Instant::now();
    here.execute("migrate", json!({ "uri": uri }))?;
    loop {
        let answer = here.execute("query-migrate", Value::Null)?;
        let status = answer["status"].as_str().unwrap_or_default();
        ensure!(!matches!(status, "failed" | "cancelled"), "QEMU's migration: {answer}");
        let completed = status == "completed";
        let seconds = began.elapsed().as_secs_f64();
        if completed || began.elapsed() > GIVEN_UP || interrupt::asked() {
            let sent_mb = answer["ram"]["transferred"].as_f64().unwrap_or(0.0) / 1e6;
            return Ok(Ending { completed, seconds, sent_mb });
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn table(rows: &[Row]) -> String {
    let head = "| one link | completed | given up after 30 s | seconds, median (least to most) | sent, MB |\n|---|---|---|---|---|\n";
    let mut text = if rows.is_empty() { String::new() } else { head.to_owned() };
    let shown = |figures: &Option<Spread>, digits: usize| match figures {
        Some(one) => format!("{:.digits$} ({:.digits$} to {:.digits$})", one.median, one.min, one.max),
        None => "–".to_owned(),
    };
    for row in rows {
        let (seconds, sent) = (shown(&row.seconds, 2), shown(&row.sent_mb, 1));
        text += &format!("| {} | {} | {} | {seconds} | {sent} |\n", row.what, row.completed, row.given_up);
    }
    text
}
