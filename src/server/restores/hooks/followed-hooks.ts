import { setTimeout as sleep } from 'node:timers/promises';
import type { PodExec } from '../../../backup/index.ts';
import {
  CodedError,
  createLimiter,
  isCode,
  mapLimited,
  messageOf,
  rfc3339Seconds,
} from '../../../base/index.ts';
import { keyOf, type Restore } from '../../../kube/index.ts';
import { type PodWatch, RestoreHooks, watchRestoredPods } from '../../../restore/index.ts';
import type { Lead } from '../../leading-controller.ts';
import type { AfterRunFiles } from '../after-run-files.ts';
import { afterRunAbsent } from '../missing-sources.ts';
import type { AfterRun, HookFailure } from '../contract.ts';
import { isOurs } from '../restore-kind.ts';

export interface FollowedHooksOptions {
  readonly lead: Lead;
  readonly exec: PodExec;
  readonly files: Pick<AfterRunFiles, 'load' | 'change'>;
  /** The watch of a restore's pods; set in tests. */
  readonly watch?: (restore: Restore) => PodWatch & { run(signal: AbortSignal): Promise<void> };
  /** Called when all hooks of a Restore have ended and its file is stored. */
  readonly onOver: (key: string) => void;
  readonly againMs?: number;
}

/** Restores followed at once, with a watch of pods each. Our choice. */
const RESTORES_MAX = 100;
const PODS_AT_ONCE = 8;
/** Delay after an error of the bucket or the API server. Our choice. */
const AGAIN_MS = 5000;
/** Failures in results and log; others are only counted. Our choice: more than anybody reads. */
const FAILURES_MAX = 10_000;
/** The longest timer. Hooks end by their own timeouts or by {@link FollowedHooks.expire}. */
const NO_END_MS = 2 ** 31 - 1;

/** A Restore whose hooks are followed. */
interface Followed {
  readonly abort: AbortController;
  readonly end: Promise<void>;
  hooks: RestoreHooks | undefined;
  /** Results of its hooks in this process. */
  records: Records | undefined;
  isExpired: boolean;
  isOver: boolean;
}

/**
 * Runs the hooks that runs of restores have left, even while operations are running. A hook is due
 * when its container runs, perhaps long before the last volume. Each hook is noted in the bucket
 * before it begins. Each result is noted there before the Restore counts it.
 */
export class FollowedHooks {
  readonly #options: FollowedHooksOptions;
  /** Keys are UIDs. */
  readonly #followed = new Map<string, Followed>();
  readonly #places = createLimiter(RESTORES_MAX);

  constructor(options: FollowedHooksOptions) {
    this.#options = options;
  }

