//! The forms of actions, and the calls of the admin API that they make.

use std::collections::BTreeSet;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use base::Code;
use base::id::{RequestId, Uuid};
use http::header::{CONTENT_TYPE, LOCATION, SET_COOKIE};
use http::{HeaderName, HeaderValue, StatusCode};
use http_server::{Connection, Problem};
use screens::{FieldKind, FormField, Operation, Place, Tone};
use serde_json::Value;
use service::{AdminApi, Open, Operator, OperatorRow};
use tower::ServiceExt;
use url::form_urlencoded;

use crate::call::{Call, Entered, command, path};
use crate::pages::{Flash, PageShell, html};
use crate::registry::Console;
use crate::render::{ActionForm, CHECK, CheckReport, Input, form_page};
use crate::sign_in::own_path;

/// The largest form, and the largest response of the admin API that is shown.
const MAX_BODY: usize = 1 << 20;
/// The header in which proxies name the client.
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// The header with the key of a request. Some routes refuse requests without one.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The header with the reason of a change.
const NOTE: HeaderName = HeaderName::from_static("x-audit-note");

/// A form as it is sent: the route, its parameters (`p.`, or `e.` if the operator entered them), its fields (`f.`), the note, the page to
/// go back to, and whether the call is only checked.
#[derive(Debug, Default)]
struct Submitted {
    route: String,
    entered: Entered,
    /// The names of the parameters that the operator entered.
    typed: BTreeSet<String>,
    note: String,
    back: String,
    is_check: bool,
}

impl Submitted {
    fn parse(encoded: &[u8]) -> Self {
        let mut submitted = Self::default();
        for (name, value) in form_urlencoded::parse(encoded).into_owned() {
            if let Some(name) = name.strip_prefix("p.") {
                submitted.entered.parameters.insert(name.to_owned(), value);
            } else if let Some(name) = name.strip_prefix("e.") {
                submitted.typed.insert(name.to_owned());
                submitted.entered.parameters.insert(name.to_owned(), value);
            } else if let Some(name) = name.strip_prefix("f.") {
                submitted.entered.fields.insert(name.to_owned(), value);
            } else {
                match name.as_str() {
                    "route" => submitted.route = value,
                    "note" => submitted.note = value,
                    "back" => submitted.back = value,
                    CHECK => submitted.is_check = true,
                    _ => {}
                }
            }
        }
        // A foreign link must not choose where a form leads.
        submitted.back = own_path(Some(&submitted.back)).to_owned();
        submitted
    }
}

/// `GET /console/action`: the form of an action.
pub(crate) async fn form(Open(console): Open<Console>, operator: Operator, request: Request) -> Response {
    let mut submitted = Submitted::parse(request.uri().query().unwrap_or_default().as_bytes());
    let unread = begin(&console, &operator, &mut submitted).await.err();
    let page = FormPage { console: &console, operator: &operator, submitted: &submitted };
    page.render(StatusCode::OK, &FormResult { error: unread.as_deref(), check: None })
}

/// Fills the fields that the link leaves empty with what the operation begins with, as the operator may read it.
async fn begin(console: &Console, operator: &Operator, submitted: &mut Submitted) -> Result<(), String> {
    let Some((_, operation)) = console.operation(&submitted.route) else { return Ok(()) };
    let Some(pattern) = operation.begins_with else { return Ok(()) };
    // A form that adds something begins empty.
    let Ok(target) = path(pattern, &submitted.entered.parameters) else { return Ok(()) };
    let starting = || "This process is still starting; try again.".to_owned();
    let AdminApi(api) = console.api().ok_or_else(starting)?;
    let mut request = Request::get(target).body(Body::empty()).map_err(|error| error.to_string())?;
    request.extensions_mut().insert(operator.clone());
    let response = api.oneshot(request).await.unwrap_or_else(|never| match never {});
    if let Some(problem) = response.extensions().get::<Problem>() {
        return Err(problem.text().to_owned());
    }
    let body = to_bytes(response.into_body(), MAX_BODY).await.unwrap_or_default();
    let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
    for field in operation.fields {
        let value = match &answer[field.source] {
            Value::String(text) => text.clone(),
            value @ (Value::Number(_) | Value::Bool(_)) => value.to_string(),
            _ => continue,
        };
        submitted.entered.fields.entry(field.name.to_owned()).or_insert(value);
    }
    Ok(())
}

