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
  /** Those that earlier tries have run. */
  readonly earlier: Iterable<HookRecord>;
  /** Those that earlier tries have begun, over or not. */
  readonly begun: Iterable<string>;
  /** Resolves when it is noted that the hook is run next. */
  readonly onBegin: (id: string) => Promise<void>;
  readonly onRecord: (record: HookRecord) => void;
  /** Tests have one of their own. */
  readonly watch?: PodWatch & { run(signal: AbortSignal): Promise<void> };
}

/**
 * The exec hooks of a restore while it runs. Pods are watched from the first one on that has hooks.
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

  /** A pod that this restore has created. */
  podCreated(pod: Pod): void {
    this.#hooks.podCreated(pod);
    if (this.#hooks.waiting > 0) this.#watching ??= this.#watch.run(this.#end.signal);
  }

  /** See {@link RestoreHooks.podGone}. */
  podGone(pod: Pod): void {
    this.#hooks.podGone(pod);
  }

  /** Waits for those that run, and begins no other one. Rejects only when it is aborted. */
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
