//! Placed writes between two mappings of shared memory, in plain text and with TLS, one after the other in pairs.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_core::Run;
use linerate_memory::Mapping;
use linerate_net::channel::Receiver;
use linerate_net::fence::Fence;
use linerate_net::region::Region;
use linerate_net::table::RegionTable;
use linerate_net::tcp::Stream;
use linerate_net::tcp::receive::StreamReceiver;
use linerate_net::tls::Tls;

use super::forward::forward;
use super::identity::{Authority, Parts, aes_128_gcm};
use super::{Outcome, connection, send, spread};

const SIZE: u64 = 128 << 20;
const FRAME: u64 = 512 << 10;
const TIME: Duration = Duration::from_secs(2);
const PAIRS: usize = 5;

/// Shared memory as guest RAM is.
struct Ram(Mapping);

impl Ram {
    fn filled() -> Outcome<Arc<Ram>> {
        let path = format!("/dev/shm/linerate-throughput-{}", std::process::id());
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        std::fs::remove_file(&path)?;
        file.set_len(SIZE)?;
        let ram = Ram(Mapping::of_file(file)?);
        let content: Vec<u8> =
            (0..SIZE as u32).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 24) as u8 | 1).collect();
        ram.0.write(Run { offset: 0, length: SIZE }, &content)?;
        Ok(Arc::new(ram))
    }
}

impl Region for Ram {
    forward!(size checksum_after split_zero send receive read write clear populate);
}

/// What one run came to.
struct Measured {
    gigabits: f64,
    /// Of both ends.
    cpu_seconds_per_gib: f64,
}

fn pair(tls: Option<&Tls>) -> Outcome<(Stream, Stream)> {
    let (near, far) = connection(0)?;
    let Some(tls) = tls else { return Ok((near, far)) };
    let deadline = Instant::now() + Duration::from_secs(20);
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| far.accept_tls(tls, deadline));
        let near = near.begin_tls(tls, deadline)?;
        Ok((near, accepting.join().map_err(|_| "the accepting thread failed")??))
    })
}

fn cpu_seconds() -> f64 {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}

fn measure(source: &Arc<Ram>, target: &Arc<Ram>, channels: u64, tls: Option<&Tls>) -> Outcome<Measured> {
    let regions = RegionTable::new([(0, Arc::clone(target) as Arc<dyn Region>)]);
    let pairs = (0..channels).map(|_| pair(tls)).collect::<Outcome<Vec<_>>>()?;
    let (begun, spent) = (Instant::now(), cpu_seconds());
    let bytes = std::thread::scope(|scope| {
        let part = SIZE / channels;
        let mut sending = Vec::new();
        for (number, (near, far)) in (0..).zip(pairs) {
            let regions = &regions;
            scope.spawn(move || {
                let fence = Fence::new(far.closer());
                StreamReceiver::new(far).serve(regions, &fence)
            });
            let part = Run { offset: number * part, length: part };
            sending.push(scope.spawn(move || send(&near, source.as_ref(), part, FRAME, begun + TIME)));
        }
        sending
            .into_iter()
            .map(|sending| sending.join().map_err(|_| "a sending thread failed")?)
            .sum::<Outcome<u64>>()
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    Ok(Measured {
        gigabits: bytes as f64 * 8.0 / 1e9 / seconds,
        cpu_seconds_per_gib: (cpu_seconds() - spent) / (bytes as f64 / (1u64 << 30) as f64),
    })
}

fn row(name: &str, channels: u64, runs: &[Measured]) -> String {
    let text = |of: fn(&Measured) -> f64| spread(&mut runs.iter().map(of).collect::<Vec<f64>>());
    let (gigabits, cpu) = (text(|run| run.gigabits), text(|run| run.cpu_seconds_per_gib));
    format!("| {name} | {channels} | {gigabits} | {cpu} |")
}

/// Prints the table.
pub fn run() -> Outcome<()> {
    let parts = Parts { provider: aes_128_gcm(1 << 24), ..Parts::of(&Authority::new("throughput")) };
    let tls = parts.tls();
    let (source, target) = (Ram::filled()?, Ram::filled()?);
    println!(
        "| frames over | channels | Gb/s median (least to most) | CPU s/GiB, both ends |\n|---|---|---|---|"
    );
    for channels in [1, 2] {
        let (mut plain, mut secure) = (Vec::new(), Vec::new());
        for _ in 0..PAIRS {
            plain.push(measure(&source, &target, channels, None)?);
            secure.push(measure(&source, &target, channels, Some(&tls))?);
        }
        println!("{}", row("TCP, checksum", channels, &plain));
        println!("{}", row("TLS, AES-128-GCM", channels, &secure));
    }
    Ok(())
}
