//! `-object`: memory back ends, each turned into a named shared file of this host where its content is moved from
//! outside; I/O threads, random numbers, throttling.

use super::{Builder, IncomingError, RamFile, check_id, only_keys, refused};
use crate::options::Options;
use crate::registry::ram_file_name;

/// Keys that a memory back end may have; those that name places of the source (host-nodes, policy, mem-path) are left
/// out.
const MEMORY_KEYS: &[&str] = &[
    "qom-type",
    "id",
    "size",
    "share",
    "merge",
    "dump",
    "reserve",
    "prealloc",
    "prealloc-threads",
    "prealloc-context",
    "mem-path",
    "discard-data",
    "align",
    "pmem",
    "readonly",
    "hugetlb",
    "hugetlbsize",
    "seal",
    "policy",
    "host-nodes",
    "rom",
    "x-use-canonical-path-for-ramblock-id",
];
/// Properties of a memory back end that the incoming QEMU has as the source has them.
/// Where a memory device is in the guest's memory depends on `align`, unless its `addr` says it.
const MEMORY_KEPT: &[&str] =
    &["size", "align", "merge", "dump", "reserve", "x-use-canonical-path-for-ramblock-id"];

impl Builder<'_> {
    pub(super) fn object(&mut self, value: &str) -> Result<(), IncomingError> {
        let options = self.parse("object", value, Some("qom-type"))?;
        let id = options.get("id").unwrap_or_default().to_owned();
        check_id("object", &id)?;
        match options.get("qom-type").unwrap_or_default() {
            "memory-backend-file" | "memory-backend-memfd" => self.memory_in_file(&options, &id),
            "memory-backend-ram" => self.memory_anonymous(&options),
            "iothread" | "main-loop" => self.checked_object(
                &options,
                &[
                    "qom-type",
                    "id",
                    "poll-max-ns",
                    "poll-grow",
                    "poll-shrink",
                    "aio-max-batch",
                    "thread-pool-min",
                    "thread-pool-max",
                ],
            ),
            "rng-builtin" => self.checked_object(&options, &["qom-type", "id"]),
            "throttle-group" => self.throttle(&options),
            "rng-random" => self.random(&options),
            // On which CPUs of the source's host memory was touched first.
            "thread-context" => Ok(()),
            // libvirt gives every guest a key for further secrets; without those it is of no use.
            "secret" if id == "masterKey0" => Ok(()),
            other => Err(refused("object", other, why_not(other))),
        }
    }

    /// `-mem-path`: RAM of the machine's default back end, in a file of ours.
    pub(super) fn legacy_memory(&mut self) -> Result<(), IncomingError> {
        let path = self.options.ram_dir.join(format!("{}.ram", self.guest.name));
        self.incoming.ram_files.push(RamFile { object: "pc.ram".into(), path: path.clone() });
        self.emit("mem-path", &path.display().to_string())
    }

    fn memory_in_file(&mut self, options: &Options, id: &str) -> Result<(), IncomingError> {
        check_memory_keys(options)?;
        let huge = self
            .guest
            .ram
            .iter()
            .any(|block| block.id.rsplit('/').next() == Some(id) && block.page_bytes > 4096);
        let folder = match (huge, &self.options.huge_ram_dir) {
            (false, _) => &self.options.ram_dir,
            (true, Some(folder)) => folder,
            (true, None) => return Err(IncomingError::NoHugePages { block: id.to_owned() }),
        };
        let path = folder.join(ram_file_name(&self.guest.name, id));
        let share = if options.is_on("share") || options.get("qom-type") == Some("memory-backend-memfd") {
            "on"
        } else {
            "off"
        };
        let mut made = Options::from_pairs(&[("qom-type", "memory-backend-file"), ("id", id)]);
        keep(options, &mut made);
        made.set("mem-path", &path.display().to_string());
        made.set("share", share);
        made.set("discard-data", "off");
        self.incoming.ram_files.push(RamFile { object: id.to_owned(), path });
        self.emit("object", &made.to_string())
    }

    fn memory_anonymous(&mut self, options: &Options) -> Result<(), IncomingError> {
        check_memory_keys(options)?;
        let mut made = Options::default();
        for key in ["qom-type", "id", "share"] {
            if let Some(value) = options.get(key) {
                made.set(key, value);
            }
        }
        keep(options, &mut made);
        self.emit("object", &made.to_string())
    }

    fn checked_object(&mut self, options: &Options, keys: &[&str]) -> Result<(), IncomingError> {
        only_keys("object", options, keys)?;
        self.emit("object", &options.to_string())
    }

    fn throttle(&mut self, options: &Options) -> Result<(), IncomingError> {
        for (key, value) in options.pairs() {
            let known =
                matches!(key, "qom-type" | "id") || key.starts_with("limits.") || key.starts_with("x-");
            if !known {
                return Err(refused("object", key, "this key is not among the known ones"));
            }
            super::no_file_name("object", key, value)?;
        }
        self.emit("object", &options.to_string())
    }

    fn random(&mut self, options: &Options) -> Result<(), IncomingError> {
        match options.get("filename") {
            None | Some("/dev/urandom" | "/dev/random" | "/dev/hwrng") => {}
            Some(other) => return Err(refused("object", other, "it is not a source of random numbers")),
        }
        let mut rest = options.clone();
        rest.remove("filename");
        only_keys("object", &rest, &["qom-type", "id"])?;
        self.emit("object", &options.to_string())
    }
}

fn why_not(object: &str) -> &'static str {
    match object {
        "sev-guest" | "sev-snp-guest" | "tdx-guest" | "pef-guest" | "s390-pv-guest" => {
            "QEMU does not migrate a guest with encrypted memory"
        }
        "secret" | "secret_keyring" => {
            "keys are not taken to another host: encrypt within the guest or below the file"
        }
        "input-linux" => "it is a device of the source's host: start the guest without it",
        "memory-backend-epc" => "QEMU does not migrate a guest with SGX memory",
        _ => "this object is not among the known ones: start the guest without it",
    }
}

fn check_memory_keys(options: &Options) -> Result<(), IncomingError> {
    match options.pairs().find(|(key, _)| !MEMORY_KEYS.contains(key) && !key.starts_with("host-nodes.")) {
        Some((key, _)) => Err(refused("object", key, "this key is not among the known ones")),
        None => Ok(()),
    }
}

fn keep(from: &Options, to: &mut Options) {
    for key in MEMORY_KEPT {
        if let Some(value) = from.get(key) {
            to.set(key, value);
        }
    }
}
