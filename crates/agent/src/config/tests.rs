//! Configurations that are taken, and those that are refused.

use super::*;

#[test]
fn plain_text_has_neither_certificate_nor_grants() {
    let certificate =
        "[certificate]\ncluster = \"kvm\"\ncertificate = \"/a\"\nkey = \"/b\"\nauthorities = \"/c\"\n";
    let problem = |text: &str| toml::from_str::<Config>(text).unwrap().problem().unwrap_or_default();
    assert_eq!(problem(&format!("security = \"tls\"\n{certificate}")), "");
    assert_eq!(problem("security = \"tls\"\n"), "");
    assert_eq!(problem(certificate), "");
    assert!(problem(&format!("security = \"insecure\"\n{certificate}")).contains("does not use"));
    for grants in ["[peers.grants]\nfolders = [\"/srv\"]\n", "[peers.hosts.one.grants]\n"] {
        assert!(
            problem(&format!("security = \"insecure\"\n{grants}")).contains("prove who they are"),
            "{grants}"
        );
        assert_eq!(problem(grants), "");
        assert_eq!(problem(&format!("security = \"tls\"\n{certificate}{grants}")), "");
    }
    assert_eq!(problem("[peers.hosts.one]\nrole = \"viewer\"\n"), "");
}

#[test]
fn users_of_this_host_have_no_role_of_hosts() {
    let problem = |text: &str| toml::from_str::<Config>(text).unwrap().problem().unwrap_or_default();
    assert_eq!(problem("[local.groups]\nkvm = \"operator\"\n"), "");
    assert!(problem("[local.users]\nalice = \"member\"\n").contains("alice"));
    assert!(toml::from_str::<Config>("[local]\nroles = 1\n").is_err());
}

#[test]
fn hosts_join_at_the_same_addresses_and_another_port() {
    let config = read("listen = [\"10.0.0.1:7979\", \"10.0.0.1:7990\", \"[fd00::1]:7979\"]").unwrap();
    let addresses: Vec<String> = config.join_addresses().iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["10.0.0.1:7980", "[fd00::1]:7980"]);
    assert_eq!(config.identity_folder(), Path::new("/var/lib/linerate/identity"));
    assert_eq!(config.authority_folder(), Path::new("/var/lib/linerate/authority"));
    let config = read("join_listen = [\"10.0.0.2:80\"]\nstate_dir = \"/s\"\nidentity_dir = \"/i\"").unwrap();
    assert_eq!(config.join_addresses(), ["10.0.0.2:80".parse().unwrap()]);
    assert_eq!((config.identity_folder(), config.authority_folder()), ("/i".into(), "/s/authority".into()));
    let both =
        read("listen = [\"10.0.0.1:7979\"]\njoin_listen = [\"10.0.0.1:7979\"]").unwrap_err().to_string();
    assert!(both.contains("join at another port"), "{both}");
    assert!(read("join_listen = [\"0.0.0.0:7980\"]").is_err());
}

fn read(text: &str) -> Result<Config, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.toml");
    std::fs::write(&path, text).unwrap();
    Config::read(&path)
}

#[test]
fn an_empty_file_gives_the_defaults() {
    let config = read("").unwrap();
    assert_eq!(config.socket, Path::new("/run/linerate/agent.sock"));
    assert!(config.listen.is_empty());
}

#[test]
fn the_default_folders_of_guests_hold_nothing_of_the_agents() {
    let config = read("").unwrap();
    let own = config.own_folders();
    let files = ["/var/lib/linerate/authority/authority-key.pem", "/var/lib/linerate/journal.redb"];
    for file in files.into_iter().chain(["/run/linerate/agent.sock", "/dev/shm/linerate/g+ram.ram"]) {
        assert!(own.check([Path::new(file)]).is_err(), "{file}");
        assert!(!config.file_roots.iter().any(|root| Path::new(file).starts_with(root)), "{file}");
    }
    for root in &config.file_roots {
        own.check([root.join("disk.img").as_path()]).unwrap();
    }
}

