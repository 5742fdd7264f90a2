//! The gRPC service: lists alerts, manages silences, tests receivers and shows the rules in force.
//!
//! Guarantees: a test notifies each receiver once, at once, without the queues; responses are bounded by the limits of
//! what is stored.
//! Refuses: silences that match everything by omission or never end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use memctl_model::Severity;
use memctl_proto::v1;
use memctl_proto::v1::alerts_server;
use tonic::{Request, Response, Status};

use super::alert::{Alert, Phase, cut};
use super::deliver::Notifier;
use super::notice::Notice;
use super::rules::Shown;
use super::{Alerts, record, silence};
use crate::access::Caller;
use crate::access::rights::Need;
use crate::clock::now_ns;
use crate::store::{
    AlertKind, AlertPut, AlertRecord, AlertSelection, DEFAULT_TENANT, PutOutcome, Scope, StoreError, Tenant,
};

/// Bytes of a receiver's response.
const ANSWER_BYTES_MAX: usize = 1_024;
/// The name of a test alert.
const TEST: &str = "MemctlTest";

fn failed(error: StoreError) -> Status {
    Status::unavailable(error.to_string())
}

impl Alerts {
    async fn listed(&self, scope: &Scope, firing_only: bool) -> Result<v1::ListAlertsResponse, StoreError> {
        let now_ns = now_ns();
        let silences = self.silences(now_ns).await?;
        let records = self.shared.store.alert_records(AlertSelection::All(AlertKind::Alert)).await?;
        let own = records.iter().filter(|record| scope.admits(&Tenant::stored(&record.tenant)));
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
            (order(a), b.severity, newest(b), a.id).cmp(&(order(b), a.severity, newest(a), b.id))
        });
        let wire = |alert: &Alert| v1::Alert {
            silenced_by: silence::of(&silences, alert, now_ns)
                .map_or_else(String::new, |silence| format!("{:016x}", silence.id)),
            ..record::to_wire(alert)
        };
        // These cover all tenants, so they are only for callers who see all. Relaxed: statistics.
        let count = |figure: &AtomicU64| if *scope == Scope::All { figure.load(Ordering::Relaxed) } else { 0 };
        Ok(v1::ListAlertsResponse {
            alerts: alerts.iter().map(wire).collect(),
            refused: count(&self.shared.refused),
            given_up: count(&self.shared.given_up),
        })
    }

    async fn tested(&self, notifier: &Notifier, now_ns: u64) -> v1::ReceiverAnswer {
        let began = Instant::now();
        let result = notifier.tell(&[Notice { alert: test_alert(now_ns), replaces: None }]).await;
        let (delivered, answer) = match result {
            Ok(answer) => (true, answer),
            Err(failed) => (false, failed.reason),
        };
        v1::ReceiverAnswer {
            receiver: notifier.name().into(),
            r#type: notifier.kind().into(),
            delivered,
            answer: cut(&answer, ANSWER_BYTES_MAX),
            took_ns: began.elapsed().as_nanos() as u64,
        }
    }

    fn reconsider(&self) {
        // Release: an engine that sees the flag sees what was stored before.
        self.shared.reconsider.store(true, Ordering::Release);
        self.shared.wake.notify_one();
    }
}

/// A test alert, which ends by itself in Alertmanager.
fn test_alert(now_ns: u64) -> Alert {
    Alert {
        id: now_ns,
        tenant: DEFAULT_TENANT.into(),
        rule: TEST.into(),
        job: "memctl-test".into(),
        run: 1,
        attempt: 0,
        run_started_ns: now_ns,
        phase: Phase::Firing,
        finding: 0,
        kind: "test".into(),
        severity: Severity::Info,
        confidence: 1.0,
        ranks: vec![0],
        rank_count: 1,
        all_ranks: false,
        title: "Test of this receiver; nothing is wrong".into(),
        explanation: "`memctl alerts test` was run.".into(),
        advice: "Nothing needs to be done.".into(),
        labels: Vec::new(),
        annotations: Vec::new(),
        receivers: Vec::new(),
        job_labels: Vec::new(),
        since_ns: now_ns,
        fired_ns: Some(now_ns),
        resolved_ns: None,
        seen_ns: now_ns,
        missing_ns: None,
        fired_epochs: None,
        run_ended: false,
        deliveries: Vec::new(),
    }
}

#[tonic::async_trait]
impl alerts_server::Alerts for Alerts {
    async fn list_alerts(
        &self,
        request: Request<v1::ListAlertsRequest>,
    ) -> Result<Response<v1::ListAlertsResponse>, Status> {
        let caller = Caller::of(&request)?;
        Ok(Response::new(self.listed(&caller.scope, request.into_inner().firing_only).await.map_err(failed)?))
    }

    async fn test_receivers(
        &self,
        request: Request<v1::TestReceiversRequest>,
    ) -> Result<Response<v1::TestReceiversResponse>, Status> {
        let caller = Caller::of(&request)?;
        let wanted = request.into_inner().receiver;
        let subject = wanted.clone().unwrap_or_else(|| "all".into());
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
            answers.push(v1::ReceiverAnswer {
                receiver: "log".into(),
                r#type: "log".into(),
                delivered: true,
                answer: "written".into(),
                took_ns: 0,
            });
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
        Ok(Response::new(v1::TestReceiversResponse { answers }))
    }

