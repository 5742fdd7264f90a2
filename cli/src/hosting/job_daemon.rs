//! What a local service adds when its folder is that of a job on several nodes: a port with TLS for the other nodes.
//!
//! Guarantees: the port accepts only callers with the certificate and key in the job's folder, which only its owner can
//! read. After a restart on the same host the port is the same if it is free, so that agents find the daemon again.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use memctl_daemon::access::{Access, AccessLayer, CertificateLayer};
use memctl_daemon::config::Config;
use memctl_daemon::listen::{ClientAuth, Encryption, Listen, TlsFiles};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};

use super::job_folder::{Addresses, Claim, JobFolder, own_name};
use crate::exit::Failure;

/// The common name of the certificate.
const NAME: &str = "memctl-job";
/// The addresses of this host (`fib_trie` of proc(5)).
const ROUTES: &str = "/proc/net/fib_trie";

/// The settings of the job's daemon on this host, from those of a local service.
///
/// # Errors
/// Another host runs the job's daemon; the folder cannot be written.
pub fn configured(job: &JobFolder, config: Config) -> Result<Config, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::unreachable(format!("{}: {error}", job.path().display()));
    if let Claim::OfHost(host) = job.claim().map_err(|error| failed(&error))? {
        return Err(Failure::unreachable(format!(
            "host {host} runs the daemon of this job; if that host is gone for good, remove {}",
            job.path().join("host").display()
        )));
    }
    let pem = certificate(&names()).map_err(|error| failed(&error))?;
    job.put_certificate(&pem).map_err(|error| failed(&error))?;
    let owner = CertificateLayer { name: NAME.into(), role: "admin".into(), tenant: "*".into(), jobs: None };
    let layer = AccessLayer { tokens: Some("required".into()), certificate: vec![owner], ..AccessLayer::default() };
    let access = Access::new(&layer).map_err(|error| failed(&error))?;
    let file = job.certificate();
    let tls =
        TlsFiles { cert: file.clone(), key: file.clone(), client_ca: Some(file), client_auth: ClientAuth::Required };
    let former = job.addresses().map_or(0, |addresses| addresses.port);
    let port = Listen::Tcp { address: free(former), encryption: Encryption::Tls };
    Ok(Config { listen: [config.listen, vec![port]].concat(), tls: Some(tls), access, ..config })
}

/// Writes where the daemon listens, from the addresses that it bound.
pub fn publish(job: &JobFolder, bound: &[String]) -> std::io::Result<()> {
    let port = bound.iter().find_map(|place| place.strip_prefix("https://")?.parse::<SocketAddr>().ok());
    let port = port.map_or(0, |address| address.port());
    let names = names();
    let urls = names.iter().map(|name| format!("https://{name}:{port}")).collect();
    job.publish(&Addresses { host: own_name(), port, urls })
}

/// All addresses of this host, with this port if it is free.
fn free(port: u16) -> SocketAddr {
    let any = |port| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    match TcpListener::bind(any(port)) {
        Ok(_) => any(port),
        Err(_) => any(0),
    }
}

/// The names and addresses under which other nodes may reach this host, the most likely first. (Loopback is last: it
/// serves nodes that are containers or namespaces of one machine. The certificate excludes any other daemon there.)
fn names() -> Vec<String> {
    let routes = std::fs::read_to_string(ROUTES).unwrap_or_default();
    let mut names = vec![own_name()];
    names.retain(|name| !name.is_empty());
    names.extend(local_addresses(&routes).iter().map(Ipv4Addr::to_string));
    names.push(Ipv4Addr::LOCALHOST.to_string());
    names
}

/// The addresses of a routing table that are this host's own, without loopback. A line `|-- ADDRESS` is followed by
/// `/32 host LOCAL` for each.
fn local_addresses(routes: &str) -> Vec<Ipv4Addr> {
    let mut found = Vec::new();
    let mut last = None;
    for line in routes.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse::<Ipv4Addr>().ok();
        } else if line == "/32 host LOCAL"
            && let Some(address) = last.filter(|address| !address.is_loopback() && !found.contains(address))
        {
            found.push(address);
        }
    }
    found
}

/// A new certificate for these names, with its key, in PEM.
fn certificate(names: &[String]) -> Result<String, rcgen::Error> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, NAME);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok(certificate.pem() + &key.serialize_pem())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_are_read_from_the_routing_table() {
        let table = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     +-- 10.1.0.0/16 2 0 2\n\
                     \x20       |-- 10.1.0.0\n           /16 link UNICAST\n        |-- 10.1.2.3\n           /32 host LOCAL\n\
                     \x20       |-- 10.1.255.255\n           /32 link BROADCAST\n     |-- 127.0.0.1\n        /32 host LOCAL\n\
                     Local:\n        |-- 10.1.2.3\n           /32 host LOCAL\n";
        assert_eq!(local_addresses(table), ["10.1.2.3".parse::<Ipv4Addr>().unwrap()]);
        assert_eq!(local_addresses(""), Vec::<Ipv4Addr>::new());
        assert!(names().contains(&"127.0.0.1".to_owned()));
    }

    #[test]
    fn a_port_that_is_taken_becomes_another() {
        let taken = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        assert_eq!(free(taken.local_addr().unwrap().port()).port(), 0);
    }
}
