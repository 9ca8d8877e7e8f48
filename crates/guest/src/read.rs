//! Reads the description of a running QEMU: what QMP answers, completed by the process's command line and open files.

mod config;
pub(crate) mod disks;
mod generation;
mod memory;
mod monitor;
mod nameless;
mod names;
mod nested;
mod network;

pub use config::expand as expand_config;
pub use monitor::traits_of_devices;
pub use names::Names;
pub use nested::has_run_guests;
pub(crate) use network::bridge_of;

use std::io::Read;
use std::path::Path;

use std::time::Instant;

use serde_json::{Value, json};

use crate::argv::{Argument, split_loose};
use crate::description::{GuestDescription, ProcessFacts, SCHEMA, Traits};
use crate::options::Options;
use crate::plain_file;
use crate::processor::Processor;
use crate::procfs::{self, ProcessError};
use crate::qmp::{Qmp, QmpError};
use crate::run_state::RunState;

/// Why a guest cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("the guest's QEMU could not be asked")]
    Qmp(#[from] QmpError),
    #[error("the guest's process could not be looked at")]
    Process(#[from] ProcessError),
    /// QEMU's answer lacks something.
    #[error("QEMU's answer to {command} is not understood: {what}")]
    Answer {
        command: &'static str,
        /// What is missing in it.
        what: &'static str,
    },
}

/// Reads the guest that a QMP connection leads to. `pid` is its process, see [`Qmp::peer_pid`].
pub fn read(qmp: &mut Qmp, pid: i32, deadline: Instant) -> Result<GuestDescription, ReadError> {
    let (arguments, names) = command_line(pid)?;
    let options = split_loose(&arguments);
    let mut asker = Asker { qmp, deadline };
    let cpus = asker.array("query-cpus-fast")?;
    let tree = asker.monitor("info qtree")?;
    let files = procfs::open_files(pid)?;
    let uuid = asker.uuid()?;
    let ram = memory::read(&mut asker, &files, &names)?;
    Ok(GuestDescription {
        schema: SCHEMA,
        name: asker.name(uuid.as_deref(), pid)?,
        uuid,
        machine: asker.machine()?,
        cpu: asker.cpu(&options, &cpus)?,
        processor: asker.processor(&cpus)?,
        accelerator: if asker.kvm()? { "kvm".into() } else { "tcg".into() },
        memory_bytes: asker.memory_bytes()?,
        vcpus: u32::try_from(cpus.len()).unwrap_or(u32::MAX),
        qemu: asker.qmp.version(),
        ram,
        disks: disks::read(&mut asker, &options, &names)?,
        nics: network::read(&mut asker, pid)?,
        traits: asker.traits(&tree, &options)?,
        run_state: RunState::ask(asker.qmp, deadline)?,
        process: ProcessFacts {
            pid,
            vcpu_threads: vcpu_threads(&cpus),
            executable: procfs::executable(pid)?.display().to_string(),
        },
        arguments: generation::in_arguments(&mut asker, arguments)?,
        copied: Vec::new(),
        storage: None,
        domain: false,
        graph: None,
    })
}

/// The arguments of a QEMU, with what its files of options say and whole names of files.
pub(crate) fn command_line(pid: i32) -> Result<(Vec<String>, Names), ReadError> {
    let arguments: Vec<String> = procfs::command_line(pid)?.into_iter().skip(1).collect();
    let names = Names::of(pid, &arguments);
    let root = procfs::proc_path(pid, "root");
    let read = |path: &str| {
        let whole = names.whole(path).unwrap_or_else(|| path.to_owned());
        let path = root.join(Path::new(&whole).strip_prefix("/").ok()?);
        read_config(&path)
    };
    let arguments = config::expand(&arguments, read);
    Ok((names.in_arguments(arguments), names))
}

/// Devices that this command line does not describe: those that were plugged or unplugged since the guest started.
pub fn hot_plugged(qmp: &mut Qmp, arguments: &[String], deadline: Instant) -> Result<Vec<String>, ReadError> {
    Asker { qmp, deadline }.hot_plugged(&split_loose(arguments))
}

/// A process writes its own command line, so a name may lead anywhere.
fn read_config(path: &Path) -> Option<String> {
    let mut text = String::new();
    let mut file = plain_file::open(path).ok()?.take(config::BYTES_MAX + 1);
    let length = file.read_to_string(&mut text).ok()?;
    (length as u64 <= config::BYTES_MAX).then_some(text)
}

struct Asker<'a> {
    qmp: &'a mut Qmp,
    deadline: Instant,
}

