//! Keys from the path: routes in, a key like `order:{id}` out.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use percent_encoding::percent_decode_str;

use super::extract::{ExtractKeyError, KeyExtractor};
use super::{LockKey, escape_into};

/// Derives the key from path parameters.
///
/// Routes are written as in axum (`{name}` for one segment, `{*name}` for the rest) and matched on the path
/// as the client sent it, nested routers or not (with the `axum` feature). A path that no route matches has
/// nothing to lock. Parameters are percent-decoded once, as axum decodes them, so every spelling that the
/// router takes for the same object gives the same key:
///
/// | request path | against the route `/orders/{id}` |
/// |---|---|
/// | `/orders/42`, `/orders/42?x=1`, `/orders/%34%32` | `order:42` |
/// | `/orders/42;v=1` | `order:42;v=1` (another parameter value, for axum too) |
/// | `/orders/42/`, `/orders//42`, `/orders/./42`, `/ORDERS/42` | nothing to lock (and 404 in axum) |
/// | `/orders/%ff` | 400: not UTF-8 |
///
/// Parameter values are escaped so that different values never give the same key.
///
/// ```
/// use tower_redis_lock::PathTemplate;
///
/// let per_order = PathTemplate::new("order:{id}")?
///     .route("/orders/{id}/ship")?
///     .route("/orders/{id}/export")?;
/// # Ok::<_, tower_redis_lock::TemplateError>(())
/// ```
#[derive(Clone)]
pub struct PathTemplate(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    pieces: Vec<Piece>,
    routes: matchit::Router<()>,
}

#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Text(String),
    Parameter(String),
}

impl PathTemplate {
    /// Reads the template of the key: text, and `{name}` for a parameter.
    ///
    /// # Errors
    ///
    /// A [`TemplateError`] for an empty template, one without a parameter, unbalanced braces, or a parameter
    /// that is followed by another one, a letter, a digit or `%` (its end could not be told from the value).
    pub fn new(template: &str) -> Result<Self, TemplateError> {
        Ok(Self(Arc::new(Inner { pieces: parse(template)?, routes: matchit::Router::new() })))
    }

    /// Adds a route whose paths are locked. Call it once for each.
    ///
    /// # Errors
    ///
    /// A [`TemplateError`] for a route that is malformed, conflicts with an earlier one, or lacks one of the
    /// template's parameters.
    pub fn route(mut self, route: &str) -> Result<Self, TemplateError> {
        let inner = Arc::make_mut(&mut self.0);
        for piece in &inner.pieces {
            if let Piece::Parameter(name) = piece
                && !route.contains(&format!("{{{name}}}"))
                && !route.contains(&format!("{{*{name}}}"))
            {
                return Err(TemplateError(format!("route {route:?} has no parameter {{{name}}}")));
            }
        }
        inner.routes.insert(route, ()).map_err(|error| TemplateError(format!("route {route:?}: {error}")))?;
        Ok(self)
    }

    fn render(&self, path: &str) -> Result<Option<LockKey>, ExtractKeyError> {
        let Ok(matched) = self.0.routes.at(path) else {
            return Ok(None);
        };
        let mut key = Vec::new();
        let mut pieces = self.0.pieces.iter().peekable();
        while let Some(piece) = pieces.next() {
            match piece {
                Piece::Text(text) => key.extend_from_slice(text.as_bytes()),
                Piece::Parameter(name) => {
                    let raw = matched.params.get(name).unwrap_or_default();
                    let value =
                        percent_decode_str(raw).decode_utf8().map_err(|_| ExtractKeyError::NotText)?;
                    if value.is_empty() {
                        return Err(ExtractKeyError::Missing);
                    }
                    let end = match pieces.peek() {
                        Some(Piece::Text(text)) => &text.as_bytes()[..1],
                        _ => b":",
                    };
                    escape_into(&mut key, value.as_bytes(), end);
                }
            }
        }
        Ok(Some(LockKey::new(key)?))
    }
}

