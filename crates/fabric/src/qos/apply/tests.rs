//! What goes to the kernel and in which order, against a kernel in memory that refuses as drivers do.

use std::io::{Error, ErrorKind};

use super::*;
use crate::collect::root::fixture::files;
use crate::model::{Pfc, Selector};

const PORT: &str = "ens1f0";

/// A port's DCB. It answers like the kernel where an entry is there already or is not there. Where IEEE settings come
/// while another version is on, it answers like `ice` and `i40e`.
#[derive(Default)]
struct Kernel {
    dcb: Dcb,
    words: Vec<String>,
    /// What the driver does not take.
    refuses: Vec<&'static str>,
}

impl Kernel {
    fn done(&mut self, word: &'static str, detail: String) -> Result<(), DcbError> {
        const INVALID: i32 = 22;
        let ieee = self.dcb.dcbx.is_some_and(|mode| mode.host && mode.ieee);
        let whole = format!("{word}{detail}");
        let refused = self.refuses.iter().any(|one| *one == word || *one == whole);
        if refused || (word != "dcbx" && !ieee) {
            return Err(DcbError::Driver(Error::from_raw_os_error(INVALID)));
        }
        self.words.push(whole);
        Ok(())
    }
}

impl SetDcb for Kernel {
    fn now(&mut self) -> Option<Dcb> {
        Some(self.dcb.clone())
    }

    fn dcbx(&mut self, mode: Dcbx) -> Result<(), DcbError> {
        self.done("dcbx", format!(" host {}", mode.host && mode.ieee))?;
        self.dcb.dcbx = Some(mode);
        Ok(())
    }

    fn ets(&mut self, ets: &Ets) -> Result<(), DcbError> {
        self.done("shares", String::new())?;
        self.dcb.ets = Some(ets.clone());
        Ok(())
    }

    fn lossless(&mut self, priorities: &[u8]) -> Result<(), DcbError> {
        self.done("lossless", format!(" {priorities:?}"))?;
        self.dcb.pfc = Some(Pfc { lossless: priorities.to_vec(), ..Pfc::default() });
        Ok(())
    }

    fn add(&mut self, entry: Application) -> Result<(), DcbError> {
        if self.dcb.applications.contains(&entry) {
            return Err(DcbError::Driver(ErrorKind::AlreadyExists.into()));
        }
        self.done("add", format!(" {}", entry.priority))?;
        self.dcb.applications.push(entry);
        Ok(())
    }

    fn remove(&mut self, entry: Application) -> Result<(), DcbError> {
        if !self.dcb.applications.contains(&entry) {
            return Err(DcbError::Driver(ErrorKind::NotFound.into()));
        }
        self.done("remove", format!(" {}", entry.priority))?;
        self.dcb.applications.retain(|one| *one != entry);
        Ok(())
    }
}

const IEEE: Dcbx = Dcbx { host: true, firmware: false, ieee: true, cee: false, fixed: false };
const CEE: Dcbx = Dcbx { host: true, firmware: false, ieee: false, cee: true, fixed: false };
const ADAPTER: Dcbx = Dcbx { host: false, firmware: false, ieee: true, cee: true, fixed: false };

fn dscp(priority: u8) -> Application {
    Application { selector: Selector::Dscp, protocol: 26, priority }
}

fn shares(first: u8) -> Ets {
    Ets { share_percent: vec![first, 100 - first], ..Ets::default() }
}

/// A port that is otherwise in everything, and what changes it and puts it back.
fn changed(mode: Dcbx) -> (Kernel, DcbSettings, DcbSettings) {
    let dcb = Dcb {
        dcbx: Some(mode),
        ets: Some(shares(100)),
        pfc: Some(Pfc { lossless: vec![5], ..Pfc::default() }),
        applications: vec![dscp(4)],
    };
    let settings = DcbSettings {
        dcbx: Some(IEEE),
        ets: Some(shares(50)),
        lossless: Some(vec![3]),
        remove: vec![dscp(4)],
        add: vec![dscp(3)],
        roce: Vec::new(),
    };
    let undo = DcbSettings {
        dcbx: Some(mode),
        ets: dcb.ets.clone(),
        lossless: Some(vec![5]),
        remove: vec![dscp(3)],
        add: vec![dscp(4)],
        roce: Vec::new(),
    };
    (Kernel { dcb, ..Kernel::default() }, settings, undo)
}

fn set_on(kernel: &mut Kernel, settings: &DcbSettings) -> Result<(), QosError> {
    set(kernel, PORT, settings, &Root::default())
}

fn undo_on(kernel: &mut Kernel, undo: &DcbSettings) -> Vec<String> {
    undo_with(kernel, PORT, undo, &Root::default()).iter().map(ToString::to_string).collect()
}

