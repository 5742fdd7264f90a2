//! The flags of `ui` and `demo`.

use clap::Args;

/// The page's usual port on this machine: one that is easily forwarded (`ssh -L 7719:localhost:7719 HOST`).
pub const UI_PORT: u16 = 7719;

/// `memctl ui`.
#[derive(Clone, Debug, Default, Args)]
pub struct Ui {
    /// The port of this machine that the page is on; 0 takes any [default: 7719, or any where that is taken].
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Open it in this machine's browser, too.
    #[arg(long)]
    pub open: bool,
}

/// `memctl demo`.
#[derive(Clone, Debug, Default, Args)]
pub struct Demo {
    /// Show the job on the page, until Ctrl-C, instead of asking about it here.
    #[arg(long)]
    pub ui: bool,
    /// With --ui: open the page in this machine's browser, too.
    #[arg(long, requires = "ui")]
    pub open: bool,
}
