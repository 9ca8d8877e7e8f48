//! Domains as they shall be at the destination, in files: looked at before anything of the migration begins.

use std::path::{Path, PathBuf};

use super::virsh::Virsh;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::MigrateFlags;

/// Files that were named, by virsh's own options for them.
#[derive(Clone, Debug, Default)]
pub struct Changes(Vec<(&'static str, PathBuf)>);

impl Changes {
    /// Those of a command. Each must be a file that can be read, as virsh reads it again later.
    pub fn named(flags: &MigrateFlags) -> Result<Changes, Failure> {
        let given = [("--xml", &flags.xml), ("--persistent-xml", &flags.persistent_xml)];
        let files: Vec<_> =
            given.into_iter().filter_map(|(option, path)| Some((option, path.clone()?))).collect();
        files.iter().try_for_each(|(option, path)| readable(option, path))?;
        Ok(Changes(files))
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

    /// Asks the libvirt that shall run it whether each is a domain: it makes QEMU's command line of it, and starts nothing.
    pub async fn parse_at(&self, destination: &Virsh) -> Result<(), Failure> {
        for (option, path) in &self.0 {
            let file = path.display().to_string();
            let asked = destination.run(&["domxml-to-native", "qemu-argv", "--xml", &file]).await;
            asked.map_err(|refused| {
                let text = format!(
                    "the destination's libvirt does not take {file} ({option}) for a domain: {}",
                    refused.message()
                );
                Failure::new(refused.exit, text, "begin with `virsh dumpxml --migratable` of the domain, and change only what is different there")
            })?;
        }
        Ok(())
    }
}

fn readable(option: &str, path: &Path) -> Result<(), Failure> {
    let failed = |why: String| {
        let text = format!("{} ({option}) cannot be read: {why}", path.display());
        Err(Failure::new(Exit::Usage, text, "name a file with a domain's XML"))
    };
    match std::fs::File::open(path).and_then(|file| file.metadata()) {
        Ok(metadata) if metadata.is_file() => Ok(()),
        Ok(_) => failed("it is not a file".into()),
        Err(error) => failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::libvirt::testing::flags;

    #[test]
    fn files_are_named_to_virsh_by_its_own_options() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        let changes = Changes::named(&flags(&["--xml", path])).unwrap();
        assert!(changes.only_live() && !changes.persistent());
        assert_eq!(changes.arguments().collect::<Vec<_>>(), ["--xml", path]);
        let changes = Changes::named(&flags(&["--persistent-xml", path, "--xml", path])).unwrap();
        assert!(!changes.only_live() && changes.persistent());
        assert_eq!(changes.arguments().collect::<Vec<_>>(), ["--xml", path, "--persistent-xml", path]);
        assert!(!Changes::default().only_live());
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path(), &folder.path().join("missing")] {
            let refused = Changes::named(&flags(&["--persistent-xml", path.to_str().unwrap()])).unwrap_err();
            assert_eq!(refused.exit, Exit::Usage);
            assert!(refused.message().contains("--persistent-xml"), "{}", refused.message());
        }
    }
}
