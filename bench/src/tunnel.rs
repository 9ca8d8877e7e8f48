//! A tunnel against socat and against plain TCP, for one long stream on the same links, in turn.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use linerate_lab::{Agent, AgentOptions, Lab, LinkSpec};
use serde::Serialize;

use crate::output::{Progress, replace_json};
use crate::statistics::{Spread, spread};
use crate::{Common, cpu, interrupt};

/// Sockets are there within this.
const START: Duration = Duration::from_secs(20);
const PORT: u16 = 6100;
const BLOCK: usize = 256 << 10;

#[derive(Debug, clap::Args)]
pub struct Flags {
    #[command(flatten)]
    common: Common,
    /// Bytes of one stream, MiB
    #[arg(long, default_value_t = 4096)]
    mib: u64,
    /// How often each way is taken
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Rate of each of the two links, Mb/s; 0: not shaped
    #[arg(long, default_value_t = 2500)]
    mbps: u64,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum Way {
    PlainTcp,
    Socat,
    TunnelOneLink,
    TunnelTwoLinks,
}

const WAYS: [(Way, &str); 4] = [
    (Way::PlainTcp, "plain TCP, one link, no proxy"),
    (Way::Socat, "socat at both ends, one link"),
    (Way::TunnelOneLink, "linerate tunnel, one link"),
    (Way::TunnelTwoLinks, "linerate tunnel, two links"),
];

#[derive(Debug, Serialize)]
struct Row {
    way: Way,
    gbps: Option<Spread>,
    /// Of all processes between the two ends, both hosts together.
    cpu_seconds_per_gb: Option<Spread>,
}

/// Takes all ways in turn, and prints their medians. True: there are no targets that could be missed here.
pub fn run(flags: Flags, json: bool) -> anyhow::Result<bool> {
    let stage = Stage::new(&flags)?;
    let mut progress = Progress::new(flags.rounds * WAYS.len())?;
    let mut figures: Vec<Vec<(f64, f64)>> = vec![Vec::new(); WAYS.len()];
    for _ in 0..flags.rounds {
        for ((way, name), figures) in WAYS.iter().zip(&mut figures) {
            ensure!(!interrupt::asked(), "interrupted");
            progress.doing(name);
            let (gbps, cpu) = stage.measure(*way, flags.mib << 20).with_context(|| (*name).to_owned())?;
            progress.done(&format!("{name}: {gbps:.2} Gb/s, {cpu:.2} CPU s/GB"));
            figures.push((gbps, cpu));
        }
    }
    let rows: Vec<Row> = WAYS
        .iter()
        .zip(&figures)
        .map(|((way, _), figures)| Row {
            way: *way,
            gbps: spread(figures.iter().map(|figure| figure.0)),
            cpu_seconds_per_gb: spread(figures.iter().map(|figure| figure.1)),
        })
        .collect();
    replace_json(&flags.common.out.join("tunnel.json"), &rows)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        print!("{}", table(&rows));
    }
    Ok(true)
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from("| way | Gb/s median (least to most) | CPU s per GB |\n|---|---|---|\n");
    for (row, (_, name)) in rows.iter().zip(WAYS) {
        if let (Some(rate), Some(cpu)) = (row.gbps, row.cpu_seconds_per_gb) {
            text += &format!(
                "| {name} | {:.2} ({:.2} to {:.2}) | {:.2} |\n",
                rate.median, rate.min, rate.max, cpu.median
            );
        }
    }
    text
}

struct Stage {
    agents: Vec<Agent>,
    targets: PathBuf,
    lab: Lab,
}

/// Both ends of the one stream.
type Ends = (Box<dyn End>, Box<dyn End>);

trait End: Read + Write + Send {
    fn end(&self) -> std::io::Result<()>;
}

