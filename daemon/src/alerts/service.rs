//! The gRPC service of alerts: lists alerts, manages silences, tests receivers and shows the rules in force.
//!
//! Guarantees: a test notifies each receiver once, at once, without the queues. Responses are bounded by the limits of
//! the stored records.
//! Refuses: silences without any criterion, and silences that never end.

use std::sync::atomic::Ordering;
use std::time::Instant;

use memctl_answers::SCHEMA;
use memctl_answers::alerts::{self as shown, Rules, RulesInForce, Tested};
use memctl_answers::format::id::Id;
use memctl_answers::format::time::{Time, rfc3339};
use memctl_model::Severity;
use memctl_proto::v1;
use memctl_proto::v1::alerts_server;
use tonic::{Request, Response, Status};

use super::alert::{Alert, AlertedFinding, JobFacts, Phase, cut};
use super::deliver::Notifier;
use super::notice::Notice;
use super::rules::ReceiverDetail;
use super::silence::EVERY_TENANT;
use super::{Alerts, record, silence};
use crate::access::rights::Need;
use crate::access::{Caller, subject};
use crate::answered::answered;
use crate::clock::now_ns;
use crate::store::{
    AlertKind, AlertPut, AlertRecord, AlertSelection, DEFAULT_TENANT, PutOutcome, Scope, StoreError, Tenant,
};

/// Limit of the bytes of a receiver's response.
const ANSWER_BYTES_MAX: usize = 1_024;
/// The name of a test alert.
const TEST: &str = "MemctlTest";

fn failed(error: StoreError) -> Status {
    let words = error.to_string();
    if error.is_refusal() { Status::permission_denied(words) } else { Status::unavailable(words) }
}

impl Alerts {
    /// The alerts of the caller's tenant; their `jobs` are null.
    ///
    /// # Errors
    /// The store fails.
    pub async fn list(&self, caller: &Caller, firing_only: bool) -> Result<shown::Alerts, Status> {
        let now_ns = now_ns();
        let silences = self.silences(now_ns).await.map_err(failed)?;
        let records = self.shared.store.alert_records(AlertSelection::All(AlertKind::Alert)).await.map_err(failed)?;
        let own = records.iter().filter(|record| caller.scope.admits(&Tenant::stored(&record.tenant)));
        let mut alerts: Vec<Alert> = own.filter_map(record::read).map(|stored| stored.alert).collect();
        if firing_only {
            alerts.retain(|alert| alert.phase == Phase::Firing);
        }
        let order = |alert: &Alert| match alert.phase {
            Phase::Firing => 0,
            Phase::Pending => 1,
            Phase::Resolved => 2,
        };
        alerts.sort_by(|a, b| {
            let newest = |alert: &Alert| alert.resolved_ns.or(alert.fired_ns).unwrap_or(alert.since_ns);
            let (of_a, of_b) = (a.finding.severity, b.finding.severity);
            (order(a), of_b, newest(b), a.id).cmp(&(order(b), of_a, newest(a), b.id))
        });
        let alert = |alert: Alert| {
            let silence = silence::of(&silences, &alert, now_ns).map(|silence| silence.id.clone());
            alert.shown(silence)
        };
        Ok(shown::Alerts {
            schema: SCHEMA,
            alerts: alerts.into_iter().map(alert).collect(),
            refused: self.shared.refused.of(&caller.scope),
            given_up: self.shared.given_up.of(&caller.scope),
            jobs: None,
            view: shown::View::default(),
        })
    }

    /// The silences that cover the caller's tenant and have not ended, ordered by their end. Those for all tenants are
    /// among them.
    ///
    /// # Errors
    /// The store fails.
    pub async fn list_own_silences(&self, caller: &Caller) -> Result<shown::Silences, Status> {
        let mut silences = self.silences(now_ns()).await.map_err(failed)?;
        silences.retain(|silence| silence.tenant == EVERY_TENANT || is_own(caller, &silence.tenant));
        Ok(listed(silences))
    }

    /// A misspelt rule would silence nothing.
    fn check_rule(&self, rule: &str) -> Result<(), Status> {
        let in_force = self.shared.in_force();
        let known: Vec<&str> = in_force.rules.rules.iter().map(|rule| rule.name.as_str()).collect();
        if rule.is_empty() || known.contains(&rule) {
            return Ok(());
        }
        let (rule, known) = (cut(rule, 64), known.join(", "));
        Err(Status::invalid_argument(format!("there is no rule {rule:?}; there are {known}")))
    }

