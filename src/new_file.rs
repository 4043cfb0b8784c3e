//! A file that appears under its name only when it is whole, and overwrites nothing.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use uuid::Uuid;

/// Why a file was not made.
#[derive(Debug, thiserror::Error)]
pub enum NewFileError {
    /// The name is taken.
    #[error("{0} exists already, and nothing is overwritten")]
    Exists(PathBuf),
    /// It cannot be written there.
    #[error("cannot write {path}")]
    Write {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// The file while it is written, under a name of its own beside the one that it is to have. It is for its owner alone
/// (mode 0600): it holds conversations. Dropped, it is removed.
pub struct NewFile {
    target: PathBuf,
    path: PathBuf,
}

impl NewFile {
    /// Makes it, empty.
    ///
    /// # Errors
    /// The name is taken, or nothing can be written beside it.
    pub fn make(target: &Path) -> Result<Self, NewFileError> {
        if target.symlink_metadata().is_ok() {
            return Err(NewFileError::Exists(target.to_owned()));
        }
        let mut name = OsString::from(".");
        name.push(target.file_name().unwrap_or_default());
        name.push(format!(".{}.partial", Uuid::now_v7().simple()));
        let file = Self {
            target: target.to_owned(),
            path: target.with_file_name(name),
        };
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&file.path);
        match made {
            Ok(_) => Ok(file),
            Err(source) => Err(file.failed(source)),
        }
    }

    /// Where it lies now.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens it to be written.
    ///
    /// # Errors
    /// It cannot be.
    pub fn open(&self) -> Result<File, NewFileError> {
        let opened = OpenOptions::new().write(true).open(&self.path);
        opened.map_err(|source| self.failed(source))
    }

    /// Syncs it and gives it its name, if that is still free; gives its length in bytes.
    ///
    /// # Errors
    /// The name is taken by now, or the disk failed.
    pub fn publish(self) -> Result<u64, NewFileError> {
        let file = File::open(&self.path).map_err(|source| self.failed(source))?;
        let synced = file.sync_all().and_then(|()| file.metadata());
        let bytes = synced.map_err(|source| self.failed(source))?.len();
        match std::fs::hard_link(&self.path, &self.target) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(NewFileError::Exists(self.target.clone()));
            }
            // Some file systems know no links; there a file that was made in this moment would be overwritten.
            Err(_) => {
                std::fs::rename(&self.path, &self.target).map_err(|source| self.failed(source))?;
            }
        }
        let directory = self.target.parent();
        let directory = directory.filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))
            .and_then(|directory| directory.sync_all())
            .map_err(|source| self.failed(source))?;
        Ok(bytes)
    }

    fn failed(&self, source: io::Error) -> NewFileError {
        NewFileError::Write {
            path: self.target.clone(),
            source,
        }
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // SQLite may have had companions beside it; mostly there are none.
        for suffix in ["", "-journal", "-wal", "-shm"] {
            let mut name = self.path.clone().into_os_string();
            name.push(suffix);
            drop(std::fs::remove_file(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_appears_when_it_is_published_and_leaves_nothing_beside() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("out");
        let file = NewFile::make(&target).unwrap();
        file.open().unwrap().write_all(b"whole").unwrap();
        assert!(!target.exists(), "not before it is published");
        assert_eq!(file.publish().unwrap(), 5);
        assert_eq!(std::fs::read(&target).unwrap(), b"whole");
        let mode = target.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn nothing_is_overwritten_and_what_is_dropped_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("out");
        let early = NewFile::make(&target).unwrap();
        std::fs::write(&target, "theirs").unwrap();
        assert!(matches!(
            NewFile::make(&target),
            Err(NewFileError::Exists(_))
        ));
        assert!(matches!(early.publish(), Err(NewFileError::Exists(_))));
        assert_eq!(std::fs::read(&target).unwrap(), b"theirs");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
