//! What the command line is read as.

use std::collections::BTreeSet;

use clap::CommandFactory;

use super::*;

fn parse(line: &str) -> Result<Flags, clap::Error> {
    Flags::try_parse_from(line.split_whitespace())
}

#[test]
fn clap_finds_nothing_wrong_with_the_definitions() {
    Flags::command().debug_assert();
}

/// Long names of all options of a command and those below it.
fn options(command: &clap::Command, found: &mut BTreeSet<String>) {
    found.extend(command.get_opts().filter_map(|one| Some(format!("--{}", one.get_long()?))));
    command.get_subcommands().for_each(|below| options(below, found));
}

#[test]
fn every_option_is_on_a_page_of_the_documents() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let pages = files.filter(|file| file.extension().is_some_and(|ending| ending == "md"));
    let text: String = pages.map(|page| std::fs::read_to_string(page).unwrap()).collect();
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    let words: BTreeSet<&str> = text.split(|letter: char| !is_word(letter)).collect();
    let mut all = BTreeSet::new();
    options(&Flags::command(), &mut all);
    assert!(all.len() > 60, "{all:?}");
    let missing: Vec<&String> = all.iter().filter(|option| !words.contains(option.as_str())).collect();
    assert!(missing.is_empty(), "no page names {missing:?}");
}

#[test]
fn a_migration_with_everything() {
    let flags = parse(
        "linerate migrate web --to beta:7979 --max-blackout 50ms --bandwidth 2.5Gbit --links 10.0.1.0/24,fd00::/64 \
         --link-timeout 1min --verify --throttle --max-rounds 7 --mode stream --transport rdma --no-rdma-checksums --json --socket /tmp/a.sock",
    )
    .unwrap();
    assert!(flags.json);
    assert_eq!(flags.socket, Some("/tmp/a.sock".into()));
    let Command::Migrate(migrate) = flags.command else { panic!("{:?}", flags.command) };
    let request = migrate.request();
    assert_eq!((request.guest.as_str(), request.to.as_str()), ("web", "beta:7979"));
    assert_eq!((request.max_blackout_ms, request.bandwidth_bytes_per_s), (Some(50), Some(312_500_000)));
    assert_eq!(request.links, ["10.0.1.0/24", "fd00::/64"]);
    assert_eq!((request.link_timeout_s, request.max_rounds), (60, Some(7)));
    assert!(request.verify && request.throttle);
    assert_eq!(request.mode, ModeChoice::Stream);
    assert_eq!((request.transport, request.rdma_checksums), (Transport::Rdma, false));
}

#[test]
fn a_share_is_for_disks_that_go_along() {
    let share = |words: &str| {
        let command = parse(&format!("linerate migrate web --to beta {words}")).ok()?.command;
        let Command::Migrate(migrate) = command else { return None };
        Some(migrate.request().storage_share_percent)
    };
    assert_eq!(share("--copy-storage all --storage-share 20"), Some(Some(20)));
    assert_eq!(share("--copy-storage all"), Some(None));
    assert_eq!(share("--copy-disks vda --storage-share 20"), Some(Some(20)));
    for refused in [
        "--storage-share 20",
        "--copy-storage all --storage-share 0",
        "--copy-storage all --storage-share 100",
    ] {
        assert_eq!(share(refused), None, "{refused}");
    }
}

#[test]
fn disks_are_copied_by_name_and_asserted_as_shared_by_name() {
    let request = |words: &str| {
        let command = parse(&format!("linerate migrate web --to beta {words}")).ok()?.command;
        let Command::Migrate(migrate) = command else { return None };
        Some(migrate.request())
    };
    let one = request("--copy-disks vda,vdb --shared-storage cd0 --shared-storage vdc").unwrap();
    assert_eq!((one.copy_storage, one.copy_disks), (false, vec!["vda".to_owned(), "vdb".to_owned()]));
    assert_eq!(one.shared_storage, ["cd0", "vdc"]);
    // As virsh does: only those.
    let both = request("--copy-storage all --copy-disks vda").unwrap();
    assert_eq!((both.copy_storage, both.copy_disks), (false, vec!["vda".to_owned()]));
    assert!(request("--copy-storage all").unwrap().copy_storage);
    assert!(request("--copy-disks vda,").is_none() && request("--shared-storage=").is_none());
}

