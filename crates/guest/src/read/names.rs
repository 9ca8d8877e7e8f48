//! Names of files that count from the folder in which QEMU was started. No other host, and not even the agent, is in
//! that folder: they are made whole when the guest is read.

use std::path::{Component, Path, PathBuf};

use crate::argv::{Argument, join, split_loose};
use crate::graph::DiskGraph;
use crate::options::Options;
use crate::procfs;

/// Options whose value is a file.
const FILES: &[&str] =
    &["hda", "hdb", "hdc", "hdd", "fda", "fdb", "cdrom", "pflash", "kernel", "initrd", "mem-path"];

/// What makes names absolute: the files that a process has open, and its folder.
#[derive(Clone, Debug, Default)]
pub struct Names {
    open: Vec<PathBuf>,
    /// None if QEMU has left it to run in the background.
    folder: Option<PathBuf>,
    root: PathBuf,
}

impl Names {
    /// Of a process with this command line.
    pub fn of(pid: i32, arguments: &[String]) -> Names {
        let open = procfs::open_files(pid).unwrap_or_default().into_iter().map(|(_, path)| path);
        let detached = split_loose(arguments).iter().any(|option| option.name == "daemonize");
        let folder = std::fs::read_link(procfs::proc_path(pid, "cwd")).ok().filter(|_| !detached);
        Names { open: open.collect(), folder, root: procfs::proc_path(pid, "root") }
    }

    /// The whole name of a file that is named from QEMU's folder; none if it is whole, no file, or not known.
    pub fn whole(&self, name: &str) -> Option<String> {
        let is_protocol = name.split('/').next().is_some_and(|first| first.contains(':'));
        if name.is_empty() || name.starts_with('/') || is_protocol {
            return None;
        }
        self.in_folder(name).or_else(|| self.only_open(name))
    }

    fn in_folder(&self, name: &str) -> Option<String> {
        let path = straight(&self.folder.as_ref()?.join(name));
        let seen = self.root.join(path.strip_prefix("/").ok()?);
        std::fs::metadata(seen).ok()?;
        path.into_os_string().into_string().ok()
    }

    /// The only open file whose name ends so.
    fn only_open(&self, name: &str) -> Option<String> {
        let ending = straight(Path::new(name));
        if ending.components().any(|part| !matches!(part, Component::Normal(_))) {
            return None;
        }
        let mut found: Vec<&PathBuf> = self.open.iter().filter(|path| path.ends_with(&ending)).collect();
        found.dedup();
        match found.as_slice() {
            [path] => path.to_str().map(str::to_owned),
            _ => None,
        }
    }

    /// The command line with whole names.
    pub(super) fn in_arguments(&self, arguments: Vec<String>) -> Vec<String> {
        let mut changed = false;
        let mut options = split_loose(&arguments);
        for option in &mut options {
            if let Some(value) = self.in_value(option) {
                option.value = Some(value);
                changed = true;
            }
        }
        if changed { join(options) } else { arguments }
    }

    fn in_value(&self, option: &Argument) -> Option<String> {
        let value = option.value.as_deref()?;
        let name = option.name.as_str();
        if FILES.contains(&name) {
            return self.whole(value);
        }
        let implied = match name {
            "drive" => None,
            "blockdev" => Some("driver"),
            "fw_cfg" => Some("name"),
            "object" => Some("qom-type"),
            _ => return None,
        };
        let mut options = Options::parse(value, implied).ok()?;
        let is_file = |key: &str| match name {
            "drive" => key == "file" || key.ends_with("filename"),
            "blockdev" => key.ends_with("filename"),
            "fw_cfg" => key == "file",
            _ => key == "mem-path",
        };
        let found: Vec<(String, String)> = options
            .pairs()
            .filter(|(key, _)| is_file(key))
            .filter_map(|(key, value)| Some((key.to_owned(), self.whole(value)?)))
            .collect();
        found.iter().for_each(|(key, value)| options.set(key, value));
        (!found.is_empty()).then(|| options.to_string())
    }

    /// The same in what QEMU says of its disks.
    pub fn in_graph(&self, graph: &mut DiskGraph) {
        for node in &mut graph.nodes {
            if let Some(path) = self.whole(&node.path) {
                node.path = path;
            }
        }
    }
}

/// Without `.` and `..`, as far as the name itself says it.
fn straight(path: &Path) -> PathBuf {
    let mut straight = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if straight.file_name().is_some() => {
                straight.pop();
            }
            part => straight.push(part),
        }
    }
    straight
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: Option<&Path>) -> Names {
        let open = ["/srv/a/disk.img", "/srv/b/disk.img", "/srv/b/root.img", "/dev/null"];
        Names { open: open.map(PathBuf::from).to_vec(), folder: folder.map(Path::to_owned), root: "/".into() }
    }

    #[test]
    fn names_count_from_the_folder_of_qemu_or_are_those_of_open_files() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("disk.img"), "x").unwrap();
        let whole = dir.path().join("disk.img").display().to_string();
        let here = names(Some(dir.path()));
        assert_eq!(here.whole("disk.img"), Some(whole.clone()));
        assert_eq!(here.whole("./x/../disk.img"), Some(whole));
        assert_eq!(here.whole("root.img").as_deref(), Some("/srv/b/root.img"));
        let detached = names(None);
        assert_eq!(detached.whole("disk.img"), None, "two are called so");
        assert_eq!(detached.whole("a/disk.img").as_deref(), Some("/srv/a/disk.img"));
        for other in ["", "/x", "nbd:localhost:1", "json:{}", "../root.img", "img"] {
            assert_eq!(detached.whole(other), None, "{other}");
        }
    }

    #[test]
    fn command_lines_get_whole_names() {
        let line = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<String>>();
        let named = names(None);
        let given = "-snapshot root.img -drive file=root.img,if=virtio -blockdev {\"driver\":\"file\",\"filename\":\"root.img\"} -append root.img";
        let wanted = "-snapshot -hda /srv/b/root.img -drive file=/srv/b/root.img,if=virtio -blockdev driver=file,filename=/srv/b/root.img -append root.img";
        assert_eq!(named.in_arguments(line(given)), line(wanted));
        let whole = line("-foo -hda /srv/x -drive file=/srv/y");
        assert_eq!(named.in_arguments(whole.clone()), whole);
    }
}
