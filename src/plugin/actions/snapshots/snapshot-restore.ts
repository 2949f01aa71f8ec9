import { CodedError, lookup, messageOf } from '../../../base/index.ts';
import {
  type Restore,
  VOLUME_SNAPSHOT_CLASSES,
  type VolumeSnapshot,
  type VolumeSnapshotContent,
} from '../../../kube/index.ts';
import type {
  CallContext,
  RestoreInput,
  RestoreItemAction,
  RestoreOutput,
} from '../../contract.ts';
import { ensureStub } from '../groups/group-handles.ts';
import { restoredSnapshotName } from './restored-name.ts';
import {
  deleteSecretOf,
  identifier,
  listSecretOf,
  patiently,
  placeOf,
  type Setting,
  SNAPSHOT_GROUP,
  without,
} from '../settings.ts';
import {
  DELETION_POLICY,
  FOR_BACKUP,
  MOVED,
  MUST_RESTORE,
  RETAINED_UNTIL,
} from '../velero-names.ts';

const isWithoutVolumes = ({ spec }: Restore): boolean => spec.restorePVs === false;
const SKIPPED: RestoreOutput = { skipRestore: true };

/**
 * Restores a kept snapshot and binds it to a new content with the storage's handle. The content is
 * restored even if the restore excludes cluster-scoped resources.
 */
export class SnapshotRestore implements RestoreItemAction {
  readonly #setting: Setting;

  constructor(setting: Setting) {
    this.#setting = setting;
  }

  async execute(
    { item, itemFromBackup, restore }: RestoreInput,
    { signal }: CallContext,
  ): Promise<RestoreOutput> {
    if (isWithoutVolumes(restore)) return SKIPPED;
    const fromBackup = itemFromBackup as VolumeSnapshot;
    const content = fromBackup.status?.boundVolumeSnapshotContentName;
    if (content === undefined) {
      const text = `VS ${fromBackup.metadata.name} doesn't have bound VSC`;
      throw new CodedError('NO_SNAPSHOT_CONTENT', text);
    }
    const { namespace = '', name: given } = fromBackup.metadata;
    const ref = { namespace, name: given };
    const name = await restoredSnapshotName(this.#setting, restore, ref, signal);
    const spec = without((item as VolumeSnapshot).spec, 'volumeSnapshotClassName');
    const { metadata } = item;
    // The snapshot was taken for a backup; the restored one was not.
    const labels = without(metadata.labels ?? {}, MOVED);
    const annotations = {
      ...without(metadata.annotations ?? {}, FOR_BACKUP),
      [DELETION_POLICY]: 'Retain',
      [MUST_RESTORE]: 'true',
    };
    const restored: VolumeSnapshot = {
      ...item,
      metadata: { ...metadata, name, labels, annotations },
      spec: { ...spec, source: { volumeSnapshotContentName: name } },
    };
    const additionalItems = [identifier(SNAPSHOT_GROUP, 'volumesnapshotcontents', content)];
    return { item: restored, additionalItems };
  }
}

/** Restores a kept snapshot's content. Its deletion never deletes the storage's snapshot. */
export class ContentRestore implements RestoreItemAction {
  readonly #setting: Setting;

  constructor(setting: Setting) {
    this.#setting = setting;
  }

  async execute(
    { item, itemFromBackup, restore }: RestoreInput,
    { signal }: CallContext,
  ): Promise<RestoreOutput> {
    if (isWithoutVolumes(restore)) return SKIPPED;
    const fromBackup = itemFromBackup as VolumeSnapshotContent;
    const { volumeSnapshotRef } = fromBackup.spec;
    const snapshotHandle = fromBackup.status?.snapshotHandle;
    if (snapshotHandle === undefined) {
      const text = `fail to get snapshot handle from VSC ${placeOf(fromBackup)} status`;
      throw new CodedError('NO_SNAPSHOT_HANDLE', text);
    }
    await ensureStub(this.#setting, fromBackup, restore, signal);
    const spec = without((item as VolumeSnapshotContent).spec, 'volumeSnapshotClassName');
    const className = await this.#classOf(spec.driver, signal);
    const { namespace = '' } = volumeSnapshotRef;
    const ref = { namespace, name: volumeSnapshotRef.name ?? '' };
    const name = await restoredSnapshotName(this.#setting, restore, ref, signal);
    const restored: VolumeSnapshotContent = {
      ...item,
      // A note from the backup's cluster does not apply here.
      metadata: {
        ...item.metadata,
        name,
        labels: without(item.metadata.labels ?? {}, RETAINED_UNTIL),
      },
      spec: {
        ...spec,
        deletionPolicy: 'Retain',
        source: { snapshotHandle },
        volumeSnapshotRef: {
          ...without(volumeSnapshotRef, 'uid', 'resourceVersion'),
          namespace: lookup(restore.spec.namespaceMapping, namespace) ?? namespace,
          name,
        },
        ...(className !== undefined && { volumeSnapshotClassName: className }),
      },
    };
    return { item: restored, additionalItems: deleteSecretOf(item) };
  }

  /** Some drivers need a class's credentials. The backup's class may be missing here. */
  async #classOf(driver: string, signal: AbortSignal): Promise<string | undefined> {
    const { client, logger } = this.#setting;
    try {
      const classes = await patiently(
        () => client.list(VOLUME_SNAPSHOT_CLASSES, { signal }),
        signal,
      );
      return classes.find((each) => each.driver === driver)?.metadata.name;
    } catch (error) {
      logger.warn({ reason: messageOf(error) }, 'VolumeSnapshotClasses could not be listed');
      return undefined;
    }
  }
}

export const CLASS_RESTORE: RestoreItemAction = {
  execute: ({ item, restore }: RestoreInput): Promise<RestoreOutput> =>
    Promise.resolve(isWithoutVolumes(restore) ? SKIPPED : { additionalItems: listSecretOf(item) }),
};