impl Asker<'_> {
    fn ask(&mut self, command: &str, arguments: Value) -> Result<Value, ReadError> {
        Ok(self.qmp.execute(command, arguments, self.deadline)?)
    }

    // A command that a version or build may lack.
    fn ask_if_known(&mut self, command: &str, arguments: Value) -> Result<Option<Value>, ReadError> {
        match self.qmp.execute(command, arguments, self.deadline) {
            Ok(value) => Ok(Some(value)),
            Err(QmpError::Refused { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn array(&mut self, command: &'static str) -> Result<Vec<Value>, ReadError> {
        match self.ask(command, json!({}))? {
            Value::Array(members) => Ok(members),
            _ => Err(ReadError::Answer { command, what: "not a list" }),
        }
    }

    fn monitor(&mut self, line: &str) -> Result<String, ReadError> {
        let answer = self.ask("human-monitor-command", json!({ "command-line": line }))?;
        Ok(answer.as_str().unwrap_or_default().to_owned())
    }

    fn property(&mut self, path: &str, property: &str) -> Result<Option<Value>, ReadError> {
        self.ask_if_known("qom-get", json!({ "path": path, "property": property }))
    }

    fn uuid(&mut self) -> Result<Option<String>, ReadError> {
        let uuid = text_of(&self.ask("query-uuid", json!({}))?, "query-uuid", "UUID")?;
        Ok(Some(uuid).filter(|uuid| uuid.chars().any(|c| c != '0' && c != '-')))
    }

    fn name(&mut self, uuid: Option<&str>, pid: i32) -> Result<String, ReadError> {
        let answer = self.ask("query-name", json!({}))?;
        let given = answer.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
        Ok(given.or(uuid).map_or_else(|| format!("qemu-{pid}"), str::to_owned))
    }

    // The type of the machine object is the versioned one, whatever alias was given.
    fn machine(&mut self) -> Result<String, ReadError> {
        let found = self.property("/machine", "type")?;
        let name = found.as_ref().and_then(Value::as_str).and_then(|name| name.strip_suffix("-machine"));
        name.map(str::to_owned).ok_or(ReadError::Answer { command: "qom-get", what: "no machine type" })
    }

    fn cpu(&mut self, options: &[Argument], cpus: &[Value]) -> Result<String, ReadError> {
        if let Some(given) = last_value(options, "cpu") {
            return Ok(given.to_owned());
        }
        let found = self.property(first_cpu(cpus), "type")?;
        let name = found.as_ref().and_then(Value::as_str).unwrap_or("unknown");
        Ok(name.trim_end_matches("-x86_64-cpu").to_owned())
    }

    fn processor(&mut self, cpus: &[Value]) -> Result<Option<Processor>, ReadError> {
        let mut answers = Vec::new();
        for property in ["vendor", "phys-bits", "feature-words"] {
            answers.push(self.property(first_cpu(cpus), property)?.unwrap_or_default());
        }
        let [vendor, address_bits, words] = &answers[..] else { return Ok(None) };
        Ok(Processor::of(vendor, address_bits, words))
    }

    fn kvm(&mut self) -> Result<bool, ReadError> {
        let answer = self.ask_if_known("query-kvm", json!({}))?;
        Ok(answer.and_then(|kvm| kvm.get("enabled")?.as_bool()).unwrap_or(false))
    }

    fn memory_bytes(&mut self) -> Result<u64, ReadError> {
        let command = "query-memory-size-summary";
        let answer = self.ask(command, json!({}))?;
        let part = |key| answer.get(key).and_then(Value::as_u64);
        let base = part("base-memory").ok_or(ReadError::Answer { command, what: "no base memory" })?;
        Ok(base.saturating_add(part("plugged-memory").unwrap_or(0)))
    }

    // Devices with an id live under /machine/peripheral: compared with the ids of the command line.
    fn hot_plugged(&mut self, options: &[Argument]) -> Result<Vec<String>, ReadError> {
        let listed = self.ask("qom-list", json!({ "path": "/machine/peripheral" }))?;
        let members = listed.as_array().into_iter().flatten();
        let children = members.filter(|m| text(m, "type").is_some_and(|kind| kind.starts_with("child<")));
        let present: Vec<String> = children.filter_map(|member| text(member, "name")).collect();
        let given: Vec<String> = ["device", "nic"]
            .into_iter()
            .flat_map(|name| parsed(options, name, Some("driver")))
            .filter_map(|device| device.get("id").map(str::to_owned))
            .collect();
        let came = present.iter().filter(|id| !given.contains(id)).map(|id| format!("{id} plugged"));
        let devices = parsed(options, "device", Some("driver"));
        let ids: Vec<String> = devices.filter_map(|device| device.get("id").map(str::to_owned)).collect();
        let went = ids.iter().filter(|id| !present.contains(id)).map(|id| format!("{id} unplugged"));
        let mut changes: Vec<String> = came.chain(went).collect();
        changes.extend(nameless::changes(self, options)?);
        Ok(changes)
    }

    fn traits(&mut self, tree: &str, options: &[Argument]) -> Result<Traits, ReadError> {
        let mut traits = monitor::traits_of_devices(tree);
        traits.vhost_user.extend(network::foreign(&self.monitor("info network")?));
        traits.hot_plugged = self.hot_plugged(options)?;
        traits.nested = has_run_guests(self.qmp, self.deadline)?;
        let capabilities = self.array("query-migrate-capabilities")?;
        traits.capabilities = capabilities.iter().filter_map(|c| text(c, "capability")).collect();
        let migration = self.ask("query-migrate", json!({}))?;
        traits.migration = text(&migration, "status");
        let reasons = migration.get("blocked-reasons").and_then(Value::as_array);
        traits.blocked =
            reasons.into_iter().flatten().filter_map(|reason| reason.as_str().map(str::to_owned)).collect();
        Ok(traits)
    }
}

fn first_cpu(cpus: &[Value]) -> &str {
    cpus.first().and_then(|cpu| cpu.get("qom-path")?.as_str()).unwrap_or_default()
}

fn vcpu_threads(cpus: &[Value]) -> Vec<i32> {
    cpus.iter().filter_map(|cpu| i32::try_from(cpu.get("thread-id")?.as_i64()?).ok()).collect()
}

fn text(value: &Value, key: &str) -> Option<String> {
    value.get(key)?.as_str().map(str::to_owned)
}

fn text_of(value: &Value, command: &'static str, key: &'static str) -> Result<String, ReadError> {
    text(value, key).ok_or(ReadError::Answer { command, what: key })
}

fn last_value<'a>(options: &'a [Argument], name: &str) -> Option<&'a str> {
    options.iter().rev().find(|option| option.name == name)?.value.as_deref()
}

/// The parsed values of all options of a name.
pub(crate) fn parsed<'a>(
    options: &'a [Argument],
    name: &'a str,
    implied: Option<&'a str>,
) -> impl Iterator<Item = Options> + 'a {
    options
        .iter()
        .filter(move |option| option.name == name)
        .filter_map(move |option| Options::parse(option.value.as_deref()?, implied).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_options_that_is_none_or_too_long_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.cfg");
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
        assert_eq!(read_config(&path), None);
        std::fs::remove_file(&path).unwrap();
        let length = usize::try_from(config::BYTES_MAX).unwrap();
        std::fs::write(&path, "#".repeat(length)).unwrap();
        assert_eq!(read_config(&path).map(|text| text.len()), Some(length));
        std::fs::write(&path, "#".repeat(length + 1)).unwrap();
        assert_eq!(read_config(&path), None);
    }
}
