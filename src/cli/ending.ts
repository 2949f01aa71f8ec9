/** How it can be seen that something goes on: an open repository tells both. */
export interface Life {
  /** Grows while there is life. */
  readonly moved: number;
  readonly isWaitingForStorage: boolean;
}

/** The same, with something else that grows. */
export const lifeWith = (life: Life, more: () => number): Life => ({
  get moved() {
    return life.moved + more();
  },
  get isWaitingForStorage() {
    return life.isWaitingForStorage;
  },
});

/** After an interrupt, without any sign of life for this long, the process ends as it is. */
const STOPPING_MS_MAX = 30_000;
/**
 * A put shows none until it is done: at 70 kB/s a pack takes this long. Our choice; who does not
 * want to wait ends it.
 */
const STORAGE_MS_MAX = 5 * 60_000;
const LOOK_EVERY_MS = 500;

/**
 * Watches an end that was asked for, and says once when it hangs. Call what is returned when it
 * came.
 */
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
