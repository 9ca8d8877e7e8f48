//! What the links carry: iperf3 over all of them at once.

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use linerate_lab::Lab;

const SECONDS: &str = "2";
const FIRST_PORT: usize = 5201;

/// Gb/s of TCP payload from host `from` to the other, one stream for each link, all at the same time.
pub fn measure(lab: &Lab, from: usize) -> anyhow::Result<f64> {
    let (source, destination) = (lab.host(from)?, lab.host(1 - from)?);
    let links = lab.topology().links.len();
    let mut servers = Servers(Vec::new());
    for link in 0..links {
        let mut server = destination.command("iperf3");
        server.args(["-s", "-1", "-p", &(FIRST_PORT + link).to_string()]);
        server.arg("-B").arg(destination.address(link).to_string());
        servers.0.push(server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    }
    wait_listening(destination.command("ss"), links)?;
    let clients: Vec<Child> = (0..links)
        .map(|link| {
            let mut client = source.command("iperf3");
            client.args(["-J", "-t", SECONDS, "-O", "0.3", "-p", &(FIRST_PORT + link).to_string()]);
            client.arg("-c").arg(destination.address(link).to_string());
            client.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
        })
        .collect::<Result<_, _>>()?;
    let mut sum = 0.0;
    for client in clients {
        sum += rate(&client.wait_with_output()?)?;
    }
    Ok(sum / 1e9)
}

fn rate(output: &Output) -> anyhow::Result<f64> {
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).context("iperf3 gave no JSON")?;
    let rate = answer.pointer("/end/sum_received/bits_per_second").and_then(serde_json::Value::as_f64);
    rate.with_context(|| format!("iperf3: {}", answer.get("error").unwrap_or(&answer)))
}

fn wait_listening(mut ss: Command, count: usize) -> anyhow::Result<()> {
    ss.args(["-Htln"]);
    let end = Instant::now() + Duration::from_secs(10);
    while Instant::now() < end {
        let output = ss.output()?;
        ensure!(output.status.success(), "ss: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout);
        if (0..count).all(|link| text.contains(&format!(":{} ", FIRST_PORT + link))) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    bail!("iperf3 does not listen")
}

/// Bytes that a host has sent on each link, headers included.
pub fn sent(lab: &Lab, from: usize) -> anyhow::Result<Vec<u64>> {
    let host = lab.host(from)?;
    let output = Command::new("ip").args(["-n", host.namespace(), "-s", "-j", "link", "show"]).output()?;
    let list: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).context("ip gave no JSON")?;
    let of = |link| {
        let device = list.iter().find(|one| one["ifname"] == host.device(link).as_str());
        device.and_then(|one| one.pointer("/stats64/tx/bytes")?.as_u64()).context("a link has no counters")
    };
    (0..lab.topology().links.len()).map(of).collect()
}

struct Servers(Vec<Child>);

impl Drop for Servers {
    fn drop(&mut self) {
        for server in &mut self.0 {
            // Errors mean that it has ended already, as intended.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}
