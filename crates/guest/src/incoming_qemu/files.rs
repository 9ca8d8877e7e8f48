//! Options that open files: disks, CD images, kernels, flash. Every name must lie under a configured folder.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use super::{Builder, IncomingError, NeededFile, check_id, no_file_name, refused};
use crate::description::ImageFormat;
use crate::options::Options;

/// Block drivers taken over: local files and devices, and formats on top of them.
const DRIVERS: &[&str] = &["file", "host_device", "raw", "qcow2", "throttle", "copy-on-read"];

/// Last parts of keys of -drive and -blockdev that are settings.
const KEYS: &[&str] = &[
    "if",
    "id",
    "index",
    "bus",
    "unit",
    "media",
    "cache",
    "aio",
    "readonly",
    "read-only",
    "auto-read-only",
    "node-name",
    "discard",
    "detect-zeroes",
    "werror",
    "rerror",
    "serial",
    "copy-on-read",
    "direct",
    "no-flush",
    "writeback",
    "locking",
    "drop-cache",
    "aio-max-batch",
    "size",
    "offset",
    "lazy-refcounts",
    "l2-cache-size",
    "l2-cache-entry-size",
    "refcount-cache-size",
    "cache-size",
    "cache-clean-interval",
    "overlap-check",
    "pass-discard-request",
    "pass-discard-snapshot",
    "pass-discard-other",
    "discard-no-unref",
    "iops",
    "iops_rd",
    "iops_wr",
    "bps",
    "bps_rd",
    "bps_wr",
    "iops_max",
    "bps_max",
    "iops_size",
    "group",
    "throttle-group",
    "snapshot",
    "iops_rd_max",
    "iops_wr_max",
    "bps_rd_max",
    "bps_wr_max",
    "bps_max_length",
    "bps_rd_max_length",
    "bps_wr_max_length",
    "iops_max_length",
    "iops_rd_max_length",
    "iops_wr_max_length",
    "stats-account-invalid",
    "stats-account-failed",
];

/// Drivers of disks on the network.
const NETWORK_DRIVERS: &[&str] =
    &["nbd", "rbd", "iscsi", "ssh", "http", "https", "ftp", "ftps", "nfs", "gluster", "sheepdog"];

const TEMPORARY: &str = "what the guest has written is in a temporary file that ends with its QEMU: start the guest without it, on a qcow2 image with a backing file";

fn why_not(driver: &str) -> &'static str {
    match driver {
        _ if NETWORK_DRIVERS.contains(&driver) => {
            "QEMU's own network disks are not moved yet: let the kernel attach it (krbd, open-iscsi, nbd-client, NFS) and name the device or file"
        }
        "host_cdrom" => {
            "it is a drive of the source's host: eject it, and start the guest with an image or without a medium"
        }
        "luks" => {
            "the key of an encrypted disk is not taken to another host: encrypt within the guest or below the file"
        }
        "vvfat" => "it shares a folder of the source's host: make an image of it",
        _ => {
            "only local files and devices, raw or qcow2, are taken: convert the image (qemu-img convert -O qcow2)"
        }
    }
}

