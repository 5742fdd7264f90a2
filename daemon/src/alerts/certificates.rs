//! The certificates of a PEM file: checked when rules are read, trusted when a receiver is notified.

use std::path::Path;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// The certificates of a PEM file.
pub fn read(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let shown = path.display();
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match found {
        Ok(found) if found.is_empty() => Err(format!("{shown} contains no PEM certificate")),
        Ok(found) => Ok(found),
        Err(error) => Err(format!("{shown} cannot be read as PEM: {error}")),
    }
}
