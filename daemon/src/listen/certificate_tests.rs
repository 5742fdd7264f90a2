//! Compares the reader of certificates, whose names decide roles, with x509-parser, on generated certificates and on
//! mutations of them. If x509-parser reads a part, memctl reads it with the same result or leaves it out.

use std::sync::LazyLock;

use proptest::prelude::*;
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, DnValue, IsCa, KeyPair, SanType};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use super::certificate::{is_authority, read};

/// The result of a reader.
#[derive(Debug, PartialEq)]
struct CertificateReading {
    subject: String,
    names: Vec<String>,
    not_after_s: Option<u64>,
    is_authority: bool,
}

fn ours(der: &[u8]) -> CertificateReading {
    let found = read(der);
    let super::ClientCertificate { subject, names, not_after_s, fingerprint: _ } = found;
    CertificateReading { subject, names, not_after_s, is_authority: is_authority(der) }
}

/// The result of x509-parser; `None` if it refuses the certificate.
fn theirs(der: &[u8]) -> Option<CertificateReading> {
    let (_, read) = X509Certificate::from_der(der).ok()?;
    let alternatives = read.subject_alternative_name().ok()?;
    let names = alternatives.iter().flat_map(|it| &it.value.general_names).filter_map(|name| match name {
        GeneralName::DNSName(text) | GeneralName::RFC822Name(text) | GeneralName::URI(text) => Some((*text).to_owned()),
        _ => None,
    });
    let subject = read.subject().iter_common_name().find_map(|name| name.as_str().ok());
    Some(CertificateReading {
        subject: subject.unwrap_or_default().to_owned(),
        names: names.collect(),
        not_after_s: Some(u64::try_from(read.validity().not_after.timestamp()).unwrap_or(0)),
        is_authority: read.basic_constraints().ok()?.is_some_and(|it| it.value.ca),
    })
}

fn key() -> &'static KeyPair {
    static KEY: LazyLock<KeyPair> = LazyLock::new(|| KeyPair::generate().unwrap());
    &KEY
}

prop_compose! {
    /// A certificate in DER.
    fn certificate()(
        hosts in proptest::collection::vec("[a-z]{1,8}(\\.[a-z]{1,8}){0,2}", 0..3),
        uri in proptest::option::of("spiffe://[a-z]{1,9}/[a-z/]{0,9}"),
        mail in proptest::option::of("[a-z]{1,9}@[a-z]{1,9}"),
        common_name in proptest::option::of("\\PC{1,12}"),
        printable in proptest::option::of("[A-Za-z ]{1,12}"),
        (is_authority, year) in (any::<bool>(), 1_950..2_400_i32),
    ) -> Vec<u8> {
        let mut params = CertificateParams::new(hosts).unwrap();
        params.subject_alt_names.extend(uri.map(|it| SanType::URI(it.try_into().unwrap())));
        params.subject_alt_names.extend(mail.map(|it| SanType::Rfc822Name(it.try_into().unwrap())));
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "organisation");
        if let Some(text) = printable {
            params.distinguished_name.push(DnType::CommonName, DnValue::PrintableString(text.try_into().unwrap()));
        } else if let Some(text) = common_name {
            params.distinguished_name.push(DnType::CommonName, text);
        }
        if is_authority {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        params.not_after = rcgen::date_time_ymd(year, 2, 28);
        params.self_signed(key()).unwrap().der().to_vec()
    }
}

/// Changes of single bytes: a position as a share of the length, and the new byte.
fn mutations() -> impl Strategy<Value = Vec<(f64, u8)>> {
    let byte =
        prop_oneof![any::<u8>(), proptest::sample::select(vec![0_u8, 1, 4, 6, 12, 0x16, 0x30, 0x31, 0x80, 0xa3])];
    proptest::collection::vec((0.0..1.0_f64, byte), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn made_certificates_are_read_as_x509_parser_reads_them(der in certificate()) {
        prop_assert_eq!(Some(ours(&der)), theirs(&der));
    }

    #[test]
    fn changed_ones_are_read_alike_or_not_at_all(der in certificate(), changes in proptest::collection::vec(mutations(), 32)) {
        for changes in changes {
            let mut changed = der.clone();
            for (place, byte) in changes {
                changed[(place * der.len() as f64) as usize] = byte;
            }
            let (ours, Some(theirs)) = (ours(&changed), theirs(&changed)) else { continue };
            // memctl leaves out a part that it does not read.
            let is_same = (ours.subject.is_empty() || ours.subject == theirs.subject)
                && ours.names.iter().all(|name| theirs.names.contains(name))
                && (ours.not_after_s.is_none() || ours.not_after_s == theirs.not_after_s)
                && (!ours.is_authority || theirs.is_authority);
            prop_assert!(is_same, "{ours:?}\n{theirs:?}\n{changed:?}");
        }
    }
}
