/** What is asked of the process; tests have their own. */
export interface Resources {
  /** Of all threads, since the start. */
  readonly cpuMs: () => number;
  readonly heapBytes: () => number;
  /** Undefined where Node was not started with `--expose-gc`. */
  readonly collect: (() => void) | undefined;
}

export interface RestingOptions {
  readonly firstMs?: number;
  readonly everyMs?: number;
  readonly resources?: Resources;
}

type Collect = (options: { type: 'major'; flavor: 'last-resort' }) => void;

const ownResources = (): Resources => {
  const { gc } = globalThis as { gc?: Collect };
  return {
    cpuMs: () => {
      const { user, system } = process.cpuUsage();
      return (user + system) / 1000;
    },
    heapBytes: () => process.memoryUsage().heapUsed,
    // The other flavour keeps code that ran once, and the texts of modules.
    collect:
      gc &&
      ((): void => {
        gc({ type: 'major', flavor: 'last-resort' });
      }),
  };
};

/** Most of what the start leaves is garbage by then. */
const FIRST_MS = 3000;
const EVERY_MS = 30_000;
/** Of one core: who does more is at work, and the collector comes by itself. Our choice. */
const RESTING_SHARE = 0.05;
/** Less is not worth a tenth of a second. Our choice. */
const WORTH_BYTES = 4 << 20;

/**
 * Gives memory back when the process rests: V8 collects by how much is allocated, so that what a
 * start or a backup has left stays for hours where nothing happens, 14 MiB after a start. Collects
 * once after each work, for a tenth of a second. Until the returned function is called.
 */
export function collectAtRest({
  firstMs = FIRST_MS,
  everyMs = EVERY_MS,
  resources = ownResources(),
}: RestingOptions = {}): () => void {
  const { cpuMs, heapBytes, collect } = resources;
  if (!collect) return () => undefined;
  let timer: NodeJS.Timeout;
  let keptBytes = 0;
  let before: { readonly cpuMs: number; readonly atMs: number } | undefined;
  const look = (): void => {
    const now = { cpuMs: cpuMs(), atMs: performance.now() };
    // After the start there is nothing to compare with, and one pause harms nobody.
    const isResting =
      !before || now.cpuMs - before.cpuMs < (now.atMs - before.atMs) * RESTING_SHARE;
    if (isResting && heapBytes() - keptBytes > WORTH_BYTES) {
      collect();
      keptBytes = heapBytes();
    }
    before = { cpuMs: cpuMs(), atMs: performance.now() };
    timer = setTimeout(look, everyMs).unref();
  };
  timer = setTimeout(look, firstMs).unref();
  return () => {
    clearTimeout(timer);
  };
}
