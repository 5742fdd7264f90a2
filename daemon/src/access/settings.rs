//! The section `[access]` of the configuration: callers that need no token.
//!
//! Guarantees: every named user and certificate has a role and a tenant. An invalid name is refused before anything is
//! opened. There is no default role.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{EVERY_JOB, Role};
use crate::listen::ClientCertificate;
use crate::store::{Scope, Tenant};

/// The name for all tenants in the configuration and in tokens.
pub const EVERY_TENANT: &str = "*";

/// `[access]` as written in the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessLayer {
    /// If it is `required`, callers need a token, a certificate or a user named here, even on loopback.
    pub tokens: Option<String>,
    /// Users of this machine who connect over the Unix socket, by number.
    #[serde(default)]
    pub uids: BTreeMap<String, GrantLayer>,
    /// Client certificates.
    #[serde(default)]
    pub certificate: Vec<CertificateLayer>,
}

/// The rights of a user, as written in the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrantLayer {
    /// `agent`, `reader`, `operator` or `admin`.
    pub role: String,
    /// The tenant, `*` for all.
    pub tenant: String,
    /// Jobs that may be written to; `*` matches anything.
    pub jobs: Option<String>,
}

/// `[[access.certificate]]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertificateLayer {
    /// The common name or an alternative name; `*` matches anything.
    pub name: String,
    /// `agent`, `reader`, `operator` or `admin`.
    pub role: String,
    /// The tenant, `*` for all.
    pub tenant: String,
    /// Jobs that may be written to; `*` matches anything.
    pub jobs: Option<String>,
}

/// Checked rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The role.
    pub role: Role,
    /// The tenant.
    pub scope: Scope,
    /// Jobs that may be written to.
    pub jobs: String,
}

impl Grant {
    /// Parses the text of a configuration or token.
    ///
    /// # Errors
    /// The first invalid word.
    pub fn named(role: &str, tenant: &str, jobs: Option<&str>) -> Result<Self, String> {
        let jobs = jobs.filter(|jobs| !jobs.is_empty()).unwrap_or(EVERY_JOB).to_owned();
        Ok(Self { role: Role::named(role)?, scope: scope(tenant)?, jobs })
    }
}

/// Parses a tenant, or `*` for all of them.
///
/// # Errors
/// The name is invalid.
pub fn scope(tenant: &str) -> Result<Scope, String> {
    if tenant == EVERY_TENANT { Ok(Scope::All) } else { Tenant::named(tenant).map(Scope::One) }
}

/// The rules that turn a peer without a token into a caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Whether callers over TCP always need proof, even on loopback and before the first token exists.
    pub tokens_required: bool,
    /// Whether callers from any address need no proof as long as no token exists (`--insecure`).
    pub insecure: bool,
    uids: BTreeMap<u32, Grant>,
    certificates: Vec<(String, Grant)>,
}

impl Access {
    /// Checks `[access]` as written in the configuration.
    ///
    /// # Errors
    /// The first fault, as text.
    pub fn new(layer: &AccessLayer) -> Result<Self, String> {
        let tokens_required = match layer.tokens.as_deref() {
            None => !layer.uids.is_empty() || !layer.certificate.is_empty(),
            Some("required") => true,
            Some(other) => return Err(format!("tokens = {other:?}: it is \"required\" or left out")),
        };
        let mut uids = BTreeMap::new();
        for (uid, GrantLayer { role, tenant, jobs }) in &layer.uids {
            let number = uid.parse().map_err(|_| format!("uids: {uid:?} is not a user's number"))?;
            let grant = Grant::named(role, tenant, jobs.as_deref()).map_err(|why| format!("uids.{uid}: {why}"))?;
            uids.insert(number, grant);
        }
        let mut certificates = Vec::new();
        for CertificateLayer { name, role, tenant, jobs } in &layer.certificate {
            if name.is_empty() {
                return Err("certificate: a name is needed, the common name or an alternative name".into());
            }
            let grant =
                Grant::named(role, tenant, jobs.as_deref()).map_err(|why| format!("certificate {name:?}: {why}"))?;
            certificates.push((name.clone(), grant));
        }
        Ok(Self { tokens_required, insecure: false, uids, certificates })
    }

    /// Whether callers over TCP always need proof.
    #[must_use]
    pub const fn tokens_required(&self) -> bool {
        self.tokens_required
    }

    /// Whether the configuration names users of this machine.
    #[must_use]
    pub fn names_users(&self) -> bool {
        !self.uids.is_empty()
    }

    /// The rights of a user of this machine.
    #[must_use]
    pub fn of_uid(&self, uid: u32) -> Option<&Grant> {
        self.uids.get(&uid)
    }

    /// The rights of a certificate, from the first row that matches one of its names; and the matched name.
    #[must_use]
    pub fn of_certificate(&self, certificate: &ClientCertificate) -> Option<(String, &Grant)> {
        let names = || std::iter::once(&certificate.subject).chain(&certificate.names).filter(|name| !name.is_empty());
        self.certificates.iter().find_map(|(pattern, grant)| {
            let name = names().find(|name| crate::pattern::fits(pattern, name))?;
            Some((name.clone(), grant))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(text: &str) -> Result<Access, String> {
        Access::new(&toml::from_str(text).map_err(|error| error.to_string())?)
    }

    #[test]
    fn who_is_named_gets_what_is_written() {
        let access = access(
            "[uids.1000]\nrole = 'operator'\ntenant = 'team-a'\n\
             [[certificate]]\nname = 'node-*.example'\nrole = 'agent'\ntenant = '*'\njobs = 'train-*'\n",
        )
        .unwrap();
        assert!(access.tokens_required(), "naming a user means that others need proof");
        let grant = access.of_uid(1000).unwrap();
        assert_eq!((grant.role, grant.scope.name(), grant.jobs.as_str()), (Role::Operator, Some("team-a"), "*"));
        assert_eq!(access.of_uid(1001), None);
        let certificate = |subject: &str, names: &[&str]| ClientCertificate {
            subject: subject.into(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            fingerprint: [0; 32],
            not_after_s: None,
        };
        let (name, grant) = access.of_certificate(&certificate("x", &["y", "node-7.example"])).unwrap();
        assert_eq!((name.as_str(), grant.scope.name(), grant.jobs.as_str()), ("node-7.example", None, "train-*"));
        assert!(access.of_certificate(&certificate("node-7.example", &[])).is_some());
        assert!(access.of_certificate(&certificate("", &["other.example"])).is_none());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (text, why) in [
            ("tokens = 'maybe'", "\"required\" or left out"),
            ("[uids.me]\nrole = 'admin'\ntenant = '*'", "not a user's number"),
            ("[uids.1]\nrole = 'king'\ntenant = '*'", "there is no role"),
            ("[uids.1]\nrole = 'admin'\ntenant = 'a b'", "not a tenant's name"),
            ("[uids.1]\nrole = 'admin'", "tenant"),
            ("[[certificate]]\nname = ''\nrole = 'admin'\ntenant = '*'", "a name is needed"),
            ("speed = 1", "unknown field"),
        ] {
            let error = access(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert_eq!(access("").unwrap(), Access::default());
        assert!(access("tokens = 'required'").unwrap().tokens_required());
    }
}
