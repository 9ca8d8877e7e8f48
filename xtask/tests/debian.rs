//! What the Debian package contains and what its files do in an empty root. Needs the built `linerate` and debhelper
//! (lab/install.sh deb). Machines in which it is installed: lab/tests/package.rs.

#![allow(clippy::unwrap_used, clippy::panic)] // Tests say what they expect.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// What a command prints; it must succeed.
fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// The package as `make deb` builds it, of the binary that was built for the tests.
struct Package {
    folder: tempfile::TempDir,
    deb: PathBuf,
}

impl Package {
    fn of(version: Option<&str>) -> Package {
        let folder = tempfile::tempdir().unwrap();
        let notices = folder.path().join("third-party.txt");
        std::fs::write(&notices, "used 1.0.0: MIT\n".repeat(400)).unwrap();
        let binary = Path::new(env!("CARGO_BIN_EXE_xtask")).with_file_name("linerate");
        assert!(binary.exists(), "{} is missing: build the workspace", binary.display());
        let mut command = Command::new(project().join("packaging/build-deb.sh"));
        command.arg("--fast").arg("--binary").arg(binary).arg("--third-party").arg(notices);
        command.arg("--out").arg(folder.path());
        command.args(version.iter().flat_map(|version| ["--version", version]));
        let deb = PathBuf::from(printed(&mut command).trim());
        Package { folder, deb }
    }

    /// Built once for all tests.
    fn common() -> &'static Package {
        static PACKAGE: OnceLock<Package> = OnceLock::new();
        PACKAGE.get_or_init(|| Package::of(None))
    }

    fn field(&self, name: &str) -> String {
        printed(Command::new("dpkg-deb").arg("-f").arg(&self.deb).arg(name)).trim().to_owned()
    }

    /// Mode and owner of every file, by path.
    fn files(&self) -> BTreeMap<String, String> {
        let list = printed(Command::new("dpkg-deb").arg("-c").arg(&self.deb));
        let row = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            (words[5].trim_start_matches('.').to_owned(), format!("{} {}", words[0], words[1]))
        };
        list.lines().map(row).collect()
    }

    /// Unpacks files and control files.
    fn unpacked(&self, name: &str) -> PathBuf {
        let root = self.folder.path().join(name);
        printed(Command::new("dpkg-deb").arg("-R").arg(&self.deb).arg(&root));
        root
    }
}

#[test]
fn the_package_has_its_files_where_debian_wants_them() {
    let package = Package::common();
    let files = package.files();
    let (program, file) = ("-rwxr-xr-x root/root", "-rw-r--r-- root/root");
    for (path, mode) in [
        ("/usr/bin/linerate", program),
        ("/etc/linerate/agent.toml", file),
        ("/lib/systemd/system/linerate-agent.service", file),
        ("/lib/systemd/system/run-linerate-ram.mount", file),
        ("/usr/lib/sysusers.d/linerate.conf", file),
        ("/usr/lib/tmpfiles.d/linerate.conf", file),
        ("/usr/share/man/man1/linerate.1.gz", file),
        ("/usr/share/man/man1/linerate-vm-start.1.gz", file),
        ("/usr/share/bash-completion/completions/linerate", file),
        ("/usr/share/zsh/vendor-completions/_linerate", file),
        ("/usr/share/fish/vendor_completions.d/linerate.fish", file),
        ("/usr/share/doc/linerate/copyright", file),
        ("/usr/share/doc/linerate/changelog.gz", file),
        ("/usr/share/doc/linerate/changelog.Debian.gz", file),
        ("/usr/share/doc/linerate/third-party.txt.gz", file),
        ("/usr/share/doc/linerate/examples/agent.toml", file),
    ] {
        assert_eq!(files.get(path).map(String::as_str), Some(mode), "{path}");
    }
    // Every page of the documents, large ones packed.
    for page in std::fs::read_dir(project().join("docs")).unwrap() {
        let name = page.unwrap().file_name().into_string().unwrap();
        let path = format!("/usr/share/doc/linerate/docs/{name}");
        let there = files.contains_key(&path) || files.contains_key(&format!("{path}.gz"));
        assert!(there || !name.ends_with(".md"), "{name}");
    }
    // Nothing that others may write, nothing with another user's rights, nothing of this machine.
    for (path, mode) in &files {
        let (bits, owner) = mode.split_once(' ').unwrap();
        assert!(owner == "root/root" && !bits.contains(['s', 't']), "{path}: {mode}");
        assert!(bits.as_bytes()[8] != b'w' && bits.as_bytes()[5] != b'w', "{path}: {mode}");
        assert!(!path.starts_with("/usr/local") && !path.starts_with("/run"), "{path}");
    }
}

