import { useEffect, useRef } from "preact/hooks";
import type { App } from "../state/app";
import { Tool } from "../ui/tool";
import { words } from "../words";

export function Help({ app }: { readonly app: App }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const isOpen = app.isHelpOpen.value;
  useEffect(() => {
    if (isOpen) dialog.current?.showModal();
    else dialog.current?.close();
  }, [isOpen]);
  const close = () => {
    app.isHelpOpen.value = false;
  };
  const { help } = words;
  return (
    <dialog ref={dialog} class="help" aria-label={help.heading} onClose={close}>
      <div class="help-head">
        <h2>{help.heading}</h2>
        <Tool icon="close" label={help.close} use={close} />
      </div>
      <div class="help-groups">
        {help.groups.map(({ title, keys }) => (
          <section key={title}>
            <h3>{title}</h3>
            <dl>
              {keys.map(([key, what]) => (
                <div key={key}>
                  <dt>
                    <kbd>{key}</kbd>
                  </dt>
                  <dd>{what}</dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
      </div>
    </dialog>
  );
}
