//! `memctl token` and `memctl audit`: which principal may do what, and which actions were taken.
//!
//! Guarantees: a token is printed to standard output once and written nowhere else.

use std::io::Write;

use memctl_answers::access::{Audit, Tokens};
use memctl_proto::v1;
use memctl_proto::v1::access_client::AccessClient;

use crate::args::access::{self, TokenCommand};
use crate::args::{Format, Global};
use crate::client::{answered, asking};
use crate::connect::Connection;
use crate::exit::Failure;
use crate::hosting::Asking;
use crate::output::show;
use crate::render::screen::Screen;
use crate::render::text::safe;

/// Bytes of a response with the maximum number of entries.
const ANSWER_BYTES_MAX: usize = 64 << 20;

fn client(connection: &Connection) -> AccessClient<Asking> {
    AccessClient::new(connection.asking()).max_decoding_message_size(ANSWER_BYTES_MAX)
}

/// See the module.
///
/// # Errors
/// See [`Failure`].
pub async fn token(
    args: &access::Token,
    global: &Global,
    screen: &Screen,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    match &args.command {
        TokenCommand::Create(args) => create(args, global, screen, out).await,
        TokenCommand::List => {
            let answer = asking(global, async |connection| {
                answered(client(connection).list_tokens(v1::ListTokensRequest {}).await, connection)
            });
            let tokens: Tokens = answer.await?;
            show(&tokens, global, screen, out)
        }
        TokenCommand::Revoke { token } => {
            let request = v1::RevokeTokenRequest { token: token.clone() };
            let answer =
                asking(global, async |connection| answered(client(connection).revoke_token(request).await, connection));
            let tokens: Tokens = answer.await?;
            show(&tokens, global, screen, out)
        }
    }
}

async fn create(
    args: &access::CreateToken,
    global: &Global,
    screen: &Screen,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let access::CreateToken { name, role, jobs, expires } = args.clone();
    let tenant = global.credentials().tenant.unwrap_or_default();
    let expires_in_ns = expires.map(|time| time.0);
    let request = v1::CreateTokenRequest { name, role: role.to_wire() as i32, tenant, jobs, expires_in_ns };
    let answer =
        asking(global, async |connection| answered(client(connection).create_token(request).await, connection));
    let made: Tokens = answer.await?;
    // `-q` prints the secret alone, for a file: `memctl token create … -q >token`.
    if global.quiet && global.output == Format::Table {
        let secret: String = made.tokens.into_iter().filter_map(|token| token.secret).collect();
        return writeln!(out, "{}", safe(&secret)).map_err(|error| Failure::output("standard output", &error));
    }
    show(&made, global, screen, out)
}

/// `memctl audit`.
///
/// # Errors
/// See [`Failure`].
pub async fn audit(
    args: &access::Audit,
    global: &Global,
    screen: &Screen,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let limit = args.limit;
    let answer = asking(global, async |connection| {
        answered(client(connection).list_audit(v1::ListAuditRequest { limit }).await, connection)
    });
    let audit: Audit = answer.await?;
    show(&audit, global, screen, out)
}