#[test]
fn the_package_names_what_it_needs_and_its_version() {
    let package = Package::common();
    // Computed from the program's libraries.
    let needed = package.field("Depends");
    assert!(needed.contains("libc6 (>= ") && needed.contains("systemd"), "{needed}");
    assert!(!needed.contains("libibverbs"), "RDMA is optional: {needed}");
    assert!(package.field("Recommends").contains("qemu-system-x86"), "{}", package.field("Recommends"));
    let version = format!("{}-1", env!("CARGO_PKG_VERSION"));
    assert_eq!(package.field("Version"), version);
    let name = format!("linerate_{version}_amd64.deb");
    assert_eq!(package.deb.file_name().unwrap().to_str(), Some(name.as_str()));
}

#[test]
fn maintainer_scripts_are_sound_and_an_upgrade_stops_nothing() {
    let package = Package::common();
    let control = package.unpacked("scripts").join("DEBIAN");
    for name in ["postinst", "prerm", "postrm"] {
        let script = control.join(name);
        printed(Command::new("sh").arg("-n").arg(&script));
        assert!(std::fs::read_to_string(&script).unwrap().starts_with("#!/bin/sh\n"), "{name}");
    }
    assert_eq!(std::fs::read_to_string(control.join("conffiles")).unwrap(), "/etc/linerate/agent.toml\n");
    // prerm gets `upgrade` then, and may stop nothing: the new agent takes over from the old one in postinst.
    let prerm = std::fs::read_to_string(control.join("prerm")).unwrap();
    let stops = prerm.lines().filter(|line| line.contains("deb-systemd-invoke stop")).count();
    let on_removal = prerm.matches("\"$1\" = remove ]").count();
    assert_eq!((stops, on_removal), (2, 2), "{prerm}");
    let postinst = std::fs::read_to_string(control.join("postinst")).unwrap();
    let restarts: Vec<&str> =
        postinst.lines().filter(|line| line.contains("deb-systemd-invoke $_dh_action")).collect();
    assert_eq!(restarts.len(), 1, "{restarts:?}");
    assert!(restarts[0].contains("linerate-agent.service"), "{restarts:?}");
}

/// The agent's unit has each of these lines in this section.
fn unit_has(section: &str, lines: &[&str]) {
    let unit = std::fs::read_to_string(project().join("packaging/linerate-agent.service")).unwrap();
    let start = format!("[{section}]");
    let found: Vec<&str> = unit.lines().skip_while(|line| *line != start).skip(1).collect();
    let found: Vec<&str> = found.into_iter().take_while(|line| !line.starts_with('[')).collect();
    for line in lines {
        assert!(found.contains(line), "{start} {line}");
    }
}

#[test]
fn qemu_outlives_an_agent_that_is_stopped() {
    let lines = ["KillMode=process", "RuntimeDirectoryPreserve=yes", "ExecStart=/usr/bin/linerate agent"];
    unit_has("Service", &lines);
}

/// By default systemd starts a unit five times in ten seconds, and then never again.
#[test]
fn systemd_starts_the_agent_again_however_often_its_start_fails() {
    unit_has("Unit", &["StartLimitIntervalSec=0"]);
    unit_has("Service", &["Restart=always", "RestartSec=1"]);
}

/// Guests are processes of the unit. By default systemd stops a unit of which the kernel killed a process for memory.
#[test]
fn a_guest_that_is_killed_for_want_of_memory_does_not_end_the_agent() {
    unit_has("Service", &["OOMPolicy=continue"]);
}

