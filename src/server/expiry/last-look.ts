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

/**
 * When expired backups were looked for last, as a ConfigMap has it for the next look, of this
 * process or of another one.
 */
export interface LookTimes {
  readonly lookedAtNs: Nanoseconds;
  /** Nothing is deleted before that; undefined where nothing waits. */
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
/**
 * Between two looks, beyond their frequency. A shorter step of a clock deletes no more than what
 * the next day would have. Our choice.
 */
const GAP_NS = DAY_NS;
/** For a person to see that a clock is wrong, by whatever else fails then. Our choice. */
const HOLD_NS = DAY_NS;

/**
 * A machine that is on for some hours now and then has an outage in each wait, which is not to
 * begin anew for ever. Our choice.
 */
const AGAIN_NS = 30n * DAY_NS;

/**
 * The times to be written down at a look. More than a day between two looks is an outage, or a step
 * of the clock, and nobody can tell these apart: deletions wait for a day then. A wait that was
 * over during an outage of less than a month is over. What a clock that was ahead has written does
 * not count once it is set right.
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
  // Clocks of two servers may differ by minutes; one that was ahead was so by more than the gap.
  const isHeld = leftNs > 0n && leftNs <= HOLD_NS + GAP_NS;
  return { lookedAtNs: nowNs, heldUntilNs: isHeld ? before?.heldUntilNs : undefined };
}

/**
 * Remembers the last look in the cluster, so that a clock that is wrong everywhere, as on a single
 * machine, does not delete all backups at once.
 */
export class LastLook {
  readonly #options: LastLookOptions;

  constructor(options: LastLookOptions) {
    this.#options = options;
  }

  /**
   * Writes down that there is a look now. Returns until when nothing is to be deleted; undefined
   * where nothing waits, also where this server may not keep the note, which the log says. Throws
   * the other `KUBE_*` errors, and what `assertLeading` throws.
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
        // A restored note would be of another time.
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

/** Undefined where somebody else has written something into it. */
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
