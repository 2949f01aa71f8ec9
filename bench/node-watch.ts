import * as fs from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  type DataDownload,
  type DataUpload,
  type KubeClient,
  type KubeObject,
  type PodVolumeBackup,
  type PodVolumeRestore,
  PODS,
  type Resource,
} from '../src/kube/index.ts';
import { processesOf } from '../test/support/real-node.ts';
import { peakOf } from './measure.ts';

export type Movement = DataUpload | DataDownload | PodVolumeBackup | PodVolumeRestore;

/** The times of one moved volume: seconds between two moments that a watcher saw. */
export interface Row {
  /** From the CR's creation to its end. */
  readonly total: number;
  /** Part of the total until InProgress. */
  readonly until: number;
  /** From the start of the hosting pod to InProgress. */
  readonly beyond: number;
  /** From InProgress to the end. */
  readonly move: number;
  /** MB per second of the move. */
  readonly rate: number;
  /** Highest resident set of the data mover's process. */
  readonly peakMiB: number;
}

const MOVER = /--(?:data-upload|data-download|pod-volume-backup|pod-volume-restore)=(\S+)/;
const SAMPLE_MS = 50;
const NAMESPACE = 'velero';

/**
 * Watches a benchmark on a real node: the times of phases of CRs and pods, and the memory of data
 * movers.
 */
export class NodeWatch implements Disposable {
  readonly #client: KubeClient;
  readonly #over = new AbortController();
  /** Times by `<phase> <name>`. The key `'' <name>` is the first sight of the object. */
  readonly #seenMs = new Map<string, number>();
  readonly #peaksMiB = new Map<string, number>();
  readonly #sampling: NodeJS.Timeout;

  constructor(client: KubeClient, resources: readonly Resource<Movement>[]) {
    this.#client = client;
    this.#sampling = setInterval(() => {
      this.#samplePeaks();
    }, SAMPLE_MS).unref();
    for (const resource of [PODS, ...resources]) void this.#watch(resource);
  }

  /** Milliseconds on the clock of `performance.now()`; NaN where it was never seen. */
  momentOf(name: string, phase = ''): number {
    return this.#seenMs.get(`${phase} ${name}`) ?? NaN;
  }

  /**
   * `bytes`: size of the volume's data; by default the CR's progress has it. Throws if the volume
   * was not moved.
   */
  rowOf({ metadata: { name }, status }: Movement, bytes = status?.progress?.totalBytes ?? 0): Row {
    if (status?.phase !== 'Completed') {
      throw new Error(`${name}: ${status?.phase ?? ''} ${status?.message ?? ''}`);
    }
    const created = this.momentOf(name);
    const began = this.momentOf(name, 'InProgress');
    const ended = this.momentOf(name, 'Completed');
    return {
      total: (ended - created) / 1000,
      until: (began - created) / 1000,
      beyond: (began - this.momentOf(name, 'Running')) / 1000,
      move: (ended - began) / 1000,
      rate: bytes / (ended - began) / 1000,
      peakMiB: this.#peaksMiB.get(name) ?? NaN,
    };
  }

  [Symbol.dispose](): void {
    clearInterval(this.#sampling);
    this.#over.abort();
  }

  #samplePeaks(): void {
    for (const { pid, command } of processesOf(MOVER)) {
      const name = MOVER.exec(command)?.[1] ?? '';
      this.#peaksMiB.set(name, Math.max(this.#peaksMiB.get(name) ?? 0, peakOf(pid) / 1024));
    }
  }

  async #watch(
    resource: Resource<KubeObject & { status?: { phase?: string | undefined } }>,
  ): Promise<void> {
    const { signal } = this.#over;
    while (!signal.aborted) {
      try {
        for await (const { object } of this.#client.watch(resource, {
          namespace: NAMESPACE,
          signal,
        })) {
          const { metadata, status } = object as KubeObject & { status?: { phase?: string } };
          // A hosting pod has the name of its CR, and is made later.
          if (resource !== PODS) this.#note(metadata.name, '');
          if (status?.phase) this.#note(metadata.name, status.phase);
        }
      } catch {
        await sleep(200);
      }
    }
  }

  #note(name: string, phase: string): void {
    const key = `${phase} ${name}`;
    if (!this.#seenMs.has(key)) this.#seenMs.set(key, performance.now());
  }
}

/** Resident MiB of the processes whose command matches. */
export const residentMiB = (command: RegExp): number =>
  Math.round(processesOf(command).reduce((sum, { pid }) => sum + residentKib(pid), 0) / 1024);

function residentKib(pid: number): number {
  try {
    const status = fs.readFileSync(`/proc/${pid}/status`, 'utf8');
    return Number(/VmRSS:\s+(\d+)/.exec(status)?.[1] ?? 0);
  } catch {
    // The process has just ended.
    return 0;
  }
}
