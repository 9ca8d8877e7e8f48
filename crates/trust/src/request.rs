//! Certificate requests (PKCS #10, RFC 2986): the new host makes its key and proves with the request that it has it.

use std::fmt;

use rcgen::{
    CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType,
    SubjectPublicKeyInfo,
};
use x509_parser::prelude::{FromDer, X509CertificationRequest};

use crate::certificate::requested_uris;
use crate::name::{Name, NameError};

/// Largest request that is read, in bytes. Those of [`NewKey::request`] have about 300.
pub const REQUEST_BYTES_MAX: usize = 8 << 10;

/// Bytes of an uncompressed point of P-256.
const POINT_BYTES: usize = 65;

/// Why a request was not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Its bytes, more than [`REQUEST_BYTES_MAX`].
    #[error("the certificate request has {0} bytes; at most {REQUEST_BYTES_MAX} are read")]
    Large(usize),
    /// Not the DER encoding of a request, or bytes follow it.
    #[error("the certificate request is damaged")]
    Encoding,
    /// The key in it did not sign it.
    #[error("the certificate request is not signed with its own key")]
    Possession,
    /// Another kind of key.
    #[error("the certificate request has another key than ECDSA P-256")]
    Key,
    /// No URI, or several.
    #[error("the certificate request must ask for one name, and asks for {0}")]
    Names(usize),
    /// Not the name of a host.
    #[error("the name in the certificate request: {0}")]
    Name(#[from] NameError),
}

/// A request whose maker has proven to hold the key. What else it asks for is not kept.
#[derive(Debug)]
pub struct Request {
    key: SubjectPublicKeyInfo,
    name: Name,
}

impl Request {
    /// Reads and verifies a request in DER.
    pub fn read(der: &[u8]) -> Result<Request, RequestError> {
        if der.len() > REQUEST_BYTES_MAX {
            return Err(RequestError::Large(der.len()));
        }
        let (rest, parsed) = X509CertificationRequest::from_der(der).map_err(|_| RequestError::Encoding)?;
        if !rest.is_empty() {
            return Err(RequestError::Encoding);
        }
        let info = &parsed.certification_request_info;
        let key = SubjectPublicKeyInfo::from_der(info.subject_pki.raw).map_err(|_| RequestError::Key)?;
        if key.algorithm() != &PKCS_ECDSA_P256_SHA256 || key.der_bytes().len() != POINT_BYTES {
            return Err(RequestError::Key);
        }
        parsed.verify_signature().map_err(|_| RequestError::Possession)?;
        let uris = parsed.requested_extensions().map(requested_uris).unwrap_or_default();
        let [uri] = uris.as_slice() else { return Err(RequestError::Names(uris.len())) };
        Ok(Request { key, name: uri.parse()? })
    }

    /// The name that it asks for.
    pub fn name(&self) -> &Name {
        &self.name
    }

    pub(crate) fn key(&self) -> &SubjectPublicKeyInfo {
        &self.key
    }
}

/// A private key that was made on this host and has no certificate yet. No display shows it.
pub struct NewKey {
    key: KeyPair,
    name: Name,
}

impl NewKey {
    /// Makes an ECDSA key on the curve P-256 for a host of this name.
    pub fn make(name: Name) -> Result<NewKey, rcgen::Error> {
        Ok(NewKey { key: KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?, name })
    }

    /// The request in DER.
    pub fn request(&self) -> Result<Vec<u8>, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(self.name.host.as_str());
        params.subject_alt_names = vec![SanType::URI(self.name.to_string().try_into()?)];
        Ok(params.serialize_request(&self.key)?.der().to_vec())
    }

    /// The name that the request asks for.
    pub fn name(&self) -> &Name {
        &self.name
    }

    pub(crate) fn spki(&self) -> Vec<u8> {
        self.key.subject_public_key_info()
    }

    pub(crate) fn to_pem(&self) -> String {
        self.key.serialize_pem()
    }
}

impl fmt::Debug for NewKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewKey {{ name: {}, key: hidden }}", self.name)
    }
}

pub(crate) fn common_name(text: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, text);
    name
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rcgen::{BasicConstraints, IsCa, KeyUsagePurpose, PKCS_ECDSA_P384_SHA384, PKCS_ED25519};

    use super::*;

    fn uri(text: &str) -> SanType {
        SanType::URI(text.to_owned().try_into().unwrap())
    }

    fn request(names: Vec<SanType>, key: &KeyPair) -> Result<Request, RequestError> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        Request::read(params.serialize_request(key).unwrap().der())
    }

    #[test]
    fn a_request_is_read_as_it_was_made() {
        let name: Name = "spiffe://lab/host/one".parse().unwrap();
        let der = NewKey::make(name.clone()).unwrap().request().unwrap();
        assert_eq!(Request::read(&der).unwrap().name(), &name);
    }

    #[test]
    fn a_key_that_the_maker_does_not_hold_is_refused() {
        let mut der = NewKey::make("spiffe://lab/host/one".parse().unwrap()).unwrap().request().unwrap();
        // In the name: the request is well formed, and its signature is another's.
        let position = der.windows(8).position(|window| window == b"host/one").unwrap();
        der[position + 5] = b'x';
        assert_eq!(Request::read(&der).unwrap_err(), RequestError::Possession);
    }

    #[test]
    fn other_keys_are_refused() {
        for algorithm in [&PKCS_ECDSA_P384_SHA384, &PKCS_ED25519] {
            let key = KeyPair::generate_for(algorithm).unwrap();
            assert_eq!(request(vec![uri("spiffe://lab/host/one")], &key).unwrap_err(), RequestError::Key);
        }
    }

    #[test]
    fn a_request_asks_for_one_host() {
        let key = KeyPair::generate().unwrap();
        assert_eq!(request(vec![], &key).unwrap_err(), RequestError::Names(0));
        let two = vec![uri("spiffe://lab/host/one"), uri("spiffe://lab/host/two")];
        assert_eq!(request(two, &key).unwrap_err(), RequestError::Names(2));
        let authority = request(vec![uri("spiffe://lab/authority")], &key).unwrap_err();
        assert_eq!(authority, RequestError::Name(NameError::Path));
    }

    #[test]
    fn a_request_that_is_cut_or_long_is_refused() {
        let der = NewKey::make("spiffe://lab/host/one".parse().unwrap()).unwrap().request().unwrap();
        for length in 0..der.len() {
            assert_eq!(Request::read(&der[..length]).unwrap_err(), RequestError::Encoding, "{length}");
        }
        let longer = [der.as_slice(), b"x"].concat();
        assert_eq!(Request::read(&longer).unwrap_err(), RequestError::Encoding);
        assert!(matches!(Request::read(&vec![0x30; REQUEST_BYTES_MAX + 1]), Err(RequestError::Large(_))));
    }

    #[test]
    fn no_display_shows_the_key() {
        let key = NewKey::make("spiffe://lab/host/one".parse().unwrap()).unwrap();
        let shown = format!("{key:?} {key:#?}");
        assert!(shown.len() < 200 && !shown.contains("PRIVATE"), "{shown}");
    }

    #[test]
    fn what_else_a_request_asks_for_does_no_harm() {
        let mut params = CertificateParams::default();
        params.subject_alt_names =
            vec![uri("spiffe://lab/host/one"), SanType::DnsName("two".try_into().unwrap())];
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let der = params.serialize_request(&KeyPair::generate().unwrap()).unwrap();
        assert_eq!(Request::read(der.der()).unwrap().name().host.as_str(), "one");
    }
}
