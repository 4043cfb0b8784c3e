//! Being told to stop: what was started then ends in order, with its files, which may be held in memory.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};

use crate::Outcome;

static TOLD: AtomicBool = AtomicBool::new(false);

/// Begins to listen for the signals that ask for it.
pub fn listen() -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            let (Ok(mut interrupt), Ok(mut terminate)) = (
                signal(SignalKind::interrupt()),
                signal(SignalKind::terminate()),
            ) else {
                return;
            };
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            TOLD.store(true, Ordering::Relaxed);
        });
    });
    Ok(())
}

/// Fails once it was asked for.
pub fn check() -> Outcome<()> {
    if TOLD.load(Ordering::Relaxed) {
        return Err("told to stop".into());
    }
    Ok(())
}
