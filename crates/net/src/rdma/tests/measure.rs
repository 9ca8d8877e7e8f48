//! What registering costs by size of the window, and what the transport moves. Prints; the lab keeps the figures.

use super::super::domain::Domain;
use super::super::verbs::Access;
use super::huge::HugePages;
use super::*;

fn register_all(domain: &Domain, region: &FileRegion, window: u64) -> Duration {
    let begun = Instant::now();
    for offset in (0..region.size()).step_by(window as usize) {
        domain.register(region.mapped().unwrap(), run(offset, window), Access::RemoteWrite).unwrap();
    }
    begun.elapsed()
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn registering_by_size_of_the_window() {
    let _link = link();
    let size = 64 << 20;
    for round in 0..3 {
        for window in [256 << 10, 1 << 20, 2 << 20, 4 << 20, 16 << 20, 64 << 20] {
            let mut took = Vec::new();
            for full in [false, true] {
                let (source, _destination) = connected(&patient());
                let region = FileRegion::new(size).unwrap();
                if full {
                    region.store(0, &vec![1; size as usize]).unwrap();
                }
                took.push(register_all(&source.domain, &region, window));
                assert_eq!(region.populated().unwrap(), size, "registering fills holes");
            }
            let windows = (size / window) as u32;
            println!(
                "register round {round}: window {:6} KiB: {:8.1} us each over holes, {:8.1} us each over pages; 64 MiB {:7.1} and {:7.1} ms",
                window >> 10,
                took[0].as_secs_f64() * 1e6 / f64::from(windows),
                took[1].as_secs_f64() * 1e6 / f64::from(windows),
                took[0].as_secs_f64() * 1e3,
                took[1].as_secs_f64() * 1e3,
            );
        }
    }
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn what_the_transport_moves() {
    let _link = link();
    let size = 16 * WINDOW_BYTES;
    for round in 0..3 {
        for (checksums, zero_copy) in [(true, true), (true, false), (false, true), (false, false)] {
            let ((source, _), (_, table)) = (region(size), region(size));
            source.store(0, &vec![0x5a; size as usize]).unwrap();
            let mut channel = Channel::open(RdmaOptions { checksums, zero_copy, ..patient() }, &table);
            let begun = Instant::now();
            let frames = send_all(&mut channel, &source, 64 * PAGE);
            channel.acknowledged_or_done(frames);
            let gigabits = size as f64 * 8.0 / begun.elapsed().as_secs_f64() / 1e9;
            println!(
                "transport round {round}: checksums {checksums}, zero copy {zero_copy}: {gigabits:.3} Gb/s"
            );
        }
    }
}

/// Data in every `step`-th page of each window.
fn sparse(size: u64, step: u64) -> Arc<FileRegion> {
    let (source, _) = region(size);
    for offset in (0..size).step_by((step * PAGE) as usize) {
        source.store(offset, &[0x5a; PAGE as usize]).unwrap();
    }
    source
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn the_seal_of_windows_with_holes() {
    let _link = link();
    let size = 32 * WINDOW_BYTES;
    for round in 0..5 {
        for (step, huge) in [(512, false), (512, true), (64, false), (64, true), (2, false), (2, true)] {
            let source = sparse(size, step);
            let (landed, table) = region(size);
            let huge_pages = huge.then(HugePages::on);
            let mut channel = Channel::open(patient(), &table);
            let frames = send_all(&mut channel, &source, 128 * PAGE);
            channel.acknowledged_or_done(frames);
            let begun = Instant::now();
            channel.regions.seal();
            let took = begun.elapsed();
            drop(huge_pages);
            println!(
                "seal round {round}: 32 windows, data in 1 of {step:3} pages, huge pages {huge:5}: {:8.2} ms, {:6} KiB there for {:6} KiB",
                took.as_secs_f64() * 1e3,
                landed.populated().unwrap() >> 10,
                (size / step) >> 10,
            );
        }
    }
}
