//! `memctl diff`: compares the memory of two runs.
//!
//! Guarantees: a word with `/` or the ending `.json` is a file; every other word is a job, or a job's run. One job means
//! its newest run and the run before it.

use std::io::Write;

use memctl_answers::diff::Diff;
use memctl_answers::profile::Profile;

use crate::args::{self, Global};
use crate::baseline_file::baseline;
use crate::client::{asking, newest, profile};
use crate::connect::Connection;
use crate::exit::Failure;
use crate::output::show;
use crate::page::diff::markdown;
use crate::render::screen::Screen;
use crate::unrecorded;

/// See the module.
///
/// # Errors
/// See [`Failure`].
pub async fn run(
    args: &args::Diff,
    global: &Global,
    screen: &Screen,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let (before, after) = asking(global, async |connection| {
        let [before, after] = sides(connection, &args.runs).await?;
        let explained = |word: &str, failure| unrecorded::explained(global, word, failure);
        let before_side = side(connection, &before, true).await.map_err(|failure| explained(&before, failure))?;
        Ok((before_side, side(connection, &after, true).await.map_err(|failure| explained(&after, failure))?))
    })
    .await?;
    args.runs.iter().for_each(|word| unrecorded::note(global, word));
    let diff = Diff::new((&before.0, &before.1), (&after.0, &after.1), args.ignore);
    if args.markdown {
        return out.write_all(markdown(&diff).as_bytes()).map_err(|error| Failure::output("standard output", &error));
    }
    show(&diff, global, screen, out)
}

/// One side of a comparison: the name under which it is shown, and its profile.
pub type Side = (String, Profile);

/// The two sides of a comparison, from none, one or two words. Words name files only with `may_read`.
///
/// # Errors
/// See [`Failure`].
pub async fn compared(connection: &mut Connection, words: &[String], may_read: bool) -> Result<(Side, Side), Failure> {
    let [before, after] = sides(connection, words).await?;
    Ok((side(connection, &before, may_read).await?, side(connection, &after, may_read).await?))
}

async fn sides(connection: &mut Connection, words: &[String]) -> Result<[String; 2], Failure> {
    if let [before, after] = words {
        return Ok([before.clone(), after.clone()]);
    }
    let job = words.first().map_or("latest", String::as_str);
    match newest(connection, job, 2).await?.as_slice() {
        [after, before] => Ok([before.id.clone(), after.id.clone()]),
        _ => Err(Failure::usage(format!(
            "there are no two runs of {job} to compare; name two: `memctl diff RUN RUN` (`memctl jobs` lists them)"
        ))),
    }
}

async fn side(connection: &mut Connection, word: &str, may_read: bool) -> Result<Side, Failure> {
    let file = if may_read { baseline(word)? } else { None };
    match file {
        Some(baseline) => Ok((word.to_owned(), baseline.profile)),
        None => {
            let profile = profile(connection, word).await?;
            Ok((profile.job.clone(), profile))
        }
    }
}
