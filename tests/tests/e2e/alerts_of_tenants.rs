//! What a tenant sees of alerting: its own failed deliveries, and silences that an administrator made for all tenants.

use std::sync::Arc;
use std::time::{Duration, Instant};

use memctl_answers::access::Role;
use memctl_answers::alerts::{Alerts, Silences};
use memctl_answers::wire::from_wire;
use memctl_daemon::access::Caller;
use memctl_daemon::alerts::{Alerting, JobFacts, Notifying, Pace, Rules};
use memctl_daemon::clock::now_ns;
use memctl_daemon::store::{Scope, SqliteStore, Tenant};
use memctl_model::{Backoff, Finding, FindingKind, JobState, Severity};
use memctl_proto::v1;
use memctl_proto::v1::alerts_server::Alerts as _;
use memctl_tests::http::{Receiver, Reply};
use tonic::{Code, Request};

const HOUR_NS: u64 = 3_600_000_000_000;

/// An operator of one tenant, or of all.
fn of(tenant: Option<&str>) -> Caller {
    let mut caller = Caller::owner("a test", "here");
    caller.role = Role::Operator;
    caller.scope = tenant.map_or(Scope::All, |tenant| Scope::One(Tenant::named(tenant).unwrap()));
    caller
}

fn asked<T>(caller: Caller, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(caller);
    request
}

async fn start(rules: &str) -> Alerting {
    let pace =
        Pace { attempts: 2, pauses: Backoff { first: Duration::from_millis(10), most: Duration::from_millis(40) } };
    let rules = Rules::parse(rules, "rules.toml").unwrap();
    Alerting::start(Arc::new(SqliteStore::in_memory().await.unwrap()), rules, pace, Notifying::Always)
}

async fn given_up(alerting: &Alerting, tenant: Option<&str>) -> u64 {
    let request = asked(of(tenant), v1::ListAlertsRequest::default());
    from_wire::<Alerts>(alerting.alerts.list_alerts(request).await.unwrap().get_ref()).unwrap().given_up
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_is_told_of_its_own_notifications_that_were_given_up() {
    let stubborn = Receiver::start(|_| Reply::Status(403));
    let hook = format!("[[receiver]]\nname = \"hook\"\ntype = \"webhook\"\nurl = \"{}\"\n", stubborn.url);
    let alerting = start(&hook).await;
    let job = |tenant: &str| JobFacts {
        tenant: tenant.to_owned(),
        name: "vit".to_owned(),
        run: 1,
        started_ns: 1,
        state: Some(JobState::Running),
        ..JobFacts::default()
    };
    let oom =
        Finding { title: "failed".to_owned(), ..Finding::new(FindingKind::Oom, Severity::Critical, 1.0, vec![0]) };
    for tenant in ["red", "green"] {
        alerting.alerts.observe(&job(tenant), std::slice::from_ref(&oom), now_ns());
    }
    let deadline = Instant::now() + Duration::from_secs(120);
    while given_up(&alerting, None).await < 2 {
        assert!(Instant::now() < deadline, "the notifications are given up");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for (tenant, count) in [("red", 1), ("green", 1), ("blue", 0)] {
        assert_eq!(given_up(&alerting, Some(tenant)).await, count, "{tenant}");
    }
    // The two jobs have one name and one finding. For the receiver they are two groups.
    let received = stubborn.received();
    let keys: std::collections::BTreeSet<String> =
        received.iter().map(|request| request.body["groupKey"].to_string()).collect();
    assert_eq!((received.len(), keys.len()), (2, 2), "{keys:?}");
    alerting.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silence_for_all_tenants_is_listed_for_each_and_ended_by_an_operator_of_all() {
    let alerting = start("").await;
    let add = async |tenant: Option<&str>, job: &str| {
        let silence = v1::Silence { job: job.to_owned(), ..v1::Silence::default() };
        let request = v1::AddSilenceRequest { silence: Some(silence), for_ns: HOUR_NS };
        let made = alerting.alerts.add_silence(asked(of(tenant), request)).await.unwrap();
        from_wire::<Silences>(made.get_ref()).unwrap().silences.remove(0)
    };
    let list = async |tenant: &str| {
        let request = asked(of(Some(tenant)), v1::ListSilencesRequest {});
        let silences: Silences = from_wire(alerting.alerts.list_silences(request).await.unwrap().get_ref()).unwrap();
        silences.silences.iter().map(|silence| silence.covers().to_owned()).collect::<Vec<_>>()
    };
    let remove = async |tenant: Option<&str>, id: &str| {
        let request = v1::RemoveSilenceRequest { id: id.to_owned() };
        alerting.alerts.remove_silence(asked(of(tenant), request)).await.map(drop)
    };
    let whole = add(None, "v*").await;
    let red = add(Some("red"), "v*").await;
    assert_eq!((whole.covers(), red.covers()), ("all tenants", "red"));
    assert_eq!(
        (list("red").await, list("blue").await),
        (vec!["all tenants".into(), "red".into()], vec!["all tenants".into()])
    );
    let refused = remove(Some("red"), &whole.id).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("an operator or admin of all tenants can end it"), "{refused}");
    let unseen = remove(Some("blue"), &red.id).await.unwrap_err();
    assert!(unseen.message().contains("there is no silence"), "{unseen}");
    remove(None, &whole.id).await.unwrap();
    assert_eq!((list("red").await, list("blue").await), (vec!["red".to_owned()], Vec::<String>::new()));
    alerting.finish().await;
}
