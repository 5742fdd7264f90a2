//! The committed generated code is what the `.proto` files say.
//!
//! `MEMCTL_REGENERATE=1 cargo test -p memctl-proto --test all generated` writes it again.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use prost::Message as _;
use prost_types::FileDescriptorSet;

const PROTOS: [&str; 7] = [
    "memctl/v1/nouns.proto",
    "memctl/v1/holders.proto",
    "memctl/v1/ingest.proto",
    "memctl/v1/alerts.proto",
    "memctl/v1/query.proto",
    "memctl/v1/access.proto",
    "memctl/v1/page.proto",
];

fn generate(out: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let descriptors = protox::compile(PROTOS, [root]).expect("the .proto files compile");
    std::fs::write(out.join("descriptor.bin"), descriptors.encode_to_vec()).expect("descriptor is written");
    let mut config = prost_build::Config::new();
    // Payloads are handed on without a copy.
    config.bytes([".memctl.v1.Item.payload", ".memctl.v1.ExportPart"]);
    config.out_dir(out);
    tonic_prost_build::configure()
        .out_dir(out)
        .codec_path("crate::codec::Bounded")
        // Connections are made elsewhere, and WebAssembly has none.
        .build_transport(false)
        .compile_fds_with_config(descriptors, config)
        .expect("the code is generated");
    prost_build::Config::new()
        .disable_comments(["."])
        .include_file("opentelemetry.rs")
        .out_dir(out)
        .compile_fds(otlp())
        .expect("the code of OTLP is generated");
}

/// The messages of OpenTelemetry that are sent and read; fields of other types are left out.
const OTLP: [&str; 15] = [
    "AnyValue",
    "ExportMetricsPartialSuccess",
    "ExportMetricsServiceRequest",
    "ExportMetricsServiceResponse",
    "Gauge",
    "Histogram",
    "HistogramDataPoint",
    "InstrumentationScope",
    "KeyValue",
    "Metric",
    "NumberDataPoint",
    "Resource",
    "ResourceMetrics",
    "ScopeMetrics",
    "Sum",
];

/// OpenTelemetry's protos as far as they are needed.
fn otlp() -> FileDescriptorSet {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/opentelemetry");
    let service = "opentelemetry/proto/collector/metrics/v1/metrics_service.proto";
    let mut descriptors = protox::compile([service], [root]).expect("OpenTelemetry's .proto files compile");
    for file in &mut descriptors.file {
        file.service.clear();
        file.message_type.retain(|message| OTLP.contains(&message.name()));
        for message in &mut file.message_type {
            let is_needed = |of: &str| OTLP.contains(&of) || of == "AggregationTemporality";
            message
                .field
                .retain(|field| field.type_name().rsplit('.').next().is_none_or(|of| of.is_empty() || is_needed(of)));
        }
        file.enum_type.retain(|kind| kind.name() == "AggregationTemporality");
    }
    descriptors
}

fn committed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/generated")
}

#[test]
fn committed_code_is_generated_from_the_protos() {
    if std::env::var_os("MEMCTL_REGENERATE").is_some() {
        generate(&committed());
        return;
    }
    let fresh = std::env::temp_dir().join(format!("memctl-generated-{}", std::process::id()));
    std::fs::create_dir_all(&fresh).expect("a temporary folder");
    generate(&fresh);
    let names = |folder: &Path| -> BTreeSet<std::ffi::OsString> {
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").file_name()).collect()
    };
    assert_eq!(names(&fresh), names(&committed()));
    for name in names(&fresh) {
        let wanted = std::fs::read(fresh.join(&name)).expect("a generated file");
        let found = std::fs::read(committed().join(&name)).unwrap_or_default();
        assert!(
            wanted == found,
            "proto/src/generated/{} is stale: run MEMCTL_REGENERATE=1 cargo test -p memctl-proto --test all generated",
            name.display()
        );
    }
    std::fs::remove_dir_all(fresh).expect("the temporary folder goes");
}
