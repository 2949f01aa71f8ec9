import type { Logger } from '../../../base/index.ts';
import type { BackupLog, PodExec } from '../../../backup/index.ts';
import type { KubeClient, Pod, Restore } from '../../../kube/index.ts';
import {
  type HookRecord,
  type PodHooksLeft,
  type PodWatch,
  RestoreHooks,
  watchRestoredPods,
} from '../../../restore/index.ts';

export interface HookRunOptions {
  readonly client: KubeClient;
  readonly restore: Restore;
  readonly exec: PodExec;
  readonly log: BackupLog;
  readonly logger: Logger;
  /** Hooks that earlier tries have finished. */
  readonly earlier: Iterable<HookRecord>;
  /** Hooks that earlier tries have begun or finished. */
  readonly begun: Iterable<string>;
  /** Resolves when the journal has noted that the hook runs next. */
  readonly onBegin: (id: string) => Promise<void>;
  readonly onRecord: (record: HookRecord) => void;
  /** Tests only. */
  readonly watch?: PodWatch & { run(signal: AbortSignal): Promise<void> };
}

/**
 * Runs the exec hooks of a restore during its run. The watch begins with the first pod that has
 * hooks.
 */
export class HookRun implements AsyncDisposable {
  readonly #hooks: RestoreHooks;
  readonly #watch: PodWatch & { run(signal: AbortSignal): Promise<void> };
  readonly #end = new AbortController();
  #watching: Promise<void> | undefined;

  constructor(options: HookRunOptions) {
    const { client, restore, exec, log, logger, earlier, begun, onBegin, onRecord } = options;
    const { name } = restore.metadata;
    this.#watch = options.watch ?? watchRestoredPods({ client, restore: name, logger });
    this.#hooks = new RestoreHooks({
      spec: restore.spec.hooks,
      watch: this.#watch,
      exec,
      log,
      earlier,
      begun,
      onBegin,
      onRecord,
    });
  }

  podCreated(pod: Pod): void {
    this.#hooks.podCreated(pod);
    if (this.#hooks.waiting > 0) this.#watching ??= this.#watch.run(this.#end.signal);
  }

  /** See {@link RestoreHooks.podGone}. */
  podGone(pod: Pod): void {
    this.#hooks.podGone(pod);
  }

  /** Waits for running hooks and begins no others. Rejects only after an abort. */
  async handOver(signal: AbortSignal): Promise<{
    readonly attempted: number;
    readonly failed: number;
    readonly pods: readonly PodHooksLeft[];
  }> {
    const pods = await this.#hooks.handOver(signal);
    const { hooksAttempted, hooksFailed } = this.#hooks.counts;
    return { attempted: hooksAttempted, failed: hooksFailed, pods };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#hooks.close();
    this.#end.abort();
    await this.#watching;
  }
}
