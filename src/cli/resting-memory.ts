/** Process resources that are read. Tests replace them. */
export interface Resources {
  /** CPU time of all threads, since the start. */
  readonly cpuMs: () => number;
  readonly heapBytes: () => number;
  /** Undefined if Node runs without `--expose-gc`. */
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
    // The other flavour keeps code that ran once, and the source texts of modules.
    collect:
      gc &&
      ((): void => {
        gc({ type: 'major', flavor: 'last-resort' });
      }),
  };
};

/** Most allocations of the start are garbage after this time. */
const FIRST_MS = 3000;
const EVERY_MS = 30_000;
/** Share of one core. A busier process is at work, and V8 collects by itself. Our choice. */
const RESTING_SHARE = 0.05;
/** A smaller gain is not worth a pause of 0.1 s. Our choice. */
const WORTH_BYTES = 4 << 20;

/**
 * Frees memory when the process is idle. V8 collects only after allocations, so garbage of a start
 * or a backup stays for hours otherwise (14 MiB after a start). Collects once after each activity,
 * which takes 0.1 s. Runs until the returned function is called.
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
    // The first check has no earlier value, and one pause does no harm.
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
