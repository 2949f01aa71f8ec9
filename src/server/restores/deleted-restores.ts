import { RestoreArchive } from '../../archive/index.ts';
import { isCode, messageOf } from '../../base/index.ts';
import { refusesWrites } from '../../blob/index.ts';
import type { OperationMap } from '../../item-operations/index.ts';
import { isUnderWay, type Restore } from '../../kube/index.ts';
import type { Buckets, OpenBucket } from '../backups/contract.ts';
import type { Lead } from '../leading-controller.ts';
import type { RunsView } from '../runs/watched-runs.ts';
import type { FileWriters } from '../runs/file-writers.ts';
import type { RestoreLocations } from './locations.ts';
import { hasBegun, phaseOf } from './restore-kind.ts';
import type { RestoreRunner } from './run/contract.ts';

export interface DeletedRestoresOptions {
  readonly lead: Lead;
  readonly restores: RunsView<Restore>;
  readonly runner: () => Promise<RestoreRunner>;
  readonly locations: RestoreLocations;
  readonly writers: FileWriters;
  readonly buckets: Buckets;
  readonly operations: Pick<OperationMap, 'forget'>;
}

/** Finalizer for the files of a deleted Restore (Velero: pkg/controller/restore_controller.go). */
export const FILES_FINALIZER = 'restores.velero.io/external-resources-finalizer';
/**
 * Tries to cancel operations of a deleted Restore. Our choice: the Restore owns the data movements,
 * so they are deleted with it.
 */
const TELLING_MAX = 5;

export const isDeleted = ({ metadata }: Restore): boolean =>
  metadata.deletionTimestamp !== undefined;

/** Handles deleted Restores: ends their work and removes their files, then the finalizer. */
export class DeletedRestores {
  readonly #options: DeletedRestoresOptions;
  /** Failed tries to cancel all operations. Keys are UIDs. */
  readonly #told = new Map<string, number>();

  constructor(options: DeletedRestoresOptions) {
    this.#options = options;
  }

  /** Call it when no run is active here. May be repeated. Throws errors that are worth a retry. */
  async remove(restore: Restore): Promise<void> {
    const { finalizers = [] } = restore.metadata;
    if (!isDeleted(restore) || !finalizers.includes(FILES_FINALIZER)) return;
    await this.removeFiles(restore);
    const { restores } = this.#options;
    const rest = finalizers.filter((each) => each !== FILES_FINALIZER);
    try {
      await restores.patch(restore, { metadata: { finalizers: rest } });
    } catch (error) {
      // The deletion of its backup was faster.
      if (!isCode(error, 'KUBE_NOT_FOUND')) throw error;
    }
  }

  /** Also works for a Restore that no longer exists. */
  async removeFiles(restore: Restore): Promise<void> {
    const { operations, writers } = this.#options;
    const { logger } = this.#options.lead;
    const { name, uid } = restore.metadata;
    const location = await this.#locationOf(restore);
    if (location !== undefined) {
      const phase = phaseOf(restore);
      if (isUnderWay(phase)) {
        await this.#end(restore, location);
      }
      if (!(await writers.close(uid))) {
        const text = 'somebody still writes files of a restore that is deleted: they may stay';
        logger.warn({ restore: name, uid }, text);
      }
      await using opened = await this.#openedIfThere(location, restore);
      if (opened && hasBegun(phase)) await this.#delete(restore, opened);
    } else {
      const text = 'files of a restore stay in the bucket, since its backup is gone';
      logger.info({ restore: name, uid }, text);
    }
    operations.forget(uid);
    this.#told.delete(uid);
  }

  /** If the bucket refuses deletes, the files stay, and the Restore does not wait. */
  async #delete({ metadata }: Restore, { bucket, files }: OpenBucket): Promise<void> {
    const { assertLeading, logger, signal } = this.#options.lead;
    const { name, uid } = metadata;
    assertLeading();
    try {
      await new RestoreArchive(bucket).delete(name, { signal, assertAllowed: assertLeading });
    } catch (error) {
      if (!refusesWrites(error)) throw error;
      const fields = { restore: name, uid, error: messageOf(error) };
      logger.warn(fields, 'files of a deleted restore stay in a bucket that cannot be written');
    }
    assertLeading();
    await files?.deleteKept(signal);
  }

  async #end(restore: Restore, location: string): Promise<void> {
    const { runner } = this.#options;
    const { logger, signal } = this.#options.lead;
    const { name, uid } = restore.metadata;
    try {
      await (await runner()).end(restore, location, signal);
    } catch (error) {
      if (isCode(error, 'NO_LOCATION')) return;
      const times = (this.#told.get(uid) ?? 0) + 1;
      this.#told.set(uid, times);
      if (!isCode(error, 'NOT_ENDED') || times < TELLING_MAX) throw error;
      const fields = { restore: name, error: messageOf(error) };
      logger.warn(fields, 'a restore is deleted, and not all of its operations could be told');
    }
  }

  /** Undefined if the location is unknown. The files then stay, as in Velero. */
  async #locationOf(restore: Restore): Promise<string | undefined> {
    const { locations } = this.#options;
    const { signal } = this.#options.lead;
    try {
      return await locations.of(restore, signal);
    } catch (error) {
      if (isCode(error, 'NO_BACKUP')) return undefined;
      throw error;
    }
  }

  async #openedIfThere(location: string, { metadata }: Restore): Promise<OpenBucket | undefined> {
    const { buckets } = this.#options;
    const { signal } = this.#options.lead;
    try {
      return await buckets.open(location, signal, metadata);
    } catch (error) {
      if (isCode(error, 'NO_LOCATION')) return undefined;
      throw error;
    }
  }
}
