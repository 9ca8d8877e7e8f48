//! Makes faults and removes them.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::case::{Case, Fault, LONG, SHORT};
use crate::site::Site;
use crate::{cpu, interrupt};

/// Makes a fault and holds it for as long as it lasts; what stays until the migration is over, [`undo`] takes back.
/// Gives what there was to say.
pub fn make(site: &mut Site, case: &Case) -> anyhow::Result<String> {
    let host = case.host();
    match case.fault {
        Fault::AgentKill => {
            site.agent_mut(host)?.kill()?;
            interrupt::sleep(Duration::from_secs(1));
            site.agent_mut(host)?.restart()?;
        }
        Fault::QemuKill => return kill_hypervisors(site, host),
        Fault::LinksShort => cut_all(site, SHORT)?,
        Fault::LinksLong => cut_all(site, LONG)?,
        Fault::OneWay => {
            site.lab.cut_one_way(0, host)?;
            interrupt::sleep(LONG);
            site.lab.restore(0)?;
        }
        Fault::FreezeShort => freeze(site, host, SHORT)?,
        Fault::FreezeLong => freeze(site, host, LONG)?,
        Fault::JournalFull => fill(&filler(site, host)?)?,
        Fault::NameTaken | Fault::MemoryShort => {}
    }
    Ok(String::new())
}

/// Takes back what outlasts the migration.
pub fn undo(site: &mut Site, case: &Case) -> anyhow::Result<()> {
    match case.fault {
        Fault::JournalFull => {
            let path = filler(site, case.host())?;
            if path.exists() {
                std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
            }
        }
        Fault::NameTaken => {
            let mut stop = site.agent(1)?.client();
            stop.args(["vm", "stop", super::stage::NAME, "--force"]);
            run(stop)?;
        }
        Fault::MemoryShort => {
            let path = site.host(1)?.run_directory().with_file_name("agent.toml");
            let text = std::fs::read_to_string(&path)?;
            ensure!(text.contains(RESERVE), "the configuration has lost its reserve");
            std::fs::write(&path, text.replace(RESERVE, ""))?;
            site.agent_mut(1)?.restart()?;
        }
        _ => {}
    }
    Ok(())
}

/// More than any machine has.
pub const RESERVE: &str = "memory_reserve_mib = 1000000000";

fn cut_all(site: &Site, time: Duration) -> anyhow::Result<()> {
    let links = site.lab.topology().links.len();
    (0..links).try_for_each(|link| site.lab.cut(link))?;
    interrupt::sleep(time);
    (0..links).try_for_each(|link| site.lab.restore(link))?;
    Ok(())
}

fn freeze(site: &mut Site, host: usize, time: Duration) -> anyhow::Result<()> {
    site.agent_mut(host)?.freeze()?;
    interrupt::sleep(time);
    Ok(site.agent_mut(host)?.thaw()?)
}

fn kill_hypervisors(site: &Site, host: usize) -> anyhow::Result<String> {
    let folder = site.host(host)?.run_directory();
    let pids = cpu::hypervisors(&folder);
    for pid in &pids {
        let pid = i32::try_from(*pid).ok().and_then(Pid::from_raw);
        // It may have ended by itself since it was found.
        let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
    }
    Ok(if pids.is_empty() { "there was no QEMU on that side".to_owned() } else { String::new() })
}

fn filler(site: &Site, host: usize) -> anyhow::Result<PathBuf> {
    Ok(site.host(host)?.state_directory().join("filler"))
}

/// Writes until there is no room left.
fn fill(path: &PathBuf) -> anyhow::Result<()> {
    let mut file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    for size in [64 << 10, 4 << 10, 1] {
        let block = vec![0u8; size];
        // The file system has 4 MiB; the bound keeps a mistake from filling a real disk.
        for _ in 0..2048 {
            if file.write_all(&block).is_err() {
                break;
            }
        }
    }
    ensure!(file.write_all(&[0; 4096]).is_err(), "{} could not be filled", path.display());
    Ok(())
}

pub fn run(mut command: Command) -> anyhow::Result<()> {
    let done = command.output()?;
    ensure!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr).trim());
    Ok(())
}