#[test]
fn keys_and_passwords_elsewhere_are_the_agents_own_too() {
    let config = read(
        "huge_ram_dir = \"/huge\"\nidentity_dir = \"/i\"\nauthority_dir = \"/a\"\n[certificate]\ncluster = \"kvm\"\n\
         certificate = \"/c\"\nkey = \"/k\"\nauthorities = \"/t\"\n",
    )
    .unwrap();
    for file in ["/huge/g.ram", "/i/host.pem", "/a/authority-key.pem", "/a-next/authority-key.pem", "/k"] {
        assert!(config.own_folders().check([Path::new(file)]).is_err(), "{file}");
    }
}

#[test]
fn an_unknown_key_is_named_once_with_its_line() {
    let error = read("name = \"a\"\nlistne = []\n").unwrap_err();
    // As the command line shows it.
    let error = format!("{:#}", anyhow::Error::from(error));
    assert!(error.contains("\n2 | listne = []\n  | ^^^^^^\n"), "{error}");
    assert_eq!(error.matches("line 2").count(), 1, "{error}");
}

#[test]
fn addresses_are_found_by_themselves_only_with_tls() {
    let named = ["192.0.2.1:7979".parse().unwrap()];
    let config = read("listen = [\"192.0.2.1:7979\"]\nlisten_auto = true").unwrap();
    assert!(config.listen.starts_with(&named), "{:?}", config.listen);
    assert!(config.listen.iter().all(|address| !address.ip().is_loopback()), "{:?}", config.listen);
    let error = read("listen_auto = true\nsecurity = \"insecure\"").unwrap_err().to_string();
    assert!(error.contains("name the addresses in `listen`"), "{error}");
}

#[test]
fn the_time_for_rdma_is_bounded() {
    assert_eq!(read("rdma_connect_s = 10").unwrap().rdma_connect_s, 10);
    for wrong in ["1", "11"] {
        let error = read(&format!("rdma_connect_s = {wrong}")).unwrap_err().to_string();
        assert!(error.contains("must be 2 to 10"), "{error}");
    }
}

#[test]
fn memory_for_what_hosts_send_is_bounded_and_one_host_has_a_part_of_it() {
    let config = read("held_state_mib = 256\nheld_state_of_host_mib = 64").unwrap();
    assert_eq!((config.held_state_mib, config.held_state_of_host_mib), (256, 64));
    for wrong in ["held_state_mib = 639", "held_state_of_host_mib = 63", "held_state_mib = 1048577"] {
        let error = read(wrong).unwrap_err().to_string();
        assert!(error.contains("held_state_of_host_mib must be"), "{wrong}: {error}");
    }
}

#[test]
fn addresses_that_answer_everywhere_are_refused() {
    for address in ["0.0.0.0:7979", "[::]:7979", "10.0.0.1:0"] {
        assert!(read(&format!("listen = [\"{address}\"]")).is_err(), "{address}");
    }
}

#[test]
fn paths_lead_from_file_to_file_or_from_folder_to_folder() {
    assert_eq!(read("paths = { '/a/' = '/b/', '/c' = '/d' }").unwrap().paths.len(), 2);
    for wrong in ["'/a/' = '/b'", "'/a' = '/b/'", "'a' = '/b'", "'/a' = 'b'"] {
        let error = read(&format!("paths = {{ {wrong} }}")).unwrap_err().to_string();
        assert!(error.contains("two absolute paths"), "{error}");
    }
}

#[test]
fn tunnels_do_not_lead_to_the_monitors_of_domains() {
    for target in ["unix:/run/linerate-domains/", "unix:/run/linerate-domains/web.sock"] {
        let error = read(&format!("tunnel_targets = [\"{target}\"]")).unwrap_err().to_string();
        assert!(error.contains("domain_sockets"), "{error}");
    }
    read("tunnel_targets = [\"unix:/run/linerate-domains2/\"]").unwrap();
}

#[test]
fn relative_paths_are_refused() {
    for key in ["state_dir", "huge_ram_dir"] {
        let error = read(&format!("{key} = \"there\"")).unwrap_err().to_string();
        assert!(error.contains("not absolute"), "{key}: {error}");
    }
}
