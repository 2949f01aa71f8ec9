import { setTimeout as sleep } from 'node:timers/promises';
import { backoffMs, isCode, type Logger, messageOf } from '../../base/index.ts';
import { type Event, EVENTS, type KubeClient, withOwnSignal } from '../../kube/index.ts';
import type { MoverResult } from '../directions/direction.ts';
import type { Movement } from '../movement.ts';
import { eventResultOf, eventsAbout } from '../mover/event-result.ts';

export interface MoverProgress {
  readonly totalBytes: number;
  readonly bytesDone: number;
}

export interface DataPathOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  readonly onProgress: (progress: MoverProgress) => void;
  readonly onDone?: () => void;
  /** Bytes moved since the last call. */
  readonly onMoved?: (bytes: number) => void;
  /** A watch silent for this long is restarted. */
  readonly silenceMs?: number;
}

const PAUSE_MS = 1000;
/** Longest pause between tries while the server does not answer. The pause doubles each time. */
const PAUSE_MS_MAX = 8000;
/** Movers report every few seconds. A hanging watch would make a live mover look stalled. */
const SILENCE_MS = 150_000;
const TICK_MS = 5000;
/** Movers of one CR whose results are kept. A mover is restarted three times. */
const RESULTS_MAX = 8;
/** After such a gap between ticks, the process or its node was suspended and heard nothing. */
const STOOD_STILL_MS = 30_000;

/** A data mover's Events on its CR (Velero: pkg/datapath/micro_service_watcher.go). */
export class DataPath {
  readonly #options: DataPathOptions;
  readonly #abort = new AbortController();
  readonly #selector: string;
  #lastText = '';
  /** Resource versions of Events by name. Every list returns old Events again. */
  readonly #versions = new Map<string, string>();
  /** Results by UID of the mover's pod. */
  readonly #results = new Map<string, MoverResult>();
  #movedMs = performance.now();
  #heardMs = performance.now();
  #tickedMs = performance.now();
  readonly #ticks: NodeJS.Timeout;
  #isDeaf = false;
  #isRunning = false;
  #doneBytes: number;

  constructor(movement: Movement, options: DataPathOptions) {
    this.#selector = eventsAbout(movement);
    // The agent that wrote this progress has counted these bytes.
    this.#doneBytes = movement.status?.progress?.bytesDone ?? 0;
    this.#options = options;
    this.#ticks = setInterval(() => this.#tick(), TICK_MS);
    this.#ticks.unref();
    void this.#follow();
  }

