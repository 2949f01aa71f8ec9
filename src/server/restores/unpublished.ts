import { RestoreArchive } from '../../archive/index.ts';
import { isCode, type Logger, messageOf, redactAndCut } from '../../base/index.ts';
import { isOver, type KubeClient, type Restore, type Result } from '../../kube/index.ts';
import { Sweep } from '../sweep.ts';
import type { Buckets } from '../backups/contract.ts';
import type { FileWriters } from '../runs/file-writers.ts';
import type { RestoreLocations } from './locations.ts';
import { isPlaceAbsent } from './absences.ts';
import { phaseOf, RESTORE_RESOURCE, statusOf, UNPUBLISHED } from './restore-kind.ts';

/** Delay before a retry. The cause may last for hours. Our choice. */
const AGAIN_MS = 10 * 60_000;

export interface UnpublishedRestoresOptions {
  readonly client: Pick<KubeClient, 'patch'>;
  readonly buckets: Buckets;
  readonly locations: RestoreLocations;
  readonly writers: FileWriters;
  readonly logger: Logger;
  /** The current Restores. */
  readonly restores: () => readonly Restore[];
  readonly assertLeading: () => void;
  readonly signal: AbortSignal;
  readonly againMs?: number | undefined;
}

/**
 * Publishes files of Restores that ended while their location was away or their bucket failed. In a
 * write-once location, such files are kept apart, where only Longshore finds them. Other locations
 * need nothing.
 */
export class UnpublishedRestores extends Sweep {
  readonly #options: UnpublishedRestoresOptions;

  /** Call {@link look} when a Restore has ended. */
  constructor(options: UnpublishedRestoresOptions) {
    super('restore-unpublished', options);
    this.#options = options;
  }

  protected async sweep(): Promise<Result | undefined> {
    const { restores, writers, logger, signal, againMs = AGAIN_MS } = this.#options;
    let left = 0;
    for (const restore of restores().filter(isUnpublished)) {
      signal.throwIfAborted();
      try {
        if (!(await writers.run(restore.metadata.uid, () => this.#publish(restore)))) left++;
      } catch (error) {
        signal.throwIfAborted();
        if (isCode(error, 'LEADERSHIP_LOST')) throw error;
        left++;
        if (isPlaceAbsent(error)) continue;
        const fields = { restore: restore.metadata.name, error: redactAndCut(messageOf(error)) };
        logger.warn(fields, 'the files of a restore that is over could not be published');
      }
    }
    return left > 0 ? { requeueAfterMs: againMs } : undefined;
  }

  /** False if the bucket refuses some files. The cluster still keeps them. */
  async #publish(restore: Restore): Promise<boolean> {
    const { client, buckets, locations, assertLeading, signal } = this.#options;
    const { namespace, name, uid } = restore.metadata;
    const location = await locations.of(restore, signal);
    await using opened = await buckets.open(location, signal, { name, uid });
    const archive = new RestoreArchive(opened.bucket);
    await archive.assertNotApart(name, { signal });
    const end = { ...statusOf(restore) };
    const options = { signal, assertAllowed: assertLeading };
    await archive.seal(name, { uid, end, ...options });
    if ((await opened.files?.upload(options)) !== undefined) return false;
    assertLeading();
    const metadata = { uid, annotations: { [UNPUBLISHED]: null } };
    try {
      await client.patch(RESTORE_RESOURCE, { namespace, name }, { metadata }, { signal });
    } catch (error) {
      // Deleted or replaced meanwhile.
      if (!isCode(error, 'KUBE_NOT_FOUND', 'KUBE_CONFLICT')) throw error;
    }
    locations.forget(uid);
    return true;
  }
}

const isUnpublished = (restore: Restore): boolean =>
  restore.metadata.annotations?.[UNPUBLISHED] === 'true' &&
  restore.metadata.deletionTimestamp === undefined &&
  isOver(phaseOf(restore));
