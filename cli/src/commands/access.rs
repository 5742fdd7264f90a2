//! `memctl token` and `memctl audit`: who may do what, and who did.
//!
//! Guarantees: a token is printed to standard output once and goes nowhere else.

use std::io::Write;

use jiff::Timestamp;
use memctl_answers::access::{Audit, Token, Tokens};
use memctl_proto::v1;
use memctl_proto::v1::access_client::AccessClient;

use crate::args::access::{self, TokenCommand};
use crate::args::{Format, Global};
use crate::client::asking;
use crate::connect::Connection;
use crate::exit::Failure;
use crate::hosting::Asking;
use crate::output::show;
use crate::render::screen::Screen;
use crate::render::text::safe;

/// Bytes of as many entries as there can be in an answer.
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
    now: Timestamp,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    match &args.command {
        TokenCommand::Create(args) => create(args, global, screen, now, out).await,
        TokenCommand::List => {
            let answer = asking(global, async |connection| {
                let response = client(connection).list_tokens(v1::ListTokensRequest {}).await;
                Ok(response.map_err(|status| connection.failure(&status))?.into_inner().tokens)
            });
            show(&Tokens::new(answer.await?, now), global, screen, out)
        }
        TokenCommand::Revoke { token } => {
            let request = v1::RevokeTokenRequest { token: token.clone() };
            let answer = asking(global, async |connection| {
                let response = client(connection).revoke_token(request).await;
                Ok(response.map_err(|status| connection.failure(&status))?.into_inner())
            });
            show(&Tokens::new(vec![answer.await?], now), global, screen, out)
        }
    }
}

async fn create(
    args: &access::CreateToken,
    global: &Global,
    screen: &Screen,
    now: Timestamp,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let access::CreateToken { name, role, jobs, expires } = args.clone();
    let tenant = global.credentials().tenant.unwrap_or_default();
    let expires_in_ns = expires.map(|time| time.0);
    let request = v1::CreateTokenRequest { name, role: role.to_wire() as i32, tenant, jobs, expires_in_ns };
    let answer = asking(global, async |connection| {
        let response = client(connection).create_token(request).await;
        Ok(response.map_err(|status| connection.failure(&status))?.into_inner())
    });
    let v1::CreateTokenResponse { token, secret } = answer.await?;
    // Alone, for a file: `memctl token create … -q >token`.
    if global.quiet && global.output == Format::Table {
        return writeln!(out, "{}", safe(&secret)).map_err(|error| Failure::output("standard output", &error));
    }
    let mut tokens = Tokens::new(Vec::new(), now);
    tokens.tokens.push(Token { secret: Some(secret), ..Token::new(token.unwrap_or_default(), now) });
    show(&tokens, global, screen, out)
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
        let response = client(connection).list_audit(v1::ListAuditRequest { limit }).await;
        Ok(Audit::from(response.map_err(|status| connection.failure(&status))?.into_inner()))
    });
    show(&answer.await?, global, screen, out)
}
