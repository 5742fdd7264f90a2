//! Tests of tenants, of the callers that may continue a session, of tokens and of the audit log.

use std::sync::Arc;

use memctl_daemon::store::{
    AuditRow, OpenedSession, Opening, Scope, Scoped, Store, StoreError, Tenant, TokenRow, Which,
};
use memctl_model::SessionInfo;

use super::made::{NOW_NS, append, chunk, session};

fn tenant(name: &str) -> Tenant {
    Tenant::named(name).unwrap()
}

async fn open(
    store: &dyn Store,
    tenant: &Tenant,
    info: &SessionInfo,
    secret: Option<[u8; 32]>,
) -> Result<OpenedSession, StoreError> {
    store.open(&Opening { tenant, info, owner: "me", secret, now_ns: NOW_NS }).await
}

pub async fn names_repeat_and_no_tenant_sees_the_others(store: Arc<dyn Store>) {
    let (a, b) = (tenant("a"), tenant("b"));
    // Both tenants store the same recording, with the same id.
    let info = session(1, "job", 0);
    let later = SessionInfo { started_ns: NOW_NS + 1, ..info.clone() };
    let of_a = open(&*store, &a, &info, Some([1; 32])).await.unwrap();
    let of_b = open(&*store, &b, &later, Some([2; 32])).await.unwrap();
    assert!(of_a.key != of_b.key && of_a.job != of_b.job);
    store.append(vec![append(of_a.key, vec![chunk(1, 0)])]).await.unwrap();
    let views = [&a, &b].map(|tenant| Scoped::of(&store, &Scope::One(tenant.clone())));
    for (view, (tenant, key, stored)) in views.iter().zip([(&a, of_a.job, 10), (&b, of_b.job, 0)]) {
        let jobs = view.jobs(10).await.unwrap();
        assert_eq!(jobs.iter().map(|job| (job.key, job.tenant.as_str())).collect::<Vec<_>>(), [(key, tenant.name())]);
        for name in [None, Some("job")] {
            let job = view.job(&Which::written(name.unwrap_or_default()), None).await.unwrap().unwrap();
            assert_eq!((job.key, job.attempts), (key, 1));
        }
        assert_eq!(view.job(&Which::written("job"), Some(0)).await.unwrap().unwrap().key, key);
        assert_eq!(view.job(&Which::written("job"), Some(1)).await.unwrap(), None);
        let totals = view.totals().await.unwrap();
        assert_eq!((totals.jobs, totals.sessions, totals.events), (1, 1, stored));
        assert_eq!(view.tenants_of("job").await.unwrap(), [tenant.name()]);
    }
    assert_eq!(store.jobs(10).await.unwrap().len(), 2);
    assert_eq!(store.job(&Which::Latest, None).await.unwrap().unwrap().tenant, "b", "the latest of all");
    assert_eq!(store.tenants_of("job").await.unwrap(), ["a", "b"]);
    assert_eq!(store.tenants_of("zero\0byte").await.unwrap(), [""; 0]);
    assert_eq!(store.totals_in(&Scope::One(tenant("c"))).await.unwrap().jobs, 0);
    assert_eq!(views[0].jobs_in(&Scope::One(b.clone()), 10).await.unwrap(), [], "a scope only narrows");
    store.delete_job(of_a.job).await.unwrap();
    assert_eq!(views[0].job(&Which::written("job"), None).await.unwrap(), None);
    assert_eq!(views[1].job(&Which::written("job"), None).await.unwrap().unwrap().key, of_b.job);
}

pub async fn a_session_is_continued_by_its_agent_alone(store: Arc<dyn Store>) {
    let (a, info) = (tenant("a"), session(1, "job", 0));
    assert_eq!(store.held(&a, info.id).await.unwrap(), None);
    let opened = open(&*store, &a, &info, Some([1; 32])).await.unwrap();
    assert_eq!(open(&*store, &a, &info, Some([1; 32])).await.unwrap(), opened);
    let held = store.held(&a, info.id).await.unwrap().unwrap();
    assert_eq!((held.job.as_str(), held.attempt, held.rank, held.owner.as_str()), ("job", 0, 0, "me"));
    assert_eq!(held.secret.as_deref(), Some([1; 32].as_slice()));
    for (info, secret) in [
        (info.clone(), Some([2; 32])),
        (info.clone(), None),
        (SessionInfo { rank: 1, ..info.clone() }, Some([1; 32])),
        (SessionInfo { attempt: 1, ..info.clone() }, Some([1; 32])),
        (SessionInfo { job: "other".into(), ..info.clone() }, Some([1; 32])),
    ] {
        assert_eq!(open(&*store, &a, &info, secret).await.unwrap_err().to_string(), StoreError::Foreign.to_string());
    }
    assert_eq!(store.jobs(10).await.unwrap().len(), 1, "what is refused makes no job");
    assert_eq!(store.held(&tenant("b"), info.id).await.unwrap(), None, "another tenant does not find it");
}

fn token(id: u64, name: &str, tenant: &str) -> TokenRow {
    TokenRow {
        id,
        name: name.into(),
        role: "reader".into(),
        tenant: tenant.into(),
        jobs: "*".into(),
        secret: [7; 32],
        created_ns: NOW_NS,
        expires_ns: Some(NOW_NS + 5),
        revoked_ns: None,
    }
}

pub async fn tokens_are_kept_and_revoked(store: Arc<dyn Store>) {
    assert_eq!(store.tokens().await.unwrap(), []);
    let (one, other) = (token(u64::MAX, "b", "a"), token(7, "a", "*"));
    for token in [&one, &other] {
        assert!(store.add_token(token).await.unwrap());
    }
    assert!(!store.add_token(&TokenRow { name: "forged".into(), ..one.clone() }).await.unwrap(), "its id is taken");
    assert_eq!(store.tokens().await.unwrap(), [other.clone(), one.clone()]);
    assert_eq!(store.token(u64::MAX).await.unwrap(), Some(one.clone()));
    assert_eq!(store.token(8).await.unwrap(), None);
    let view = Scoped::of(&store, &Scope::One(tenant("a")));
    assert_eq!(view.tokens().await.unwrap(), std::slice::from_ref(&one));
    assert!(!view.revoke_token(7, NOW_NS).await.unwrap(), "it belongs to all tenants");
    assert!(view.revoke_token(u64::MAX, NOW_NS + 1).await.unwrap());
    assert!(!store.revoke_token(u64::MAX, NOW_NS + 2).await.unwrap(), "once");
    assert_eq!(store.token(u64::MAX).await.unwrap().unwrap().revoked_ns, Some(NOW_NS + 1));
}

pub async fn the_audit_log_is_read_by_tenant_the_newest_first(store: Arc<dyn Store>) {
    for (at, tenant) in ["a", "*", "b", "a"].into_iter().enumerate() {
        let refused = at == 3;
        let (time_ns, tenant, action) = (at as u64, tenant.into(), "DeleteJob".into());
        store.add_audit(&AuditRow { time_ns, tenant, action, refused, ..AuditRow::default() }).await.unwrap();
    }
    let times = |rows: Vec<AuditRow>| rows.into_iter().map(|row| (row.time_ns, row.refused)).collect::<Vec<_>>();
    let all = store.audit_in(&Scope::All, 3).await.unwrap();
    assert_eq!(times(all), [(3, true), (2, false), (1, false)]);
    let view = Scoped::of(&store, &Scope::One(tenant("a")));
    assert_eq!(times(view.audit_in(&Scope::All, 10).await.unwrap()), [(3, true), (0, false)]);
}