    async fn add_silence(&self, request: Request<v1::AddSilenceRequest>) -> Result<Response<v1::Silence>, Status> {
        let caller = Caller::of(&request)?;
        let v1::AddSilenceRequest { silence: asked, for_ns } = request.into_inner();
        let now_ns = now_ns();
        self.forget_ended(now_ns).await.map_err(failed)?;
        let id =
            getrandom::u64().map_err(|error| Status::internal(format!("no random number is available: {error}")))?;
        let mut asked = record::silence_from_wire(asked.unwrap_or_default());
        // For all tenants, if the caller sees all and named none.
        asked.tenant = caller.tenant_name().to_owned();
        let silence = silence::made(asked, for_ns, id, now_ns).map_err(Status::invalid_argument)?;
        let outcomes = self.shared.store.put_alert_records(&[record::put_silence(&silence)]).await.map_err(failed)?;
        if outcomes.first() != Some(&PutOutcome::Done) {
            let (tenant, most) = (&silence.tenant, AlertKind::Silence.most());
            return Err(Status::failed_precondition(format!(
                "tenant {tenant} has too many silences (the limit for all tenants is {most}): remove some with `memctl alerts unsilence`"
            )));
        }
        tracing::info!(
            id = format!("{:016x}", silence.id),
            job = silence.job,
            kind = silence.kind,
            rule = silence.rule,
            author = silence.author,
            ends_ns = silence.ends_ns,
            "silence added"
        );
        let subject =
            format!("{:016x}: job {:?}, kind {:?}, rule {:?}", silence.id, silence.job, silence.kind, silence.rule);
        self.shared.audit.done(&caller, "AddSilence", &subject, &format!("until {} ns", silence.ends_ns)).await;
        self.reconsider();
        Ok(Response::new(record::silence_to_wire(&silence)))
    }

    async fn remove_silence(
        &self,
        request: Request<v1::RemoveSilenceRequest>,
    ) -> Result<Response<v1::RemoveSilenceResponse>, Status> {
        let caller = Caller::of(&request)?;
        let id = request.into_inner().id;
        let records = self.shared.store.alert_records(AlertSelection::All(AlertKind::Silence)).await.map_err(failed)?;
        let is_own = |record: &AlertRecord| caller.scope.admits(&Tenant::stored(&record.tenant));
        let number = u64::from_str_radix(&id, 16).ok();
        let found = records.into_iter().find(|record| Some(record.id) == number && is_own(record));
        let Some(record) = found else {
            let id = cut(&id, 64);
            return Err(Status::invalid_argument(format!(
                "there is no silence {id:?}; `memctl alerts silences` lists them"
            )));
        };
        let put = AlertPut { expected_version: record.version, record, remove: true };
        // A conflict: it was removed meanwhile, which is what was requested.
        self.shared.store.put_alert_records(&[put]).await.map_err(failed)?;
        tracing::info!(id, "silence removed");
        self.shared.audit.done(&caller, "RemoveSilence", &id, "removed").await;
        self.reconsider();
        Ok(Response::new(v1::RemoveSilenceResponse {}))
    }

    async fn list_silences(
        &self,
        request: Request<v1::ListSilencesRequest>,
    ) -> Result<Response<v1::ListSilencesResponse>, Status> {
        let caller = Caller::of(&request)?;
        let mut silences = self.silences(now_ns()).await.map_err(failed)?;
        silences.retain(|silence| caller.scope.admits(&Tenant::stored(&silence.tenant)));
        let silences = silences.iter().map(record::silence_to_wire).collect();
        Ok(Response::new(v1::ListSilencesResponse { silences }))
    }

    async fn get_rules(&self, request: Request<v1::GetRulesRequest>) -> Result<Response<v1::GetRulesResponse>, Status> {
        let caller = Caller::of(&request)?;
        // Receivers belong to the daemon and not to one tenant.
        let operates = caller.scope == Scope::All && caller.may(Need::Operate);
        let shown = if operates { Shown::Everything } else { Shown::Names };
        let in_force = self.shared.in_force();
        let rules = &in_force.rules;
        let rule = |rule: &super::rules::Rule| v1::AlertRule {
            name: rule.name.clone(),
            kinds: rule.kinds.iter().map(|kind| kind.name().into()).collect(),
            severity: v1::Severity::from(rule.severity) as i32,
            confidence: rule.confidence,
            horizon_seconds: rule.horizon_seconds,
            horizon_epochs: rule.horizon_epochs,
            for_ns: rule.for_ns,
            repeat_ns: rule.repeat_ns,
            receivers: [vec!["log".to_owned()], rule.receivers.clone()].concat(),
        };
        Ok(Response::new(v1::GetRulesResponse {
            toml: rules.to_toml(shown),
            origin: rules.origin.clone(),
            rules: rules.rules.iter().map(rule).collect(),
        }))
    }
}

impl Alerts {
    /// Removes silences that have ended, so that they leave room for new ones.
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
