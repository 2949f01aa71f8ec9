import { RestoreArchive } from '../../archive/index.ts';
import { isCode, messageOf, redactAndCut } from '../../base/index.ts';
import { Controller, isOver, keyOf, type Restore, type Result } from '../../kube/index.ts';
import type { Lead } from '../leading-controller.ts';
import type { Buckets } from '../backups/contract.ts';
import type { FileWriters } from '../runs/file-writers.ts';
import type { RestoreLocations } from './locations.ts';
import { PlaceTurns } from '../place-turns.ts';
import { isPlaceAbsent } from './missing-sources.ts';
import { phaseOf, RESTORE_RESOURCE, statusOf, UNPUBLISHED } from './restore-kind.ts';

/** Delay before a retry. The cause may last for hours. Our choice. */
const AGAIN_MS = 10 * 60_000;

export interface UnpublishedRestoresOptions {
  readonly lead: Lead;
  readonly buckets: Buckets;
  readonly locations: RestoreLocations;
  readonly writers: FileWriters;
  /** The current Restores. */
  readonly restores: () => readonly Restore[];
  readonly againMs?: number | undefined;
}

/** Our choice: few restores end while their location is away. */
const WORKERS = 4;
const AT_LOCATION = 2;

/**
 * Publishes files of Restores that ended while their location was away or their bucket failed. In a
 * write-once location, such files are kept apart, where only Longshore finds them. Other locations
 * need nothing.
 */
export class UnpublishedRestores {
  readonly #options: UnpublishedRestoresOptions;
  readonly #controller: Controller;
  readonly #turns = new PlaceTurns(AT_LOCATION);

  constructor(options: UnpublishedRestoresOptions) {
    this.#options = options;
    this.#controller = new Controller({
      name: 'restore-unpublished',
      workers: WORKERS,
      logger: options.lead.logger,
      reconcile: (key) => this.#reconcile(key),
    });
  }

  /** Call it when a Restore has ended. */
  look(): void {
    for (const { metadata } of this.#options.restores().filter(isUnpublished)) {
      this.#controller.queue.add(keyOf(metadata));
    }
  }

  async run(): Promise<void> {
    this.look();
    await this.#controller.run(this.#options.lead.signal);
  }

  async #reconcile(key: string): Promise<Result | undefined> {
    const { restores, locations, writers, againMs = AGAIN_MS } = this.#options;
    const { logger, signal } = this.#options.lead;
    const restore = restores().find(({ metadata }) => keyOf(metadata) === key);
    if (!restore || !isUnpublished(restore)) return undefined;
    const again = { requeueAfterMs: againMs };
    try {
      return await this.#turns.run(await locations.placeOf(restore, signal), async () => {
        const { uid } = restore.metadata;
        return (await writers.run(uid, () => this.#publish(restore))) === true ? undefined : again;
      });
    } catch (error) {
      signal.throwIfAborted();
      if (isCode(error, 'LEADERSHIP_LOST')) throw error;
      if (isPlaceAbsent(error)) return again;
      const fields = { restore: restore.metadata.name, error: redactAndCut(messageOf(error)) };
      logger.warn(fields, 'the files of a restore that is over could not be published');
      return again;
    }
  }

  /** False if the bucket refuses some files. The cluster still keeps them. */
  async #publish(restore: Restore): Promise<boolean> {
    const { buckets, locations } = this.#options;
    const { client, assertLeading, signal } = this.#options.lead;
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
