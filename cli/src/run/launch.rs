//! Whether the command is a part of a launch on several nodes, and the name that all its parts use for the launch.
//!
//! | launcher | several nodes | name |
//! |---|---|---|
//! | Open MPI, MVAPICH | more ranks in all than on this node | `mpi/PMIX_NAMESPACE`, else the master's address |
//! | Slurm | a step of several nodes, or a heterogeneous job | `slurm/CLUSTER/JOB.STEP` |
//! | torchrun | `--nnodes` (its maximum), or `PET_NNODES` | `torchrun/ID/ENDPOINT` |
//! | `accelerate launch` | `--num_machines` | `accelerate/ADDRESS:PORT` |
//!
//! Guarantees: the only inputs are the command's words and the environment.

use super::name::value;

/// The launch's name; `None` if it runs on one node, if the number of nodes is unknown, or if nothing gives a name.
pub fn launch_name(words: &[String], environment: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let set = |name: &str| environment(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
    mpi(&set).or_else(|| slurm(&set)).or_else(|| torchrun(words, &set)).or_else(|| accelerate(words))
}

type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

fn number(set: Lookup<'_>, name: &str) -> Option<u32> {
    set(name)?.parse().ok()
}

fn mpi(set: Lookup<'_>) -> Option<String> {
    const SIZES: [(&str, &str); 2] =
        [("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"), ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE")];
    let is_larger = |(all, local): &(&str, &str)| Some(number(set, all)? > number(set, local)?);
    SIZES.iter().find_map(is_larger).filter(|is_larger| *is_larger)?;
    let name = set("PMIX_NAMESPACE").or_else(|| set("MASTER_ADDR"))?;
    Some(format!("mpi/{name}"))
}

fn slurm(set: Lookup<'_>) -> Option<String> {
    let nodes = number(set, "SLURM_STEP_NUM_NODES").unwrap_or(1);
    let is_heterogeneous = number(set, "SLURM_HET_SIZE").is_some_and(|size| size > 1);
    if nodes < 2 && !is_heterogeneous {
        return None;
    }
    // The parts of a heterogeneous job have ids of their own, and one id of the whole.
    let job = set("SLURM_HET_JOB_ID").or_else(|| set("SLURM_JOB_ID"))?;
    let (cluster, step) = (set("SLURM_CLUSTER_NAME").unwrap_or_default(), set("SLURM_STEP_ID")?);
    Some(format!("slurm/{cluster}/{job}.{step}"))
}

fn torchrun(words: &[String], set: Lookup<'_>) -> Option<String> {
    const NAMES: [&str; 3] = ["torchrun", "torch.distributed.run", "torch.distributed.launch"];
    let at = words.iter().position(|word| NAMES.contains(&word.rsplit('/').next().unwrap_or_default()))?;
    let given = |flag: &str, variable: &str| value(&words[at + 1..], flag).or_else(|| set(variable));
    // `MIN:MAX`, or one number.
    let nodes = given("nnodes", "PET_NNODES")?;
    if nodes.rsplit(':').next()?.parse::<u32>().ok()? < 2 {
        return None;
    }
    let id = given("rdzv-id", "PET_RDZV_ID").unwrap_or_default();
    let master = || {
        let address = given("master-addr", "PET_MASTER_ADDR").or_else(|| set("MASTER_ADDR"))?;
        let port = given("master-port", "PET_MASTER_PORT").or_else(|| set("MASTER_PORT")).unwrap_or_default();
        Some(format!("{address}:{port}"))
    };
    let endpoint = given("rdzv-endpoint", "PET_RDZV_ENDPOINT").or_else(master)?;
    Some(format!("torchrun/{id}/{endpoint}"))
}

fn accelerate(words: &[String]) -> Option<String> {
    let at = words.iter().position(|word| word.rsplit('/').next() == Some("accelerate"))?;
    let given = |flag: &str| value(&words[at + 1..], flag);
    given("num-machines")?.parse::<u32>().ok().filter(|machines| *machines > 1)?;
    Some(format!("accelerate/{}:{}", given("main-process-ip")?, given("main-process-port").unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(line: &str, variables: &[(&str, &str)]) -> Option<String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        launch_name(&words, &|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn a_launch_on_several_nodes_has_a_name_that_its_parts_share() {
        let slurm = |nodes| [("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_NODES", nodes)];
        assert_eq!(launch("python t.py", &slurm("4")).as_deref(), Some("slurm//7.0"));
        let mpi = [("OMPI_COMM_WORLD_SIZE", "8"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"), ("PMIX_NAMESPACE", "p@1")];
        assert_eq!(launch("python t.py", &mpi).as_deref(), Some("mpi/p@1"));
        for node in ["0", "1"] {
            let line =
                format!("torchrun --nnodes=2 --node_rank={node} --master_addr h --master-port 5 t.py --nnodes 1");
            assert_eq!(launch(&line, &[]).as_deref(), Some("torchrun//h:5"));
        }
        let elastic = "python -m torch.distributed.run --nnodes 1:4 --rdzv_id x --rdzv-endpoint h:1 t.py";
        assert_eq!(launch(elastic, &[]).as_deref(), Some("torchrun/x/h:1"));
        let pet = [("PET_NNODES", "2"), ("PET_MASTER_ADDR", "m"), ("PET_MASTER_PORT", "9")];
        assert_eq!(launch("torchrun t.py", &pet).as_deref(), Some("torchrun//m:9"));
        let accelerate = "accelerate launch --num_machines 2 --main_process_ip h --main_process_port 3 t.py";
        assert_eq!(launch(accelerate, &[]).as_deref(), Some("accelerate/h:3"));
        let het = [("SLURM_JOB_ID", "8"), ("SLURM_HET_JOB_ID", "7"), ("SLURM_HET_SIZE", "2"), ("SLURM_STEP_ID", "1")];
        assert_eq!(launch("python t.py", &het).as_deref(), Some("slurm//7.1"));
    }

    #[test]
    fn one_node_is_no_launch_on_several() {
        assert_eq!(launch("python t.py", &[]), None);
        let slurm = [("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_NODES", "1")];
        assert_eq!(launch("python t.py", &slurm), None);
        let mpi = [("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"), ("PMIX_NAMESPACE", "p@1")];
        assert_eq!(launch("python t.py", &mpi), None);
        assert_eq!(launch("torchrun --standalone --nproc-per-node 4 t.py", &[]), None);
        assert_eq!(launch("torchrun --nnodes 1 --master-addr h t.py", &[]), None);
        assert_eq!(launch("torchrun --nnodes many --master-addr h t.py", &[]), None);
        assert_eq!(launch("accelerate launch --num_processes 2 t.py", &[]), None);
    }
}
