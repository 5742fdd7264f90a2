//! Tests how paths are treated, and that the kind of each frame stays the same.

use super::*;
use memctl_model::site_of;
use proptest::prelude::*;

fn short() -> SourcePaths {
    SourcePaths::short(&["/home/ann/lab/llm".into()])
}

fn hashed() -> SourcePaths {
    SourcePaths::hashed(Key::given("0123456789abcdef").unwrap(), &["/home/ann/lab/llm/".into(), "/".into()])
}

#[test]
fn nothing_is_changed_unless_asked() {
    let full = SourcePaths::default();
    for text in ["/home/ann/x.py", "<string>", "", "no such file: '/home/ann'"] {
        assert!(matches!(full.file(text), Cow::Borrowed(same) if same == text));
        assert!(matches!(full.text(text), Cow::Borrowed(same) if same == text));
    }
}

#[test]
fn a_short_path_begins_where_a_person_knows_the_way() {
    for (path, becomes) in [
        ("/home/ann/lab/llm/model/net.py", "model/net.py"),
        ("/home/ann/lab/llm2/model/net.py", "model/net.py"),
        ("/srv/shared/tools/loss.py", "tools/loss.py"),
        ("train.py", "train.py"),
        ("./train.py", "train.py"),
        ("/train.py", "train.py"),
        ("/home/ann/.venv/lib/python3.11/site-packages/torch/nn/init.py", "/site-packages/torch/nn/init.py"),
        ("/home/ann/.venv/lib/python3.11/site-packages/acme/x.py", "/site-packages/acme/x.py"),
        ("/opt/py/lib/python3.12/threading.py", "/lib/python3.12/threading.py"),
        ("C:\\lab\\site-packages\\torch\\nn\\init.py", "/site-packages/torch/nn/init.py"),
        ("C:\\lab\\llm\\net.py", "llm/net.py"),
        ("/tmp/torchinductor_ann/7h/x.py", "/torchinductor_/7h/x.py"),
        ("<string>", "<string>"),
        ("??", "??"),
        ("", ""),
    ] {
        assert_eq!(short().file(path), becomes, "{path}");
    }
}

#[test]
fn a_hash_hides_every_name_that_is_not_public() {
    let hashed = hashed();
    let own = hashed.file("/home/ann/lab/llm/model/net.py").into_owned();
    assert!(own.len() == 19 && own.ends_with(".py"), "{own}");
    assert_eq!(own, hashed.file("model/net.py"), "a rank that was started otherwise");
    assert_ne!(own, hashed.file("model/net2.py"));
    for (path, becomes) in [
        ("/home/ann/v/lib/python3.11/site-packages/torch/nn/init.py", "/site-packages/torch/nn/init.py"),
        ("/home/ann/v/lib/python3.11/runpy.py", "/lib/python3.11/runpy.py"),
        ("<frozen runpy>", "<frozen runpy>"),
        ("<autograd>", "<autograd>"),
    ] {
        assert_eq!(hashed.file(path), becomes);
    }
    for path in [
        "/home/ann/v/lib/python3.11/site-packages/acme/models/modeling_acme.py",
        "/home/ann/v/lib/python3.11/site-packages/acme.py",
        "/home/ann/v/lib/python3.11/acme/x.py",
        "/home/ann/lib/python3.11/acme.py",
        "/home/ann/lib/python3.acme/x.py",
        "/home/ann/lib/python3.11acme",
        "/acme/site-packages/acme/lib.so",
        "C:\\acme\\x.py",
        "<acme>",
        "acme",
        "/tmp/torchinductor_acme/acme/acme.py",
        "/acme/fx_generated_acme.py",
        "../acme/x.py",
    ] {
        let treated = hashed.file(path);
        assert!(!treated.contains("acme") && !treated.contains("ann"), "{path} becomes {treated}");
    }
}

