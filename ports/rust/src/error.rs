//! One error for all formats: what is wrong, where, and which rule of the specification it breaks.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::registry::Code;

/// The result of everything that can fail here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Source = Arc<dyn std::error::Error + Send + Sync>;

/// What is wrong with a file, a call or the system.
///
/// [`code`](Error::code) is stable and the same in every language; [`rule`](Error::rule) is the id of the rule of the
/// specification that is broken.
#[derive(Clone, Debug)]
pub struct Error(Box<Parts>); // one word, so that results stay small

#[derive(Clone, Debug)]
struct Parts {
    code: Code,
    rule: &'static str,
    path: Option<PathBuf>,
    entry: Option<String>,
    problem: Cow<'static, str>,
    expected: String,
    found: String,
    source: Option<Source>,
}

/// The longest part of a name that a message has.
const LONGEST_NAME: usize = 80;

impl Error {
    /// An error about a file. The problem is one sentence without a full stop.
    #[cold]
    pub fn new(code: Code, rule: &'static str, problem: impl Into<Cow<'static, str>>) -> Error {
        Error(Box::new(Parts {
            code,
            rule,
            path: None,
            entry: None,
            problem: problem.into(),
            expected: String::new(),
            found: String::new(),
            source: None,
        }))
    }

    /// An error about the arguments of a call.
    #[cold]
    pub fn invalid(problem: impl Into<Cow<'static, str>>) -> Error {
        Error::new(Code::InvalidArgument, "", problem)
    }

    /// What the operating system says about a file.
    #[cold]
    pub fn io(problem: &'static str, path: Option<&Path>, source: io::Error) -> Error {
        Error::new(Code::IoError, "", problem).with_path(path).with_source(source)
    }

    /// What the rule asks for.
    #[must_use]
    pub fn with_expected(mut self, expected: impl fmt::Display) -> Error {
        self.0.expected = expected.to_string();
        self
    }

    /// What the file has.
    #[must_use]
    pub fn with_found(mut self, found: impl fmt::Display) -> Error {
        self.0.found = found.to_string();
        self
    }

    /// The file, unless the error names one.
    #[must_use]
    pub fn with_path(mut self, path: Option<&Path>) -> Error {
        if self.0.path.is_none() {
            self.0.path = path.map(Path::to_path_buf);
        }
        self
    }

    /// The entry, unless the error names one.
    #[must_use]
    pub fn with_entry(mut self, entry: &str) -> Error {
        if self.0.entry.is_none() {
            self.0.entry = Some(entry.to_owned());
        }
        self
    }

    /// Says in front of the problem what it is a part of, such as a record.
    #[must_use]
    pub fn within(mut self, place: impl fmt::Display) -> Error {
        self.0.problem = format!("{place}: {}", self.0.problem).into();
        self
    }

    /// Another rule: what one format calls S-CMP-4 may have another name in the next.
    #[must_use]
    pub fn with_rule(mut self, rule: &'static str) -> Error {
        self.0.rule = rule;
        self
    }

    /// Another code.
    #[must_use]
    pub fn with_code(mut self, code: Code) -> Error {
        self.0.code = code;
        self
    }

    /// The error that led to this one.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        self.0.source = Some(Arc::from(source.into()));
        self
    }

    /// What is wrong; the same in every language.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// The id of the broken rule, such as `S-HDR-2`; empty if no rule is broken.
    pub fn rule(&self) -> &'static str {
        self.0.rule
    }

    /// The file, if it has a name.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// The entry; `None` if the error is about the whole file.
    pub fn entry(&self) -> Option<&str> {
        self.0.entry.as_deref()
    }

    /// One sentence without a full stop.
    pub fn problem(&self) -> &str {
        &self.0.problem
    }

    /// What the rule asks for; may be empty.
    pub fn expected(&self) -> &str {
        &self.0.expected
    }

    /// What the file has; may be empty.
    pub fn found(&self) -> &str {
        &self.0.found
    }
}

/// A name for a message: quoted, and cut if it is long.
pub(crate) fn quoted(name: &str) -> String {
    match name.char_indices().nth(LONGEST_NAME) {
        Some((end, _)) => format!("{:?}…", name.get(..end).unwrap_or_default()),
        None => format!("{name:?}"),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = &*self.0;
        if let Some(path) = &parts.path {
            write!(f, "{}: ", path.display())?;
        }
        if let Some(entry) = &parts.entry {
            write!(f, "entry {}: ", quoted(entry))?;
        }
        f.write_str(&parts.problem)?;
        match (parts.expected.as_str(), parts.found.as_str()) {
            ("", "") => {}
            (expected, "") => write!(f, " (expected {expected})")?,
            ("", found) => write!(f, " (found {found})")?,
            (expected, found) => write!(f, " (expected {expected}, found {found})")?,
        }
        if let Some(source) = &parts.source {
            write!(f, ": {source}")?;
        }
        if parts.rule.is_empty() {
            write!(f, " [{}]", parts.code)
        } else {
            write!(f, " [{}, {}]", parts.rule, parts.code)
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
