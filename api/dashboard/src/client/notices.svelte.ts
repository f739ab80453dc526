/** Short messages about actions, also for screen readers. */

export interface Notice {
  id: number;
  text: string;
  kind: 'good' | 'bad';
}

let last = 0;
let shown = $state.raw<Notice[]>([]);

export const notices = {
  get shown() {
    return shown;
  },
};

/** Removes a notice. */
export function dismiss(id: number) {
  shown = shown.filter((notice) => notice.id !== id);
}

/** Shows a message for some seconds. */
export function tell(text: string, kind: Notice['kind'] = 'good') {
  const id = ++last;
  shown = [...shown.slice(-2), { id, text, kind }];
  setTimeout(() => dismiss(id), kind === 'good' ? 4_000 : 9_000);
}
