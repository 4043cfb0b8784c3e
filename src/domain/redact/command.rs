//! Passwords given to programs by a short option: `mysql -pword`, `curl -u user:word`.
//!
//! A letter means something else to each program (`mkdir -p`, `docker run -p 80:80`), so the program
//! named last decides. Long options are names like any other and belong to `assign`.

use super::input::{Input, is_quote};
use super::value;
use super::{Kind, Span};

/// A program, or one of its commands, that takes a password by a short option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    /// `-u user:password`
    Curl,
    /// `-ppassword`; with a blank it would ask for one.
    Mysql,
    /// `-p password`
    Login,
    /// `-a password`
    Redis,
    /// Any that means something else by `-p`.
    Other,
}

/// How far behind a program its options are looked for, in bytes.
const REACH: usize = 1024;

/// The program named last.
#[derive(Debug, Default)]
pub(super) struct Commands {
    last: Option<(Program, usize)>,
}

impl Commands {
    /// The password in an option that begins at the run from `start` to `end`.
    pub(super) fn find(
        &mut self,
        input: &Input<'_>,
        start: usize,
        end: usize,
        spans: &mut Vec<Span>,
    ) -> Option<usize> {
        let run = input.slice(start, end);
        if let Some(program) = program(run) {
            self.last = Some((program, end));
            return None;
        }
        if !run.starts_with('-') {
            return None;
        }
        let program = self
            .last
            .filter(|&(_, at)| start - at <= REACH)
            .map(|(program, _)| program);
        let (from, is_curl) = match (program, run) {
            (Some(Program::Curl), "-u" | "--user" | "--proxy-user") => {
                (argument(input, end)?, true)
            }
            (Some(Program::Login), "-p") | (Some(Program::Redis), "-a") => {
                (argument(input, end)?, false)
            }
            (Some(Program::Mysql | Program::Login), _)
                if run.starts_with("-p") && !run.starts_with("-pr") =>
            {
                (start + 2, false)
            }
            (_, "-p") if input.quote(end).is_some() => (end, false),
            _ => return None,
        };
        let span = password(input, from, is_curl)?;
        spans.push(span);
        Some(span.end)
    }
}

/// Where the argument after an option begins.
fn argument(input: &Input<'_>, end: usize) -> Option<usize> {
    // `["-u", "user:password"]`
    if let Some((after, ..)) = input.quote(end)
        && input.byte(after) == Some(b',')
    {
        return Some(input.skip_space(after + 1));
    }
    let at = input.run_end_within(end, 8, |byte| matches!(byte, b' ' | b'='));
    (at > end).then_some(at)
}

/// The password that begins at `at`, behind the user's name if `has_user`.
fn password(input: &Input<'_>, at: usize, has_user: bool) -> Option<Span> {
    let quote = input.quote(at);
    let mut start = quote.map_or(at, |(after, ..)| after);
    let end = input.run_end_within(start, 256, |byte| {
        byte.is_ascii_graphic() && !is_quote(byte) && !b"\\;|<>".contains(&byte)
    });
    if has_user {
        let user = input.slice(start, end);
        let (name, secret) = user.split_once(':')?;
        if name == secret {
            return None;
        }
        start += name.len() + 1;
    }
    let secret = input.slice(start, end);
    let is_password = secret.len() >= 3
        && input.placeholder_end(start).is_none()
        && !value::is_blank_form(secret)
        && !secret
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b':')
        && !secret.starts_with(['-', '/', '.', '^', '('])
        && !secret.contains("://");
    is_password.then_some(Span::new(start, end, Kind::Password))
}

fn program(run: &str) -> Option<Program> {
    Some(match run {
        "curl" => Program::Curl,
        "mysql" | "mysqldump" | "mysqladmin" | "mariadb" | "mariadb-dump" => Program::Mysql,
        "sshpass" | "mongosh" | "mongo" | "mongodump" | "mongorestore" | "login" => Program::Login,
        "redis-cli" => Program::Redis,
        "ssh" | "scp" | "mkdir" | "run" | "psql" | "grep" | "cp" | "tar" | "nmap" | "cargo"
        | "git" | "perl" | "rg" | "pg_dump" | "python" => Program::Other,
        _ => return None,
    })
}
