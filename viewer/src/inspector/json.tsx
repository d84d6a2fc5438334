// JSON as a tree. Content is data: it becomes text, and only addresses of https become links.

import type { Json } from "@shard-format/core";
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { shown } from "../ui/escape";
import { words } from "./words";

const mostChildren = 100;
const mostText = 2000;
/** Deeper levels are closed at first. */
const openLevels = 2;

export function JsonTree({ value, level = 0 }: { readonly value: Json; readonly level?: number }): JSX.Element {
  if (typeof value !== "object" || value === null) return <Scalar value={value} />;
  const isList = Array.isArray(value);
  const children: [string, Json][] = isList ? value.map((one, at) => [String(at), one]) : Object.entries(value);
  if (children.length === 0) return <span class="json-empty">{isList ? "[ ]" : "{ }"}</span>;
  if (isList && children.length <= 16 && children.every(([, one]) => typeof one !== "object" || one === null)) {
    return (
      <span class="json-row">
        {children.map(([at, one], index) => (
          <span key={at}>
            <Scalar value={one as ScalarValue} />
            {index + 1 < children.length && ", "}
          </span>
        ))}
      </span>
    );
  }
  return <Branch isList={isList} items={children} level={level} />;
}

function Branch({ isList, items, level }: { isList: boolean; items: [string, Json][]; level: number }): JSX.Element {
  const [most, setMost] = useState(mostChildren);
  const [isOpen, setOpen] = useState(level < openLevels);
  const list = (
    <dl class={`json ${level === 0 ? "json-top" : ""}`}>
      {items.slice(0, most).map(([key, one]) => (
        <div key={key} class={isBranch(one) ? "json-branch" : ""}>
          <dt>{shown(key)}</dt>
          <dd>
            <JsonTree value={one} level={level + 1} />
          </dd>
        </div>
      ))}
      {items.length > most && (
        <button type="button" onClick={() => setMost(most * 4)}>
          {words.metadata.more(items.length - most)}
        </button>
      )}
    </dl>
  );
  if (level === 0) return list;
  // What is closed has no elements: a tree may have a million of them.
  return (
    <details open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{(isList ? words.metadata.items : words.metadata.fields)(items.length)}</summary>
      {isOpen && list}
    </details>
  );
}

function isBranch(value: Json): boolean {
  if (typeof value !== "object" || value === null) return false;
  return !Array.isArray(value) || value.length > 16 || value.some((one) => typeof one === "object" && one !== null);
}

type ScalarValue = Exclude<Json, Json[] | { [key: string]: Json }>;

function Scalar({ value }: { value: ScalarValue }): JSX.Element {
  if (typeof value !== "string") return <span class="json-value">{String(value)}</span>;
  const text = shown(value.slice(0, mostText)) + (value.length > mostText ? " …" : "");
  const address = safeAddress(value);
  if (address === null) return <span class="json-text">{text === "" ? "“”" : text}</span>;
  return (
    <a href={address} target="_blank" rel="noopener noreferrer">
      {text}
    </a>
  );
}

/** The address that a text is, if it is one of https without anything hidden in it; null for everything else. */
export function safeAddress(text: string): string | null {
  if (!/^https:\/\/[\x21-\x7e]+$/.test(text) || text.length > mostText) return null;
  try {
    const url = new URL(text);
    return url.protocol === "https:" && url.username === "" && url.password === "" ? url.href : null;
  } catch {
    return null;
  }
}
