//! A command line that follows the live graph: drives that have another image than they were started with, or none
//! any more. What comes of it is only a proposal: [`DiskGraph::check_named`] and the comparison with the
//! destination's QEMU decide.

use super::{DiskGraph, Node};
use crate::argv::{Argument, split_strict};
use crate::description::ImageFormat;
use crate::options::Options;

/// Keys of a `-drive` that say which image it has, and how that is opened.
const OF_IMAGE: &[&str] = &["file", "format", "driver"];
/// Keys that a `-drive` without a medium keeps.
const OF_PLACE: &[&str] =
    &["if", "id", "index", "bus", "unit", "media", "readonly", "read-only", "werror", "rerror"];
/// Drivers that open a file or device by its name alone.
const FILES: &[&str] = &["file", "host_device"];

impl DiskGraph {
    /// The command line with the images that the drives have now, and which those are; none if it says so already.
    pub fn follow(&self, arguments: &[String]) -> Option<(Vec<String>, Vec<String>)> {
        let given = split_strict(arguments).ok()?;
        let mut followed = Vec::new();
        let mut all = Vec::new();
        for argument in given {
            let other = self.other_image(&argument);
            followed.extend(other.iter().map(|(_, words)| words.clone()));
            let Argument { name, value } = other.map_or(argument, |(argument, _)| argument);
            all.push(format!("-{name}"));
            all.extend(value);
        }
        (!followed.is_empty()).then_some((all, followed))
    }

    /// The option with another image, if its drive has one.
    fn other_image(&self, argument: &Argument) -> Option<(Argument, String)> {
        let value = argument.value.as_deref()?;
        let (mut options, id) = match argument.name.as_str() {
            "drive" => {
                let options = Options::parse(value, None).ok()?;
                let id = options.get("id")?.to_owned();
                (options, id)
            }
            "cdrom" => {
                (Options::from_pairs(&[("index", "2"), ("media", "cdrom"), ("file", value)]), self.only_cd()?)
            }
            _ => return None,
        };
        let drive = self.drives.iter().find(|drive| drive.name == id)?;
        let given =
            options.get("file").or_else(|| options.get("file.filename")).unwrap_or_default().to_owned();
        let words = match drive.node.and_then(|place| self.node(place)) {
            None if given.is_empty() => return None,
            None => {
                options.retain(|key| OF_PLACE.contains(&key));
                format!("{id} has no medium any more (was {given})")
            }
            Some(top) if self.opener(top).path == given => return None,
            Some(top) => {
                let (path, format) = self.plain_image(top)?;
                options.retain(|key| !OF_IMAGE.contains(&key) && !key.starts_with("file."));
                options.set("file", path);
                options.set("format", format.name());
                format!("{id} has {path} ({}) now", format.name())
            }
        };
        Some((Argument { name: "drive".into(), value: Some(options.to_string()) }, words))
    }

    /// The CD drive that `-cdrom` made: boards call theirs differently.
    fn only_cd(&self) -> Option<String> {
        let mut found = self.drives.iter().map(|drive| &drive.name).filter(|name| name.ends_with("-cd0"));
        let first = found.next()?.clone();
        found.next().is_none().then_some(first)
    }

    /// File and format of an image that a name and a format describe whole.
    fn plain_image(&self, top: &Node) -> Option<(&str, ImageFormat)> {
        let format = ImageFormat::from_name(&top.driver)?;
        let file = self.below(top, "file")?;
        let whole = top.offset.is_none() && top.limit.is_none() && !top.encrypted;
        let plain =
            FILES.contains(&file.driver.as_str()) && file.children.is_empty() && file.path.starts_with('/');
        (whole && plain).then_some((file.path.as_str(), format))
    }
}
