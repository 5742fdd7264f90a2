//! Reads a client's certificate: common name, alternative names, fingerprint and end of validity.
//!
//! Guarantees: reading is bounded by the certificate's bytes and never panics. Unreadable parts are left out. A test
//! compares the results with x509-parser, which would add twenty dependencies to every build. The certificate is not
//! verified here, because TLS has already verified it.

use super::ClientCertificate;

/// DER tags that a certificate's names need.
const BOOLEAN: u8 = 0x01;
const OCTET_STRING: u8 = 0x04;
const OID: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const IA5_STRING: u8 = 0x16;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
/// Tags of alternative names that are text: email addresses, DNS names, URIs.
const TEXT_NAMES: [u8; 3] = [0x81, 0x82, 0x86];

/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// 2.5.29.19
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
/// 2.5.29.17
const ALTERNATIVE_NAMES: &[u8] = &[0x55, 0x1d, 0x11];

/// Reads a certificate in DER.
pub(super) fn read(der: &[u8]) -> ClientCertificate {
    let CertificateFacts { subject, names, not_after_s, .. } = said(der).unwrap_or_default();
    ClientCertificate { subject, names, fingerprint: sha256(der), not_after_s }
}

/// Whether it is the own certificate of an authority, which TLS clients refuse as a server's certificate.
pub(super) fn is_authority(der: &[u8]) -> bool {
    said(der).is_some_and(|said| said.is_authority)
}

/// The first second of its validity, since the Unix epoch.
pub(super) fn not_before_s(der: &[u8]) -> Option<u64> {
    said(der)?.not_before_s
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    let mut fingerprint = [0; 32];
    fingerprint.copy_from_slice(digest.as_ref());
    fingerprint
}

/// The tag and bytes of the next value, and the bytes after it.
fn next(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    // Certificates never have tags of several bytes.
    let (&tag, rest) = bytes.split_first().filter(|(tag, _)| *tag & 0x1f != 0x1f)?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // The length has up to four bytes. DER has no indefinite lengths.
        0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (length.iter().fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (value, rest) = rest.split_at_checked(length)?;
    Some((tag, value, rest))
}

/// The value with this tag, and the bytes after it.
fn expect(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    next(bytes).filter(|(found, _, _)| *found == tag).map(|(_, value, rest)| (value, rest))
}

/// The values in sequence; `None` if the bytes are not a sequence of values.
fn each(mut bytes: &[u8]) -> Option<Vec<(u8, &[u8])>> {
    let mut values = Vec::new();
    while !bytes.is_empty() {
        let (tag, value, rest) = next(bytes)?;
        values.push((tag, value));
        bytes = rest;
    }
    Some(values)
}

#[derive(Default)]
struct CertificateFacts {
    subject: String,
    names: Vec<String>,
    not_before_s: Option<u64>,
    not_after_s: Option<u64>,
    is_authority: bool,
}

fn said(der: &[u8]) -> Option<CertificateFacts> {
    let (certificate, _) = expect(der, SEQUENCE)?;
    let (mut rest, _) = expect(certificate, SEQUENCE)?;
    if let Some((_, after)) = expect(rest, VERSION) {
        rest = after;
    }
    // These are the serial number, the algorithm and the issuer.
    for _ in 0..3 {
        (_, _, rest) = next(rest)?;
    }
    let (validity, rest) = expect(rest, SEQUENCE)?;
    let times = each(validity)?;
    let at = |place: usize| times.get(place).and_then(|(tag, time)| seconds(*tag, time));
    let (not_before_s, not_after_s) = (at(0), at(1));
    let (subject, rest) = expect(rest, SEQUENCE)?;
    let extensions =
        each(rest)?.into_iter().find(|(tag, _)| *tag == EXTENSIONS).and_then(|(_, value)| expect(value, SEQUENCE));
    let extensions = extensions.map(|(list, _)| list).unwrap_or_default();
    let constraints = extension(extensions, BASIC_CONSTRAINTS).and_then(|constraints| expect(constraints, BOOLEAN));
    let is_authority = constraints.is_some_and(|(value, _)| value == [0xff]);
    let (subject, names) = (common_name(subject).unwrap_or_default(), alternatives(extensions));
    Some(CertificateFacts { subject, names, not_before_s, not_after_s, is_authority })
}

/// `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`, in seconds since the Unix epoch.
fn seconds(tag: u8, time: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(time).ok()?.strip_suffix('Z')?;
    let (year, rest) = match (tag, digits.len()) {
        (UTC_TIME, 12) => (digits.get(..2)?.parse::<i64>().ok()?, &digits[2..]),
        (GENERALIZED_TIME, 14) => (digits.get(..4)?.parse::<i64>().ok()?, &digits[4..]),
        _ => return None,
    };
    // A year of two digits is between 1950 and 2049.
    let year = match tag {
        UTC_TIME if year < 50 => 2000 + year,
        UTC_TIME => 1900 + year,
        _ => year,
    };
    let two = |at: usize| rest.get(at..at + 2)?.parse::<i64>().ok();
    let (month, day, hour, minute, second) = (two(0)?, two(2)?, two(4)?, two(6)?, two(8)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years are counted from March, so that the leap day is the last day of a year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let since_year_0 = days + (153 * month + 2) / 5 + day - 1;
    let seconds = (since_year_0 - 719_468) * 86_400 + hour * 3_600 + minute * 60 + second;
    // A time before 1970 becomes 0, which has long expired.
    Some(u64::try_from(seconds).unwrap_or(0))
}

/// The first common name; `None` if the bytes before it do not have the form of a subject.
fn common_name(subject: &[u8]) -> Option<String> {
    for (tag, set) in each(subject)? {
        for (inner, part) in each(set)? {
            let (kind, rest) = expect(part, OID).filter(|_| (tag, inner) == (SET, SEQUENCE))?;
            let (tag, value, []) = next(rest)? else { return None };
            if kind == COMMON_NAME && matches!(tag, UTF8_STRING | PRINTABLE_STRING | IA5_STRING) {
                return text(value);
            }
        }
    }
    None
}

/// The value of an extension.
fn extension<'c>(extensions: &'c [u8], wanted: &[u8]) -> Option<&'c [u8]> {
    each(extensions)?.into_iter().find_map(|(_, extension)| {
        let (kind, mut rest) = expect(extension, OID)?;
        if kind != wanted {
            return None;
        }
        if let Some((_, after)) = expect(rest, BOOLEAN) {
            rest = after;
        }
        Some(expect(expect(rest, OCTET_STRING)?.0, SEQUENCE)?.0)
    })
}