/// `POST /console/actions`: makes the call that a form describes, and goes back to the screen.
pub(crate) async fn submit(Open(console): Open<Console>, operator: Operator, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let submitted = match to_bytes(body, MAX_BODY).await {
        Ok(body) => Submitted::parse(&body),
        Err(_) => {
            return Problem::new(Code::InvalidArgument).detail("The form is too large.").into_response();
        }
    };
    let page = FormPage { console: &console, operator: &operator, submitted: &submitted };
    if console.config().read_only {
        return page.refuse(Code::PermissionDenied, "This console is read-only (`console.read_only`).");
    }
    let Some((row, operation)) = console.operation(&submitted.route) else {
        return page.refuse(Code::NotFound, "There is no such action.");
    };
    let call = match Call::build(row, operation, &submitted.entered) {
        Ok(call) => call,
        Err(text) => return page.fail(StatusCode::UNPROCESSABLE_ENTITY, &text),
    };
    let is_check = submitted.is_check && operation.can_check;
    let call = if is_check { call.into_check() } else { call };
    let Some(AdminApi(api)) = console.api() else {
        return page.refuse(Code::Unavailable, "This process is still starting; try again.");
    };
    let request = match api_request(&call, &submitted.note, &head, operator.clone()) {
        Ok(request) => request,
        Err(_) => {
            let text = "The call cannot be made with these values.";
            return page.fail(StatusCode::UNPROCESSABLE_ENTITY, text);
        }
    };
    // The router cannot fail: its error type has no values.
    let response = api.oneshot(request).await.unwrap_or_else(|never| match never {});
    let status = response.status();
    if let Some(problem) = response.extensions().get::<Problem>() {
        return page.fail(status, problem.text());
    }
    let body = to_bytes(response.into_body(), MAX_BODY).await.unwrap_or_default();
    if !status.is_success() {
        return page.fail(status, &String::from_utf8_lossy(&body));
    }
    let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
    if is_check {
        let check = CheckReport { warnings: lines(&answer["warnings"]), diff: lines(&answer["diff"]) };
        return page.render(status, &FormResult { error: None, check: Some(&check) });
    }
    done(&submitted.back, operation, &answer)
}

/// Builds the request for the router of the admin API, as the operator who sent the form.
fn api_request(
    call: &Call,
    note: &str,
    head: &http::request::Parts,
    operator: Operator,
) -> Result<Request, http::Error> {
    let mut request = Request::builder().method(http::Method::from(call.method)).uri(&call.target);
    request = request.header(IDEMPOTENCY_KEY, Uuid::now_v7().to_string());
    if call.body.is_some() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    if let Ok(note) = HeaderValue::from_str(note.trim())
        && !note.is_empty()
    {
        request = request.header(NOTE, note);
    }
    let body = call.body.as_ref().map_or_else(Body::empty, |body| Body::from(body.to_string()));
    let mut request = request.body(body)?;
    request.extensions_mut().insert(operator);
    // The audit log has the address of the operator, also behind a proxy.
    for forwarded in head.headers.get_all(FORWARDED_FOR) {
        request.headers_mut().append(FORWARDED_FOR, forwarded.clone());
    }
    if let Some(connection) = head.extensions.get::<Connection>() {
        request.extensions_mut().insert(connection.clone());
    }
    if let Some(id) = head.extensions.get::<RequestId>() {
        request.extensions_mut().insert(id.clone());
    }
    Ok(request)
}

