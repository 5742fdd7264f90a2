//! The daemon: it receives the data that agents stream, stores it, and answers queries about it.
//!
//! - [`ingest`]: one stream per session; acknowledged means durable.
//! - [`store`]: storage (memory, SQLite, Postgres) behind one narrow trait.
//! - [`query`]: every request of the command line.
//! - [`access`]: permissions; the gate that every call passes.
//! - [`alerts`]: rules that turn findings into alerts, and the receivers that are notified.
//! - [`listen`]: sockets and ports, and the identity of peers.
//! - [`summaries`], [`metrics`], [`otlp`], [`health`], [`http`]: monitoring of the daemon and of jobs; [`reload`].
//! - [`supervise`]: keeps the background tasks running.
//! - [`server`]: all of it on a port, or embedded in another process; [`config`]: its settings; [`entry`]: its entry
//!   points.
//!
//! Data is never acknowledged before it is durable. The daemon does not depend on the agent's code.

#![forbid(unsafe_code)]

pub mod access;
pub mod alerts;
mod answered;
pub mod clock;
pub mod config;
pub mod entry;
pub mod event_analysis;
pub mod health;
mod histogram;
pub mod http;
pub mod idle;
pub mod ingest;
mod job_data;
pub mod judge;
pub mod listen;
mod memory;
pub mod metrics;
mod notify;
pub mod otlp;
mod pattern;
mod permits;
pub mod quantity;
pub mod query;
pub mod reload;
pub mod retention;
pub mod server;
mod server_requests;
pub mod service_manager;
pub mod store;
mod streams;
pub mod summaries;
pub mod supervise;
mod url_text;
