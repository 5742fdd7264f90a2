//! Features that a process was seen to use and that share device memory with another process, another device or a
//! network card.

/// The features that a process uses. Each of them maps or registers allocations of the driver. Each may break or slow
/// down if allocations are mapped page by page (`expandable_segments:True`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Sharing {
    /// Tensors of this process or of another were shared with CUDA IPC.
    pub cuda_ipc: bool,
    /// NIXL or UCX is loaded, which register memory for RDMA.
    pub rdma: bool,
    /// PyTorch's symmetric memory was set up.
    pub symmetric_memory: bool,
}

impl Sharing {
    /// The common names of the features, in the order of the fields.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let named =
            [(self.cuda_ipc, "CUDA IPC"), (self.rdma, "NIXL or UCX"), (self.symmetric_memory, "symmetric memory")];
        named.into_iter().filter_map(|(is_used, name)| is_used.then_some(name))
    }

    /// The features that at least one of the two was seen to use.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            cuda_ipc: self.cuda_ipc || other.cuda_ipc,
            rdma: self.rdma || other.rdma,
            symmetric_memory: self.symmetric_memory || other.symmetric_memory,
        }
    }
}
