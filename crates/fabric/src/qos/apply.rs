//! DCB settings go to the kernel: DCBX, tables and classes by dcbnl, what RDMA connections get by configfs.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::{DcbSettings, RoceDefault};
use crate::collect::kernel::dcb::{DcbError, SetDcb, Setter};
use crate::collect::root::Root;
use crate::model::{Application, Dcb, Dcbx, Ets};

/// A setting that did not go in.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum QosError {
    /// There is nothing to set.
    #[error(
        "{port} has no DCB: neither its driver nor this kernel offers shares and lossless priorities for it; nothing was set. \
         Take it out of `ports` of the intent"
    )]
    NoDcb { port: String },
    /// Kernel or driver refused.
    #[error("{what} of {port} could not be set: {source}")]
    Setting {
        what: &'static str,
        port: String,
        /// Who refused, and why.
        #[source]
        source: DcbError,
    },
    /// configfs did not take it.
    #[error("what RDMA connections of {device} get could not be set in {}: {source}", path.display())]
    Roce {
        device: String,
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// Sets what is there, and stops where something is refused; what was before it is set then.
pub fn apply(port: &str, settings: &DcbSettings, root: &Root) -> Result<(), QosError> {
    let mut setter = open(port)?;
    set(&mut setter, port, settings, root)
}

/// Puts back what is there: every step that can be done, whatever was refused before it. What is as it was is left
/// alone, so that an application of which a part was refused can be undone. Gives back what could not be put back.
pub fn put_back(port: &str, undo: &DcbSettings, root: &Root) -> Vec<QosError> {
    match open(port) {
        Ok(mut setter) => undo_with(&mut setter, port, undo, root),
        Err(error) => vec![error],
    }
}

fn open(port: &str) -> Result<Setter<'_>, QosError> {
    Setter::open(port).map_err(|source| QosError::Setting { what: "DCB", port: port.to_owned(), source })
}

fn set(setter: &mut dyn SetDcb, port: &str, settings: &DcbSettings, root: &Root) -> Result<(), QosError> {
    for (at, step) in steps(settings, root).into_iter().enumerate() {
        step.run(setter, port).map_err(|error| match error {
            // Only the first one can say that there is nothing to set: later, something was set.
            QosError::Setting { source, port, .. } if at == 0 && source.is_absent() => {
                QosError::NoDcb { port }
            }
            error => error,
        })?;
    }
    Ok(())
}

fn undo_with(setter: &mut dyn SetDcb, port: &str, undo: &DcbSettings, root: &Root) -> Vec<QosError> {
    let mut errors = Vec::new();
    for step in steps(undo, root) {
        let now = setter.now();
        if !step.is_so(now.as_ref()) {
            errors.extend(step.run(setter, port).err());
        }
    }
    errors
}

/// One thing that is set.
enum Step<'a> {
    Dcbx(Dcbx),
    Ets(&'a Ets),
    Lossless(&'a [u8]),
    Remove(Application),
    Add(Application),
    Roce { device: &'a str, path: PathBuf, value: String },
}

/// In an order in which nothing is lossless before it has a class of its own. Drivers take the others only while the
/// host decides by the IEEE version: it takes over before them, and any other mode comes after them.
fn steps<'a>(settings: &'a DcbSettings, root: &Root) -> Vec<Step<'a>> {
    let takes_over = |mode: &Dcbx| mode.host && mode.ieee;
    let mut steps = Vec::new();
    steps.extend(settings.dcbx.filter(takes_over).map(Step::Dcbx));
    steps.extend(settings.ets.iter().map(Step::Ets));
    steps.extend(settings.lossless.iter().map(|priorities| Step::Lossless(priorities)));
    steps.extend(settings.remove.iter().copied().map(Step::Remove));
    steps.extend(settings.add.iter().copied().map(Step::Add));
    steps.extend(settings.roce.iter().flat_map(|default| roce(default, root)));
    steps.extend(settings.dcbx.filter(|mode| !takes_over(mode)).map(Step::Dcbx));
    steps
}

/// The folder is there: the plan has read it.
fn roce<'a>(default: &'a RoceDefault, root: &Root) -> Vec<Step<'a>> {
    let RoceDefault { device, port, version, traffic_class } = default;
    let folder = root.path(format!("sys/kernel/config/rdma_cm/{device}/ports/{port}"));
    let values = [
        ("default_roce_mode", version.clone()),
        ("default_roce_tos", traffic_class.map(|class| class.to_string())),
    ];
    let step = |(file, value): (&str, Option<String>)| {
        Some(Step::Roce { device: device.as_str(), path: folder.join(file), value: value? })
    };
    values.into_iter().filter_map(step).collect()
}

impl Step<'_> {
    fn run(&self, setter: &mut dyn SetDcb, port: &str) -> Result<(), QosError> {
        let (what, done) = match self {
            Step::Dcbx(mode) => ("DCBX", setter.dcbx(*mode)),
            Step::Ets(ets) => ("the shares", setter.ets(ets)),
            Step::Lossless(priorities) => ("the lossless priorities", setter.lossless(priorities)),
            Step::Remove(one) => ("an old application priority", setter.remove(*one)),
            Step::Add(one) => ("an application priority", setter.add(*one)),
            Step::Roce { device, path, value } => {
                return write(path, value).map_err(|source| QosError::Roce {
                    device: (*device).to_owned(),
                    path: path.clone(),
                    source,
                });
            }
        };
        done.map_err(|source| QosError::Setting { what, port: port.to_owned(), source })
    }

    /// It is like that. What cannot be read is not.
    fn is_so(&self, now: Option<&Dcb>) -> bool {
        if let Step::Roce { path, value, .. } = self {
            return std::fs::read_to_string(path).is_ok_and(|text| text.trim() == value);
        }
        let Some(now) = now else { return false };
        match self {
            Step::Dcbx(mode) => now.dcbx.is_some_and(|now| same_mode(now, *mode)),
            Step::Ets(ets) => now.ets.as_ref() == Some(*ets),
            Step::Lossless(priorities) => now.pfc.as_ref().is_some_and(|pfc| pfc.lossless == *priorities),
            Step::Remove(one) => !now.applications.contains(one),
            Step::Add(one) => now.applications.contains(one),
            Step::Roce { .. } => false,
        }
    }
}

/// Versions count only while the host decides: what the adapter has of its own cannot be asked for.
fn same_mode(one: Dcbx, other: Dcbx) -> bool {
    let version = |mode: Dcbx| (mode.ieee, mode.cee, mode.fixed);
    one.host == other.host && (!one.host || version(one) == version(other))
}

/// A file of the kernel is written in one piece and never created.
fn write(path: &Path, value: &str) -> io::Result<()> {
    use std::io::Write;
    std::fs::OpenOptions::new().write(true).truncate(true).open(path)?.write_all(value.as_bytes())
}

#[cfg(test)]
mod tests;