  /**
   * Milliseconds since the mover last reported. Counted only while its pod runs and the API server
   * is reachable. A report without progress counts as life: the mover has its own limit for stalls.
   */
  get stalledMs(): number {
    if (!this.#isRunning) return 0;
    // After a suspension this may be called before the first tick.
    this.#tick();
    return Math.max(0, (this.#isDeaf ? this.#heardMs : performance.now()) - this.#movedMs);
  }

  /** The highest number reported. A restarted mover begins at zero; its repeats count once. */
  get doneBytes(): number {
    return this.#doneBytes;
  }

  /** The result reported by the mover in this pod; undefined until it is done. */
  resultOf(podUid: string): MoverResult | undefined {
    return this.#results.get(podUid);
  }

  podIsRunning(isRunning: boolean): void {
    if (isRunning && !this.#isRunning) this.#movedMs = performance.now();
    this.#isRunning = isRunning;
  }

  close(): void {
    clearInterval(this.#ticks);
    this.#abort.abort();
  }

  #tick(): void {
    const nowMs = performance.now();
    const passedMs = nowMs - this.#tickedMs;
    this.#tickedMs = nowMs;
    if (passedMs > STOOD_STILL_MS) this.#movedMs = Math.min(nowMs, this.#movedMs + passedMs);
  }

  async #follow(): Promise<void> {
    const { client, logger } = this.#options;
    const { signal } = this.#abort;
    let failures = 0;
    while (!signal.aborted) {
      let isListing = true;
      try {
        const page = await client.listPage(EVENTS, { ...this.#scope, signal });
        this.#hear();
        this.#forgetAllBut(page.items);
        for (const event of page.items) this.#see(event);
        isListing = false;
        failures = 0;
        const { resourceVersion } = page;
        await withOwnSignal(signal, (own) => this.#watch(own, resourceVersion));
      } catch (error) {
        if (signal.aborted) return;
        if (isListing) {
          this.#isDeaf = true;
          failures++;
        }
        if (!isCode(error, 'KUBE_GONE')) {
          logger.debug({ error: messageOf(error) }, "watch of the data mover's events ended");
        }
      }
      // Also after a watch that ended normally: behind some proxies each watch ends at once.
      const limits = { firstMs: 2 * PAUSE_MS, maxMs: PAUSE_MS_MAX, jitter: 0.5 };
      const pauseMs = failures === 0 ? PAUSE_MS : backoffMs(failures, limits);
      await sleep(pauseMs, undefined, { signal }).catch(() => undefined);
    }
  }

  async #watch(own: AbortController, resourceVersion: string): Promise<void> {
    const { client, silenceMs = SILENCE_MS } = this.#options;
    const timer = setInterval(() => {
      if (performance.now() - this.#heardMs > silenceMs)
        own.abort(new Error('the watch was silent'));
    }, silenceMs / 10);
    timer.unref();
    try {
      const scope = { ...this.#scope, signal: own.signal, resourceVersion };
      for await (const event of client.watch(EVENTS, scope)) {
        this.#hear();
        if (event.type === 'ADDED' || event.type === 'MODIFIED') this.#see(event.object);
      }
    } finally {
      clearInterval(timer);
    }
  }

  /** The mover may have moved data during an outage, so that time does not count as stalled. */
  #hear(): void {
    const nowMs = performance.now();
    if (this.#isDeaf) this.#movedMs = Math.min(nowMs, this.#movedMs + nowMs - this.#heardMs);
    this.#isDeaf = false;
    this.#heardMs = nowMs;
  }

  get #scope(): { namespace: string; fieldSelector: string } {
    const { namespace } = this.#options;
    return { namespace, fieldSelector: this.#selector };
  }

  #forgetAllBut(events: readonly Event[]): void {
    const names = new Set(events.map(({ metadata }) => metadata.name));
    for (const name of this.#versions.keys()) {
      if (!names.has(name)) this.#versions.delete(name);
    }
  }

  #see(event: Event): void {
    const { metadata, reason, message = '' } = event;
    const told = eventResultOf(event);
    if (told && !this.#results.has(told.pod)) {
      const [oldest] = this.#results.keys();
      if (oldest !== undefined && this.#results.size >= RESULTS_MAX) this.#results.delete(oldest);
      this.#results.set(told.pod, told.result);
      this.#options.onDone?.();
    }
    if (reason !== 'Data-Path-Progress') return;
    if (this.#versions.get(metadata.name) === metadata.resourceVersion) return;
    this.#versions.set(metadata.name, metadata.resourceVersion);
    this.#movedMs = performance.now();
    if (message === this.#lastText) return;
    this.#lastText = message;
    const { totalBytes = 0, doneBytes = 0 } = parseProgress(message);
    // Anyone who may write Events can write any number into them.
    if (Number.isSafeInteger(doneBytes) && doneBytes > this.#doneBytes) {
      const movedBytes = doneBytes - this.#doneBytes;
      this.#doneBytes = doneBytes;
      this.#options.onMoved?.(movedBytes);
    }
    this.#options.onProgress({ totalBytes, bytesDone: doneBytes });
  }
}

/** Unreadable progress counts as none. */
function parseProgress(text: string): { totalBytes?: number; doneBytes?: number } {
  try {
    return JSON.parse(text) as { totalBytes?: number; doneBytes?: number };
  } catch {
    return {};
  }
}
