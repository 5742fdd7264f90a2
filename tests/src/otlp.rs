//! A receiver of OTLP metrics, over HTTP and gRPC. It reads messages by the protos that OpenTelemetry publishes
//! (`tests/data/opentelemetry`), compiled when the test runs.
//!
//! Guarantees: anything that the protos do not define fails the test; messages are shown as JSON, with the protos'
//! names.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};

use protox::prost_reflect::{DescriptorPool, DynamicMessage, ReflectMessage as _, Value as Field};
use serde_json::{Value, json};
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::NamedService;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

use crate::bytes_codec::BytesCodec;
use crate::certificates;

const REQUEST: &str = "opentelemetry.proto.collector.metrics.v1.ExportMetricsServiceRequest";

/// The response of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It accepts everything.
    All,
    /// It accepts all but three points, with the reason.
    Part,
    /// It is overloaded.
    Unavailable,
    /// It does not respond (over HTTP).
    Silence,
}

/// A received message.
#[derive(Clone, Debug)]
pub struct Received {
    /// The request path.
    pub path: String,
    /// Its headers; names in lower case.
    pub headers: BTreeMap<String, String>,
    /// Its content.
    pub message: Value,
}

impl Received {
    /// Its metrics, by name.
    ///
    /// # Panics
    /// When a metric occurs twice, or there is more than one resource.
    #[must_use]
    pub fn metrics(&self) -> BTreeMap<String, Value> {
        let resources = self.message["resource_metrics"].as_array().expect("resources");
        assert_eq!(resources.len(), 1);
        let scopes = resources[0]["scope_metrics"].as_array().expect("scopes");
        let metrics = scopes.iter().flat_map(|scope| scope["metrics"].as_array().cloned().unwrap_or_default());
        let mut found = BTreeMap::new();
        for metric in metrics {
            let name = metric["name"].as_str().expect("a name").to_owned();
            assert!(found.insert(name.clone(), metric).is_none(), "{name} stands twice");
        }
        found
    }

    /// The attributes of its resource.
    #[must_use]
    pub fn resource(&self) -> BTreeMap<String, String> {
        attributes(&self.message["resource_metrics"][0]["resource"])
    }
}

/// Attributes of a point, or of a resource.
#[must_use]
pub fn attributes(of: &Value) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let listed = of["attributes"].as_array().cloned().unwrap_or_default();
    listed.iter().map(|pair| (text(&pair["key"]), text(&pair["value"]["string_value"]))).collect()
}

fn pool() -> &'static DescriptorPool {
    static POOL: OnceLock<DescriptorPool> = OnceLock::new();
    POOL.get_or_init(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/opentelemetry");
        let mut compiler = protox::Compiler::new([folder]).expect("the folder");
        compiler.include_imports(true);
        compiler.open_file("opentelemetry/proto/collector/metrics/v1/metrics_service.proto").expect("the protos");
        compiler.descriptor_pool()
    })
}

fn read(bytes: &[u8]) -> Value {
    let descriptor = pool().get_message_by_name(REQUEST).expect("the request");
    shown(&DynamicMessage::decode(descriptor, bytes).expect("a message of OTLP"))
}

fn shown(message: &DynamicMessage) -> Value {
    assert_eq!(message.unknown_fields().count(), 0, "{}", message.descriptor().full_name());
    message.fields().map(|(field, value)| (field.name().to_owned(), one(value, field.kind().as_enum()))).collect()
}

fn one(value: &Field, names: Option<&protox::prost_reflect::EnumDescriptor>) -> Value {
    match value {
        Field::Bool(value) => json!(value),
        Field::I32(value) => json!(value),
        Field::I64(value) => json!(value),
        Field::U32(value) => json!(value),
        Field::U64(value) => json!(value),
        Field::F32(value) => json!(value),
        Field::F64(value) => json!(value),
        Field::String(value) => json!(value),
        Field::Bytes(value) => json!(value.to_vec()),
        Field::EnumNumber(value) => {
            let named = names.and_then(|names| names.get_value(*value));
            json!(named.expect("a value that the enumeration has").name())
        }
        Field::Message(message) => shown(message),
        Field::List(list) => list.iter().map(|value| one(value, names)).collect(),
        Field::Map(_) => panic!("OTLP has no maps"),
    }
}

/// The receiver's answer, in bytes of protobuf.
fn answer(how: Answer) -> Vec<u8> {
    if how != Answer::Part {
        return Vec::new();
    }
    let descriptor = pool().get_message_by_name(&REQUEST.replace("Request", "Response")).expect("the answer");
    let mut partial = DynamicMessage::new(
        descriptor.get_field_by_name("partial_success").expect("a field").kind().as_message().expect("one").clone(),
    );
    partial.set_field_by_name("rejected_data_points", Field::I64(3));
    partial.set_field_by_name("error_message", Field::String("too many points".into()));
    let mut answer = DynamicMessage::new(descriptor);
    answer.set_field_by_name("partial_success", Field::Message(partial));
    prost::Message::encode_to_vec(&answer)
}