  /** Begins to follow a Restore after its run. May be repeated. */
  begin(restore: Restore): void {
    const { uid } = restore.metadata;
    if (this.#followed.has(uid) || this.#options.lead.signal.aborted) return;
    const abort = new AbortController();
    const signal = AbortSignal.any([abort.signal, this.#options.lead.signal]);
    const end = this.#places.run(() => this.#follow(restore, signal));
    const unknown = { hooks: undefined, records: undefined };
    const followed = { abort, end, ...unknown, isExpired: false, isOver: false };
    this.#followed.set(uid, followed);
    void end.then(() => (followed.isOver = true));
  }

  /**
   * Called if the file of a Restore still names hooks. If they have ended here, another server has
   * stored an older file, so this stores their results again.
   */
  async storeAgain(restore: Restore): Promise<void> {
    const { uid } = restore.metadata;
    const { files } = this.#options;
    const { signal, assertLeading } = this.#options.lead;
    const { isOver = false, records } = this.#followed.get(uid) ?? {};
    if (!isOver) return;
    if (records) {
      const change = (left: AfterRun): AfterRun => records.appliedTo(left);
      await files.change(restore, change, { signal, assertLeading });
      return;
    }
    this.#followed.delete(uid);
    this.begin(restore);
  }

  /** Ends the remaining hooks with an error each. */
  expire(uid: string): void {
    const followed = this.#followed.get(uid);
    if (!followed || followed.isExpired) return;
    followed.isExpired = true;
    if (followed.hooks) this.#endNow(followed.hooks);
  }

  /** Stops following a Restore that has ended or is deleted. Reports nothing. */
  stop(uid: string): void {
    this.#followed.get(uid)?.abort.abort();
    this.#followed.delete(uid);
  }

  /** Resolves when nothing runs any more after an abort. */
  async ended(): Promise<void> {
    await Promise.allSettled([...this.#followed.values()].map(({ end }) => end));
  }

  #endNow(hooks: RestoreHooks): void {
    const { signal } = this.#options.lead;
    // The first `finish` gets the rejection, too.
    hooks.finish({ timeoutMs: 0, signal }).catch(() => undefined);
  }

  async #follow(restore: Restore, signal: AbortSignal): Promise<void> {
    const { name } = restore.metadata;
    let said = '';
    for (;;) {
      try {
        await this.#once(restore, signal);
        return;
      } catch (error) {
        if (signal.aborted) return;
        // The finalizer reports it to the user.
        if (isCode(error, 'DAMAGED_ARCHIVE')) return;
        const fields = { restore: name, error: messageOf(error) };
        // Log each error once, not every five seconds during a long outage.
        if (said !== fields.error) {
          this.#options.lead.logger.warn(
            fields,
            'hooks of a restore cannot be followed; tried again',
          );
        }
        said = fields.error;
        await sleep(this.#options.againMs ?? AGAIN_MS, undefined, { signal }).catch(
          () => undefined,
        );
      }
    }
  }

  /**
   * Follows the hooks of the current file to their end. Results are stored first, so a retry does
   * not run these hooks again.
   */
  async #once(restore: Restore, signal: AbortSignal): Promise<void> {
    const { exec, files, onOver } = this.#options;
    const { client, logger } = this.#options.lead;
    const left = await files.load(restore, signal);
    // Only the file names the hooks, and it may return. The finalizer ends the restore otherwise.
    if (!left && isOurs(restore)) throw afterRunAbsent(restore.metadata.name);
    if (!left || left.hooks.pods.length === 0) return;
    const { metadata, spec } = restore;
    const watch =
      this.#options.watch?.(restore) ??
      watchRestoredPods({ client, restore: metadata.name, logger });
    const watching = new AbortController();
    const running = watch.run(AbortSignal.any([signal, watching.signal]));
    running.catch(() => undefined);
    const records = new Records(left, () => rfc3339Seconds(client.clock.nowNs()));
    const saver = this.#saver(restore, records, signal);
    const hooks = new RestoreHooks({
      spec: spec.hooks,
      watch,
      exec,
      log: {
        info: (message, about) => logger.info({ restore: metadata.name, ...about }, message),
        warn: (message, about) => logger.warn({ restore: metadata.name, ...about }, message),
        error: (message, { namespace = '', name = '' } = {}) => {
          records.failed({ namespace, name, message });
        },
      },
      onBegin: (id) => {
        records.begin(id);
        return saver.store();
      },
      onRecord: ({ id, hasFailed }) => {
        records.over(id, hasFailed);
        saver.wake();
      },
    });
    try {
      // Read all pods before the first hook. After an error, no hook then runs twice.
      const pods = await mapLimited(left.hooks.pods, PODS_AT_ONCE, async (pod) => ({
        left: pod,
        now: await watch.look(pod, signal),
      }));
      for (const pod of pods) hooks.podLeft(pod.left, pod.now);
      const followed = this.#followed.get(metadata.uid);
      if (followed) Object.assign(followed, { hooks, records });
      if (followed?.isExpired === true) this.#endNow(hooks);
      await hooks.finish({ timeoutMs: NO_END_MS, signal });
    } finally {
      await hooks.close();
      watching.abort();
      await running.catch(() => undefined);
      await saver.close();
    }
    signal.throwIfAborted();
    if (saver.hasGivenUp) throw afterRunAbsent(metadata.name);
    onOver(keyOf(metadata));
  }

  /** Stores new records in the background, one call at a time. A call includes everything new. */
  #saver(restore: Restore, records: Records, signal: AbortSignal) {
    const { files, againMs = AGAIN_MS } = this.#options;
    const { logger, assertLeading } = this.#options.lead;
    let working = Promise.resolve();
    let isWorking = false;
    // Set if storing has become impossible: missing or damaged file, or leadership lost.
    let hasGivenUp = false;
    let said = '';
    const work = async (): Promise<void> => {
      while (records.isNew && !hasGivenUp) {
        const upTo = records.count;
        try {
          const change = (left: AfterRun): AfterRun => records.appliedTo(left);
          const file = await files.change(restore, change, { signal, assertLeading });
          hasGivenUp = file === undefined;
          if (hasGivenUp) return;
          records.stored = upTo;
        } catch (error) {
          hasGivenUp = signal.aborted || isCode(error, 'DAMAGED_ARCHIVE', 'LEADERSHIP_LOST');
          if (hasGivenUp) return;
          const fields = { restore: restore.metadata.name, error: messageOf(error) };
          if (said !== fields.error) {
            logger.warn(fields, 'what became of hooks cannot be stored; tried again');
          }
          said = fields.error;
          await sleep(againMs, undefined, { signal }).catch(() => undefined);
        }
      }
    };
    const wake = (): void => {
      if (isWorking) return;
      isWorking = true;
      working = work().finally(() => (isWorking = false));
    };
    return {
      wake,
      get hasGivenUp(): boolean {
        return hasGivenUp;
      },
      /** Resolves when all current records are stored. */
      store: async (): Promise<void> => {
        const upTo = records.count;
        while (records.stored < upTo) {
          if (hasGivenUp) throw new CodedError('HOOKS_CLOSED', 'the restore goes on elsewhere');
          wake();
          await working;
        }
      },
      close: async (): Promise<void> => {
        await working;
        wake();
        await working;
      },
    };
  }
}

