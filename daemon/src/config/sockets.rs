//! Decides who may connect to the configured addresses: `socket_mode`, and missing TLS.
//!
//! Refuses: modes without a meaning for a socket, and any mode for the private socket.

use super::{Config, ConfigError, Layer, checked};
use crate::listen::{Listen, SocketAccess};

/// The addresses with the mode of the first layer that sets one.
pub(super) fn opened(layers: &[(String, Layer)], mut places: Vec<Listen>) -> Result<Vec<Listen>, ConfigError> {
    let Some(wanted) = checked(layers, "socket_mode", |layer| layer.socket_mode.as_deref(), access)? else {
        return Ok(places);
    };
    let mut own = false;
    for place in &mut places {
        if let Listen::Unix { own_folder, access, .. } = place {
            own |= *own_folder;
            *access = wanted;
        }
    }
    if own && wanted != SocketAccess::Owner {
        let origin = layers.iter().find(|(_, layer)| layer.socket_mode.is_some()).map(|(origin, _)| origin.clone());
        let reason = "the socket of your own is for you alone: name another with --listen unix:/path".into();
        return Err(ConfigError::Invalid { setting: "socket_mode", origin: origin.unwrap_or_default(), reason });
    }
    Ok(places)
}

fn access(text: &str) -> Result<SocketAccess, String> {
    let found = SocketAccess::ALL.into_iter().find(|access| {
        let digits = text.strip_prefix("0o").or(text.strip_prefix('0')).unwrap_or(text);
        digits == format!("{:o}", access.mode())
    });
    found.ok_or_else(|| {
        format!("{text:?} is not one of 0600 (you), 0660 (your group) and 0666 (every user of this machine)")
    })
}

impl Config {
    /// Sockets that other users may connect to. Each has a sentence about who these users are and what grants them
    /// rights.
    #[must_use]
    pub fn opened(&self) -> Vec<(&Listen, String)> {
        let decides = match self.access.names_users() {
            true => "what they may do is set by [access.uids] or their token; all others are refused",
            false => "[access.uids] is empty, so callers without a token are refused",
        };
        let who = |place: &Listen| match place {
            Listen::Unix { access: SocketAccess::Group, .. } => Some("the members of the socket's group"),
            Listen::Unix { access: SocketAccess::AllUsers, .. } => Some("all users of this machine"),
            _ => None,
        };
        let words = |place| Some((place, format!("{} can connect; {decides}", who(place)?)));
        self.listen.iter().chain(&self.http).filter_map(words).collect()
    }

    /// Addresses that other machines can reach without TLS.
    #[must_use]
    pub fn exposed(&self) -> Vec<&Listen> {
        let is_exposed = |place: &&Listen| place.is_remote() && !place.is_encrypted(self.tls.is_some());
        self.listen.iter().chain(&self.http).filter(is_exposed).collect()
    }

    /// The first address that needs a certificate, if there is none.
    pub(super) fn without_certificate(&self) -> Option<&Listen> {
        let lacks_one = |place: &&Listen| self.tls.is_none() && place.is_encrypted(false);
        self.listen.iter().chain(&self.http).find(lacks_one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(mode: &str, place: Listen) -> Result<SocketAccess, String> {
        let layer = Layer { socket_mode: Some(mode.into()), ..Layer::default() };
        let places = opened(&[("here".to_owned(), layer)], vec![place]).map_err(|error| error.to_string())?;
        match places[0] {
            Listen::Unix { access, .. } => Ok(access),
            Listen::Tcp { .. } => Err("a port".into()),
        }
    }

    #[test]
    fn a_mode_says_who_may_connect() {
        let named = || "unix:/run/memctl.sock".parse::<Listen>().unwrap();
        for (mode, access) in [
            ("0600", SocketAccess::Owner),
            ("600", SocketAccess::Owner),
            ("0660", SocketAccess::Group),
            ("0o666", SocketAccess::AllUsers),
        ] {
            assert_eq!(of(mode, named()), Ok(access));
        }
        for wrong in ["", "0", "0777", "0640", "rw", "0x1b6", "-600"] {
            assert!(of(wrong, named()).unwrap_err().contains("0660 (your group)"), "{wrong}");
        }
        let own = || Listen::private(std::path::Path::new("/run/user/1/memctl/daemon.sock"));
        assert!(of("0666", own()).unwrap_err().contains("socket_mode (from here): the socket of your own"));
        assert_eq!(of("0600", own()), Ok(SocketAccess::Owner));
        assert!(of("0666", "127.0.0.1:1".parse().unwrap()).is_err(), "ports have no mode");
    }
}
