//! The table of rights: the right that each call needs.
//!
//! Guarantees: the same rows decide for gRPC and HTTP. A call without a row is refused. A test checks that every
//! service of the descriptors has rows.

use super::Role;

/// The right that a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing: the daemon's health is public.
    Nothing,
    /// Any authenticated caller.
    Identity,
    /// The right to write to jobs.
    Write,
    /// The right to read.
    Read,
    /// The right to change what others see, or to make the daemon send something.
    Operate,
    /// The right to manage rights.
    Administer,
}

impl Need {
    /// The roles that suffice.
    #[must_use]
    pub const fn roles(self) -> &'static [Role] {
        match self {
            Self::Nothing | Self::Identity => &Role::ALL,
            Self::Write => &[Role::Agent, Role::Operator, Role::Admin],
            Self::Read => &[Role::Reader, Role::Operator, Role::Admin],
            Self::Operate => &[Role::Operator, Role::Admin],
            Self::Administer => &[Role::Admin],
        }
    }

    /// The roles as text.
    #[must_use]
    pub fn in_words(self) -> String {
        let names: Vec<&str> = self.roles().iter().map(|role| role.name()).collect();
        names.join(", ")
    }

    /// Whether refusals are recorded in the audit log.
    #[must_use]
    pub const fn is_audited(self) -> bool {
        matches!(self, Self::Operate | Self::Administer)
    }
}

/// Paths in the form of HTTP/2 and of HTTP's router (`{…}` is one segment), with the right that each needs.
pub const RIGHTS: &[(&str, Need)] = &[
    ("/grpc.health.v1.Health/Check", Need::Nothing),
    ("/grpc.health.v1.Health/Watch", Need::Nothing),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Need::Read),
    ("/memctl.v1.Ingest/Push", Need::Write),
    ("/memctl.v1.Query/ListJobs", Need::Read),
    ("/memctl.v1.Query/GetJob", Need::Read),
    ("/memctl.v1.Query/GetReport", Need::Read),
    ("/memctl.v1.Query/GetTimeline", Need::Read),
    ("/memctl.v1.Query/GetSites", Need::Read),
    ("/memctl.v1.Query/Export", Need::Read),
    ("/memctl.v1.Query/GetFragmentation", Need::Read),
    ("/memctl.v1.Query/GetOom", Need::Read),
    ("/memctl.v1.Query/GetDiagnosis", Need::Read),
    ("/memctl.v1.Query/GetWhatIf", Need::Read),
    ("/memctl.v1.Query/GetNeed", Need::Read),
    ("/memctl.v1.Query/GetFit", Need::Read),
    ("/memctl.v1.Query/GetProfile", Need::Read),
    ("/memctl.v1.Query/GetLedger", Need::Read),
    // The query pauses a training briefly, so a reader may not make it. Readers see the result as part of the finding.
    ("/memctl.v1.Query/FindHolders", Need::Operate),
    // An agent's launcher checks whether the daemon runs.
    ("/memctl.v1.Query/GetStatus", Need::Identity),
    ("/memctl.v1.Query/DeleteJob", Need::Operate),
    ("/memctl.v1.Page/Ask", Need::Read),
    ("/memctl.v1.Alerts/ListAlerts", Need::Read),
    ("/memctl.v1.Alerts/TestReceivers", Need::Operate),
    ("/memctl.v1.Alerts/AddSilence", Need::Operate),
    ("/memctl.v1.Alerts/RemoveSilence", Need::Operate),
    ("/memctl.v1.Alerts/ListSilences", Need::Read),
    ("/memctl.v1.Alerts/GetRules", Need::Read),
    ("/memctl.v1.Access/GetCaller", Need::Identity),
    ("/memctl.v1.Access/CreateToken", Need::Administer),
    ("/memctl.v1.Access/ListTokens", Need::Administer),
    ("/memctl.v1.Access/RevokeToken", Need::Administer),
    ("/memctl.v1.Access/ListAudit", Need::Administer),
    // HTTP: probes have no token, and these responses contain no tenant data.
    ("/healthz", Need::Nothing),
    ("/readyz", Need::Nothing),
    ("/metrics", Need::Read),
    // The page itself is static. Its data comes from addresses below /api.
    ("/", Need::Nothing),
    ("/jobs/{job}", Need::Nothing),
    ("/jobs/{job}/moment", Need::Nothing),
    ("/jobs/{job}/blocks", Need::Nothing),
    ("/jobs/{job}/step", Need::Nothing),
    ("/jobs/{job}/compare", Need::Nothing),
    ("/jobs/{job}/settings", Need::Nothing),
    ("/alerts", Need::Nothing),
    ("/assets/{file}", Need::Nothing),
    // Only a token that may read is exchanged for a cookie. Signing out needs no right.
    ("/login", Need::Read),
    ("/logout", Need::Nothing),
    ("/enter", Need::Nothing),
    ("/api/v1/caller", Need::Identity),
    ("/api/v1/live", Need::Read),
    ("/api/v1/jobs", Need::Read),
    ("/api/v1/jobs/{job}/{view}", Need::Read),
    ("/api/v1/jobs/{job}/tiles", Need::Read),
    ("/api/v1/alerts", Need::Read),
    ("/api/v1/silences", Need::Read),
    ("/api/v1/silence", Need::Operate),
    ("/api/v1/unsilence", Need::Operate),
];

/// Whether a path is that of a gRPC call, with a package, a service and a method.
#[must_use]
pub fn is_grpc(path: &str) -> bool {
    path.matches('/').count() == 2 && path.split('/').nth(1).is_some_and(|service| service.contains('.'))
}

/// The right that a path needs; `None` if the path has no row.
#[must_use]
pub fn need(path: &str) -> Option<Need> {
    RIGHTS.iter().find(|(row, _)| *row == path).map(|(_, need)| *need)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message as _;

    use super::*;

    #[test]
    fn every_call_of_every_service_has_a_row() {
        let mut calls = BTreeSet::new();
        for set in [
            memctl_proto::FILE_DESCRIPTOR_SET,
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
        ] {
            for file in prost_types::FileDescriptorSet::decode(set).unwrap().file {
                for service in &file.service {
                    for method in &service.method {
                        calls.insert(format!("/{}.{}/{}", file.package(), service.name(), method.name()));
                    }
                }
            }
        }
        assert!(calls.len() >= 25, "{calls:?}");
        let rows: BTreeSet<String> =
            RIGHTS.iter().map(|(path, _)| (*path).to_owned()).filter(|path| is_grpc(path)).collect();
        assert_eq!(rows, calls);
        assert_eq!(RIGHTS.iter().map(|(path, _)| path).collect::<BTreeSet<_>>().len(), RIGHTS.len(), "one row each");
    }

    #[test]
    fn what_has_no_row_is_not_known() {
        assert_eq!(need("/memctl.v1.Query/GetJob"), Some(Need::Read));
        for path in
            ["", "//", "/metrics/", "/memctl.v1.Query/getjob", "/memctl.v1.Query/GetJob/", "/memctl.v1.New/Call"]
        {
            assert_eq!(need(path), None, "{path}");
        }
    }

    #[test]
    fn a_role_has_what_the_one_before_has_but_for_agents() {
        for need in [Need::Read, Need::Operate, Need::Administer] {
            let least = need.roles()[0];
            assert!(Role::ALL.iter().all(|role| need.roles().contains(role) == (*role >= least)), "{need:?}");
        }
        assert_eq!(Need::Write.roles(), [Role::Agent, Role::Operator, Role::Admin], "a reader changes nothing");
    }
}
