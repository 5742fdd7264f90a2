//! Entry points for programs that link the daemon: the daemon itself, stores, and their copies and checks.
//!
//! The body of an `async fn`, with everything that it awaits, is compiled in every crate that awaits it. So the command
//! line would compile half of the daemon and of its libraries a second time. The futures here are boxed, so that this
//! happens only once.
//!
//! Guarantees: each function has the behaviour and the errors of the function of the same name elsewhere in this crate.

use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;

use crate::alerts::Rules;
use crate::config::Config;
use crate::http::{self, ForwardError, Forwarded, HostError, Hosted};
use crate::listen::TlsFiles;
use crate::reload::Reread;
use crate::server::{self, Embedded, ServeError};
use crate::store::checking::{self, Checked, Depth};
use crate::store::copying::{self, Copied};
use crate::store::{self, SqliteStore, Store, StoreAddress, StoreError};

/// A future whose body is already compiled.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Receives the bound addresses, for gRPC and for HTTP.
pub type Ready<'a> = Box<dyn FnOnce(&[String], &[String]) + Send + 'a>;

/// See [`server::serve`].
pub fn serve<'a>(
    config: Config,
    ready: Ready<'a>,
    shutdown: Boxed<'static, ()>,
    reread: Reread,
) -> Boxed<'a, Result<(), ServeError>> {
    Box::pin(server::serve(config, ready, shutdown, reread))
}

/// See [`Embedded::start_with`].
#[must_use]
pub fn start_embedded(store: Arc<dyn Store>, rules: Rules) -> Boxed<'static, Result<Embedded, ServeError>> {
    Box::pin(Embedded::start_with(store, rules))
}

/// See [`Embedded::stop`].
#[must_use]
pub fn stop_embedded(daemon: Embedded) -> Boxed<'static, Result<(), ServeError>> {
    Box::pin(daemon.stop())
}

/// See [`Embedded::page`].
pub fn page(daemon: &mut Embedded, port: u16) -> Boxed<'_, Result<String, ServeError>> {
    Box::pin(daemon.page(port))
}

/// See [`http::forward`].
#[must_use]
pub fn forward(socket: &Path, port: u16) -> Boxed<'_, Result<Forwarded, ForwardError>> {
    Box::pin(http::forward(socket, port))
}

/// See [`http::host`].
#[must_use]
pub fn host(
    address: SocketAddr,
    tls: Option<TlsFiles>,
    insecure: bool,
    router: Router,
) -> Boxed<'static, Result<Hosted, HostError>> {
    Box::pin(http::host(address, tls, insecure, router))
}

/// See [`store::open`].
#[must_use]
pub fn open<'a>(address: &'a StoreAddress, holder: &'a str) -> Boxed<'a, Result<Arc<dyn Store>, StoreError>> {
    Box::pin(store::open(address, holder))
}

/// See [`store::open_read_only`].
#[must_use]
pub fn open_read_only(address: &StoreAddress) -> Boxed<'_, Result<Arc<dyn Store>, StoreError>> {
    Box::pin(store::open_read_only(address))
}

/// See [`SqliteStore::compact`].
#[must_use]
pub fn compact(path: &Path) -> Boxed<'_, Result<(u64, u64), StoreError>> {
    Box::pin(SqliteStore::compact(path))
}

/// See [`copying::backup`].
#[must_use]
pub fn backup<'a>(address: &'a StoreAddress, target: &'a Path) -> Boxed<'a, Result<Copied, StoreError>> {
    Box::pin(copying::backup(address, target))
}

/// See [`copying::restore`].
#[must_use]
pub fn restore<'a>(
    source: &'a Path,
    address: &'a StoreAddress,
    damaged: bool,
) -> Boxed<'a, Result<Copied, StoreError>> {
    Box::pin(copying::restore(source, address, damaged))
}

/// See [`checking::check`].
#[must_use]
pub fn check(address: &StoreAddress, deep: bool) -> Boxed<'_, Result<Checked, StoreError>> {
    Box::pin(checking::check(address, if deep { Depth::Decoded } else { Depth::Rows }))
}
