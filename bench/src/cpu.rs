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
    read(pid).map(|reading| reading.seconds)
}

/// What `/proc/PID/stat` says of a process.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Reading {
    parent: u32,
    /// With its children that were waited for.
    seconds: f64,
}

fn read(pid: u32) -> Option<Reading> {
    parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse(stat: &str) -> Option<Reading> {
    // The name may hold anything, so fields count from the last bracket: the parent is the 4th of all, utime the 14th.
    let mut rest = stat.rsplit_once(')')?.1.split_whitespace().skip(1);
    let parent = rest.next()?.parse().ok()?;
    let ticks = rest.skip(9).take(4).map(|word| word.parse::<u64>().ok()).sum::<Option<u64>>()?;
    Some(Reading { parent, seconds: ticks as f64 / TICKS_PER_SECOND })
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
        let first: HashMap<u32, Reading> = processes(&folder)
            .into_iter()
            .filter_map(|pid| Some((pid, read(pid)?)))
            .map(|(pid, reading)| {
                (pid, if whole.contains(&pid) { Reading { seconds: 0.0, ..reading } } else { reading })
            })
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

fn watch(folder: &Path, first: &HashMap<u32, Reading>, stop: &AtomicBool) -> HashMap<u32, f64> {
    let mut last = first.clone();
    let mut looked = Instant::now();
    loop {
        let ending = stop.load(Ordering::Relaxed);
        if ending || looked.elapsed() >= LOOK_EVERY {
            looked = Instant::now();
            for pid in processes(folder) {
                if let Some(reading) = read(pid) {
                    last.entry(pid).or_insert(reading);
                }
            }
        }
        // A process that ended keeps its last reading.
        let ended = update(&mut last);
        if ending {
            // Once more, so that whoever waited for one that ended was read after it.
            update(&mut last);
            return used(first, &last, &ended);
        }
        std::thread::sleep(READ_EVERY);
    }
}

/// Reads all processes again, and returns which have ended.
fn update(last: &mut HashMap<u32, Reading>) -> Vec<u32> {
    let mut ended = Vec::new();
    for (pid, reading) in last {
        match read(*pid) {
            Some(now) if now.seconds >= reading.seconds => *reading = now,
            Some(_) => {}
            None => ended.push(*pid),
        }
    }
    ended
}

/// Seconds of each process since `first`. A process that has ended is in the account of the parent that waited for it
/// too, with all that it ever used: an agent that ends a guest's QEMU would have the life of that guest.
fn used(first: &HashMap<u32, Reading>, last: &HashMap<u32, Reading>, ended: &[u32]) -> HashMap<u32, f64> {
    let mut used: HashMap<u32, f64> = last
        .iter()
        .map(|(pid, reading)| (*pid, reading.seconds - first.get(pid).map_or(0.0, |first| first.seconds)))
        .collect();
    for reading in ended.iter().filter_map(|pid| last.get(pid)) {
        if let Some(parent) = used.get_mut(&reading.parent) {
            *parent = (*parent - reading.seconds).max(0.0);
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_count_from_the_last_bracket() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 100 20 3 4 0 0";
        assert_eq!(parse(stat), Some(Reading { parent: 1, seconds: 1.27 }));
        assert_eq!(parse("7 (x"), None);
    }

    #[test]
    fn a_process_that_was_waited_for_counts_once() {
        let reading = |parent, seconds| Reading { parent, seconds };
        let first = HashMap::from([(10, reading(1, 5.0)), (11, reading(10, 70.0))]);
        // The guest's QEMU used half a second more and ended; so did a helper of a second that was never read.
        let last = HashMap::from([(10, reading(1, 78.5)), (11, reading(10, 70.5))]);
        assert_eq!(used(&first, &last, &[11]), HashMap::from([(10, 3.0), (11, 0.5)]));
        // Nobody waited for it yet.
        let waits = HashMap::from([(10, reading(1, 7.0)), (11, reading(10, 70.5))]);
        assert_eq!(used(&first, &waits, &[]), HashMap::from([(10, 2.0), (11, 0.5)]));
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
