//! The committed generated code is what the `.proto` files say.
//!
//! `MEMCTL_REGENERATE=1 cargo test -p memctl-proto --test generated` writes it again.

use std::path::{Path, PathBuf};

use prost::Message as _;

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
        .compile_fds_with_config(descriptors, config)
        .expect("the code is generated");
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
    for name in ["memctl.v1.rs", "descriptor.bin"] {
        let wanted = std::fs::read(fresh.join(name)).expect(name);
        let found = std::fs::read(committed().join(name)).unwrap_or_default();
        assert!(
            wanted == found,
            "proto/src/generated/{name} is stale: run MEMCTL_REGENERATE=1 cargo test -p memctl-proto --test generated"
        );
    }
    std::fs::remove_dir_all(fresh).expect("the temporary folder goes");
}
