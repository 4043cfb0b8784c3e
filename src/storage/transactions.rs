//! How a [`Write`] runs on PostgreSQL: in a transaction of its own, or as one statement if it can be that.

use std::time::Instant;

use sqlx::{Connection, Postgres};

use super::connections::Connections;
use super::writer::{TRIES, back_off};
use super::{Conn, Result, Signals, StorageError, StorageWatch, Write};

/// Runs a write in a PostgreSQL transaction, again if it met a concurrent one. It has to be run to its end: see
/// `Database::write`.
pub async fn write_postgres<W: Write>(
    pool: Connections<Postgres>,
    signals: Signals,
    watch: StorageWatch,
    mut write: W,
) -> Result<W::Output> {
    let mut tried = 1;
    loop {
        let outcome = try_postgres(&pool, &signals, &watch, &mut write).await;
        watch.note(outcome.as_ref().err());
        match outcome {
            Err(StorageError::Contended(_) | StorageError::Duplicate(_)) if tried < TRIES => {
                back_off(tried).await;
                tried += 1;
            }
            outcome => return outcome,
        }
    }
}

async fn try_postgres<W: Write>(
    pool: &Connections<Postgres>,
    signals: &Signals,
    watch: &StorageWatch,
    write: &mut W,
) -> Result<W::Output> {
    let mut held = watch.acquire(pool).await?;
    if let Some(quick) = write.quick()? {
        let began = Instant::now();
        if quick.run_postgres(&mut held).await? {
            held.give_back();
            watch.commit.observe(began.elapsed().as_secs_f64());
            signals.send(vec![quick.signal()]);
            let answer = write.answer_quick(&quick);
            return answer.ok_or(StorageError::Corrupt("a write without an answer"));
        }
    }
    let mut transaction = held.begin().await?;
    let mut conn = Conn::postgres(&mut transaction);
    let output = write.run(&mut conn).await?;
    let committed = conn.into_signals();
    let began = Instant::now();
    transaction.commit().await?;
    held.give_back();
    watch.commit.observe(began.elapsed().as_secs_f64());
    signals.send(committed);
    Ok(output)
}
