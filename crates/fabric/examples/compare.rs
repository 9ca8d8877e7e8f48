//! How long the comparison of many inventories takes: `cargo run --release -p linerate-fabric --example compare --
//! DIR`, with a folder of saved inventories.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use linerate_fabric::{checks, report, saved};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("say a folder with saved inventories")?;
    let began = Instant::now();
    let survey = saved::read(Path::new(&folder))?;
    let read = began.elapsed();
    let findings = checks::run_all(&survey);
    let checked = began.elapsed();
    let page = report::html(&survey, &findings);
    println!("{} hosts, {} findings", survey.hosts.len(), findings.len());
    println!(
        "read {read:?}, checked {:?}, page of {} bytes {:?}",
        checked - read,
        page.len(),
        began.elapsed() - checked
    );
    Ok(())
}