/// What postinst has systemd make, in an empty root.
#[test]
fn user_and_folders_are_made_with_their_owners_and_modes() {
    let root = tempfile::tempdir().unwrap();
    let package = Package::common().unpacked("empty-root");
    std::fs::create_dir(root.path().join("etc")).unwrap();
    let at = |tool: &str| {
        let mut command = Command::new(tool);
        command.arg(format!("--root={}", root.path().display()));
        command
    };
    printed(at("systemd-sysusers").arg(package.join("usr/lib/sysusers.d/linerate.conf")));
    let users = std::fs::read_to_string(root.path().join("etc/passwd")).unwrap();
    let user = users.lines().find(|line| line.starts_with("linerate-qemu:")).unwrap();
    let fields: Vec<&str> = user.split(':').collect();
    assert!((1..1000).contains(&fields[2].parse().unwrap()), "{user}");
    assert_eq!((fields[5], fields[6]), ("/nonexistent", "/usr/sbin/nologin"), "{user}");
    let groups = std::fs::read_to_string(root.path().join("etc/group")).unwrap();
    assert!(
        groups.lines().any(|line| line.starts_with("kvm:") && line.ends_with(":linerate-qemu")),
        "{groups}"
    );

    let tmpfiles = package.join("usr/lib/tmpfiles.d/linerate.conf");
    let make = || printed(at("systemd-tmpfiles").arg("--create").arg(&tmpfiles));
    make();
    let mode = |path: &str| {
        let found = std::fs::metadata(root.path().join(path)).unwrap();
        assert_eq!((found.uid(), found.gid()), (0, 0), "{path}");
        found.mode() & 0o7777
    };
    assert_eq!(["etc/linerate", "var/lib/linerate", "run/linerate"].map(mode), [0o755, 0o700, 0o711]);
    // The agent opens the folder for local users if it is told to: an upgrade leaves that.
    let run = root.path().join("run/linerate");
    std::fs::set_permissions(run, std::os::unix::fs::PermissionsExt::from_mode(0o750)).unwrap();
    make();
    assert_eq!(mode("run/linerate"), 0o750);
}

/// `postrm purge` in a folder: the paths in the script are changed to lead there.
#[test]
fn purging_takes_the_agents_state_and_leaves_disks_and_what_runs() {
    let control = Package::common().unpacked("purge").join("DEBIAN/postrm");
    let script = std::fs::read_to_string(control).unwrap();
    let purge = |guest_pid: u32| {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        for folder in [
            "var/lib/linerate/identity",
            "var/lib/linerate/authority",
            "var/lib/linerate/authority-next",
            "var/lib/linerate/authority-retired-0123456789abcdef",
            "var/lib/linerate/withdraw",
            "var/lib/linerate/access",
            "run/linerate/guests/web",
            "etc/linerate",
        ] {
            std::fs::create_dir_all(path(folder)).unwrap();
        }
        for file in [
            "journal.redb",
            "fleet.redb",
            "audit.jsonl",
            "audit.jsonl.1",
            "audit-refused.jsonl",
            "audit-hosts.jsonl",
            "audit-commands.jsonl",
            "audit-commands.jsonl.lock",
            "identity/host.pem",
            "authority-retired-0123456789abcdef/authority-key.pem",
            "disk.img",
        ] {
            std::fs::write(path("var/lib/linerate").join(file), "x").unwrap();
        }
        std::fs::write(
            path("run/linerate/guests/web/record.json"),
            format!("{{\n  \"pid\": {guest_pid},\n}}\n"),
        )
        .unwrap();
        let prefix = root.path().display();
        let mut changed = script.clone();
        for folder in ["/var/lib/linerate", "/run/linerate", "/etc/linerate"] {
            changed = changed.replace(folder, &format!("{prefix}{folder}"));
        }
        // Units are not this test's: systemd's own helpers would act on the machine.
        let own = changed.split("# Automatically added").next().unwrap();
        printed(Command::new("sh").args(["-c", own, "postrm", "purge"]));
        let left = std::fs::read_dir(path("var/lib/linerate")).unwrap();
        let mut left: Vec<String> =
            left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        (left, path("etc/linerate").exists())
    };
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    assert_eq!(purge(ended.id()), (vec!["disk.img".to_owned()], false));
    let (left, _) = purge(std::process::id());
    assert_eq!(left.len(), 15, "a guest runs: {left:?}");
}

/// Symbols, notices and man pages depend on the program alone, and times on the last commit.
#[test]
fn two_builds_of_one_state_are_alike() {
    let (one, two) = (Package::of(Some("9.9-1")), Package::of(Some("9.9-1")));
    assert_eq!(one.field("Version"), "9.9-1");
    assert!(std::fs::read(&one.deb).unwrap() == std::fs::read(&two.deb).unwrap(), "they differ");
}
