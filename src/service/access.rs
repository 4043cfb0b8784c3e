//! Whose a request is and what it may do: scopes, and the caller that every use case is given.
//!
//! How a caller proves who it is stands elsewhere; how a request names a key is HTTP's.

use super::ServiceError;
use crate::storage::TenantId;

/// Something that a key allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// To see what is stored.
    Read,
    /// To change it, and to have a model asked.
    Write,
    /// To manage keys. Reading and writing come with it.
    Admin,
}

impl Scope {
    /// All of them, the least first.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Admin];

    /// Its name on the wire and in the database.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }

    /// The scope of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == name)
    }

    const fn bit(self) -> u8 {
        match self {
            Self::Read => 1,
            Self::Write => 2,
            Self::Admin => 4,
        }
    }
}

/// A set of scopes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scopes(u8);

impl Scopes {
    /// Every scope there is.
    pub const ALL: Self = Self::NONE
        .with(Scope::Read)
        .with(Scope::Write)
        .with(Scope::Admin);
    /// No scope.
    pub const NONE: Self = Self(0);

    /// These and one more.
    #[must_use]
    pub const fn with(self, scope: Scope) -> Self {
        Self(self.0 | scope.bit())
    }

    /// Whether one of them allows this: its own, or `admin`, which allows everything.
    #[must_use]
    pub const fn allow(self, scope: Scope) -> bool {
        self.0 & (scope.bit() | Scope::Admin.bit()) != 0
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The names of those that it was made of, the least first.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Scope::ALL
            .into_iter()
            .filter(move |scope| self.0 & scope.bit() != 0)
            .map(Scope::as_str)
    }

    /// Reads names with commas between them; `None` if one is no scope, or none is there.
    #[must_use]
    pub fn parse(names: &str) -> Option<Self> {
        names
            .split(',')
            .try_fold(Self::NONE, |scopes, name| {
                Some(scopes.with(Scope::parse(name.trim())?))
            })
            .filter(|scopes| !scopes.is_empty())
    }
}

/// Names with commas between them.
impl std::fmt::Display for Scopes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, name) in self.names().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            f.write_str(name)?;
        }
        Ok(())
    }
}

/// How far a caller's scopes reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authority {
    /// Over its tenant.
    Tenant,
    /// Keys of every tenant; data of its own only.
    Server,
}

/// Whose request it is, and what it may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// The tenant; every use case asks for it.
    pub tenant: TenantId,
    /// What it may do.
    pub scopes: Scopes,
    /// How far that reaches.
    pub authority: Authority,
}

impl Caller {
    /// Whoever asks while there are no keys, and who holds the server's own: the tenant `default`, everything allowed.
    pub const DEFAULT: Self = Self {
        tenant: TenantId(1),
        scopes: Scopes::ALL,
        authority: Authority::Server,
    };

    /// The service itself, at work for a tenant that nobody asked for just now.
    #[must_use]
    pub const fn itself(tenant: TenantId) -> Self {
        Self {
            tenant,
            scopes: Scopes::ALL,
            authority: Authority::Tenant,
        }
    }

    /// Refuses a caller that may not do this.
    ///
    /// # Errors
    /// It lacks the scope.
    pub fn require(self, scope: Scope) -> Result<(), ServiceError> {
        if self.scopes.allow(scope) {
            Ok(())
        } else {
            Err(ServiceError::ScopeMissing(scope))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admin_allows_everything_and_the_others_only_themselves() {
        for (names, allowed) in [
            ("read", [true, false, false]),
            ("write", [false, true, false]),
            ("write,read", [true, true, false]),
            ("admin", [true, true, true]),
        ] {
            let scopes = Scopes::parse(names).unwrap();
            assert_eq!(
                Scope::ALL.map(|scope| scopes.allow(scope)),
                allowed,
                "{names}"
            );
            let caller = Caller {
                scopes,
                ..Caller::DEFAULT
            };
            assert_eq!(
                Scope::ALL.map(|scope| caller.require(scope).is_ok()),
                allowed
            );
        }
        assert!(!Scopes::NONE.allow(Scope::Read));
    }

    #[test]
    fn scopes_are_read_and_written() {
        assert_eq!(
            Scopes::parse("admin, read").unwrap().to_string(),
            "read,admin"
        );
        for names in ["", ",", "read,", "Read", "all", "read write"] {
            assert_eq!(Scopes::parse(names), None, "{names:?}");
        }
    }
}
