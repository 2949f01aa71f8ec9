import { type Logger, messageOf } from '../../base/index.ts';
import { type KubeClient, keyOf } from '../../kube/index.ts';
import type { Direction, MoverResult } from '../directions/direction.ts';
import { DataPath, type MoverProgress } from './data-path.ts';
import type { AgentMetrics } from '../metrics.ts';
import { isFinal, type Movement } from '../movement.ts';
import type { MovementWriter } from './movement-writer.ts';
import type { Memory, WatchedPath } from './tracked-movements.ts';

export interface DataPathsOptions<M extends Movement> {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  readonly writer: MovementWriter<M>;
  readonly memory: Memory<M>;
  readonly metrics: AgentMetrics;
  readonly direction: Direction<M>;
  /** Requests another reconcile of the key soon. */
  readonly enqueue: (key: string) => void;
}

/** Pause between progress writes, which all agents receive. Grows to a tenth of the run time. */
const WRITE_MS = 1000;
const WRITE_MS_MAX = 10_000;

/** The data paths that this agent watches. Writes their progress to the CRs, at a bounded rate. */
export class DataPaths<M extends Movement> {
  readonly #options: DataPathsOptions<M>;

  constructor(options: DataPathsOptions<M>) {
    this.#options = options;
  }

  /** Starts to watch the data path at the first call. */
  of(movement: M): DataPath {
    const { uid } = movement.metadata;
    const record = this.#options.memory.of(uid);
    if (record.dataPath) return record.dataPath.path;
    const { client, logger, namespace, metrics, direction, enqueue } = this.#options;
    const onMoved = (bytes: number): void => {
      metrics.moved(direction.name, bytes);
    };
    const onProgress = (progress: MoverProgress): void => {
      entry.latest = progress;
      if (!entry.isWriting) void this.#write(movement, entry);
    };
    const onDone = (): void => {
      enqueue(keyOf(movement.metadata));
    };
    const options = { client, logger, namespace, onProgress, onMoved, onDone };
    const path = new DataPath(movement, options);
    const entry: WatchedPath = {
      path,
      latest: undefined,
      isWriting: false,
      sinceMs: performance.now(),
    };
    record.dataPath = entry;
    return path;
  }

  /** Result of the mover in this pod; undefined if the data path is not watched or not done. */
  resultOf({ metadata }: M, podUid: string): MoverResult | undefined {
    return this.#options.memory.get(metadata.uid)?.dataPath?.path.resultOf(podUid);
  }

  /** Bytes of the whole volume that do not count as moved yet. */
  restOf({ metadata, status }: M, totalBytes: number): number {
    const watched = this.#options.memory.get(metadata.uid)?.dataPath;
    const counted = watched?.path.doneBytes ?? status?.progress?.bytesDone ?? 0;
    return Math.max(0, totalBytes - counted);
  }

  drop(uid: string): void {
    const record = this.#options.memory.get(uid);
    record?.dataPath?.path.close();
    if (record) record.dataPath = undefined;
  }

  /** Writes the latest progress, which never decreases. */
  async #write(movement: M, entry: WatchedPath): Promise<void> {
    const { latest } = entry;
    if (!latest) return;
    entry.isWriting = true;
    try {
      await this.#options.writer.update(movement, (copy) => {
        if (isFinal(copy)) return false;
        const before = copy.status?.progress ?? {};
        const bytesDone = Math.max(before.bytesDone ?? 0, latest.bytesDone);
        const totalBytes = Math.max(latest.totalBytes, bytesDone);
        if (before.bytesDone === bytesDone && before.totalBytes === totalBytes) return false;
        copy.status = { ...copy.status, progress: { ...before, bytesDone, totalBytes } };
        return undefined;
      });
    } catch (error) {
      const { name, uid } = movement.metadata;
      this.#options.logger.warn(
        { name, uid, error: messageOf(error) },
        'progress could not be written',
      );
    }
    const pauseMs = Math.max(
      WRITE_MS,
      Math.min(WRITE_MS_MAX, (performance.now() - entry.sinceMs) / 10),
    );
    setTimeout(() => {
      entry.isWriting = false;
      const { uid } = movement.metadata;
      const isWatched = this.#options.memory.get(uid)?.dataPath === entry;
      if (isWatched && entry.latest !== latest) void this.#write(movement, entry);
    }, pauseMs).unref();
  }
}
