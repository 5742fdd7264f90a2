//! The daemon: takes what agents stream, stores it, answers questions about it.
//!
//! - [`ingest`]: one stream a session; acknowledged means durable.
//! - [`store`]: where everything lies (memory, SQLite, Postgres), behind one narrow trait.
//! - [`query`]: every question that the command line asks.
//! - [`alerts`]: rules that turn findings into alerts, and who is told of them.
//! - [`supervise`]: keeps the tasks behind all this running.
//! - [`server`]: all of it on a port, or embedded in another process; [`config`]: its settings.
//!
//! Refuses: to acknowledge what is not durable, and to import anything of the agent's.

pub mod alerts;
pub mod clock;
pub mod config;
pub mod explain;
pub mod ingest;
pub mod judge;
mod pokes;
pub mod quantity;
pub mod query;
mod read;
pub mod server;
pub mod store;
mod streams;
pub mod supervise;
