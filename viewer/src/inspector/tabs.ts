import { ExportTab } from "../export/export-tab";
import { words as exportWords } from "../export/words";
import { Entries } from "./entries";
import { Findings } from "./findings";
import { Identity } from "./identity";
import { Metadata } from "./metadata";
import type { Tab } from "./tab";
import { words } from "./words";
import "./inspect.css";

export const tabs: readonly Tab[] = [
  { name: "metadata", title: words.metadata.tab, component: Metadata },
  { name: "findings", title: words.findings.tab, component: Findings },
  { name: "identity", title: words.identity.tab, component: Identity },
  { name: "entries", title: words.entries.tab, component: Entries },
  { name: "export", title: exportWords.tab, component: ExportTab },
];
