//! The settings of addresses, certificates and connection limits.
//!
//! Guarantees: a certificate and its key come from one layer.
//! Refuses: invalid addresses, and a certificate without its key.

use std::path::Path;

use super::layer::{Layer, TlsLayer};
use super::{ConfigError, Listed};
use crate::listen::{ClientAuth, ConnectionLimits, Listen, ListenAddressError, TlsFiles};

pub(super) fn connections(layers: &[(String, Layer)]) -> ConnectionLimits {
    let defaults = ConnectionLimits::default();
    let first = |of: fn(&Layer) -> Option<usize>| layers.iter().find_map(|(_, layer)| of(layer));
    // The limit is at least one, because a daemon without connections is useless.
    let total = first(|layer| layer.max_connections).map_or(defaults.total, |count| count.max(1));
    let per_peer = first(|layer| layer.max_connections_per_peer).map_or(defaults.per_peer, |count| count.max(1));
    ConnectionLimits { total, per_peer: per_peer.min(total) }
}

/// The files, each from the first layer that names it. A certificate and its key come from the same layer.
pub(super) fn tls(layers: &[(String, Layer)]) -> Result<Option<TlsFiles>, ConfigError> {
    let found = || layers.iter().filter_map(|(origin, layer)| Some((origin, layer.tls.as_ref()?)));
    let invalid = |setting, origin: &String, reason: &str| ConfigError::Invalid {
        setting,
        origin: origin.clone(),
        reason: reason.to_owned(),
    };
    let client_ca = found().find_map(|(origin, tls)| Some((origin, tls.client_ca.clone()?)));
    let client_auth = match found().find_map(|(origin, tls)| Some((origin, tls.client_auth.as_deref()?))) {
        None | Some((_, "required")) => ClientAuth::Required,
        Some((_, "optional")) => ClientAuth::Optional,
        Some((origin, other)) => {
            return Err(invalid(
                "client_auth in [tls]",
                origin,
                &format!("{other:?} is neither required nor optional"),
            ));
        }
    };
    match (found().find(|(_, tls)| tls.cert.is_some() || tls.key.is_some()), client_ca) {
        (Some((_, TlsLayer { cert: Some(cert), key: Some(key), .. })), client_ca) => {
            let client_ca = client_ca.map(|(_, path)| path);
            Ok(Some(TlsFiles { cert: cert.clone(), key: key.clone(), client_ca, client_auth }))
        }
        (Some((origin, _)), _) => Err(invalid("cert and key in [tls]", origin, "one needs the other: name both files")),
        (None, Some((origin, _))) => Err(invalid(
            "client_ca in [tls]",
            origin,
            "it needs a certificate of the daemon: name cert and key as well",
        )),
        (None, None) => Ok(None),
    }
}

/// The addresses of the first layer that names any, otherwise the private socket.
pub(super) fn listen(layers: &[(String, Layer)], socket: Option<&Path>) -> Result<Vec<Listen>, ConfigError> {
    let found = places(layers, "listen", |layer| layer.listen.as_ref())?;
    match (found.is_empty(), socket) {
        (false, _) => Ok(found),
        (true, Some(socket)) => Ok(vec![Listen::private(socket)]),
        (true, None) => Err(ConfigError::NoPlace),
    }
}

/// The addresses of the HTTP port from the first layer that sets them; the list may be empty.
pub(super) fn http_listen(layers: &[(String, Layer)]) -> Result<Vec<Listen>, ConfigError> {
    places(layers, "http listen", |layer| layer.http.as_ref()?.listen.as_ref())
}

fn places(
    layers: &[(String, Layer)],
    setting: &'static str,
    of: impl Fn(&Layer) -> Option<&Listed>,
) -> Result<Vec<Listen>, ConfigError> {
    let Some((origin, Listed(named))) = layers.iter().find_map(|(origin, layer)| Some((origin, of(layer)?))) else {
        return Ok(Vec::new());
    };
    let invalid =
        |error: ListenAddressError| ConfigError::Invalid { setting, origin: origin.clone(), reason: error.to_string() };
    named.iter().filter(|place| !place.is_empty()).map(|place| place.parse().map_err(invalid)).collect()
}
