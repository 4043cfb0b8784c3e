//! Reads and writes at once over many sessions.

use std::time::Duration;

use crate::Outcome;
use crate::bench::{Bench, Place};
use crate::content::{ORDINARY, Session, append_body, expect, message};
use crate::floor::Durability;
use crate::load::{Kind, quantile, slice};
use crate::report::Goal;
use crate::wire::{Connection, Target};

const SESSIONS: usize = 1_000;
const CONNECTIONS: usize = 8;
/// Messages that each session begins with.
const BEGINNING: usize = 20;
/// Reads among a hundred requests.
const READS: u64 = 80;

/// A session with its two requests.
struct Known {
    read: Vec<u8>,
    write: Vec<u8>,
    count: usize,
}

/// One connection with sessions of its own, so that it knows exactly what each holds.
struct Client {
    connection: Connection,
    sessions: Vec<Known>,
    random: u64,
    reads: u64,
}

impl Client {
    fn several(target: &Target) -> Outcome<Vec<Self>> {
        (0..CONNECTIONS)
            .map(|number| Self::new(target, number))
            .collect()
    }

    fn new(target: &Target, number: usize) -> Outcome<Self> {
        let body = append_body([message(0, ORDINARY)]);
        let sessions = (0..SESSIONS / CONNECTIONS).map(|_| {
            let session = Session::create(target, BEGINNING)?;
            Ok(Known {
                read: target.request("GET", &session.path("context"), ""),
                write: target.request("POST", &session.path("messages"), &body),
                count: session.count,
            })
        });
        Ok(Self {
            connection: target.connect()?,
            sessions: sessions.collect::<Outcome<_>>()?,
            random: 0x9E37_79B9_7F4A_7C15 ^ (u64::try_from(number)? << 32),
            reads: READS,
        })
    }

    /// Xorshift: the same requests in every run.
    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % below
    }

    fn step(&mut self) -> Outcome<Kind> {
        let is_read = self.draw(100) < self.reads;
        let which = self.draw(u64::try_from(self.sessions.len())?);
        let session = self.sessions.get_mut(usize::try_from(which)?);
        let session = session.ok_or("no session")?;
        let connection = &mut self.connection;
        if is_read {
            expect(connection.exchange(&session.read)?, 200, connection)?;
            let found = connection.messages();
            if found != session.count {
                return Err(format!("{found} messages instead of {}", session.count).into());
            }
            return Ok(Kind::Read);
        }
        expect(connection.exchange(&session.write)?, 201, connection)?;
        session.count += 1;
        Ok(Kind::Write)
    }
}

struct Sides {
    subject: Vec<Client>,
    floor: Vec<Client>,
    time: Duration,
}

/// With each commit on the disk, and where commits wait for no disk.
pub fn mixed(bench: &mut Bench, place: Place) -> Outcome<()> {
    against_floor(bench, place, Durability::Full)?;
    if bench.can_relax() {
        against_floor(bench, Place::Relaxed, Durability::Normal)?;
    }
    Ok(())
}

fn against_floor(bench: &mut Bench, place: Place, durability: Durability) -> Outcome<()> {
    let service = bench.service(place, &[])?;
    let floor = bench.floor(place, durability)?;
    let mut sides = Sides {
        subject: Client::several(&service.server.target)?,
        floor: Client::several(&floor.server.target)?,
        time: bench.options.slice(),
    };
    let rate = |clients: &mut Vec<Client>, time| Ok(slice(clients, time, Client::step)?.rate);
    let rounds = bench.alternate(
        &mut sides,
        |sides| rate(&mut sides.subject, sides.time),
        |sides| rate(&mut sides.floor, sides.time),
    )?;
    let what = format!(
        "{READS} reads to {} writes, floor that commits each request",
        100 - READS
    );
    let heading = bench.heading("mixed", what, place, CONNECTIONS)?;
    bench.keep(heading, "/s", &rounds, Goal::AtLeast(0.5));

    let p99 = |sides: &mut Sides, reads| -> Outcome<f64> {
        for client in &mut sides.subject {
            client.reads = reads;
        }
        let slice = slice(&mut sides.subject, sides.time, Client::step)?;
        Ok(quantile(&slice.reads, 99))
    };
    let rounds = bench.alternate(
        &mut sides,
        |sides| p99(sides, READS),
        |sides| p99(sides, 100),
    )?;
    let heading = bench.heading(
        "mixed",
        "p99 of reads with writes, without",
        place,
        CONNECTIONS,
    )?;
    bench.keep(heading, "µs", &rounds, Goal::AtMost(2.0));
    Ok(())
}
