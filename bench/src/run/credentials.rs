//! What QEMU needs for TLS on its own migration: an authority and a certificate, as files with the names that QEMU
//! looks for.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// The name that the source checks the destination's certificate for.
pub const NAME: &str = "linerate-bench";

/// Writes them into a new folder and returns it. Both hosts have the same certificate. The key is ECDSA P-256, as that
/// of Linerate's hosts is.
pub fn write(parent: &Path) -> anyhow::Result<PathBuf> {
    let folder = parent.join("qemu-tls");
    std::fs::create_dir_all(&folder)?;
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "authority of linerate-bench");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority = params.self_signed(&key)?;
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new([NAME.to_owned()])?;
    params.distinguished_name.push(DnType::CommonName, NAME);
    params.is_ca = IsCa::ExplicitNoCa;
    // QEMU refuses one that may not encipher keys, though TLS 1.3 has no use for it.
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&key, &issuer)?;
    std::fs::write(folder.join("ca-cert.pem"), authority.pem())?;
    for role in ["server", "client"] {
        std::fs::write(folder.join(format!("{role}-cert.pem")), certificate.pem())?;
        std::fs::write(folder.join(format!("{role}-key.pem")), key.serialize_pem())?;
    }
    Ok(folder)
}
