// What the file is: its identity, who signed it, and where it comes from.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { FileReads } from "../model/files";
import { useAnswer } from "../model/hooks";
import { copyText } from "../ui/copy";
import { shown } from "../ui/escape";
import { bytes } from "../ui/format";
import { JsonTree } from "./json";
import type { TabProps } from "./tab";
import { words } from "./words";

const { identity: texts } = words;

export function Identity({ episode }: TabProps): JSX.Element {
  const { reads, facts } = episode;
  const [file] = facts.files;
  const stated = useAnswer(() => reads.identity(), [reads]);
  const provenance = useAnswer(() => reads.provenance(), [reads]);
  return (
    <div class="inspect">
      {file && <FileIdentity reads={reads} file={file.name} size={file.size} stated={stated.value ?? null} />}
      <h3>{texts.provenance}</h3>
      {provenance.error && <p class="inspect-bad">{shown(provenance.error.message)}</p>}
      {provenance.value && <JsonTree value={provenance.value} />}
      {provenance.value === null && <p class="soft">{texts.noProvenance}</p>}
      {provenance.value === undefined && !provenance.error && <p class="soft">{texts.reading}</p>}
    </div>
  );
}

interface FileProps {
  readonly reads: FileReads;
  readonly file: string;
  readonly size: number;
  /** The identity that the file states; null if none. */
  readonly stated: string | null;
}

type Check =
  | { readonly state: "none" | "working" }
  | { readonly state: "good"; readonly digest: string; readonly isStated: boolean }
  | { readonly state: "bad"; readonly problem: string };

export function FileIdentity({ reads, file, size, stated }: FileProps): JSX.Element {
  const [check, setCheck] = useState<Check>({ state: "none" });
  const [copied, setCopied] = useState(false);
  const sizeText = bytes(size);
  const digest = check.state === "good" ? check.digest : stated;

  const compute = async () => {
    setCheck({ state: "working" });
    try {
      setCheck({ state: "good", ...(await reads.computeIdentity(file)) });
    } catch (error) {
      setCheck({ state: "bad", problem: messageOf(error) });
    }
  };
  const copy = async () => {
    await copyText(digest ?? "");
    setCopied(true);
    setTimeout(() => setCopied(false), 2000);
  };

  return (
    <>
      <h3>{texts.identity}</h3>
      <p class="soft">{texts.lead}</p>
      {digest !== null && (
        <p class="identity-digest">
          <code>{digest}</code>
          <button type="button" onClick={copy}>
            {copied ? texts.copied : texts.copy}
          </button>
        </p>
      )}
      <p role="status" class={check.state === "good" ? "inspect-good" : check.state === "bad" ? "inspect-bad" : "soft"}>
        {check.state === "working" && texts.working(sizeText)}
        {check.state === "good" && `✓ ${check.isStated ? texts.verified : texts.computed}`}
        {check.state === "bad" && `✕ ${texts.differs} ${shown(check.problem)}`}
        {check.state === "none" && (stated === null ? texts.notStated : texts.stated)}
      </p>
      {(check.state === "none" || check.state === "bad") && (
        <button type="button" onClick={compute}>
          {stated === null ? texts.compute(sizeText) : texts.verify(sizeText)}
        </button>
      )}
      <h3>{texts.signature}</h3>
      <SignatureCheck reads={reads} file={file} />
    </>
  );
}

function SignatureCheck({ reads, file }: Pick<FileProps, "reads" | "file">): JSX.Element {
  const { value: signature, error } = useAnswer(() => reads.signature(file), [reads, file]);
  const [key, setKey] = useState("");
  const [result, setResult] = useState<{ isGood: boolean; text: string } | null>(null);
  if (error) return <p class="inspect-bad">{shown(error.message)}</p>;
  if (signature === undefined) return <p class="soft">{texts.reading}</p>;
  if (signature === null) return <p class="soft">{texts.noSignature}</p>;
  const isKey = /^[0-9a-f]{64}$/i.test(key.trim());
  const check = async (event: Event) => {
    event.preventDefault();
    if (!isKey) {
      setResult({ isGood: false, text: texts.badKey });
      return;
    }
    try {
      await reads.checkSignature(file, key.trim().toLowerCase());
      setResult({ isGood: true, text: texts.good });
    } catch (problem) {
      setResult({ isGood: false, text: `${texts.bad} ${shown(messageOf(problem))}` });
    }
  };
  return (
    <form class="signature" onSubmit={check}>
      <p>{texts.signed(shown(signature.file))}</p>
      <code>{signature.publicKey}</code>
      <p class="soft">{texts.claim}</p>
      <input
        type="text"
        spellcheck={false}
        aria-label={texts.trusted}
        placeholder={texts.trusted}
        value={key}
        onInput={(event) => {
          setKey(event.currentTarget.value);
          setResult(null);
        }}
      />
      <button type="submit">{texts.check}</button>
      <p role="status" class={result?.isGood ? "inspect-good" : "inspect-bad"}>
        {result && `${result.isGood ? "✓" : "✕"} ${result.text}`}
      </p>
    </form>
  );
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
