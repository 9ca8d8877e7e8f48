//! From one authority to the next: what one authority states of another, so that hosts need not believe who tells them.
//!
//! A statement is a certificate that one authority signs for the other's public key, with a name that no host and no
//! server has. It may be used for nothing in TLS: it states no use.
//!
//! | statement | signed by | for the key of | what a host does that trusts the signer |
//! |---|---|---|---|
//! | [`Statement::Successor`] | the authority that leaves | the one that comes | trusts both |
//! | [`Statement::Retired`] | the authority that came | the one that leaves | trusts the signer alone |

use rcgen::{CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType, SubjectPublicKeyInfo};
use rustls::pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::bundle::{Bundle, BundleError, TrustedAuthority};
use crate::certificate::{AuthorityId, CertificateError, Facts};
use crate::name::{ClusterName, statement_uri};
use crate::request::common_name;

/// What an authority says of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statement {
    /// Hosts are to trust it, too.
    Successor,
    /// Hosts are not to trust it any more.
    Retired,
}

impl Statement {
    fn uri(self, cluster: &ClusterName) -> String {
        match self {
            Statement::Successor => statement_uri(cluster, "successor"),
            Statement::Retired => statement_uri(cluster, "retired"),
        }
    }
}

/// Why a statement was not followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuccessionError {
    /// Not a certificate.
    #[error("the statement about the cluster's authority: {0}")]
    Certificate(#[from] CertificateError),
    /// What it is about is no authority, or there would be too many.
    #[error("the cluster's next authority: {0}")]
    Bundle(#[from] BundleError),
    /// Signed by none of those that this host trusts.
    #[error("no authority that this host trusts has signed the statement about authority {0}")]
    Signature(AuthorityId),
    /// For another key, of another kind, or for another cluster.
    #[error("the statement is about another authority, or says something else")]
    Other,
    /// Its time is over, or has not begun.
    #[error("the statement about the cluster's authority is not valid now; compare the clocks of the hosts")]
    Time,
    /// The authority that is to go is the only one, or is not known.
    #[error("authority {0} is not one of two that this host trusts")]
    NotOneOfTwo(AuthorityId),
}

/// Signs a statement about the authority with this certificate.
pub(crate) fn sign(
    statement: Statement,
    cluster: &ClusterName,
    about: &CertificateDer<'_>,
    mut params: CertificateParams,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<CertificateDer<'static>, rcgen::Error> {
    let (_, parsed) =
        X509Certificate::from_der(about).map_err(|error| rcgen::Error::X509(error.to_string()))?;
    let key = SubjectPublicKeyInfo::from_der(parsed.public_key().raw)?;
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::ContentCommitment];
    params.distinguished_name = common_name("authority");
    params.subject_alt_names = vec![SanType::URI(statement.uri(cluster).try_into()?)];
    Ok(params.signed_by(&key, issuer)?.der().clone())
}

/// Who of the bundle signed the statement about this authority.
fn signer<'a>(
    bundle: &'a Bundle,
    statement: Statement,
    der: &CertificateDer<'_>,
    about: &TrustedAuthority,
    now: UnixTime,
) -> Result<&'a TrustedAuthority, SuccessionError> {
    let facts = Facts::of(der)?;
    let (_, parsed) = X509Certificate::from_der(der).map_err(|_| CertificateError::Encoding)?;
    let signed_by = |one: &&TrustedAuthority| {
        let Ok((_, signer)) = X509Certificate::from_der(&one.certificate) else { return false };
        parsed.issuer().as_raw() == signer.subject().as_raw()
            && parsed.verify_signature(Some(signer.public_key())).is_ok()
    };
    // An authority says nothing about itself.
    let others = bundle.authorities().iter().filter(|one| one.id() != about.id());
    let signer = others.into_iter().find(signed_by).ok_or(SuccessionError::Signature(about.id()))?;
    let says = signer.cluster.as_ref().is_some_and(|cluster| facts.uris == [statement.uri(cluster)]);
    if facts.key != about.id() || facts.is_authority || !says || signer.cluster != about.cluster {
        return Err(SuccessionError::Other);
    }
    let validity = parsed.validity();
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if now < validity.not_before.timestamp() || now > validity.not_after.timestamp() {
        return Err(SuccessionError::Time);
    }
    Ok(signer)
}

/// The bundle with the authority that comes; `None` if it is trusted already.
pub fn with_successor(
    bundle: &Bundle,
    statement: &CertificateDer<'_>,
    next: CertificateDer<'static>,
    now: UnixTime,
) -> Result<Option<Bundle>, SuccessionError> {
    let comes = TrustedAuthority::new(next.clone())?;
    if bundle.authorities().iter().any(|one| one.id() == comes.id()) {
        return Ok(None);
    }
    signer(bundle, Statement::Successor, statement, &comes, now)?;
    let all = bundle.authorities().iter().map(|one| one.certificate().clone());
    Ok(Some(Bundle::new(all.chain([next]).collect())?))
}

/// The authority that a statement is about. Nothing is verified.
pub fn about(statement: &CertificateDer<'_>) -> Result<AuthorityId, SuccessionError> {
    Ok(Facts::of(statement)?.key)
}

/// The bundle without the authority that the statement retires; `None` if it is not trusted any more.
pub fn without_retired(
    bundle: &Bundle,
    statement: &CertificateDer<'_>,
    now: UnixTime,
) -> Result<Option<Bundle>, SuccessionError> {
    let id = about(statement)?;
    let Some(leaves) = bundle.authorities().iter().find(|one| one.id() == id) else { return Ok(None) };
    let stays = bundle.authorities().iter().find(|one| one.id() != id);
    let stays = stays.ok_or(SuccessionError::NotOneOfTwo(id))?;
    signer(bundle, Statement::Retired, statement, leaves, now)?;
    Ok(Some(Bundle::new(vec![stays.certificate().clone()])?))
}
