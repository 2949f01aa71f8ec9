import { CodedError, define, isCode, lookup, messageOf } from '../../../base/index.ts';
import {
  type Backup,
  BACKUP_NAME,
  type KubeClient,
  type NewObject,
  NOT_IN_BACKUPS,
  type Restore,
  RESTORE_NAME,
  validLabel,
  VOLUME_GROUP_SNAPSHOT_CONTENTS,
  type VolumeGroupSnapshotContent,
  type VolumeSnapshotContent,
  waitFor,
} from '../../../kube/index.ts';
import type { CallContext, DeleteItemAction } from '../../contract.ts';
import { changeContent } from '../snapshots/deletion-policy.ts';
import { DELETION_MS, nameFor, patiently, placeOf, type Setting } from '../settings.ts';
import { restoredName } from '../snapshots/restored-name.ts';
import {
  CONTENT_SECRET,
  FOR_BACKUP,
  GROUP_MEMBERS,
  GROUP_SECRET,
  RESTORE_UID,
  STUB_FOR_RESTORE,
} from '../velero-names.ts';

/** A sidecar answers within milliseconds or not at all. Our choice. */
const TELLING_MS = 10_000;
/**
 * Without it, the content is gone at once and the sidecar deletes nothing from the storage. The
 * sidecar removes the finalizer itself.
 */
const FINALIZER = 'groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection';

/** A group, read from the content of one of its snapshots; undefined without a group. */
interface Group {
  readonly handle: string;
  readonly members: readonly string[];
  readonly driver: string;
  readonly secrets: Readonly<Record<string, string>>;
}

function groupOfContent({ metadata, spec, status }: VolumeSnapshotContent): Group | undefined {
  const { volumeGroupSnapshotHandle: handle, snapshotHandle = '' } = status ?? {};
  if (handle === undefined || snapshotHandle === '') return undefined;
  const { annotations = {} } = metadata;
  const secrets: Record<string, string> = {};
  for (const part of ['name', 'namespace']) {
    const value = lookup(annotations, `${CONTENT_SECRET}-${part}`);
    if (value !== undefined) define(secrets, `${GROUP_SECRET}-${part}`, value);
  }
  const members = membersIn(annotations[GROUP_MEMBERS]) ?? [snapshotHandle];
  return { handle, members, driver: spec.driver, secrets };
}

/** Undefined for an invalid annotation or a missing one, as on contents of Velero's own action. */
function membersIn(text = ''): string[] | undefined {
  try {
    const value: unknown = JSON.parse(text);
    const isList = Array.isArray(value) && value.length > 0;
    return isList && value.every((each) => typeof each === 'string') ? value : undefined;
  } catch {
    return undefined;
  }
}

const contentFor = (
  { driver, handle, members }: Pick<Group, 'driver' | 'handle' | 'members'>,
  deletionPolicy: 'Delete' | 'Retain',
  volumeGroupSnapshotRef: { readonly namespace: string; readonly name: string },
): VolumeGroupSnapshotContent['spec'] => ({
  deletionPolicy,
  driver,
  source: {
    groupSnapshotHandles: {
      volumeGroupSnapshotHandle: handle,
      volumeSnapshotHandles: [...members],
    },
  },
  volumeGroupSnapshotRef,
});

/** Creates or finds a content. Returns when the content's status names its group. */
async function make(
  { client }: Setting,
  wanted: NewObject<VolumeGroupSnapshotContent>,
  handle: string,
  signal: AbortSignal,
): Promise<VolumeGroupSnapshotContent> {
  const { name = '' } = wanted.metadata;
  const create = () => client.create(VOLUME_GROUP_SNAPSHOT_CONTENTS, wanted, { signal });
  const made = await patiently(create, signal).catch(async (error: unknown) => {
    if (!isCode(error, 'KUBE_ALREADY_EXISTS')) throw error;
    return patiently(
      () => client.get(VOLUME_GROUP_SNAPSHOT_CONTENTS, { name }, { signal }),
      signal,
    );
  });
  await untilTold(client, name, handle, signal);
  return made;
}

/**
 * Waits until a content's status names its group: the sidecar deletes nothing for a content without
 * one. The sidecar asks the driver and writes the status itself. If we write at the same time, the
 * sidecar replaces the whole status by an error. So we write the status only after {@link
 * TELLING_MS}.
 */
