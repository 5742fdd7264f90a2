//! The daemon: takes what agents stream, stores it, answers questions about it.
//!
//! - [`ingest`]: one stream a session; acknowledged means durable.
//! - [`store`]: where everything lies (memory, SQLite, Postgres), behind one narrow trait.
//! - [`query`]: every question that the command line asks.
//! - [`access`]: who may do what; the gate that every call passes.
//! - [`alerts`]: rules that turn findings into alerts, and who is told of them.
//! - [`listen`]: sockets and ports, and who is at the other end.
//! - [`board`], [`metrics`], [`otlp`], [`health`], [`http`]: how the daemon and the jobs do, for those who watch over them; [`reload`].
//! - [`supervise`]: keeps the tasks behind all this running.
//! - [`server`]: all of it on a port, or embedded in another process; [`config`]: its settings; [`entry`]: what others await of it.
//!
//! Refuses: to acknowledge what is not durable, and to import anything of the agent's.

#![forbid(unsafe_code)]

pub mod access;
pub mod alerts;
mod asks;
pub mod board;
pub mod clock;
pub mod config;
pub mod entry;
pub mod explain;
pub mod health;
mod histogram;
pub mod http;
pub mod idle;
pub mod ingest;
pub mod judge;
pub mod listen;
mod memory;
pub mod metrics;
pub mod otlp;
mod pattern;
mod pokes;
pub mod quantity;
pub mod query;
mod read;
pub mod reload;
pub mod retention;
pub mod server;
pub mod service_manager;
mod slots;
pub mod store;
mod streams;
pub mod supervise;
