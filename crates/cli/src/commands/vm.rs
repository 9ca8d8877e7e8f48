//! `linerate vm start | list | show | stop | adopt`

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use linerate_api::{AdoptGuest, GuestSummary, StartGuest, StopGuest};

use super::progress::{change, look};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::{AdoptFlags, VmCommand};
use crate::render::format::clean;
use crate::render::lists;

/// No specification of a guest is longer.
const SPEC_BYTES_MAX: u64 = 1 << 20;

/// Sees, starts, stops or takes over.
pub async fn run(command: VmCommand, context: &Context) -> Result<Exit, Failure> {
    match command {
        VmCommand::Start { spec, runs_nowhere_else } => start(&spec, runs_nowhere_else, context).await,
        VmCommand::List => list(context).await,
        VmCommand::Show { name } => show(&name, context).await,
        VmCommand::Stop { name, force } => stop(&name, force, context).await,
        VmCommand::Adopt(flags) => adopt(flags, context).await,
    }
}

async fn start(spec: &Path, runs_nowhere_else: bool, context: &Context) -> Result<Exit, Failure> {
    let request = StartGuest { runs_nowhere_else, ..start_request(spec)? };
    let asked = context.client.start_guest(&request);
    let guest = change("starting the guest", unknown(context), context, asked).await?;
    done(&guest, "was started", context)
}

/// The agent gets the text, and the file's path: relative paths in it count from the file's folder. Those of standard
/// input count from the folder that the command is in.
fn start_request(spec: &Path) -> Result<StartGuest, Failure> {
    let spec_toml = Some(read_spec(spec)?);
    Ok(StartGuest { spec_toml, spec_path: Some(absolute(spec.to_owned())?), ..StartGuest::default() })
}

async fn list(context: &Context) -> Result<Exit, Failure> {
    let guests = look(context, context.client.guests()).await?;
    context.answer(&guests, || lists::guests(&guests, context.out.paint))?;
    Ok(Exit::Ok)
}

async fn show(name: &str, context: &Context) -> Result<Exit, Failure> {
    let guest = look(context, context.client.guest(name)).await?;
    context.answer(&guest, || lists::guest(&guest, context.out.paint))?;
    Ok(Exit::Ok)
}

async fn stop(name: &str, force: bool, context: &Context) -> Result<Exit, Failure> {
    let asked = context.client.stop_guest(name, StopGuest { force });
    let what = format!("waiting for the end of {}", clean(name));
    let guest = change(&what, unknown(context), context, asked).await?;
    done(&guest, if force { "was stopped" } else { "has shut down" }, context)
}

async fn adopt(flags: AdoptFlags, context: &Context) -> Result<Exit, Failure> {
    let qmp = flags.qmp.map(absolute).transpose()?;
    let request = AdoptGuest { pid: flags.pid, qmp, name: flags.name };
    let asked = context.client.adopt_guest(&request);
    let guest = change("taking the guest over", unknown(context), context, asked).await?;
    done(&guest, "was taken over", context)
}

fn done(guest: &GuestSummary, what: &str, context: &Context) -> Result<Exit, Failure> {
    let table = || lists::guests(std::slice::from_ref(guest), context.out.paint);
    context.done(guest, || format!("{} {what}\n{}", clean(&guest.name), table()))?;
    Ok(Exit::Ok)
}

/// Where it is seen what an agent did whose answer was lost.
fn unknown(context: &Context) -> String {
    format!("it may have been done: see {}", context.command("vm list"))
}

/// The agent's working directory is another, so relative paths are made absolute here.
fn absolute(path: PathBuf) -> Result<String, Failure> {
    let bad = |why: String| Failure::new(Exit::Usage, format!("{}: {why}", path.display()), "");
    let absolute = std::path::absolute(&path).map_err(|error| bad(error.to_string()))?;
    absolute.into_os_string().into_string().map_err(|_| bad("the path is not valid UTF-8".to_owned()))
}

fn read_spec(path: &Path) -> Result<String, Failure> {
    let read = if path == Path::new("-") {
        read_capped(io::stdin().lock())
    } else {
        File::open(path).and_then(read_capped)
    };
    read.map_err(|error| {
        let hint = "give a TOML file, or - for standard input; docs/guests.md has an example";
        Failure::new(Exit::Usage, format!("{} cannot be read: {error}", path.display()), hint)
    })
}

fn read_capped(source: impl Read) -> io::Result<String> {
    let mut text = String::new();
    source.take(SPEC_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > SPEC_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is longer than 1 MiB"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_learns_from_where_relative_paths_count() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("web.toml");
        std::fs::write(&file, "name = 'web'\n").unwrap();
        let request = start_request(&file).unwrap();
        assert_eq!(request.spec_toml.as_deref(), Some("name = 'web'\n"));
        assert_eq!(request.spec_path.as_deref(), file.to_str());
    }
}
