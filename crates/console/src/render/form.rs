//! Pages that are not screens: the form of an action, errors, the sign-in.

use screens::{FieldKind, FormField, Tone};

use super::blocks::{code, notice};
use super::cells::prose;
use super::shell::{Shell, brand, document, page};
use crate::markup::{Element, Markup, tag};

/// Where forms of actions post to.
const ACTIONS: &str = "/console/actions";
/// The name of the button that checks a call.
pub(crate) const CHECK: &str = "check";
/// How many lines of a long text are shown at once.
const ROWS: std::ops::RangeInclusive<usize> = 4..=24;

/// The form of an action.
#[derive(Clone, Debug)]
pub(crate) struct ActionForm<'a> {
    /// A verb: "Pause".
    pub(crate) label: &'a str,
    /// What happens, and what is lost.
    pub(crate) effect: &'a str,
    pub(crate) is_dangerous: bool,
    /// Fields that are sent along: the route, its parameters, the page to go back to.
    pub(crate) hidden: &'a [(&'a str, &'a str)],
    pub(crate) inputs: &'a [Input<'a>],
    /// The call of the admin API that does the same.
    pub(crate) curl: &'a str,
    /// The command that does the same.
    pub(crate) command: &'a str,
    /// The page that the operator came from.
    pub(crate) back: &'a str,
    /// Why the call failed.
    pub(crate) error: Option<&'a str>,
    /// Whether the call can be checked first.
    pub(crate) can_check: bool,
    /// What a check found.
    pub(crate) check: Option<&'a CheckReport>,
    /// The reason that the operator entered before.
    pub(crate) note: &'a str,
}

/// What a call would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CheckReport {
    /// What is valid and cannot work.
    pub(crate) warnings: Vec<String>,
    /// The difference to what is there now, line by line.
    pub(crate) diff: Vec<String>,
}

impl CheckReport {
    /// Renders the report: that nothing is changed, the warnings, the difference.
    fn render(&self) -> Markup {
        let valid = notice(Tone::Good, "It is valid. Nothing is changed yet.", None).attr("role", "status");
        let warnings = (!self.warnings.is_empty()).then(|| {
            let lines = ["It is valid, and may not work as written:"].into_iter();
            let lines: Vec<&str> = lines.chain(self.warnings.iter().map(String::as_str)).collect();
            notice(Tone::Warning, &lines.join("\n"), None)
        });
        let diff = match self.diff.is_empty() {
            true => tag("p").text("It is what is there now."),
            false => code(&self.diff.join("\n"), "Difference"),
        };
        Markup::from(valid).with(warnings).with(diff)
    }
}

/// A field with the value that it begins with.
#[derive(Clone, Debug)]
pub(crate) struct Input<'a> {
    /// Its name in the form.
    pub(crate) name: &'a str,
    pub(crate) field: &'a FormField,
    pub(crate) value: &'a str,
}

/// What the sign-in page offers.
#[derive(Clone, Debug, Default)]
pub(crate) struct SignIn<'a> {
    /// Begins the sign-in at the issuer. None if no issuer is configured.
    pub(crate) issuer_href: Option<&'a str>,
    /// Where the form for an operator's token posts to, as the field `token`. None if no token is accepted.
    pub(crate) token_action: Option<&'a str>,
    /// Further fields of the token form.
    pub(crate) hidden: &'a [(&'a str, &'a str)],
    /// Why the last attempt failed.
    pub(crate) error: Option<&'a str>,
}

/// Renders the page with the form of an action. Scripts show its content in a dialog.
pub(crate) fn form_page(shell: &Shell<'_>, form: &ActionForm<'_>) -> String {
    let error = form.error.map(|error| notice(Tone::Bad, error, None).attr("role", "alert"));
    let effect = if form.is_dangerous {
        let mark = tag("strong").text("Something is lost. ");
        tag("div").class("notice bad").child(tag("p").child(mark).child(prose(form.effect)))
    } else {
        tag("p").class("effect").child(prose(form.effect))
    };
    let note = tag("div")
        .class("field")
        .child(tag("label").attr("for", "action-note").text("Why (kept in the audit log)"))
        .child(
            tag("input")
                .attr("id", "action-note")
                .attr("name", "note")
                .attr("value", form.note)
                .attr("maxlength", "500")
                .attr("autocomplete", "off"),
        );
    let class = if form.is_dangerous { "button danger-primary" } else { "button primary" };
    let check = form
        .can_check
        .then(|| tag("button").class("button").attr("name", CHECK).attr("value", "true").text("Check"));
    let buttons = tag("div")
        .class("buttons")
        .child(tag("button").class(class).text(form.label))
        .child(check)
        .child(tag("a").class("button quiet").flag("data-cancel", true).href(form.back).text("Cancel"));
    let hidden = form.hidden.iter().map(|(name, value)| hidden(name, value));
    let fields = tag("form")
        .attr("method", "post")
        .attr("action", ACTIONS)
        .children(hidden)
        .children(form.inputs.iter().map(input))
        .child(note)
        .child(buttons);
    let same = tag("details")
        .class("same")
        .flag("open", true)
        .child(tag("summary").text("The same without the console"))
        .child(tag("h3").text("Command"))
        .child(code(form.command, "Command"))
        .child(tag("h3").text("API call"))
        .child(code(form.curl, "API call"));
    let action = tag("div").class("action card").flag("data-action", true).attr("data-title", form.label);
    let check = form.check.map(CheckReport::render);
    page(shell, action.child(error).child(check).child(effect).child(fields).child(same).into())
}