/// Goes back to the screen, or to the job that the action started.
fn done(back: &str, operation: &Operation, answer: &Value) -> Response {
    let to = match answer["job_id"].as_str() {
        Some(job) => format!("/console/jobs/{job}"),
        None => back.to_owned(),
    };
    let summary = summary(answer);
    let mut text =
        format!("{}: done.{}{summary}", operation.label, if summary.is_empty() { "" } else { " " });
    let warnings = lines(&answer["warnings"]);
    let tone = if warnings.is_empty() { Tone::Good } else { Tone::Warning };
    if !warnings.is_empty() {
        text += &format!(". It may not work as written:\n{}", warnings.join("\n"));
    }
    let mut response = StatusCode::SEE_OTHER.into_response();
    let headers = response.headers_mut();
    headers.insert(LOCATION, HeaderValue::from_str(&to).unwrap_or(HeaderValue::from_static("/console")));
    headers.append(SET_COOKIE, Flash { tone, text }.cookie());
    response
}

/// Summarises a response: its plain members, except ids and times, which the screen shows.
fn summary(answer: &Value) -> String {
    const MEMBERS: usize = 6;
    let plain = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    };
    let is_telling = |name: &str| name != "id" && !name.ends_with("_id") && !name.ends_with("_at");
    let members = answer.as_object().into_iter().flatten().filter(|(name, _)| is_telling(name));
    let members = members.filter_map(|(name, value)| Some(format!("{name} {}", plain(value)?)));
    members.take(MEMBERS).collect::<Vec<_>>().join(", ")
}

/// Returns the lines of a list of texts.
fn lines(value: &Value) -> Vec<String> {
    let texts = value.as_array().into_iter().flatten();
    texts.filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

/// What the form shows about the last attempt.
#[derive(Clone, Copy, Debug, Default)]
struct FormResult<'a> {
    error: Option<&'a str>,
    check: Option<&'a CheckReport>,
}

/// The page with the form of an action.
struct FormPage<'a> {
    console: &'a Console,
    operator: &'a Operator,
    submitted: &'a Submitted,
}

impl FormPage<'_> {
    fn shell(&self) -> PageShell<'_> {
        PageShell { console: self.console, operator: self.operator, here: &self.submitted.back }
    }

    fn refuse(&self, code: Code, detail: &str) -> Response {
        self.shell().problem(&Problem::new(code).detail(detail))
    }

    /// Shows the form with the values that were entered, and what went wrong.
    fn fail(&self, status: StatusCode, error: &str) -> Response {
        self.render(status, &FormResult { error: Some(error), check: None })
    }

    /// Shows the form with the values that were entered.
    fn render(&self, status: StatusCode, outcome: &FormResult<'_>) -> Response {
        let Submitted { route, entered, typed, note, back, .. } = self.submitted;
        let Some((row, operation)) = self.console.operation(route) else {
            return self.refuse(Code::NotFound, "There is no such action.");
        };
        let prefix = |field: &FormField| if field.place == Place::Path { "e" } else { "f" };
        let named = |field: &FormField| format!("{}.{}", prefix(field), field.name);
        let names: Vec<String> = operation.fields.iter().map(named).collect();
        let is_hidden = |kind| matches!(kind, FieldKind::Hidden | FieldKind::HiddenNumber);
        let is_of_link = |name: &str| entered.parameters.contains_key(name) && !typed.contains(name);
        let value = |field: &FormField| {
            let values = if field.place == Place::Path { &entered.parameters } else { &entered.fields };
            values.get(field.name).map_or("", String::as_str)
        };
        let asked = |field: &FormField| field.place != Place::Path || !is_of_link(field.name);
        let fields = || operation.fields.iter().zip(&names).filter(|(field, _)| asked(field));
        let inputs: Vec<Input<'_>> = fields()
            .filter(|(field, _)| !is_hidden(field.kind))
            .map(|(field, name)| Input { name, field, value: value(field) })
            .collect();
        let parameters = entered.parameters.iter().filter(|(name, _)| is_of_link(name));
        let parameters: Vec<(String, &str)> =
            parameters.map(|(name, value)| (format!("p.{name}"), value.as_str())).collect();
        let mut hidden = vec![("route", route.as_str()), ("back", back.as_str())];
        hidden.extend(parameters.iter().map(|(name, value)| (name.as_str(), *value)));
        hidden.extend(
            fields()
                .filter(|(field, _)| is_hidden(field.kind))
                .map(|(field, name)| (name.as_str(), value(field))),
        );
        let form = ActionForm {
            label: operation.label,
            effect: operation.effect,
            is_dangerous: operation.is_dangerous,
            hidden: &hidden,
            inputs: &inputs,
            curl: &curl(row, operation, entered, self.console.origin()),
            command: &command(operation.command, entered),
            back,
            error: outcome.error,
            can_check: operation.can_check,
            check: outcome.check,
            note,
        };
        let shell = self.shell();
        html(status, form_page(&shell.shell(operation.label), &form))
    }
}

