import { compareUtf8, encodeUtf8, sha256 } from "./bytes.js";
import { broken } from "./errors.js";
import { isObject, type JsonObject } from "./json.js";

const maxTags = 16;

/** S-SCH-4 */
export function checkSchema(schema: JsonObject): void {
  for (const field of ["tag_dictionary", "tags"]) {
    const value = schema[field] ?? [];
    const most = field === "tags" ? Number.POSITIVE_INFINITY : maxTags;
    if (!Array.isArray(value) || value.length > most || value.some((item) => typeof item !== "string")) {
      throw wrong(field, field === "tags" ? "a list of strings" : `a list of at most ${maxTags} strings`);
    }
  }
  const rows = schema["entry_metadata"] ?? {};
  if (!isObject(rows) || Object.values(rows).some((row) => !isObject(row))) {
    throw wrong("entry_metadata", "an object of objects");
  }
}

function wrong(field: string, expected: string) {
  return broken("bad_metadata", "S-SCH-4", `'${field}' of the schema section is wrong`, { expected });
}

/** The `schema_id` of a schema section: 16 hex digits. */
export async function schemaId(schema: JsonObject): Promise<string> {
  checkSchema(schema);
  const parts = [...((schema["tag_dictionary"] ?? []) as string[])];
  const rows = (schema["entry_metadata"] ?? {}) as Record<string, JsonObject>;
  for (const name of Object.keys(rows).sort(compareUtf8)) {
    parts.push(name, String(rows[name]["content_type"] ?? ""), String(rows[name]["semantic_type"] ?? ""));
  }
  const text = encodeUtf8(parts.map((part) => `${part}\0`).join("")) ?? new Uint8Array(0);
  return (await sha256(text)).slice(0, 16);
}
