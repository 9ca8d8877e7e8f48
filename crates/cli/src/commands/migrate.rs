//! `linerate migrate`

use std::path::Path;
use std::time::Duration;

use linerate_api::{DoctorRequest, MigrateRequest, MigrationId, MigrationStarted, Probes, UnreachableHost};
use linerate_fabric::checks::run_all;
use linerate_fabric::model::Survey;

use super::doctor::understood;
use super::progress::with_progress;
use crate::context::Context;
use crate::display::view::View;
use crate::display::{Start, watch};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::{Domain, MigrateFlags};
use crate::interrupts::Interrupts;
use crate::render::doctor;
use crate::render::format::clean;

/// Longer than this the look before a migration holds nothing up.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// Begins a migration and watches it.
pub async fn run(flags: &MigrateFlags, context: &Context) -> Result<Exit, Failure> {
    let domain = flags.libvirt_domain();
    if let (None, Some(flag)) = (&domain, flags.only_for_domains()) {
        let text = format!("{flag} is only for domains of libvirt");
        return Err(Failure::new(Exit::Usage, text, "leave it out, or name a domain: qemu:///system/NAME"));
    }
    let request = match &domain {
        Some(domain) => of_domain(domain, flags)?,
        None => flags.request(),
    };
    if !(context.json || flags.quiet || flags.no_check) {
        look_first(&request.to, context).await;
    }
    let mut interrupts = Interrupts::listen()?;
    let unknown =
        format!("see {}: it shows whether the migration has begun", context.command("migration list"));
    let asking = async {
        let asked = context.client.migrate(&request);
        let answer = match flags.quiet {
            true => asked.await,
            false => with_progress("waiting for the agent".to_owned(), context.err, asked).await,
        };
        answer.map_err(|error| Failure::of_request(error, &unknown))
    };
    let id = interrupts.answer(asking, &unknown, context).await?;
    // It goes on without its name on the output.
    let attach = context.command(&format!("migration attach {id}"));
    name(&id, flags.detach, context)
        .map_err(|failure| failure.while_watching(format!("the migration goes on: {attach}")))?;
    // Ctrl-C cancels it in the meantime, and its end is waited for.
    if flags.detach && !interrupts.is_noted() {
        return Ok(Exit::Ok);
    }
    let view = View::new(&request.guest, &request.to, Some(request.blackout_budget_ms()));
    watch(context, Start { id, view, quiet: flags.quiet, cancel: false, interrupts }).await?.exit
}

fn of_domain(domain: &Domain, flags: &MigrateFlags) -> Result<MigrateRequest, Failure> {
    let mut request = flags.domain_request(domain);
    if let Some(libvirt) = &mut request.libvirt {
        libvirt.xml = flags.xml.as_deref().map(|path| read("--xml", path)).transpose()?;
        let persistent = flags.persistent_xml.as_deref();
        libvirt.persistent_xml = persistent.map(|path| read("--persistent-xml", path)).transpose()?;
    }
    Ok(request)
}

/// A file with a domain's XML.
fn read(option: &str, path: &Path) -> Result<String, Failure> {
    let failed = |why: String| {
        let text = format!("{} ({option}) cannot be read: {why}", path.display());
        Err(Failure::new(Exit::Usage, text, "name a file with a domain's XML"))
    };
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => {
            std::fs::read_to_string(path).or_else(|error| failed(error.to_string()))
        }
        Ok(_) => failed("it is not a file".into()),
        Err(error) => failed(error.to_string()),
    }
}

/// What the short form of the doctor finds between the two hosts, on standard error. It refuses nothing: what cannot
/// work is refused by the agents, who know better.
async fn look_first(to: &str, context: &Context) {
    // Probes wait for what is lost on the way, and then there is most to say: what the hosts know of themselves comes
    // without.
    let (known, probed) = tokio::join!(look(to, Probes::None, context), look(to, Probes::Short, context));
    let not_seen = match &probed {
        None => Some(format!(
            "the links to {to} were not probed within {} s: `linerate doctor {to}` reports why",
            LOOK_MAX.as_secs()
        )),
        Some(Err(why)) => Some(format!("the way to {to} was not looked at: {}", clean(why))),
        Some(Ok((_, silent))) => {
            silent.first().map(|one| format!("{to} could not be looked at: {}", clean(&one.why)))
        }
    };
    let seen = [probed, known].into_iter().flatten().find_map(Result::ok);
    let found = seen.and_then(|(survey, _)| doctor::brief(&run_all(&survey), to, context.err));
    for text in found.into_iter().chain(not_seen) {
        context.print_line(&text);
    }
}

/// What was seen, with hosts that did not answer; or why the agent could not look.
type Looked = Result<(Survey, Vec<UnreachableHost>), String>;

/// `None` if there was no answer in time.
async fn look(to: &str, probes: Probes, context: &Context) -> Option<Looked> {
    let request = DoctorRequest { hosts: vec![to.to_owned()], probes, watch_ms: 0 };
    let asked = tokio::time::timeout(LOOK_MAX, context.client.doctor(&request)).await.ok()?;
    let seen =
        asked.map_err(Failure::from).and_then(|answer| Ok((understood(answer.survey)?, answer.unreachable)));
    Some(seen.map_err(|failure| failure.message().to_owned()))
}

/// Programs learn the name in the first line; people who detach, by how to come back.
fn name(id: &MigrationId, detach: bool, context: &Context) -> Result<(), Failure> {
    match (context.json, detach) {
        (true, _) => context.print_json_line(&MigrationStarted { id: id.clone() }),
        (false, true) => {
            let attach = context.command(&format!("migration attach {id}"));
            context.print(&format!("{id}\nwatch it with {attach}\n"))
        }
        (false, false) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path(), &folder.path().join("missing")] {
            let refused = read("--persistent-xml", path).unwrap_err();
            assert_eq!(refused.exit, Exit::Usage);
            assert!(refused.message().contains("--persistent-xml"), "{}", refused.message());
        }
    }
}