#[test]
fn paths_in_texts_are_treated_too() {
    let (short, hashed) = (short(), hashed());
    let net = hashed.file("model/net.py").into_owned();
    for (text, briefly) in [
        ("No such file: '/home/ann/lab/llm/model/net.py'", "No such file: 'model/net.py'"),
        ("at /home/ann/lab/llm/model/net.py:31: bad", "at model/net.py:31: bad"),
        ("(model=/home/ann/lab/llm/model/net.py)", "(model=model/net.py)"),
    ] {
        assert_eq!(short.text(text), briefly);
        assert_eq!(hashed.text(text), briefly.replace("model/net.py", &net), "{text}");
    }
    for text in [
        "FileNotFoundError: [Errno 2] No such file or directory: '/home/ann/my acme/x y.bin'",
        "see \"acme/notes.txt\", please",
        "cannot open acme.py",
        "~/acme/x is a directory.",
        "s3://acme/bucket and file:///acme/x",
        "PATH:/acme/bin:/acme/sbin",
        "it's /acme/x, isn't it",
        "C:\\acme\\x is missing",
        "../acme",
        "can't load './acme'",
    ] {
        let treated = hashed.text(text);
        assert!(!treated.contains("acme"), "{text} becomes {treated}");
    }
    for text in [
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.11 GiB (see https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)",
        "killed by signal 9 (SIGKILL), probably the kernel's out-of-memory killer",
        "epoch 3 of 1/2",
        "",
    ] {
        assert_eq!(hashed.text(text), text);
        assert_eq!(short.text(text), text);
    }
    assert_eq!(hashed.found_by("the loop at train.py:31"), "the loop at line 31");
    assert_eq!(hashed.found_by("Optimizer.step"), "Optimizer.step");
    assert_eq!(short.found_by("the loop at train.py:31"), "the loop at train.py:31");
}

/// Parts that identify the kind of a path, and parts that look like them.
fn part() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "home",
        "acme",
        "lib",
        "python3.11",
        "site-packages",
        "dist-packages",
        "torch",
        "nn",
        "optim",
        "models",
        "transformers",
        "torchinductor_ann",
        "7h",
        "modeling_x.py",
        "net.py",
        "x.so",
        "engine.cpp",
        "fx_generated_1.py",
        "c7hlavqxyzabcdefghijklmnopqrstuvwxyz234567abcdefghij.py",
        "script",
        "threading.py",
        "..",
        "a.b",
    ])
}

proptest! {
    #[test]
    fn a_frame_stays_what_it_was(parts in prop::collection::vec(part(), 1..8), relative: bool) {
        let path = format!("{}{}", if relative { "" } else { "/" }, parts.join("/"));
        let frame = |file: &str| Frame { function: "forward".into(), file: file.into(), line: 1 };
        let trainer = frame("/v/lib/python3.11/site-packages/acme/trainer.py");
        let script = frame("/home/ann/train.py");
        for paths in [short(), hashed()] {
            let mut treated = Treated::new(paths);
            let frames = [frame(&path), Frame { function: "fit".into(), ..trainer.clone() }, script.clone()];
            let shown = treated.frames(&frames).unwrap();
            prop_assert_eq!(frames[0].is_user_code(), shown[0].is_user_code(), "{} {}", path, shown[0].file);
            prop_assert_eq!(frames[0].is_compiled(), shown[0].is_compiled(), "{} {}", path, shown[0].file);
            // The site is the same frame of the stack.
            let site = |frames: &[Frame]| site_of(frames.iter()).map(|site| frames.iter().position(|it| it == site));
            prop_assert_eq!(site(&frames), site(&shown), "{} {}", path, shown[0].file);
        }
    }

    #[test]
    fn no_text_is_too_strange(text in "\\PC{0,60}", words in prop::collection::vec(part(), 0..6)) {
        for text in [text, words.join("/"), format!("'{}", words.join("' '/"))] {
            let _ = (short().text(&text), hashed().text(&text), hashed().file(&text), short().file(&text));
        }
    }
}
