//! Stores and receivers with real servers, in one program: every file tests what its name says.

mod alerts_https;
mod store;
mod store_conformance;
mod store_copies;
mod store_postgres;
mod store_sqlite;
mod store_upgrades;
