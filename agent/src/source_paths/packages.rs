//! Recognises installed code: the folders of packages and of the standard library, and the public names in them.
//!
//! Guarantees: a path below such a folder keeps that folder's name, which distinguishes it from the user's own code.
//! Refuses: to treat an unknown package as public, because companies install their own packages as well.

use super::{ENDINGS, Key};

/// Folders of packages.
const PACKAGES: [&str; 2] = ["/site-packages/", "/dist-packages/"];
/// The folder of the standard library. The version follows.
const STANDARD: &str = "/lib/python3.";

/// Packages that are publicly available and that appear on a training's stack.
const PUBLIC: [&str; 96] = [
    "IPython",
    "PIL",
    "_pytest",
    "absl",
    "accelerate",
    "albumentations",
    "apex",
    "auto_gptq",
    "awq",
    "axolotl",
    "bitsandbytes",
    "catalyst",
    "chex",
    "click",
    "cloudpickle",
    "colossalai",
    "composer",
    "cupy",
    "cv2",
    "dask",
    "datasets",
    "debugpy",
    "deepspeed",
    "detectron2",
    "diffusers",
    "dill",
    "distributed",
    "einops",
    "evaluate",
    "fairscale",
    "fairseq",
    "fastai",
    "fire",
    "flash_attn",
    "flax",
    "fsspec",
    "gpytorch",
    "haiku",
    "huggingface_hub",
    "hydra",
    "ignite",
    "ipykernel",
    "jax",
    "jaxlib",
    "joblib",
    "kornia",
    "liger_kernel",
    "lightning",
    "lightning_fabric",
    "llamafactory",
    "mamba_ssm",
    "megatron",
    "memctl_agent",
    "mmcv",
    "mmdet",
    "mmengine",
    "monai",
    "mpi4py",
    "nemo",
    "numba",
    "numpy",
    "onnxruntime",
    "open_clip",
    "openrlhf",
    "optax",
    "optimum",
    "pandas",
    "peft",
    "pluggy",
    "pytest",
    "pytorch_lightning",
    "ray",
    "safetensors",
    "scipy",
    "sentence_transformers",
    "sglang",
    "sklearn",
    "tensorboard",
    "tensordict",
    "timm",
    "torch",
    "torch_geometric",
    "torchaudio",
    "torchmetrics",
    "torchrl",
    "torchtitan",
    "torchtune",
    "torchvision",
    "tqdm",
    "transformer_engine",
    "transformers",
    "triton",
    "trl",
    "ultralytics",
    "unsloth",
    "vllm",
];

/// Folders of the standard library.
const STANDARD_FOLDERS: [&str; 12] = [
    "asyncio",
    "collections",
    "concurrent",
    "ctypes",
    "email",
    "http",
    "importlib",
    "json",
    "logging",
    "multiprocessing",
    "unittest",
    "urllib",
];

/// Splits a path after the folder of packages or of the standard library. The parts are, for example, `/site-packages/`
/// and `torch/nn/init.py`, or `/lib/python3.11/` and `threading.py`.
pub(super) fn split(file: &str) -> Option<(&str, &str)> {
    // The first such folder counts, as in the code that classifies paths.
    let packages = PACKAGES.iter().find_map(|folder| Some((file.find(folder)?, folder.len())));
    let standard = || {
        let begin = file.rfind(STANDARD)?;
        let behind = &file[begin + STANDARD.len()..];
        // Only digits (and a `t`) belong to the version. The rest is a name.
        let version = behind.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b't').count();
        Some((begin, STANDARD.len() + version + usize::from(behind[version..].starts_with('/'))))
    };
    let (begin, length) = packages.or_else(standard)?;
    Some((&file[begin..begin + length], &file[begin + length..]))
}

/// Whether a name in such a folder is public.
pub(super) fn is_public(folder: &str, inside: &str) -> bool {
    let (first, is_file) = inside.split_once('/').map_or((inside, true), |(first, _)| (first, false));
    match folder.starts_with(STANDARD) {
        // This is the standard library. Another file may also be in this folder of the distribution.
        true => is_file && STANDARD_MODULES.contains(&first) || STANDARD_FOLDERS.contains(&first),
        false => !is_file && PUBLIC.contains(&first),
    }
}

/// Modules of the standard library that call user code, and so appear between its frames.
const STANDARD_MODULES: [&str; 14] = [
    "contextlib.py",
    "copy.py",
    "functools.py",
    "inspect.py",
    "pickle.py",
    "pdb.py",
    "queue.py",
    "random.py",
    "runpy.py",
    "threading.py",
    "traceback.py",
    "typing.py",
    "weakref.py",
    "dataclasses.py",
];

/// A path inside a package that is not public, with each name hashed. The parts that mark a model's file stay readable.
pub(super) fn hashed(key: &Key, inside: &str) -> String {
    let (folders, name) = inside.rsplit_once('/').unwrap_or(("", inside));
    let mut path: String = folders
        .split('/')
        .filter(|folder| !folder.is_empty())
        .map(|folder| if folder == "models" { "models/".to_owned() } else { format!("{}/", key.hash(folder)) })
        .collect();
    let (stem, ending) = name.rsplit_once('.').filter(|(_, ending)| ENDINGS.contains(ending)).unwrap_or((name, ""));
    if name.starts_with("modeling_") {
        path.push_str("modeling_");
    }
    path.push_str(&key.hash(stem));
    if !ending.is_empty() {
        path.push('.');
        path.push_str(ending);
    }
    path
}