#[test]
fn a_migration_with_nothing_is_the_default_request() {
    let Command::Migrate(migrate) = parse("linerate migrate web --to beta").unwrap().command else {
        panic!()
    };
    assert_eq!(migrate.request(), MigrateRequest::new("web", "beta"));
}

#[test]
fn a_tunnel_with_two_pairs() {
    let line = "linerate tunnel --to beta unix:/a=b.sock=unix:/c tcp:127.0.0.1:1=unix:/d";
    let Command::Tunnel(flags) = parse(line).unwrap().command else { panic!() };
    let pairs: Vec<_> =
        flags.request().pairs.iter().map(|pair| format!("{} {}", pair.listen, pair.connect)).collect();
    assert_eq!(pairs, ["unix:/a=b.sock unix:/c", "tcp:127.0.0.1:1 unix:/d"]);
}

#[test]
fn what_makes_no_sense_is_a_usage_error_with_a_reason() {
    for (line, words) in [
        ("linerate migrate web", "--to"),
        ("linerate migrate web --to beta --bandwidth 1000", "a unit is missing"),
        ("linerate migrate web --to beta --links eth0", "ADDRESS/PREFIX"),
        ("linerate migrate web --to beta --transport smoke", "auto, tcp or rdma"),
        ("linerate migrate web --to beta --detach --quiet", "cannot be used with"),
        // Exit code 0 of one says that the guest can move, of the other that something has begun.
        ("linerate migrate web --to beta --dry-run --detach", "cannot be used with"),
        ("linerate tunnel --to beta", "LISTEN=CONNECT"),
        ("linerate tunnel --to beta unix:/a", "LISTEN=CONNECT"),
        ("linerate tunnel --to beta unix:/a=tcp:10.0.0.1:1", "only loopback"),
        ("linerate vm adopt --name x", "--pid"),
        ("linerate resolve 3f9a", "--resume-here"),
        ("linerate resolve 3f9a --resume-here --give-up", "cannot be used with"),
    ] {
        let error = parse(line).unwrap_err();
        assert_eq!(error.exit_code(), crate::exit::Exit::Usage as i32, "{line}");
        assert!(error.to_string().contains(words), "{line}: {error}");
    }
}

/// A variable of a script that was never set.
#[test]
fn an_empty_name_stands_for_nothing() {
    for words in [
        &["migration", "show"][..],
        &["migration", "attach"],
        &["migration", "cancel"],
        &["drain", "abort"],
        &["drain", "status"],
        &["vm", "show"],
        &["vm", "stop"],
        &["resolve", "--give-up"],
        &["audit", "--session"],
        &["audit", "--guest"],
        &["audit", "--by"],
    ] {
        let line = [&["linerate"][..], words, &[""]].concat();
        let error = Flags::try_parse_from(line.clone()).unwrap_err();
        assert_eq!(error.exit_code(), crate::exit::Exit::Usage as i32, "{line:?}");
        assert!(error.to_string().contains("a value is required"), "{line:?}: {error}");
    }
}

/// The agent's hint names this option.
#[test]
fn a_guest_that_runs_nowhere_else_is_started_by_its_operators_word() {
    for (line, expected) in [("", false), (" --runs-nowhere-else", true)] {
        let flags = parse(&format!("linerate vm start web.toml{line}")).unwrap();
        let Command::Vm(VmCommand::Start { runs_nowhere_else, .. }) = flags.command else { panic!() };
        assert_eq!(runs_nowhere_else, expected);
    }
}

#[test]
fn the_socket_in_the_help_is_the_one_that_is_used() {
    assert!(Flags::command().render_help().to_string().contains(linerate_api::DEFAULT_SOCKET));
    let mut command = Flags::command();
    // With the flags of every command.
    command.build();
    let migrate = command.find_subcommand_mut("migrate").unwrap();
    let help = migrate.render_long_help().to_string();
    assert!(help.contains(linerate_api::LibvirtRequest::DEFAULT_REMOTE_SOCKET), "{help}");
}
