//! A certificate request from any bytes. By the first byte the rest is the whole request, or the names in one that is
//! signed properly: no input would guess a signature, and so none would come to the names.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use linerate_trust::request::{REQUEST_BYTES_MAX, Request};
use rcgen::{CertificateParams, CustomExtension, KeyPair};

static KEY: LazyLock<KeyPair> = LazyLock::new(|| KeyPair::generate().expect("a key"));

/// subjectAltName (RFC 5280 section 4.2.1.6).
const NAMES: &[u64] = &[2, 5, 29, 17];

fuzz_target!(|input: &[u8]| {
    let Some((kind, input)) = input.split_first() else { return };
    if kind & 1 == 0 {
        return check(input);
    }
    let mut params = CertificateParams::default();
    params.custom_extensions = vec![CustomExtension::from_oid_content(NAMES, input.to_vec())];
    check(params.serialize_request(&*KEY).expect("it is only wrapped").der());
});

fn check(der: &[u8]) {
    if let Ok(request) = Request::read(der) {
        assert!(der.len() <= REQUEST_BYTES_MAX);
        assert_eq!(request.name().to_string().parse().as_ref(), Ok(request.name()));
    }
}
