import {
  HOUR_NS,
  isCode,
  type Logger,
  messageOf,
  type Nanoseconds,
  parseGoTime,
  rfc3339Seconds,
} from '../../base/index.ts';
import {
  CONFIG_MAPS,
  type ConfigMap,
  EXPIRY_NOTE,
  type KubeClient,
  NOT_IN_BACKUPS,
} from '../../kube/index.ts';

/** The last pass over expired backups, kept in a ConfigMap for the next pass of any process. */
export interface LookTimes {
  readonly lookedAtNs: Nanoseconds;
  /** No deletion before this time; undefined if deletions may go on. */
  readonly heldUntilNs: Nanoseconds | undefined;
}

export interface LastLookOptions {
  readonly client: Pick<KubeClient, 'create' | 'find' | 'patch'>;
  readonly logger: Logger;
  readonly namespace: string;
  readonly frequencyMs: number;
}

const LOOKED_AT = 'looked-at';
const HELD_UNTIL = 'held-until';
const DAY_NS = 24n * HOUR_NS;
/** Longest normal gap beyond the frequency. A smaller step only deletes a day early. Our choice. */
const GAP_NS = DAY_NS;
/** Time for a person to notice a wrong clock. Our choice. */
const HOLD_NS = DAY_NS;

/** A machine that runs some hours now and then must not wait forever. Our choice. */
const AGAIN_NS = 30n * DAY_NS;

/**
 * Computes the times to record. After a gap of more than a day, deletions wait for a day, because
 * an outage and a step of the clock look the same. A hold that ended during an outage of less than
 * a month is over. Times of a clock that was ahead do not count once the clock is right.
 */
export function timesAt(
  nowNs: Nanoseconds,
  before: LookTimes | undefined,
  frequencyMs: number,
): LookTimes {
  const allowedNs = GAP_NS + BigInt(Math.ceil(frequencyMs)) * 1_000_000n;
  const gapNs = before ? nowNs - before.lookedAtNs : 0n;
  const hasWaited = before?.heldUntilNs !== undefined && gapNs <= AGAIN_NS;
  if (gapNs > allowedNs && !(hasWaited && nowNs >= before.heldUntilNs)) {
    return { lookedAtNs: nowNs, heldUntilNs: nowNs + HOLD_NS };
  }
  const leftNs = (before?.heldUntilNs ?? nowNs) - nowNs;
  // Servers' clocks may differ by minutes. A clock that was ahead differs by more than the gap.
  const isHeld = leftNs > 0n && leftNs <= HOLD_NS + GAP_NS;
  return { lookedAtNs: nowNs, heldUntilNs: isHeld ? before?.heldUntilNs : undefined };
}

/**
 * Records the last pass in the cluster. A clock that is wrong everywhere, as on a single machine,
 * then cannot delete all backups at once.
 */
export class LastLook {
  readonly #options: LastLookOptions;

  constructor(options: LastLookOptions) {
    this.#options = options;
  }

  /**
   * Records a pass. Returns the time before which nothing may be deleted; undefined if there is no
   * hold. Without permission for the ConfigMap it logs a warning and returns undefined. Throws
   * other `KUBE_*` errors, and errors of `assertLeading`.
   */
  async note(
    nowNs: Nanoseconds,
    signal: AbortSignal,
    assertLeading: () => void,
  ): Promise<Nanoseconds | undefined> {
    const { client, logger, namespace, frequencyMs } = this.#options;
    const ref = { namespace, name: EXPIRY_NOTE };
    try {
      const found = await client.find(CONFIG_MAPS, ref, { signal });
      const before = found && timesIn(found);
      const times = timesAt(nowNs, before, frequencyMs);
      const { lookedAtNs, heldUntilNs } = times;
      const data = {
        [LOOKED_AT]: rfc3339Seconds(lookedAtNs),
        [HELD_UNTIL]: heldUntilNs === undefined ? null : rfc3339Seconds(heldUntilNs),
      };
      assertLeading();
      if (found) {
        const { uid, resourceVersion } = found.metadata;
        const patch = { metadata: { uid, resourceVersion }, data };
        await client.patch(CONFIG_MAPS, ref, patch, { signal });
      } else {
        // Keep it out of backups: a restored record would be outdated.
        const metadata = { ...ref, labels: NOT_IN_BACKUPS };
        const first = { [LOOKED_AT]: data[LOOKED_AT] ?? '' };
        await client.create(CONFIG_MAPS, { metadata, data: first }, { signal });
      }
      if (heldUntilNs !== undefined) this.#tell(heldUntilNs, nowNs, before);
      return heldUntilNs;
    } catch (error) {
      if (!isCode(error, 'KUBE_FORBIDDEN')) throw error;
      const text = `a clock that is wrong on all machines could delete backups: let the ServiceAccount of this server get, create and patch ConfigMap ${EXPIRY_NOTE} here`;
      logger.warn({ error: messageOf(error) }, text);
      return undefined;
    }
  }

  #tell(untilNs: Nanoseconds, nowNs: Nanoseconds, before: LookTimes | undefined): void {
    const lookedAt = before && rfc3339Seconds(before.lookedAtNs);
    const fields = { now: rfc3339Seconds(nowNs), until: rfc3339Seconds(untilNs), lookedAt };
    const text =
      'expired backups are not deleted for a day, since more than a day had passed between two looks for them: after an outage they only go later; if the clock is wrong, set it right before then';
    this.#options.logger.warn(fields, text);
  }
}

/** Undefined if the ConfigMap has other contents. */
function timesIn({ data = {} }: ConfigMap): LookTimes | undefined {
  const lookedAtNs = timeOf(data[LOOKED_AT]);
  if (lookedAtNs === undefined) return undefined;
  return { lookedAtNs, heldUntilNs: timeOf(data[HELD_UNTIL]) };
}

function timeOf(text: string | undefined): Nanoseconds | undefined {
  try {
    return text === undefined ? undefined : parseGoTime(text);
  } catch {
    return undefined;
  }
}
