//! CPU time of everything that a lab runs: agents and QEMUs of both hosts, also of those that begin or end on the way.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often processes are read. What one uses after its last reading is lost: at most this long per process.
const READ_EVERY: Duration = Duration::from_millis(10);
/// How often new processes are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// USER_HZ: the unit of /proc/PID/stat, 100 on every architecture that has KVM.
const TICKS_PER_SECOND: f64 = 100.0;

/// Seconds of user and system time of a process, and of its children that were waited for; None when it has ended.
pub fn seconds(pid: u32) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse(&text).map(|ticks| ticks as f64 / TICKS_PER_SECOND)
}

fn parse(stat: &str) -> Option<u64> {
    // The name may hold anything, so fields count from the last bracket; utime is the 14th of all, the 12th after it.
    let rest = stat.rsplit_once(')')?.1;
    let ticks = rest.split_whitespace().skip(11).take(4).map(|word| word.parse::<u64>().ok());
    ticks.sum::<Option<u64>>()
}

/// Processes whose command line names the folder.
pub fn processes(folder: &Path) -> Vec<u32> {
    let needle = format!("{}/", folder.display());
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let names = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains(&needle))
    };
    pids.filter(|pid| *pid != std::process::id()).filter(names).collect()
}

/// Processes among them that run QEMU.
pub fn hypervisors(folder: &Path) -> Vec<u32> {
    let is_qemu = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("qemu-system"))
    };
    processes(folder).into_iter().filter(is_qemu).collect()
}

/// Counts until it is stopped.
#[derive(Debug)]
pub struct Meter {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<HashMap<u32, f64>>>,
}

impl Meter {
    /// Begins. Of the processes in `whole` all CPU time counts, of others what they use from now on.
    pub fn start(folder: PathBuf, whole: &[u32]) -> Meter {
        let stop = Arc::new(AtomicBool::new(false));
        let first: HashMap<u32, f64> = processes(&folder)
            .into_iter()
            .map(|pid| (pid, if whole.contains(&pid) { 0.0 } else { seconds(pid).unwrap_or(0.0) }))
            .collect();
        let thread = {
            let stop = stop.clone();
            std::thread::spawn(move || watch(&folder, &first, &stop))
        };
        Meter { stop, thread: Some(thread) }
    }

    /// Ends; seconds of each process.
    pub fn stop(mut self) -> HashMap<u32, f64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn watch(folder: &Path, first: &HashMap<u32, f64>, stop: &AtomicBool) -> HashMap<u32, f64> {
    let mut last = first.clone();
    let mut looked = Instant::now();
    loop {
        let ending = stop.load(Ordering::Relaxed);
        if ending || looked.elapsed() >= LOOK_EVERY {
            looked = Instant::now();
            for pid in processes(folder) {
                last.entry(pid).or_insert(0.0);
            }
        }
        for (pid, value) in &mut last {
            // A process that ended keeps its last reading.
            *value = seconds(*pid).unwrap_or(*value).max(*value);
        }
        if ending {
            break;
        }
        std::thread::sleep(READ_EVERY);
    }
    last.iter().map(|(pid, value)| (*pid, value - first.get(pid).unwrap_or(&0.0))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_count_from_the_last_bracket() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 100 20 3 4 0 0";
        assert_eq!(parse(stat), Some(127));
        assert_eq!(parse("7 (x"), None);
    }

    #[test]
    fn this_process_uses_time() {
        let before = seconds(std::process::id()).unwrap();
        let mut sum = 0u64;
        while seconds(std::process::id()).unwrap() <= before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
    }
}
