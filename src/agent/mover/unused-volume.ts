import { CodedError, isCanceled, messageOf } from '../../base/index.ts';
import {
  type ClaimRef,
  describeUsers,
  followUsers,
  inUseMeanwhile,
  usersOfClaim,
} from '../../exposer/index.ts';
import type { KubeClient } from '../../kube/index.ts';
import { askPatiently } from '../rights.ts';

/** How long a data mover continues without reading its CR (`--fence-timeout`). */
const BLIND_MS_MAX = 240_000;

export interface UnusedVolumeOptions {
  readonly client: KubeClient;
  /** The claim whose volume is restored in place. */
  readonly claim: ClaimRef;
  /** Whether an earlier data mover may have written to it. */
  readonly isTouched: boolean;
  /** Time limit for the API server's answer. */
  readonly timeoutMs: number;
  /** How long the claim's users may be unknown during the write; default 4 min. */
  readonly blindMsMax?: number;
}

/**
 * Ensures that no pod uses a claim while its volume is written. Checks before the first byte and
 * after the last, and watches in between. `used` is aborted when a pod starts to use the claim, or
 * when the users are unknown for minutes. The error is the abort reason.
 */
export class UnusedVolume implements AsyncDisposable {
  readonly #options: UnusedVolumeOptions;
  readonly #used = new AbortController();
  readonly #over = new AbortController();
  #following: Promise<void> | undefined;

  constructor(options: UnusedVolumeOptions) {
    this.#options = options;
  }

  get used(): AbortSignal {
    return this.#used.signal;
  }

  /** Throws `TARGET_IN_USE`, or `POD_UNKNOWN` if the API server does not answer. */
  async assertUnused(when: 'before' | 'after', signal: AbortSignal): Promise<void> {
    const { client, claim, isTouched, timeoutMs } = this.#options;
    let users: readonly string[];
    try {
      const ask = (): Promise<string[]> => usersOfClaim(client, claim, signal);
      users = await askPatiently(ask, { timeoutMs, signal });
    } catch (error) {
      if (signal.aborted || isCanceled(error)) throw error;
      const text = `cannot tell whether a pod uses PVC ${claim.namespace}/${claim.name}: ${messageOf(error)}`;
      throw new CodedError('POD_UNKNOWN', text, { cause: error });
    }
    if (users.length > 0) {
      const who = describeUsers(claim, users);
      const text = `${who}: nothing was written; stop what uses it, and restore it again`;
      throw new CodedError(
        'TARGET_IN_USE',
        when === 'before' && !isTouched ? text : inUseMeanwhile(who),
      );
    }
    if (when === 'before') this.#follow();
  }

  #follow(): void {
    const { client, claim, blindMsMax = BLIND_MS_MAX } = this.#options;
    this.#following ??= followUsers(client, claim, {
      signal: this.#over.signal,
      onUsers: (users) => {
        const text = inUseMeanwhile(describeUsers(claim, users));
        this.#used.abort(new CodedError('TARGET_IN_USE', text));
      },
      blindMsMax,
      onBlind: (cause) => {
        const text = `cannot tell any more whether a pod uses PVC ${claim.namespace}/${claim.name}, and the restore was stopped: the volume may hold files or blocks of before and of the snapshot: ${messageOf(cause)}`;
        this.#used.abort(new CodedError('POD_UNKNOWN', text, { cause }));
      },
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#over.abort();
    await this.#following;
  }
}
