//! Which domain is meant: looked up once, and known by its UUID from then on.

use linerate_api::{ErrorBody, Job, Side, code};

use super::virsh::{Definition, Virsh, field};

/// A domain that this host's libvirt knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub name: String,
    /// By which libvirt is asked: a name or an ID may become another domain's.
    pub uuid: String,
    /// It is paused, and shall be paused at the destination.
    pub paused: bool,
    /// What this host keeps of it, and the destination shall keep.
    pub definition: Definition,
}

impl Target {
    /// UUID and name of the domain that is `asked` for by one of them, or by its ID.
    pub async fn look_up(asked: &str, here: &Virsh) -> Result<(String, String), ErrorBody> {
        let known = domains(&here.run(&["list", "--all", "--uuid", "--name"]).await?);
        let by_id = match asked.parse::<u32>() {
            // The domain with this ID. A name is looked for only where there is none.
            Ok(_) => here.run(&["domuuid", asked]).await.ok(),
            Err(_) => None,
        };
        choose(asked, &known, by_id.as_deref())
    }

    /// Refuses what libvirt cannot move, or moves already.
    pub async fn check((uuid, name): (String, String), here: &Virsh) -> Result<Target, ErrorBody> {
        let state = here.state(&uuid).await?;
        if !matches!(state.as_str(), "running" | "paused") {
            let text = format!(
                "the domain {name} is {state}; libvirt moves domains that run, and those that are paused"
            );
            return Err(ErrorBody::new(code::REFUSED, text).with_hint("start or resume it first"));
        }
        if let Some(job) = here.job(&uuid, false).await {
            return Err(busy(&name, &job));
        }
        let definition = here.definition(&uuid).await?;
        Ok(Target { name, uuid, paused: state == "paused", definition })
    }

    /// How it shall be in the end.
    pub fn state(&self) -> &'static str {
        if self.paused { "paused" } else { "running" }
    }
}

/// UUID and name of each line.
fn domains(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().filter_map(|line| line.trim().split_once(char::is_whitespace));
    lines.map(|(uuid, name)| (uuid.to_owned(), name.trim().to_owned())).collect()
}

/// The one domain that has this name, UUID or ID.
fn choose(
    asked: &str,
    known: &[(String, String)],
    by_id: Option<&str>,
) -> Result<(String, String), ErrorBody> {
    let plain = |uuid: &str| uuid.replace('-', "").to_lowercase();
    let is = |(uuid, name): &&(String, String)| {
        name == asked || plain(uuid) == plain(asked) || by_id.is_some_and(|found| found == uuid)
    };
    let mut found = known.iter().filter(is);
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one.clone()),
        (Some((first, _)), Some((second, _))) => {
            let text = format!(
                "{asked} is more than one domain: {first} and {second}, one by its name and one by its ID or UUID"
            );
            Err(ErrorBody::new(code::REFUSED, text).with_hint("name it by its UUID"))
        }
        _ => {
            let text = format!("this host's libvirt knows no domain {asked}");
            Err(ErrorBody::new(code::REFUSED, text).with_hint("`virsh list --all` shows them"))
        }
    }
}

/// By libvirt's numbers of what it may be doing.
fn busy(name: &str, job: &Job) -> ErrorBody {
    let what = match job.get("operation") {
        Some(4) => "is arriving here by a migration",
        Some(5) => "is already moved by a migration",
        Some(6 | 7) => "is being saved",
        _ => "is busy with another job of libvirt",
    };
    let text = format!("the domain {name} {what}; nothing was done, and nothing of it was touched");
    let hint = "wait for its end (`virsh domjobinfo` shows it), or end it with `virsh domjobabort`";
    ErrorBody::new("guest_busy", text).with_hint(hint)
}

/// Refuses where old memory waits for the next start at the destination: it would run on disks that were written since.
/// Refuses also where the domain has a process there: what is found there afterwards shall be of this migration.
/// And where no libvirt answers: it could not begin, nor say afterwards that it does not have the domain.
pub async fn check_there(target: &Target, there: &Virsh) -> Result<(), ErrorBody> {
    there.look_up(&target.uuid).await.map_err(|dead| silent_there(target, &dead))?;
    for known_as in [&target.uuid, &target.name] {
        // It is not known there, most likely.
        let Ok(text) = there.run(&["dominfo", known_as]).await else { continue };
        if has_saved_memory(&text) {
            let text = format!(
                "the destination's libvirt holds a managed save of {known_as}: its next start there would restore that memory, over \
                 disks that have changed since"
            );
            let hint =
                format!("`virsh managedsave-remove {known_as}` at the destination, if it is of no more use");
            return Err(ErrorBody::new(code::REFUSED, text).with_hint(hint));
        }
        // What is shut off is a definition. A name may be another domain's ID.
        let state = field(&text, "State").filter(|state| *state != "shut off");
        if let Some(state) = state.filter(|_| *known_as == target.uuid) {
            return Err(exists_there(target, state));
        }
    }
    Ok(())
}

/// A libvirt that is stopped, or that may not be reached through a tunnel. A drain tries another host.
fn silent_there(target: &Target, dead: &ErrorBody) -> ErrorBody {
    let text = format!(
        "the destination's libvirt does not answer ({}); nothing was begun, and the domain {} here was not touched",
        dead.message, target.name
    );
    let hint =
        "`systemctl status libvirtd` (or virtqemud) there; does `tunnel_targets` there name its socket?";
    ErrorBody {
        retry_can_help: true,
        side: Some(Side::Destination),
        ..ErrorBody::new(code::LIBVIRT_FAILED, text).with_hint(hint)
    }
}

