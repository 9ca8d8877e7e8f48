//! What a guest that comes from another host may open here: files, devices, bridges, taps, and targets of tunnels.
//!
//! The description of a guest comes from the other host, so its paths are a stranger's. A path counts only if it is
//! absolute and has neither `.` nor `..`. The answer is the granted folder and the rest of the path: the caller opens
//! the rest beneath the folder and follows no symbolic link, for which the kernel has `openat2` with `RESOLVE_BENEATH`
//! and `RESOLVE_NO_SYMLINKS`. A path that was checked and is then opened as text may have changed in between.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

use linerate_api::TunnelAddress;
use serde::{Deserialize, Serialize};

/// Longest name of a network interface in Linux (IFNAMSIZ without its zero).
const INTERFACE_BYTES_MAX: usize = 15;

/// A folder of an operator's list: absolute, without `.` and `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "PathBuf", into = "PathBuf")]
pub struct Root(PathBuf);

impl Root {
    /// Absolute path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl TryFrom<PathBuf> for Root {
    type Error = GrantError;

    fn try_from(path: PathBuf) -> Result<Root, GrantError> {
        if names(&path).is_none() {
            return Err(GrantError::Path(path));
        }
        // Everything would be in it.
        if path.parent().is_none() { Err(GrantError::Everything) } else { Ok(Root(path)) }
    }
}

impl From<Root> for PathBuf {
    fn from(root: Root) -> PathBuf {
        root.0
    }
}

impl fmt::Display for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

/// Why something is not granted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// Relative, with `.` or `..`, or with a zero byte.
    #[error("{} is no path that can be granted; it must be absolute, without `.` and `..`", .0.display())]
    Path(PathBuf),
    /// The root of the file system.
    #[error("/ cannot be granted; name the folders of guests")]
    Everything,
    /// In no granted folder.
    #[error("{} is in no folder that guests may use; add one to `folders` under grants in agent.toml", .0.display())]
    File(PathBuf),
    /// No device is granted there.
    #[error("{} is a device, and no granted one; add it to `devices` under grants in agent.toml", .0.display())]
    Device(PathBuf),
    /// The bridge is not listed.
    #[error("bridge {0:?} is not granted; add it to `bridges` under grants in agent.toml")]
    Bridge(String),
    /// The tap is not listed.
    #[error("tap {0:?} is not granted; add it to `taps` under grants in agent.toml")]
    Tap(String),
    /// The target is not listed.
    #[error("{0} is not granted; add it to `tunnel_targets` under grants in agent.toml")]
    Target(TunnelAddress),
}

/// Where to open something: `rest` beneath `root`, without following symbolic links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted<'a> {
    /// Listed folder that the path is in.
    pub root: &'a Path,
    /// The rest of the path. Empty if the root itself was asked for, which may be a single device or file.
    pub rest: &'a Path,
}

/// See the module. In agent.toml; unknown keys are refused. Everything is empty by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grants {
    /// Folders whose regular files a guest may have as disk, kernel or firmware.
    #[serde(default)]
    pub folders: Vec<Root>,
    /// Devices, or folders of devices such as `/dev/vg0`, that a guest may have as disk.
    #[serde(default)]
    pub devices: Vec<Root>,
    /// Bridges that a guest's network card may be plugged into.
    #[serde(default)]
    pub bridges: Vec<String>,
    /// Tap interfaces that a guest may use. A `*` at the end matches any rest.
    #[serde(default)]
    pub taps: Vec<String>,
    /// Sockets that a tunnel may connect to.
    #[serde(default)]
    pub tunnel_targets: Vec<TunnelAddress>,
}

impl Grants {
    /// A regular file. One in a folder of devices is none.
    pub fn file<'a>(&'a self, path: &'a Path) -> Result<Granted<'a>, GrantError> {
        beneath(&self.folders, path)?.ok_or_else(|| GrantError::File(path.to_owned()))
    }

    /// A block or character device. A granted folder of files grants none of the devices in it.
    pub fn device<'a>(&'a self, path: &'a Path) -> Result<Granted<'a>, GrantError> {
        beneath(&self.devices, path)?.ok_or_else(|| GrantError::Device(path.to_owned()))
    }

    /// A bridge by its name.
    pub fn bridge(&self, name: &str) -> Result<(), GrantError> {
        let granted = is_interface(name) && self.bridges.iter().any(|entry| entry == name);
        if granted { Ok(()) } else { Err(GrantError::Bridge(name.to_owned())) }
    }

    /// A tap interface by its name.
    pub fn tap(&self, name: &str) -> Result<(), GrantError> {
        let matches = |entry: &String| match entry.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => entry == name,
        };
        let granted = is_interface(name) && self.taps.iter().any(matches);
        if granted { Ok(()) } else { Err(GrantError::Tap(name.to_owned())) }
    }

    /// A target of a tunnel.
    pub fn target(&self, target: &TunnelAddress) -> Result<(), GrantError> {
        let granted = self.tunnel_targets.iter().any(|entry| entry.allows(target));
        if granted { Ok(()) } else { Err(GrantError::Target(target.clone())) }
    }
}