#[test]
fn dcbx_goes_to_the_host_first_and_back_to_firmware_last() {
    for mode in [CEE, ADAPTER] {
        let (mut kernel, settings, undo) = changed(mode);
        let before = kernel.dcb.clone();
        set_on(&mut kernel, &settings).unwrap();
        assert_eq!(kernel.words, ["dcbx host true", "shares", "lossless [3]", "remove 4", "add 3"]);
        kernel.words.clear();
        assert_eq!(undo_on(&mut kernel, &undo), [""; 0]);
        assert_eq!(kernel.dcb, before);
        assert_eq!(kernel.words[..4], ["shares", "lossless [5]", "remove 3", "add 4"]);
        assert_eq!(kernel.words[4..], ["dcbx host false"]);
    }
    let mut kernel = Kernel::default();
    set_on(&mut kernel, &DcbSettings::default()).unwrap();
    assert_eq!(kernel.words, [""; 0]);
}

#[test]
fn nothing_is_lossless_after_shares_were_refused() {
    let (mut kernel, settings, _) = changed(ADAPTER);
    kernel.refuses = vec!["shares"];
    let error = set_on(&mut kernel, &settings).unwrap_err();
    assert!(error.to_string().contains("the shares of ens1f0 could not be set"), "{error}");
    assert_eq!(kernel.words, ["dcbx host true"]);
}

/// Whatever was refused on the way: what was set before it is put back, and what was not is no error.
#[test]
fn half_of_an_application_is_put_back() {
    for refused in ["dcbx host true", "shares", "lossless", "remove", "add 3"] {
        for mode in [CEE, ADAPTER] {
            let (mut kernel, settings, undo) = changed(mode);
            let before = kernel.dcb.clone();
            kernel.refuses = vec![refused];
            set_on(&mut kernel, &settings).unwrap_err();
            assert_eq!(undo_on(&mut kernel, &undo), [""; 0], "after {refused} was refused");
            assert_eq!(kernel.dcb, before, "after {refused} was refused");
        }
    }
}

#[test]
fn a_failed_restore_is_reported_and_stops_nothing_else() {
    let (mut kernel, settings, undo) = changed(ADAPTER);
    let before = kernel.dcb.clone();
    set_on(&mut kernel, &settings).unwrap();
    let half = kernel.dcb.clone();
    kernel.refuses = vec!["shares", "remove"];
    let errors = undo_on(&mut kernel, &undo);
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[0].starts_with("the shares of ens1f0 could not be set"), "{errors:?}");
    assert!(errors[1].starts_with("an old application priority of ens1f0 could not be set"), "{errors:?}");
    let now = &kernel.dcb;
    assert_eq!((&now.pfc, now.dcbx, &now.ets), (&before.pfc, before.dcbx, &half.ets));
    assert_eq!(now.applications, [dscp(3), dscp(4)]);
}

#[test]
fn a_port_without_dcb_is_refused_with_a_sentence() {
    let settings = DcbSettings { lossless: Some(vec![3]), ..DcbSettings::default() };
    let error = apply("lo", &settings, &Root::default()).unwrap_err();
    assert!(matches!(&error, QosError::NoDcb { port } if port == "lo"), "{error}");
    assert!(error.to_string().contains("lo has no DCB"), "{error}");
    // What puts back has set something: the sentence that nothing was set would be false.
    let undo = DcbSettings { remove: vec![dscp(3)], ..settings };
    let errors = put_back("lo", &undo, &Root::default());
    assert!(matches!(&errors[..], [QosError::Setting { .. }, QosError::Setting { .. }]), "{errors:?}");
}

/// Files as configfs of rdma_cm has them (Documentation/ABI/testing/configfs-rdma_cm of Linux).
#[test]
fn what_rdma_connections_get() {
    let folder = "sys/kernel/config/rdma_cm/mlx5_0/ports/1";
    let (_folder, root) = files(&[
        (format!("{folder}/default_roce_mode"), "IB/RoCE v1\n"),
        (format!("{folder}/default_roce_tos"), "0\n"),
    ]);
    let value = |device: &str, version: &str, class| RoceDefault {
        device: device.into(),
        port: 1,
        version: Some(version.into()),
        traffic_class: Some(class),
    };
    let all = |roce: &[RoceDefault]| DcbSettings { roce: roce.to_vec(), ..DcbSettings::default() };
    let mut kernel = Kernel::default();
    set(&mut kernel, PORT, &all(&[value("mlx5_0", "RoCE v2", 104)]), &root).unwrap();
    let text = |file: &str| root.text(format!("{folder}/{file}"));
    assert_eq!(text("default_roce_mode").as_deref(), Some("RoCE v2"));
    assert_eq!(text("default_roce_tos").as_deref(), Some("104"));
    // A device that was removed keeps nothing of the other back, and is not made.
    let undo = all(&[value("mlx5_9", "IB/RoCE v1", 0), value("mlx5_0", "IB/RoCE v1", 0)]);
    let errors = undo_with(&mut kernel, PORT, &undo, &root);
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors.iter().all(|error| error.to_string().contains("mlx5_9")), "{errors:?}");
    assert_eq!(text("default_roce_mode").as_deref(), Some("IB/RoCE v1"));
    assert_eq!(text("default_roce_tos").as_deref(), Some("0"));
    assert!(!root.exists("sys/kernel/config/rdma_cm/mlx5_9"));
}
