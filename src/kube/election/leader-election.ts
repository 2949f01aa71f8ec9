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
  /** This process's own. What counts is how much time passes, not what time it is. */
  readonly clock: Clock;
  readonly logger: Logger;
  readonly namespace: string;
  /** Of the Lease. */
  readonly name: string;
  /** Of this process, and of no other one, earlier ones of the same pod included. */
  readonly identity: string;
  readonly timing?: Partial<ElectionTiming> | undefined;
}

export interface ElectionTiming {
  /** Others leave the Lease alone for so long after the last change that they saw of it. */
  readonly leaseMs: number;
  /**
   * A leader that could not renew for so long stops. The rest of the Lease is its time to do so.
   */
  readonly renewMs: number;
  /** Between two looks. */
  readonly retryMs: number;
}

/** client-go: tools/leaderelection; the same as Kubernetes' own controllers. */
const TIMING: ElectionTiming = { leaseMs: 15_000, renewMs: 10_000, retryMs: 2000 };
/**
 * For work to end after the leadership was lost. Nothing is written by then, but a process that
 * hangs is of no use. Our choice.
 */
const STOP_MS = 60_000;
const RELEASE_MS = 5000;
const MICROSECOND_NS = 1000n;

/**
 * One of several processes leads, by a Lease (coordination.k8s.io/v1). The leader counts from
 * before the request that renewed its Lease, by whichever of its clocks ran further: one that was
 * suspended, or cut off, knows before its next write that it leads no more. The others count from
 * when they saw the Lease change, by their monotonic clock only, so that no step of a wall clock
 * makes them take it early. Rates of clocks may differ by a third.
 */
export class LeaderElection {
  readonly #options: ElectionOptions;
  readonly #timing: ElectionTiming;
  /** Since before the request that acquired or renewed. */
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

  /** Who led when the Lease was last read; undefined where nobody did. */
  get holder(): string | undefined {
    return this.#holder;
  }

  /** Why nothing is known of the Lease; undefined while all is well. */
  get failure(): string | undefined {
    return this.#failure;
  }

  /**
   * Called right before each write. Throws `LEADERSHIP_LOST`, with the fact `isVacant` while nobody
   * else can lead yet.
   */
  assertLeading(): void {
    if (!this.isLeading) throw lost(this.#isVacant);
  }

  /** For as long as others wait for a renewal: time to put right what must not be left as it is. */
  get #isVacant(): boolean {
    const { leaseMs } = this.#timing;
    return this.#renewed !== undefined && this.#renewed.elapsedNs < BigInt(leaseMs) * 1_000_000n;
  }

  get #leftMs(): number {
    if (!this.#renewed) return 0;
    return this.#timing.renewMs - Number(this.#renewed.elapsedNs / 1_000_000n);
  }

  /**
   * Runs until it is aborted: whenever this process leads, `lead` runs, and its signal is aborted
   * when the leadership is lost. It must end then, and is called again when this process leads once
   * more. Its own errors end the run. Throws `LEADERSHIP_STUCK`.
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
      // Work that ends by the abort may say so.
      const isEnd = abort.signal.aborted && !isCode(error, 'LEADERSHIP_STUCK');
      if (!isEnd && !isCode(error, 'LEADERSHIP_LOST')) throw error;
    } finally {
      signal.removeEventListener('abort', stop);
      abort.abort(lost());
      await renewals;
    }
  }

  /** Rejects when work goes on long after its end. */
  async #stuck(signal: AbortSignal): Promise<never> {
    await new Promise((resolve) => {
      signal.addEventListener('abort', resolve, { once: true });
    });
    await sleep(STOP_MS, undefined, { ref: false });
    const text = `work goes on ${STOP_MS / 1000} s after this process was told to stop; the process ends`;
    throw new CodedError('LEADERSHIP_STUCK', text);
  }

  /** Resolves when this process leads, or is aborted. */
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
    // Somebody else wrote first; the next look says who.
    if (isCode(error, 'KUBE_CONFLICT', 'KUBE_ALREADY_EXISTS')) return;
    this.#failure = messageOf(error);
    this.#options.logger.warn({ error: this.#failure }, 'the Lease could not be read or written');
  }

  /** At least once before the leadership is over. */
  async #pause(signal: AbortSignal, leftMs = Infinity): Promise<void> {
    const { retryMs } = this.#timing;
    const ms = Math.max(0, Math.min(retryMs * (0.8 + Math.random() * 0.4), leftMs));
    await sleep(ms, undefined, { signal }).catch(() => undefined);
  }

  /** Takes or renews the Lease where it may; false where another process holds it. */
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
    // With the version that was read: of several who take it, one does.
    // Servers before this version created it without the label.
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

  /** Whether nobody has changed it for as long as it holds, as seen from here. */
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

  /** So that the next one need not wait. It only saves time, and may fail. */
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

/** As Kubernetes wants it: always six digits of fraction. */
function microTime(ns: Nanoseconds): string {
  const fraction = (ns / MICROSECOND_NS) % 1_000_000n;
  return `${formatGoTime(ns - (ns % 1_000_000_000n)).slice(0, 19)}.${String(fraction).padStart(6, '0')}Z`;
}