/// The names of a path from the root on, or none if it is not one that can be granted. `Path::components` hides `.` and
/// double slashes, which a stranger has no reason to write.
fn names(path: &Path) -> Option<Vec<&OsStr>> {
    use std::os::unix::ffi::OsStrExt;
    let rest = path.as_os_str().as_bytes().strip_prefix(b"/")?;
    let rest = rest.strip_suffix(b"/").unwrap_or(rest);
    if rest.is_empty() {
        return Some(Vec::new());
    }
    let names = rest.split(|byte| *byte == b'/').map(|name| {
        let usable = !name.is_empty() && name != b"." && name != b".." && !name.contains(&0);
        usable.then(|| OsStr::from_bytes(name))
    });
    names.collect()
}

fn beneath<'a>(roots: &'a [Root], path: &'a Path) -> Result<Option<Granted<'a>>, GrantError> {
    if names(path).is_none() {
        return Err(GrantError::Path(path.to_owned()));
    }
    // By whole names: `/srv/guests2` is not in `/srv/guests`.
    Ok(roots.iter().find_map(|root| Some(Granted { root: &root.0, rest: path.strip_prefix(&root.0).ok()? })))
}

fn is_interface(name: &str) -> bool {
    let usable = |byte: u8| byte.is_ascii_graphic() && !b"/*:".contains(&byte);
    !name.is_empty()
        && name.len() <= INTERFACE_BYTES_MAX
        && name.bytes().all(usable)
        && name != "."
        && name != ".."
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn grants() -> Grants {
        toml::from_str(
            "folders = [\"/srv/guests\", \"/var/images/\"]\ndevices = [\"/dev/vg0\", \"/dev/disk/by-id/x\"]\n\
             bridges = [\"br0\"]\ntaps = [\"tap-*\", \"mytap\"]\n\
             tunnel_targets = [\"unix:/run/a.sock\", \"unix:/run/b/\", \"tcp:127.0.0.1:80\"]\n",
        )
        .unwrap()
    }

    #[test]
    fn a_file_beneath_a_granted_folder_is_granted() {
        let grants = grants();
        let granted = grants.file(Path::new("/srv/guests/a/disk.img")).unwrap();
        assert_eq!((granted.root, granted.rest), (Path::new("/srv/guests"), Path::new("a/disk.img")));
        assert_eq!(grants.file(Path::new("/var/images/b")).unwrap().rest, Path::new("b"));
    }

    #[test]
    fn a_file_elsewhere_is_refused() {
        let grants = grants();
        for path in ["/srv/guests2/a", "/srv", "/etc/shadow", "/dev/vg0/root", "/srv/guest"] {
            assert_eq!(grants.file(Path::new(path)), Err(GrantError::File(path.into())), "{path}");
        }
    }

    #[test]
    fn a_path_that_could_lead_elsewhere_is_refused() {
        let grants = grants();
        let paths = [
            "/srv/guests/../../etc/shadow",
            "/srv/guests/..",
            "/srv/guests/./a",
            "/srv/guests//a",
            "//srv/guests/a",
            "srv/guests/a",
            "",
            "/srv/guests/a\0b",
        ];
        for path in paths {
            assert_eq!(grants.file(Path::new(path)), Err(GrantError::Path(path.into())), "{path}");
            assert_eq!(grants.device(Path::new(path)), Err(GrantError::Path(path.into())), "{path}");
        }
    }

    #[test]
    fn no_device_is_granted_unless_it_is_listed() {
        let grants = grants();
        assert_eq!(grants.device(Path::new("/dev/vg0/guest")).unwrap().rest, Path::new("guest"));
        assert_eq!(grants.device(Path::new("/dev/disk/by-id/x")).unwrap().rest, Path::new(""));
        for path in ["/dev/mapper/vg0-root", "/dev/sda", "/srv/guests/device", "/dev/vg01/guest"] {
            assert_eq!(grants.device(Path::new(path)), Err(GrantError::Device(path.into())), "{path}");
        }
        assert!(Grants::default().device(Path::new("/dev/mapper/vg0-root")).is_err());
    }

    #[test]
    fn interfaces_and_targets_are_granted_by_name() {
        let grants = grants();
        let bridge = |name| grants.bridge(name).is_ok();
        assert!(bridge("br0"));
        assert!(!bridge("br1") && !bridge("br") && !bridge(""));
        let tap = |name| grants.tap(name).is_ok();
        assert!(tap("tap-7") && tap("mytap"));
        assert!(
            !tap("tap7") && !tap("mytap2") && !tap("tap-/../x") && !tap("tap-*") && !tap("tap-4567890123456")
        );
        let target = |text: &str| grants.target(&text.parse().unwrap()).is_ok();
        assert!(target("unix:/run/a.sock") && target("unix:/run/b/x.sock") && target("tcp:127.0.0.1:80"));
        assert!(
            !target("unix:/run/libvirt.sock") && !target("tcp:127.0.0.1:81") && !target("unix:/run/b/x/y")
        );
        assert!(Grants::default().target(&"tcp:127.0.0.1:80".parse().unwrap()).is_err());
    }

    #[test]
    fn a_root_is_absolute_and_not_everything() {
        for text in ["srv", "/", "/srv/../etc", "", "/srv//guests"] {
            assert!(toml::from_str::<Grants>(&format!("folders = [\"{text}\"]")).is_err(), "{text}");
        }
    }
}
