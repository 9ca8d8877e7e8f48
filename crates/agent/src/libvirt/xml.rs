//! Domains as they shall be at the destination: checked before anything of the migration begins. virsh reads them from
//! files.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use linerate_api::{ErrorBody, LibvirtRequest};

use super::virsh::Virsh;

/// The folder of these files, in the agent's own.
const FOLDER: &str = "libvirt";

/// Files by virsh's own options for them; removed when dropped.
#[derive(Debug, Default)]
pub struct Changes(Vec<(&'static str, PathBuf)>);

impl Drop for Changes {
    fn drop(&mut self) {
        for (_, path) in &self.0 {
            if let Err(error) = fs::remove_file(path) {
                tracing::debug!(%error, path = %path.display(), "it is removed at the next start");
            }
        }
    }
}

/// Removes the files that an earlier agent process has left.
pub fn clear(state: &Path) {
    match fs::remove_dir_all(state.join(FOLDER)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, "files of earlier migrations of domains are left")
        }
        _ => {}
    }
}

impl Changes {
    /// Writes what a request has, under names that nothing else has: `id` is of one migration alone.
    pub fn write(request: &LibvirtRequest, state: &Path, id: &str) -> io::Result<Changes> {
        let mut changes = Changes::default();
        for (option, xml) in [("--xml", &request.xml), ("--persistent-xml", &request.persistent_xml)] {
            let Some(xml) = xml else { continue };
            let folder = state.join(FOLDER);
            DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
            let path = folder.join(format!("{id}{option}"));
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            changes.0.push((option, path));
            file.write_all(xml.as_bytes())?;
        }
        Ok(changes)
    }

    /// As arguments of `virsh migrate`.
    pub fn arguments(&self) -> impl Iterator<Item = String> {
        self.0.iter().flat_map(|(option, path)| [(*option).to_owned(), path.display().to_string()])
    }

    /// Whether the running domain is changed and the definition that stays is not.
    pub fn only_live(&self) -> bool {
        matches!(self.0.as_slice(), [("--xml", _)])
    }

    /// Whether there is a change of a definition.
    pub fn persistent(&self) -> bool {
        self.0.iter().any(|(option, _)| *option == "--persistent-xml")
    }

    /// Asks the libvirt that shall run it whether each is a domain: it makes QEMU's command line of it, and starts
    /// nothing.
    pub async fn parse_at(&self, destination: &Virsh) -> Result<(), ErrorBody> {
        for (option, path) in &self.0 {
            let file = path.display().to_string();
            let asked = destination.run(&["domxml-to-native", "qemu-argv", "--xml", &file]).await;
            asked.map_err(|refused| {
                let text = format!(
                    "the destination's libvirt does not take the file of {option} for a domain: {}",
                    refused.message
                );
                ErrorBody::new(refused.code, text).with_hint(
                    "begin with `virsh dumpxml --migratable` of the domain, and change only what is different there",
                )
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn files_are_named_to_virsh_by_its_own_options_and_go_with_the_migration() {
        let state = tempfile::tempdir().unwrap();
        let write = |xml: Option<&str>, persistent_xml: Option<&str>, id: &str| {
            let (xml, persistent_xml) = (xml.map(str::to_owned), persistent_xml.map(str::to_owned));
            let request = LibvirtRequest { xml, persistent_xml, ..LibvirtRequest::default() };
            Changes::write(&request, state.path(), id).unwrap()
        };
        let live = write(Some("<domain/>"), None, "a");
        assert!(live.only_live() && !live.persistent());
        let arguments: Vec<String> = live.arguments().collect();
        assert_eq!(arguments.first().map(String::as_str), Some("--xml"));
        assert_eq!(fs::read_to_string(&arguments[1]).unwrap(), "<domain/>");
        assert_eq!(fs::metadata(&arguments[1]).unwrap().permissions().mode() & 0o777, 0o600);

        let both = write(Some("1"), Some("2"), "b");
        assert!(!both.only_live() && both.persistent());
        assert_eq!(both.arguments().count(), 4);
        assert_eq!(write(None, None, "c").arguments().count(), 0);
        drop((live, both));
        assert_eq!(fs::read_dir(state.path().join(FOLDER)).unwrap().count(), 0);

        std::mem::forget(write(Some("1"), None, "d"));
        clear(state.path());
        assert!(!state.path().join(FOLDER).exists());
    }
}
