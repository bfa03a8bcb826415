//! Many ranks: the same program on several processes or threads, which exchange tensors.
//!
//! A part of [Gradus](https://docs.rs/gradus). Depend on the crate `gradus` with its feature `dist`: only its API is
//! kept stable between releases.
//!
//! A [`Communicator`] connects ranks. [`threads`] runs a function on several threads of this process, each a rank;
//! with the feature `mpi`, `mpi::world` connects the processes that `mpirun` started; with the feature `nccl`, `nccl::over`
//! has NCCL move what is on GPUs. Every call says what it is, and
//! ranks compare that before data moves. A rank that dies, stalls, leaves or makes another call is an error of the kind
//! [`ErrorKind::Peer`](gradus_tensor::ErrorKind::Peer) on all others within the deadline, never a hang.
#![warn(missing_docs)]

mod block;
mod buckets;
mod call;
mod collectives;
mod communicator;
mod data_parallel;
mod differentiable;
mod divide;
mod division;
mod engine;
mod fact;
mod full_shard;
mod fully_sharded;
mod group;
mod handle;
mod link;
mod mesh;
#[cfg(all(feature = "mpi", unix))]
pub mod mpi;
#[cfg(all(feature = "nccl", unix))]
pub mod nccl;
mod on_device;
mod parallel_attention;
mod parallel_cross_entropy;
mod parallel_embedding;
mod parallel_linear;
mod pipeline;
mod ranks;
mod reduce;
mod region;
mod sequence;
mod sharded_optimizer;
mod stage;
mod started;
mod sync_batch_norm;
mod threads;
mod tie;
mod vectors;

pub use call::{Call, Collective};
pub use communicator::Communicator;
pub use data_parallel::DataParallel;
pub use divide::{divide, join_state, split_state};
pub use fully_sharded::FullyShardedDataParallel;
pub use group::Options;
pub use handle::Handle;
pub use mesh::Mesh;
pub use parallel_attention::ParallelAttention;
pub use parallel_cross_entropy::parallel_cross_entropy;
pub use parallel_embedding::ParallelEmbedding;
pub use parallel_linear::{ColumnLinear, RowLinear};
pub use pipeline::Pipeline;
pub use reduce::Reduce;
pub use sequence::{SequenceParallel, join_sequence, split_sequence};
pub use sharded_optimizer::ShardedOptimizer;
pub use stage::{Stage, cut_evenly};
pub use sync_batch_norm::SyncBatchNorm;
pub use threads::threads;
