/** Signs of progress. An open repository provides both. */
export interface Life {
  /** Grows while work continues. */
  readonly moved: number;
  readonly isWaitingForStorage: boolean;
}

/** Adds another counter to the signs of progress. */
export const lifeWith = (life: Life, more: () => number): Life => ({
  get moved() {
    return life.moved + more();
  },
  get isWaitingForStorage() {
    return life.isWaitingForStorage;
  },
});

/** After an interrupt, the process ends after this time without progress. */
const STOPPING_MS_MAX = 30_000;
/** At 70 kB/s, the put of one pack takes this long without progress. Our choice. */
const STORAGE_MS_MAX = 5 * 60_000;
const LOOK_EVERY_MS = 500;

/** Watches a requested end, and reports once if it hangs. Call the returned function at the end. */
export function watchEnd(life: Life, onHang: (text: string) => void): () => void {
  let last = life.moved;
  let idleMs = 0;
  const timer = setInterval(() => {
    const { moved, isWaitingForStorage } = life;
    idleMs = moved === last ? idleMs + LOOK_EVERY_MS : 0;
    last = moved;
    if (idleMs < (isWaitingForStorage ? STORAGE_MS_MAX : STOPPING_MS_MAX)) return;
    clearInterval(timer);
    const what = isWaitingForStorage ? 'the storage' : 'a disk';
    onHang(
      `interrupted, and nothing has moved for ${idleMs / 1000} s since: ${what} hangs; stopping without waiting for it`,
    );
  }, LOOK_EVERY_MS);
  timer.unref();
  return () => {
    clearInterval(timer);
  };
}
