//! Tests of stores and receivers against real servers, in one program.

mod alerts_https;
mod store;
mod store_conformance;
mod store_copies;
mod store_postgres;
mod store_sqlite;
mod store_upgrades;
