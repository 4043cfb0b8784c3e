//! Reading requests of this API: members by name, those that are not known let pass.

use serde_json::value::RawValue;

use super::super::extract::{Body, Query};
use super::super::problem::{Code, FieldError, Problem};
use crate::domain::json::{self, JsonFault};
use crate::storage::Order;

/// The members of a request body.
pub struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Fields<'a> {
    /// Reads a body, which is an object; no body at all stands for an empty one.
    ///
    /// # Errors
    /// It is no JSON, no object, or gives a name twice.
    pub fn of(body: &'a Body) -> Result<Self, Problem> {
        if body.is_blank() {
            return Ok(Self(Vec::new()));
        }
        let text = body.text()?;
        if !text.trim_start().starts_with('{') {
            return Err(refuse("", "The body must be a JSON object."));
        }
        let mut fields: Vec<(String, &RawValue)> = Vec::new();
        for member in json::members(text) {
            let name = member.name.into_owned();
            if fields.iter().any(|(given, _)| *given == name) {
                return Err(JsonFault::DuplicateName { name }.into());
            }
            let value = serde_json::from_str(member.value).map_err(JsonFault::from)?;
            fields.push((name, value));
        }
        Ok(Self(fields))
    }

    /// A member; `null` counts as absent.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a RawValue> {
        let (_, value) = self.0.iter().find(|(given, _)| given == name)?;
        Some(*value).filter(|value| value.get() != "null")
    }

    /// Whether there is such a member, `null` too.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(given, _)| given == name)
    }

    /// A member that is a text.
    ///
    /// # Errors
    /// It is something else.
    pub fn text(&self, name: &str) -> Result<Option<String>, Problem> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let text = json::decode_string(value.get());
        text.map(|text| Some(text.into_owned()))
            .ok_or_else(|| refuse(name, &format!("`{name}` must be a string.")))
    }

    /// A member that is an array; none if it is absent.
    ///
    /// # Errors
    /// It is something else.
    pub fn list(&self, name: &str) -> Result<Option<Vec<&'a RawValue>>, Problem> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        serde_json::from_str(value.get())
            .map(Some)
            .map_err(|_| refuse(name, &format!("`{name}` must be an array.")))
    }

    /// The metadata: at most 16 texts, names of at most 64 characters, values of at most 512.
    ///
    /// # Errors
    /// It is something else.
    pub fn metadata(&self) -> Result<Option<&'a RawValue>, Problem> {
        let Some(value) = self.get("metadata") else {
            return Ok(None);
        };
        if !value.get().starts_with('{') {
            return Err(refuse("metadata", "`metadata` must be an object."));
        }
        let members = json::members(value.get());
        if members.len() > 16 {
            return Err(refuse(
                "metadata",
                "`metadata` has more than 16 members; at most 16 are taken.",
            ));
        }
        for member in members {
            let fits = json::decode_string(member.value)
                .is_some_and(|text| text.chars().count() <= 512)
                && member.name.chars().count() <= 64;
            if !fits {
                return Err(refuse(
                    "metadata",
                    "A member of `metadata` has a name of at most 64 characters and a string of at most 512.",
                ));
            }
        }
        Ok(Some(value))
    }
}

/// A member of the body that is not what it must be.
pub fn refuse(name: &str, message: &str) -> Problem {
    Problem::new(Code::ValidationFailed, message).with_errors(vec![FieldError::new(name, message)])
}

/// How a list of items is asked for.
pub struct Paging {
    /// The item to begin behind.
    pub after: Option<String>,
    /// How many at most, 1 to 100.
    pub limit: usize,
    /// Which way; the newest first unless the oldest are asked for.
    pub order: Order,
}

impl Paging {
    /// Reads the query of a list.
    ///
    /// # Errors
    /// A parameter is not what it must be, or there is no such parameter.
    pub fn of(mut query: Query) -> Result<Self, Problem> {
        let limit = query.take_number("limit", 1, 100)?.unwrap_or(20);
        let order = match query.take_word("order", &["asc", "desc"])? {
            Some("asc") => Order::Asc,
            _ => Order::Desc,
        };
        let after = query.take("after").filter(|after| !after.is_empty());
        query.finish()?;
        Ok(Self {
            after,
            limit: usize::try_from(limit).unwrap_or(20),
            order,
        })
    }
}

/// Names of the parameter that asks for more in an item; everything that is stored is shown anyway.
pub const INCLUDE: [&str; 2] = ["include", "include[]"];