    /// Adds a silence and returns it.
    ///
    /// # Errors
    /// The silence is invalid ([`silence::made`]) or names an unknown rule, there are too many, or the store fails.
    pub async fn silence(&self, caller: &Caller, request: v1::AddSilenceRequest) -> Result<shown::Silences, Status> {
        let v1::AddSilenceRequest { silence: asked, for_ns } = request;
        let now_ns = now_ns();
        self.forget_ended(now_ns).await.map_err(failed)?;
        let number =
            getrandom::u64().map_err(|error| Status::internal(format!("no random number is available: {error}")))?;
        // The silence covers all tenants if the caller sees all of them and named none.
        let asked = v1::Silence { tenant: caller.tenant_name().to_owned(), ..asked.unwrap_or_default() };
        let silence = silence::made(asked, for_ns, number, now_ns).map_err(Status::invalid_argument)?;
        self.check_rule(&silence.rule)?;
        let put = record::put_silence(number, &silence);
        let outcomes = self.shared.store.put_alert_records(&[put]).await.map_err(failed)?;
        let v1::Silence { id, tenant, author, ends_ns, .. } = &silence;
        if outcomes.first() != Some(&PutOutcome::Done) {
            let most = AlertKind::Silence.most();
            return Err(Status::failed_precondition(format!(
                "tenant {tenant} has too many silences (the limit for all tenants is {most}): remove some with `memctl alerts unsilence`"
            )));
        }
        let about = subject::of_silence(&silence);
        tracing::info!(id, about, author, ends_ns, "silence added");
        let subject = format!("{id}: {about}");
        self.shared.audit.done(caller, "AddSilence", &subject, &format!("until {}", rfc3339(*ends_ns))).await;
        self.reconsider();
        Ok(listed(vec![silence]))
    }

    /// Ends a silence of the caller's tenant.
    ///
    /// # Errors
    /// There is no silence with this id, or the store fails.
    pub async fn unsilence(&self, caller: &Caller, id: &str) -> Result<(), Status> {
        let records = self.shared.store.alert_records(AlertSelection::All(AlertKind::Silence)).await.map_err(failed)?;
        let number = u64::from_str_radix(id, 16).ok();
        let found = records.into_iter().find(|record| Some(record.id) == number);
        if found.as_ref().is_some_and(|found| found.tenant == EVERY_TENANT) && caller.scope != Scope::All {
            let why = format!(
                "silence {id} is for all tenants: an operator or admin of all tenants can end it (`--tenant '*'`)"
            );
            self.shared.audit.refused(caller, "RemoveSilence", id, &why).await;
            return Err(Status::permission_denied(why));
        }
        let Some(record) = found.filter(|record| is_own(caller, &record.tenant)) else {
            let id = cut(id, 64);
            return Err(Status::invalid_argument(format!(
                "there is no silence {id:?}; `memctl alerts silences` lists them"
            )));
        };
        let put = AlertPut { expected_version: record.version, record, remove: true };
        // A conflict means that the silence was removed by another request, which is the requested result.
        self.shared.store.put_alert_records(&[put]).await.map_err(failed)?;
        tracing::info!(id, "silence removed");
        self.shared.audit.done(caller, "RemoveSilence", id, "removed").await;
        self.reconsider();
        Ok(())
    }

    async fn tested(&self, notifier: &Notifier, now_ns: u64) -> Tested {
        let began = Instant::now();
        let result = notifier.tell(&[Notice { alert: test_alert(now_ns), replaces: None }]).await;
        let (delivered, answer) = match result {
            Ok(answer) => (true, answer),
            Err(failed) => (false, failed.reason),
        };
        Tested {
            receiver: notifier.name().into(),
            r#type: notifier.kind().into(),
            delivered,
            answer: cut(&answer, ANSWER_BYTES_MAX),
            seconds: seconds(began.elapsed().as_nanos() as u64),
        }
    }

    fn reconsider(&self) {
        // Release: an engine that sees the flag also sees the earlier changes in the store.
        self.shared.reconsider.store(true, Ordering::Release);
        self.shared.wake.notify_one();
    }
}

fn is_own(caller: &Caller, tenant: &str) -> bool {
    caller.scope.admits(&Tenant::stored(tenant))
}

