//! The flags of `ui` and `demo`.

use clap::Args;

/// The default port of the page on this machine. A fixed port is easy to forward (`ssh -L 7719:localhost:7719 HOST`).
pub const UI_PORT: u16 = 7719;

/// `memctl ui`.
#[derive(Clone, Debug, Default, Args)]
pub struct Ui {
    /// The port of the page on this machine; 0 takes any free port [default: 7719, or any free port if 7719 is in use].
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Also open the page in a browser on this machine.
    #[arg(long)]
    pub open: bool,
}

/// `memctl demo`.
#[derive(Clone, Debug, Default, Args)]
pub struct Demo {
    /// Show the job on the page until Ctrl-C, and print no analysis.
    #[arg(long)]
    pub ui: bool,
    /// With --ui: also open the page in a browser on this machine.
    #[arg(long, requires = "ui")]
    pub open: bool,
}
