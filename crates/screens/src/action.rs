//! Actions: calls of the admin API that the console offers as forms.

/// How the console offers a route of the admin API. Declared together with the route.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// The label of its button: a verb.
    pub label: &'static str,
    /// What happens, and what is lost. Shown before the operator confirms.
    pub effect: &'static str,
    /// Whether something is lost.
    pub is_dangerous: bool,
    pub fields: &'static [FormField],
    /// The route whose answer the form begins with, such as `/definitions/{kind}/{name}`. The values are read when the form is opened, so
    /// that they may be of any size.
    pub begins_with: Option<&'static str>,
    /// Whether the call changes nothing with the member `dry_run` of its body. The form then offers to check it first, and shows the
    /// members `warnings` and `diff` of the answer, which are lists of lines.
    pub can_check: bool,
    /// The command that does the same, such as `playhouse drops pause {drop_id}`. Parameters of the path and fields are in braces. A
    /// part in brackets is left out if its field is empty: `[--limit {limit}]`.
    pub command: &'static str,
}

impl Operation {
    /// Creates an operation that loses nothing and has no fields.
    pub const fn new(label: &'static str, effect: &'static str, command: &'static str) -> Self {
        Self { label, effect, is_dangerous: false, fields: &[], begins_with: None, can_check: false, command }
    }

    /// Marks an operation that loses something.
    pub const fn dangerous(self) -> Self {
        Self { is_dangerous: true, ..self }
    }

    /// Names the route whose answer the form begins with.
    pub const fn begins_with(self, route: &'static str) -> Self {
        Self { begins_with: Some(route), ..self }
    }

    /// Offers to check the call without a change.
    pub const fn checked(self) -> Self {
        Self { can_check: true, ..self }
    }

    pub const fn fields(self, fields: &'static [FormField]) -> Self {
        Self { fields, ..self }
    }
}

/// A field of an action's form.
#[derive(Clone, Copy, Debug)]
pub struct FormField {
    /// The name of the query parameter or of the member of the JSON body. A dot names a member of a member.
    pub name: &'static str,
    pub label: &'static str,
    pub kind: FieldKind,
    pub place: Place,
    pub is_required: bool,
    /// The member of the answer of [`Operation::begins_with`] that the field begins with.
    pub source: &'static str,
    /// An example, or the meaning of an empty field.
    pub hint: &'static str,
}

impl FormField {
    /// Creates a required field of the JSON body.
    pub const fn body(name: &'static str, label: &'static str, kind: FieldKind) -> Self {
        Self { name, label, kind, place: Place::Body, is_required: true, source: name, hint: "" }
    }

    /// Creates a required query parameter.
    pub const fn query(name: &'static str, label: &'static str, kind: FieldKind) -> Self {
        Self { place: Place::Query, ..Self::body(name, label, kind) }
    }

    /// Creates a parameter of the path. The form asks for it unless the link names it.
    pub const fn path(name: &'static str, label: &'static str, kind: FieldKind) -> Self {
        Self { place: Place::Path, ..Self::body(name, label, kind) }
    }

    /// Names the member of the answer of [`Operation::begins_with`], if it is not the name of the field.
    pub const fn from_member(self, source: &'static str) -> Self {
        Self { source, ..self }
    }

    pub const fn optional(self) -> Self {
        Self { is_required: false, ..self }
    }

    pub const fn hint(self, hint: &'static str) -> Self {
        Self { hint, ..self }
    }
}

/// Where a field is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Path,
    Query,
    Body,
}

/// The type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    Text,
    LongText,
    Number,
    Flag,
    /// One of these values.
    OneOf(&'static [&'static str]),
    /// Any JSON value.
    Json,
    /// Not shown to the operator: its value comes from the screen, such as the filter of a bulk action.
    Hidden,
    /// As [`Hidden`](Self::Hidden), sent as a number.
    HiddenNumber,
}

/// A button on a screen that leads to the form of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionLink {
    /// The route: `POST /drops/{drop_id}/pause`.
    pub route: &'static str,
    /// Values of the parameters of the path.
    pub parameters: Vec<(&'static str, String)>,
    /// Values that the fields begin with.
    pub values: Vec<(&'static str, String)>,
    /// The label of the button, if it is not that of the operation.
    pub label: Option<String>,
}

impl ActionLink {
    pub const fn new(route: &'static str) -> Self {
        Self { route, parameters: Vec::new(), values: Vec::new(), label: None }
    }

    /// Sets a parameter of the path.
    pub fn with(mut self, parameter: &'static str, value: impl ToString) -> Self {
        self.parameters.push((parameter, value.to_string()));
        self
    }

    /// Sets the initial value of a field.
    pub fn value(mut self, field: &'static str, value: impl ToString) -> Self {
        self.values.push((field, value.to_string()));
        self
    }

    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }
}
