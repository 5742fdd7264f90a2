//! `memctl ui`: serves the page of the local service or of a store that is opened in this process, or prints the
//! address of a daemon's page.
//!
//! Guarantees: for a store that is opened in this process, only a port of this machine listens. Without the printed
//! address no user of this machine can see any data. No other process can read the address. Everything is closed at
//! Ctrl-C or SIGTERM. Opens a browser only on request.

use std::io::Write;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use memctl_agent::credentials::is_this_machine;
use memctl_proto::v1::StatusRequest;
use tempfile::NamedTempFile;
use tonic::transport::Uri;

use crate::args::{self, Format, Global, UI_PORT};
use crate::client::asking;
use crate::connect::{Connection, Source};
use crate::exit::Failure;
use crate::hosting::service::Service;
use crate::hosting::{forwarded, told_to_stop};
use crate::render::text::safe;
use crate::service::keep;

/// See the module.
///
/// # Errors
/// See [`Failure`].
pub async fn run(args: &args::Ui, global: &Global, out: &mut (dyn Write + Send)) -> Result<(), Failure> {
    if global.output != Format::Table {
        return Err(Failure::usage("the page is for a browser; `memctl query` and other questions take -o"));
    }
    asking(global, async |connection| match connection.place.clone() {
        Source::DataDir(_) => serve(connection, args.port, args.open, global, out).await,
        Source::Service(service) => serve_of(&service, args, global, out).await,
        Source::Daemon(address) => {
            let asked = connection.query.get_status(StatusRequest {}).await;
            let status = asked.map_err(|status| connection.failure(&status))?.into_inner();
            let mut address = of_daemon(&status.http, &address.url)?;
            // The tenant's name has passed the daemon's gate, so it needs no encoding.
            if let Some(tenant) = global.credentials().tenant {
                address.push_str(&format!("?tenant={tenant}"));
            }
            say(out, &address)?;
            if args.open { browse(&address) } else { Ok(()) }
        }
    })
    .await
}

/// Serves the page of a store that is open in this process, until a signal stops it.
///
/// # Errors
/// No port is free, or the browser does not start.
pub async fn serve(
    connection: &mut Connection,
    port: Option<u16>,
    open: bool,
    global: &Global,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let stopped = told_to_stop()?;
    let address = match connection.page(port.unwrap_or(UI_PORT)).await {
        Err(_) if port.is_none() => connection.page(0).await?,
        page => page?,
    };
    show(&address, open, stopped, global, out).await
}

/// Serves the page of the local service on a port of this machine, until a signal stops it.
async fn serve_of(
    service: &Service,
    args: &args::Ui,
    global: &Global,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let stopped = told_to_stop()?;
    let socket = service.files().page_socket();
    let page = match forwarded(&socket, args.port.unwrap_or(UI_PORT)).await {
        Err(_) if args.port.is_none() => forwarded(&socket, 0).await?,
        page => page?,
    };
    let complain = |line: String| eprintln!("memctl: {}", safe(&line));
    tokio::select! {
        shown = show(&page.address, args.open, stopped, global, out) => shown,
        never = keep(service.clone(), complain) => never,
    }
}

async fn show(
    address: &str,
    open: bool,
    stopped: impl Future<Output = ()>,
    global: &Global,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    say(out, address)?;
    if !global.quiet {
        eprintln!("memctl: the address opens the page once, in one browser; Ctrl-C ends it");
    }
    // The address is not an argument of the browser's process, because other users could read it there before the
    // browser opens it.
    let leading = if open { Some(leading_to(address).map_err(|error| no_browser(&error))?) } else { None };
    if let Some(file) = &leading {
        browse(&file.path().to_string_lossy())?;
    }
    stopped.await;
    Ok(())
}

fn say(out: &mut (dyn Write + Send), address: &str) -> Result<(), Failure> {
    writeln!(out, "{address}").and_then(|()| out.flush()).map_err(|error| Failure::output("standard output", &error))
}