/// A receiver.
#[derive(Clone)]
pub struct Collector {
    received: Arc<Mutex<Vec<Received>>>,
    answer: Arc<Mutex<Answer>>,
}

impl Collector {
    /// A receiver that does not listen yet.
    #[must_use]
    pub fn new(answer: Answer) -> Self {
        Self { received: Arc::default(), answer: Arc::new(Mutex::new(answer)) }
    }

    /// Changes how it answers from now on.
    ///
    /// # Panics
    /// Never.
    pub fn answers(&self, answer: Answer) {
        *self.answer.lock().expect("a lock") = answer;
    }

    /// All messages received.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn received(&self) -> Vec<Received> {
        self.received.lock().expect("a lock").clone()
    }

    fn take(&self, path: &str, headers: BTreeMap<String, String>, body: &[u8]) -> Answer {
        let received = Received { path: path.to_owned(), headers, message: read(body) };
        self.received.lock().expect("a lock").push(received);
        *self.answer.lock().expect("a lock")
    }

    /// Listens for HTTP at this address; returns the address.
    ///
    /// # Panics
    /// When the port is taken.
    pub fn http(&self, address: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind(address).expect("the port");
        let address = listener.local_addr().expect("an address");
        let this = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let this = this.clone();
                std::thread::spawn(move || this.converse(stream));
            }
        });
        address
    }

    fn converse(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream);
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if line.trim().is_empty() {
                break;
            }
            lines.push(line.trim().to_owned());
        }
        let path = lines[0].split(' ').nth(1).unwrap_or_default().to_owned();
        assert!(lines[0].starts_with("POST "), "{}", lines[0]);
        let pairs = lines[1..].iter().filter_map(|line| line.split_once(": "));
        let headers: BTreeMap<String, String> =
            pairs.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
        let mut body = vec![0; headers["content-length"].parse().expect("a length")];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        let how = self.take(&path, headers, &body);
        let mut stream = reader.into_inner();
        let (status, bytes) = match how {
            Answer::Silence => {
                // Ends when the other side closes.
                let _ = stream.read(&mut [0]);
                return;
            }
            Answer::Unavailable => ("503 Service Unavailable", b"come back later".to_vec()),
            how => ("200 OK", answer(how)),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/x-protobuf\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            bytes.len()
        );
        // The client may have disconnected.
        let _ = stream.write_all(&[head.as_bytes(), &bytes].concat());
    }

    /// Listens for gRPC on its own port, with TLS if there is a certificate; returns the address.
    ///
    /// # Panics
    /// When no port is free.
    pub fn grpc(&self, identity: Option<&certificates::Identity>) -> SocketAddr {
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let address = incoming.local_addr().expect("an address");
        let mut server = Server::builder();
        if let Some(identity) = identity {
            let file = |path: &Path| std::fs::read(path).expect("a file");
            let identity = Identity::from_pem(file(&identity.cert), file(&identity.key));
            server = server.tls_config(ServerTlsConfig::new().identity(identity)).expect("TLS");
        }
        tokio::spawn(server.add_service(Metrics(self.clone())).serve_with_incoming(incoming));
        address
    }
}

/// The service of OTLP, as its proto names it.
#[derive(Clone)]
struct Metrics(Collector);

impl NamedService for Metrics {
    const NAME: &'static str = "opentelemetry.proto.collector.metrics.v1.MetricsService";
}

impl Service<http::Request<Body>> for Metrics {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let value = |value: &http::HeaderValue| value.to_str().unwrap_or_default().to_owned();
        let headers = request.headers().iter().map(|(name, it)| (name.to_string(), value(it))).collect();
        let taking = Taking { collector: self.0.clone(), path: request.uri().path().to_owned(), headers };
        Box::pin(async move { Ok(tonic::server::Grpc::new(BytesCodec).unary(taking, request).await) })
    }
}

struct Taking {
    collector: Collector,
    path: String,
    headers: BTreeMap<String, String>,
}

impl Service<Request<Vec<u8>>> for Taking {
    type Response = Response<Vec<u8>>;
    type Error = Status;
    type Future = std::future::Ready<Result<Self::Response, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Vec<u8>>) -> Self::Future {
        let how = self.collector.take(&self.path, self.headers.clone(), request.get_ref());
        std::future::ready(match how {
            Answer::Unavailable | Answer::Silence => Err(Status::unavailable("come back later")),
            how => Ok(Response::new(answer(how))),
        })
    }
}
