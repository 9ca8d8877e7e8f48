//! What the commands do.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use linerate_lab::lab::Topology;
use linerate_lab::{Cache, Lab, LinkSpec, Observer, make_disk, sweep, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use crate::{Arguments, Command, Cut, Exec, Link, Mkdisk, Observe, Slow, Up, Which, demo, rdma};

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let print = |text: String, facts: Value| {
        if arguments.json { println!("{facts}") } else { println!("{text}") }
    };
    match &arguments.command {
        Command::Up(options) => up(options, &print)?,
        Command::Down(which) => {
            let name = down(which)?;
            print(format!("removed {name}"), json!({ "removed": [name] }));
        }
        Command::List => list(&print)?,
        Command::Sweep => {
            let removed = sweep()?;
            print(
                format!("removed {} labs: {}", removed.len(), removed.join(" ")),
                json!({ "removed": removed }),
            );
        }
        Command::Exec(options) => return exec(options),
        Command::Demo(options) => return demo::run(options),
        Command::Rdma(command) => return rdma::run(command),
        Command::Cut(options) => cut(options)?,
        Command::Restore(Link { which, link }) => which.lab()?.restore(*link)?,
        Command::Slow(Slow { link: Link { which, link }, mbps }) => which.lab()?.slow(*link, *mbps)?,
        Command::Observe(options) => return observe(options, &print),
        Command::Mkdisk(Mkdisk { file, mb }) => make_disk(file, *mb)?,
        Command::GuestImage => {
            let cache = Cache::locate();
            cache.install(&["kernel", "guest"])?;
            let path = cache.initramfs()?;
            print(path.display().to_string(), json!({ "initramfs": path, "kernel": cache.kernel()? }));
        }
    }
    Ok(ExitCode::SUCCESS)
}

type Print<'a> = &'a dyn Fn(String, Value);

impl Which {
    fn lab(&self) -> Result<Lab> {
        if let Some(name) = &self.lab {
            return Ok(Lab::attach(name)?);
        }
        match labs()?.as_slice() {
            [one] => Ok(Lab::attach(one)?),
            [] => bail!("there is no lab: make one with `linerate-lab up`"),
            many => bail!("there are {} labs: choose with --lab ({})", many.len(), many.join(", ")),
        }
    }
}

fn labs() -> Result<Vec<String>> {
    Ok(linerate_lab::sweep::all()?.into_iter().filter(|name| Lab::attach(name).is_ok()).collect())
}

fn up(options: &Up, print: Print<'_>) -> Result<()> {
    let links = LinkSpec::parse_list(&options.links, options.mtu)?;
    let builder = Lab::builder().hosts(options.hosts).links(links).ram_mb(options.ram_mb);
    let lab = until_signal(None, || {
        let lab = builder.build()?;
        print(describe(&lab), facts(&lab));
        Ok(lab)
    })?;
    drop(lab);
    Ok(())
}

fn describe(lab: &Lab) -> String {
    let mut text = format!("lab {} in {}\n", lab.name(), lab.directory().display());
    for host in lab.hosts() {
        let addresses: Vec<String> = host.addresses().iter().map(ToString::to_string).collect();
        text += &format!(
            "  host {}: {} (ip netns exec {} sh)\n",
            host.name(),
            addresses.join(" "),
            host.namespace()
        );
    }
    for (number, link) in lab.topology().links.iter().enumerate() {
        let rate = |rate: Option<u64>| rate.map_or("unshaped".to_owned(), |rate| format!("{rate} Mb/s"));
        text += &format!(
            "  l{number}: {} there, {} back, MTU {}\n",
            rate(link.rate_from(0)),
            rate(link.rate_from(1)),
            link.mtu
        );
    }
    text + &format!(
        "  observer: {} ({})\nCtrl-C removes it",
        lab.observer_address(),
        lab.observer_namespace()
    )
}

fn facts(lab: &Lab) -> Value {
    let hosts = lab.hosts().iter().map(|host| {
        json!({
            "name": host.name(), "namespace": host.namespace(), "addresses": host.addresses(),
            "run_dir": host.run_directory(), "state_dir": host.state_directory(), "ram_dir": host.ram_directory(),
        })
    });
    let Topology { name, pid, links, .. } = lab.topology();
    json!({
        "name": name, "pid": pid, "directory": lab.directory(), "links": links, "hosts": hosts.collect::<Vec<_>>(),
        "observer": { "namespace": lab.observer_namespace(), "address": lab.observer_address() },
    })
}

fn list(print: Print<'_>) -> Result<()> {
    let labs: Vec<Lab> = labs()?.iter().map(|name| Lab::attach(name)).collect::<Result<_, _>>()?;
    let names: Vec<&str> = labs.iter().map(Lab::name).collect();
    print(names.join("\n"), labs.iter().map(facts).collect());
    Ok(())
}

/// Asks the process that keeps the lab to end; it removes the lab. A dead keeper's lab is swept.
fn down(which: &Which) -> Result<String> {
    let lab = which.lab()?;
    let pid =
        i32::try_from(lab.topology().pid).ok().and_then(Pid::from_raw).context("the lab has no keeper")?;
    if kill_process(pid, Signal::TERM).is_err() {
        sweep()?;
    }
    wait::until("the lab's removal", Duration::from_secs(60), String::new, || {
        Ok((!lab.directory().exists()).then_some(()))
    })?;
    Ok(lab.name().to_owned())
}

fn exec(options: &Exec) -> Result<ExitCode> {
    let lab = options.which.lab()?;
    let namespace = format!("{}-{}", lab.name(), options.host);
    let mut command = std::process::Command::new("ip");
    let status = command.args(["netns", "exec", &namespace]).args(&options.command).status().context("ip")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

fn cut(options: &Cut) -> Result<()> {
    let (lab, link) = (options.link.which.lab()?, options.link.link);
    if let Some(name) = &options.from {
        let host = lab.hosts().iter().find(|host| host.name() == name).context("no such host")?;
        return Ok(lab.cut_one_way(link, host.index())?);
    }
    let done = if options.silent { lab.drop_silently(link) } else { lab.cut(link) };
    Ok(done?)
}

/// Fails if nothing was heard, or if what was heard is not well.
fn observe(options: &Observe, print: Print<'_>) -> Result<ExitCode> {
    let lab = options.which.lab()?;
    let guest = lab.guest_address(options.guest);
    let limit = options.seconds.map(Duration::from_secs);
    let observer = until_signal(limit, || Ok(Observer::start(&lab, options.port)?))?;
    if let Some(path) = &options.out {
        let mut out =
            BufWriter::new(File::create(path).with_context(|| format!("cannot create {}", path.display()))?);
        for beat in observer.beats(guest) {
            writeln!(out, "{}", serde_json::to_string(&beat)?)?;
        }
        out.flush()?;
    }
    let seen = observer.blackout(guest, Duration::ZERO);
    let text = format!(
        "{} packets, {} lost, {} of an older copy, longest gap {:.3} ms, bad memory {}, bad disk {}",
        seen.received,
        seen.lost,
        seen.out_of_order,
        seen.longest_gap_us as f64 / 1e3,
        seen.mem_bad,
        seen.disk_bad
    );
    print(text, serde_json::to_value(seen)?);
    Ok(if seen.is_unharmed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Does `begin`, then waits for Ctrl-C, SIGTERM or the end of the time. A signal that comes during `begin` is kept.
fn until_signal<T>(limit: Option<Duration>, begin: impl FnOnce() -> Result<T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let begun = begin()?;
        let end = async {
            match limit {
                Some(limit) => tokio::time::sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            () = end => {}
        }
        Ok(begun)
    })
}
