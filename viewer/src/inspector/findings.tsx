import type { JSX } from "preact";
import { FindingsList } from "../panels/findings/list";
import type { TabProps } from "./tab";

export function Findings(props: TabProps): JSX.Element {
  return <FindingsList {...props} />;
}