impl Builder<'_> {
    pub(super) fn drive(&mut self, value: &str) -> Result<(), IncomingError> {
        let options = self.parse("drive", value, None)?;
        self.drive_of(options)
    }

    /// `-cdrom`, `-hda`, …: the value is the file, and its format would be guessed.
    pub(super) fn bare_drive(&mut self, name: &str, value: &str) -> Result<(), IncomingError> {
        let place: &[(&str, &str)] = match name {
            "cdrom" => &[("index", "2"), ("media", "cdrom")],
            "hda" => &[("index", "0"), ("media", "disk")],
            "hdb" => &[("index", "1"), ("media", "disk")],
            "hdc" => &[("index", "2"), ("media", "disk")],
            "hdd" => &[("index", "3"), ("media", "disk")],
            "fda" => &[("if", "floppy"), ("index", "0")],
            "fdb" => &[("if", "floppy"), ("index", "1")],
            _ => &[("if", "pflash")],
        };
        self.drive_of(Options::from_pairs(&[place, &[("file", value)]].concat()))
    }

    fn drive_of(&mut self, mut options: Options) -> Result<(), IncomingError> {
        self.name_format(&mut options)?;
        let writable = !(options.is_on("readonly")
            || options.is_on("read-only")
            || options.get("media") == Some("cdrom"));
        let first = self.incoming.files.len();
        self.block_options("drive", &mut options, "file", writable)?;
        self.note_nodes(&options, "file", first..self.incoming.files.len());
        let plain = matches!(options.get("file.driver"), None | Some("file" | "host_device"));
        if self.options.keep_page_cache && options.get("file").is_some() && plain {
            options.set("file.drop-cache", "off");
        }
        self.emit("drive", &options.to_string())
    }

    pub(super) fn blockdev(&mut self, value: &str) -> Result<(), IncomingError> {
        let mut options = self.parse("blockdev", value, Some("driver"))?;
        let writable = !(options.is_on("read-only") || options.is_on("file.read-only"));
        let first = self.incoming.files.len();
        self.block_options("blockdev", &mut options, "filename", writable)?;
        self.note_nodes(&options, "filename", first..self.incoming.files.len());
        if self.options.keep_page_cache {
            for (key, set) in [("driver", "drop-cache"), ("file.driver", "file.drop-cache")] {
                if matches!(options.get(key), Some("file" | "host_device")) {
                    options.set(set, "off");
                }
            }
        }
        self.emit("blockdev", &options.to_string())
    }

    /// `-kernel`, `-initrd`: the value is the file.
    pub(super) fn bare_file(&mut self, name: &str, value: &str) -> Result<(), IncomingError> {
        let path = self.host_file(name, value, false, Some(ImageFormat::Raw))?;
        self.emit(name, &path)
    }

    /// `-bios`: firmware comes from this host's QEMU, so only the file's own name counts.
    pub(super) fn bios(&mut self, value: &str) -> Result<(), IncomingError> {
        let name = value.rsplit('/').next().unwrap_or_default();
        check_id("bios", name)?;
        if name != value {
            self.note(format!("firmware {name} is taken from this host's QEMU instead of {value}"));
        }
        self.incoming.firmware.push(name.to_owned());
        self.emit("bios", name)
    }

    fn block_options(
        &mut self,
        option: &str,
        options: &mut Options,
        file_key: &str,
        writable: bool,
    ) -> Result<(), IncomingError> {
        let pairs: Vec<(String, String)> =
            options.pairs().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        // First, as other drivers have other keys.
        let is_driver = |key: &str| matches!(key.rsplit('.').next(), Some("driver" | "format"));
        if let Some((_, driver)) =
            pairs.iter().find(|(key, value)| is_driver(key) && !DRIVERS.contains(&value.as_str()))
        {
            return Err(refused(option, driver, why_not(driver)));
        }
        for (key, value) in pairs.into_iter().filter(|(key, _)| !is_driver(key)) {
            let last = key.rsplit('.').next().unwrap_or_default();
            let throttling = key.starts_with("throttling.") || key.starts_with("limits.");
            if key == file_key || last == "filename" {
                if !value.is_empty() {
                    let format = self.format_of(option, options, &key)?;
                    let path = self.host_file(option, &value, writable, format)?;
                    if let Some(file) = self.incoming.files.last_mut() {
                        file.as_device = as_device(options, &key);
                    }
                    options.set(&key, &path);
                }
            } else if matches!(last, "file" | "backing" | "data-file") {
                node_name(option, &value)?;
            } else if key == "snapshot" && matches!(value.as_str(), "on" | "yes" | "true" | "y") {
                return Err(refused(option, "snapshot=on", TEMPORARY));
            } else if last == "force-share" || last == "locking" && !matches!(value.as_str(), "on" | "auto") {
                self.note(format!("{key}={value} of -{option} is not taken over: images are locked here"));
                lock(options, &key);
            } else if KEYS.contains(&last) || throttling {
                no_file_name(option, &key, &value)?;
            } else {
                return Err(refused(option, &key, "this key is not among the known ones"));
            }
        }
        Ok(())
    }

    pub(super) fn host_file(
        &mut self,
        option: &str,
        source: &str,
        writable: bool,
        format: Option<ImageFormat>,
    ) -> Result<String, IncomingError> {
        let not_a_path = |path: &str| {
            let shown = path.chars().take(200).collect();
            IncomingError::NotAPath { option: option.to_owned(), path: shown }
        };
        if !is_whole_path(source) {
            return Err(not_a_path(source));
        }
        let path = &mapped(&self.options.paths, source);
        if !is_whole_path(path) {
            return Err(not_a_path(path));
        }
        let plain = Path::new(path);
        let outside = || IncomingError::OutsideRoots { option: option.to_owned(), path: path.to_owned() };
        if !self.options.file_roots.iter().any(|root| plain.starts_with(root) && plain != root) {
            return Err(outside());
        }
        self.incoming.files.push(NeededFile {
            source: source.to_owned(),
            path: PathBuf::from(path.as_str()),
            writable,
            format,
            as_device: None,
        });
        Ok(path.to_owned())
    }
}

