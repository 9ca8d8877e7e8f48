//! Certificates that a peer shows in the handshake, from any bytes: nobody is let in, since the fuzzer cannot sign for
//! the authority. The first byte says at how many places the rest is cut into certificates.

#![no_main]

use std::sync::LazyLock;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use linerate_trust::authority::{Authority, Grounds};
use linerate_trust::bundle::Bundle;
use linerate_trust::identity::Identity;
use linerate_trust::name::Name;
use linerate_trust::peer::Side;
use linerate_trust::request::{NewKey, Request};
use linerate_trust::succession::{with_successor, without_retired};
use rustls::pki_types::{CertificateDer, UnixTime};

const NOW: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(1_700_000_000));

/// A host of a cluster that is made anew for each run; its folder is removed at once.
static HOST: LazyLock<Identity> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("linerate-fuzz-certificate-{}", std::process::id()));
    let mut authority =
        Authority::create(&folder.join("authority"), &"lab".parse().expect("a name"), NOW).expect("an authority");
    let name = Name { cluster: authority.cluster().clone(), host: "one".parse().expect("a name") };
    let key = NewKey::make(name).expect("a key");
    let request = Request::read(&key.request().expect("a request")).expect("a request");
    let certificate = authority.issue(&request, &Grounds::Own, NOW).expect("a certificate");
    let bundle = Bundle::new(vec![authority.certificate().clone()]).expect("a bundle");
    let host = Identity::install(&folder.join("one"), &key, &certificate, &bundle, authority.id(), NOW);
    std::fs::remove_dir_all(&folder).expect("the folder goes");
    host.expect("an identity")
});

fuzz_target!(|input: &[u8]| {
    let Some((cuts, rest)) = input.split_first() else { return };
    let piece = rest.len() / (usize::from(cuts % 4) + 1) + 1;
    let chain: Vec<CertificateDer<'_>> = rest.chunks(piece).map(CertificateDer::from).collect();
    for side in [Side::Client, Side::Server] {
        assert!(HOST.verify(&chain, side, None, NOW).is_err(), "only the authority signs certificates");
    }
    // The same bytes as what an authority states of another.
    let bundle = HOST.bundle();
    if let [statement, next, ..] = chain.as_slice() {
        assert!(!matches!(with_successor(&bundle, statement, next.clone().into_owned(), NOW), Ok(Some(_))));
        assert!(!matches!(without_retired(&bundle, statement, NOW), Ok(Some(_))));
    }
});
