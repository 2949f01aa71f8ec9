import { setTimeout as sleep } from 'node:timers/promises';
import { isCode, type Logger, messageOf } from '../base/index.ts';
import { type Event, EVENTS, type KubeClient } from '../kube/index.ts';
import type { Movement } from './movement.ts';

export interface MoverProgress {
  readonly totalBytes: number;
  readonly bytesDone: number;
}

export interface DataPathOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  readonly onProgress: (progress: MoverProgress) => void;
}

const PAUSE_MS = 1000;

/** What a data mover tells of itself by Events on its CR while it runs (Velero: pkg/datapath/micro_service_watcher.go). */
export class DataPath {
  readonly #options: DataPathOptions;
  readonly #abort = new AbortController();
  readonly #uid: string;
  #lastText = '';
  #movedMs = performance.now();
  #isRunning = false;

  constructor(movement: Movement, options: DataPathOptions) {
    this.#uid = movement.metadata.uid;
    this.#options = options;
    void this.#follow();
  }

  /** Milliseconds since something last moved, counted only while the pod runs. */
  get stalledMs(): number {
    return this.#isRunning ? performance.now() - this.#movedMs : 0;
  }

  podIsRunning(isRunning: boolean): void {
    if (isRunning && !this.#isRunning) this.#movedMs = performance.now();
    this.#isRunning = isRunning;
  }

  close(): void {
    this.#abort.abort();
  }

  async #follow(): Promise<void> {
    const { client, namespace, logger } = this.#options;
    const { signal } = this.#abort;
    const scope = { namespace, fieldSelector: `involvedObject.uid=${this.#uid}`, signal };
    while (!signal.aborted) {
      try {
        const page = await client.listPage(EVENTS, scope);
        for (const event of page.items) this.#see(event);
        const { resourceVersion } = page;
        for await (const event of client.watch(EVENTS, { ...scope, resourceVersion })) {
          if (event.type === 'ADDED' || event.type === 'MODIFIED') this.#see(event.object);
        }
      } catch (error) {
        if (signal.aborted) return;
        if (!isCode(error, 'KUBE_GONE')) {
          logger.debug({ error: messageOf(error) }, "watch of the data mover's events ended");
        }
        await sleep(PAUSE_MS, undefined, { signal }).catch(() => undefined);
      }
    }
  }

  #see({ reason, message = '' }: Event): void {
    if (reason !== 'Data-Path-Progress') return;
    if (message === this.#lastText) return;
    this.#lastText = message;
    this.#movedMs = performance.now();
    const { totalBytes = 0, doneBytes = 0 } = parseProgress(message);
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
