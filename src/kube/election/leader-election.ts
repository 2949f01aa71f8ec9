import { setTimeout as sleep } from 'node:timers/promises';
import {
  type Clock,
  CodedError,
  formatGoTime,
  isCode,
  type Logger,
  messageOf,
  type Nanoseconds,
  Stopwatch,
} from '../../base/index.ts';
import type { Lease } from '../api/core.ts';
import { NOT_IN_BACKUPS } from '../api/own-objects.ts';
import { LEASES } from '../api/resources.ts';
import type { KubeClient } from '../client/client.ts';

export interface ElectionOptions {
  readonly client: KubeClient;
  /** This process's own clock. Only elapsed time counts. */
  readonly clock: Clock;
  readonly logger: Logger;
  readonly namespace: string;
  /** Name of the Lease. */
  readonly name: string;
  /** Unique to this process: earlier processes of the same pod have another one. */
  readonly identity: string;
  readonly timing?: Partial<ElectionTiming> | undefined;
}

export interface ElectionTiming {
  /** Other processes wait this long after the last change of the Lease that they saw. */
  readonly leaseMs: number;
  /** A leader without renewal for this long stops, before the Lease expires. */
  readonly renewMs: number;
  /** Pause between two attempts. */
  readonly retryMs: number;
}

/** client-go: tools/leaderelection. Kubernetes' own controllers use the same values. */
const TIMING: ElectionTiming = { leaseMs: 15_000, renewMs: 10_000, retryMs: 2000 };
/** Time for work to end after the lead is lost. Then the process must end. Our choice. */
const STOP_MS = 60_000;
const RELEASE_MS = 5000;
const MICROSECOND_NS = 1000n;

/**
 * Elects one leader among several processes by a Lease (coordination.k8s.io/v1). The leader counts
 * from before the request that renewed the Lease, by whichever of its clocks ran further. After a
 * pause or a network cut it knows before its next write that it lost the lead. The others count
 * from the change of the Lease that they saw, by their monotonic clock only. A step of a wall clock
 * cannot make them take it early. Rates of clocks may differ by a third.
 */
export class LeaderElection {
  readonly #options: ElectionOptions;
  readonly #timing: ElectionTiming;
  /** Started before the request that acquired or renewed the Lease. */
  #renewed: Stopwatch | undefined;
  #seen: { version: string; atNs: Nanoseconds } | undefined;
  #holder: string | undefined;
  #failure: string | undefined = 'the Lease was not read yet';

  constructor(options: ElectionOptions) {
    this.#options = options;
    this.#timing = { ...TIMING, ...options.timing };
  }

  get isLeading(): boolean {
    return this.#leftMs > 0;
  }

  /** The leader at the last read of the Lease; undefined if there was none. */
  get holder(): string | undefined {
    return this.#holder;
  }

  /** Why the Lease cannot be read or written; undefined if it can. */
  get failure(): string | undefined {
    return this.#failure;
  }

  /** Call before each write. Throws `LEADERSHIP_LOST`, `isVacant` if there is no new leader. */
  assertLeading(): void {
    if (!this.isLeading) throw lost(this.#isVacant);
  }

  /** True while other processes still wait for a renewal. Unfinished writes can be repaired. */
  get #isVacant(): boolean {
    const { leaseMs } = this.#timing;
    return this.#renewed !== undefined && this.#renewed.elapsedNs < BigInt(leaseMs) * 1_000_000n;
  }

  get #leftMs(): number {
    if (!this.#renewed) return 0;
    return this.#timing.renewMs - Number(this.#renewed.elapsedNs / 1_000_000n);
  }

  /**
   * Runs until the signal aborts. Calls `lead` each time this process gets the lead. The signal of
   * `lead` aborts when the lead is lost, and `lead` must end then. Its own errors end the run.
   * Throws `LEADERSHIP_STUCK`.
   */
  async run(lead: (signal: AbortSignal) => Promise<void>, signal: AbortSignal): Promise<void> {
    const { logger, identity } = this.#options;
    try {
      while (!signal.aborted) {
        await this.#acquire(signal);
        if (signal.aborted) break;
        logger.info({ identity }, 'this process leads');
        await this.#lead(lead, signal);
        if (!signal.aborted) logger.warn({ identity }, 'this process does not lead any more');
      }
    } finally {
      await this.#release();
    }
  }

  async #lead(lead: (signal: AbortSignal) => Promise<void>, signal: AbortSignal): Promise<void> {
    const abort = new AbortController();
    const stop = (): void => {
      abort.abort(signal.reason);
    };
    signal.addEventListener('abort', stop, { once: true });
    if (signal.aborted) stop();
    const work = lead(abort.signal);
    const renewals = this.#keepRenewing(abort);
    try {
      await Promise.race([work, this.#stuck(abort.signal)]);
    } catch (error) {
      // Work that ends by the abort may throw its reason.
      const isEnd = abort.signal.aborted && !isCode(error, 'LEADERSHIP_STUCK');
      if (!isEnd && !isCode(error, 'LEADERSHIP_LOST')) throw error;
    } finally {
      signal.removeEventListener('abort', stop);
      abort.abort(lost());
      await renewals;
    }
  }

  /** Rejects if work continues long after its abort. */
  async #stuck(signal: AbortSignal): Promise<never> {
    await new Promise((resolve) => {
      signal.addEventListener('abort', resolve, { once: true });
    });
    await sleep(STOP_MS, undefined, { ref: false });
    const text = `work goes on ${STOP_MS / 1000} s after this process was told to stop; the process ends`;
    throw new CodedError('LEADERSHIP_STUCK', text);
  }

