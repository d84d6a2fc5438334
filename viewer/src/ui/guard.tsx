import { Component, type ComponentChildren } from "preact";
import { words } from "../words";
import { shown } from "./escape";

/** Keeps an error of one part away from the others. */
export class Guard extends Component<{ children: ComponentChildren }, { error: Error | null }> {
  override state: { error: Error | null } = { error: null };

  override componentDidCatch(error: unknown): void {
    this.setState({ error: error instanceof Error ? error : new Error(String(error)) });
  }

  override render() {
    const { error } = this.state;
    if (error === null) return this.props.children;
    return (
      <div class="failed" role="alert">
        <p>{words.stage.failed}</p>
        <p class="mono small">{shown(error.message)}</p>
        <button type="button" onClick={() => this.setState({ error: null })}>
          {words.stage.again}
        </button>
      </div>
    );
  }
}