/// A file, readable only by this user, that redirects to an address.
fn leading_to(address: &str) -> std::io::Result<NamedTempFile> {
    let mut file = tempfile::Builder::new().prefix("memctl-ui-").suffix(".html").tempfile()?;
    let page = format!(
        "<!doctype html><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"0;url={address}\"><title>memctl</title>\n"
    );
    file.write_all(page.as_bytes())?;
    file.flush()?;
    Ok(file)
}

fn browse(what: &str) -> Result<(), Failure> {
    let mut opener = Command::new("xdg-open");
    opener.arg(what).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    opener.spawn().map(drop).map_err(|error| no_browser(&error))
}

fn no_browser(error: &std::io::Error) -> Failure {
    Failure::unreachable(format!(
        "no browser can be opened with xdg-open ({error}): omit --open and open the address yourself"
    ))
}

/// The address at which a browser on this machine finds a daemon's page.
fn of_daemon(places: &[String], daemon: &str) -> Result<String, Failure> {
    let daemon = daemon.parse::<Uri>().ok().filter(|uri| uri.scheme().is_some());
    let host = daemon.as_ref().and_then(Uri::host);
    let is_here = host.is_none_or(is_this_machine);
    let ports: Vec<(&str, SocketAddr)> = places
        .iter()
        .filter_map(|place| place.split_once("://"))
        // The daemon's response is not trusted: a different scheme would open a program other than the browser.
        .filter(|(scheme, _)| matches!(*scheme, "http" | "https"))
        .filter_map(|(scheme, address)| Some((scheme, address.parse().ok()?)))
        .collect();
    let reached = ports.iter().find_map(|(scheme, address)| {
        let ip = address.ip().to_canonical();
        match host.filter(|_| !is_here) {
            Some(_) if ip.is_loopback() => None,
            Some(host) if ip.is_unspecified() => Some(format!("{scheme}://{host}:{}/", address.port())),
            None if ip.is_unspecified() => Some(format!("{scheme}://localhost:{}/", address.port())),
            _ => Some(format!("{scheme}://{address}/")),
        }
    });
    match (reached, ports.first(), host) {
        (Some(address), ..) => Ok(address),
        (None, Some((scheme, address)), Some(host)) => Err(Failure::unreachable(format!(
            "the page of this daemon is on its own machine alone: `ssh -L {0}:{address} {host}`, then open {scheme}://localhost:{0}/",
            address.port()
        ))),
        _ => Err(Failure::unreachable(
            "this daemon has no HTTP port, or is older than the page: start it with --http-listen 127.0.0.1:9717, or name a store with --data-dir",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_a_daemon_is_where_a_browser_here_finds_it() {
        let of = |places: &[&str], daemon: &str| {
            let places: Vec<String> = places.iter().map(|place| (*place).to_owned()).collect();
            of_daemon(&places, daemon).map_err(|failure| failure.to_string())
        };
        let near = "http://127.0.0.1:9717";
        assert_eq!(of(&[near], "unix:/run/memctl.sock").unwrap(), "http://127.0.0.1:9717/");
        assert_eq!(of(&["unix:/run/http.sock", near], "http://localhost:7717").unwrap(), "http://127.0.0.1:9717/");
        assert_eq!(of(&["https://0.0.0.0:9717"], "https://gpu1:7717").unwrap(), "https://gpu1:9717/");
        assert_eq!(of(&["https://[::]:9717"], "http://127.0.0.1:7717").unwrap(), "https://localhost:9717/");
        assert_eq!(of(&[near, "https://10.0.0.7:1"], "https://gpu1:7717/").unwrap(), "https://10.0.0.7:1/");
        assert!(of(&[near], "https://gpu1:7717").unwrap_err().contains("ssh -L 9717:127.0.0.1:9717 gpu1"));
        for none in [&[][..], &["unix:/run/http.sock"], &["javascript://127.0.0.1:1", "x\u{1b}[2J://127.0.0.1:1"]] {
            assert!(of(none, "https://gpu1:7717").unwrap_err().contains("--http-listen"));
        }
    }
}
