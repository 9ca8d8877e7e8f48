//! `linerate man`

use std::path::Path;

use clap::CommandFactory;

use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::Flags;

/// Prints the page of the whole, or writes one for each command.
pub fn run(dir: Option<&Path>, context: &Context) -> Result<Exit, Failure> {
    match dir {
        Some(dir) => {
            std::fs::create_dir_all(dir).map_err(|error| Failure::output(&error))?;
            clap_mangen::generate_to(Flags::command(), dir).map_err(|error| Failure::output(&error))?;
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Flags::command())
                .render(&mut page)
                .map_err(|error| Failure::output(&error))?;
            context.print(&String::from_utf8_lossy(&page))?;
        }
    }
    Ok(Exit::Ok)
}
