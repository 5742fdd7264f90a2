//! Tests of identity. Tables map an environment to an identity. The wire must accept the identity of random
//! environments, too.

use std::collections::HashMap;

use memctl_model::limits::is_job_name;
use memctl_model::{Launch, SessionId, SessionInfo};
use memctl_proto::v1;
use proptest::prelude::*;

use super::*;

/// 2025-06-01 14:22:33 UTC.
const NOON_NS: u64 = 1_748_787_753_000_000_000;

fn process() -> Process {
    Process {
        script: Some("/home/me/train.py".into()),
        host: Some("node7".into()),
        pid: 4242,
        started_ns: NOON_NS,
        ..Process::default()
    }
}

fn identify_in(variables: &[(&str, &str)], given: &IdentityOverrides) -> Identity {
    let variables: HashMap<&str, &str> = variables.iter().copied().collect();
    identify(&|name| variables.get(name).map(|&value| value.to_owned()), given, &process())
}

fn from(variables: &[(&str, &str)]) -> Identity {
    identify_in(variables, &IdentityOverrides::default())
}

/// An environment, and the expected job, source of the job, attempt, rank and size.
type Row = (&'static [(&'static str, &'static str)], &'static str, Source, u32, u32, Option<u32>);

#[rustfmt::skip]
const LAUNCHERS: &[Row] = &[
    (&[("MEMCTL_JOB", "gpt2"), ("MEMCTL_RANK", "3"), ("MEMCTL_WORLD_SIZE", "8"), ("MEMCTL_ATTEMPT", "2"),
       ("RANK", "1"), ("WORLD_SIZE", "4"), ("TORCHELASTIC_RUN_ID", "run"), ("TORCHELASTIC_RESTART_COUNT", "5"),
       ("SLURM_JOB_ID", "77")],
     "gpt2", Source::Memctl, 2, 3, Some(8)),
    // torchrun --rdzv-id=nightly
    (&[("RANK", "1"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1"), ("TORCHELASTIC_RUN_ID", "nightly"),
       ("TORCHELASTIC_RESTART_COUNT", "1"), ("SLURM_JOB_ID", "77"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")],
     "nightly", Source::Torchrun, 1, 1, Some(4)),
    // torchrun --rdzv-id=$RANDOM
    (&[("RANK", "0"), ("WORLD_SIZE", "2"), ("TORCHELASTIC_RUN_ID", "31337")],
     "train-31337", Source::Torchrun, 0, 0, Some(2)),
    // srun torchrun --rdzv-id=$SLURM_JOB_ID, requeued once, then restarted twice by torchrun
    (&[("RANK", "5"), ("WORLD_SIZE", "16"), ("TORCHELASTIC_RUN_ID", "778"), ("TORCHELASTIC_RESTART_COUNT", "2"),
       ("SLURM_JOB_ID", "778"), ("SLURM_JOB_NAME", "llama"), ("SLURM_PROCID", "1"), ("SLURM_STEP_ID", "0"),
       ("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_RESTART_COUNT", "1")],
     "llama-778", Source::Slurm, 1_002, 5, Some(16)),
    // srun python
    (&[("SLURM_JOB_ID", "900"), ("SLURM_JOB_NAME", "my job"), ("SLURM_PROCID", "2"), ("SLURM_NTASKS", "4"),
       ("SLURM_STEP_ID", "1"), ("SLURM_LOCALID", "0")],
     "my-job-900.1", Source::Slurm, 0, 2, Some(4)),
    // sbatch --array without a step: SLURM_NTASKS is the requested number
    (&[("SLURM_JOB_ID", "905"), ("SLURM_ARRAY_JOB_ID", "901"), ("SLURM_ARRAY_TASK_ID", "4"), ("SLURM_PROCID", "0"),
       ("SLURM_NTASKS", "4"), ("SLURM_RESTART_COUNT", "3")],
     "slurm-901_4", Source::Slurm, 3_000, 0, None),
    // mpirun in a SLURM allocation: SLURM_PROCID is that of mpirun's daemon
    (&[("SLURM_JOB_ID", "12"), ("SLURM_JOB_NAME", "cfd"), ("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "0"),
       ("SLURM_STEP_NUM_TASKS", "2"), ("OMPI_COMM_WORLD_RANK", "6"), ("OMPI_COMM_WORLD_SIZE", "8"),
       ("OMPI_COMM_WORLD_LOCAL_RANK", "2")],
     "cfd-12", Source::Slurm, 0, 6, Some(8)),
    // mpirun
    (&[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2"), ("PMIX_RANK", "1"),
       ("PMIX_NAMESPACE", "prterun-node7-99@1")],
     "train", Source::Made, 0, 1, Some(2)),
    (&[("PMI_RANK", "3"), ("PMI_SIZE", "4"), ("MEMCTL_JOB", "mpich")], "mpich", Source::Memctl, 0, 3, Some(4)),
    (&[("MV2_COMM_WORLD_RANK", "1"), ("MV2_COMM_WORLD_SIZE", "2"), ("MEMCTL_JOB", "m")], "m", Source::Memctl, 0, 1, Some(2)),
    // Kubernetes: an indexed job, with and without its random suffix; a training operator's replica; a single pod
    (&[("JOB_COMPLETION_INDEX", "3"), ("HOSTNAME", "gpt2-3-x7k2p")], "gpt2", Source::Kubernetes, 0, 3, None),
    (&[("JOB_COMPLETION_INDEX", "3"), ("HOSTNAME", "gpt2-3"), ("POD_NAMESPACE", "ml")], "ml/gpt2", Source::Kubernetes, 0, 3, None),
    (&[("JOB_COMPLETION_INDEX", "12345"), ("HOSTNAME", "gpt2-12345")], "gpt2", Source::Kubernetes, 0, 12_345, None),
    (&[("KUBERNETES_SERVICE_HOST", "10.0.0.1"), ("HOSTNAME", "bert-worker-2"), ("RANK", "3"), ("WORLD_SIZE", "4")],
     "bert", Source::Kubernetes, 0, 3, Some(4)),
    (&[("POD_NAME", "one-off-abcde"), ("HOSTNAME", "x")], "one-off-abcde", Source::Kubernetes, 0, 0, None),
    // The name of an ordinary host gives no job's name.
    (&[("HOSTNAME", "node7-worker-1")], "train", Source::Made, 0, 0, None),
];

#[test]
fn a_child_of_a_rank_is_its_worker_and_a_rank_that_was_spawned_is_not() {
    let environment = |name: &str| (name == "RANK").then(|| "3".to_owned());
    let role = |rank_is_inherited| {
        let process = Process { child: Some("SpawnProcess-1".into()), rank_is_inherited, ..process() };
        identify(&environment, &IdentityOverrides::default(), &process).role
    };
    assert_eq!((role(true).as_deref(), role(false)), (Some("worker"), None));
}

#[test]
fn every_launcher_is_recognised() {
    for (variables, job, source, attempt, rank, world_size) in LAUNCHERS {
        let found = from(variables);
        let seen = (found.job.as_str(), found.source_of_job, found.attempt, found.rank, found.world_size);
        assert_eq!(seen, (*job, *source, *attempt, *rank, *world_size), "{variables:?}: {:?}", found.complaints);
    }
}

#[test]
fn what_is_given_wins_field_by_field() {
    let variables =
        [("MEMCTL_JOB", "env"), ("MEMCTL_RANK", "1"), ("MEMCTL_WORLD_SIZE", "8"), ("MEMCTL_LABELS", "a=1, b = 2,c=")];
    let given = IdentityOverrides {
        job: Some("mine".into()),
        rank: Some(4),
        labels: vec![("b".into(), "given".into()), ("d".into(), "x=y".into())],
        ..IdentityOverrides::default()
    };
    let found = identify_in(&variables, &given);
    assert_eq!((found.job.as_str(), found.source_of_job), ("mine", Source::Given));
    assert_eq!((found.rank, found.source_of_rank, found.world_size), (4, Source::Given, Some(8)));
    let labels: Vec<_> = found.labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!(labels, [("b", "given"), ("d", "x=y"), ("a", "1"), ("c", "")]);
    assert_eq!(found.complaints, Vec::<String>::new());
}

#[test]
fn a_schedulers_job_is_labelled_with_its_account() {
    let labels = |variables: &[(&str, &str)]| from(variables).labels;
    let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let step = [
        ("SLURM_JOB_ID", "905"),
        ("SLURM_ARRAY_JOB_ID", "901"),
        ("SLURM_ARRAY_TASK_ID", "4"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_JOB_ACCOUNT", "vision"),
        ("SLURM_JOB_PARTITION", "a100"),
        ("SLURM_JOB_NAME", "my job"),
        ("MEMCTL_LABELS", "slurm.account=mine"),
    ];
    let expected = [
        ("slurm.account", "mine"),
        ("slurm.job", "901_4"),
        ("slurm.job_id", "905"),
        ("slurm.step", "0"),
        ("slurm.name", "my job"),
        ("slurm.partition", "a100"),
    ];
    assert_eq!(labels(&step), pairs(&expected));
    let memory = |variables: &[(&str, &str)]| {
        let job = [&[("SLURM_JOB_ID", "7")][..], variables].concat();
        labels(&job).into_iter().skip(1).collect::<Vec<_>>()
    };
    let by_node = [("SLURM_MEM_PER_NODE", "65536"), ("SLURM_MEM_PER_CPU", "1"), ("SLURM_GPUS_ON_NODE", "4")];
    assert_eq!(memory(&by_node), pairs(&[("slurm.mem_per_node", "65536"), ("slurm.gpus_on_node", "4")]));
    let by_cpu = [("SLURM_MEM_PER_CPU", "2048"), ("SLURM_CPUS_ON_NODE", "8")];
    assert_eq!(memory(&by_cpu), pairs(&[("slurm.mem_per_node", "16384")]));
    // All memory of a node, and a number of processors that is not known.
    assert_eq!(memory(&[("SLURM_MEM_PER_NODE", "0"), ("SLURM_MEM_PER_CPU", "2048")]), []);
    assert_eq!(memory(&[("SLURM_MEM_PER_CPU", &u64::MAX.to_string()), ("SLURM_CPUS_ON_NODE", "2")]), []);
    // The script of a batch job runs in a step of SLURM's own.
    let batch = [("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "4294967291")];
    assert_eq!(labels(&batch), pairs(&[("slurm.job", "7")]));
    assert_eq!(labels(&[("POD_NAMESPACE", "ml")]), pairs(&[("k8s.namespace", "ml")]));
    let full = (0..64).map(|number| format!("k{number}=v")).collect::<Vec<_>>().join(",");
    let found = from(&[("MEMCTL_LABELS", &full), ("SLURM_JOB_ID", "7")]);
    assert_eq!((found.labels.len(), found.complaints.len()), (64, 0), "a label that does not fit is no mistake");
}

#[test]
fn each_source_gives_way_to_the_one_before_it() {
    let in_order = [
        "MEMCTL_RANK",
        "RANK",
        "OMPI_COMM_WORLD_RANK",
        "PMIX_RANK",
        "PMI_RANK",
        "MV2_COMM_WORLD_RANK",
        "SLURM_PROCID",
        "JOB_COMPLETION_INDEX",
    ];
    let values: Vec<String> = (10..10 + in_order.len()).map(|value| value.to_string()).collect();
    let variables: Vec<_> = in_order.iter().copied().zip(values.iter().map(String::as_str)).collect();
    for from_here in 0..in_order.len() {
        assert_eq!(from(&variables[from_here..]).rank, 10 + from_here as u32, "{}", in_order[from_here]);
    }
}

#[test]
fn rubbish_is_ignored_with_a_reason() {
    for (variable, value) in [
        ("RANK", "-1"),
        ("RANK", "one"),
        ("RANK", "99999999"),
        ("RANK", "4294967296"),
        ("WORLD_SIZE", "4 ranks"),
        ("TORCHELASTIC_RESTART_COUNT", "1e3"),
        ("MEMCTL_LABELS", "noequals"),
        ("MEMCTL_LABELS", "=v"),
        ("MEMCTL_JOB", "日本"),
        ("MEMCTL_JOB", "a b"),
        ("WORLD_SIZE", "0"),
    ] {
        let found = from(&[(variable, value)]);
        assert_eq!(found.complaints.len(), 1, "{variable}={value}: {found:?}");
        assert_eq!((found.rank, found.world_size, found.attempt), (0, None, 0), "{variable}={value}");
    }
    // A number that does not parse leaves the field to the next source.
    assert_eq!(from(&[("RANK", "x"), ("SLURM_PROCID", "3")]).rank, 3);
    // The size of another launcher's job is ignored.
    let found = from(&[("RANK", "7"), ("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "2")]);
    assert_eq!((found.rank, found.world_size), (7, None));
    assert_eq!(found.complaints, ["a job of 2 ranks has no rank 7: its size counts as unknown"]);
}

#[test]
fn names_are_cleaned() {
    for (name, clean) in [
        ("my job", "my-job"),
        ("--x", "x"),
        ("a  (b)!", "a-b"),
        ("naïve", "na-ve"),
        ("a:b/c@d+e.f_g-", "a:b/c@d+e.f_g-"),
    ] {
        assert_eq!(from(&[("MEMCTL_JOB", name)]).job, clean);
    }
    let found = from(&[("MEMCTL_JOB", "--"), ("SLURM_JOB_ID", "5")]);
    assert_eq!((found.job.as_str(), found.source_of_job), ("slurm-5", Source::Slurm));
    assert_eq!(found.complaints.len(), 1);
    assert_eq!(from(&[("MEMCTL_JOB", &"x".repeat(1_000))]).job.len(), 256);
    let long = "n".repeat(1_000);
    assert!(from(&[("SLURM_JOB_ID", "5"), ("SLURM_JOB_NAME", &long)]).job.ends_with("n-5"));
}

/// An environment, and the expected group.
type Group = (&'static [(&'static str, &'static str)], Option<&'static str>);

#[rustfmt::skip]
const GROUPS: &[Group] = &[
    (&[], None),
    (&[("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "node1")], None),
    (&[("MEMCTL_RUN_ID", "a b"), ("SLURM_JOB_ID", "1")], Some("id/a b")),
    // These are steps of several tasks. A shell in an allocation is a step of one task. A batch script is not a step.
    (&[("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "3"), ("SLURM_STEP_NUM_TASKS", "8"), ("SLURM_CLUSTER_NAME", "c"),
       ("TORCHELASTIC_RUN_ID", "x")], Some("slurm/c/7.3")),
    (&[("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "1")], None),
    (&[("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "4294967290"), ("SLURM_NTASKS", "4")], None),
    (&[("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "4")], None),
    (&[("TORCHELASTIC_RUN_ID", "nightly"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "n")], Some("torchrun/nightly")),
    (&[("TORCHELASTIC_RUN_ID", "none"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "n"), ("MASTER_PORT", "29500")],
     Some("master/n:29500")),
    // Every machine has its own localhost.
    (&[("WORLD_SIZE", "4"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")], Some("master/127.0.0.1:1@node7")),
    (&[("PMIX_NAMESPACE", "prterun-node7-99@1"), ("OMPI_COMM_WORLD_SIZE", "2")], Some("mpi/prterun-node7-99@1")),
    (&[("JOB_COMPLETION_INDEX", "3"), ("HOSTNAME", "gpt2-3-x7k2p"), ("POD_NAMESPACE", "ml")], Some("kubernetes/ml/gpt2")),
];

#[test]
fn what_was_launched_together_has_something_in_common() {
    for (variables, group) in GROUPS {
        assert_eq!(from(variables).group.as_deref(), *group, "{variables:?}");
    }
    assert_eq!(from(&[("MEMCTL_RUN_ID", &"x".repeat(1_000))]).group.unwrap().len(), 256);
}

#[test]
fn a_script_names_its_series() {
    assert_eq!(from(&[]).job, "train");
    let standalone = from(&[("TORCHELASTIC_RUN_ID", "0f8fad5b-d9cb-469f-a165-70867728950e")]);
    assert_eq!((standalone.job.as_str(), standalone.source_of_job), ("train", Source::Made));
    let nothing = identify(&|_| None, &IdentityOverrides::default(), &Process::default());
    assert_eq!((nothing.job.as_str(), nothing.host, nothing.local_rank), ("job", None, None));
    for (script, name) in
        [("a/b/my script.py", "my-script"), ("-m", "m"), ("日本.py", "job"), ("", "job"), ("latest.py", "job")]
    {
        let process = Process { script: Some(script.into()), ..process() };
        assert_eq!(identify(&|_| None, &IdentityOverrides::default(), &process).job, name, "{script}");
    }
}

/// The session that the agent sends for an identity.
fn session(identity: &Identity) -> SessionInfo {
    SessionInfo {
        attempt: identity.attempt,
        rank: identity.rank,
        world_size: identity.world_size,
        host: identity.host.clone(),
        pid: Some(1),
        labels: identity.labels.clone(),
        launch: Launch { group: identity.group.clone(), ..Launch::default() },
        ..SessionInfo::live(SessionId([7; 16]), identity.job.clone(), NOON_NS)
    }
}

const VARIABLES: [&str; 49] = [
    "MEMCTL_RUN_ID",
    "MEMCTL_JOB",
    "MEMCTL_RANK",
    "MEMCTL_WORLD_SIZE",
    "MEMCTL_ATTEMPT",
    "MEMCTL_LABELS",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_ERROR_FILE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_JOB_NAME",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_RESTART_COUNT",
    "SLURM_STEP_ID",
    "SLURM_LOCALID",
    "SLURMD_NODENAME",
    "SLURM_JOB_ACCOUNT",
    "SLURM_JOB_PARTITION",
    "SLURM_CLUSTER_NAME",
    "SLURM_JOB_USER",
    "SLURM_MEM_PER_NODE",
    "SLURM_MEM_PER_CPU",
    "SLURM_CPUS_ON_NODE",
    "SLURM_GPUS_ON_NODE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "PMIX_RANK",
    "PMIX_NAMESPACE",
    "PMI_RANK",
    "PMI_SIZE",
    "MV2_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "JOB_COMPLETION_INDEX",
    "POD_NAME",
    "POD_NAMESPACE",
    "HOSTNAME",
    "KUBERNETES_SERVICE_HOST",
];

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        any::<u32>().prop_map(|number| number.to_string()),
        (0u32..8).prop_map(|number| number.to_string()),
        "[-a-z0-9 _./:=,]{0,40}",
        "[a-z]{1,300}",
        "(k[0-9]{1,3}=v,){0,100}",
    ]
}

proptest! {
    #[test]
    fn whatever_comes_in_the_wire_accepts_what_comes_out(
        values in proptest::collection::vec((0..VARIABLES.len(), value()), 0..20),
        job in proptest::option::of(value()),
        rank in proptest::option::of(any::<u32>()),
        world_size in proptest::option::of(any::<u32>()),
        labels in proptest::collection::vec((value(), value()), 0..5),
        script in proptest::option::of(value()),
        host in proptest::option::of(value()),
        started_ns in any::<u64>(),
    ) {
        let variables: HashMap<&str, String> = values.into_iter().map(|(at, value)| (VARIABLES[at], value)).collect();
        let given = IdentityOverrides { job, attempt: None, rank, world_size, labels, role: None };
        let process = Process { script, host, pid: 1, started_ns, ..Process::default() };
        let identity = identify(&|name| variables.get(name).cloned(), &given, &process);
        prop_assert!(is_job_name(&identity.job));
        prop_assert!(identity.world_size.is_none_or(|size| size > identity.rank));
        prop_assert!(identity.complaints.len() <= COMPLAINTS_MAX);
        let sent = session(&identity);
        let received = SessionInfo::try_from(v1::SessionInfo::from(&sent));
        prop_assert_eq!(received.expect("accepted"), sent);
    }
}
