//! Each fault of an intent has its sentence.

use super::*;

/// What the healthy survey of the tests has.
pub(crate) const HEALTHY: &str = r#"
    ports = ["ens1f0", "ens1f1"]
    roce = "v2"
    [migration]
    priority = 3
    share = 50
    lossless = true
    dscp = 26
"#;

/// The same, classified by its protocol or by the VLAN tag.
pub(crate) const UNMARKED: &str = r#"
    ports = ["ens1f0", "ens1f1"]
    roce = "v2"
    [migration]
    priority = 3
    share = 50
    lossless = true
"#;

/// Everything that an intent can say.
pub(crate) const FULL: &str = r#"
    ports = ["ens1f0", "ens1f1"]
    switch_ports = ["Ethernet1/1", "Ethernet1/2"]
    windows_adapters = ["SLOT 2 Port 1", "SLOT 2 Port 2"]
    roce = "v2"
    [migration]
    priority = 3
    share = 50
    lossless = true
    dscp = 26
    [storage]
    priority = 4
    share = 30
    dscp = 34
    [other]
    share = 20
"#;

fn sentence(text: &str) -> String {
    parse(text).expect_err(text).to_string()
}

#[test]
fn a_full_intent() {
    let intent = parse(FULL).unwrap();
    assert_eq!(intent.migration.dscp, Some(26));
    assert_eq!(intent.storage.as_ref().map(|class| class.share_percent), Some(30));
    assert_eq!((intent.other_percent, intent.lossless()), (20, vec![3]));
    assert_eq!(parse(HEALTHY).unwrap().other_percent, 50);
}

/// One fault each, in the full intent.
#[test]
fn each_fault_has_its_sentence() {
    for (from, to, words) in [
        ("share = 30", "share = 60", "110 percent together"),
        ("share = 30", "share = 50", "100 percent together"),
        ("share = 20", "share = 30", "[other] has 30 percent, but migration and storage leave 20"),
        ("share = 50", "share = 0", "share 0 of [migration]: a share is 1 to 99"),
        ("share = 50", "share = 100", "share 100 of [migration]"),
        ("priority = 3", "priority = 9", "priority 9 of [migration]: priorities are 1 to 7"),
        ("priority = 3", "priority = 0", "0 is that of everything else"),
        ("priority = 3", "priority = 260", "priority 260 of [migration]"),
        ("priority = 4", "priority = 3", "both have priority 3"),
        ("dscp = 34", "dscp = 26", "both have dscp 26"),
        ("dscp = 34", "dscp = 64", "dscp 64 of [storage]"),
        ("dscp = 34", "", "nothing distinguishes packets of [storage] from others"),
        ("dscp = 34", "dscp = 34\nlossless = true", "both lossless"),
        ("roce = \"v2\"", "roce = \"v1\"", "RoCE v1 has no IP header"),
        ("roce = \"v2\"", "roce = \"v3\"", "v3"),
        ("roce = \"v2\"", "rocce = \"v2\"", "unknown field `rocce`"),
        ("dscp = 26", "dcsp = 26", "unknown field `dcsp`"),
        ("roce = \"v2\"", "roce = \"v2\"\nlossless_classes = 3", "it is 1 or 2"),
        ("ports = [\"ens1f0\", \"ens1f1\"]", "ports = []", "`ports` is empty"),
        ("\"ens1f1\"", "\"ens1f0\"", "`ports` has ens1f0 twice"),
        ("\"Ethernet1/2\"", "\"Ethernet1/2\\nno shutdown\"", "is no name of a port"),
        ("\"SLOT 2 Port 1\"", "\"SLOT'; Remove-Item\"", "is no name of a port"),
        ("\"ens1f1\"", "\" ens1f1\"", "is no name of a port"),
        ("\"Ethernet1/2\"", "\"Ethernet1/2 # x\"", "is no name of a port"),
    ] {
        assert!(FULL.contains(from), "{from}");
        let message = sentence(&FULL.replacen(from, to, 1));
        assert!(message.contains(words), "{from} → {to}: {message}");
    }
}

#[test]
fn without_roce_a_class_needs_a_mark() {
    assert!(
        sentence(&UNMARKED.replace("v2", "none")).contains("nothing distinguishes packets of [migration]")
    );
    assert!(parse(&UNMARKED.replace("v2", "v1")).is_ok());
}

#[test]
fn two_lossless_classes_need_the_setting() {
    let two = FULL.replace("dscp = 34", "dscp = 34\nlossless = true");
    let intent = parse(&two.replace("roce", "lossless_classes = 2\nroce")).unwrap();
    assert_eq!(intent.lossless(), [3, 4]);
}

#[test]
fn the_example_of_the_page_is_an_intent() {
    let page = include_str!("../../../../../docs/qos.md");
    let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let full = parse(FULL).unwrap();
    assert_eq!(parse(example).unwrap(), full);
}

#[test]
fn an_error_has_its_line_and_a_large_file_is_refused() {
    assert!(sentence("ports = [\n\"a\"\n").contains("line"));
    assert!(matches!(parse(&" ".repeat(INTENT_BYTES_MAX + 1)), Err(IntentError::TooLarge)));
}
