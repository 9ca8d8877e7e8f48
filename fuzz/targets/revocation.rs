//! A revocation list from any bytes: nothing is accepted, since the fuzzer cannot sign for the authority.

#![no_main]

use std::sync::LazyLock;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use linerate_trust::authority::Authority;
use linerate_trust::bundle::Bundle;
use linerate_trust::revocation::RevocationList;
use rustls::pki_types::UnixTime;

/// An authority that is made anew for each run; its folder is removed at once.
static BUNDLE: LazyLock<Bundle> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("linerate-fuzz-{}", std::process::id()));
    let now = UnixTime::since_unix_epoch(Duration::from_secs(1_700_000_000));
    let authority = Authority::create(&folder, &"lab".parse().expect("a name"), now).expect("an authority");
    let bundle = Bundle::new(vec![authority.certificate().clone()]).expect("a bundle");
    std::fs::remove_dir_all(&folder).expect("the folder goes");
    bundle
});

fuzz_target!(|input: &[u8]| {
    assert!(RevocationList::read(input, &BUNDLE).is_err(), "only the authority signs lists");
});