  /** Resolves when this process leads, or the signal aborts. */
  async #acquire(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      try {
        if (await this.#tryOnce(signal)) return;
      } catch (error) {
        if (signal.aborted) return;
        this.#note(error);
      }
      await this.#pause(signal);
    }
  }

  async #keepRenewing(abort: AbortController): Promise<void> {
    const { signal } = abort;
    for (;;) {
      await this.#pause(signal, this.#leftMs);
      if (signal.aborted) return;
      const leftMs = this.#leftMs;
      if (leftMs <= 0) break;
      try {
        // A request that hangs must not outlast the leadership.
        const own = AbortSignal.any([signal, AbortSignal.timeout(Math.ceil(leftMs))]);
        if (!(await this.#tryOnce(own))) break;
      } catch (error) {
        if (signal.aborted) return;
        this.#note(error);
      }
    }
    abort.abort(lost());
  }

  #note(error: unknown): void {
    // A concurrent write: the next read shows the holder.
    if (isCode(error, 'KUBE_CONFLICT', 'KUBE_ALREADY_EXISTS')) return;
    this.#failure = messageOf(error);
    this.#options.logger.warn({ error: this.#failure }, 'the Lease could not be read or written');
  }

  /** Wakes up at least once before the lead ends. */
  async #pause(signal: AbortSignal, leftMs = Infinity): Promise<void> {
    const { retryMs } = this.#timing;
    const ms = Math.max(0, Math.min(retryMs * (0.8 + Math.random() * 0.4), leftMs));
    await sleep(ms, undefined, { signal }).catch(() => undefined);
  }

  /** Takes or renews the Lease if allowed; false if another process holds it. */
  async #tryOnce(signal: AbortSignal): Promise<boolean> {
    const { client, namespace, name, identity } = this.#options;
    const started = new Stopwatch(this.#options.clock);
    const lease = await client.find(LEASES, { namespace, name }, { signal });
    this.#failure = undefined;
    if (!lease) {
      await client.create(
        LEASES,
        { metadata: { namespace, name, labels: NOT_IN_BACKUPS }, spec: this.#spec() },
        { signal },
      );
      this.#take(started);
      return true;
    }
    const holder = lease.spec?.holderIdentity ?? '';
    this.#holder = holder === '' ? undefined : holder;
    if (holder !== '' && holder !== identity && !this.#isExpired(lease)) {
      this.#renewed = undefined;
      return false;
    }
    // The version that was read is in the request, so only one of several processes succeeds.
    // Servers before this version created the Lease without the label.
    const labels = { ...lease.metadata.labels, ...NOT_IN_BACKUPS };
    const metadata = { ...lease.metadata, labels };
    await client.replace(LEASES, { ...lease, metadata, spec: this.#spec(lease) }, { signal });
    this.#take(started);
    return true;
  }

  #take(started: Stopwatch): void {
    this.#renewed = started;
    this.#holder = this.#options.identity;
    this.#seen = undefined;
  }

  /** Whether the Lease did not change for its duration, as seen by this process. */
  #isExpired({ metadata, spec }: Lease): boolean {
    const now = this.#options.clock.monotonicNs?.() ?? this.#options.clock.nowNs();
    if (this.#seen?.version !== metadata.resourceVersion) {
      this.#seen = { version: metadata.resourceVersion, atNs: now };
      return false;
    }
    const leaseMs = Math.max(this.#timing.leaseMs, (spec?.leaseDurationSeconds ?? 0) * 1000);
    return now - this.#seen.atNs >= BigInt(Math.ceil(leaseMs)) * 1_000_000n;
  }

  #spec(before?: Lease): NonNullable<Lease['spec']> {
    const { client, identity } = this.#options;
    const { spec } = before ?? {};
    const now = microTime(client.clock.nowNs());
    const isNew = spec?.holderIdentity !== identity;
    return {
      ...spec,
      holderIdentity: identity,
      leaseDurationSeconds: Math.max(1, Math.ceil(this.#timing.leaseMs / 1000)),
      acquireTime: isNew ? now : (spec.acquireTime ?? now),
      renewTime: now,
      leaseTransitions: (spec?.leaseTransitions ?? 0) + (isNew && before ? 1 : 0),
    };
  }

  /** Lets the next leader start at once. May fail, because it only saves time. */
  async #release(): Promise<void> {
    if (!this.isLeading) return;
    this.#renewed = undefined;
    const { client, namespace, name, identity, logger } = this.#options;
    try {
      const signal = AbortSignal.timeout(RELEASE_MS);
      const lease = await client.find(LEASES, { namespace, name }, { signal });
      if (lease?.spec?.holderIdentity !== identity) return;
      const spec = { ...lease.spec, holderIdentity: '', leaseDurationSeconds: 1 };
      await client.replace(LEASES, { ...lease, spec }, { signal });
    } catch (error) {
      logger.debug({ error: messageOf(error) }, 'the Lease could not be given back');
    }
  }
}

const lost = (isVacant = false): CodedError =>
  new CodedError(
    'LEADERSHIP_LOST',
    'another process may lead by now: this one writes nothing more',
    {
      retry: 'backoff',
      facts: { isVacant },
    },
  );

/** Kubernetes requires six digits of fraction. */
function microTime(ns: Nanoseconds): string {
  const fraction = (ns / MICROSECOND_NS) % 1_000_000n;
  return `${formatGoTime(ns - (ns % 1_000_000_000n)).slice(0, 19)}.${String(fraction).padStart(6, '0')}Z`;
}