/// Returns the call as a command. Fields without a value get a placeholder.
fn curl(row: &OperatorRow, operation: &Operation, entered: &Entered, origin: &str) -> String {
    let mut filled = entered.clone();
    for field in operation.fields.iter().filter(|field| field.is_required) {
        let placeholder = match field.kind {
            FieldKind::Number | FieldKind::HiddenNumber | FieldKind::Json => "0".to_owned(),
            FieldKind::OneOf(words) => words.first().copied().unwrap_or_default().to_owned(),
            _ => field.name.to_uppercase(),
        };
        let values = if field.place == Place::Path { &mut filled.parameters } else { &mut filled.fields };
        let value = values.entry(field.name.to_owned()).or_default();
        if value.trim().is_empty() && field.kind != FieldKind::Flag {
            *value = placeholder;
        }
    }
    Call::build(row, operation, &filled)
        .map_or_else(|text| text, |call| call.curl(origin, &Uuid::now_v7().to_string()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    fn query(href: &str) -> BTreeMap<String, String> {
        let (_, query) = href.split_once('?').unwrap_or_default();
        form_urlencoded::parse(query.as_bytes()).into_owned().collect()
    }

    #[test]
    fn form_leads_only_back_to_the_console() {
        for (given, kept) in [
            ("/console/drops?state=open", "/console/drops?state=open"),
            ("//evil.example", "/console"),
            ("/consolefake", "/console"),
            ("https://evil.example/console/", "/console"),
            ("/console/\\evil", "/console"),
        ] {
            let encoded = form_urlencoded::Serializer::new(String::new()).append_pair("back", given).finish();
            assert_eq!(Submitted::parse(encoded.as_bytes()).back, kept, "{given}");
        }
    }

    #[test]
    fn link_of_an_action_is_parsed_back() {
        let href = "/console/action?route=POST%20%2Fx%2F%7Bid%7D&p.id=a%26b&f.why=c%20d&back=%2Fconsole%2Fx";
        assert_eq!(query(href)["route"], "POST /x/{id}");
        let submitted = Submitted::parse(href.split_once('?').unwrap().1.as_bytes());
        assert_eq!(submitted.entered.parameters["id"], "a&b");
        assert_eq!(submitted.entered.fields["why"], "c d");
        assert_eq!(submitted.back, "/console/x");
    }

    #[test]
    fn every_submission_has_its_own_idempotency_key() {
        let call = Call { method: service::RouteMethod::Post, target: "/drops".to_owned(), body: None };
        let (head, ()) = Request::builder().body(()).unwrap().into_parts();
        let key = || {
            let operator =
                Operator { name: "ada".to_owned(), proof: service::Proof::ConfiguredToken, read_only: false };
            api_request(&call, "", &head, operator).unwrap().headers()[IDEMPOTENCY_KEY].clone()
        };
        assert_ne!(key(), key());
    }

    #[test]
    fn response_is_summarised_by_its_plain_members() {
        assert_eq!(
            summary(&json!({ "state": "paused", "list": [1], "count": 3, "drop_id": "d1" })),
            "count 3, state paused"
        );
        assert_eq!(summary(&json!([1, 2])), "");
    }
}