fn alternatives(extensions: &[u8]) -> Vec<String> {
    let names = extension(extensions, ALTERNATIVE_NAMES).and_then(each).unwrap_or_default();
    names.into_iter().filter(|(tag, _)| TEXT_NAMES.contains(tag)).filter_map(|(_, name)| text(name)).collect()
}

fn text(bytes: &[u8]) -> Option<String> {
    std::str::from_utf8(bytes).ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(alternatives: &[&str], common_name: Option<&str>) -> Vec<u8> {
        let names: Vec<String> = alternatives.iter().map(|name| (*name).to_owned()).collect();
        let mut params = rcgen::CertificateParams::new(names).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "somebody");
        if let Some(name) = common_name {
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
        }
        params.subject_alt_names.push(rcgen::SanType::URI("spiffe://cluster/trainer".try_into().unwrap()));
        params.subject_alt_names.push(rcgen::SanType::Rfc822Name("ops@example.org".try_into().unwrap()));
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn names_are_read() {
        let der = made(&["trainer-1.example.org"], Some("Trainer é"));
        let found = read(&der);
        assert_eq!(found.subject, "Trainer é");
        assert_eq!(found.names, ["trainer-1.example.org", "spiffe://cluster/trainer", "ops@example.org"]);
        assert_eq!(found.fingerprint, sha256(&der));
        assert_eq!(sha256(b"abc")[..4], [0xba, 0x78, 0x16, 0xbf]);
        assert_eq!(read(&made(&[], None)).subject, "");
        let mut params = rcgen::CertificateParams::new(vec!["a.example.org".into()]).unwrap();
        assert!(!is_authority(params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der()));
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        assert!(is_authority(params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der()));
    }

    #[test]
    fn the_last_second_is_read() {
        // date -u -d "2049-12-31 23:59:59" +%s, and so on
        for (tag, text, seconds_since) in [
            (UTC_TIME, "700101000000Z", Some(0)),
            (UTC_TIME, "491231235959Z", Some(2_524_607_999)),
            (UTC_TIME, "500101000000Z", Some(0)),
            (GENERALIZED_TIME, "20500101000000Z", Some(2_524_608_000)),
            (GENERALIZED_TIME, "20240229120000Z", Some(1_709_208_000)),
            (GENERALIZED_TIME, "20240301000000Z", Some(1_709_251_200)),
            (GENERALIZED_TIME, "99991231235959Z", Some(253_402_300_799)),
            (GENERALIZED_TIME, "491231235959Z", None),
            (UTC_TIME, "49123123595Z", None),
            (UTC_TIME, "491331235959Z", None),
            (UTC_TIME, "\u{e4}1231235959Z", None),
            (UTF8_STRING, "491231235959Z", None),
        ] {
            assert_eq!(seconds(tag, text.as_bytes()), seconds_since, "{text}");
        }
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.not_after = rcgen::date_time_ymd(2031, 3, 4);
        let made = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        assert_eq!(read(made.der()).not_after_s, Some(1_930_348_800));
    }

    #[test]
    fn any_bytes_are_survived() {
        let der = made(&["a.example.org"], Some("a"));
        for cut in 0..der.len() {
            let _ = read(&der[..cut]);
            for value in [0, 0x30, 0x7f, 0x80, 0x84, 0xff] {
                let mut changed = der.clone();
                changed[cut] = value;
                let _ = read(&changed);
            }
        }
    }
}