/// Renders a page that says what went wrong and what to do next.
pub(crate) fn error_page(shell: &Shell<'_>, text: &str, next: &str) -> String {
    let retry = tag("a").class("button").href(shell.here).text("Try again");
    let overview = tag("a").class("button quiet").href("/console").text("Go to the overview");
    let next = (!next.is_empty()).then(|| tag("p").text(next));
    let buttons = tag("div").class("buttons").child(retry).child(overview);
    let body = Markup::from(notice(Tone::Bad, text, None).attr("role", "alert"));
    page(shell, body.with(tag("div").class("empty").child(next).child(buttons)))
}

/// Renders the sign-in page.
pub(crate) fn sign_in_page(sign_in: &SignIn<'_>) -> String {
    let error = sign_in.error.map(|error| notice(Tone::Bad, error, None).attr("role", "alert"));
    let issuer = sign_in.issuer_href.map(|href| tag("a").class("button primary").href(href).text("Sign in"));
    let or = (sign_in.issuer_href.is_some() && sign_in.token_action.is_some())
        .then(|| tag("p").class("or").text("or with an operator\u{2019}s token"));
    let token = sign_in.token_action.map(|action| {
        let class = if issuer.is_some() { "button" } else { "button primary" };
        let input = tag("input")
            .attr("id", "token")
            .attr("name", "token")
            .attr("type", "password")
            .attr("autocomplete", "current-password")
            .attr("aria-describedby", "token-hint")
            .flag("required", true);
        let hint =
            "The token of [operators.NAME] in the configuration. Create one with: playhouse token --operator NAME";
        let field = tag("div")
            .class("field")
            .child(tag("label").attr("for", "token").text("Operator token"))
            .child(input)
            .child(tag("p").class("hint").attr("id", "token-hint").text(hint));
        let hidden = sign_in.hidden.iter().map(|(name, value)| hidden(name, value));
        let form = tag("form").attr("method", "post").attr("action", action).children(hidden);
        form.child(field).child(tag("button").class(class).text("Sign in with the token"))
    });
    let none = (sign_in.issuer_href.is_none() && sign_in.token_action.is_none()).then(|| {
        let text = "Sign-in is not configured. Configure an issuer, or create an operator\u{2019}s token.";
        notice(Tone::Warning, text, None)
    });
    let card = tag("div")
        .class("card")
        .child(tag("h1").text("Sign in to the console"))
        .child(tag("p").class("question").text("For operators. Every change is recorded with your name."))
        .child(error)
        .child(issuer)
        .child(or)
        .child(token)
        .child(none);
    document("Sign in", tag("body").class("alone").child(tag("main").child(brand()).child(card)))
}

fn hidden(name: &str, value: &str) -> Element {
    tag("input").attr("type", "hidden").attr("name", name).attr("value", value)
}

/// Renders a field of a form, with its label and hint.
fn input(input: &Input<'_>) -> Element {
    let Input { name, field, value } = input;
    let id = format!("field-{name}");
    let hint_id = format!("{id}-hint");
    let has_hint = !field.hint.is_empty();
    let named = |element: Element| {
        let element = element.attr("id", &id).attr("name", name);
        element.attr_if("aria-describedby", has_hint.then_some(hint_id.as_str()))
    };
    let required = |element: Element| named(element).flag("required", field.is_required);
    let control = match field.kind {
        FieldKind::Hidden | FieldKind::HiddenNumber => return hidden(name, value),
        FieldKind::Text => {
            required(tag("input").attr("type", "text").attr("autocomplete", "off")).attr("value", value)
        }
        FieldKind::Number => {
            let input = tag("input").attr("type", "number").attr("step", "any").attr("autocomplete", "off");
            required(input).attr("value", value)
        }
        FieldKind::LongText => {
            let rows = value.lines().count().clamp(*ROWS.start(), *ROWS.end());
            required(tag("textarea").attr("rows", rows.to_string())).text(&format!("\n{value}"))
        }
        FieldKind::Json => {
            let area = tag("textarea").class("code").attr("rows", "6").attr("spellcheck", "false");
            required(area).text(&format!("\n{value}"))
        }
        FieldKind::Flag => {
            let is_on = matches!(*value, "true" | "on" | "1");
            named(tag("input").attr("type", "checkbox").attr("value", "true")).flag("checked", is_on)
        }
        FieldKind::OneOf(values) => {
            let option =
                |one: &&str| tag("option").attr("value", one).flag("selected", one == value).text(one);
            let none = (!field.is_required).then(|| tag("option").attr("value", "").text("\u{2013}"));
            required(tag("select")).child(none).children(values.iter().map(option))
        }
    };
    let label = tag("label").attr("for", &id).text(field.label);
    let is_optional = !field.is_required && field.kind != FieldKind::Flag;
    let label = label.child(is_optional.then(|| tag("span").class("optional").text(" optional")));
    let hint = has_hint.then(|| tag("p").class("hint").attr("id", &hint_id).child(prose(field.hint)));
    if field.kind == FieldKind::Flag {
        return tag("div").class("field check").child(control).child(label).child(hint);
    }
    tag("div").class("field").child(label).child(control).child(hint)
}