/** Results of hooks since the file was read. */
class Records {
  readonly #before: AfterRun['hooks'];
  readonly #now: () => string;
  readonly #over = new Map<string, boolean>();
  readonly #begun = new Set<string>();
  readonly #failures: HookFailure[] = [];
  stored = 0;

  constructor({ hooks }: AfterRun, now: () => string) {
    this.#before = hooks;
    this.#now = now;
  }

  /** Number of records. */
  get count(): number {
    return this.#over.size + this.#begun.size;
  }

  get isNew(): boolean {
    return this.stored < this.count;
  }

  failed(failure: Omit<HookFailure, 'time'>): void {
    if (this.#before.failures.length + this.#failures.length >= FAILURES_MAX) return;
    this.#failures.push({ time: this.#now(), ...failure });
  }

  begin(id: string): void {
    this.#begun.add(id);
  }

  over(id: string, hasFailed: boolean): void {
    this.#over.set(id, hasFailed);
  }

  /** The file with all records. May be applied twice. */
  appliedTo(left: AfterRun): AfterRun {
    const { failed, failures } = this.#before;
    const pods = left.hooks.pods.flatMap((pod) => {
      const open = pod.open.filter((id) => !this.#over.has(id));
      const wasBegun = (id: string): boolean =>
        this.#begun.has(id) || pod.begun?.includes(id) === true;
      const begun = open.filter(wasBegun);
      const { namespace, name, uid, waitedMs } = pod;
      const rest = { namespace, name, uid, waitedMs, open };
      return open.length === 0 ? [] : [begun.length === 0 ? rest : { ...rest, begun }];
    });
    const more = [...this.#over.values()].filter((hasFailed) => hasFailed).length;
    const hooks = { pods, failed: failed + more, failures: [...failures, ...this.#failures] };
    return { ...left, hooks: { ...left.hooks, ...hooks } };
  }
}