fn parse(template: &str) -> Result<Vec<Piece>, TemplateError> {
    let refuse = |rule: &str| Err(TemplateError(format!("template {template:?} {rule}")));
    let mut pieces = Vec::new();
    let mut rest = template;
    while let Some(open) = rest.find(['{', '}']) {
        let (text, tail) = rest.split_at(open);
        let Some((name, tail)) = tail.strip_prefix('{').and_then(|tail| tail.split_once('}')) else {
            return refuse("has unbalanced braces");
        };
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return refuse("has a parameter whose name is not letters, digits and underscores");
        }
        if tail.starts_with(|next: char| next == '{' || next == '%' || next.is_alphanumeric()) {
            return refuse("has a parameter that is not followed by punctuation or the end");
        }
        if !text.is_empty() {
            pieces.push(Piece::Text(text.to_owned()));
        }
        pieces.push(Piece::Parameter(name.to_owned()));
        rest = tail;
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest.to_owned()));
    }
    if !pieces.iter().any(|piece| matches!(piece, Piece::Parameter(_))) {
        return refuse("has no parameter, so all requests would share one lock");
    }
    Ok(pieces)
}

impl KeyExtractor for PathTemplate {
    fn extract(&self, parts: &Parts) -> Result<Option<LockKey>, ExtractKeyError> {
        self.render(original_path(parts))
    }
}

/// The path before any nested router has cut off its prefix.
fn original_path(parts: &Parts) -> &str {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return original.0.path();
    }
    parts.uri.path()
}

impl fmt::Debug for PathTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PathTemplate").field(&self.0.pieces).finish()
    }
}

/// A template or route that cannot be used; the message names it and the rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError(String);

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TemplateError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(template: &str, route: &str, path: &str, expected: Option<&str>) {
        let template = PathTemplate::new(template).and_then(|t| t.route(route)).expect("valid");
        let key = template.render(path).expect("a key or nothing");
        let text = key.map(|key| String::from_utf8(key.as_bytes().to_vec()).expect("text"));
        assert_eq!(text.as_deref(), expected, "{path}");
    }

    // B55
    #[test]
    fn every_spelling_of_one_parameter_gives_one_key() {
        for path in ["/orders/42", "/orders/%34%32", "/orders/4%32"] {
            check("order:{id}", "/orders/{id}", path, Some("order:42"));
        }
        check("order:{id}", "/orders/{id}", "/orders/42;v=1", Some("order:42;v=1"));
        for path in ["/orders/42/", "/orders//42", "/orders/./42", "/orders/x/../42", "/ORDERS/42", "/"] {
            check("order:{id}", "/orders/{id}", path, None);
        }
    }

    #[test]
    fn values_cannot_imitate_the_text_between_parameters() {
        check("{a}:{b}", "/{a}/{b}", "/1:2/3", Some("1%3A2:3"));
        check("{a}:{b}", "/{a}/{b}", "/1/2:3", Some("1:2%3A3"));
        check("{a}-{b}", "/{a}/{b}", "/1-2/3", Some("1%2D2-3"));
        check("o:{id}", "/{id}", "/a%7Bb%7Dc", Some("o:a%7Bb%7Dc"));
        check("o:{id}", "/{id}", "/a%257Bb", Some("o:a%257Bb"));
        check("file:{path}", "/files/{*path}", "/files/a/b%2Fc", Some("file:a/b/c"));
    }

    #[test]
    fn a_parameter_that_is_not_text_is_an_error() {
        let template = PathTemplate::new("o:{id}").and_then(|t| t.route("/{id}")).expect("valid");
        assert_eq!(template.render("/%ff"), Err(ExtractKeyError::NotText));
    }

    #[test]
    fn templates_that_could_mix_up_requests_are_refused() {
        for template in ["", "order", "order:{", "order:}", "{}", "{a b}", "{a}{b}", "{a}x", "{a}%"] {
            let error = PathTemplate::new(template).expect_err(template);
            assert!(error.to_string().contains(&format!("{template:?}")), "{error}");
        }
        let template = PathTemplate::new("order:{id}").expect("valid");
        assert!(template.clone().route("/orders/{order}").is_err());
        assert!(template.route("/orders/{id").is_err());
    }
}