fn listed(silences: Vec<v1::Silence>) -> shown::Silences {
    let silences = silences.into_iter().map(silence::shown).collect();
    shown::Silences { schema: SCHEMA, silences, now: Time(now_ns()) }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// A test alert, which expires by itself in Alertmanager.
fn test_alert(now_ns: u64) -> Alert {
    let finding = AlertedFinding {
        id: Id(0),
        kind: "test".into(),
        severity: Severity::Info,
        confidence: 1.0,
        ranks: vec![0],
        rank_count: 1,
        all_ranks: false,
        title: "Test of this receiver; nothing is wrong".into(),
        explanation: "`memctl alerts test` was run.".into(),
        advice: "Nothing needs to be done.".into(),
    };
    let job = JobFacts {
        tenant: DEFAULT_TENANT.into(),
        name: "memctl-test".into(),
        run: 1,
        started_ns: now_ns,
        ..JobFacts::default()
    };
    let alert = Alert::pending(now_ns, TEST, &job, finding, now_ns);
    Alert { phase: Phase::Firing, fired_ns: Some(now_ns), ..alert }
}

fn rule(rule: &super::rules::Rule) -> shown::Rule {
    shown::Rule {
        name: rule.name.clone(),
        kinds: rule.kinds.iter().map(|kind| kind.name().into()).collect(),
        severity: rule.severity,
        confidence: rule.confidence,
        horizon_seconds: rule.horizon_seconds,
        horizon_epochs: rule.horizon_epochs,
        for_seconds: seconds(rule.for_ns),
        repeat_seconds: seconds(rule.repeat_ns),
        receivers: [vec!["log".to_owned()], rule.receivers.clone()].concat(),
    }
}

#[tonic::async_trait]
impl alerts_server::Alerts for Alerts {
    async fn list_alerts(&self, request: Request<v1::ListAlertsRequest>) -> Result<Response<v1::Answer>, Status> {
        let caller = Caller::of(&request)?;
        answered(&self.list(&caller, request.into_inner().firing_only).await?)
    }

    async fn test_receivers(&self, request: Request<v1::TestReceiversRequest>) -> Result<Response<v1::Answer>, Status> {
        let caller = Caller::of(&request)?;
        let wanted = request.into_inner().receiver;
        let subject = subject::of_test(wanted.clone());
        let Ok(_only) = self.shared.testing.try_lock() else {
            return Err(Status::resource_exhausted(
                "another test of the receivers is under way; try again when it has ended",
            ));
        };
        let chosen = |name: &str| wanted.as_deref().is_none_or(|wanted| wanted == name);
        let in_force = self.shared.in_force();
        let notifiers: Vec<_> = in_force.notifiers.iter().filter(|notifier| chosen(notifier.name())).collect();
        let mut answers = Vec::new();
        let now_ns = now_ns();
        if chosen("log") {
            tracing::info!(alert = TEST, "test of the log; nothing is wrong");
            let (receiver, r#type, answer) = ("log".into(), "log".into(), "written".into());
            answers.push(Tested { receiver, r#type, delivered: true, answer, seconds: 0.0 });
        } else if notifiers.is_empty() {
            let names: Vec<&str> = in_force.notifiers.iter().map(|notifier| notifier.name()).collect();
            let known = [&["log"], &names[..]].concat().join(", ");
            let wanted = cut(wanted.as_deref().unwrap_or_default(), 64);
            return Err(Status::invalid_argument(format!("there is no receiver {wanted:?}; there are {known}")));
        }
        let mut tests = tokio::task::JoinSet::new();
        for (at, notifier) in notifiers.into_iter().enumerate() {
            let (alerts, notifier) = (self.clone(), notifier.clone());
            tests.spawn(async move { (at, alerts.tested(&notifier, now_ns).await) });
        }
        let mut tested = tests.join_all().await;
        tested.sort_by_key(|(at, _)| *at);
        answers.extend(tested.into_iter().map(|(_, answer)| answer));
        let delivered = answers.iter().filter(|answer| answer.delivered).count();
        let outcome = format!("{delivered} of {} delivered", answers.len());
        self.shared.audit.done(&caller, "TestReceivers", &subject, &outcome).await;
        answered(&shown::Answers { schema: SCHEMA, receivers: answers })
    }

    async fn add_silence(&self, request: Request<v1::AddSilenceRequest>) -> Result<Response<v1::Answer>, Status> {
        let caller = Caller::of(&request)?;
        answered(&self.silence(&caller, request.into_inner()).await?)
    }

    async fn remove_silence(
        &self,
        request: Request<v1::RemoveSilenceRequest>,
    ) -> Result<Response<v1::RemoveSilenceResponse>, Status> {
        let caller = Caller::of(&request)?;
        self.unsilence(&caller, &request.into_inner().id).await?;
        Ok(Response::new(v1::RemoveSilenceResponse {}))
    }

    async fn list_silences(&self, request: Request<v1::ListSilencesRequest>) -> Result<Response<v1::Answer>, Status> {
        answered(&self.list_own_silences(&Caller::of(&request)?).await?)
    }

    async fn get_rules(&self, request: Request<v1::GetRulesRequest>) -> Result<Response<v1::Answer>, Status> {
        let caller = Caller::of(&request)?;
        // Receivers belong to the daemon, not to a tenant.
        let operates = caller.scope == Scope::All && caller.may(Need::Operate);
        let secrets = if operates { ReceiverDetail::Everything } else { ReceiverDetail::Names };
        let in_force = self.shared.in_force();
        let rules = &in_force.rules;
        let toml = rules.to_toml(secrets);
        let rules =
            Rules { schema: SCHEMA, origin: rules.origin.clone(), rules: rules.rules.iter().map(rule).collect() };
        answered(&RulesInForce { rules, toml })
    }
}

impl Alerts {
    /// Removes silences that have ended, so that there is room for new ones.
    async fn forget_ended(&self, now_ns: u64) -> Result<(), StoreError> {
        let records = self.shared.store.alert_records(AlertSelection::All(AlertKind::Silence)).await?;
        let ended = records.into_iter().filter(|record: &AlertRecord| record.due_ns <= now_ns);
        let puts: Vec<AlertPut> =
            ended.map(|record| AlertPut { expected_version: record.version, record, remove: true }).collect();
        if !puts.is_empty() {
            self.shared.store.put_alert_records(&puts).await?;
        }
        Ok(())
    }
}