async function untilTold(
  client: KubeClient,
  name: string,
  handle: string,
  signal: AbortSignal,
): Promise<void> {
  const isTold = (now: VolumeGroupSnapshotContent | undefined): true | undefined =>
    !now || now.status?.volumeGroupSnapshotHandle !== undefined ? true : undefined;
  const wait = { signal, timeoutMs: TELLING_MS };
  try {
    await waitFor(client, VOLUME_GROUP_SNAPSHOT_CONTENTS, { name }, isTold, wait);
    return;
  } catch (error) {
    if (!isCode(error, 'WAIT_TIMEOUT')) throw error;
  }
  const patch = { status: { volumeGroupSnapshotHandle: handle } };
  const options = { signal, subresource: 'status' };
  const tell = () => client.patch(VOLUME_GROUP_SNAPSHOT_CONTENTS, { name }, patch, options);
  await patiently(tell, signal);
}

/**
 * Creates our own content for a group that the storage has cut, from the group's own content. Only
 * {@link removeContent} removes snapshots together with it.
 */
export async function keepGroup(
  setting: Setting,
  own: VolumeGroupSnapshotContent,
  group: { readonly name: string; readonly namespace: string; readonly backup: Backup },
  marks: { readonly labels: Record<string, string>; readonly annotations: Record<string, string> },
  signal: AbortSignal,
): Promise<void> {
  const handle = own.status?.volumeGroupSnapshotHandle;
  const members = handlesOf(own);
  if (handle === undefined || members.length === 0) {
    const text = `VolumeGroupSnapshotContent ${own.metadata.name} does not tell the handles of its snapshots`;
    throw new CodedError('GROUP_NOT_TAKEN', text);
  }
  const secrets = Object.entries(own.metadata.annotations ?? {}).filter(([key]) =>
    key.startsWith(GROUP_SECRET),
  );
  const { name, namespace, backup } = group;
  const wanted: NewObject<VolumeGroupSnapshotContent> = {
    metadata: {
      name: nameFor('velero-group', backup.metadata.uid, namespace, name),
      labels: { ...marks.labels, ...NOT_IN_BACKUPS },
      annotations: { ...Object.fromEntries(secrets), ...marks.annotations },
    },
    spec: contentFor({ handle, members, driver: own.spec.driver }, 'Retain', { namespace, name }),
  };
  await make(setting, wanted, handle, signal);
}

/** Removes one of our contents; with `Delete` also its group's snapshots from the storage. */
export async function removeContent(
  { client }: Setting,
  { metadata: { name, uid } }: VolumeGroupSnapshotContent,
  deletionPolicy: 'Delete' | 'Retain',
  signal: AbortSignal,
): Promise<void> {
  const change = ({ metadata, spec }: VolumeGroupSnapshotContent) => {
    if (metadata.uid !== uid || spec.deletionPolicy === deletionPolicy) return undefined;
    return { metadata: { finalizers: [FINALIZER] }, spec: { deletionPolicy } };
  };
  const changed = await changeContent(client, VOLUME_GROUP_SNAPSHOT_CONTENTS, name, change, signal);
  const handle = changed?.spec.source?.groupSnapshotHandles?.volumeGroupSnapshotHandle;
  if (deletionPolicy === 'Delete' && handle !== undefined)
    await untilTold(client, name, handle, signal);
  const remove = () => client.delete(VOLUME_GROUP_SNAPSHOT_CONTENTS, { name }, { signal, uid });
  await patiently(remove, signal);
}

/** Handles of all snapshots of a group, as reported by the storage. */
export const handlesOf = ({ spec, status }: VolumeGroupSnapshotContent): string[] =>
  status?.volumeSnapshotInfoList?.flatMap(({ snapshotHandle }) => snapshotHandle ?? []) ??
  spec.source?.groupSnapshotHandles?.volumeSnapshotHandles ??
  [];

/**
 * Creates a content for the group of a restored snapshot. If a snapshot belongs to a group, the
 * snapshot controller ignores it until the cluster has a content of that group. Velero v1.18.3:
 * pkg/restore/actions/csi/volumesnapshot_action.go, ensureStubVGSCExists. The content retains the
 * storage's snapshots. A failure does not fail the restore: other drivers need no content.
 */
