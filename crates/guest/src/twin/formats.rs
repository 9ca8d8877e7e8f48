//! In which format the twin opens an image. It is never left to QEMU to guess: what a guest wrote into a raw image could then name any
//! file of the host as its backing file.

use super::{Builder, TwinError, refused};
use crate::description::ImageFormat;
use crate::options::Options;

/// How the file of a `-blockdev` without a format of its own is used.
#[derive(Debug, Default)]
pub(super) struct Uses {
    /// Number of the needed file, and the block node that has it open.
    open: Vec<(usize, String)>,
    /// A block node, and the node on top of it that names it.
    on_top: Vec<(String, Top)>,
}

#[derive(Debug)]
enum Top {
    Format(ImageFormat),
    /// A filter with this name.
    Filter(String),
}

impl Builder<'_> {
    /// Gives a `-drive` the format that its image had at the source, where the command line has none.
    pub(super) fn name_format(&self, options: &mut Options) -> Result<(), TwinError> {
        let file = options.get("file").filter(|file| !file.is_empty());
        let Some(file) = file.or(options.get("file.filename")) else { return Ok(()) };
        if ["format", "driver"].iter().any(|key| options.get(key).is_some()) {
            return Ok(());
        }
        let found = self.guest.disks.iter().find(|disk| disk.path == file).map(|disk| disk.format.as_str());
        let cd = (options.get("media") == Some("cdrom")).then_some("raw");
        let Some(format) = found.or(cd).and_then(ImageFormat::from_name) else {
            let why = "its format would be guessed from what is in it; say format=raw or format=qcow2";
            return Err(refused("drive", file, why));
        };
        options.set("format", format.name());
        Ok(())
    }

    /// The format in which the file named by this key is opened; none where other options say it.
    pub(super) fn format_of(
        &self,
        option: &str,
        options: &Options,
        key: &str,
    ) -> Result<Option<ImageFormat>, TwinError> {
        // `file.file.filename` is of the node `file.file`, below `file`, below the whole.
        let mut node = key.rsplit_once('.').map_or("", |(node, _)| node);
        let guessed = || refused(option, key, "its format would be guessed from what is in it");
        let mut unnamed = false;
        loop {
            let below = |name: &str| if node.is_empty() { name.to_owned() } else { format!("{node}.{name}") };
            let driver = options.get(&below("driver"));
            let driver = driver.or_else(|| node.is_empty().then(|| options.get("format")).flatten());
            match driver {
                Some(driver) => {
                    if let Some(format) = ImageFormat::from_name(driver) {
                        return Ok(Some(format));
                    }
                    if unnamed {
                        return Err(guessed());
                    }
                }
                // What is under `file` of a format is the file itself.
                None if !unnamed && (node == "file" || node.ends_with(".file")) => unnamed = true,
                None => return Err(guessed()),
            }
            if node.is_empty() {
                return Ok(None);
            }
            node = node.rsplit_once('.').map_or("", |(above, _)| above);
        }
    }

    /// Remembers what a `-blockdev` is called and what it stands on; `files` are the numbers of those that it opens.
    pub(super) fn note_node(&mut self, options: &Options, files: std::ops::Range<usize>) {
        let name = options.get("node-name").unwrap_or_default().to_owned();
        let driver = options.get("driver").unwrap_or_default();
        for key in ["file", "backing"] {
            let top = ImageFormat::from_name(driver).map_or(Top::Filter(name.clone()), Top::Format);
            if let Some(below) = options.get(key) {
                self.uses.on_top.push((below.to_owned(), top));
            }
        }
        let open = files.filter(|file| self.twin.files.get(*file).is_some_and(|file| file.format.is_none()));
        self.uses.open.extend(open.map(|file| (file, name.clone())));
    }

    /// Says of the files of block nodes in which format they are opened, now that all nodes are known.
    pub(super) fn settle_formats(&mut self) {
        for (file, node) in std::mem::take(&mut self.uses.open) {
            let format = self.uses.of(&node, 0);
            if let Some(needed) = self.twin.files.get_mut(file) {
                needed.format = format;
            }
        }
    }
}

impl Uses {
    /// The only format of what stands on a node; a device on the node itself sees the file as it is.
    fn of(&self, node: &str, depth: usize) -> Option<ImageFormat> {
        let mut found = self.on_top.iter().filter(|(below, _)| below == node).map(|(_, top)| match top {
            Top::Format(format) => Some(*format),
            Top::Filter(name) if depth < self.on_top.len() => self.of(name, depth + 1),
            Top::Filter(_) => None,
        });
        let Some(first) = found.next() else { return Some(ImageFormat::Raw) };
        first.filter(|_| found.all(|other| other == first))
    }
}