/// The source does not decide that others on this host may write the same image: QEMU locks it where it can.
fn lock(options: &mut Options, key: &str) {
    if key.ends_with("locking") { options.set(key, "auto") } else { options.remove(key) }
}

/// A name without a leading slash may be a protocol (nbd:, json:, fat:); /dev/fdset is QEMU's own magic.
fn is_whole_path(path: &str) -> bool {
    let straight =
        Path::new(path).components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    path.len() > 1 && path.starts_with('/') && straight && !path.starts_with("/dev/fdset")
}

/// The local name: that of the file itself, or else of the deepest folder above it that has one (both ends with a
/// slash).
pub(crate) fn mapped(paths: &BTreeMap<String, String>, source: &str) -> String {
    let folders = paths.iter().filter(|(from, _)| from.ends_with('/') && source.starts_with(from.as_str()));
    match (paths.get(source), folders.max_by_key(|(from, _)| from.len())) {
        (Some(file), _) => file.clone(),
        (None, Some((from, to))) => format!("{to}{}", source.get(from.len()..).unwrap_or_default()),
        (None, None) => source.to_owned(),
    }
}

/// What the driver that opens the file of this key takes: devices, files, or either where QEMU finds the driver.
fn as_device(options: &Options, key: &str) -> Option<bool> {
    let driver = match key.rsplit_once('.') {
        Some((node, _)) => format!("{node}.driver"),
        None if key == "file" => "file.driver".to_owned(),
        None => "driver".to_owned(),
    };
    match options.get(&driver) {
        Some("host_device") => Some(true),
        Some("file") => Some(false),
        _ => None,
    }
}

// A reference to another node, which has its own option. Empty: no backing file.
fn node_name(option: &str, value: &str) -> Result<(), IncomingError> {
    if value.is_empty() { Ok(()) } else { check_id(option, value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_driver_takes_is_known_where_it_is_named() {
        for (pairs, key, taken) in [
            (&[("driver", "host_device")][..], "filename", Some(true)),
            (&[("driver", "file")], "filename", Some(false)),
            (&[("driver", "raw"), ("file.driver", "host_device")], "file.filename", Some(true)),
            (&[("format", "raw")], "file", None),
            (&[("driver", "raw")], "file", None),
            (&[("driver", "raw"), ("file.driver", "file")], "file", Some(false)),
        ] {
            assert_eq!(as_device(&Options::from_pairs(pairs), key), taken, "{pairs:?} {key}");
        }
    }

    #[test]
    fn a_file_of_its_own_name_goes_before_the_deepest_folder() {
        let pairs = [("/a/", "/x/"), ("/a/b/", "/y/"), ("/a/b/d.img", "/z.img"), ("/c", "/w")];
        let paths = pairs.map(|(from, to)| (from.to_owned(), to.to_owned())).into();
        for (source, local) in [
            ("/a/d.img", "/x/d.img"),
            ("/a/b/c/d.img", "/y/c/d.img"),
            ("/a/b/d.img", "/z.img"),
            ("/c/d.img", "/c/d.img"),
            ("/ab/d.img", "/ab/d.img"),
        ] {
            assert_eq!(mapped(&paths, source), local, "{source}");
        }
    }
}