export async function ensureStub(
  setting: Setting,
  fromBackup: VolumeSnapshotContent,
  restore: Restore,
  signal: AbortSignal,
): Promise<void> {
  const group = groupOfContent(fromBackup);
  if (!group) return;
  const { name, namespace = '', uid } = restore.metadata;
  const stub = restoredName(restore, group.handle);
  const wanted: NewObject<VolumeGroupSnapshotContent> = {
    metadata: {
      name: stub,
      labels: {
        [RESTORE_NAME]: validLabel(name),
        [RESTORE_UID]: uid,
        [STUB_FOR_RESTORE]: namespace,
        ...NOT_IN_BACKUPS,
      },
      annotations: group.secrets,
    },
    spec: contentFor(group, 'Retain', {
      namespace: fromBackup.spec.volumeSnapshotRef.namespace ?? '',
      name: `stub-vgs-${stub.slice(0, 8)}`,
    }),
  };
  try {
    await make(setting, wanted, group.handle, signal);
  } catch (error) {
    const fields = { VolumeSnapshotContent: placeOf(fromBackup), reason: messageOf(error) };
    setting.logger.warn(
      fields,
      'no VolumeGroupSnapshotContent could be made for a restored snapshot: if it does not get ready, install the CustomResourceDefinitions of VolumeGroupSnapshots, version v1beta2, and restore again',
    );
  }
}

/**
 * Deletes the groups of a backup's kept snapshots from the storage. Velero's own action deletes
 * single snapshots, which the sidecar refuses for members of a group. Throws `GROUP_NOT_DELETED`
 * with the driver's error, which Velero logs. The content stays, and its sidecar retries.
 */
export class GroupDelete implements DeleteItemAction {
  readonly #setting: Setting;
  /** Handles of groups deleted by this process: it runs for each of their snapshots. */
  readonly #deleted = new Set<string>();

  constructor(setting: Setting) {
    this.#setting = setting;
  }

  async execute(
    item: VolumeSnapshotContent,
    backup: Backup,
    { signal }: CallContext,
  ): Promise<void> {
    const group = groupOfContent(item);
    const { annotations, labels } = item.metadata;
    // Only groups of this backup whose snapshots are all known.
    if (!group || membersIn(annotations?.[GROUP_MEMBERS]) === undefined) return;
    if (labels?.[BACKUP_NAME] !== validLabel(backup.metadata.name)) return;
    if (labels[RESTORE_NAME] !== undefined) return;
    // UIDs do not identify the backup: a synced Backup has another UID. Two installations have
    // different namespaces.
    if ((annotations?.[FOR_BACKUP] ?? placeOf(backup)) !== placeOf(backup)) {
      const fields = { volumeGroupSnapshotHandle: group.handle, backup: placeOf(backup) };
      this.#setting.logger.warn(fields, 'the group is of a backup of another namespace: it stays');
      return;
    }
    if (this.#deleted.has(group.handle)) return;
    const { client, logger } = this.#setting;
    const name = nameFor('velero-delete', backup.metadata.uid, group.handle);
    const wanted: NewObject<VolumeGroupSnapshotContent> = {
      metadata: { name, annotations: group.secrets, finalizers: [FINALIZER] },
      spec: contentFor(group, 'Delete', { namespace: `ns-${name}`, name }),
    };
    const made = await make(this.#setting, wanted, group.handle, signal);
    const { uid } = made.metadata;
    const options = { signal, uid };
    const remove = () => client.delete(VOLUME_GROUP_SNAPSHOT_CONTENTS, { name }, options);
    await patiently(remove, signal);
    let told = '';
    const isGone = (now: VolumeGroupSnapshotContent | undefined): true | undefined => {
      told = now?.status?.error?.message ?? told;
      return now?.metadata.uid === uid ? undefined : true;
    };
    try {
      const wait = { signal, timeoutMs: this.#setting.deletionMs ?? DELETION_MS };
      await waitFor(client, VOLUME_GROUP_SNAPSHOT_CONTENTS, { name }, isGone, wait);
    } catch (cause) {
      if (!isCode(cause, 'WAIT_TIMEOUT')) throw cause;
      const why = told === '' ? 'look at its Events and at the log of the csi-snapshotter' : told;
      const text = `the snapshots of volume group ${group.handle} are still in the storage: VolumeGroupSnapshotContent ${name} of driver ${group.driver} is not deleted (${why}); it goes when the driver can delete them`;
      throw new CodedError('GROUP_NOT_DELETED', text, { cause });
    }
    this.#deleted.add(group.handle);
    logger.info(
      { volumeGroupSnapshotHandle: group.handle, driver: group.driver },
      'the snapshots of a volume group are deleted',
    );
  }
}
