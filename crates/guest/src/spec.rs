//! `linerate vm start SPEC.toml`: a guest that can be moved in direct mode, in a few lines. Unknown keys are refused
//! with their line; relative paths count from the file's folder.

mod launch;

pub use launch::{SpecFolders, SpecGuest};

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::description::{DescriptionError, check_name};

/// Longest file taken, in bytes.
pub const SPEC_BYTES_MAX: usize = 256 << 10;

/// Why a specification is not taken.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// Not TOML, an unknown key, or a value of the wrong kind. The message shows the line.
    #[error("{0}")]
    Form(#[from] toml::de::Error),
    #[error("the specification has {0} bytes, at most {SPEC_BYTES_MAX} are taken")]
    TooLong(usize),
    /// A name that cannot be used.
    #[error(transparent)]
    Name(#[from] DescriptionError),
    /// A value that cannot be used.
    #[error("{key}: {why}")]
    Value {
        key: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// A guest as its operator describes it. docs/guests.md has every key with its default.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestSpec {
    /// Name: 1 to 64 letters, digits, `.`, `_`, `-`.
    pub name: String,
    /// UUID; none by default.
    pub uuid: Option<String>,
    pub memory: ByteSize,
    /// RAM in explicit huge pages, from the folder that the host has for them.
    #[serde(default)]
    pub huge_pages: bool,
    /// Number of virtual CPUs.
    #[serde(default = "one")]
    pub vcpus: u32,
    /// Machine type: an alias or a versioned one.
    #[serde(default = "pc")]
    pub machine: String,
    /// `kvm` or `tcg`.
    #[serde(default)]
    pub accel: Accelerator,
    /// CPU model; `host` under KVM and `qemu64` under TCG by default.
    pub cpu: Option<String>,
    /// Kernel to boot directly.
    pub kernel: Option<PathBuf>,
    pub initrd: Option<PathBuf>,
    pub cmdline: Option<String>,
    /// File that the serial port is written to; `serial0.log` in the guest's run-time folder by default.
    pub serial: Option<PathBuf>,
    #[serde(default)]
    pub disk: Vec<DiskSpec>,
    #[serde(default)]
    pub nic: Vec<NicSpec>,
    /// More arguments for QEMU, taken as they are.
    #[serde(default)]
    pub extra_args: Vec<String>,
    /// Name of a QEMU of the agent's configuration; its default one if none is named.
    pub qemu: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskSpec {
    /// File or block device.
    pub path: PathBuf,
    /// `raw` or `qcow2`.
    #[serde(default)]
    pub format: DiskFormat,
    /// `writeback` or `none` (O_DIRECT).
    #[serde(default)]
    pub cache: DiskCache,
    /// `threads`, `native` or `io_uring`.
    #[serde(default)]
    pub aio: DiskAio,
    /// Whether the page cache is dropped when the guest arrives.
    #[serde(default = "yes")]
    pub drop_cache: bool,
    /// Opened for reading only.
    #[serde(default)]
    pub readonly: bool,
}

/// A network port: of a tap that exists, or of a bridge.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicSpec {
    /// A tap interface that exists.
    pub tap: Option<String>,
    /// A bridge; QEMU's bridge helper makes a tap in it.
    pub bridge: Option<String>,
    /// MAC address; made from the guest's name by default.
    pub mac: Option<String>,
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $(#[$first_doc:meta])* $first:ident = $first_text:literal, $($(#[$rest_doc:meta])* $rest:ident = $rest_text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
        pub enum $name {
            $(#[$first_doc])* #[default] #[serde(rename = $first_text)] $first,
            $($(#[$rest_doc])* #[serde(rename = $rest_text)] $rest,)*
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $name::$first => $first_text, $($name::$rest => $rest_text,)* })
            }
        }
    };
}

words! {
    /// What runs the guest's instructions.
    Accelerator {
        Kvm = "kvm",
        Tcg = "tcg",
    }
}
words! {
    DiskFormat {
        /// Bytes as they are.
        Raw = "raw",
        Qcow2 = "qcow2",
    }
}
words! {
    /// Use of the page cache.
    DiskCache {
        /// Disk I/O goes through the host's page cache.
        Writeback = "writeback",
        /// `O_DIRECT`: disk I/O goes past the host's page cache.
        None = "none",
    }
}
words! {
    /// How QEMU reads and writes.
    DiskAio {
        Threads = "threads",
        /// Linux AIO; needs cache = "none".
        Native = "native",
        IoUring = "io_uring",
    }
}

/// A number of bytes, written as `"512M"` or `"4G"` (powers of 1024).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct ByteSize(pub u64);

impl TryFrom<String> for ByteSize {
    type Error = &'static str;

    fn try_from(text: String) -> Result<ByteSize, &'static str> {
        let why = "a size is a whole number with K, M, G or T: \"512M\"";
        let digits = text.trim_end_matches("iB").trim_end_matches(['K', 'M', 'G', 'T']);
        let unit = text.get(digits.len()..).unwrap_or_default();
        let shift = match unit.trim_end_matches("iB") {
            "" if unit.is_empty() => 0,
            "K" => 10,
            "M" => 20,
            "G" => 30,
            "T" => 40,
            _ => return Err(why),
        };
        let number = digits.parse::<u64>().map_err(|_| why)?;
        number.checked_mul(1 << shift).map(ByteSize).ok_or("the size is too large")
    }
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

fn pc() -> String {
    "pc".to_owned()
}

impl GuestSpec {
    /// Reads a specification; `base` is the folder that relative paths count from.
    pub fn parse(text: &str, base: &Path) -> Result<GuestSpec, SpecError> {
        if text.len() > SPEC_BYTES_MAX {
            return Err(SpecError::TooLong(text.len()));
        }
        let mut spec: GuestSpec = toml::from_str(text)?;
        let disks = spec.disk.iter_mut().map(|disk| &mut disk.path);
        let single = [&mut spec.kernel, &mut spec.initrd, &mut spec.serial].into_iter().flatten();
        for path in single.chain(disks) {
            *path = base.join(&*path);
        }
        spec.check()?;
        Ok(spec)
    }

    fn check(&self) -> Result<(), SpecError> {
        check_name(&self.name)?;
        let wrong = |key, why| Err(SpecError::Value { key, why });
        if self.memory.0 < 1 << 20 || !self.memory.0.is_multiple_of(1 << 20) {
            return wrong("memory", "at least 1M, in whole MiB");
        }
        if self.huge_pages && !self.memory.0.is_multiple_of(2 << 20) {
            return wrong("memory", "with huge_pages, in whole huge pages: a multiple of 2M");
        }
        if self.vcpus == 0 || self.vcpus > 1024 {
            return wrong("vcpus", "1 to 1024");
        }
        if !is_word(&self.machine) {
            return wrong("machine", "the name of a machine type, without options");
        }
        if self.uuid.as_deref().is_some_and(|uuid| uuid.len() != 36 || !is_word(uuid)) {
            return wrong("uuid", "36 characters: 01234567-89ab-cdef-0123-456789abcdef");
        }
        if self.kernel.is_none() && (self.initrd.is_some() || self.cmdline.is_some()) {
            return wrong("kernel", "initrd and cmdline are of use only with a kernel");
        }
        self.disk.iter().try_for_each(DiskSpec::check)?;
        self.nic.iter().try_for_each(NicSpec::check)
    }
}

impl DiskSpec {
    fn check(&self) -> Result<(), SpecError> {
        if self.aio == DiskAio::Native && self.cache != DiskCache::None {
            return Err(SpecError::Value { key: "disk.aio", why: "native needs cache = \"none\"" });
        }
        Ok(())
    }
}

impl NicSpec {
    fn check(&self) -> Result<(), SpecError> {
        let wrong = |key, why| Err(SpecError::Value { key, why });
        let name = match (&self.tap, &self.bridge) {
            (Some(name), None) | (None, Some(name)) => name,
            _ => return wrong("nic", "give either tap or bridge"),
        };
        if !is_word(name) || name.len() > 15 {
            return wrong("nic", "this is not the name of an interface");
        }
        let is_mac = |mac: &String| {
            mac.len() == 17
                && mac.split(':').count() == 6
                && mac.split(':').all(|byte| u8::from_str_radix(byte, 16).is_ok())
        };
        if self.mac.as_ref().is_some_and(|mac| !is_mac(mac)) {
            return wrong("nic.mac", "six bytes in hexadecimal: \"52:54:00:12:34:56\"");
        }
        Ok(())
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<GuestSpec, SpecError> {
        GuestSpec::parse(text, Path::new("/base"))
    }

    #[test]
    fn defaults_and_relative_paths() {
        let spec = parse("name = 'a'\nmemory = '512M'\n[[disk]]\npath = 'd.img'").unwrap();
        assert_eq!((spec.memory.0, spec.vcpus, spec.machine.as_str()), (512 << 20, 1, "pc"));
        assert_eq!(spec.accel, Accelerator::Kvm);
        assert_eq!(spec.disk[0].path, Path::new("/base/d.img"));
        assert!(spec.disk[0].drop_cache);
    }

    #[test]
    fn errors_say_where() {
        for (text, expected) in [
            ("name = 'a'\nmemory = '1G'\nmemroy = 1", "line 3"),
            ("name = 'a'\nmemory = '1G'\n[[disk]]\npath = 'd'\nchache = 'none'", "line 5"),
            ("name = 'a'\nmemory = '1.5G'", "line 2"),
            ("name = 'a'\nmemory = 512", "line 2"),
            ("name = 'a'\nmemory = '1G'\naccel = 'xen'", "line 3"),
            ("name = '../a'\nmemory = '1G'", "../a"),
            ("name = 'a'\nmemory = '1K'", "memory"),
            ("name = 'a'\nmemory = '5M'\nhuge_pages = true", "whole huge pages"),
            ("name = 'a'\nmemory = '99999999T'", "too large"),
            ("name = 'a'\nmemory = '1G'\nmachine = 'pc,x=y'", "machine"),
            ("name = 'a'\nmemory = '1G'\ninitrd = 'i'", "kernel"),
            ("name = 'a'\nmemory = '1G'\n[[disk]]\npath = 'd'\naio = 'native'", "disk.aio"),
            ("name = 'a'\nmemory = '1G'\n[[nic]]\ntap = 't'\nbridge = 'b'", "either"),
            ("name = 'a'\nmemory = '1G'\n[[nic]]\ntap = 't'\nmac = '52'", "nic.mac"),
            ("memory = '1G'", "name"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("512M", 512 << 20), ("4G", 4 << 30), ("1T", 1 << 40), ("7", 7), ("3GiB", 3 << 30)]
        {
            assert_eq!(ByteSize::try_from(text.to_owned()), Ok(ByteSize(bytes)));
        }
        for text in ["", "M", "1MM", "-1M", "1 M", "1iB", "1m"] {
            assert!(ByteSize::try_from(text.to_owned()).is_err(), "{text:?}");
        }
    }
}
