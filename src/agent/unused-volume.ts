import { CodedError, isCanceled, messageOf } from '../base/index.ts';
import {
  type ClaimRef,
  describeUsers,
  followUsers,
  inUseMeanwhile,
  usersOfClaim,
} from '../exposer/index.ts';
import type { KubeClient } from '../kube/index.ts';
import { askPatiently } from './rights.ts';

/** As long as a data mover that cannot read its CR goes on (`--fence-timeout`). */
const BLIND_MS_MAX = 240_000;

export interface UnusedVolumeOptions {
  readonly client: KubeClient;
  /** The claim whose volume is brought back. */
  readonly claim: ClaimRef;
  /** Whether an earlier data mover may have written to it. */
  readonly isTouched: boolean;
  /** How long the API server may take. */
  readonly timeoutMs: number;
  /** How long nothing may be known of its users while it is written; default 4 min. */
  readonly blindMsMax?: number;
}

/**
 * Makes sure that no pod uses a claim while its volume is written: asked before the first byte and
 * after the last one, and watched in between. A pod that begins to use it aborts `used` at once,
 * with the error as its reason, and so does not to know of any for minutes.
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

  /** Throws `TARGET_IN_USE`; where that cannot be asked, nothing is known, and it throws that. */
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
