//! For a command that watches and has lost the agent: the domain's state by this host's libvirt.

use linerate_api::{ErrorBody, Side, Step, code};

use super::ending::{SEE_THERE, guest_state, place};
use super::virsh::{HERE, Virsh};

/// QEMU's setting with which a domain would be saved without its RAM.
const PUT_BACK: &str = concat!(
    r#"{"execute":"migrate-set-capabilities","arguments":"#,
    r#"{"capabilities":[{"capability":"x-ignore-shared","state":false}]}}"#
);

/// Where an agent does not run, what it set in QEMU may still be on.
const DO_NOT_SAVE: &str =
    "Do not save this domain before the agent was started again: it would be saved without its RAM";

/// Waits for libvirt, which gives the migration up without the agent's tunnel, and returns where the domain is. In
/// direct mode it puts back what the agent had set in QEMU. `lost` is what the command knows of the agent.
pub async fn left_alone(uuid: &str, direct: bool, lost: &str, notify: impl FnMut(&str)) -> ErrorBody {
    let here = Virsh::new(HERE);
    let found = here.find_at_rest(uuid, notify).await;
    let setting = if direct { format!(". {}", put_back(&here, uuid).await) } else { String::new() };
    let text = format!("{lost}{setting}; {}", place(&found));
    ErrorBody {
        step: Some(Step::Copy),
        side: Some(Side::Source),
        guest_state: Some(guest_state(found.ok().flatten().as_deref(), true)),
        ..ErrorBody::new(code::LIBVIRT_FAILED, text).with_hint(SEE_THERE)
    }
}

async fn put_back(here: &Virsh, uuid: &str) -> &'static str {
    match here.run(&["qemu-monitor-command", uuid, PUT_BACK]).await {
        Ok(answer) if !answer.contains("\"error\"") => "What it had set in the domain's QEMU was put back",
        _ => DO_NOT_SAVE,
    }
}