/// A copy that an earlier migration has left there, one that somebody has started, or this host by another address.
fn exists_there(target: &Target, state: &str) -> ErrorBody {
    let text = format!(
        "the destination's libvirt has the domain {} already, and it is {state} there; nothing was begun, and the \
         domain here was not touched",
        target.name
    );
    let hint = "only one of the two may run: `virsh domstate` on both hosts. What an earlier migration left there may \
                end with it: `linerate migration list`. Does the address that was named lead back to this host?";
    // What waits there may go by itself. Of two that run, an operator has to end one.
    let waits = state == "paused";
    ErrorBody {
        retry_can_help: waits,
        side: waits.then_some(Side::Destination),
        ..ErrorBody::new("guest_exists", text).with_hint(hint)
    }
}

fn has_saved_memory(dominfo: &str) -> bool {
    field(dominfo, "Managed save") == Some("yes")
}

#[cfg(test)]
mod tests {
    use super::super::testing::{FakeLibvirt, target};
    use super::*;

    #[test]
    fn a_domain_is_found_by_its_name_its_uuid_or_its_id_and_never_by_two_of_them() {
        let listed = "0f0e8c9a-0000-4000-8000-000000000001 web                           \n\
                      0f0e8c9a-0000-4000-8000-000000000002 25\n0f0e8c9a-0000-4000-8000-000000000003 two words\n";
        let known = domains(listed);
        let uuid = |n: u32| format!("0f0e8c9a-0000-4000-8000-00000000000{n}");
        assert_eq!(known[2], (uuid(3), "two words".into()));
        let found = |asked: &str, by_id: Option<u32>| {
            choose(asked, &known, by_id.map(uuid).as_deref())
                .map(|(uuid, _)| uuid)
                .map_err(|error| error.message)
        };
        assert_eq!(found("web", None), Ok(uuid(1)));
        assert_eq!(found("0F0E8C9A000040008000000000000001", None), Ok(uuid(1)));
        assert_eq!(found("7", Some(1)), Ok(uuid(1)));
        // A domain of this name that has no such ID, or has it too.
        assert_eq!(found("25", Some(2)), Ok(uuid(2)));
        assert!(found("25", Some(1)).unwrap_err().contains("more than one"));
        assert!(found("26", None).unwrap_err().contains("no domain 26"));
    }

    #[tokio::test]
    async fn saved_memory_at_the_destination_is_found_by_uuid_and_by_name() {
        let (there, domain) = (FakeLibvirt::new(None), target());
        assert!(check_there(&domain, &there.virsh()).await.is_ok());
        for known_as in [&domain.uuid, &domain.name] {
            there.set("saved", known_as);
            let refused = check_there(&domain, &there.virsh()).await.unwrap_err();
            assert_eq!(refused.code, code::REFUSED);
            assert!(refused.message.contains(&format!("managed save of {known_as}")), "{}", refused.message);
        }
    }

    #[tokio::test]
    async fn a_domain_that_has_a_process_at_the_destination_already_is_refused_before_anything_is_begun() {
        let (there, domain) = (FakeLibvirt::new(None), target());
        for (state, again) in [("running", false), ("paused", true), ("in shutdown", false)] {
            there.set("state", state);
            let refused = check_there(&domain, &there.virsh()).await.unwrap_err();
            assert_eq!((refused.code.as_str(), refused.retry_can_help), ("guest_exists", again), "{state}");
            assert!(refused.message.contains(&format!("it is {state} there")), "{}", refused.message);
        }
        there.set("state", "shut off");
        assert!(check_there(&domain, &there.virsh()).await.is_ok(), "it is a definition");
    }

    #[tokio::test]
    async fn a_destination_whose_libvirt_does_not_answer_is_one_where_a_retry_can_help() {
        let (there, domain) = (FakeLibvirt::new(None), target());
        there.set("dead", "");
        let refused = check_there(&domain, &there.virsh()).await.unwrap_err();
        assert_eq!((refused.code.as_str(), refused.retry_can_help), (code::LIBVIRT_FAILED, true));
        assert_eq!((refused.side, refused.guest_state), (Some(Side::Destination), None));
        assert!(refused.message.contains("no process listens"), "{}", refused.message);
    }

    #[tokio::test]
    async fn what_a_host_keeps_of_a_domain_is_read() {
        let (here, domain) = (FakeLibvirt::new(Some("running")), target());
        let read = || async {
            let found = Target::check((domain.uuid.clone(), domain.name.clone()), &here.virsh()).await;
            found.map(|found| found.definition).map_err(|error| error.message).unwrap()
        };
        assert_eq!(read().await, Definition { persistent: true, autostart: false });
        here.set("autostart", "");
        assert_eq!(read().await, Definition { persistent: true, autostart: true });
    }

    #[test]
    fn saved_memory_is_recognised() {
        assert!(has_saved_memory("Id:             -\nManaged save:   yes\n"));
        assert!(!has_saved_memory("Name:           yes\nManaged save:   no\n"));
    }
}
