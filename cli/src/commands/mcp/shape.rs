//! The parameters of tools: one table for the JSON schema that callers see, and for the check of what they send.
//!
//! Guarantees: an argument that no parameter takes is an error that names the parameters.

use rmcp::model::JsonObject;
use serde_json::{Value, json};

use crate::exit::Failure;

/// What a parameter takes.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// A text.
    Text,
    /// Texts.
    Texts,
    /// A whole number within these limits.
    Number(u64, u64),
    /// Whole numbers, each within these limits.
    Numbers(u64, u64),
    /// Yes or no.
    Flag,
    /// One of these texts.
    Choice(&'static [&'static str]),
}

/// A parameter of a tool.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// Its name.
    pub name: &'static str,
    /// What it takes.
    pub shape: Shape,
    /// Whether a call must have it.
    pub required: bool,
    /// What it means.
    pub says: &'static str,
}

impl Param {
    /// A parameter that a call may leave out.
    pub const fn optional(name: &'static str, shape: Shape, says: &'static str) -> Self {
        Self { name, shape, required: false, says }
    }

    /// A parameter that every call needs.
    pub const fn needed(name: &'static str, shape: Shape, says: &'static str) -> Self {
        Self { name, shape, required: true, says }
    }

    fn schema(&self) -> Value {
        let mut schema = match self.shape {
            Shape::Text => json!({"type": "string"}),
            Shape::Texts => json!({"type": "array", "items": {"type": "string"}}),
            Shape::Number(least, most) => json!({"type": "integer", "minimum": least, "maximum": most}),
            Shape::Numbers(least, most) => {
                json!({"type": "array", "items": {"type": "integer", "minimum": least, "maximum": most}})
            }
            Shape::Flag => json!({"type": "boolean"}),
            Shape::Choice(values) => json!({"type": "string", "enum": values}),
        };
        schema["description"] = self.says.into();
        schema
    }

    /// Checks a value.
    fn check(&self, value: &Value) -> Result<(), Failure> {
        let is_within = |value: &Value, least: u64, most: u64| {
            value.as_u64().is_some_and(|number| (least..=most).contains(&number))
        };
        let fits = match self.shape {
            Shape::Text => value.is_string(),
            Shape::Texts => value.as_array().is_some_and(|items| items.iter().all(Value::is_string)),
            Shape::Number(least, most) => is_within(value, least, most),
            Shape::Numbers(least, most) => {
                value.as_array().is_some_and(|items| items.iter().all(|item| is_within(item, least, most)))
            }
            Shape::Flag => value.is_boolean(),
            Shape::Choice(values) => value.as_str().is_some_and(|text| values.contains(&text)),
        };
        if fits { Ok(()) } else { Err(Failure::usage(format!("{} takes {}", self.name, self.wanted()))) }
    }

    fn wanted(&self) -> String {
        match self.shape {
            Shape::Text => "a text".to_owned(),
            Shape::Texts => "a list of texts".to_owned(),
            Shape::Number(least, most) => format!("a whole number from {least} to {most}"),
            Shape::Numbers(least, most) => format!("a list of whole numbers from {least} to {most}"),
            Shape::Flag => "true or false".to_owned(),
            Shape::Choice(values) => format!("one of {}", values.join(", ")),
        }
    }
}

/// The JSON schema of parameters.
#[must_use]
pub fn schema(params: &[&Param]) -> JsonObject {
    let properties: JsonObject = params.iter().map(|param| (param.name.to_owned(), param.schema())).collect();
    let required: Vec<&str> = params.iter().filter(|param| param.required).map(|param| param.name).collect();
    let mut schema = JsonObject::new();
    schema.insert("type".to_owned(), "object".into());
    schema.insert("properties".to_owned(), Value::Object(properties));
    schema.insert("required".to_owned(), required.into());
    schema.insert("additionalProperties".to_owned(), false.into());
    schema
}

/// Checks the arguments of a call.
///
/// # Errors
/// An unknown argument, a missing one, or one of another shape. The message names what is right.
pub fn check(params: &[&Param], given: &JsonObject) -> Result<(), Failure> {
    for (name, value) in given {
        let Some(param) = params.iter().find(|param| param.name == name) else {
            let known: Vec<&str> = params.iter().map(|param| param.name).collect();
            return Err(Failure::usage(format!("there is no argument `{name}`; there are {}", known.join(", "))));
        };
        param.check(value)?;
    }
    match params.iter().find(|param| param.required && !given.contains_key(param.name)) {
        Some(missing) => Err(Failure::usage(format!("`{}` is missing: {}", missing.name, missing.says))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMS: [Param; 3] = [
        Param::needed("job", Shape::Text, "the job"),
        Param::optional("skip", Shape::Number(0, 9), "rows"),
        Param::optional("at", Shape::Choice(&["peak", "end"]), "when"),
    ];

    fn checked(given: Value) -> Result<(), String> {
        let params: Vec<&Param> = PARAMS.iter().collect();
        let Value::Object(given) = given else { panic!("an object") };
        check(&params, &given).map_err(|failure| failure.to_string())
    }

    #[test]
    fn a_wrong_argument_is_named_with_what_is_right() {
        assert_eq!(checked(json!({"job": "j", "skip": 9, "at": "end"})), Ok(()));
        assert_eq!(checked(json!({"skip": 1})).unwrap_err(), "`job` is missing: the job");
        assert_eq!(checked(json!({"job": "j", "skip": 10})).unwrap_err(), "skip takes a whole number from 0 to 9");
        assert_eq!(checked(json!({"job": "j", "skip": -1})).unwrap_err(), "skip takes a whole number from 0 to 9");
        assert_eq!(checked(json!({"job": 1})).unwrap_err(), "job takes a text");
        assert_eq!(checked(json!({"job": "j", "at": "now"})).unwrap_err(), "at takes one of peak, end");
        assert_eq!(
            checked(json!({"job": "j", "x\u{1b}": 1})).unwrap_err(),
            r"there is no argument `x\u{1b}`; there are job, skip, at"
        );
    }

    #[test]
    fn the_schema_names_every_parameter() {
        let params: Vec<&Param> = PARAMS.iter().collect();
        let schema = schema(&params);
        assert_eq!(schema["required"], json!(["job"]));
        assert_eq!(schema["additionalProperties"], json!(false));
        assert_eq!(schema["properties"]["at"]["enum"], json!(["peak", "end"]));
    }
}
