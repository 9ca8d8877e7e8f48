//! In which format the incoming QEMU opens an image. It is never left to QEMU to guess: what a guest wrote into a raw
//! image could then name any file of the host as its backing file.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::{Builder, IncomingError, refused};
use crate::description::ImageFormat;
use crate::options::Options;

/// Which node is above which: an image that one option opens raw may be under a node of another that takes it for
/// something else.
#[derive(Debug, Default)]
pub(super) struct Uses(Vec<Used>);

/// A `-drive` or `-blockdev`.
#[derive(Debug)]
struct Used {
    /// What others may call its nodes: their names, and the drive's.
    names: Vec<String>,
    /// Nodes of others below it, and in which format.
    below: Vec<(String, Option<ImageFormat>)>,
    /// Numbers of the needed files that it opens.
    files: Range<usize>,
}

impl Builder<'_> {
    /// Gives a `-drive` the format that its image had at the source, where the command line has none.
    pub(super) fn name_format(&self, options: &mut Options) -> Result<(), IncomingError> {
        let file = options.get("file").filter(|file| !file.is_empty());
        let Some(file) = file.or(options.get("file.filename")) else { return Ok(()) };
        if ["format", "driver"].iter().any(|key| options.get(key).is_some()) {
            return Ok(());
        }
        let found = self.guest.disks.iter().find(|disk| disk.path == file).map(|disk| disk.format.as_str());
        let cd = (options.get("media") == Some("cdrom")).then_some("raw");
        let Some(format) = found.or(cd).and_then(ImageFormat::from_name) else {
            let why = "its format would be guessed from what is in it; set format=raw or format=qcow2";
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
    ) -> Result<Option<ImageFormat>, IncomingError> {
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

    /// Remembers what the nodes of a `-drive` or `-blockdev` are called and what they stand on; `files` are the numbers
    /// of those that it opens.
    pub(super) fn note_nodes(&mut self, options: &Options, file_key: &str, files: Range<usize>) {
        let mut used = Used { names: Vec::new(), below: Vec::new(), files };
        for (key, value) in options.pairs() {
            let (node, last) = key.rsplit_once('.').unwrap_or(("", key));
            match last {
                "node-name" | "id" => used.names.push(value.to_owned()),
                "file" | "backing" | "data-file" if key != file_key => {
                    let driver = if node.is_empty() { "driver".to_owned() } else { format!("{node}.driver") };
                    let driver =
                        options.get(&driver).or_else(|| node.is_empty().then(|| options.get("format"))?);
                    used.below.push((value.to_owned(), driver.and_then(ImageFormat::from_name)));
                }
                _ => {}
            }
        }
        self.uses.0.push(used);
    }

    /// Says of each file in which format it is opened, now that all nodes are known.
    pub(super) fn settle_formats(&mut self) {
        let uses = std::mem::take(&mut self.uses);
        let on_top = uses.on_top();
        for used in &uses.0 {
            let above = Uses::formats_above(used, &on_top);
            for file in self.incoming.files.get_mut(used.files.clone()).unwrap_or_default() {
                let mut formats = above.iter().copied().chain(file.format);
                // What has no node of a format above it is seen as it is.
                let first = formats.next().unwrap_or(ImageFormat::Raw);
                file.format = formats.all(|other| other == first).then_some(first);
            }
        }
    }
}

/// By the name of a node: the options that stand on it, and in which format.
type OnTop<'a> = HashMap<&'a str, Vec<(&'a Used, Option<ImageFormat>)>>;

impl Uses {
    fn on_top(&self) -> OnTop<'_> {
        let mut on_top = OnTop::new();
        for used in &self.0 {
            for (below, format) in &used.below {
                on_top.entry(below).or_default().push((used, *format));
            }
        }
        on_top
    }

    /// All formats of the nodes above an option's nodes, at any height.
    fn formats_above(used: &Used, on_top: &OnTop<'_>) -> Vec<ImageFormat> {
        let mut names: Vec<&str> = used.names.iter().map(String::as_str).collect();
        let (mut seen, mut formats) = (HashSet::new(), Vec::new());
        while let Some(name) = names.pop() {
            if !seen.insert(name) {
                continue;
            }
            for (above, format) in on_top.get(name).into_iter().flatten() {
                formats.extend(format.filter(|format| !formats.contains(format)));
                names.extend(above.names.iter().map(String::as_str).filter(|name| !seen.contains(name)));
            }
        }
        formats
    }
}