impl End for TcpStream {
    fn end(&self) -> std::io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl End for UnixStream {
    fn end(&self) -> std::io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Stage {
    fn new(flags: &Flags) -> anyhow::Result<Stage> {
        let link = if flags.mbps == 0 { LinkSpec::unshaped() } else { LinkSpec::shaped(flags.mbps) };
        let lab = Lab::builder().links([link.mtu(9000); 2]).build()?;
        let targets = lab.directory().join("targets");
        std::fs::create_dir(&targets)?;
        let configuration = format!("tunnel_targets = [\"unix:{}/\"]", targets.display());
        let options = AgentOptions {
            binary: Some(flags.common.binary()?),
            configuration,
            environment: vec![("LINERATE_LOG".into(), "warn".into())],
        };
        let agents =
            lab.hosts().iter().map(|host| Agent::start(host, options.clone())).collect::<Result<_, _>>()?;
        Ok(Stage { agents, targets, lab })
    }

    /// Gb/s, and CPU seconds per GB of the programs between the ends.
    fn measure(&self, way: Way, bytes: u64) -> anyhow::Result<(f64, f64)> {
        let (near, far) = (self.lab.directory().join("near.sock"), self.targets.join("far.sock"));
        for path in [&near, &far] {
            let _ = std::fs::remove_file(path);
        }
        let (proxies, (source, destination)) = self.open(way, &near, &far)?;
        let pids: Vec<u32> = match way {
            Way::PlainTcp => Vec::new(),
            Way::Socat => proxies.0.iter().map(Child::id).collect(),
            Way::TunnelOneLink | Way::TunnelTwoLinks => self.agents.iter().map(Agent::pid).collect(),
        };
        let used = || pids.iter().filter_map(|pid| cpu::seconds(*pid)).sum::<f64>();
        let before = used();
        let took = carry(source, destination, bytes)?;
        let cpu = used() - before;
        Ok((bytes as f64 * 8.0 / took.as_secs_f64() / 1e9, cpu / (bytes as f64 / 1e9)))
    }

    fn open(&self, way: Way, near: &Path, far: &Path) -> anyhow::Result<(Proxies, Ends)> {
        let (a, b) = (self.lab.host(0)?, self.lab.host(1)?);
        if let Way::PlainTcp = way {
            let address = (b.address(0), PORT);
            let listener = b.inside(|| Ok(TcpListener::bind(address)))??;
            let source = a.inside(|| Ok(TcpStream::connect(address)))??;
            return Ok((Proxies(Vec::new()), (Box::new(source), Box::new(listener.accept()?.0))));
        }
        let target = UnixListener::bind(far)?;
        let mut proxies = Proxies(Vec::new());
        if let Way::Socat = way {
            let address = format!("{}:{PORT}", b.address(0));
            let mut listen = b.command("socat");
            listen.arg(format!("TCP-LISTEN:{PORT},bind={},reuseaddr", b.address(0)));
            listen.arg(format!("UNIX-CONNECT:{}", far.display()));
            proxies.start(listen)?;
            wait_for("socat to listen", || {
                let text = b.command("ss").args(["-Htln"]).output()?.stdout;
                Ok(String::from_utf8_lossy(&text).contains(&format!(":{PORT} ")))
            })?;
            let mut connect = a.command("socat");
            connect.arg(format!("UNIX-LISTEN:{}", near.display())).arg(format!("TCP:{address}"));
            proxies.start(connect)?;
        } else {
            let mut tunnel = self.agent(0)?.client();
            tunnel.args(["tunnel", "--to", &self.agent(1)?.address(0).to_string()]);
            if let Way::TunnelOneLink = way {
                tunnel.arg("--links").arg(format!("{}/24", a.address(0)));
            }
            tunnel.arg(format!("unix:{}=unix:{}", near.display(), far.display()));
            proxies.start(tunnel)?;
        }
        wait_for("the socket of the proxy", || Ok(near.exists()))?;
        let source = UnixStream::connect(near)?;
        let destination = target.accept()?.0;
        // All links of a tunnel are up, and everything is warm.
        std::thread::sleep(Duration::from_secs(1));
        Ok((proxies, (Box::new(source), Box::new(destination))))
    }

    fn agent(&self, host: usize) -> anyhow::Result<&Agent> {
        self.agents.get(host).context("no such host")
    }
}

/// Processes between the ends; ended when dropped.
struct Proxies(Vec<Child>);

impl Proxies {
    fn start(&mut self, mut command: Command) -> anyhow::Result<()> {
        self.0
            .push(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("is socat installed?")?);
        Ok(())
    }
}

impl Drop for Proxies {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Errors mean that it has ended already, as intended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn wait_for(what: &str, mut there: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let end = Instant::now() + START;
    while !there()? {
        if Instant::now() > end {
            bail!("waited in vain for {what}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Time from the first byte written to the end read.
fn carry(mut source: Box<dyn End>, mut destination: Box<dyn End>, bytes: u64) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let received = std::thread::scope(|scope| {
        let sending = scope.spawn(move || -> std::io::Result<()> {
            let block: Vec<u8> =
                (0..BLOCK as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 21) as u8).collect();
            let mut left = bytes;
            while left > 0 {
                let length = left.min(BLOCK as u64) as usize;
                source.write_all(block.get(..length).unwrap_or_default())?;
                left -= length as u64;
            }
            source.end()?;
            // Kept open until the other side has closed, as a client does that waits for an answer.
            source.read_to_end(&mut Vec::new()).map(drop)
        });
        let mut place = vec![0; BLOCK];
        let mut received = 0;
        loop {
            match destination.read(&mut place)? {
                0 => break,
                length => received += length as u64,
            }
        }
        let took = began.elapsed();
        drop(destination);
        match sending.join() {
            Ok(sent) => sent?,
            Err(_) => bail!("the sending thread panicked"),
        }
        Ok::<_, anyhow::Error>((received, took))
    })?;
    ensure!(received.0 == bytes, "{} of {bytes} bytes came", received.0);
    Ok(received.1)
}
