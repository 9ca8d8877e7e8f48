//! DCB settings go to the kernel: DCBX, tables and classes by dcbnl, what RDMA connections get by configfs.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::{DcbSettings, RoceDefault};
use crate::collect::kernel::dcb_write::{DcbError, SetDcb, Setter};
use crate::collect::root::Root;

/// Settings that did not go in. Those before it did.
#[derive(Debug, Error)]
pub enum QosError {
    /// There is nothing to set.
    #[error(
        "{port} has no DCB: neither its driver nor this kernel offers shares and lossless priorities for it; nothing was set. \
         Take it out of `ports` of the intent"
    )]
    NoDcb {
        /// The port.
        port: String,
    },
    /// Kernel or driver refused.
    #[error("{what} of {port} could not be set: {source}")]
    Setting {
        /// Which.
        what: &'static str,
        /// The port.
        port: String,
        /// Who refused, and why.
        #[source]
        source: DcbError,
    },
    /// configfs did not take it.
    #[error("what RDMA connections of {device} get could not be set in {}: {source}", path.display())]
    Roce {
        /// RDMA device.
        device: String,
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// Sets what is there.
pub fn apply(port: &str, settings: &DcbSettings, root: &Root) -> Result<(), QosError> {
    let mut setter = Setter::open(port).map_err(|source| QosError::Setting {
        what: "DCB",
        port: port.to_owned(),
        source,
    })?;
    set(&mut setter, port, settings, root)
}

/// In an order in which nothing is lossless before it has a class of its own.
fn set(setter: &mut dyn SetDcb, port: &str, settings: &DcbSettings, root: &Root) -> Result<(), QosError> {
    let failed = |what| {
        move |source: DcbError| match source.is_absent() {
            true => QosError::NoDcb { port: port.to_owned() },
            false => QosError::Setting { what, port: port.to_owned(), source },
        }
    };
    // The host takes over before it sets anything, and hands back after it.
    if let Some(mode) = settings.dcbx.filter(|mode| mode.host) {
        setter.dcbx(mode).map_err(failed("DCBX"))?;
    }
    if let Some(ets) = &settings.ets {
        setter.ets(ets).map_err(failed("the shares"))?;
    }
    if let Some(priorities) = &settings.lossless {
        setter.lossless(priorities).map_err(failed("the lossless priorities"))?;
    }
    if !settings.remove.is_empty() {
        setter.remove(&settings.remove).map_err(failed("an old application priority"))?;
    }
    if !settings.add.is_empty() {
        setter.add(&settings.add).map_err(failed("an application priority"))?;
    }
    for default in &settings.roce {
        roce(default, root)?;
    }
    match settings.dcbx.filter(|mode| !mode.host) {
        Some(mode) => setter.dcbx(mode).map_err(failed("DCBX")),
        None => Ok(()),
    }
}

/// The folder is there: the plan has read it.
fn roce(default: &RoceDefault, root: &Root) -> Result<(), QosError> {
    let RoceDefault { device, port, version, traffic_class } = default;
    let values = [
        ("default_roce_mode", version.clone()),
        ("default_roce_tos", traffic_class.map(|class| class.to_string())),
    ];
    for (file, value) in values {
        let path = root.path(format!("sys/kernel/config/rdma_cm/{device}/ports/{port}/{file}"));
        if let Some(value) = value {
            write(&path, &value).map_err(|source| QosError::Roce { device: device.clone(), path, source })?;
        }
    }
    Ok(())
}

/// A file of the kernel is written in one piece and never created.
fn write(path: &std::path::Path, value: &str) -> io::Result<()> {
    use std::io::Write;
    std::fs::OpenOptions::new().write(true).truncate(true).open(path)?.write_all(value.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;
    use crate::collect::fixture::files;
    use crate::model::{Application, Dcbx, Ets, Selector};

    /// Writes down what it was told; refuses shares if told so.
    #[derive(Default)]
    struct Told {
        words: Vec<String>,
        refuses_shares: bool,
    }

    impl Told {
        fn note(&mut self, word: String) -> Result<(), DcbError> {
            self.words.push(word);
            Ok(())
        }
    }

    impl SetDcb for Told {
        fn dcbx(&mut self, mode: Dcbx) -> Result<(), DcbError> {
            self.note(format!("host {}", mode.host))
        }

        fn ets(&mut self, _: &Ets) -> Result<(), DcbError> {
            match self.refuses_shares {
                true => Err(DcbError::Driver(ErrorKind::InvalidInput.into())),
                false => self.note("shares".into()),
            }
        }

        fn lossless(&mut self, priorities: &[u8]) -> Result<(), DcbError> {
            self.note(format!("lossless {priorities:?}"))
        }

        fn add(&mut self, entries: &[Application]) -> Result<(), DcbError> {
            self.note(format!("add {}", entries.len()))
        }

        fn remove(&mut self, entries: &[Application]) -> Result<(), DcbError> {
            self.note(format!("remove {}", entries.len()))
        }
    }

    fn everything(host: bool) -> DcbSettings {
        let dscp = Application { selector: Selector::Dscp, protocol: 26, priority: 3 };
        DcbSettings {
            dcbx: Some(Dcbx { host, ..Dcbx::default() }),
            ets: Some(Ets::default()),
            lossless: Some(vec![3]),
            remove: vec![dscp],
            add: vec![dscp],
            roce: Vec::new(),
        }
    }

    #[test]
    fn the_host_takes_over_first_and_hands_back_last() {
        let middle = ["shares", "lossless [3]", "remove 1", "add 1"];
        let mut told = Told::default();
        set(&mut told, "ens1f0", &everything(true), &Root::default()).unwrap();
        assert_eq!((told.words[0].as_str(), &told.words[1..]), ("host true", &middle.map(String::from)[..]));
        let mut told = Told::default();
        set(&mut told, "ens1f0", &everything(false), &Root::default()).unwrap();
        assert_eq!((&told.words[..4], told.words[4].as_str()), (&middle.map(String::from)[..], "host false"));
        let mut told = Told::default();
        set(&mut told, "ens1f0", &DcbSettings::default(), &Root::default()).unwrap();
        assert_eq!(told.words, Vec::<String>::new());
    }

    #[test]
    fn nothing_is_lossless_after_shares_were_refused() {
        let mut told = Told { refuses_shares: true, ..Told::default() };
        let error = set(&mut told, "ens1f0", &everything(true), &Root::default()).unwrap_err();
        assert!(error.to_string().contains("the shares of ens1f0 could not be set"), "{error}");
        assert_eq!(told.words, ["host true"]);
    }

    #[test]
    fn a_port_without_dcb_is_refused_with_a_sentence() {
        let settings = DcbSettings { lossless: Some(vec![3]), ..DcbSettings::default() };
        let error = apply("lo", &settings, &Root::default()).unwrap_err();
        assert!(matches!(&error, QosError::NoDcb { port } if port == "lo"), "{error}");
        assert!(error.to_string().contains("lo has no DCB"), "{error}");
    }

    /// Files as configfs of rdma_cm has them (Documentation/ABI/testing/configfs-rdma_cm of Linux).
    #[test]
    fn what_rdma_connections_get() {
        let folder = "sys/kernel/config/rdma_cm/mlx5_0/ports/1";
        let (_folder, root) = files(&[
            (format!("{folder}/default_roce_mode"), "RoCE v1\n"),
            (format!("{folder}/default_roce_tos"), "0\n"),
        ]);
        let default = RoceDefault {
            device: "mlx5_0".into(),
            port: 1,
            version: Some("RoCE v2".into()),
            traffic_class: Some(104),
        };
        roce(&default, &root).unwrap();
        let text = |file: &str| root.text(format!("{folder}/{file}"));
        assert_eq!(text("default_roce_mode").as_deref(), Some("RoCE v2"));
        assert_eq!(text("default_roce_tos").as_deref(), Some("104"));
        let error = roce(&RoceDefault { device: "mlx5_9".into(), ..default }, &root).unwrap_err();
        assert!(error.to_string().contains("mlx5_9"), "{error}");
        assert!(!root.exists("sys/kernel/config/rdma_cm/mlx5_9"), "a device that is not there is not made");
    }
}
