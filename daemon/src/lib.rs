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
//! For WebAssembly only the modules are compiled that answer questions about a store in memory: no socket, no thread, no
//! database.
//!
//! Data is never acknowledged before it is durable. The daemon does not depend on the agent's code.

#![forbid(unsafe_code)]
// Modules that are compiled in part have items that only the daemon uses.
#![cfg_attr(target_family = "wasm", allow(dead_code, unused_imports))]

#[cfg(not(target_family = "wasm"))]
pub mod access;
#[cfg(not(target_family = "wasm"))]
pub mod alerts;
#[cfg(not(target_family = "wasm"))]
mod answered;
pub mod clock;
#[cfg(not(target_family = "wasm"))]
pub mod config;
#[cfg(not(target_family = "wasm"))]
pub mod entry;
pub mod event_analysis;
#[cfg(not(target_family = "wasm"))]
pub mod health;
#[cfg(not(target_family = "wasm"))]
mod histogram;
#[cfg(not(target_family = "wasm"))]
pub mod http;
/// The page's data without a port: the views of jobs.
#[cfg(target_family = "wasm")]
pub mod http {
    mod job_views;
    mod params;
    pub mod recordings;
    mod trouble;
}
#[cfg(not(target_family = "wasm"))]
pub mod idle;
#[cfg(not(target_family = "wasm"))]
pub mod ingest;
/// What a store needs to know of an item.
#[cfg(target_family = "wasm")]
pub mod ingest {
    pub mod prepare;
}
mod job_data;
pub mod judge;
#[cfg(not(target_family = "wasm"))]
pub mod listen;
mod memory;
#[cfg(not(target_family = "wasm"))]
pub mod metrics;
#[cfg(not(target_family = "wasm"))]
mod notify;
#[cfg(not(target_family = "wasm"))]
pub mod otlp;
#[cfg(not(target_family = "wasm"))]
mod pattern;
#[cfg(not(target_family = "wasm"))]
mod permits;
#[cfg(not(target_family = "wasm"))]
pub mod quantity;
pub mod query;
#[cfg(not(target_family = "wasm"))]
pub mod reload;
#[cfg(not(target_family = "wasm"))]
pub mod retention;
#[cfg(not(target_family = "wasm"))]
pub mod server;
mod server_requests;
#[cfg(not(target_family = "wasm"))]
pub mod service_manager;
pub mod store;
mod streams;
pub mod summaries;
pub mod supervise;
mod url_text;
