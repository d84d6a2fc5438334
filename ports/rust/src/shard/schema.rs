//! The schema section (S-SCH-1 to S-SCH-8).

use super::content::block;
use super::reader::ShardReader;
use crate::json::{self, Object, Value};
use crate::registry::Code;
use crate::{Error, Result};

const MOST_TAGS: usize = 16;

impl ShardReader {
    /// The schema section, if the file has one.
    pub fn schema(&self) -> Result<Option<Object>> {
        self.read_schema().map_err(|e| e.with_path(self.path()))
    }

    fn read_schema(&self) -> Result<Option<Object>> {
        let (start, end) = (self.header.schema_offset, self.header.total_file_size);
        if start == 0 {
            return Ok(None);
        }
        let blocks = self.index.entries().map(|entry| block(&entry).end).max();
        let behind = blocks.unwrap_or(0).max(self.header.data_section_offset);
        if !(behind..=end).contains(&start) {
            return Err(Error::new(Code::BadMetadata, "S-SCH-1", "the schema section is not behind the data")
                .with_expected(format_args!("{behind} to {end}"))
                .with_found(start));
        }
        let size = end.saturating_sub(start);
        json::check_length(size, "the schema section", self.limits())?;
        let text = self.read_bytes(start, size)?;
        let schema = json::parse_object(&text, "the schema section", "S-SCH-2", self.limits())?;
        check_schema(&schema)?;
        Ok(Some(schema))
    }
}

/// Checks S-SCH-4.
pub(super) fn check_schema(schema: &Object) -> Result<()> {
    let is_text = |value: &Value| value.as_str().is_some();
    let texts = |most: usize| {
        move |value: &Value| {
            let list = value.as_list();
            list.is_some_and(|list| list.len() <= most && list.iter().all(is_text))
        }
    };
    let objects = |value: &Value| {
        let object = value.as_object();
        object.is_some_and(|object| object.values().all(|one| one.as_object().is_some()))
    };
    let check = |field, expected, is_right: &dyn Fn(&Value) -> bool| match schema.get(field) {
        None | Some(Value::Null) => Ok(()),
        Some(value) if is_right(value) => Ok(()),
        Some(_) => Err(Error::new(Code::BadMetadata, "S-SCH-4", format!("{field:?} of the schema section is wrong"))
            .with_expected(expected)),
    };
    check("tag_dictionary", "a list of at most 16 strings", &texts(MOST_TAGS))?;
    check("tags", "a list of strings", &texts(usize::MAX))?;
    check("entry_metadata", "an object of objects", &objects)
}
